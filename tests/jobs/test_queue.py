"""The queue as its user sees it, in virtual time: submitting, order, dedupe, watching."""

from __future__ import annotations

import sqlite3
from collections import Counter

import pytest
import trio
import trio.testing
from p2pmem_jobs import (
    ClosedError,
    ConflictError,
    Context,
    Event,
    FullError,
    JobFailedError,
    JobRecord,
    MisuseError,
    NotFoundError,
    NotSerialisableError,
    PermanentError,
    Progress,
    Queue,
    QueueLimits,
    Signal,
    State,
    UnknownKindError,
)
from trio.testing import MockClock

from .conftest import START_MS, Add, Note, Rig, Sum, adding, settle

# Results


async def test_a_job_returns_its_dataclass_and_keeps_its_story(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding) as queue:
        job = await queue.submit("add", Add(1, 2), owner="me")
        assert await job.result() == Sum(3)
        assert await queue.job(job.id).result() == Sum(3)
        story = queue.story(job.id)
        assert [event.state for event in story.events] == [State.QUEUED, State.RUNNING, State.SUCCEEDED]
        assert [event.attempt for event in story.events] == [0, 1, 1]
        assert {event.at_ms for event in story.events} == {START_MS}
        assert story.job.owner == "me"
        assert story.job.ended
    async with rig.open(adding) as queue:
        assert await queue.job(job.id).result() == Sum(3)


async def test_work_done_in_a_write_is_a_job_that_succeeded(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding) as queue:
        seen: list[State] = []
        submission = queue.prepare("add", Add(1, 2), owner="me")
        record = await rig.database.write(lambda c: submission.insert_done(c, Sum(3)), submission.announce_done)
        assert record == queue.get(record.id)
        assert await queue.job(record.id).result() == Sum(3)
        seen += [event.state async for event in queue.watch(record.id)]
        assert seen == [State.SUCCEEDED]
        assert (queue.statistics().live, queue.statistics().ended) == (0, 1)
    async with rig.open(adding) as queue:
        assert (record.state, record.attempt, record.owner) == (State.SUCCEEDED, 1, "me")
        assert queue.get(record.id) == record


