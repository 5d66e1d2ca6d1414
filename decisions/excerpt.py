"""Cuts any JSON value short, so that an error which shows it stays small however large the request was."""

from __future__ import annotations

TEXT = 120
"""Characters of a string, or of a key, that are shown."""
ITEMS = 4
"""Members of an object or array that are shown."""
DEPTH = 2
"""Levels of nesting that are shown."""


def excerpt(value: object, depth: int = DEPTH) -> object:
    """The beginning of `value`, as plain JSON; what was left out is marked with an ellipsis."""
    if isinstance(value, str):
        return short(value)
    if isinstance(value, dict):
        if value and not depth:
            return {"…": f"{len(value)} fields"}
        shown = {short(str(key)): excerpt(value[key], depth - 1) for key, _ in zip(value, range(ITEMS), strict=False)}
        return shown if len(value) <= ITEMS else {**shown, "…": f"{len(value) - ITEMS} more"}
    if isinstance(value, list):
        if value and not depth:
            return [f"… {len(value)} items"]
        shown_items = [excerpt(item, depth - 1) for item in value[:ITEMS]]
        return shown_items if len(value) <= ITEMS else [*shown_items, f"… {len(value) - ITEMS} more"]
    return value if value is None or isinstance(value, bool | int | float) else short(str(value))


def short(text: str, limit: int = TEXT) -> str:
    """The beginning of a text, in characters that can be sent (lone surrogates replaced)."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def short_loc(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A path with each of its keys cut short."""
    return tuple(short(step) if isinstance(step, str) else step for step in loc)
