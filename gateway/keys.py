"""Keys of clients as a file holds them: hashed, each with its limits and its expiry; how they are made and written."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a key may be called: its name stands in logs, in metrics and in Redis."""
DIGEST = re.compile(r"[0-9a-f]{64}")
PRINTABLE = re.compile(r"[!-~]+")
PREFIX = "cg_"
"""How every key begins, so that a scanner for leaked secrets can tell one."""
LIMITS = ("requests_per_second", "tokens_per_minute", "concurrent")
MOST = 1_000_000_000
"""What a limit is at most."""


class KeysFileError(Exception):
    """A file of keys cannot be read, or does not hold what it should; the message says what, and names no key."""


@dataclass(frozen=True, slots=True)
class Key:
    """A client's key: its digest, and what it may do. A limit that is None does not hold.

    `tokens_per_minute` counts tokens put before the model; `concurrent` decisions at once; `expires` is in Unix
    seconds.
    """

    name: str
    digest: bytes
    requests_per_second: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    expires: float | None = None

    @property
    def limited(self) -> bool:
        """Whether any limit holds."""
        return not (self.requests_per_second is self.tokens_per_minute is self.concurrent is None)


def digest_of(key: str) -> bytes:
    """What is stored of a key.

    One round of SHA-256 is enough, and its speed matters to each request: a slow hash protects what people think up,
    but a key of 256 random bits can no more be guessed from its digest than the digest can be guessed.
    """
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def new_key() -> str:
    """A key of 256 random bits that fits into a header."""
    return PREFIX + secrets.token_urlsafe(32)


# --- Reading ----------------------------------------------------------------------------------------------------------


def parse_keys(written: bytes) -> tuple[Key, ...]:
    """The keys of an `API_KEYS_FILE`. Raises `KeysFileError`."""
    try:
        document = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise KeysFileError(f"not JSON: {error}") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeysFileError('not an object with a list "keys"')
    keys = tuple([_parse_key(entry, f"keys[{place}]") for place, entry in enumerate(listed)])
    for field in ("name", "digest"):
        if len({getattr(key, field) for key in keys}) < len(keys):
            raise KeysFileError(f"two keys have the same {field}")
    return keys


def _parse_key(entry: object, where: str) -> Key:
    if not isinstance(entry, dict):
        raise KeysFileError(f"{where} is not an object")
    # A limit that is spelled wrongly would not hold, so nothing is ignored.
    if unknown := sorted(entry.keys() - {"name", "sha256", "expires", *LIMITS}):
        raise KeysFileError(f"{where} has an unknown field {unknown[0]!r}")
    name, digest = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise KeysFileError(f"{where}.name is not 1 to 64 of letters, digits, '.', '_' and '-'")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise KeysFileError(f"{where}.sha256 is not 64 hexadecimal digits")
    limits = {limit: _parse_limit(entry.get(limit), f"{where}.{limit}") for limit in LIMITS}
    return Key(name, bytes.fromhex(digest), **limits, expires=_parse_time(entry.get("expires"), f"{where}.expires"))


def _parse_limit(value: object, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise KeysFileError(f"{where} is not a whole number from 1 to {MOST}")
    return value


def _parse_time(value: object, where: str) -> float | None:
    if value is None:
        return None
    try:
        return moment(str(value)).timestamp()
    except (ValueError, OverflowError):
        raise KeysFileError(f"{where} is not a time such as 2027-01-31 or 2027-01-31T12:00:00Z") from None


def moment(written: str) -> datetime:
    """A day or a time in ISO 8601, in UTC where it does not say otherwise. Raises ValueError."""
    time = datetime.fromisoformat(written)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parse_plain(written: bytes) -> tuple[str, ...]:
    """The keys of an `API_KEY_FILE` or `DGEM_SERVER_KEY_FILE`, one a line. Raises `KeysFileError`."""
    try:
        lines = written.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise KeysFileError("not ASCII text with a key on each line") from None
    keys = tuple([line.strip() for line in lines if line.strip()])
    if not keys:
        raise KeysFileError("no key in it")
    for number, key in enumerate(keys, start=1):
        if not PRINTABLE.fullmatch(key):
            raise KeysFileError(f"key {number} has a blank in it, or a character that no header may hold")
    return keys


# --- Writing ----------------------------------------------------------------------------------------------------------


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file, none where there is no file yet. Raises `KeysFileError`."""
    try:
        return parse_keys(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KeysFileError(os.strerror(error.errno or 0)) from error


@contextmanager
def editing(path: Path) -> Iterator[None]:
    """Nobody else edits the file meanwhile. Raises `KeysFileError` where its folder is not there."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise KeysFileError(f"{path.parent}: {os.strerror(error.errno or 0)}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the folder, because the file is replaced
        yield
    finally:
        os.close(folder)


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file in one step, so that a gateway sees the old keys or the new ones. Raises `KeysFileError`.

    A new file can be read by its owner alone; one that is there keeps its owner and its mode.
    """
    path = path.resolve()  # where the path is a link, what it points at is replaced
    try:
        _replace(path, json.dumps({"keys": [_written(key) for key in keys]}, indent=2) + "\n")
    except OSError as error:
        raise KeysFileError(os.strerror(error.errno or 0)) from error


def _replace(path: Path, text: str) -> None:
    with NamedTemporaryFile("w", dir=path.parent, prefix=".keys-", delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            if path.exists():
                there = path.stat()
                os.fchown(file.fileno(), there.st_uid, there.st_gid)
                os.fchmod(file.fileno(), there.st_mode & 0o777)
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def _written(key: Key) -> Mapping[str, Any]:
    limits = {limit: getattr(key, limit) for limit in LIMITS if getattr(key, limit) is not None}
    expires = {} if key.expires is None else {"expires": datetime.fromtimestamp(key.expires, UTC).isoformat()}
    return {"name": key.name, "sha256": key.digest.hex(), **limits, **expires}
