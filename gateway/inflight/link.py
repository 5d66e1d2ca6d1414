"""The one door to Redis: every step is a script, and what is asked in one turn of the event loop goes out in one batch.

All commands of a replica go through one task and one connection, in the order in which they were asked. A caller that
is cancelled gives up its future and nothing else, so no command is ever cut off and no connection left half read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

log = logging.getLogger("canvasgate")

PAUSE_LEAST = 0.05
PAUSE_MOST = 2.0
"""Seconds between attempts to reach Redis; each failure doubles the pause."""
OLDEST_VERSION = (7, 0)
"""Scripts that say what they may do when memory is full came with this version."""
FOLDER = Path(__file__).parent / "scripts"
NAMES = ("enter", "take", "finish", "leave", "release", "beat", "bye", "forget")

Value = str | bytes | int | float
Reply = list[Any]


class RedisAway(Exception):
    """Redis cannot be asked now, or did not answer; what was asked may have been done or not."""


class Refused(Exception):
    """Redis is there, and does not do what was asked, for one because its memory is full."""


def script_source(name: str) -> str:
    """A script with what all of them share. Only the one that adds something is refused when memory is full."""
    flags = "" if name == "enter" else " flags=allow-oom"
    return f"#!lua{flags}\n" + "\n".join((FOLDER / f"{part}.lua").read_text("utf-8") for part in ("shared", name))


SOURCES = {name: script_source(name) for name in NAMES}


def client_of(url: str, timeout: float) -> Redis:
    """A client that does not try again by itself; `timeout` in seconds is for connecting.

    How long an answer may take is for the caller to say, with `asyncio.timeout`, and to drop the connection then: the
    client's own timeout loses a cancellation that comes while it writes (Python 3.11's `wait_for`).
    """
    return Redis.from_url(
        url, socket_timeout=None, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0), protocol=2
    )


async def _reply(connection: AbstractConnection) -> Any:  # noqa: ANN401 - whatever a script gives
    try:
        return await connection.read_response()
    except ReadOnlyError:
        raise RedisConnectionError("it is a replica now, and takes no writes") from None
    except ResponseError as error:
        return error


class _Call:
    """Something that was asked and is not answered yet."""

    __slots__ = ("args", "done", "script")

    def __init__(self, script: str, args: Sequence[Value], done: Callable[[Reply | Exception], None]) -> None:
        self.script = script
        self.args = args
        self.done = done


class Link:
    """Asks Redis, and keeps trying to reach it. `changed` is called when `up` has changed."""

    def __init__(self, url: str, timeout: float, space: str, first: Sequence[Value]) -> None:
        """`space` begins every key; `first` are the arguments that every script takes first."""
        self.up = False
        self.why_down = "it was not reached yet"
        self.changed: Callable[[], None] = lambda: None
        self._client = client_of(url, timeout)
        self._timeout = timeout
        self._head = (space, *first)
        self._shas: dict[str, str] = {}
        self._calls: list[_Call] = []
        self._asked = asyncio.Event()

    def tell(self, script: str, *args: Value, done: Callable[[Reply | Exception], None] = lambda _: None) -> None:
        """Run a script; `done` is handed its reply, or `RedisAway` or `Refused`."""
        if not self.up:
            done(RedisAway(self.why_down))
            return
        self._calls.append(_Call(script, args, done))
        self._asked.set()

    async def ask(self, script: str, *args: Value) -> Reply:
        """The reply of a script; raises `RedisAway` or `Refused`. Cancelling does not take the script back."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply | Exception) -> None:
            if future.done():
                return
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.tell(script, *args, done=done)
        return await future

    async def run(self) -> None:
        """Reach Redis, answer what is asked, and reach it again when it was away; until cancelled."""
        pause = PAUSE_LEAST
        try:
            while True:
                pause = PAUSE_LEAST if await self._serve() else min(2 * pause, PAUSE_MOST)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - replicas should not come at once
        finally:
            await self._go_down(RedisAway("the gateway stops"))
            await self._client.aclose()

    async def _serve(self) -> bool:
        """Answer what is asked until Redis goes away; whether it was there at all."""
        try:
            await self._connect()
            self._go_up()
            while True:
                await self._answer_calls()
        except (RedisError, OSError, TimeoutError) as error:
            was_up = self.up
            await self._go_down(error)
            return was_up

    async def _connect(self) -> None:
        async with asyncio.timeout(4 * self._timeout):
            server = await self._client.info("server")
            version = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
            if version < OLDEST_VERSION:
                raise RedisError(f"it is version {server['redis_version']}, and 7.0 is the oldest that will do")
            if server.get("redis_mode") == "cluster":
                raise RedisError("it is a Redis Cluster; REDIS_URL needs a single server")
            await self._load_scripts()

    async def _load_scripts(self) -> None:
        for name, source in SOURCES.items():
            self._shas[name] = await self._client.script_load(source)

    def _go_up(self) -> None:
        log.info("redis is there")
        self.up, self.why_down = True, ""
        self.changed()

    async def _go_down(self, error: Exception) -> None:
        was_up, self.up = self.up, False
        self.why_down = str(error) or type(error).__name__
        calls, self._calls = self._calls, []
        for call in calls:
            call.done(RedisAway(self.why_down))
        await self._client.connection_pool.disconnect()
        if was_up:
            log.warning("redis is away: %s", self.why_down)
            self.changed()

    async def _answer_calls(self) -> None:
        await self._asked.wait()
        await asyncio.sleep(0)  # whatever else is asked in this turn goes along
        self._asked.clear()
        calls = [*self._calls]
        replies = await self._replies(calls)
        del self._calls[: len(calls)]  # not before: where Redis goes away, they are told so with the others
        for call, reply in zip(calls, replies, strict=True):
            call.done(reply)

    async def _replies(self, calls: Sequence[_Call]) -> list[Reply | Exception]:
        """Every reply of a batch. A connection that was cut meanwhile is made anew once, as all scripts bear that."""
        try:
            replies = await self._batch(calls)
        except (RedisConnectionError, OSError):
            await self._client.connection_pool.disconnect()
            replies = await self._batch(calls)
        again = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if again:
            await self._load_scripts()
            for at, reply in zip(again, await self._batch([calls[at] for at in again]), strict=True):
                replies[at] = reply
        return [Refused(str(reply)) if isinstance(reply, ResponseError) else reply for reply in replies]

    async def _batch(self, calls: Sequence[_Call]) -> list[Any]:
        """On the connection itself: the client's own pipeline takes as long as all the rest of a batch."""
        space, *first = self._head
        commands = [("EVALSHA", self._shas[call.script], 1, space, *first, *call.args) for call in calls]
        pool = self._client.connection_pool
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self._timeout), AsyncExitStack() as unless_read:
                # What is still to be read on it then is nobody's reply any more.
                unless_read.push_async_callback(connection.disconnect, nowait=True)
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                replies = [await _reply(connection) for _ in commands]
                unless_read.pop_all()
                return replies
        finally:
            await pool.release(connection)
