"""How log lines are written: one line per event, as JSON or as text, to one stream."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import orjson

from .config import LogFormat

NOWHERE = vars(logging.LogRecord("", logging.INFO, "", 0, "request", None, None))
"""What a log line says of where it comes from, when that is no line of code."""


class RequestLine(logging.LogRecord):
    """The log line of a request, made without looking up code, thread and process: that would cost most of it."""

    def __init__(self, name: str, level: int, fields: dict[str, Any]) -> None:
        vars(self).update(NOWHERE)
        self.name = name
        self.levelno = level
        self.levelname = logging.getLevelName(level)
        self.created = time.time()
        self.fields = fields


class LineFormatter(logging.Formatter):
    """One line per event, in UTC, as JSON or as text; an exception's traceback goes into the line."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self.write = _json_line if form is LogFormat.JSON else _text_line
        self._second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        """The line of a log record, whoever made it."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        if record.exc_info:
            fields = {**fields, "exception": self.formatException(record.exc_info)}
        line = {
            "at": self._at(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        return self.write(line | fields)

    def _at(self, created: float) -> str:
        second = int(created)
        if second != self._second[0]:  # written out once a second
            self._second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{self._second[1]}.{int((created - second) * 1000):03d}Z"


def _json_line(line: dict[str, Any]) -> str:
    return orjson.dumps(line, default=str).decode()


def _text_line(line: dict[str, Any]) -> str:
    words = [line.pop(name) for name in ("at", "level", "logger", "event")]
    return " ".join([*words, *(f"{name}={_text_value(value)}" for name, value in line.items())])


def _text_value(value: object) -> str:
    if isinstance(value, dict):
        return ",".join([f"{name}:{part}" for name, part in value.items()])
    written = str(value)
    # Whatever a client puts into a path stays within its line and its field.
    return written if written.isprintable() and " " not in written else repr(written)


def configure_logging(level: str, form: LogFormat, stream: TextIO | None = None) -> None:
    """Send all log lines of this process to `stream` (standard error when None).

    `level` is for our own lines and the server's; of libraries only warnings and worse are shown.
    """
    # Our lines name no thread, process or task, so logging need not look them up for each of them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in ("canvasgate", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
