"""How much each key asks: requests a second, tokens a minute, decisions at once; over all replicas, or in this one.

The library `limits` counts, and owns its connection to Redis. Its sliding window weighs what the window before has
counted by how much of it still lies within one window from now, which needs two numbers a key, however high the limit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage, RedisStorage, SlidingWindowCounterSupport
from limits.aio.storage.redis.redispy import RedispyBridge
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string

from decisions.errors import QueueUnavailable, RateLimited, TooManyTokens

from .config import InvalidSettings
from .keys import Key

if TYPE_CHECKING:
    from .inflight.leases import Leases

log = logging.getLogger("canvasgate")

REDIS_PATIENCE = 0.25
"""Seconds that a request waits for Redis to count it."""
REDIS_PAUSE = 1.0
"""Seconds for which Redis is not asked again after it did not answer."""
CONNECTIONS = 1000
CONCURRENT_RETRY = 1.0
"""Seconds after which a key with all its decisions running may come again; nobody knows when one of them ends."""
JUST_AFTER = 0.001
"""Seconds; room comes free after the moment at which the sum falls to the limit, not at it."""


class Rates:
    """What every key has asked for. `url` is the Redis that the replicas share; empty: each counts for itself.

    What is kept there begins with `prefix`, and expires two windows after it was first counted; a decision that runs
    expires `lease` seconds after its replica has died.
    Where Redis does not answer, a `required` one refuses the request; else this replica goes on with its own counts.
    Raises `InvalidSettings` for a URL it cannot use.
    """

    def __init__(
        self, url: str = "", *, prefix: str = "canvasgate:", required: bool = False, lease: float = 5.0
    ) -> None:
        self._required = required
        self._local = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._storage = open_storage(url, f"{prefix}rates") if url else None
        self._shared = SlidingWindowCounterRateLimiter(self._storage) if self._storage else None
        self._leases = open_leases(self._storage, f"{prefix}running", lease) if self._storage else None
        self._pause_ends = 0.0
        self._running: Counter[str] = Counter()

    @property
    def shared(self) -> bool:
        """Whether the replicas count together now."""
        return self._shared is not None and time.monotonic() >= self._pause_ends

    async def close(self) -> None:
        """Close the connections to Redis."""
        if self._leases is not None:
            await self._leases.close()
        if self._storage is not None:
            await client_of(self._storage).aclose()

    async def ask(self, key: Key) -> None:
        """Count one request. Raises `RateLimited`, or `QueueUnavailable` where a required Redis is away."""
        if key.requests_per_second is not None:
            await self._hit(RateLimitItemPerSecond(key.requests_per_second), key.name, 1, "requests per second")

    async def spend(self, key: Key, tokens: int) -> None:
        """Count tokens that are about to be read. Raises as `ask` does, or `TooManyTokens` where no minute has room."""
        limit = key.tokens_per_minute
        if limit is None or not tokens:
            return
        if tokens > limit:
            raise TooManyTokens(tokens, limit, "The request, under its key's limit of tokens per minute,")
        await self._hit(RateLimitItemPerMinute(limit), key.name, tokens, "tokens per minute")

    @asynccontextmanager
    async def running(self, key: Key) -> AsyncIterator[None]:
        """A decision of the key runs meanwhile. Raises `RateLimited` where as many run as may, or as `ask` does."""
        most = key.concurrent
        if most is None:
            yield
            return
        if self._running[key.name] >= most:
            raise too_many(most)
        self._running[key.name] += 1
        lease = None
        try:
            lease = await self._lease(key.name, most)
            yield
        finally:
            if self._leases is not None and lease is not None:
                self._leases.give_back(key.name, lease)
            self._running[key.name] -= 1
            if not self._running[key.name]:
                del self._running[key.name]

    async def _lease(self, name: str, most: int) -> str | None:
        """A lease from Redis on one more decision; None where this replica counts for itself."""
        if self._leases is None:
            return None
        if self.shared:
            try:
                async with asyncio.timeout(REDIS_PATIENCE):
                    lease = await self._leases.take(name, most)
            except OSError as error:  # TimeoutError is one
                self._pause(error)
            else:
                if lease is None:
                    raise too_many(most)
                return lease
        if self._required:
            raise unable_to_count()
        return None

    async def _hit(self, item: RateLimitItem, name: str, cost: int, what: str) -> None:
        wait = await self._wait(item, name, cost)
        if wait > 0:
            raise RateLimited(f"This key may use {item.amount} {what}.", wait)

    async def _wait(self, item: RateLimitItem, name: str, cost: int) -> float:
        """Count, and give 0; or where there is no room, seconds until there would be."""
        if self._shared is not None and self.shared:
            try:
                async with asyncio.timeout(REDIS_PATIENCE):
                    return await hit(self._shared, item, name, cost)
            except (StorageError, TimeoutError) as error:
                self._pause(error)
        if self._shared is not None and self._required:
            raise unable_to_count()
        return await hit(self._local, item, name, cost)

    def _pause(self, error: Exception) -> None:
        if self.shared:
            instead = "limited keys are refused" if self._required else "this replica counts for itself"
            log.warning("Redis did not count a request (%s); for a second, %s", type(error).__name__, instead)
        self._pause_ends = time.monotonic() + REDIS_PAUSE


def too_many(most: int) -> RateLimited:
    """The refusal of a key whose decisions all run."""
    return RateLimited(f"This key may have {most} decisions at once.", CONCURRENT_RETRY)


def unable_to_count() -> QueueUnavailable:
    """The refusal where Redis is required and does not answer."""
    return QueueUnavailable("Redis does not answer, so the limits of this key cannot be kept.", REDIS_PAUSE)


def open_leases(storage: RedisStorage, prefix: str, seconds: float) -> Leases:
    """Leases over the library's connections to Redis."""
    from .inflight.leases import Leases  # noqa: PLC0415 - the client of Redis takes a while to import

    return Leases(client_of(storage), prefix, seconds)


