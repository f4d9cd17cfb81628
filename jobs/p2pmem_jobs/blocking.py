"""Where blocking calls run: in a worker thread, or inline.

trio's `MockClock` jumps ahead while a thread works, because to trio nothing is happening. A program that wants virtual
time therefore runs its blocking calls inline; everything else of it stays the same. That is why this is a seam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Blocking(Protocol):
    """Runs a blocking function and returns what it returns.

    On cancellation: a function that has not begun never begins; one that has begun is waited for, and its result is
    returned. Nothing is ever abandoned half done.
    """

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T: ...


class ThreadBlocking:
    """Runs blocking functions in worker threads, at most `threads` at once; the others wait their turn."""

    def __init__(self, threads: int = 8) -> None:
        assert threads >= 1
        self._limiter = trio.CapacityLimiter(threads)

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(fn, *args, limiter=self._limiter)

    def statistics(self) -> trio.CapacityLimiterStatistics:
        """How many threads work and how many functions wait, as trio counts them."""
        return self._limiter.statistics()


class InlineBlocking:
    """Runs blocking functions in the event loop itself. For virtual time and for tests; a slow disk stops the loop."""

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            return fn(*args)
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()
