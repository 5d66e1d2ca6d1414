"""Undoing content encodings, and stopping bombs."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from decisions.errors import BodyTooLarge, SchemaViolation, UnsupportedEncoding
from gateway.encodings import DECODERS, MAX_MEMBERS, decode_body

CAP = 100_000
TEXT = b'{"state":"' + b"abc " * 300 + b'"}'


def zstd(data: bytes) -> bytes:
    """One frame that tells its size, as the Python SDK sends it."""
    return zstandard.ZstdCompressor().compress(data)


def zstd_streamed(data: bytes) -> bytes:
    """One frame that does not tell its size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


def raw_deflate(data: bytes) -> bytes:
    """Deflate without zlib's header, as some clients send it."""
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODE: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP ", gzip.compress),
    ("zstd", zstd),
    ("zstd", zstd_streamed),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("identity", bytes),
    ("", bytes),
    ("gzip, zstd", lambda data: zstd(gzip.compress(data))),
    ("identity, deflate , gzip", lambda data: gzip.compress(zlib.compress(data))),
]


@pytest.mark.parametrize(("name", "encode"), ENCODE)
def test_each_encoding_is_undone(name: str, encode: Callable[[bytes], bytes]) -> None:
    """Also stacked, in any case, and up to exactly the cap."""
    assert TEXT == decode_body(encode(TEXT), name, len(TEXT))


def test_no_encoding_is_no_work() -> None:
    """The header is optional."""
    assert TEXT == decode_body(TEXT, None, CAP)


@pytest.mark.parametrize(("name", "encode"), [("gzip", gzip.compress), ("zstd", zstd)])
def test_members_and_frames_are_joined(name: str, encode: Callable[[bytes], bytes]) -> None:
    """Both formats allow several in a row, but not thousands."""
    assert TEXT * 3 == decode_body(encode(TEXT) * 3, name, CAP)
    with pytest.raises(SchemaViolation):
        decode_body(encode(b"") * (MAX_MEMBERS + 1), name, CAP)


def test_zeros_may_follow_a_gzip_body() -> None:
    """Tapes did that, and the format still allows it."""
    assert TEXT == decode_body(gzip.compress(TEXT) + b"\0\0", "gzip", CAP)


@pytest.mark.parametrize(("name", "encode"), [entry for entry in ENCODE if entry[0] in DECODERS])
def test_a_broken_body_is_refused(name: str, encode: Callable[[bytes], bytes]) -> None:
    """Cut short, followed by something, or not of that kind at all."""
    for broken in (encode(TEXT)[:-3], encode(TEXT) + b"junk", b"junk", TEXT, b"\xff" * 20):
        with pytest.raises(SchemaViolation) as refused:
            decode_body(broken, name, CAP)

        assert "json_invalid" == refused.value.faults[0].type


@pytest.mark.parametrize("name", ["br", "compress", "gzip, br", "x" * 5000])
def test_an_unknown_encoding_is_named(name: str) -> None:
    """Together with those that are known."""
    with pytest.raises(UnsupportedEncoding, match="gzip, x-gzip, zstd, deflate, identity"):
        decode_body(TEXT, name, CAP)


def test_only_a_few_encodings_stack() -> None:
    """Each layer costs time."""
    with pytest.raises(UnsupportedEncoding):
        decode_body(TEXT, ",".join(["gzip"] * 5), CAP)


@pytest.mark.parametrize(
    ("name", "encode"),
    [*(entry for entry in ENCODE if entry[0] in DECODERS), ("zstd, zstd", lambda data: zstd(zstd(data)))],
)
def test_a_bomb_is_stopped_while_it_unfolds(name: str, encode: Callable[[bytes], bytes]) -> None:
    """64 MiB of zeros under a cap of 100 kB never take more than a small multiple of the cap."""
    bomb = encode(bytes(64 * 1024 * 1024))
    tracemalloc.start()

    with pytest.raises(BodyTooLarge):
        decode_body(bomb, name, CAP)

    assert 2_000_000 > tracemalloc.get_traced_memory()[1] - len(bomb)
    tracemalloc.stop()


def test_a_bomb_in_a_later_member_is_stopped() -> None:
    """The cap is for the whole body."""
    with pytest.raises(BodyTooLarge, match="100000 bytes"):
        decode_body(gzip.compress(TEXT) + gzip.compress(bytes(CAP)), "gzip", CAP)


def test_a_zstd_window_is_bounded() -> None:
    """A body of bytes must not ask for memory of megabytes."""
    wide = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()

    with pytest.raises(SchemaViolation):
        decode_body(stream.compress(TEXT) + stream.flush(), "zstd", CAP)


@given(st.binary(max_size=200), st.sampled_from([*DECODERS, "gzip, zstd", "br", "identity"]))
def test_no_bytes_cause_any_other_error(raw: bytes, name: str) -> None:
    """Whatever the bytes: content within the cap, or one of our errors."""
    with suppress(SchemaViolation, BodyTooLarge, UnsupportedEncoding):
        assert CAP >= len(decode_body(raw, name, CAP))
