"""Hears of what concerns this replica: messages to it, and turns that were added to the lanes.

Both are streams that are read from where reading stopped, so nothing is missed while a connection is away. The lanes
are listened to only while there is room: whoever is busy need not be woken by every entry, and looks when it has done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import RedisError

from .link import Link, client_of

BLOCK = 2.0
"""Seconds that one look waits for something to come."""
PAUSE = 0.1
"""Seconds before the next look after one that failed."""

Message = tuple[str, Any]
"""A message's id, and its fields as the client gives them."""
Hear = Callable[[str, str, bytes], None]


class Streams:
    """Reads some streams, each from where it stopped."""

    def __init__(self, url: str, timeout: float, link: Link, names: Sequence[str]) -> None:
        self._link = link
        self._timeout = timeout
        self._client = client_of(url, timeout)
        self._seen = dict.fromkeys(names, "0-0")

    def start_from(self, milliseconds: int) -> None:
        """What came before this moment of Redis' clock is no news, where nothing was read yet."""
        for name, seen in self._seen.items():
            if seen == "0-0":
                self._seen[name] = f"{milliseconds}-0"

    async def run(self, ready: Callable[[], Awaitable[object]], hear: Callable[[list[Message]], None]) -> None:
        """Hand over what comes, until cancelled; `ready` is awaited before each look."""
        try:
            while True:
                await ready()
                await self._listen(hear)
        finally:
            await self._client.aclose()

    async def _listen(self, hear: Callable[[list[Message]], None]) -> None:
        """One look; where it fails the next one has a new connection, once Redis is there."""
        try:
            async with asyncio.timeout(BLOCK + self._timeout):
                news = await self._client.execute_command(  # type: ignore[no-untyped-call]
                    "XREAD", "COUNT", 1000, "BLOCK", int(BLOCK * 1000), "STREAMS", *self._seen, *self._seen.values()
                )
        except (RedisError, OSError, TimeoutError):
            await self._client.connection_pool.disconnect()
            await asyncio.sleep(PAUSE)
            news = None
        for stream, messages in news or ():
            heard = [(entry.decode(), fields) for entry, fields in messages]
            self._seen[stream.decode()] = heard[-1][0]
            hear(heard)
        while not self._link.up:  # noqa: ASYNC110 - looked at again soon enough
            await asyncio.sleep(PAUSE)


class Inbox:
    """This replica's messages as (kind, id, body), and `work` for turns that were added to a lane."""

    def __init__(self, url: str, timeout: float, link: Link, space: str, me: str) -> None:
        self._link = link
        self._messages = Streams(url, timeout, link, [f"{space}inbox:{me}"])
        self._lanes = Streams(url, timeout, link, [f"{space}lane:small", f"{space}lane:large"])
        self._started = asyncio.Event()

    def start_from(self, milliseconds: int) -> None:
        """Turns of the lanes are news from this moment of Redis' clock on."""
        self._lanes.start_from(milliseconds)
        self._started.set()

    async def run(self, hear: Hear, room: Callable[[], Awaitable[object]], work: Callable[[], None]) -> None:
        """Read until cancelled; begins once `start_from` was called. `room` is awaited before lanes are listened to."""

        def hear_all(messages: list[Message]) -> None:
            for _, fields in messages:
                hear(*_message(fields))
            milliseconds, number = messages[-1][0].split("-")
            self._link.tell("forget", f"{milliseconds}-{int(number) + 1}")

        await self._started.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._messages.run(self._started.wait, hear_all))
            tasks.create_task(self._lanes.run(room, lambda _: work()))


def _message(fields: Any) -> tuple[str, str, bytes]:  # noqa: ANN401 - a dict or pairs, as the client gives them
    told = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    return told[b"kind"].decode(), told[b"id"].decode(), told[b"body"]
