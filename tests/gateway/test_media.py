"""Content types and forms."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.errors import DecisionError, SchemaViolation, UnsupportedFeature
from gateway.media import json_part

FORM = "multipart/form-data; boundary=B"


def part(name: str, content: bytes, more: str = "") -> bytes:
    """One part of a form."""
    return f'--B\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "text/json",
        "application/x+json",
    ],
)
def test_json_types_are_the_body_itself(content_type: str | None) -> None:
    """An absent type is read as JSON."""
    assert b"{}" == json_part(b"{}", content_type)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "image/png", "json", "x" * 5000]
)
def test_other_types_are_refused(content_type: str) -> None:
    """As the reference refuses them."""
    with pytest.raises(SchemaViolation) as refused:
        json_part(b"{}", content_type)

    assert [("model_attributes_type", ("body",))] == [(fault.type, fault.loc) for fault in refused.value.faults]


def test_a_form_holds_the_request_in_a_part() -> None:
    """Whatever that part's own headers."""
    form = part("request", b'{"a":\r\n1}', "\r\nContent-Type: application/json") + b"--B--\r\n"

    assert b'{"a":\r\n1}' == json_part(form, FORM)
    assert b'{"a":\r\n1}' == json_part(form, 'Multipart/Form-Data; Boundary="B"')


@pytest.mark.parametrize("first", [True, False])
def test_a_form_with_an_image_is_not_supported(first: bool) -> None:
    """Before or behind the request."""
    image, request = part("asset-0", b"\x89PNG", '; filename="a.png"'), part("request", b"{}")
    parts = image + request if first else request + image

    with pytest.raises(UnsupportedFeature, match="images are not supported"):
        json_part(parts + b"--B--\r\n", FORM)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"--B--\r\n", FORM),
        (b"", FORM),
        (part("request", b"{}"), FORM),
        (part("request", b"{}")[:-10], FORM),
        (b"{}", FORM),
        (part("request", b"{}") + b"--B--\r\n", "multipart/form-data"),
        (part("request", b"{}") + b"--B--\r\n", f"multipart/form-data; boundary={'b' * 71}"),
        (part("request", b"{}") + b"--B--\r\n", "multipart/form-data; boundary=C"),
        (part("request", b"{}") * 2 + b"--B--\r\n", FORM),
        (part("x", b"{}") * 100 + b"--B--\r\n", FORM),
        (b"--B\r\n" + b"X-A: 1\r\n" * 50 + b"\r\n{}\r\n--B--\r\n", FORM),
    ],
)
def test_a_broken_form_is_refused(body: bytes, content_type: str) -> None:
    """No part, no end, no boundary, two requests, too many parts, too many headers."""
    with pytest.raises(SchemaViolation):
        json_part(body, content_type)


@given(st.binary(max_size=100), st.binary(max_size=20))
def test_no_form_causes_any_other_error(body: bytes, boundary: bytes) -> None:
    """Whatever the bytes: the request's JSON, or one of our errors."""
    for form in (body, part("request", body) + b"--B--\r\n", b"--B\r\n" + body):
        with suppress(DecisionError):
            assert isinstance(json_part(form, f"multipart/form-data; boundary={boundary.decode('latin-1')}"), bytes)
