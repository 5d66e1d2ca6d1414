"""Reads a body's bytes as JSON, strictly and without surprises: `SchemaViolation` or `BodyTooLarge`, nothing else.

Refused: nesting over `MAX_DEPTH`, repeated keys, invalid UTF-8, NaN and Infinity outside the state, lone surrogates in
ids and option names. Lone surrogates elsewhere become U+FFFD; numbers that JSON's own types cannot hold stay text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from decisions.errors import BodyTooLarge, Fault, SchemaViolation
from decisions.excerpt import excerpt, short, short_loc
from decisions.schema import MAX_FAULTS, capped

MAX_DEPTH = 200
"""Objects and arrays open at once. Counted before parsing, so it holds whatever the parser's own limit is."""
MAX_CONTAINERS = 262_144
"""Objects and arrays in one body. Each costs a parser some 100 bytes, and no model's context holds as many."""
MAX_VALUES = 1_000_000
"""Members and items in one body, for the same reason: 32 MiB of them would take a parser 800."""
BOM = b"\xef\xbb\xbf"
TEXT_FIELDS = frozenset({"state", "input"})
"""Fields of a request that are the caller's data: whatever Python's parser takes is taken there."""

Loc = tuple[str | int, ...]

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER = b"0" * 19
_LONG_EXPONENTS = (b"0e000", b"0e+000", b"0e-000")
_LONE = re.compile("[\ud800-\udfff]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b'"[]{}')
_NO_COMMAS = bytes(byte for byte in range(256) if byte not in b'",')
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_LARGEST = 2**63
"""Whole numbers from here on do not fit 64 bits with a sign."""


class _Number:
    """A number that JSON's own types cannot hold: NaN, an infinity, or one with too many digits.

    No schema takes it, so where a number, or any typed value, is expected it is refused; inside text it becomes text.
    """

    __slots__ = ("finite", "text")

    def __init__(self, text: str, *, finite: bool) -> None:
        self.text = text
        self.finite = finite

    def __str__(self) -> str:
        return self.text


class _Odd(Exception):
    """The quick parser met NaN or Infinity; the careful one takes over."""


class _Repeated(Exception):
    """An object has a key twice; which one and where is for the second look."""


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object that the bytes spell."""
    if not body:
        raise SchemaViolation([Fault("missing", ("body",), "Field required")])
    check_nesting(body)
    text = _decoded(body)
    try:
        return _quick(text) if not _may_be_odd(body) else _careful(text)
    except _Odd:
        return _careful(text)


def _quick(text: str) -> dict[str, Any]:
    return _object_of(_parsed(_QUICK, text))


def _careful(text: str) -> dict[str, Any]:
    return _mended(_object_of(_parsed(_CAREFUL, text)))


def _parsed(decoder: json.JSONDecoder, text: str) -> object:
    try:
        tree: object = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise SchemaViolation([_not_json(error.pos, error.msg)]) from None
    except _Repeated:
        raise SchemaViolation(_repeated_keys(text)) from None
    return tree


def _object_of(tree: object) -> dict[str, Any]:
    if isinstance(tree, dict):
        return tree
    msg = "Input should be a valid dictionary or object to extract fields from"
    raise SchemaViolation([Fault("model_attributes_type", ("body",), msg, excerpt(tree))])


def _may_be_odd(body: bytes) -> bool:
    """Whether the bytes may spell a lone surrogate, or a number that JSON's own types cannot hold.

    Most bodies do not, and are spared the careful parser; searches of plain bytes are ten times as fast as a pattern.
    """
    if b"\\" in body and (b"\\ud" in body or b"\\uD" in body):
        return True
    numbers = body.translate(_DIGITS)
    if _LONG_NUMBER in numbers:
        return True
    return b"0e" in numbers and any(number in numbers for number in _LONG_EXPONENTS)


def _decoded(body: bytes) -> str:
    start = len(BOM) if body.startswith(BOM) else 0
    try:
        return body[start:].decode() if start else body.decode()
    except UnicodeDecodeError as error:
        raise SchemaViolation([_not_json(error.start, "the body is not UTF-8")]) from None


def _not_json(position: int, reason: str) -> Fault:
    return Fault("json_invalid", ("body", position), f"JSON decode error: {reason}", {})


# --- Nesting --------------------------------------------------------------------------------------------------------


def check_nesting(body: bytes) -> None:
    """Refuse a body that is nested too deeply or has too many parts; at the speed of C, before any parser sees it."""
    if len(body) > MAX_VALUES and body.count(b",") > MAX_VALUES:
        _check_count("values", _outside_strings(body, _NO_COMMAS).count(b","), MAX_VALUES)
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return
    brackets = _outside_strings(body, _NO_BRACKETS)
    opened = brackets.count(b"{") + brackets.count(b"[")
    _check_count("objects and lists", opened, MAX_CONTAINERS)
    # A body that closes more than it opens ends for the parser within this part of it.
    steps = map(_STEP.__getitem__, brackets[: 2 * opened + 1])
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        msg = f"Nested too deeply: at most {MAX_DEPTH} objects and lists may be open at once"
        raise SchemaViolation([Fault("too_deep", ("body",), msg)])


def _check_count(what: str, count: int, allowed: int) -> None:
    if count > allowed:
        raise BodyTooLarge(f"The body has {count} {what}, but at most {allowed} are allowed.")


def _outside_strings(body: bytes, unwanted: bytes) -> bytes:
    """The bytes of a body that stand outside strings, without the unwanted ones.

    Escapes go first, so that each quote left opens or closes a string; two quotes side by side can go as well, because
    what follows them stays inside or outside as it was.
    """
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, unwanted).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])


# --- Numbers and keys -----------------------------------------------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Repeated
    return members


def _integer(digits: str) -> int | _Number:
    if len(digits) > 20:
        return _Number(digits, finite=True)
    value = int(digits)
    return value if -_LARGEST <= value < _LARGEST else _Number(digits, finite=True)


def _float(digits: str) -> float | _Number:
    value = float(digits)
    return value if math.isfinite(value) else _Number(digits, finite=True)


def _constant(name: str) -> _Number:
    return _Number(name, finite=False)


def _meet_constant(_: str) -> None:
    raise _Odd


_QUICK = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_meet_constant)
_CAREFUL = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)


class _Pairs(list[tuple[str, Any]]):
    """The members of an object as they stand in the body, repeated ones included."""


def _repeated_keys(text: str) -> list[Fault]:
    """One fault per repeated key, with its path, from a second look at a body that has some."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_Pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant
    )
    try:
        tree = decoder.decode(text)
    except json.JSONDecodeError as error:
        return [_not_json(error.pos, error.msg)]
    return capped(
        Fault(
            "repeated_key",
            short_loc(loc),
            f"Key '{short(str(loc[-1]))}' is repeated; every key of an object may be given only once",
        )
        for loc in _repeats(tree, ("body",))
    )


