"""APScheduler on trio, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trio
import trio.testing
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobExecutionEvent,
)
from apscheduler.schedulers import SchedulerAlreadyRunningError, SchedulerNotRunningError
from apscheduler.triggers.interval import IntervalTrigger
from p2pmem_jobs import InlineBlocking, TrioClock
from p2pmem_jobs.scheduling import TrioExecutor, TrioScheduler
from trio.testing import MockClock

START = datetime(2027, 3, 1, 12, 0, 0, tzinfo=UTC)


class Rig:
    """A scheduler, and when its job ran, in seconds after the start."""

    def __init__(self) -> None:
        self.clock = TrioClock(round(START.timestamp() * 1000))
        self.scheduler = TrioScheduler(clock=self.clock, blocking=InlineBlocking(), timezone=UTC)
        self.runs: list[float] = []
        self.events: list[JobExecutionEvent] = []
        self.scheduler.add_listener(self.events.append)

    def seconds(self) -> float:
        return (self.scheduler.now() - START).total_seconds()

    async def note(self, lasts: float = 0) -> str:
        self.runs.append(self.seconds())
        await trio.sleep(lasts)
        return "done"

    def codes(self, *wanted: int) -> list[int]:
        return [event.code for event in self.events if event.code in wanted]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.scheduler.serve)
            yield nursery
            nursery.cancel_scope.cancel()


@pytest.fixture
async def rig(autojump_clock: MockClock) -> Rig:
    return Rig()


async def test_an_interval_job_runs_each_time(rig: Rig, autojump_clock: MockClock) -> None:
    rig.scheduler.add_job(rig.note, "interval", minutes=10)
    async with rig.serving():
        await trio.sleep(3_001)
    assert rig.runs == [600, 1200, 1800, 2400, 3000]
    assert rig.codes(EVENT_JOB_EXECUTED) == [EVENT_JOB_EXECUTED] * 5
    assert [event.retval for event in rig.events if event.code == EVENT_JOB_EXECUTED] == ["done"] * 5


async def test_a_cron_job_runs_at_its_times_of_day(rig: Rig, autojump_clock: MockClock) -> None:
    rig.scheduler.add_job(rig.note, "cron", hour="4,16", minute=30)
    async with rig.serving():
        await trio.sleep(2 * 86_400)
    assert rig.runs == [4.5 * 3600, 16.5 * 3600, 28.5 * 3600, 40.5 * 3600]


async def test_a_date_job_runs_once_and_is_gone_and_one_without_a_date_runs_now(
    rig: Rig, autojump_clock: MockClock
) -> None:
    rig.scheduler.add_job(rig.note, "date", run_date=datetime(2027, 3, 1, 12, 0, 30, tzinfo=UTC))
    async with rig.serving():
        rig.scheduler.add_job(rig.note)
        await trio.sleep(100)
        assert rig.scheduler.get_jobs() == []
    assert rig.runs == [0, 30]


async def test_a_plain_function_runs_too(rig: Rig, autojump_clock: MockClock) -> None:
    rig.scheduler.add_job(lambda: rig.runs.append(rig.seconds()), "interval", seconds=5)
    async with rig.serving():
        await trio.sleep(12)
    assert rig.runs == [5, 10]


async def test_a_job_added_from_another_thread_wakes_the_scheduler() -> None:
    ran = trio.Event()
    scheduler = TrioScheduler(timezone=UTC)

    async def job() -> None:
        ran.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.serve)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(scheduler.add_job, job)
        with trio.fail_after(30):
            await ran.wait()
        scheduler.shutdown()


async def test_a_run_that_is_too_late_is_missed_and_one_in_its_grace_is_not(
    rig: Rig, autojump_clock: MockClock
) -> None:
    rig.scheduler.add_job(rig.note, "interval", seconds=100, misfire_grace_time=10, id="strict")
    rig.scheduler.add_job(rig.note, "interval", seconds=100, misfire_grace_time=50, id="lenient")
    async with rig.serving():
        await trio.sleep(90)
        rig.clock.step(30_000)  # the wall clock jumps to 120
        await trio.sleep(15)
    assert rig.runs == [130]  # woken when it had meant to be, at 100 on the old clock
    missed = [event.job_id for event in rig.events if event.code == EVENT_JOB_MISSED]
    assert missed == ["strict"]


@pytest.mark.parametrize("coalesce", [True, False])
async def test_runs_that_piled_up_become_one_or_stay_many(rig: Rig, autojump_clock: MockClock, coalesce: bool) -> None:
    rig.scheduler.add_job(rig.note, "interval", seconds=10, coalesce=coalesce, misfire_grace_time=None)
    async with rig.serving():
        rig.scheduler.pause()
        await trio.sleep(35)
        rig.scheduler.resume()
        await trio.sleep(6)
    assert rig.runs == ([35, 40] if coalesce else [35, 35, 35, 40])


async def test_no_more_instances_run_at_once_than_are_allowed(rig: Rig, autojump_clock: MockClock) -> None:
    rig.scheduler.add_job(rig.note, "interval", seconds=10, args=[25], max_instances=2)
    async with rig.serving():
        await trio.sleep(61)
    assert rig.runs == [10, 20, 40, 50]
    assert len(rig.codes(EVENT_JOB_MAX_INSTANCES)) == 2


async def test_a_job_that_raises_disturbs_nobody_and_is_told(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def bad() -> None:
        raise ValueError("on purpose")

    caplog.set_level(logging.CRITICAL)
    rig.scheduler.add_job(bad, "interval", seconds=10)
    rig.scheduler.add_job(rig.note, "interval", seconds=10)
    async with rig.serving():
        await trio.sleep(35)
    assert rig.runs == [10, 20, 30]
    errors = [event for event in rig.events if event.code == EVENT_JOB_ERROR]
    assert [str(event.exception) for event in errors] == ["on purpose"] * 3


@pytest.mark.parametrize("wait", [True, False])
async def test_a_shutdown_waits_for_the_running_job_or_cancels_it(
    rig: Rig, autojump_clock: MockClock, wait: bool
) -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            ended.append("cancelled")
            raise
        ended.append("whole")

    rig.scheduler.add_job(slow, "interval", seconds=10)
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.scheduler.serve)
        await trio.sleep(11)
        rig.scheduler.shutdown(wait=wait)
    assert ended == (["whole"] if wait else ["cancelled"])
    assert rig.seconds() == (110 if wait else 11)
    assert not rig.scheduler.running
    with pytest.raises(SchedulerNotRunningError):
        rig.scheduler.shutdown()


async def test_cancelling_the_scheduler_cancels_its_jobs_and_shuts_it_down(rig: Rig, autojump_clock: MockClock) -> None:
    rig.scheduler.add_job(rig.note, "interval", seconds=10, args=[1_000])
    async with rig.serving():
        await trio.sleep(15)
    assert rig.seconds() == 15
    assert not rig.scheduler.running


async def test_a_clock_that_steps_back_repeats_no_run_and_one_that_steps_ahead_is_noticed(
    rig: Rig, autojump_clock: MockClock
) -> None:
    rig.scheduler.add_job(rig.note, "interval", minutes=10, coalesce=True, misfire_grace_time=None)
    async with rig.serving():
        await trio.sleep(601)
        rig.clock.step(-300_000)
        await trio.sleep(600)  # on the clock: 901
        assert rig.runs == [600]
        rig.clock.step(3_600_000)
        await trio.sleep(61)
        assert len(rig.runs) == 2
        assert 4_501 <= rig.runs[1] <= 4_562
        await trio.sleep(600)
    assert rig.runs[2] == 4_800


@pytest.mark.parametrize("coalesce", [True, False])
async def test_a_clock_that_was_a_week_behind_makes_up_for_so_many_runs_and_goes_on(
    rig: Rig, autojump_clock: MockClock, coalesce: bool
) -> None:
    asked = 0

    class Counted(IntervalTrigger):  # type: ignore[misc]
        def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
            nonlocal asked
            asked += 1
            return super().get_next_fire_time(previous, now)

    week_s = 7 * 86_400
    trigger = Counted(seconds=1, start_date=START + timedelta(seconds=1), timezone=UTC)
    rig.scheduler.add_job(rig.note, trigger, coalesce=coalesce, misfire_grace_time=None)
    async with rig.serving():
        await trio.sleep(1.5)
        rig.clock.step(week_s * 1_000)
        await trio.sleep(1)
        assert asked < 1_100
        await trio.sleep(2)
    made_up = 1 if coalesce else 1_000
    assert rig.runs == [1, *[week_s + 2] * made_up, week_s + 3, week_s + 4]


async def test_a_job_can_be_paused_resumed_rescheduled_and_removed(rig: Rig, autojump_clock: MockClock) -> None:
    job = rig.scheduler.add_job(rig.note, "interval", seconds=10)
    async with rig.serving():
        await trio.sleep(11)
        job.pause()
        await trio.sleep(20)
        job.resume()
        await trio.sleep(10)
        job.reschedule("interval", seconds=7)
        await trio.sleep(8)
        job.remove()
        await trio.sleep(50)
    assert rig.runs == [10, 40, 48]


async def test_it_is_started_by_serving_it_and_only_once(rig: Rig, autojump_clock: MockClock) -> None:
    with pytest.raises(RuntimeError, match="serve"):
        rig.scheduler.start()
    async with rig.serving():
        with pytest.raises(SchedulerAlreadyRunningError):
            await rig.scheduler.serve()


async def test_an_executor_may_be_added_under_another_name(rig: Rig, autojump_clock: MockClock) -> None:
    rig.scheduler.add_executor(TrioExecutor(InlineBlocking()), "second")
    rig.scheduler.add_job(rig.note, "interval", seconds=10, executor="second")
    async with rig.serving():
        await trio.sleep(11)
    assert rig.runs == [10]
