"""Two things at once: stops, claims, deadlines, and a wall clock that steps in between."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import trio
from p2pmem_jobs import (
    Context,
    EndedError,
    Happened,
    InlineBlocking,
    JobFailedError,
    Looked,
    NotDoneError,
    Queue,
    QueueLimits,
    Retention,
    State,
    TransientError,
    open_database,
)
from trio.testing import MockClock

from .conftest import START_MS, Add, Note, Rig, Sum, adding, settle

# Stopping


class Gate(InlineBlocking):
    """Holds commits back once it is closed."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.opened.set()

    def close(self) -> None:
        self.opened = trio.Event()

    async def run(self, fn, *args):  # type: ignore[no-untyped-def]
        await self.opened.wait()
        return await super().run(fn, *args)


async def test_a_job_that_goes_on_while_its_queue_is_stopped_is_queued_again_and_not_failed(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("parent", version=1)
        async def parent(context: Context, args: Note) -> str:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
            if args.text == "submits":
                return await context.submit("child", "add", Add(1, 2))
            raise ValueError("this library turns a cancellation into an error of its own")

    with trio.move_on_after(5):
        async with rig.open(register) as queue:
            jobs = [await queue.submit("parent", Note(text)) for text in ("submits", "raises")]
            await trio.sleep_forever()
    async with rig.open(lambda queue: None) as queue:
        for job in jobs:
            record = queue.get(job.id)
            assert (record.state, record.failures) == (State.QUEUED, 0), record.detail


async def test_a_drain_waits_for_what_a_claim_that_is_under_way_begins(rig: Rig, autojump_clock: MockClock) -> None:
    gate = Gate()
    ended: list[str] = []
    async with open_database(rig.path, blocking=gate) as database:
        queue = Queue(database, clock=rig.clock)

        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Note) -> None:
            await trio.sleep(5)
            ended.append(args.text)

        async with queue.run():
            await queue.pause("slow")
            await queue.submit("slow", Note("x"))
            gate.close()
            assert queue._dispatcher is not None
            queue._dispatcher.pause(frozenset())
            await settle()  # the claim has begun, and its commit is held back
            async with trio.open_nursery() as nursery:
                nursery.start_soon(queue.drain, 60)
                await settle()
                gate.opened.set()
            assert ended == ["x"]
            assert queue.statistics().running_here == 0


async def test_a_drain_stops_also_what_a_claim_begins_after_its_time(rig: Rig, autojump_clock: MockClock) -> None:
    gate = Gate()
    async with open_database(rig.path, blocking=gate) as database:
        queue = Queue(database, clock=rig.clock)

        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Note) -> None:
            await trio.sleep(5)

        async with queue.run():
            await queue.pause("slow")
            job = await queue.submit("slow", Note("x"))
            gate.close()
            assert queue._dispatcher is not None
            queue._dispatcher.pause(frozenset())
            await settle()  # the claim has begun, and its commit is held back
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(queue.drain, 1, stop_s=10))
                await trio.sleep(2)
                gate.opened.set()
                await settle()
            assert queue.statistics().running_here == 0
            assert job.record().state is State.QUEUED


async def test_a_drain_ends_in_its_time_on_a_slow_disk_and_blames_no_handler_for_it(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with open_database(rig.path, blocking=gate) as database:
        queue = Queue(database, clock=rig.clock)

        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Note) -> None:
            await trio.sleep(1_000)

        async with queue.run():
            job = await queue.submit("slow", Note("x"))
            await settle()
            gate.close()
            started = trio.current_time()
            blamed = await queue.drain(1, stop_s=3)
            gate.opened.set()
            assert (blamed, trio.current_time() - started) == ((), pytest.approx(4))
            await settle()
            assert job.record().state is State.QUEUED
    assert not [it for it in caplog.records if it.getMessage() == "queue.not_stopped"]


async def test_a_drain_does_not_wait_for_a_disk_that_refuses(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding) as queue:
        await queue.pause("add")
        await queue.submit("add", Add(1, 2))
        writer = rig.database._files.writer
        await queue.resume("add")
        writer.execute("PRAGMA query_only = ON")
        await settle()
        started = trio.current_time()
        await queue.drain(10)
        assert trio.current_time() - started < 0.5
        writer.execute("PRAGMA query_only = OFF")


