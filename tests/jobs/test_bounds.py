"""Settings that could not work are refused when they are made, and not when they end the queue an hour later."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

import pytest
import trio
from p2pmem_jobs import (
    Context,
    MisuseError,
    NotFoundError,
    Queue,
    QueueLimits,
    Retention,
    RetryPolicy,
    State,
    TransientError,
    TrioClock,
    recovery,
)
from trio.testing import MockClock

from .conftest import START_MS, Add, Rig, adding


@pytest.mark.parametrize(
    "given",
    [
        {"succeeded_s": -1.0},
        {"failed_s": math.nan},
        {"cancelled_s": -math.inf},
        {"ended_jobs": -1},
        {"ended_jobs": 1.5},
        {"sweep_every_s": 0.0},
        {"sweep_every_s": math.nan},
    ],
)
def test_a_retention_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=next(iter(given))):
        Retention(**given)


@pytest.mark.parametrize(
    "given", [{"live_jobs": 0}, {"running_jobs": 1.5}, {"tasks": math.inf}, {"deaths": -1}, {"look_every_s": math.nan}]
)
def test_limits_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=next(iter(given))):
        QueueLimits(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"first_s": math.nan},
        {"first_s": -1.0},
        {"first_s": 10.0, "cap_s": 5.0},
        {"cap_s": math.inf},
        {"cap_s": 1e17},
        {"factor": 1e6},
        {"jitter": math.nan},
        {"unknown_runs": 0},
    ],
)
def test_a_policy_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match=next(iter(given))):
        RetryPolicy(**given)


async def test_numbers_of_a_handler_that_are_not_whole_are_refused(rig: Rig, autojump_clock: MockClock) -> None:
    async def add(context: Context, args: Add) -> int:
        return args.a + args.b

    def register(queue: Queue) -> None:
        for given in (
            {"version": 0},
            {"version": 1.5},
            {"version": 1, "concurrency": 0},
            {"version": 1, "accepts": [0]},
        ):
            with pytest.raises(MisuseError):
                queue.handler("add", **given)(add)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match=r"concurrency of 1\.5"):
            queue.handler("add", version=1, concurrency=1.5)(add)  # type: ignore[arg-type]
        queue.handler("add", version=1)(add)

    async with rig.open(register, memory=True):
        pass


@pytest.mark.parametrize("kept_s", [math.inf, 1e300])
async def test_jobs_may_be_kept_for_ever(rig: Rig, autojump_clock: MockClock, kept_s: float) -> None:
    retention = Retention(succeeded_s=kept_s, failed_s=kept_s, cancelled_s=kept_s, sweep_every_s=3600)
    async with rig.open(adding, memory=True, retention=retention) as queue:
        job = await queue.submit("add", Add(1, 2))
        await job.result()
        rig.clock.step(100 * 365 * 86_400_000)
        await trio.sleep(7200)
        assert job.record().state is State.SUCCEEDED


async def test_a_queue_that_has_nothing_to_forget_seldom_looks_and_forgets_in_time(
    rig: Rig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = list[float](), recovery.to_forget

    def counted(connection: sqlite3.Connection, *args: Any) -> list[tuple[int]]:
        looks.append(trio.current_time())
        return look(connection, *args)

    monkeypatch.setattr(recovery, "to_forget", counted)
    retention = Retention(succeeded_s=7_200.0, ended_jobs=3)
    async with rig.open(adding, memory=True, retention=retention) as queue:
        job = await queue.submit("add", Add(1, 2))
        await job.result()
        await trio.sleep(7_190)
        assert len(looks) <= 3
        assert job.record().state is State.SUCCEEDED
        await trio.sleep(130)
        with pytest.raises(NotFoundError):
            job.record()
        looks.clear()
        jobs = [await queue.submit("add", Add(1, number)) for number in range(5)]
        for each in jobs:
            await each.result()
        await trio.sleep(70)
        assert queue.statistics().ended == 3, "too many are not kept for longer than it takes to look"


async def test_a_clock_that_was_years_ahead_holds_up_no_forgetting(rig: Rig, autojump_clock: MockClock) -> None:
    retention = Retention(succeeded_s=7_200.0)
    year_ms = 365 * 86_400_000
    async with rig.open(adding, memory=True, retention=retention) as queue:
        queue.clock = TrioClock(START_MS + year_ms)
        await trio.sleep(70)
        queue.clock = rig.clock
        job = await queue.submit("add", Add(1, 2))
        await job.result()
        await trio.sleep(7_200 + 3_600)
        with pytest.raises(NotFoundError):
            job.record()


async def test_a_queue_forgets_nothing_while_its_clock_is_not_right(rig: Rig, autojump_clock: MockClock) -> None:
    is_right = False
    async with rig.open(adding, memory=True, clock_is_right=lambda: is_right) as queue:
        job = await queue.submit("add", Add(1, 2))
        await job.result()
        rig.clock.step(10 * 365 * 86_400_000)
        await trio.sleep(7_200)
        assert job.record().state is State.SUCCEEDED
        is_right = True
        await trio.sleep(70)
        with pytest.raises(NotFoundError):
            job.record()


async def test_the_longest_delay_that_a_policy_may_have_can_be_stored(rig: Rig, autojump_clock: MockClock) -> None:
    longest = RetryPolicy(first_s=10 * 365 * 86_400.0, cap_s=10 * 365 * 86_400.0, factor=1000, transient_runs=10_000)
    assert longest.delay_ms(9_999, 0.0) == 10 * 365 * 86_400_000

    def register(queue: Queue) -> None:
        @queue.handler("add", version=1, retry=longest)
        async def add(context: Context, args: Add) -> int:
            raise TransientError("not today")

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("add", Add(1, 2))
        await trio.sleep(1)
        assert job.record().state is State.QUEUED
