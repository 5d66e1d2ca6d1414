"""What a server can do: answers per second of a closed loop, whose clients send their next request when answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from bench.openloop import Pool, Target


async def capacity(target: Target, bodies: Iterable[bytes], clients: int, seconds: float) -> float:
    """Requests per second that are answered with 200 by so many clients; `bodies` last for as long as that takes."""
    pool, left, answered = Pool(target), iter(bodies), 0
    started = time.perf_counter()

    async def client() -> None:
        nonlocal answered
        while time.perf_counter() < started + seconds:
            status, _ = await pool.post(target.request(next(left)))
            answered += status == 200

    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.perf_counter() - started
    await pool.close()
    return answered / took
