"""What a handler works with, in virtual time: steps, waits, errors."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from p2pmem_jobs import (
    Context,
    InlineBlocking,
    JobFailedError,
    MisuseError,
    PermanentError,
    Queue,
    RetryPolicy,
    Signal,
    State,
    TransientError,
    TrioClock,
    WaitedTooLongError,
    open_database,
)
from trio.testing import MockClock

from .conftest import START_MS, Add, Note, Register, Rig, Sum, adding, settle

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


async def test_a_wait_tells_what_is_missing_at_most_once_a_second_and_the_last_of_it(
    rig: Rig, autojump_clock: MockClock
) -> None:
    signal, came, made = Signal(), 0, 0

    def detail() -> str:
        nonlocal made
        made += 1
        return f"{came} of 100"

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> int:
            return await context.wait_until("acks", lambda: came if came == 100 else 0, on=signal, detail=detail)

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("wait", Add(1, 2))
        await trio.sleep(0.2)
        for number in range(1, 100):
            came = number
            signal.notify()
            await trio.sleep(0.01)
        await trio.sleep(2)
        assert job.record().detail == "99 of 100"
        assert made <= 4
        came = 100
        signal.notify()
        assert await job.result() == 100


async def test_who_watches_is_told_what_a_job_waits_for_by_now(rig: Rig, autojump_clock: MockClock) -> None:
    signal, came = Signal(), 0

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> None:
            await context.wait_until("two", lambda: came >= 2, on=signal, detail=lambda: f"{came} of 2")
            await context.wait_until("four", lambda: came >= 4, on=signal, detail=lambda: f"{came} of 4")

    seen: list[tuple[str, str]] = []
    late: list[tuple[str, str]] = []

    async def watch(queue: Queue, job: str, after: int, into: list[tuple[str, str]]) -> None:
        async for event in queue.watch(job, after=after):
            into.append((event.state.value, event.reason))

    async with rig.open(register, memory=True) as queue, trio.open_nursery() as nursery:
        job = await queue.submit("wait", Add(1, 2))
        nursery.start_soon(watch, queue, job.id, 0, seen)
        await trio.sleep(2)
        for _ in range(4):
            came += 1
            signal.notify()
            await trio.sleep(2)
            if came == 3:
                nursery.start_soon(watch, queue, job.id, queue.position(job.id), late)
                await trio.sleep(2)
    begun = [("queued", "submitted"), ("running", ""), ("waiting", "0 of 2"), ("waiting", "1 of 2")]
    ended = [("running", ""), ("succeeded", "")]
    assert seen == [*begun, ("running", ""), ("waiting", "2 of 4"), ("waiting", "3 of 4"), *ended]
    assert late == [("waiting", "3 of 4"), *ended]


class HeldUp(InlineBlocking):
    """What is committed is on disk a while before anybody is told."""

    by_s = 0.0

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        result = await super().run(fn, *args)
        await trio.sleep(self.by_s)
        return result


async def test_who_watches_is_not_told_of_a_wait_after_its_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    disk, signal, came = HeldUp(), Signal(), 0
    async with open_database(tmp_path / "jobs.db", blocking=disk) as database:
        queue = Queue(database, clock=TrioClock(START_MS))

        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> None:
            await context.wait_until("two", lambda: came >= 2, on=signal, detail=lambda: f"{came} of 2")

        async with queue.run():
            job = await queue.submit("wait", Add(1, 2))
            await trio.sleep(2)
            came += 1
            signal.notify()
            await trio.sleep(2)
            disk.by_s = 1.0
            came += 1
            signal.notify()
            await trio.sleep(0.5)  # it runs again, by the file
            seen = [(event.state.value, event.reason) async for event in queue.watch(job.id)]
    begun = [("queued", "submitted"), ("running", ""), ("waiting", "0 of 2")]
    assert seen == [*begun, ("running", ""), ("succeeded", "")]


async def test_the_end_of_a_wait_is_stored_in_the_transaction_in_which_it_begins(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Add) -> None:
            await context.wait_until("acks", lambda: 0, timeout_s=3600)

        @queue.handler("sleep", version=1)
        async def sleep(context: Context, args: Add) -> None:
            await context.sleep("a while", 3600)

    async with rig.open(register, memory=True, drain_s=1) as queue:
        for kind in ("wait", "sleep"):
            before = rig.database.statistics().operations
            job = await queue.submit(kind, Add(1, 2))
            await trio.sleep(1)
            assert job.record().state is State.WAITING
            assert [step.name for step in queue.story(job.id).steps] == ["acks" if kind == "wait" else "a while"]
            assert rig.database.statistics().operations - before == 3, "it is submitted, claimed, and waits"


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


async def test_a_stored_result_that_a_later_program_reads_as_another_type_is_named(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def program(returns: type) -> Register:
        def register(queue: Queue) -> None:
            @queue.handler("steps", version=1)
            async def steps(context: Context, args: Note) -> str:
                await context.step("count", lambda: "three" if returns is str else 3, returns=returns)
                if returns is str:
                    await trio.sleep_forever()
                return "done"

        return register

    async with rig.open(program(str), drain_s=0) as queue:
        job = await queue.submit("steps", Note("x"))
        await settle()
    async with rig.open(program(int)) as queue:
        with pytest.raises(JobFailedError, match="the stored result of 'count' is a str, and should be int"):
            await queue.job(job.id).result()
    async with rig.open(program(str), drain_s=0) as queue:  # with the old program it goes on: nothing was thrown away
        again = await queue.retry(job.id)
        await settle()
        assert [step.result for step in queue.story(again.id).steps] == ['"three"']


@pytest.mark.parametrize("what", ["result", "step"])
async def test_a_result_that_is_too_large_fails_its_own_job_and_says_so(
    rig: Rig, autojump_clock: MockClock, what: str
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("large", version=1)
        async def large(context: Context, args: Note) -> str:
            text = "x" * 30_000_000
            return text if what == "result" else await context.step("large", lambda: text)

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("large", Note("x"))
        with pytest.raises(JobFailedError, match="larger than 1048576 bytes"):
            await job.result()
        assert job.record().attempt == 1


@pytest.mark.parametrize(("seconds", "end"), [("nan", "misuse"), ("inf", "waits"), ("1e300", "waits"), ("-1", "over")])
@pytest.mark.parametrize("how", ["sleep", "wait"])
async def test_a_time_that_is_no_number_is_misuse_and_one_without_end_waits(
    rig: Rig, autojump_clock: MockClock, how: str, seconds: str, end: str
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Note) -> str:
            try:
                if how == "sleep":
                    await context.sleep("it", float(args.text))
                else:
                    await context.wait_until("it", lambda: None, timeout_s=float(args.text))
            except WaitedTooLongError:
                pass
            except MisuseError:
                return "misuse"
            return "over"

    async with rig.open(register, drain_s=0) as queue:
        job = await queue.submit("wait", Note(seconds))
        with trio.move_on_after(7_200) as scope:
            assert await job.result() == end
        assert scope.cancelled_caught == (end == "waits")
        assert job.record().state is (State.WAITING if end == "waits" else State.SUCCEEDED)
