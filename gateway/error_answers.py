"""Turns every error into its answer: one table from the error's class to its HTTP status."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from decisions import errors
from decisions.errors import DecisionError, SchemaViolation

STATUSES: Mapping[type[DecisionError], int] = {
    errors.DecisionError: 500,
    errors.InvalidRequest: 400,
    errors.SchemaViolation: 422,
    errors.UnknownModel: 400,
    errors.UnknownTemplate: 404,
    errors.UnsupportedFeature: 400,
    errors.TooManyTokens: 400,
    errors.BodyTooLarge: 413,
    errors.UnsupportedEncoding: 415,
    errors.AccessError: 401,
    errors.MissingKey: 403,
    errors.WrongKey: 401,
    errors.AdmissionError: 529,
    errors.Overloaded: 529,
    errors.RateLimited: 429,
    errors.DeadlineExceeded: 504,
    errors.QueueUnavailable: 503,
    errors.EngineError: 503,
    errors.EngineUnavailable: 503,
    errors.MalformedReadout: 503,
    errors.UnfitTokenizer: 503,
}
"""Every class of the tree has its own row; a test keeps it so."""
DESCRIPTIONS = {
    400: "The request cannot be answered as it was sent: unknown model, too many tokens, or something not supported.",
    401: "Wrong key.",
    403: "No key.",
    404: "There is no such template.",
    413: "The body, as sent or decompressed, is too large.",
    415: "Unknown content encoding.",
    422: "The body's shape is wrong; every fault is listed.",
    429: "This key asks too often; come again after `Retry-After`.",
    500: "Internal error.",
    503: "The engine or the queue is away; come again after `Retry-After`.",
    504: "The deadline passed before the answer was ready.",
    529: "The queue is full; come again after `Retry-After`.",
}
"""What each status means; part of the API's description."""
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
"""What metrics and logs call the errors of the router."""
RETRIED = frozenset({429, 503, 529})
"""Statuses whose answers say when to come again."""
LONGEST_WAIT = 3600.0
"""Seconds that `Retry-After` names at most."""

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error on the wire; `code` names it in metrics and logs."""

    status: int
    code: str
    headers: Headers
    body: bytes


def error_answer(error: DecisionError) -> ErrorAnswer:
    """The answer to an error, in the shape that the reference gives it."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    detail: object = {"error_type": error.code, "message": error.message}
    if isinstance(error, SchemaViolation):
        detail = [
            {"type": fault.type, "loc": fault.loc, "msg": fault.msg, "input": fault.input} for fault in error.faults
        ]
    return _answer(status, error.code, detail, _retry_headers(error, status))


def internal_error() -> ErrorAnswer:
    """The answer where we failed for a reason that is nobody's business but the log's."""
    detail = {"error_type": DecisionError.code, "message": "Internal error; the log has it under this request's id."}
    return _answer(500, DecisionError.code, detail, ())


def routing_answer(status: int, detail: str, headers: Mapping[str, str] | None) -> ErrorAnswer:
    """The answer to a path or method that there is not, in the protocol's shape."""
    named = tuple((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())
    return _answer(status, HTTP_CODES.get(status, "http_error"), detail, named)


def _retry_headers(error: DecisionError, status: int) -> Headers:
    if status == 401:
        return ((b"www-authenticate", b"Bearer"),)
    if status not in RETRIED:
        return ()
    seconds = min(max(float(getattr(error, "retry_after", 1.0)), 0.001), LONGEST_WAIT)
    return (
        (b"retry-after", b"%d" % math.ceil(seconds)),
        (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
    )


def _answer(status: int, code: str, detail: object, headers: Headers) -> ErrorAnswer:
    body = orjson.dumps({"detail": detail})
    return ErrorAnswer(
        status,
        code,
        ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers),
        body,
    )
