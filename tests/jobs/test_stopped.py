"""Who waits for a job of a queue that has stopped, and what is told of long and of doubtful jobs."""

from __future__ import annotations

import pytest
import trio
from p2pmem_jobs import (
    ClosedError,
    Context,
    Happened,
    InlineBlocking,
    JobOutcomeUnknownError,
    Looked,
    Queue,
    State,
    Watch,
    open_database,
)
from trio.testing import MockClock

from .conftest import Add, Note, Rig


def slow(queue: Queue) -> None:
    @queue.handler("slow", version=1)
    async def slow(context: Context, args: Note) -> str:
        await context.sleep("long", 1000)
        return args.text

    @queue.handler("quick", version=1)
    async def quick(context: Context, args: Note) -> str:
        await trio.sleep(1)
        return args.text


async def test_who_waits_for_a_job_is_told_when_the_queue_was_drained(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(slow, memory=True) as queue, trio.open_nursery() as nursery:
        job = await queue.submit("slow", Note("x"))
        other = await queue.submit("quick", Note("y"))
        nursery.start_soon(queue.drain, 10)
        assert await other.result() == "y"  # it ended within the time
        with pytest.raises(ClosedError, match=f"job {job.id} has not ended"):
            await job.result()
        assert await other.result() == "y"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_who_waits_for_a_job_is_told_when_the_queue_was_left(
    rig: Rig, autojump_clock: MockClock, cancelled: bool
) -> None:
    told: list[str] = []

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with rig.open(slow, memory=True, drain_s=1) as queue:
                job = await queue.submit("slow", Note("x"))

                async def wait() -> None:
                    with pytest.raises(ClosedError) as error:
                        await job.result()
                    told.append(str(error.value))

                nursery.start_soon(wait)
                await trio.sleep(1)
                if cancelled:
                    scope.cancel()
    assert len(told) == 1


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("how", ["drain", "leave"])
async def test_who_watches_is_told_everything_and_then_that_the_queue_has_stopped(
    rig: Rig, autojump_clock: MockClock, how: str, of_all: bool
) -> None:
    seen: list[State] = []

    async def watch(watched: Watch) -> None:
        with trio.fail_after(60):
            for _ in range(4):
                seen.append((await anext(watched)).state)
            with pytest.raises(ClosedError, match="the queue has stopped"):
                await anext(watched)

    async with trio.open_nursery() as nursery, rig.open(slow, memory=True, drain_s=0) as queue:
        job = await queue.submit("slow", Note("x"))
        nursery.start_soon(watch, queue.watch(None if of_all else job.id, after=0))
        await trio.sleep(5)
        if how == "drain":
            await queue.drain(0)
            with trio.fail_after(1), pytest.raises(ClosedError):
                await anext(queue.watch())  # also who comes later
    assert seen == [State.QUEUED, State.RUNNING, State.WAITING, State.QUEUED]


async def test_the_story_of_a_long_job_tells_how_it_ended(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("long", version=1)
        async def long(context: Context, args: Add) -> int:
            for number in range(args.a):
                await context.sleep(f"nap {number}", 1)
            return args.b

    async with rig.open(register, memory=True) as queue:
        for naps, first in ((498, 1), (499, 2), (600, 204)):
            job = await queue.submit("long", Add(naps, 0))
            await job.result()
            events = queue.story(job.id).events
            every = [event.number async for event in queue.watch(job.id) if event.progress is None]
            assert [event.number for event in events] == every[first - 1 :]
            assert len(events) <= 1000
            assert events[-1].state is State.SUCCEEDED


async def test_the_reason_of_an_unknown_outcome_tells_it_once(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Note) -> None:
            async def try_() -> None:
                raise OSError("no answer")

            async def look_up() -> Happened[None] | Looked:
                return Looked.CANNOT_TELL

            await context.effect("pay", try_, look_up)

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("pay", Note("x"))
        with pytest.raises(JobOutcomeUnknownError) as unknown:
            await job.result()
        assert unknown.value.reason == "it is not known whether pay happened"


async def test_a_queue_that_was_not_run_yet_says_so_to_who_asks_it_for_something() -> None:
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        queue = Queue(database)
        for ask in (queue.get, queue.job, queue.story, queue.position, queue.watch):
            with pytest.raises(ClosedError, match="async with queue"):
                ask("x")
        with pytest.raises(ClosedError, match="async with queue"):
            await queue.list()
