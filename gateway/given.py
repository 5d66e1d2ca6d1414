"""What a command line gives: texts from files, and the variables of a template."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class AskError(Exception):
    """The question could not be put, or the gateway did not answer it; the message says what to do."""


def read_text(text: str) -> str:
    """The text itself, or the content of the file behind an @. Raises `AskError` where there is no such file."""
    if text == "@-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise AskError(f"Cannot read {text[1:]}: {why}") from error


def given_variables(pairs: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
    """Variables from `name=value` pairs over those of JSON files.

    A value is text, but for true, false and what is a JSON object or list; `name:=json` is JSON whatever it is, and
    `name=@file` is the content of a file. Raises `AskError`.
    """
    variables: dict[str, Any] = {}
    for file in files:
        given = _json(read_text(f"@{file}"), file)
        if not isinstance(given, dict):
            raise AskError(f'{file} does not hold a JSON object of variables, such as {{"ticket": "..."}}.')
        variables |= given
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise AskError(f"'{pair}' gives no variable. Write -v name=value, -v name=@file or -v name:=json.")
        if name.endswith(":"):
            variables[name[:-1]] = _json(value, name[:-1])
        else:
            variables[name] = read_text(value) if value.startswith("@") else _guessed(value)
    return variables


def _json(text: str, what: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError as error:
        raise AskError(f"{what} is not JSON: {error}") from error


def _guessed(value: str) -> object:
    if value in {"true", "false"}:
        return value == "true"
    if value[:1] in {"{", "["}:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
