"""Finds the JSON in a body by its content type: the whole body, or the part of a form that is named `request`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from decisions.errors import Fault, SchemaViolation, UnsupportedFeature
from decisions.excerpt import short

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

NO_IMAGES = "The served model reads text only: images are not supported. Send the request as JSON, without images."
MAX_PARTS = 64
"""Parts of one form: a request and its images."""


def json_part(body: bytes, content_type: str | None) -> bytes:
    """The bytes that hold the request's JSON. An absent content type is read as JSON.

    Raises `UnsupportedFeature` for a form that brings images, and `SchemaViolation` for any other type.
    """
    if content_type is None or content_type == "application/json":
        return body
    kind = content_type.partition(";")[0].strip().lower()
    if not kind or kind.endswith(("/json", "+json")):
        return body
    if kind == "multipart/form-data":
        return _request_part(body, content_type)
    msg = f"Input should be JSON: send it as application/json, not as {short(kind)}"
    raise SchemaViolation([Fault("model_attributes_type", ("body",), msg)])


def _broken(reason: str) -> SchemaViolation:
    return SchemaViolation([Fault("multipart_invalid", ("body",), f"The form cannot be read: {reason}")])


def _request_part(body: bytes, content_type: str) -> bytes:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise _broken("its content type names no boundary of 1 to 70 characters")
    form = _Form(body)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _broken(short(str(error))) from None
    return form.request()


class _Form:
    """The parts of one form, as its parser finds them."""

    def __init__(self, body: bytes) -> None:
        self._ended = False
        self._parts = 0
        self._others = 0
        self._field = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._found = False
        self._wanted = False
        self._body = body

    def callbacks(self) -> MultipartCallbacks:
        """What the parser calls, by its names."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_field,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }

    def request(self) -> bytes:
        """The bytes of the part named `request`."""
        if self._others:
            raise UnsupportedFeature(NO_IMAGES)
        if not self._found:
            raise SchemaViolation([Fault("missing", ("body", "request"), "Field required: a part named 'request'")])
        if not self._ended:
            raise _broken("it ends before its last boundary")
        return b"".join(self._pieces)

    def _begin(self) -> None:
        self._headers = {}
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _broken(f"it has more than {MAX_PARTS} parts")

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._wanted = options.get(b"name") == b"request"
        if not self._wanted:
            self._others += 1
        elif self._found:
            raise _broken("it has two parts named 'request'")
        else:
            self._found = True

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self._pieces.append(data[start:end])

    def _on_end(self) -> None:
        self._ended = True
