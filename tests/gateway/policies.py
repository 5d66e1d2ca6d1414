"""Two templates for tests, and folders of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TRIAGE: dict[str, Any] = {
    "name": "triage_sample",
    "version": 1,
    "title": "Triage",
    "description": "Tells whether money is asked for, and which team a ticket is for.",
    "variables": {
        "ticket": {"type": "string", "minLength": 1, "description": "The customer's words."},
        "customer": {
            "type": "object",
            "description": "What is known of the customer.",
            "default": {"plan": "free"},
            "required": ["plan"],
            "properties": {"plan": {"enum": ["free", "paid"]}},
        },
    },
    "state": {"ticket": "{{ ticket }}", "customer": "{{ customer }}"},
    "instructions": "The customer's plan is {{ customer.plan }}.",
    "questions": {
        "q1": {
            "type": "noul",
            "instructions": "Is money asked for?",
            "criteria": {"true": "Asked for", "false": "Not"},
        },
        "q2": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "Invoices, charges, refunds", "technical": "Bugs and errors"},
        },
        "q3": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Annoyed", "Furious"]},
    },
    "settings": {"isolate": "none", "temperature": 2},
    "examples": [
        {
            "name": "a double charge",
            "variables": {"ticket": "I was charged twice."},
            "expect": {"state": {"ticket": "I was charged twice.", "customer": {"plan": "free"}}},
        }
    ],
}
ROUTER: dict[str, Any] = {
    "name": "router_sample",
    "version": 1,
    "description": "Finds the intent of a message among those that the caller brings.",
    "variables": {
        "message": {"type": "string", "description": "The message."},
        "intents": {
            "type": "object",
            "minProperties": 2,
            "additionalProperties": {"type": ["string", "null"]},
            "description": "Intent to its description.",
        },
    },
    "state": "{{ message }}",
    "questions": {"q1": {"type": "choice", "instructions": "What is wanted?", "criteria": "{{ intents }}"}},
    "examples": [
        {
            "name": "two intents",
            "variables": {"message": "Hi", "intents": {"greet": "Says hello", "leave": "Says goodbye"}},
            "expect": {"state": "Hi"},
        }
    ],
}


def write(folder: Path, policy: dict[str, Any] = TRIAGE, file: str = "", **changes: Any) -> Path:
    """A template as a file below a folder, written as editors do, in one move; its path."""
    changed = {**policy, **changes}
    path = folder / (file or f"{changed['name']}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(changed), encoding="utf-8")
    fresh.replace(path)
    return path