def client_of(storage: RedisStorage) -> Any:  # noqa: ANN401 - the library does not say which client it has
    """The client of Redis that the library made, with its pool of connections."""
    return cast("RedispyBridge", storage.bridge).get_connection()


def open_storage(url: str, prefix: str) -> RedisStorage:
    """The library's storage at a Redis URL; connects when it is first used. Raises `InvalidSettings`."""
    options = {"socket_connect_timeout": REDIS_PATIENCE, "socket_timeout": REDIS_PATIENCE}
    scheme, colon, rest = url.partition("://")
    try:
        return cast(
            "RedisStorage",
            storage_from_string(
                f"async+{'redis+unix' if scheme == 'unix' else scheme}{colon}{rest}",
                implementation="redispy",
                key_prefix=prefix,
                wrap_exceptions=True,
                max_connections=CONNECTIONS,
                **options,
            ),
        )
    except (ConfigurationError, ValueError) as error:
        raise InvalidSettings(["REDIS_URL is not an address of a Redis that limits of keys can be kept in."]) from error


async def hit(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, name: str, cost: int) -> float:
    """Count, and give 0; or where there is no room, seconds until there would be if nobody else came."""
    if await limiter.hit(item, name, cost=cost):
        return 0.0
    storage = cast("SlidingWindowCounterSupport", limiter.storage)
    window = item.get_expiry()
    before, before_left, now, now_left = await storage.get_sliding_window(item.key_for(name), window)
    room = item.amount - cost + 1  # the sum, rounded down, has to be below this
    if now < room:
        wait = before_left - (room - now) * window / before if before else 0.0
    else:  # this window's count has to become the one before, and then to lose weight; it is kept for two windows
        wait = now_left - room * window / now
    return max(wait, 0.0) + JUST_AFTER