async def test_cancelling_at_any_moment_of_a_run_ends_it_in_one_final_state(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("steps", version=1)
        async def steps(context: Context, args: Add) -> int:
            for number in range(args.a):
                await context.step(f"{number}", lambda: 1)
                await trio.lowlevel.checkpoint()
            return args.a

    seen = set()
    async with rig.open(register, memory=True) as queue:
        for checkpoints in range(60):
            job = await queue.submit("steps", Add(3, checkpoints))
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            with contextlib.suppress(EndedError):
                await queue.cancel(job.id)
            async for event in queue.watch(job.id):
                last = event.state
            assert job.record().state is last
            seen.add(last)
        finals = [
            sum(event.state in (State.SUCCEEDED, State.CANCELLED, State.FAILED) for event in queue.story(it.id).events)
            for it in await queue.list()
        ]
        assert set(finals) == {1}
    assert seen == {State.SUCCEEDED, State.CANCELLED}


async def test_a_handler_that_swallows_its_cancellation_can_still_do_nothing_more(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("stubborn", version=1)
        async def stubborn(context: Context, args: Note) -> str:
            with contextlib.suppress(trio.Cancelled):
                await trio.sleep_forever()
            if args.text == "steps":
                await context.step("after", lambda: 1)
            return "done all the same"

    async with rig.open(register, memory=True) as queue:
        steps, ends = [await queue.submit("stubborn", Note(text)) for text in ("steps", "ends")]
        await settle()
        for job in (steps, ends):
            await queue.cancel(job.id)
        await settle()
        assert steps.record().state is State.CANCELLED
        assert queue.story(steps.id).steps == ()
        # it ended before it was stopped: its word stands, once
        assert await ends.result() == "done all the same"


async def test_what_a_step_found_is_not_stored_for_a_job_that_was_cancelled_meanwhile(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Note) -> None:
            async def look() -> str:
                await trio.sleep(10)
                return args.text

            with trio.CancelScope(shield=True):
                await context.step("look", look)

    async with rig.open(register) as queue:
        job = await queue.submit("slow", Note("found"))
        await trio.sleep(1)
        await queue.cancel(job.id)
        await trio.sleep(10)
        assert queue.get(job.id).state is State.CANCELLED
        assert queue.story(job.id).steps == ()


async def test_what_a_run_left_behind_takes_nothing_back_from_a_later_one(rig: Rig, autojump_clock: MockClock) -> None:
    """A task that outlives its run: it is a mistake of the handler, and costs no effect a second time."""
    payments: list[str] = []
    release = trio.Event()

    def register(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Note) -> str:
            async def try_() -> str:
                if context.attempt == 1:
                    await release.wait()
                    raise NotDoneError("nothing was done")
                payments.append(args.text)
                await trio.sleep_forever()
                return ""

            async def look_up() -> Happened[str] | Looked:
                return Happened("paid") if args.text in payments else Looked.NOT_HAPPENED

            async def leak() -> None:
                with pytest.raises(NotDoneError):
                    await context.effect("pay", try_, look_up)

            if context.attempt == 1:
                outside.start_soon(leak)
                await settle()
                raise TransientError("and the task lives on")
            return await context.effect("pay", try_, look_up)

    async with trio.open_nursery() as outside, rig.open(register, drain_s=0) as queue:
        job = await queue.submit("pay", Note("bob"))
        await trio.sleep(30)
        assert payments == ["bob"]
        release.set()
        await settle()
        assert [effect.state for effect in queue.story(job.id).effects] == ["intended"]
    async with rig.open(register) as queue:
        assert await queue.job(job.id).result() == "paid"
    assert payments == ["bob"]


# Clocks


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_steps_between_a_submission_and_its_commit_delays_nothing(
    rig: Rig, autojump_clock: MockClock, by_ms: int
) -> None:
    async with rig.open(adding, memory=True) as queue:
        await settle()
        submission = queue.prepare("add", Add(1, 2))
        rig.clock.step(by_ms)
        await rig.database.write(submission.insert, submission.announce)
        with trio.fail_after(1):
            assert await submission.job.result() == Sum(3)


@pytest.mark.parametrize("does", ["runs", "waits"])
async def test_a_deadline_is_a_time_of_the_wall_clock_also_while_a_job_runs(
    rig: Rig, autojump_clock: MockClock, does: str
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("long", version=1)
        async def long(context: Context, args: Note) -> None:
            if args.text == "waits":
                await context.wait_until("never", lambda: None)
            await trio.sleep_forever()

    async with rig.open(register, memory=True) as queue:
        early = await queue.submit("long", Note(does), deadline_ms=START_MS + 7_200_000)
        await trio.sleep(1)
        rig.clock.step(-3_600_000)
        await trio.sleep(7_200)
        assert not early.record().ended, "by the clock on the wall there is an hour left"
        rig.clock.step(3_600_000)  # as after an hour's sleep of the machine
        await trio.sleep(61)
        assert early.record().error == "its deadline passed"


async def test_a_deadline_that_passed_while_the_process_was_away_ends_the_job_at_the_next_start(
    rig: Rig, autojump_clock: MockClock
) -> None:
    runs: list[int] = []

    def register(queue: Queue) -> None:
        @queue.handler("long", version=1)
        async def long(context: Context, args: Note) -> None:
            runs.append(context.attempt)
            await trio.sleep_forever()

    async with rig.open(register, drain_s=0) as queue:
        job = await queue.submit("long", Note("x"), deadline_ms=START_MS + 10_000)
        await settle()
    rig.clock.step(20_000)
    async with rig.open(register) as queue:
        with pytest.raises(JobFailedError, match="its deadline passed"):
            await queue.job(job.id).result()
    assert runs == [1]


async def test_deadlines_of_jobs_that_ended_are_not_kept(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        for number in range(500):
            await (await queue.submit("add", Add(number, 0), deadline_ms=START_MS + 10**9)).result()
        assert queue._dispatcher is not None
        assert len(queue._dispatcher._deadlines) < 100


# Many at once


async def test_many_who_submit_the_same_get_one_job(rig: Rig, autojump_clock: MockClock) -> None:
    ids: set[str] = set()
    async with rig.open(adding) as queue:

        async def submit() -> None:
            job = await queue.submit("add", Add(1, 2), dedupe_key="one")
            ids.add(job.id)
            assert await job.result() == Sum(3)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(submit)
        assert len(await queue.list()) == 1
    assert len(ids) == 1


async def test_parents_whose_children_find_the_queue_full_end_once_there_is_room(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("parent", version=1)
        async def parent(context: Context, args: Note) -> int:
            child = await context.submit("child", "add", Add(1, 2))
            await context.wait_until("its end", lambda: queue.get(child).ended)
            return 1

    # as many parents as there is room for: none of their children fits in, until the first of them gives up
    async with rig.open(register, memory=True, limits=QueueLimits(live_jobs=4, look_every_s=1)) as queue:
        await queue.pause("parent")
        jobs = [await queue.submit("parent", Note(str(number))) for number in range(4)]
        await queue.resume("parent")
        await trio.sleep(2 * 3600)
        states = {job.record().state for job in jobs}
        assert states == {State.SUCCEEDED, State.FAILED}
        assert queue.statistics().live == 0
        errors = [job.record().error for job in jobs if job.record().state is State.FAILED]
        assert all(error is not None and "the queue holds 4 live jobs" in error for error in errors)


async def test_a_kind_that_is_paused_drains_like_any_other(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Note) -> int:
            await context.sleep("a while", 20)
            return 1

    async with rig.open(register, retention=Retention()) as queue:
        waiting = await queue.submit("wait", Note("x"))
        await settle()
        await queue.pause("wait")
        await queue.pause("add")
        queued = await queue.submit("add", Add(1, 2))
        await queue.drain(5)
        assert [job.record().state for job in (waiting, queued)] == [State.QUEUED, State.QUEUED]
    async with rig.open(register) as queue:
        await trio.sleep(100)
        assert queue.get(waiting.id).state is State.QUEUED, "it is paused, and may not begin again"
        await queue.resume("wait")
        assert await queue.job(waiting.id).result() == 1
