"""The language of templates: what it renders, what it refuses, and that no value gets out of its place."""

from __future__ import annotations

from typing import Any

import pytest

from decisions.template_language import (
    MAX_CHARACTERS,
    MAX_STEPS,
    BrokenText,
    Budget,
    TemplateText,
    TooMuch,
    Unrenderable,
    is_template,
)

VARIABLES: dict[str, Any] = {
    "ticket": 'a<b> & "q" {{ x }}',
    "n": 3,
    "half": 2.5,
    "names": ["b", "a", "b"],
    "thing": {"k": 1, "items": [1], "__class__": "own"},
    "nothing": None,
    "empty": "",
    "yes": True,
}


def render(source: str, budget: Budget | None = None, **variables: Any) -> object:
    """A text with the variables above."""
    given = {**VARIABLES, **variables}
    return TemplateText(source, given.keys()).render(given, budget or Budget())


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ ticket }}", VARIABLES["ticket"]),
        ("T: {{ ticket }}!", f"T: {VARIABLES['ticket']}!"),
        ("{{ names }}", ["b", "a", "b"]),
        ("{{ thing.k }}", 1),
        ("{{ thing['k'] }}", 1),
        ("{{ thing.items }}", [1]),
        ("{{ thing.__class__ }}", "own"),
        ("{{ names[0] }}", "b"),
        ("{{ names[1:] }}", ["a", "b"]),
        ("{{ ticket[:3] }}", "a<b"),
        ("{{ nothing }}", None),
        ("{{ yes }}", True),
        ("{{ {'a': n, 'b': [n]} }}", {"a": 3, "b": [3]}),
        ("in text: {{ names }} {{ thing.k }} {{ yes }} {{ nothing }}", 'in text: ["b", "a", "b"] 1 true null'),
        ("{{ 'x' ~ n ~ names }}", 'x3["b", "a", "b"]'),
        ("{{ n + 1 }}", 4),
        ("{{ n - half }}", 0.5),
        ("{{ n * 2 }}", 6),
        ("{{ n / 2 }}", 1.5),
        ("{{ n // 2 }}", 1),
        ("{{ n % 2 }}", 1),
        ("{{ -n }}", -3),
        ("{{ 'many' if n > 2 else 'few' }}", "many"),
        ("{{ n > 2 and 'a' in names and not empty }}", True),
        ("{{ n is number }}", True),
        ("{% if empty %}x{% elif n %}y{% else %}z{% endif %}", "y"),
        ("{% for name in names %}{{ loop.index }}{{ name }}{% endfor %}", "1b2a3b"),
        ("{% for name in names if name == 'b' %}{{ name }}{% else %}none{% endfor %}", "bb"),
        ("{% for key, value in thing|items %}{{ key }}={{ value }};{% endfor %}", "k=1;items=[1];__class__=own;"),
        ("{% for key in thing %}{{ key }},{% endfor %}", "k,items,__class__,"),
        ("{% raw %}{{ n }}{% endraw %}", "{{ n }}"),
        ("{# a comment #}text\n", "text\n"),
        ("{{ thing.missing|default('none') }}", "none"),
        ("{{ empty|d('none', true) }}", "none"),
        ("{{ n|default('none') }}", 3),
        ("{{ names|join(', ') }}", "b, a, b"),
        ("{{ names|unique|sort|join }}", "ab"),
        ("{{ names|sort(true) }}", ["b", "b", "a"]),
        ("{{ names|unique }}", ["b", "a"]),
        ("{{ names|reverse }}", ["b", "a", "b"]),
        ("{{ 'abc'|reverse }}", "cba"),
        ("{{ names|first ~ names|last }}", "bb"),
        ("{{ names|length + names|count }}", 6),
        ("{{ 'abc'|list }}", ["a", "b", "c"]),
        ("{{ thing|keys }}", ["k", "items", "__class__"]),
        ("{{ thing|values|first }}", 1),
        ("{{ ' Ab '|trim|upper ~ 'X'|lower ~ 'ab cd'|title ~ 'ab'|capitalize }}", "ABxAb CdAb"),
        ("{{ ticket|replace('<', '[') }}", 'a[b> & "q" {{ x }}'),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{{ ticket|tojson }}", '"a<b> & \\"q\\" {{ x }}"'),
        ("{{ n|tojson ~ nothing|tojson }}", "3null"),
        ("{{ n|string }}", "3"),
        ("{{ half|round }}", 2),
        ("{{ 2.256|round(2) }}", 2.26),
    ],
)
def test_values_conditions_loops_and_filters(source: str, rendered: object) -> None:
    """A lone expression gives its value, and any other text a string in which values stand as JSON."""
    assert rendered == render(source)


