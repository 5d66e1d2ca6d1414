"""Hears of what concerns this replica: messages to it, and turns that were added to the lanes.

One connection reads all of it, from where it stopped, so that nothing is missed while the connection is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from .link import Link, client_of

BLOCK = 2.0
"""Seconds that one look waits for something to come."""
PAUSE = 0.1
"""Seconds before the next look after one that failed."""

Hear = Callable[[str, str, bytes], None]


class Inbox:
    """Reads this replica's messages as (kind, id, body), and calls `work` when a lane has got a turn."""

    def __init__(self, url: str, timeout: float, link: Link, names: tuple[str, tuple[str, str]]) -> None:
        """`names`: the key of this replica's messages, and those of the lanes."""
        self._link = link
        self._client = client_of(url, timeout)
        self._timeout = timeout
        self._mine, self._lanes = names
        self._seen: dict[str, str] = {self._mine: "0-0"}
        self._started = asyncio.Event()

    def start_from(self, milliseconds: int) -> None:
        """Turns of the lanes are news from this moment of Redis' clock on."""
        for lane in self._lanes:
            self._seen.setdefault(lane, f"{milliseconds}-0")
        self._started.set()

    async def run(self, hear: Hear, work: Callable[[], None]) -> None:
        """Read until cancelled; begins once `start_from` was called."""
        await self._started.wait()
        try:
            while True:
                await self._listen(hear, work)
        finally:
            await self._client.aclose()

    async def _listen(self, hear: Hear, work: Callable[[], None]) -> None:
        """One look; where it fails the next one has a new connection, once Redis is there."""
        try:
            async with asyncio.timeout(BLOCK + self._timeout):
                await self._look(hear, work)
        except (RedisError, OSError, TimeoutError):
            await self._client.connection_pool.disconnect()
            await asyncio.sleep(PAUSE)
        while not self._link.up:  # noqa: ASYNC110 - looked at again soon enough
            await asyncio.sleep(PAUSE)

    async def _look(self, hear: Hear, work: Callable[[], None]) -> None:
        news = await self._client.execute_command(  # type: ignore[no-untyped-call]
            "XREAD", "COUNT", 1000, "BLOCK", int(BLOCK * 1000), "STREAMS", *self._seen, *self._seen.values()
        )
        for stream, messages in news or ():
            name = stream.decode()
            self._seen[name] = messages[-1][0].decode()
            if name == self._mine:
                await self._forget(self._seen[name])
                for _, fields in messages:
                    hear(*self._message(fields))
            else:
                work()

    async def _forget(self, seen: str) -> None:
        """Nothing that was read stays behind; a message that Redis keeps a little longer does no harm."""
        milliseconds, number = seen.split("-")
        await self._client.xtrim(self._mine, minid=f"{milliseconds}-{int(number) + 1}", approximate=False)

    @staticmethod
    def _message(fields: Any) -> tuple[str, str, bytes]:  # noqa: ANN401 - a dict or pairs, as the client gives them
        told = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
        return told[b"kind"].decode(), told[b"id"].decode(), told[b"body"]
