"""Remembers what was worked out for questions that come again and again, about one state after another."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

REMEMBERED = 512
"""Keys that are remembered at once."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recurring(Generic[K, V]):
    """Values by key, within bounds; it forgets all of them when full, so that it needs no lock and no bookkeeping."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._values: dict[K, V] = {}

    def get(self, key: K | None) -> V | None:
        """The value, or None where it is not remembered; nothing is under the key None."""
        return self._values.get(key) if key is not None else None

    def put(self, key: K | None, value: V) -> None:
        """Remember a value; under the key None, nothing."""
        if key is None:
            return
        if len(self._values) >= self._most:
            self._values.clear()
        self._values[key] = value
