"""The language inside a template's texts: Jinja2 cut down to values, conditions, loops and harmless filters.

Jinja2's sandbox is the wall; in front of it a text may hold only the nodes listed here. There are no calls, so no
methods; no assignments, macros, imports or includes; and `a.b` looks into JSON objects, never at Python's attributes.
Variables come from callers, so what a rendering does with them is counted: loops, filters, comparisons and output.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, meta, nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from .excerpt import short
from .prompt import as_text

MAX_STEPS = 200_000
"""Items that loops and filters of one rendering may go through; 64 characters of a string count as one."""
MAX_CHARACTERS = 8 * 1024 * 1024
"""Characters that one rendering may write."""
MAX_INDENT = 100
LARGEST = 2**63
"""Whole numbers from here on do not fit 64 bits with a sign."""

MARKS = ("{{", "{%", "{#")
"""What makes a text a template; any other text stands for itself."""
ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict),
    *(nodes.Pair, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Keyword, nodes.Test, nodes.Compare),
    *(nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.CondExpr, nodes.If, nodes.For),
    *(nodes.Concat, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
)
NAMED_TESTS = ("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence")
LOOP = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})
"""What a text may ask of `loop`."""
RESERVED = frozenset({"loop", "self", "super", "caller", "varargs", "kwargs"})
"""Names that Jinja2 gives a meaning; no variable may have one."""

_BUDGET = "budget of this rendering"
"""Where a rendering keeps its budget; not a name, so no text can say it."""
_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class BrokenText(Exception):
    """A text of a template cannot be compiled; the message says why."""


class Unrenderable(Exception):
    """A text cannot be rendered with these variables; the message says why."""


class TooMuch(Unrenderable):
    """A rendering goes through or writes more than it may."""


class Budget:
    """What one rendering may still do."""

    __slots__ = ("characters", "steps")

    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.characters = MAX_CHARACTERS

    def spend(self, value: object) -> None:
        """Pay for going through a value once; only its outermost items count."""
        self.steps -= 1
        if isinstance(value, str):
            self.steps -= len(value) >> 6
        elif isinstance(value, list | tuple | dict):
            self.steps -= len(value)
        if self.steps < 0:
            raise TooMuch(f"it loops over more than {MAX_STEPS} items")

    def write(self, characters: int) -> None:
        """Pay for output before it is made."""
        self.characters -= characters
        if self.characters < 0:
            raise TooMuch(f"it renders to more than {MAX_CHARACTERS} characters")


# --- Filters ----------------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A value inside a text: a string as it is, anything else as JSON."""
    if isinstance(value, Undefined):
        return str(value)  # raises, and names what is undefined
    return as_text(value)  # type: ignore[arg-type]  # numbers and null as well


