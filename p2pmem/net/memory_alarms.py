"""Calls at given times, all made by one task: so whoever waits for bytes on a wire needs no time-out of his own.

A time-out of trio's is an exception that is made, thrown and caught. A cluster moves a million frames in a day of its
time, and nearly all of what that cost was the time-outs of those who waited for them. A clock that only goes by jumps
may make the calls itself (`call_at`), as `p2pmem_devnet.virtual_time` does: then not even that task has to wake.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import trio


class Alarms:
    """What is to be called when. Several tasks may `run` it; one of them does, and when it ends another takes over."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._sooner = trio.Event()
        self._turn = trio.Lock()

    def at(self, at: float, call: Callable[[], object]) -> None:
        """Make this call, which must not block, at `at` on trio's clock, and calls for the same time in this order."""
        call_at = getattr(trio.lowlevel.current_clock(), "call_at", None)
        if call_at is not None:
            call_at(at, call)
            return
        self._count += 1
        heappush(self._due, (at, self._count, call))
        if self._due[0][1] == self._count:
            self._sooner.set()

    async def run(self) -> None:
        """Make calls until cancelled."""
        async with self._turn:
            while True:
                now = trio.current_time()
                while self._due and self._due[0][0] <= now:
                    heappop(self._due)[2]()
                self._sooner = trio.Event()
                with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                    await self._sooner.wait()
