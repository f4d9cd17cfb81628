"""Time that passes only when nothing is left to do: days of a cluster take as long as the work in them."""

from __future__ import annotations

from math import inf

from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock


def virtual_clock() -> MockClock:
    """`MockClock(autojump_threshold=0)`, which serves as well, at less cost.

    It does not ask the system for the time, which a cluster wants to know hundreds of times for each thing that is
    said: with a rate of 0 the time is what jumps have made of it. And whoever waited for the time that it jumps to is
    woken at once, and not after another look at sockets that a simulation does not have. trio runs no other class of
    clock that jumps by itself, and lets nobody inherit from this one.
    """
    clock = MockClock(autojump_threshold=0)

    def current_time() -> float:
        return clock._virtual_base

    def deadline_to_sleep_time(deadline: float) -> float:
        return 0.0 if deadline <= clock._virtual_base else 999_999_999.0

    def jump_to_next() -> None:
        deadlines = GLOBAL_RUN_CONTEXT.runner.deadlines
        at = deadlines.next_deadline()
        if clock._virtual_base < at < inf:
            clock._virtual_base = at
            deadlines.expire(at)

    clock._autojump = jump_to_next  # type: ignore[method-assign]
    clock.current_time = current_time  # type: ignore[method-assign]
    clock.deadline_to_sleep_time = deadline_to_sleep_time  # type: ignore[method-assign]
    return clock
