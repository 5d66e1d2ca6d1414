"""How the values of settings are written in the environment: one `Kind` per way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from decisions.protocol import Temperatures

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How a value is written in the environment.

    `allowed` completes "allowed is ..."; `parse` raises ValueError for any other text; `show` writes a value so that
    `parse` gives it back.
    """

    allowed: str
    parse: Callable[[str], T]
    show: Callable[[T], str] = str


def whole(low: int, high: int) -> Kind[int]:
    """A whole number from `low` to `high`."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return Kind(f"a whole number from {low} to {high}", parse)


def number(low: float, high: float) -> Kind[float]:
    """A finite number from `low` to `high`."""

    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # false for NaN as well
            raise ValueError
        return value

    return Kind(f"a number from {low:g} to {high:g}", parse, lambda value: repr(value).removesuffix(".0"))


def member_of(names: type[E]) -> Kind[E]:
    """One of an enumeration's names, in any case."""
    return Kind(f"one of {', '.join(names)}", lambda text: names(text.lower()), lambda value: value.value)


def one_of(*names: str) -> Kind[str]:
    """One of these names, in any case."""

    def parse(text: str) -> str:
        return names[names.index(text.lower())]

    return Kind(f"one of {', '.join(names)}", parse)


def text(allowed: str = "any text") -> Kind[str]:
    """Text as it stands; empty where the variable is unset."""
    return Kind(allowed, str)


def folder() -> Kind[Path]:
    """A path; a leading ~ is the user's home."""
    return Kind("a path", lambda text: Path(text).expanduser())


def file() -> Kind[Path | None]:
    """A file's path, or None where the variable is unset; a leading ~ is the user's home."""
    return Kind("a path", lambda text: Path(text).expanduser() if text else None, lambda value: str(value or ""))


def listed(allowed: str) -> Kind[tuple[str, ...]]:
    """Texts between commas; blanks around them and empty ones are dropped."""

    def parse(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    return Kind(allowed, parse, ",".join)


def flag() -> Kind[bool]:
    """On or off."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

    def parse(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError
        return words[text.lower()]

    return Kind("1 or 0", parse, lambda value: str(int(value)))


def auto_or(kind: Kind[T]) -> Kind[T | None]:
    """`auto`, which is None here and left to whoever uses the setting; or a value of `kind`."""

    def parse(text: str) -> T | None:
        return None if text.lower() == "auto" else kind.parse(text)

    return Kind(f"auto, or {kind.allowed}", parse, lambda value: "auto" if value is None else kind.show(value))


def sample_count() -> Kind[int | Literal["auto"]]:
    """A number of noise draws, or `auto`: more draws where they are needed."""
    count = whole(1, 32)

    def parse(text: str) -> int | Literal["auto"]:
        return "auto" if text.lower() == "auto" else count.parse(text)

    return Kind(f"auto, or {count.allowed}", parse)


def temperatures() -> Kind[Temperatures]:
    """One temperature for all question types, or a JSON object with some of noul, choice and score."""

    def parse(text: str) -> Temperatures:
        given = json.loads(text)
        if not isinstance(given, dict):
            given = dict.fromkeys(("noul", "choice", "score"), given)
        values = {name: float(value) for name, value in given.items() if not isinstance(value, bool)}
        if len(values) < len(given) or not all(0 < value <= 20 for value in values.values()):
            raise ValueError
        return Temperatures(**values)

    def show(value: Temperatures) -> str:
        by_type = {"noul": value.noul, "choice": value.choice, "score": value.score}
        return repr(value.noul) if len(set(by_type.values())) == 1 else json.dumps(by_type)

    return Kind("a number above 0 and up to 20, or a JSON object of such for noul, choice, score", parse, show)


def redis_url() -> Kind[str]:
    """The address of one Redis server; empty where the variable is unset."""

    def parse(text: str) -> str:
        if text and not text.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError
        return text

    return Kind("a redis://, rediss:// or unix:// URL of one server (not of a Sentinel or a cluster)", parse)


def json_object() -> Kind[Mapping[str, Any]]:
    """A JSON object; empty where the variable is unset."""

    def parse(text: str) -> Mapping[str, Any]:
        value = json.loads(text or "{}")
        if not isinstance(value, dict):
            raise ValueError
        return value

    return Kind("a JSON object", parse, lambda value: json.dumps(value, ensure_ascii=False) if value else "")


def canvas_width() -> Kind[int]:
    """Tokens of a canvas: a multiple of 16, as canvases grow in steps of 16."""

    def parse(text: str) -> int:
        value = int(text)
        if value % 16 or not 16 <= value <= 1024:
            raise ValueError
        return value

    return Kind("a multiple of 16 from 16 to 1024", parse)
