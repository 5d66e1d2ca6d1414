"""The in-flight queue: who is worked on now, who waits and who is refused; one contract, in memory and on Redis.

`contract` says what a queue promises. `lanes` and `room` are the waiting lines and the room of one process, `memory`
the queue made of them. `shared` is the queue of all replicas that have the same `REDIS_URL`: `link` talks to Redis,
the scripts in `scripts/` are every step there, `inbox` hears of what others did, `worker` computes, `beats` keep
leases, `crossing` writes what goes from replica to replica, `cluster` knows how busy all of them are. `joined`
computes identical requests once.
"""

from .contract import Answer, ClusterSnapshot, InFlightQueue, QueueBounds, QueueSnapshot, Sent, Work
from .memory import MemoryQueue

__all__ = [
    "Answer",
    "ClusterSnapshot",
    "InFlightQueue",
    "MemoryQueue",
    "QueueBounds",
    "QueueSnapshot",
    "Sent",
    "Work",
]