def _join(budget: Budget, value: Sequence[Any], separator: str = "") -> str:
    texts = [shown(item) for item in _items(value)]
    budget.write(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(budget: Budget, value: str, old: str, new: str) -> str:
    text = shown(value)
    budget.write(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _indent(budget: Budget, value: str, width: int = 4) -> str:
    if not 0 <= width <= MAX_INDENT:
        raise ValueError(f"indent takes 0 to {MAX_INDENT}")
    text = shown(value)
    budget.write(len(text) + width * text.count("\n"))
    return text.replace("\n", "\n" + " " * width)


def _default(_: Budget, value: object, instead: object = "", blank: bool = False) -> object:  # noqa: FBT001, FBT002 - Jinja2's own signature
    return instead if isinstance(value, Undefined) or (blank and not value) else value


def _items(value: object) -> list[Any]:
    """What a loop goes through: items of a list, keys of an object, characters of a string."""
    if not isinstance(value, list | tuple | dict | str):
        raise TypeError(f"{shown(value)} is not a list")
    return list(value)


def _number(value: object) -> float:
    """A number of JSON; raises TypeError for anything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{short(shown(value))} is not a number")
    return value


def _round(_: Budget, value: float, places: int = 0) -> float:
    return round(_number(value), min(max(int(places), 0), 15)) if places else round(_number(value))


def _sort(_: Budget, value: Sequence[Any], reverse: bool = False) -> list[Any]:  # noqa: FBT001, FBT002 - Jinja2's own signature
    return sorted(_items(value), reverse=reverse)


def _unique(_: Budget, value: Sequence[Any]) -> list[Any]:
    firsts: dict[str, Any] = {}
    for item in _items(value):
        firsts.setdefault(as_text([item]), item)
    return list(firsts.values())


FILTERS: dict[str, Callable[..., object]] = {
    "capitalize": lambda _, value: shown(value).capitalize(),
    "count": lambda _, value: len(value),
    "d": _default,
    "default": _default,
    "first": lambda _, value: _items(value)[0],
    "indent": _indent,
    "items": lambda _, value: [[key, member] for key, member in value.items()],
    "join": _join,
    "keys": lambda _, value: list(value.keys()),
    "last": lambda _, value: _items(value)[-1],
    "length": lambda _, value: len(value),
    "list": lambda _, value: _items(value),
    "lower": lambda _, value: shown(value).lower(),
    "replace": _replace,
    "reverse": lambda _, value: value[::-1] if isinstance(value, str) else _items(value)[::-1],
    "round": _round,
    "sort": _sort,
    "string": lambda _, value: shown(value),
    "title": lambda _, value: shown(value).title(),
    "tojson": lambda _, value: as_text([value])[1:-1],
    "trim": lambda _, value: shown(value).strip(),
    "unique": _unique,
    "upper": lambda _, value: shown(value).upper(),
    "values": lambda _, value: list(value.values()),
}
"""What a text may apply to a value."""
_OWN: dict[str, Callable[..., object]] = {
    "-counted": lambda _, value: _items(value),
    "-weighed": lambda _, value: value,
    "-shown": lambda _, value: shown(value),
}
"""Put around parts of a text by `_Counting`; their names cannot be written."""


def _budgeted(function: Callable[..., object]) -> Callable[..., object]:
    """A filter that pays for what it takes and for what it gives."""

    @pass_context
    def apply(context: Context, *given: object) -> object:
        budget = context.parent[_BUDGET]
        for value in given:
            budget.spend(value)
        made = function(budget, *given)
        budget.spend(made)
        return made

    return apply


class _Counting(NodeTransformer):
    """Puts a filter that pays around whatever takes time in proportion to a value."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja2's name
        self.generic_visit(node)
        node.iter = _through("-counted", node.iter)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802 - Jinja2's name
        self.generic_visit(node)
        node.expr = _through("-weighed", node.expr)
        for operand in node.ops:
            operand.expr = _through("-weighed", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:  # noqa: N802 - Jinja2's name
        self.generic_visit(node)
        node.nodes = [_through("-shown", part) for part in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802 - Jinja2's name
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through("-weighed", node.node)
        return node


def _through(name: str, node: Any) -> nodes.Expr:  # noqa: ANN401 - Jinja2's operands are typed as nodes of any kind
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


# --- The sandbox ------------------------------------------------------------------------------------------------------


class _Sandbox(ImmutableSandboxedEnvironment):
    """Looks into JSON values and nothing else; arithmetic takes numbers only."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - any JSON
        """A member of an object, or one of the few things known about a loop."""
        if isinstance(obj, LoopContext) and attribute in LOOP:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - any JSON
        """A member of an object, an item of a list, or a part of a string; undefined where there is none."""
        if isinstance(obj, Undefined):
            shown(obj)
        if isinstance(obj, dict) and isinstance(argument, str) and argument in obj:
            return obj[argument]
        if isinstance(obj, list | str) and isinstance(argument, int | slice):
            try:
                return obj[argument]
            except IndexError:
                pass
        return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - any JSON
        """The result of arithmetic, where it is a number of JSON."""
        result = _BINOPS[operator](_number(left), _number(right))
        if not math.isfinite(result) or abs(result) >= LARGEST:
            raise OverflowError("a result is too large")
        return result


_BINOPS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def _environment() -> _Sandbox:
    made = _Sandbox(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=shown)
    made.globals.clear()
    made.filters = {name: _budgeted(function) for name, function in {**FILTERS, **_OWN}.items()}
    made.tests = {name: TESTS[name] for name in NAMED_TESTS}
    return made


_ENVIRONMENT = _environment()


# --- Texts ------------------------------------------------------------------------------------------------------------


class TemplateText:
    """One text of a template, compiled. `names` are the variables that it may use; `used` those that it does.

    Raises `BrokenText`.
    """

    def __init__(self, source: str, names: Collection[str]) -> None:
        try:
            tree = _ENVIRONMENT.parse(source)
            _check_nodes(tree)
            self.used = frozenset(meta.find_undeclared_variables(tree))
        except TemplateError as error:
            raise BrokenText(short(error.message or "it is not well formed")) from None
        if unknown := sorted(self.used - set(names)):
            raise BrokenText(f"'{short(unknown[0])}' is no variable of this template")
        expression = _lone_expression(tree)
        if expression is not None:
            tree = nodes.Template([nodes.Assign(nodes.Name("result", "store"), expression, lineno=1)], lineno=1)
        self.native = expression is not None
        """Whether it is exactly one `{{ expression }}`, which gives the expression's own value."""
        counting: nodes.Template = _Counting().visit(tree)
        self._template = _ENVIRONMENT.from_string(counting.set_environment(_ENVIRONMENT))  # type: ignore[arg-type]  # of a template

    def render(self, variables: Mapping[str, Any], budget: Budget) -> object:
        """The text, or the value where it is a lone expression. Raises `Unrenderable`."""
        context = self._template.new_context({**variables, _BUDGET: budget})
        try:
            if not self.native:
                return "".join(self._written(context, budget))
            "".join(self._template.root_render_func(context))  # runs the assignment, which writes nothing
            result = context.vars["result"]
            if isinstance(result, Undefined):
                shown(result)
        except _FAULTS as error:
            raise Unrenderable(short(str(error))) from None
        return result

    def _written(self, context: Context, budget: Budget) -> Iterator[str]:
        for part in self._template.root_render_func(context):
            budget.write(len(part))
            yield part


def is_template(text: str) -> bool:
    """Whether a text has to be rendered at all."""
    return any(mark in text for mark in MARKS)


def _lone_expression(tree: nodes.Template) -> nodes.Expr | None:
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    written = tree.body[0].nodes
    return written[0] if len(written) == 1 and not isinstance(written[0], nodes.TemplateData) else None


def _check_nodes(tree: nodes.Template) -> None:
    """Raise `BrokenText` for a part of the language that templates do without."""
    for node in tree.find_all(nodes.Node):
        refused = type(node) not in ALLOWED
        if isinstance(node, nodes.Tuple):
            refused = node.ctx != "store"
        elif isinstance(node, nodes.For):
            refused = node.recursive
        elif isinstance(node, nodes.Filter):
            refused = bool(node.kwargs)
        elif isinstance(node, nodes.CondExpr):
            refused = node.expr2 is None
        elif isinstance(node, nodes.Name):
            refused = node.name in RESERVED - {"loop"}
        elif isinstance(node, nodes.Const):
            refused = isinstance(node.value, int | float) and not abs(node.value) < LARGEST
        if refused:
            spelled = _SPELLED.get(type(node), type(node).__name__.lower())
            raise BrokenText(f"line {node.lineno}: {spelled} is not allowed")


_SPELLED: Mapping[type[nodes.Node], str] = {
    nodes.Call: "calling a function or method",
    nodes.Assign: "{% set %}",
    nodes.Tuple: "a tuple (write a list: [a, b])",
    nodes.For: "a recursive loop",
    nodes.Filter: "a filter's named argument",
    nodes.CondExpr: "`a if b` without `else`",
    nodes.Name: "a name that Jinja2 reserves",
    nodes.Const: "a number beyond 64 bits",
    nodes.Pow: "**",
}
