"""The names under which a request may ask for the served model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decisions.errors import UnknownModel
from decisions.excerpt import short

ALIASES = ("jev-latest", "jev-preview")
"""Names that clients send without being told; all of them mean the served model."""
FAMILY = "jev-1."
"""Any version of TypeSafe's model means the served model as well."""


@dataclass(frozen=True, slots=True)
class ServedNames:
    """The served model's own name, which every answer carries, and what else means it."""

    served: str
    aliases: tuple[str, ...] = ALIASES
    release_date: str = "2026-12-01"
    """Day of this gateway's release, as year-month-day; clients insist on one."""

    def check(self, model: str) -> None:
        """Raise `UnknownModel` unless the name means the served model."""
        if model not in self.aliases and model != self.served and not model.startswith(FAMILY):
            raise UnknownModel(f"Unknown model: {short(model)}")

    def body(self) -> dict[str, Any]:
        """The body of `GET /v1/models`: TypeSafe's list under `models`, OpenAI's under `data`."""
        names = [*self.aliases, *([] if self.served in self.aliases else [self.served])]
        return {
            "models": [
                {
                    "name": name,
                    "description": "The served model." if name == self.served else f"Answered by {self.served}.",
                    "release_date": self.release_date,
                }
                for name in names
            ],
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "canvasgate"} for name in names],
        }