async def test_work_whose_write_fails_leaves_no_job(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        submission = queue.prepare("add", Add(1, 2))

        def write(connection: sqlite3.Connection) -> JobRecord:
            submission.insert_done(connection, Sum(3))
            raise PermanentError("the work beside it failed")

        with pytest.raises(PermanentError):
            await rig.database.write(write, submission.announce_done)
        assert await queue.list() == []
        assert (queue.statistics().live, queue.statistics().ended) == (0, 0)


async def test_ids_are_ordered_by_time_and_come_from_the_source(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        ids = []
        for _ in range(5):
            ids.append((await queue.submit("add", Add(1, 2))).id)
            await trio.sleep(1)
    assert ids == sorted(ids)
    assert len(ids[0]) == 28


async def test_what_cannot_be_a_job_is_refused_and_leaves_nothing(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        with pytest.raises(UnknownKindError, match="there are: add"):
            await queue.submit("substract", Add(1, 2))
        with pytest.raises(MisuseError, match="takes Add, and was given Note"):
            await queue.submit("add", Note("x"))
        with pytest.raises(NotSerialisableError, match=r"value\.b is a str, and should be int"):
            await queue.submit("add", Add(1, "2"))  # type: ignore[arg-type]
        with pytest.raises(NotSerialisableError, match=r"value\.a is a bool"):
            await queue.submit("add", Add(True, 2))
        with pytest.raises(MisuseError, match="passed 1 ms ago"):
            await queue.submit("add", Add(1, 2), deadline_ms=START_MS - 1)
        with pytest.raises(MisuseError, match="priority"):
            await queue.submit("add", Add(1, 2), priority=10_000_000)
        with pytest.raises(MisuseError, match="characters"):
            await queue.submit("add", Add(1, 2), dedupe_key="x" * 501)
        with pytest.raises(NotFoundError):
            queue.get("nobody")
        with pytest.raises(NotFoundError):
            await queue.cancel("nobody")
        assert await queue.list() == []


async def test_handlers_that_could_not_work_are_refused_when_they_are_registered(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        adding(queue)
        with pytest.raises(MisuseError, match="handler already"):
            adding(queue)

        async def no_args(context: Context) -> int:
            return 1

        async def plain_args(context: Context, number: int) -> int:
            return number

        async def nothing_said(context: Context, args: Add):  # type: ignore[no-untyped-def]
            return 1

        async def strange(context: Context, args: Add) -> set[int]:
            return {1}

        def plain(context: Context, args: Add) -> int:
            return 1

        for bad, why in (
            (no_args, "dataclass"),
            (plain_args, "dataclass"),
            (nothing_said, "annotate"),
            (strange, "cannot be stored"),
            (plain, "async"),
        ):
            with pytest.raises((MisuseError, NotSerialisableError), match=why):
                queue.handler("bad", version=1)(bad)  # type: ignore[arg-type, type-var]
        for kwargs in ({"version": 0}, {"version": 1, "concurrency": 0}, {"version": 2, "accepts": [0]}):
            with pytest.raises(MisuseError):
                queue.handler("bad", **kwargs)(plain)  # type: ignore[arg-type]

    async with rig.open(register, memory=True) as queue:
        with pytest.raises(MisuseError, match="before the queue is run"):
            queue.handler("late", version=1)(adding)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="run once"):
            async with queue.run():
                pass
    with pytest.raises(ClosedError):
        await queue.submit("add", Add(1, 2))


# Time, order, places


async def test_jobs_run_when_they_are_due_and_by_priority(rig: Rig, autojump_clock: MockClock) -> None:
    order: list[tuple[str, int]] = []

    def register(queue: Queue) -> None:
        @queue.handler("note", version=1, concurrency=1)
        async def note(context: Context, args: Note) -> None:
            order.append((args.text, rig.clock.now_ms() - START_MS))
            await trio.sleep(1)

    async with rig.open(register, memory=True) as queue:
        await queue.submit("note", Note("first"))
        await settle()
        await queue.submit("note", Note("low"), priority=-1)
        await queue.submit("note", Note("plain 1"))
        await queue.submit("note", Note("plain 2"))
        await queue.submit("note", Note("high"), priority=5)
        last = await queue.submit("note", Note("later, most urgent"), run_at_ms=START_MS + 60_000, priority=100)
        await last.result()
    assert order == [
        ("first", 0),
        ("high", 1_000),
        ("plain 1", 2_000),
        ("plain 2", 3_000),
        ("low", 4_000),
        ("later, most urgent", 60_000),
    ]


async def test_no_more_jobs_run_at_once_than_there_are_places(rig: Rig, autojump_clock: MockClock) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def body(kind: str) -> None:
        running[kind] += 1
        running["all"] += 1
        for key in (kind, "all"):
            most[key] = max(most[key], running[key])
        await trio.sleep(1)
        running[kind] -= 1
        running["all"] -= 1

    def register(queue: Queue) -> None:
        @queue.handler("narrow", version=1, concurrency=2)
        async def narrow(context: Context, args: Add) -> None:
            await body("narrow")
            await context.sleep("nap", 1)
            await body("narrow")

        @queue.handler("wide", version=1, concurrency=50)
        async def wide(context: Context, args: Add) -> None:
            await body("wide")

    async with rig.open(register, memory=True, limits=QueueLimits(running_jobs=7)) as queue:
        jobs = [await queue.submit(kind, Add(n, 0)) for n in range(20) for kind in ("narrow", "wide")]
        for job in jobs:
            await job.result()
    assert most["narrow"] == 2
    assert most["wide"] <= 7
    assert most["all"] == 7


async def test_a_waiting_job_holds_no_place(rig: Rig, autojump_clock: MockClock) -> None:
    open_ = False
    signal = Signal()

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1, concurrency=1)
        async def wait(context: Context, args: Add) -> int:
            await context.wait_until("gate", lambda: open_, on=signal, detail="the gate is shut")
            return args.a

    async with rig.open(register, memory=True) as queue:
        jobs = [await queue.submit("wait", Add(n, 0)) for n in range(10)]
        await settle()
        assert queue.statistics().waiting_here == 10
        assert queue.statistics().running_here == 0
        assert {job.record().state for job in jobs} == {State.WAITING}
        assert jobs[0].record().detail == "the gate is shut"
        open_ = True
        signal.notify()
        assert [await job.result() for job in jobs] == list(range(10))
        assert [event.state.value for event in queue.story(jobs[3].id).events] == [
            "queued",
            "running",
            "waiting",
            "running",
            "succeeded",
        ]


# Dedupe


async def test_a_dedupe_key_is_held_by_live_and_succeeded_jobs_and_free_after_a_failure(
    rig: Rig, autojump_clock: MockClock
) -> None:
    fail = True

    def register(queue: Queue) -> None:
        @queue.handler("note", version=1)
        async def note(context: Context, args: Note) -> str:
            if fail:
                raise PermanentError("on purpose")
            return args.text

    async with rig.open(register) as queue:
        await queue.pause("note")
        first = await queue.submit("note", Note("x"), dedupe_key="k")
        assert (await queue.submit("note", Note("x"), dedupe_key="k")).id == first.id
        with pytest.raises(ConflictError, match=first.id) as conflict:
            await queue.submit("note", Note("y"), dedupe_key="k")
        assert conflict.value.job_id == first.id
        await queue.resume("note")
        with pytest.raises(JobFailedError):
            await first.result()
        fail = False
        second = await queue.submit("note", Note("x"), dedupe_key="k")
        assert second.id != first.id
        assert await second.result() == "x"
        third = await queue.submit("note", Note("x"), dedupe_key="k")
        assert third.id == second.id
        assert await third.result() == "x"
        other = await queue.submit("note", Note("z"), dedupe_key="other")
        assert await other.result() == "z"


async def test_a_full_queue_refuses_until_jobs_end(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True, limits=QueueLimits(live_jobs=3)) as queue:
        await queue.pause("add")
        jobs = [await queue.submit("add", Add(n, 0), dedupe_key=str(n)) for n in range(3)]
        with pytest.raises(FullError):
            await queue.submit("add", Add(9, 9))
        assert (await queue.submit("add", Add(1, 0), dedupe_key="1")).id == jobs[1].id
        await queue.cancel(jobs[0].id)
        await queue.submit("add", Add(9, 9))
        assert queue.statistics().live == 3


# Watching and listing


async def test_a_watch_tells_every_change_and_the_latest_progress(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Add) -> None:
            for done in range(3):
                context.progress(done, 3, "copying")
                await trio.sleep(1)

    events: list[Event] = []
    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("slow", Add(1, 2))
        async for event in queue.watch(job.id):
            events.append(event)
        assert queue.story(job.id).events == tuple(event for event in events if event.progress is None)
        again = [event async for event in queue.watch(job.id, after=events[0].number)]
    assert [event.progress for event in events if event.progress] == [Progress(n, 3, "copying") for n in range(3)]
    assert [event.state.value for event in events if not event.progress] == ["queued", "running", "succeeded"]
    assert [event.state.value for event in again] == ["running", "succeeded"]


async def test_a_watch_of_all_jobs_misses_none_however_slow_its_reader_is(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        watch = queue.watch()
        jobs = [await queue.submit("add", Add(n, 0)) for n in range(150)]
        for job in jobs:
            await job.result()
        seen: Counter[str] = Counter()
        async for event in watch:
            seen[event.job_id] += 1
            if seen.total() == 450:
                break
        assert seen == {job.id: 3 for job in jobs}
        with trio.move_on_after(5) as scope:
            await watch.__anext__()
        assert scope.cancelled_caught
        more = await queue.submit("add", Add(0, 0))
        assert (await watch.__anext__()).job_id == more.id


async def test_lists_filter_and_turn_pages(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("other", version=1)
        async def other(context: Context, args: Add) -> None:
            raise PermanentError("no")

    async with rig.open(register, memory=True) as queue:
        parent = await queue.submit("add", Add(0, 0), owner="alice")
        for n in range(10):
            await queue.submit("add", Add(n, 0), owner="bob", parent=parent.id)
        bad = await queue.submit("other", Add(0, 0), owner="bob")
        await settle()
        assert [job.id for job in await queue.list(owner="alice")] == [parent.id]
        assert [job.id for job in await queue.list(states={State.FAILED})] == [bad.id]
        assert len(await queue.list(parent=parent.id)) == 10
        assert len(queue.story(parent.id).children) == 10
        pages, before = [], None
        while page := await queue.list(kind="add", limit=4, before_seq=before):
            pages.append(len(page))
            before = page[-1].seq
        assert pages == [4, 4, 3]
