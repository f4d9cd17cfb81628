"""What time it is, as an argument: integer milliseconds since the epoch."""

from __future__ import annotations

import time
from typing import Protocol

import trio


class Clock(Protocol):
    """Tells the wall-clock time. It may step, forwards and backwards, as wall clocks do."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class TrioClock:
    """The clock of the running event loop: `base_ms` when the clock was made, and then as trio counts.

    Under `trio.testing.MockClock` this is virtual time. `step` moves it as an operator would move a wall clock.
    """

    def __init__(self, base_ms: int) -> None:
        self._base_ms = base_ms
        self._started = trio.current_time()

    def now_ms(self) -> int:
        # rounded, because 0.1 + 0.2 seconds must not be 299 ms
        return self._base_ms + round((trio.current_time() - self._started) * 1000)

    def step(self, by_ms: int) -> None:
        """Moves the wall clock by so much, without any time going by."""
        self._base_ms += by_ms