@pytest.mark.parametrize(
    ("text", "found"), [("plain } text { %", False), ("{{ a }}", True), ("{% if", True), ("{#", True)]
)
def test_only_marks_make_a_template(text: str, found: bool) -> None:
    """Anything else stands for itself."""
    assert found is is_template(text)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ ", "unexpected"),
        ("{{ nope }}", "'nope' is no variable"),
        ("{{ loop }}", "'loop' is no variable"),
        ("{{ self }}", "reserves"),
        ("{{ ticket.upper() }}", "calling a function or method"),
        ("{{ range(10) }}", "calling a function or method"),
        ("{% set x = n %}", "{% set %}"),
        ("{% set x %}a{% endset %}", "not allowed"),
        ("{% include 'x' %}", "not allowed"),
        ("{% import 'x' as y %}", "not allowed"),
        ("{% from 'x' import y %}", "not allowed"),
        ("{% extends 'x' %}", "not allowed"),
        ("{% block a %}{% endblock %}", "not allowed"),
        ("{% macro m() %}{% endmacro %}", "not allowed"),
        ("{% with a = n %}{{ a }}{% endwith %}", "not allowed"),
        ("{% filter upper %}a{% endfilter %}", "filterblock is not"),
        ("{{ 'a' if empty }}", "without `else`"),
        ("{% for x in names recursive %}{% endfor %}", "recursive"),
        ("{{ n ** 9 }}", "not allowed"),
        ("{{ (n, n) }}", "tuple"),
        ("{{ 99999999999999999999 }}", "beyond 64 bits"),
        ("{{ 1e999 }}", "beyond 64 bits"),
        ("{{ ticket|format(n) }}", "No filter named"),
        ("{{ ticket|attr('__class__') }}", "No filter named"),
        ("{{ ticket|center(10) }}", "No filter named"),
        ("{{ names|map('upper') }}", "No filter named"),
        ("{{ names|sort(reverse=true) }}", "named argument"),
        ("{{ n is callable }}", "No test named"),
        ("{{ ticket|-shown }}", "expected token"),
        ("{% break %}", "unknown tag"),
        ("{% trans %}a{% endtrans %}", "unknown tag"),
        ("{% do n %}", "unknown tag"),
    ],
)
def test_what_templates_do_without_is_refused_when_they_are_compiled(source: str, why: str) -> None:
    """Before anything is rendered, with a reason."""
    with pytest.raises(BrokenText) as refused:
        TemplateText(source, VARIABLES.keys())

    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ thing.missing }}", "no attribute 'missing'"),
        ("x {{ thing.missing }}", "no attribute 'missing'"),
        ("{{ thing.missing.deeper }}", "no attribute 'missing'"),
        ("{{ names[9] }}", "no"),
        ("{{ names.k }}", "no attribute 'k'"),
        ("{{ n.real }}", "no attribute 'real'"),
        ("{{ names * 3 }}", "is not a number"),
        ("{{ ticket * 1000000 }}", "is not a number"),
        ("{{ '%9999999999d' % n }}", "is not a number"),
        ("{{ yes + 1 }}", "is not a number"),
        ("{{ 9223372036854775807 + 1 }}", "too large"),
        ("{{ n / 0 }}", "division by zero"),
        ("{{ n|length }}", "len"),
        ("{{ n|join }}", "not a list"),
        ("{{ 'a'|indent(1000) }}", "0 to 100"),
        ("{{ names|first|items }}", "items"),
        ("{% for x in n %}{% endfor %}", "not a list"),
        ("{% for x in names %}{{ loop }}{% endfor %}", "serializable"),
        ("{% for x in names %}{{ loop.cycle }}{% endfor %}", "no attribute 'cycle'"),
        ("{% for a, b in names %}{% endfor %}", "unpack"),
        ("{{ [n, ticket]|sort }}", "not supported"),
        ("{{ ticket|round }}", "is not a number"),
    ],
)
def test_what_does_not_fit_the_values_is_told(source: str, why: str) -> None:
    """Not guessed, not left empty."""
    with pytest.raises(Unrenderable) as refused:
        render(source)

    assert why in str(refused.value)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ticket.__class__ }}",
    "{{ ticket.format.__globals__ }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(n) }}",  # CVE-2016-10745
    "{{ '%s'|format(n) }}",
    "{{ '{a.__class__}'.format_map({'a': n}) }}",  # CVE-2019-10906
    "{{ ('{0.__class__}'.format)(n) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(n) }}",  # CVE-2024-56326: a stored reference to format
    "{{ ''|attr('format') }}",  # CVE-2025-27516: format through attr
    "{{ ['{0.__class__}']|map('format', n)|list }}",
    "{{ {}|xmlattr }}",  # CVE-2024-22195, CVE-2024-34064
    "{{ self.__init__.__globals__.__builtins__ }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ dict.__base__ }}",
    "{{ config }}",
    "{{ request.application.__globals__ }}",
    "{{ url_for.__globals__ }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ (n).__class__ }}",
    "{{ n.__class__ }}",
    "{{ names.__class__ }}",
    "{{ names.append }}",
    "{{ names['append'] }}",
    "{{ ticket['upper'] }}",
    "{% for x in names %}{{ loop.__class__ }}{% endfor %}",
    "{% for x in names %}{{ loop._iterable }}{% endfor %}",
    "{% for x in names %}{{ loop['__init__'] }}{% endfor %}",
    "{% for x in names recursive %}{{ loop(names) }}{% endfor %}",
    "{{ ticket|map(attribute='__class__') }}",
    "{{ names|groupby('__class__') }}",
    "{{ names|sort(attribute='__class__') }}",
    "{{ names|sum(start=n.__class__) }}",
    "{{ names|batch(9999999999, 'x') }}",
    "{{ ticket|wordwrap(1) }}",
    "{% include ticket %}",
    "{% import ticket as m %}{{ m.os }}",
    "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}",
    "{% autoescape true %}{{ ticket }}{% endautoescape %}",
    "{% debug %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_known_ways_out_of_a_sandbox_lead_nowhere(source: str) -> None:
    """Escapes of public reports, and what people try first; each is refused, by name or by value."""
    with pytest.raises((BrokenText, Unrenderable)):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}",
        "{% for a in many %}{% if a in many %}{% endif %}{% endfor %}",
        "{% for a in many %}{{ long|upper|length }}{% endfor %}",
        "{% for a in many %}{% if long ~ a %}{% endif %}{% endfor %}",
        "{% for a in many %}{% if long[1:] %}{% endif %}{% endfor %}",
        "{% for a in many %}{{ many|tojson|length }}{% endfor %}",
        "{% for a in many %}{{ long }}{% endfor %}",
        "{{ long|replace('a', long) }}",
        "{{ many|join(long) }}",
        "{{ long|replace('a', '\n')|indent(100) }}",
        "{% for a in many %}{% for b in many if false %}{% endfor %}{% endfor %}",
    ],
)
def test_what_a_rendering_may_do_is_bounded(source: str) -> None:
    """A variable is the caller's: what its size is multiplied with stops early, without making the result first."""
    with pytest.raises(TooMuch):
        render(source, many=["a"] * 20_000, long="a" * 200_000)


def test_bounds_leave_room_for_what_is_asked_in_earnest() -> None:
    """A megabyte goes through, and so does a list of 1,000."""
    budget = Budget()

    assert "x" * 2**20 == render("{{ text }}", budget, text="x" * 2**20)
    assert 5000 == len(str(render("{% for a in many %}{{ a }}{% endfor %}", budget, many=["abcde"] * 1000)))
    assert 0 < budget.steps < MAX_STEPS
    assert 0 < budget.characters < MAX_CHARACTERS


def test_used_variables_are_known() -> None:
    """Loop names are not variables."""
    assert {"names", "n"} == TemplateText("{% for x in names %}{{ x ~ n }}{% endfor %}", VARIABLES.keys()).used
