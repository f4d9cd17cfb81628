"""Time that passes only when nothing is left to do: days of a cluster take as long as the work in them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock

SOCKETS_EVERY: Final = 16
"""In a simulation nothing comes from sockets but the wish of another thread to be heard: looked for at every so many
turns of the loop, and whenever nothing else is to be done."""


def virtual_clock() -> MockClock:
    """`MockClock(autojump_threshold=0)`, which serves as well, at less cost.

    It does not ask the system for the time, which a cluster wants to know hundreds of times for each thing that is
    said: with a rate of 0 the time is what jumps have made of it. Whoever waited for the time that it jumps to is woken
    at once, and not after another look at sockets that a simulation does not have. And calls can be made at a time
    without a task that waits for it (`call_at`, for `p2pmem.net.memory_alarms`). trio runs no other class of clock that
    jumps by itself, and lets nobody inherit from this one.
    """
    clock: Any = MockClock(autojump_threshold=0)
    calls: list[tuple[float, int, Callable[[], object]]] = []
    count = 0

    def current_time() -> float:
        now: float = clock._virtual_base
        return now

    def deadline_to_sleep_time(deadline: float) -> float:
        return 0.0 if deadline <= clock._virtual_base else 999_999_999.0

    def call_at(at: float, call: Callable[[], object]) -> None:
        nonlocal count
        count += 1
        heappush(calls, (at, count, call))

    def jump_to_next() -> None:
        deadlines = GLOBAL_RUN_CONTEXT.runner.deadlines
        at = min(deadlines.next_deadline(), calls[0][0] if calls else inf)
        if clock._virtual_base <= at < inf:
            clock._virtual_base = at
            while calls and calls[0][0] <= at:
                heappop(calls)[2]()
            deadlines.expire(at)

    def start_clock() -> None:
        runner: Any = GLOBAL_RUN_CONTEXT.runner
        runner.io_manager = _SeldomLooked(runner.io_manager)
        clock._try_resync_autojump_threshold()

    clock._autojump = jump_to_next
    clock.current_time = current_time
    clock.deadline_to_sleep_time = deadline_to_sleep_time
    clock.start_clock = start_clock
    clock.call_at = call_at
    made: MockClock = clock
    return made


class _SeldomLooked:
    """The sockets that a trio loop looks at, and mostly does not."""

    def __init__(self, sockets: Any) -> None:
        self._sockets = sockets
        self._turns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sockets, name)

    def get_events(self, timeout_s: float) -> Any:
        self._turns += 1
        if timeout_s or not self._turns % SOCKETS_EVERY:
            return self._sockets.get_events(timeout_s)
        return ()
