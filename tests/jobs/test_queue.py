"""The queue, in virtual time."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from dataclasses import dataclass
from enum import Enum

import pytest
import trio
import trio.testing
from p2pmem_jobs import (
    ClosedError,
    ConflictError,
    Context,
    DiskError,
    EndedError,
    Event,
    FullError,
    JobCancelledError,
    JobFailedError,
    MisuseError,
    NewerSchemaError,
    NotFoundError,
    NotSerialisableError,
    OwnedError,
    PermanentError,
    Progress,
    Queue,
    QueueLimits,
    Retention,
    RetryPolicy,
    Signal,
    State,
    TransientError,
    UnknownKindError,
    WaitedTooLongError,
)
from trio.testing import MockClock

from .conftest import START_MS, Opened, Rig


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Add:
    a: int
    b: int


@dataclass(frozen=True)
class Sum:
    total: int
    colour: Colour = Colour.RED
    raw: bytes = b"\x00\xff"


@dataclass(frozen=True)
class Note:
    text: str


def adding(queue: Queue) -> None:
    @queue.handler("add", version=1)
    async def add(context: Context, args: Add) -> Sum:
        return Sum(args.a + args.b)


async def settle() -> None:
    """Lets everything happen that needs no time."""
    await trio.testing.wait_all_tasks_blocked()


async def raise_inside(opened: Opened) -> None:
    async with opened:
        await settle()
        raise ValueError("mine")


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


# Steps


async def test_a_step_runs_once_over_all_runs_of_a_job(rig: Rig, autojump_clock: MockClock) -> None:
    calls: Counter[str] = Counter()

    def register(queue: Queue) -> None:
        @queue.handler("steps", version=1)
        async def steps(context: Context, args: Add) -> list[str]:
            def plain() -> dict[str, list[int]]:
                calls["plain"] += 1
                return {"sum": [args.a, args.b]}

            async def typed() -> Sum:
                calls["typed"] += 1
                return Sum(args.a + args.b)

            first = await context.step("plain", plain)
            second = await context.step("typed", typed)
            third = await context.step("lambda", lambda: b"bytes")
            assert isinstance(second, Sum)
            assert third == b"bytes"
            if context.attempt < 3:
                raise TransientError("again")
            return [str(first), str(second.total)]

    async with rig.open(register) as queue:
        job = await queue.submit("steps", Add(1, 2))
        assert await job.result() == ["{'sum': [1, 2]}", "3"]
        story = queue.story(job.id)
    assert calls == {"plain": 1, "typed": 1}
    assert [step.name for step in story.steps] == ["lambda", "plain", "typed"]
    assert story.job.attempt == 3
    assert story.job.failures == 2


async def test_a_name_used_twice_fails_the_job_at_once(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("twice", version=1)
        async def twice(context: Context, args: Add) -> None:
            await context.step("same", lambda: 1)
            await context.sleep("same", 1)

    async with rig.open(register, memory=True) as queue:
        with pytest.raises(JobFailedError, match="twice in one run"):
            await (await queue.submit("twice", Add(1, 2))).result()


async def test_a_step_and_its_rows_are_committed_together_or_not_at_all(rig: Rig, autojump_clock: MockClock) -> None:
    told: list[int] = []
    fail = True

    def register(queue: Queue) -> None:
        @queue.handler("rows", version=1)
        async def rows(context: Context, args: Add) -> int:
            def write(connection: sqlite3.Connection) -> int:
                connection.execute("INSERT INTO ledger VALUES (?)", (args.a,))
                if fail:
                    raise TransientError("after the row")
                return args.a

            number = await context.step_rows("admit", write, after=told.append)
            if context.attempt < 4:
                raise TransientError("after the step")
            return number

    async with rig.open(register, memory=True) as queue:
        await rig.database.migrate("ledger", ["CREATE TABLE ledger(a INTEGER) STRICT"])
        job = await queue.submit("rows", Add(5, 0))
        await settle()

        def rows_now() -> list[tuple[int]]:
            return rig.database.read(lambda c: c.execute("SELECT a FROM ledger").fetchall())

        assert rows_now() == []
        assert job.record().failures == 1
        fail = False
        assert await job.result() == 5
        assert rows_now() == [(5,)]
        assert told == [5]


async def test_a_result_without_a_declared_type_must_be_plain(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("bad", version=1)
        async def bad(context: Context, args: Add) -> None:
            await context.step("sum", lambda: Sum(1))

        @queue.handler("good", version=1)
        async def good(context: Context, args: Add) -> Sum:
            return await context.step("sum", lambda: Sum(1), returns=Sum)

        @queue.handler("lies", version=1)
        async def lies(context: Context, args: Add) -> int:
            return "text"  # type: ignore[return-value]

    async with rig.open(register, memory=True) as queue:
        with pytest.raises(JobFailedError, match="Declare the type"):
            await (await queue.submit("bad", Add(1, 2))).result()
        assert await (await queue.submit("good", Add(1, 2))).result() == Sum(1)
        with pytest.raises(JobFailedError, match="should be int"):
            await (await queue.submit("lies", Add(1, 2))).result()


async def test_a_job_and_rows_of_its_submitter_are_committed_together(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        await rig.database.migrate("ledger", ["CREATE TABLE ledger(a TEXT) STRICT"])
        submission = queue.prepare("add", Add(1, 2))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO ledger VALUES (?)", (submission.insert(connection),))

        await rig.database.write(write, submission.announce)
        assert await submission.job.result() == Sum(3)
        failing = queue.prepare("add", Add(3, 4))
        with pytest.raises(ZeroDivisionError):
            await rig.database.write(lambda c: (failing.insert(c), 1 // 0), failing.announce)
        assert len(await queue.list()) == 1


async def test_a_job_submits_another_one_once_on_behalf_of_its_owner(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        add = queue.handler("add", version=1)(add_them)

        @queue.handler("parent", version=1)
        async def parent(context: Context, args: Add) -> str:
            child = await context.submit("child", add, Add(args.a, 1), deadline_ms=START_MS + 10_000)
            if context.attempt == 1:
                await context.sleep("until the deadline is over", 20)
                raise TransientError("again")
            return child

    async def add_them(context: Context, args: Add) -> Sum:
        return Sum(args.a + args.b)

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("parent", Add(1, 2), owner="me")
        child = queue.get(await job.result())
        assert (child.parent, child.owner, child.state) == (job.id, "me", State.SUCCEEDED)
        assert len(await queue.list()) == 2
        assert queue.story(job.id).children == (child.id,)


# Waits


async def test_a_wait_loses_no_event_between_its_test_and_its_sleep(rig: Rig, autojump_clock: MockClock) -> None:
    signal = Signal()
    looked = 0

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> str:
            def predicate() -> str | None:
                nonlocal looked
                looked += 1
                if looked <= 2:
                    signal.notify()  # comes before anybody sleeps
                return "there" if looked == 3 else None

            return await context.wait_until("it", predicate, on=[signal])

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("wait", Add(1, 2))
        assert await job.result() == "there"
    assert rig.clock.now_ms() == START_MS


async def test_a_wait_looks_again_without_any_signal(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> bool:
            return await context.wait_until("time", lambda: rig.clock.now_ms() >= START_MS + 90_000)

    async with rig.open(register, memory=True) as queue:
        await (await queue.submit("wait", Add(1, 2))).result()
    assert rig.clock.now_ms() == START_MS + 120_000


async def test_a_wait_ends_at_its_timeout_which_a_restart_does_not_move(rig: Rig, autojump_clock: MockClock) -> None:
    detail = "2 of 3"

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> int:
            try:
                return await context.wait_until("acks", lambda: 0, timeout_s=3600, detail=lambda: detail)
            except WaitedTooLongError:
                return rig.clock.now_ms() - START_MS

    async with rig.open(register, drain_s=1) as queue:
        job = await queue.submit("wait", Add(1, 2))
        await trio.sleep(600)
        assert job.record().state is State.WAITING
        detail = "3 of 3"
        await trio.sleep(90)
        assert job.record().detail == "3 of 3"
    async with rig.open(register) as queue:
        assert await queue.job(job.id).result() == 3_600_000
        reasons = [event.reason for event in queue.story(job.id).events]
    assert reasons == ["submitted", "", "2 of 3", "stopped with the queue, to run again", "", "3 of 3", "", ""]


async def test_a_sleep_goes_on_where_it_was_after_a_restart(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("sleep", version=1)
        async def sleep(context: Context, args: Add) -> int:
            await context.sleep("a day", 86_400)
            return rig.clock.now_ms() - START_MS

    async with rig.open(register) as queue:
        job = await queue.submit("sleep", Add(1, 2))
        await trio.sleep(80_000)
    async with rig.open(register) as queue:
        assert await queue.job(job.id).result() == 86_400_000


async def test_a_handler_may_give_up_a_wait_and_go_on(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("impatient", version=1, concurrency=1)
        async def impatient(context: Context, args: Add) -> str:
            with trio.move_on_after(5):
                await context.wait_until("never", lambda: None)
            return await context.step("instead", lambda: "done")

    async with rig.open(register, memory=True) as queue:
        jobs = [await queue.submit("impatient", Add(n, 2)) for n in range(3)]
        assert [await job.result() for job in jobs] == ["done"] * 3
        await settle()
        assert queue.statistics().running_here == 0


async def test_two_waits_of_one_job_may_overlap(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("both", version=1, concurrency=1)
        async def both(context: Context, args: Add) -> int:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(context.sleep, "long", 10)
                nursery.start_soon(context.sleep, "short", 5)
            return rig.clock.now_ms() - START_MS

    async with rig.open(register, memory=True) as queue:
        assert await (await queue.submit("both", Add(1, 2))).result() == 10_000


# Errors


async def test_transient_errors_are_tried_again_later_and_later_up_to_the_cap(
    rig: Rig, autojump_clock: MockClock
) -> None:
    times: list[int] = []
    policy = RetryPolicy(first_s=1, factor=10, cap_s=50, jitter=0, transient_runs=5)

    def register(queue: Queue) -> None:
        @queue.handler("flaky", version=1, retry=policy)
        async def flaky(context: Context, args: Add) -> None:
            times.append(rig.clock.now_ms() - START_MS)
            raise OSError("no route")

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("flaky", Add(1, 2))
        with pytest.raises(JobFailedError, match=r"OSError: no route \(transient; run 5, the last\)"):
            await job.result()
        reasons = [event.reason for event in queue.story(job.id).events if event.state is State.QUEUED]
    assert times == [0, 1_000, 11_000, 61_000, 111_000]
    assert reasons[1] == "OSError: no route (transient; run 1)"


@pytest.mark.parametrize(
    ("error", "runs"),
    [(PermanentError("no"), 1), (KeyError("bug"), 3), (TransientError("x"), 12), (MisuseError("x"), 1)],
)
async def test_the_class_of_an_error_decides_how_often_it_is_tried(
    rig: Rig, autojump_clock: MockClock, error: Exception, runs: int
) -> None:
    count = 0

    def register(queue: Queue) -> None:
        @queue.handler("bad", version=1)
        async def bad(context: Context, args: Add) -> None:
            nonlocal count
            count += 1
            async with trio.open_nursery():
                raise error

    async with rig.open(register, memory=True) as queue:
        with pytest.raises(JobFailedError):
            await (await queue.submit("bad", Add(1, 2))).result()
    assert count == runs


async def test_a_rule_for_errors_that_raises_itself_breaks_nothing(rig: Rig, autojump_clock: MockClock) -> None:
    def rule(error: BaseException) -> object:
        raise RuntimeError("the rule")

    def register(queue: Queue) -> None:
        @queue.handler("bad", version=1, classify=rule)  # type: ignore[arg-type]
        async def bad(context: Context, args: Add) -> None:
            raise ValueError("the job")

    async with rig.open(register, memory=True) as queue:
        with pytest.raises(JobFailedError, match="the job"):
            await (await queue.submit("bad", Add(1, 2))).result()


async def test_a_deadline_ends_a_job_that_runs_waits_or_never_began(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Note) -> None:
            if args.text == "waits":
                await context.wait_until("never", lambda: None)
            await trio.sleep(1_000)

    async with rig.open(register, memory=True) as queue:
        running = await queue.submit("slow", Note("runs"), deadline_ms=START_MS + 5_000)
        waiting = await queue.submit("slow", Note("waits"), deadline_ms=START_MS + 5_000)
        queued = await queue.submit("slow", Note("later"), deadline_ms=START_MS + 5_000, run_at_ms=START_MS + 100_000)
        for job in (running, waiting, queued):
            with pytest.raises(JobFailedError, match="deadline"):
                await job.result()
            assert job.record().ended_ms == START_MS + 5_000


# Cancelling


async def test_a_cancelled_job_ends_whatever_it_did_and_nothing_of_it_is_deleted(
    rig: Rig, autojump_clock: MockClock
) -> None:
    cleaned: list[str] = []

    def register(queue: Queue) -> None:
        @queue.handler("slow", version=1)
        async def slow(context: Context, args: Note) -> None:
            await context.step("first", lambda: args.text)
            try:
                if args.text == "waits":
                    await context.wait_until("never", lambda: None)
                await trio.sleep(1_000)
            finally:
                cleaned.append(args.text)

    async with rig.open(register, memory=True) as queue:
        running = await queue.submit("slow", Note("runs"))
        waiting = await queue.submit("slow", Note("waits"))
        queued = await queue.submit("slow", Note("later"), run_at_ms=START_MS + 100_000)
        await settle()
        assert await queue.cancel(running.id, "enough") is State.RUNNING
        assert await queue.cancel(waiting.id) is State.WAITING
        assert await queue.cancel(queued.id) is State.CANCELLED
        for job in (running, waiting, queued):
            with pytest.raises(JobCancelledError):
                await job.result()
            with pytest.raises(EndedError, match="is cancelled"):
                await queue.cancel(job.id)
        assert [step.name for step in queue.story(running.id).steps] == ["first"]
        assert queue.statistics().live == 0
        assert running.record().error == "enough"
    assert sorted(cleaned) == ["runs", "waits"]


async def test_a_run_that_was_cancelled_writes_nothing_more(rig: Rig, autojump_clock: MockClock) -> None:
    outcomes: list[str] = []

    def register(queue: Queue) -> None:
        @queue.handler("stubborn", version=1)
        async def stubborn(context: Context, args: Add) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
                try:
                    await context.step_rows("late", lambda c: c.execute("INSERT INTO ledger VALUES (1)").rowcount)
                finally:
                    outcomes.append("refused")

    async with rig.open(register, memory=True) as queue:
        await rig.database.migrate("ledger", ["CREATE TABLE ledger(a INTEGER) STRICT"])
        job = await queue.submit("stubborn", Add(1, 2))
        await settle()
        await queue.cancel(job.id)
        with pytest.raises(JobCancelledError):
            await job.result()
        assert rig.database.read(lambda c: c.execute("SELECT count(*) FROM ledger").fetchone()) == (0,)
        assert queue.story(job.id).steps == ()
    assert outcomes == ["refused"]


async def test_a_retry_is_a_new_job_that_goes_on_where_the_old_one_ended(rig: Rig, autojump_clock: MockClock) -> None:
    calls: Counter[str] = Counter()
    fail = True

    def register(queue: Queue) -> None:
        @queue.handler("steps", version=1)
        async def steps(context: Context, args: Note) -> str:
            def first() -> str:
                calls["first"] += 1
                return args.text

            text = await context.step("first", first)
            if fail:
                raise PermanentError("no")
            return text

    async with rig.open(register, memory=True) as queue:
        old = await queue.submit("steps", Note("x"), dedupe_key="k")
        with pytest.raises(JobFailedError):
            await old.result()
        fail = False
        new = await queue.retry(old.id)
        assert await new.result() == "x"
        assert old.record().state is State.FAILED
        assert new.record().retry_of == old.id
        with pytest.raises(EndedError, match="is succeeded"):
            await queue.retry(new.id)
    assert calls["first"] == 1


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


# Pausing, parking, draining, retention


async def test_a_paused_kind_stays_paused_over_a_restart(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding) as queue:
        await queue.pause("add")
        job = await queue.submit("add", Add(1, 2))
        await settle()
        assert job.record().state is State.QUEUED
    async with rig.open(adding) as queue:
        assert queue.paused() == {"add"}
        await settle()
        assert queue.job(job.id).record().state is State.QUEUED
        await queue.resume("add")
        assert await queue.job(job.id).result() == Sum(3)


async def test_jobs_that_no_handler_accepts_are_parked_with_the_reason_until_one_does(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def second(accepts: tuple[int, ...]) -> object:
        def register(queue: Queue) -> None:
            @queue.handler("add", version=2, accepts=accepts)
            async def add(context: Context, args: Add) -> Sum:
                return Sum(args.a + args.b + 100 * context.version)

        return register

    async with rig.open(adding) as queue:
        job = await queue.submit("add", Add(1, 2), run_at_ms=START_MS + 10_000)
    async with rig.open(lambda queue: None) as queue:
        await trio.sleep(20)
        parked = queue.get(job.id).parked
        assert parked is not None
        assert "no handler" in parked
    async with rig.open(second(())) as queue:  # type: ignore[arg-type]
        await trio.sleep(20)
        parked = queue.get(job.id).parked
        assert parked is not None
        assert "version 1" in parked
        assert "accepts 2" in parked
    async with rig.open(second((1,))) as queue:  # type: ignore[arg-type]
        assert await queue.job(job.id).result() == Sum(103)
        assert queue.get(job.id).parked is None


async def test_draining_lets_what_runs_end_and_queues_the_rest_again(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("sleep", version=1)
        async def sleep(context: Context, args: Add) -> int:
            await trio.sleep(args.a)
            return args.a

    async with rig.open(register, drain_s=10) as queue:
        short = await queue.submit("sleep", Add(5, 0))
        long = await queue.submit("sleep", Add(50, 0))
        await settle()
        started = trio.current_time()
        await queue.drain(10)
        assert trio.current_time() - started == pytest.approx(10)
        never = await queue.submit("sleep", Add(1, 0))
        assert short.record().state is State.SUCCEEDED
        assert long.record().state is State.QUEUED
        assert never.record().state is State.QUEUED
    async with rig.open(register) as queue:
        assert await queue.job(long.id).result() == 50
        assert queue.get(long.id).failures == 0


async def test_a_queue_that_is_cancelled_queues_its_jobs_again(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("sleep", version=1)
        async def sleep(context: Context, args: Add) -> int:
            await context.step("one", lambda: 1)
            await trio.sleep(50)
            return context.attempt

    with trio.move_on_after(5):
        async with rig.open(register) as queue:
            job = await queue.submit("sleep", Add(1, 0))
            await trio.sleep_forever()
    with pytest.raises(ValueError, match="mine"):
        await raise_inside(rig.open(register))
    async with rig.open(register) as queue:
        assert await queue.job(job.id).result() == 3


async def test_ended_jobs_are_forgotten_by_age_and_by_number(rig: Rig, autojump_clock: MockClock) -> None:
    retention = Retention(succeeded_s=100, failed_s=1_000, ended_jobs=5, sweep_every_s=10)
    async with rig.open(adding, memory=True, retention=retention) as queue:
        jobs = [await queue.submit("add", Add(n, 0), dedupe_key=str(n)) for n in range(8)]
        for job in jobs:
            await job.result()
        await trio.sleep(11)
        assert queue.statistics().ended == 5
        with pytest.raises(NotFoundError):
            jobs[0].record()
        assert jobs[7].record().ended
        await trio.sleep(100)
        assert queue.statistics().ended == 0
        for table in ("job", "job_event", "job_step"):
            assert rig.database.read(lambda c, t=table: c.execute(f"SELECT count(*) FROM {t}").fetchone()) == (0,)
        again = await queue.submit("add", Add(7, 0), dedupe_key="7")
        assert again.id != jobs[7].id


async def test_a_disk_that_is_full_for_a_while_delays_jobs_and_loses_none(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def register(queue: Queue) -> None:
        @queue.handler("long", version=1)
        async def long(context: Context, args: Add) -> str:
            await trio.sleep(10)
            return "x" * 100_000

    async with rig.open(register) as queue:
        jobs = [await queue.submit("long", Add(n, 0)) for n in range(5)]
        await trio.sleep(5)
        writer = rig.database._files.writer
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages}")
        await trio.sleep(60)
        refused = 0
        for number in range(100):
            try:
                await queue.submit("long", Add(number, 1), dedupe_key="x" * 400 + str(number))
            except DiskError:
                refused += 1
        assert refused
        assert {job.record().state for job in jobs} == {State.RUNNING}
        writer.execute("PRAGMA max_page_count = 1000000")
        for job in jobs:
            assert len(await job.result()) == 100_000
        for record in await queue.list():
            await queue.job(record.id).result()
        assert queue.statistics().ended == 5 + 100 - refused
        assert all(job.record().attempt == 1 for job in jobs)


async def test_a_queue_that_stops_while_the_disk_is_full_leaves_its_jobs_to_the_next_start(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def register(queue: Queue) -> None:
        @queue.handler("long", version=1)
        async def long(context: Context, args: Add) -> str:
            await trio.sleep(10)
            return "x" * 100_000

    async with rig.open(register) as queue:
        job = await queue.submit("long", Add(1, 0))
        await settle()
        writer = rig.database._files.writer
        writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
        await trio.sleep(60)
    assert rig.clock.now_ms() < START_MS + 100_000
    async with rig.open(register) as queue:
        assert len(await queue.job(job.id).result()) == 100_000
        assert queue.get(job.id).attempt == 2


async def test_two_queues_on_one_file_are_told_apart_by_its_owner(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding):
        with pytest.raises(OwnedError, match="is in use by process"):
            await raise_inside(rig.open(adding))


async def test_a_newer_schema_is_refused(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding):
        await rig.database.write(lambda c: c.execute("UPDATE component_versions SET version = 99"))
    with pytest.raises(NewerSchemaError, match="schema 99"):
        async with rig.open(adding):
            pass


async def test_a_wall_clock_that_steps_neither_loses_nor_hurries_a_job(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        job = await queue.submit("add", Add(1, 2), run_at_ms=START_MS + 3_600_000)
        await trio.sleep(10)
        rig.clock.step(-1_800_000)
        await trio.sleep(3_000)
        assert job.record().state is State.QUEUED
        rig.clock.step(86_400_000)
        assert await job.result() == Sum(3)