def _repeats(value: object, loc: Loc) -> Iterator[Loc]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, member in value:
            if key in seen:
                yield (*loc, key)
            seen.add(key)
            yield from _repeats(member, (*loc, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _repeats(member, (*loc, index))


# --- Surrogates, NaN and Infinity -----------------------------------------------------------------------------------


def _mended(tree: dict[str, Any]) -> dict[str, Any]:
    """The body without lone surrogates, NaN and Infinity, where they may be there; every fault where they may not."""
    mender = _Mender()
    mended = mender.members(tree, ("body",), free=False)
    if mender.faults:
        raise SchemaViolation(capped(mender.faults))
    return mended


class _Mender:
    """Walks a body that may hold oddities; `faults` are those that cannot be mended."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def value(self, value: object, loc: Loc, *, free: bool) -> object:
        """The value, mended; inside `free` parts NaN and Infinity are text."""
        if isinstance(value, str):
            return self._text(value, loc, free=free)
        if isinstance(value, list):
            return [self.value(member, (*loc, index), free=free) for index, member in enumerate(value)]
        if isinstance(value, dict):
            return self.members(value, loc, free=free)
        return self._number(value, loc, free=free) if isinstance(value, _Number) else value

    def _number(self, number: _Number, loc: Loc, *, free: bool) -> str | _Number:
        if not (free or number.finite):
            msg = f"Input should be a finite number; {number} is allowed inside the state only"
            self._refuse("finite_number", loc, msg)
        return number.text if _is_inside_text(loc) else number

    def members(self, members: dict[str, Any], loc: Loc, *, free: bool) -> dict[str, Any]:
        """The members of an object, mended; the state begins a `free` part."""
        mended = {
            self._key(key, loc, free=free): self.value(
                member, (*loc, key), free=free or (loc == ("body",) and key in TEXT_FIELDS)
            )
            for key, member in members.items()
        }
        if len(mended) < len(members):
            self._refuse("repeated_key", loc, "Two keys are the same once their lone surrogates are replaced")
        return mended

    def _text(self, text: str, loc: Loc, *, free: bool) -> str:
        if text.isascii() or not _LONE.search(text):
            return text
        if not free and _is_name(loc):
            self._refuse("string_unicode", loc, "A name must not hold a lone surrogate")
        return _LONE.sub("\N{REPLACEMENT CHARACTER}", text)

    def _key(self, key: str, loc: Loc, *, free: bool) -> str:
        if key.isascii() or not _LONE.search(key):
            return key
        if not free and _holds_names(loc):
            self._refuse("string_unicode", (*loc, key), "An id or option name must not hold a lone surrogate")
        return _LONE.sub("\N{REPLACEMENT CHARACTER}", key)

    def _refuse(self, kind: str, loc: Loc, msg: str) -> None:
        if len(self.faults) <= MAX_FAULTS:
            self.faults.append(Fault(kind, short_loc(loc), msg))


def _holds_names(loc: Loc) -> bool:
    """Whether the keys of the object at `loc` are question ids or option names."""
    return loc == ("body", "questions") or (len(loc) == 4 and loc[1] == "questions" and loc[3] == "criteria")


def _is_inside_text(loc: Loc) -> bool:
    """Whether a number at `loc` is a part of a larger text, rather than the whole of a field."""
    field = loc[1]
    if field in TEXT_FIELDS or field in {"instructions", "variables"}:
        return len(loc) > 2
    if field != "questions" or len(loc) < 5:
        return False
    if loc[3] == "criteria":
        return len(loc) > 5
    return loc[3] == "instructions"


def _is_name(loc: Loc) -> bool:
    """Whether the string at `loc` is a name that comes back in the answer: a question's, or an option's value."""
    if loc[1:2] != ("questions",) or not isinstance(loc[2:3] and loc[2], int):
        return False
    return loc[3:] == ("name",) or (loc[3:4] == ("choices",) and loc[5:] == ("value",))
