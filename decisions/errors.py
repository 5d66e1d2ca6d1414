"""Everything that can go wrong with a decision, as one tree with stable codes.

    DecisionError
      InvalidRequest ...... SchemaViolation · UnknownModel · UnknownTemplate · UnsupportedFeature
                            TooManyTokens · BodyTooLarge · UnsupportedEncoding
      AccessError ......... MissingKey · WrongKey
      AdmissionError ...... Overloaded · DeadlineExceeded · QueueUnavailable
      EngineError ......... EngineUnavailable · MalformedReadout · UnfitTokenizer

The domain knows `code`; only `gateway/wire.py` knows HTTP statuses. Admission and engine errors are raised by the
gateway alone, yet they stand here so that there is one tree to read and one test over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class DecisionError(Exception):
    """Root of the tree. `code` is stable and part of the wire; the message is for people."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(DecisionError):
    """The request cannot be answered as it was sent; sending it again will not help."""

    code = "api_usage_error"


@dataclass(frozen=True, slots=True)
class Fault:
    """One violation of the request's shape, in the form that the wire lists.

    `loc` is the path to the field and starts with "body"; `input` is the offending value, cut short where it is long.
    """

    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: object = None


class SchemaViolation(InvalidRequest):
    """The body's shape is wrong; `faults` names every violation of the request at once."""

    code = "validation_error"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, fault.loc[1:])) or 'body'}: {fault.msg}" for fault in faults))
        self.faults = tuple(faults)


class UnknownModel(InvalidRequest):
    """The request names a model that this gateway does not serve."""


class UnknownTemplate(InvalidRequest):
    """A path names a decision template that is not served; in a request's body that is a fault of its shape."""

    code = "unknown_template"


class UnsupportedFeature(InvalidRequest):
    """The request asks for something that the served model or this deployment cannot do, such as images."""


class TooManyTokens(InvalidRequest):
    """A prompt of the request is longer than the model reads. Nothing is ever truncated.

    `counted` and `allowed` are in tokens of the served model's tokenizer.
    """

    code = "max_tokens_exceeded"

    def __init__(self, counted: int, allowed: int, what: str) -> None:
        super().__init__(f"{what} takes {counted} tokens, but at most {allowed} are allowed.")
        self.counted = counted
        self.allowed = allowed


class BodyTooLarge(InvalidRequest):
    """The body, as sent or decompressed, is larger than this gateway accepts."""

    code = "body_too_large"


class UnsupportedEncoding(InvalidRequest):
    """The body's content encoding is not one that this gateway decodes."""

    code = "unsupported_encoding"


class AccessError(DecisionError):
    """The caller may not ask."""

    code = "authentication_error"


class MissingKey(AccessError):
    """No key came with the request."""


class WrongKey(AccessError):
    """A key came with the request, and it is not one of ours."""


class AdmissionError(DecisionError):
    """The request is fine, but it cannot be worked on now.

    `retry_after` is the time in seconds after which room is expected.
    """

    code = "overloaded_error"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(AdmissionError):
    """The queue is full, or the wait would outlast the deadline."""


class DeadlineExceeded(AdmissionError):
    """The request's deadline passed before its answer was ready."""

    code = "deadline_exceeded"


class QueueUnavailable(AdmissionError):
    """The gateway is draining, or its queue's backing store is away."""

    code = "queue_unavailable"


class EngineError(DecisionError):
    """The engine could not read; `retry_after` is in seconds."""

    code = "engine_error"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineUnavailable(EngineError):
    """The engine is still loading, or it has died."""

    code = "engine_unavailable"


class MalformedReadout(EngineError):
    """The engine answered with a missing slot, a missing label or a number that is not finite.

    Such a readout is never completed by a guess.
    """

    code = "malformed_readout"


class UnfitTokenizer(EngineError):
    """A label is not one distinct token at its answer position, so the model cannot be read with this tokenizer."""

    code = "unfit_tokenizer"
