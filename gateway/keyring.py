"""Which keys are accepted now: those of the settings, and those of files that are read again when they change."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from decisions.errors import MissingKey, WrongKey

from .config import Settings
from .keys import Key, KeysFileError, digest_of, parse_keys, parse_plain

log = logging.getLogger("canvasgate")
T = TypeVar("T")

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the files."""
MISSING = "Must supply an API key! Check your request and try again."
WRONG = "Cannot authenticate with the server. Please check your API key and try again."
EXPIRED = "This API key has expired."


class Keyring:
    """The keys that callers may use; without any, all are let in. Raises `KeysFileError` where a file is not right.

    Bearer keys are `API_KEY`, those of `API_KEY_FILE` and the named ones of `API_KEYS_FILE`; server keys are those of
    `DGEM_SERVER_KEY` and of its file. Neither kind stands in for the other, because a platform may keep the
    `Authorization` header for its own tokens: where both are set, a caller sends both.
    """

    def __init__(self, settings: Settings) -> None:
        self._bearer = settings.api_key.encode()
        self._server_keys = [key.encode() for key in settings.dgem_server_key]
        self._bearer_file = _watched("API_KEY_FILE", settings.api_key_file, _encoded)
        self._server_file = _watched("DGEM_SERVER_KEY_FILE", settings.dgem_server_key_file, _encoded)
        self._named_file = _watched("API_KEYS_FILE", settings.api_keys_file, _by_digest)
        self._files = [file for file in (self._bearer_file, self._server_file, self._named_file) if file is not None]
        self.asks_bearer = bool(self._bearer or self._bearer_file or self._named_file)
        """Whether callers need an `Authorization: Bearer`."""
        self.asks_server_key = bool(self._server_keys or self._server_file)
        """Whether callers need an `X-DGem-Key`."""

    def check(self, authorization: str, server_key: str) -> Key | None:
        """The key of the caller who sent these headers, None where it has no name. Raises `MissingKey`, `WrongKey`."""
        key = self._check_bearer(authorization) if self.asks_bearer else None
        if self.asks_server_key:
            check_key(server_key, [*self._server_keys, *(self._server_file.value if self._server_file else ())])
        return key

    def _check_bearer(self, authorization: str) -> Key | None:
        scheme, _, token = authorization.partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        # Looked up by digest: what could be timed is how a guess' digest compares, which tells nothing of any key.
        key = self._named_file.value.get(digest_of(token)) if self._named_file else None
        if key is None:
            plain = self._bearer_file.value if self._bearer_file else ()
            check_key(token, [self._bearer, *plain] if self._bearer else plain)
        elif key.expires is not None and key.expires <= time.time():
            raise WrongKey(EXPIRED)
        return key

    async def watch(self) -> None:
        """Read a file again within a second of its change; runs until cancelled."""
        while self._files:
            await asyncio.sleep(LOOK_INTERVAL)
            await asyncio.to_thread(self.reload)  # a network file system may let us wait

    def reload(self) -> None:
        """Read what has changed; a file that is not right leaves the keys as they were, and the log says so."""
        for file in self._files:
            file.reload()


def check_key(given: str, allowed: Sequence[bytes]) -> None:
    """Raise `MissingKey` for an empty key and `WrongKey` for one that is not allowed; takes as long either way."""
    if not given:
        raise MissingKey(MISSING)
    matches = [hmac.compare_digest(given.encode("latin-1"), key) for key in allowed]  # as the bytes that were sent
    if not any(matches):
        raise WrongKey(WRONG)


def _encoded(written: bytes) -> tuple[bytes, ...]:
    return tuple([key.encode() for key in parse_plain(written)])


def _by_digest(written: bytes) -> dict[bytes, Key]:
    return {key.digest: key for key in parse_keys(written)}


class _WatchedFile(Generic[T]):
    """A file's content as it was when it was last right."""

    def __init__(self, variable: str, path: Path, parse: Callable[[bytes], T]) -> None:
        self.variable = variable
        self.path = path
        self.parse = parse
        self.stamp = self._look()
        try:
            self.value = parse(path.read_bytes())
        except OSError as error:
            raise KeysFileError(f"{variable} {path}: {os.strerror(error.errno or 0)}") from error
        except KeysFileError as error:
            raise KeysFileError(f"{variable} {path}: {error}") from error

    def reload(self) -> None:
        """Take over what the file says now, if it has changed and is right."""
        stamp = self._look()
        if stamp == self.stamp:
            return
        self.stamp = stamp  # seen before it is read: a change in between is another change
        try:
            self.value = self.parse(self.path.read_bytes())
        except OSError as error:
            self._keep(os.strerror(error.errno or 0))
        except KeysFileError as error:
            self._keep(str(error))
        else:
            log.info("%s was read again", self.variable)

    def _keep(self, reason: str) -> None:
        log.error("%s %s: %s; the keys read before still hold", self.variable, self.path, reason)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            seen = self.path.stat()
        except OSError:
            return None
        return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _watched(variable: str, path: Path | None, parse: Callable[[bytes], T]) -> _WatchedFile[T] | None:
    return None if path is None else _WatchedFile(variable, path, parse)
