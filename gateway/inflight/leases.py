"""Leases on the decisions that a key has running at once, counted in Redis over all replicas.

A lease is a member of a sorted set, scored with the time at which it runs out. The replica that holds it renews it;
when that replica dies, its leases run out by themselves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError

RENEWALS = 3
"""Times that a lease is renewed before it would run out."""

NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
"""
TAKE = f"""{NOW}
local most, lease, id = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= most then return 0 end
redis.call('ZADD', KEYS[1], now + lease, id)
redis.call('PEXPIRE', KEYS[1], lease)
return 1
"""
# XX: one that was given back while this was on its way stays given back; one that Redis has lost counts no more.
RENEW = f"""{NOW}
local lease = tonumber(ARGV[1])
for at = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now + lease, ARGV[at]) end
redis.call('PEXPIRE', KEYS[1], lease)
"""


class Leases:
    """The leases that this replica holds. `seconds` is how long one outlives a replica that has died."""

    def __init__(self, client: Redis, prefix: str, seconds: float) -> None:
        """What is kept in Redis begins with `prefix`. The client stays its owner's to close."""
        self._client = client
        self._prefix = prefix
        self._seconds = seconds
        self._milliseconds = int(1000 * seconds)
        self._take = client.register_script(TAKE)
        self._renew = client.register_script(RENEW)
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._renewing: asyncio.Task[None] | None = None
        self._returns: set[asyncio.Task[None]] = set()

    async def take(self, name: str, most: int) -> str | None:
        """A lease of the key of this name, or None where as many as `most` are held. Raises `OSError` without Redis.

        Where the answer is lost, or nobody waits for it any more, what was given all the same is given back.
        """
        lease, given = secrets.token_hex(8), None
        try:
            given = await self._take(keys=[self._key(name)], args=[most, self._milliseconds, lease])
        except RedisError as error:
            raise ConnectionError(f"Redis gave no lease: {error}") from error
        finally:
            if given is None:
                self._return_later(name, lease)
        if not given:
            return None
        self._held[name].add(lease)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._keep_renewing())
        return lease

    def give_back(self, name: str, lease: str) -> None:
        """At once for this replica, and on the side for Redis."""
        self._held[name].discard(lease)
        if not self._held[name]:
            del self._held[name]
        self._return_later(name, lease)

    async def close(self) -> None:
        """Renew nothing any more, and wait for what is being given back."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._returns:
            await asyncio.wait(self._returns)

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _return_later(self, name: str, lease: str) -> None:
        returning = asyncio.create_task(self._return(name, lease))
        self._returns.add(returning)
        returning.add_done_callback(self._returns.discard)

    async def _return(self, name: str, lease: str) -> None:
        with suppress(RedisError, OSError, TimeoutError):  # it runs out by itself
            async with asyncio.timeout(self._seconds):
                await self._client.zrem(self._key(name), lease)

    async def _keep_renewing(self) -> None:
        pause = self._seconds / RENEWALS
        while True:
            await asyncio.sleep(pause)
            with suppress(RedisError, OSError, TimeoutError):  # the next time, or they run out
                async with asyncio.timeout(pause):
                    await self._renew_all()

    async def _renew_all(self) -> None:
        for name, leases in list(self._held.items()):
            await self._renew(keys=[self._key(name)], args=[self._milliseconds, *leases])
