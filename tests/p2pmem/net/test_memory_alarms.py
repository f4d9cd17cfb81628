"""Calls at given times by one task of several: in order, and whoever runs it may go."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from p2pmem.net.memory_alarms import Alarms


async def test_calls_come_at_their_times_in_the_order_in_which_they_were_asked_for(autojump_clock: MockClock) -> None:
    del autojump_clock
    alarms, began = Alarms(), trio.current_time()
    heard: list[tuple[str, float]] = []

    def ask(name: str, after_s: float) -> None:
        alarms.at(began + after_s, lambda: heard.append((name, trio.current_time() - began)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        ask("late", 5)
        ask("first of two", 2)
        ask("second of two", 2)
        await trio.sleep(1)
        ask("sooner than all", 0.5)
        await trio.sleep(9)
        nursery.cancel_scope.cancel()
    assert heard == [("sooner than all", 1), ("first of two", 2), ("second of two", 2), ("late", 5)]


async def test_when_the_task_that_made_the_calls_ends_another_goes_on(autojump_clock: MockClock) -> None:
    del autojump_clock
    alarms, heard = Alarms(), list[float]()
    first = trio.CancelScope()

    async def run_first() -> None:
        with first:
            await alarms.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_first)
        await trio.sleep(0.1)
        nursery.start_soon(alarms.run)
        alarms.at(trio.current_time() + 3, lambda: heard.append(trio.current_time()))
        await trio.sleep(1)
        first.cancel()
        await trio.sleep(5)
        assert len(heard) == 1
        nursery.cancel_scope.cancel()
