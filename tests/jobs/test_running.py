"""A queue that is stopped, starved and swept, and jobs that are cancelled, in virtual time."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
import trio
import trio.testing
from p2pmem_jobs import (
    Context,
    DiskError,
    EndedError,
    JobCancelledError,
    JobFailedError,
    NewerSchemaError,
    NotFoundError,
    OwnedError,
    PermanentError,
    Queue,
    QueueLimits,
    Retention,
    State,
)
from trio.testing import MockClock

from .conftest import START_MS, Add, Note, Register, Rig, Sum, adding, raise_inside, settle

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


@pytest.mark.parametrize("why", ["cancelled", "deadline", "drained"])
async def test_a_handler_that_raises_while_it_is_stopped_harms_only_itself(
    rig: Rig, autojump_clock: MockClock, why: str
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("messy", version=1)
        async def messy(context: Context, args: Add) -> None:
            async def raise_in_the_end() -> None:
                try:
                    await trio.sleep(1_000)
                finally:
                    raise ValueError("on the way out")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(raise_in_the_end)
                nursery.start_soon(trio.sleep, 1_000)

    async with rig.open(register, memory=True) as queue:
        deadline_ms = START_MS + 5_000 if why == "deadline" else None
        job = await queue.submit("messy", Add(1, 2), deadline_ms=deadline_ms)
        await settle()
        if why == "cancelled":
            await queue.cancel(job.id)
            with pytest.raises(JobCancelledError):
                await job.result()
        elif why == "deadline":
            with pytest.raises(JobFailedError, match="deadline"):
                await job.result()
        else:
            await queue.drain(1)
            assert job.record().state is State.QUEUED
            assert job.record().failures == 0


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


def stubborn(free: trio.Event) -> Register:
    """A handler that does not stop when it is told to, until it is set free; and one that does."""

    def register(queue: Queue) -> None:
        @queue.handler("stubborn", version=1)
        async def stubborn(context: Context, args: Add) -> None:
            with trio.CancelScope(shield=True):
                await free.wait()

        @queue.handler("sleep", version=1)
        async def sleep(context: Context, args: Add) -> None:
            await trio.sleep(1_000)

    return register


async def test_a_drain_ends_in_its_time_and_names_the_job_that_does_not_stop(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    free = trio.Event()
    async with rig.open(stubborn(free)) as queue:
        stuck = await queue.submit("stubborn", Add(1, 0))
        stopped = await queue.submit("sleep", Add(1, 0))
        await settle()
        started = trio.current_time()
        assert await queue.drain(10, stop_s=3) == (stuck.id,)
        assert trio.current_time() - started == pytest.approx(13)
        assert [job.record().state for job in (stuck, stopped)] == [State.RUNNING, State.QUEUED]
        (line,) = [it for it in caplog.records if it.getMessage() == "queue.not_stopped"]
        assert line.__dict__["jobs"] == f"stubborn {stuck.id}"
        free.set()
        assert await queue.drain(10) == ()


async def test_a_queue_that_is_cancelled_names_the_job_that_does_not_stop(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    free = trio.Event()
    async with trio.open_nursery() as nursery:

        async def cancelled() -> None:
            with trio.move_on_after(1):
                async with rig.open(stubborn(free)) as queue:
                    await queue.submit("stubborn", Add(1, 0))
                    await trio.sleep_forever()

        nursery.start_soon(cancelled)
        await trio.sleep(7)
        assert [it.getMessage() for it in caplog.records] == ["queue.not_stopped"]
        free.set()


async def test_a_handler_that_ends_the_program_again_and_again_fails_as_one_of_which_it_dies(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("exits", version=1)
        async def exits(context: Context, args: Add) -> None:
            raise SystemExit(3)

    limits = QueueLimits(deaths=2)
    ids: list[str] = []

    async def die() -> None:
        async with rig.open(register, limits=limits) as queue:
            if not ids:
                ids.append((await queue.submit("exits", Add(1, 0))).id)
            await trio.sleep_forever()

    for _ in range(3):
        with pytest.raises(SystemExit):
            await die()
    async with rig.open(register, limits=limits) as queue:
        record = queue.get(ids[0])
        assert (record.state, record.error) == (State.FAILED, "the process died 3 times while it ran")


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


async def test_a_sweep_that_finds_nothing_writes_nothing(rig: Rig, autojump_clock: MockClock) -> None:
    retention = Retention(succeeded_s=100, failed_s=1_000, ended_jobs=5, sweep_every_s=10)
    async with rig.open(adding, memory=True, retention=retention) as queue:
        await (await queue.submit("add", Add(1, 0))).result()
        commits: list[str] = []
        rig.database.crash_point = commits.append
        await trio.sleep(95)
        assert commits == []
        await trio.sleep(20)
        assert commits == ["database.before_commit", "database.after_commit"]
        assert queue.statistics().ended == 0


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


async def test_a_queue_that_is_cancelled_while_the_disk_is_full_does_not_hang(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def register(queue: Queue) -> None:
        @queue.handler("long", version=1)
        async def long(context: Context, args: Add) -> int:
            await trio.sleep(10)
            raise PermanentError("x" * 900)

    with trio.move_on_after(20):
        async with rig.open(register) as queue:
            for number in range(20):
                await queue.submit("long", Add(number, 0))
            await settle()
            writer = rig.database._files.writer
            writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
            await trio.sleep_forever()
    assert rig.clock.now_ms() == START_MS + 20_000


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
