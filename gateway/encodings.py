"""Undoes a body's content encodings, never producing more bytes than a cap allows."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import zstandard

from decisions.errors import BodyTooLarge, Fault, SchemaViolation, UnsupportedEncoding
from decisions.excerpt import short

MAX_ENCODINGS = 4
"""Encodings that may be stacked on one body."""
ZSTD_WINDOW = 8 * 1024 * 1024
"""Largest zstd window in bytes: what RFC 9659 allows for HTTP. It bounds the memory that a small body can ask for."""
MAX_MEMBERS = 16
"""Members (gzip) or frames (zstd) of one body: each costs a copy of the rest, even when it is empty."""
PIECE = 64 * 1024
"""Bytes that are decompressed at a time while a body is measured."""
GZIP_WINDOW = 16 + zlib.MAX_WBITS


class _Broken(Exception):
    """The bytes are not what their encoding says; the message says how."""


def decode_body(raw: bytes, encoding: str | None, cap: int) -> bytes:
    """The body without its `Content-Encoding`; encodings are undone from the last to the first, each within `cap`.

    Raises `UnsupportedEncoding`, `BodyTooLarge` as soon as the cap is passed, and `SchemaViolation` for broken bytes.
    """
    names = [name.strip().lower() for name in (encoding or "").split(",")]
    names = [name for name in names if name and name != "identity"]
    if len(names) > MAX_ENCODINGS:
        raise UnsupportedEncoding(f"At most {MAX_ENCODINGS} content encodings may be stacked.")
    for name in names:
        if name not in DECODERS:
            known = ", ".join(DECODERS)
            raise UnsupportedEncoding(
                f"Content encoding '{short(name)}' is not supported; use one of {known}, identity."
            )
    for name in reversed(names):
        raw = _decoded(raw, name, cap)
    return raw


def _decoded(raw: bytes, name: str, cap: int) -> bytes:
    try:
        return DECODERS[name](raw, cap) if raw else raw
    except (_Broken, zlib.error, zstandard.ZstdError) as error:
        msg = f"JSON decode error: the body is not valid {name} ({short(str(error))})"
        raise SchemaViolation([Fault("json_invalid", ("body", 0), msg, {})]) from None


def _too_large(cap: int) -> BodyTooLarge:
    return BodyTooLarge(f"The decompressed body has more than the {cap} bytes that are allowed.")


def _inflated(raw: bytes, window: int, cap: int, used: int = 0) -> tuple[bytes, bytes]:
    """One compressed stream's content, and what follows it; `used` bytes of the cap are taken already."""
    stream = zlib.decompressobj(window)
    content = stream.decompress(raw, cap - used + 1)
    if len(content) > cap - used:
        raise _too_large(cap)
    if not stream.eof:
        raise _Broken("it ends too early")
    return content, stream.unused_data


def _gunzip(raw: bytes, cap: int) -> bytes:
    """All members of a gzip file, joined."""
    content, rest = _inflated(raw, GZIP_WINDOW, cap)
    parts = [content]
    while rest.rstrip(b"\0"):  # members may be padded with zeros
        content, rest = _inflated(rest, GZIP_WINDOW, cap, sum(map(len, parts)))
        parts.append(content)
        if len(parts) > MAX_MEMBERS:
            raise _Broken(f"it has more than {MAX_MEMBERS} members")
    return b"".join(parts)


def _deflate(raw: bytes, cap: int) -> bytes:
    """A zlib stream, as the standard has it, or a raw one, as some clients send it."""
    try:
        content, rest = _inflated(raw, zlib.MAX_WBITS, cap)
    except zlib.error:
        content, rest = _inflated(raw, -zlib.MAX_WBITS, cap)
    if rest:
        raise _Broken("something follows it")
    return content


def _unzstd(raw: bytes, cap: int) -> bytes:
    """All frames of a zstd body, joined.

    Measured first: the reader can be stopped, but does not tell a cut-off frame from a whole one; the object that does
    tell cannot be stopped.
    """
    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(raw, read_across_frames=True)
    size = 0
    while piece := reader.read(PIECE):
        size += len(piece)
        if size > cap:
            raise _too_large(cap)
    parts: list[bytes] = []
    while raw:
        frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
        parts.append(frame.decompress(raw))
        if not frame.eof:
            raise _Broken("it ends too early")
        if len(parts) > MAX_MEMBERS:
            raise _Broken(f"it has more than {MAX_MEMBERS} frames")
        raw = frame.unused_data
    return b"".join(parts)


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "zstd": _unzstd,
    "deflate": _deflate,
}
