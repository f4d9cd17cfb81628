"""A person's word on a job: retried, resolved, and watched while that happens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import (
    Context,
    EndedError,
    Happened,
    JobFailedError,
    JobOutcomeUnknownError,
    JobWithoutResultError,
    Looked,
    NotFoundError,
    PermanentError,
    Queue,
    Retention,
    State,
)
from p2pmem_jobs.records import SLEEP, STEP, WAIT
from trio.testing import MockClock

from .conftest import START_MS, Add, Note, Rig, Sum, adding, settle


class World:
    """A payment, and a bank that tells, or does not."""

    def __init__(self) -> None:
        self.payments: Counter[str] = Counter()
        self.fails: list[str] = []
        self.bank_tells = True
        self.after: Exception | None = None
        self.runs = 0

    def register(self, queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Note) -> str:
            self.runs += 1

            async def try_() -> str:
                if self.fails:
                    raise PermanentError(self.fails.pop(0))
                self.payments[args.text] += 1
                return "receipt"

            async def look_up() -> Happened[str] | Looked:
                if not self.bank_tells:
                    return Looked.CANNOT_TELL
                return Happened("receipt") if self.payments[args.text] else Looked.NOT_HAPPENED

            receipt = await context.effect("pay", try_, look_up, note=f"to {args.text}")
            if self.after is not None:
                raise self.after
            return receipt


# Retry


async def test_asking_twice_for_a_retry_is_one_retry(rig: Rig, autojump_clock: MockClock) -> None:
    world = World()
    world.after = PermanentError("no")
    ids: set[str] = set()
    async with rig.open(world.register, memory=True) as queue:
        old = await queue.submit("pay", Note("bob"))
        with pytest.raises(JobFailedError):
            await old.result()
        world.after = None

        async def retry() -> None:
            job = await queue.retry(old.id)
            ids.add(job.id)
            assert await job.result() == "receipt"

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(retry)
        assert len(ids) == 1
        assert (await queue.retry(old.id)).id in ids, "what has succeeded is not done again"
        assert len(await queue.list()) == 2
    assert world.payments == {"bob": 1}


async def test_a_retry_of_what_was_retried_goes_on_where_the_last_one_ended(
    rig: Rig, autojump_clock: MockClock
) -> None:
    world = World()
    async with rig.open(world.register, memory=True) as queue:
        world.fails = ["the door was shut"]
        first = await queue.submit("pay", Note("bob"))
        with pytest.raises(JobOutcomeUnknownError):
            await first.result()
        await queue.resolve(first.id, State.FAILED, reason="it was not sent")
        world.after = PermanentError("the printer is broken")
        second = await queue.retry(first.id)
        with pytest.raises(JobFailedError, match="printer"):
            await second.result()
        world.after, world.bank_tells = None, False
        third = await queue.retry(first.id)  # of the first one, which knows of no payment
        assert third.record().retry_of == second.id
        assert await third.result() == "receipt"
    assert world.payments == {"bob": 1}


async def test_a_retry_has_all_the_time_that_the_old_one_had(rig: Rig, autojump_clock: MockClock) -> None:
    come = False
    naps: list[float] = []

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Note) -> int:
            await context.step("first", lambda: 1)
            await context.sleep("nap", 10)
            naps.append(trio.current_time())
            await context.wait_until("news", lambda: come, timeout_s=100)
            return context.attempt

    async with rig.open(register, memory=True) as queue:
        old = await queue.submit("wait", Note("x"))
        with pytest.raises(JobFailedError, match="did not come in time"):
            await old.result()
        assert [step.what for step in queue.story(old.id).steps] == [STEP, SLEEP, WAIT]
        began = trio.current_time()
        new = await queue.retry(old.id)
        await trio.sleep(50)
        assert new.record().state is State.WAITING
        assert naps[1] - began < 1, "what was slept is not slept again"
        come = True
        assert await new.result() == 1


async def test_a_retry_is_kept_as_long_as_the_job_that_it_retries(rig: Rig, autojump_clock: MockClock) -> None:
    """Or a third retry would begin where the first one did, and pay again."""
    world = World()
    world.after = PermanentError("no")
    retention = Retention(failed_s=1_000, cancelled_s=10, sweep_every_s=5)
    async with rig.open(world.register, memory=True, retention=retention) as queue:
        first = await queue.submit("pay", Note("bob"))
        await settle()
        second = await queue.retry(first.id)
        await settle()
        # a person stopped it: that is forgotten sooner than a failure
        await rig.database.write(lambda c: c.execute("UPDATE job SET state = 'cancelled' WHERE id = ?", (second.id,)))
        await trio.sleep(500)
        assert (await queue.retry(first.id)).record().retry_of == second.id
        await trio.sleep(2_000)
        assert await queue.list() == []


# Resolve


@pytest.mark.parametrize("word", [State.SUCCEEDED, State.FAILED, State.QUEUED])
@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING, State.SUCCEEDED, State.CANCELLED])
async def test_only_a_job_whose_outcome_is_unknown_is_resolved(
    rig: Rig, autojump_clock: MockClock, state: State, word: State
) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("long", version=1)
        async def long(context: Context, args: Note) -> None:
            if args.text == "waits":
                await context.wait_until("never", lambda: None)
            await trio.sleep_forever()

    async with rig.open(register, memory=True, drain_s=0) as queue:
        if state is State.SUCCEEDED:
            job = await queue.submit("add", Add(1, 2))
        else:
            later = START_MS + 10**6 if state in (State.QUEUED, State.CANCELLED) else None
            job = await queue.submit("long", Note("waits" if state is State.WAITING else ""), run_at_ms=later)
        await settle()
        if state is State.CANCELLED:
            await queue.cancel(job.id)
        before = job.record()
        assert before.state is state
        with pytest.raises(EndedError, match=f"is {state.value}; only a job whose outcome is unknown"):
            await queue.resolve(job.id, word)
        assert job.record() == before


async def test_two_who_resolve_at_once_do_not_both_have_their_way(rig: Rig, autojump_clock: MockClock) -> None:
    world = World()
    world.fails = ["no answer"]
    refused: list[str] = []
    async with rig.open(world.register, memory=True) as queue:
        job = await queue.submit("pay", Note("bob"))
        await settle()

        async def resolve(to: State) -> None:
            try:
                await queue.resolve(job.id, to)
            except EndedError as error:
                refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for to in (State.SUCCEEDED, State.FAILED, State.QUEUED):
                nursery.start_soon(resolve, to)
        assert len(refused) == 2


async def test_a_job_may_be_said_to_have_succeeded_without_knowing_its_result(
    rig: Rig, autojump_clock: MockClock
) -> None:
    world = World()
    world.fails = ["no answer"]
    async with rig.open(world.register) as queue:
        job = await queue.submit("pay", Note("bob"))
        await settle()
        await queue.resolve(job.id, State.SUCCEEDED, reason="it is in the bank's book")
        assert (job.record().state, job.record().result) == (State.SUCCEEDED, None)
        with pytest.raises(JobWithoutResultError, match="in the bank's book"):
            await job.result()
    async with rig.open(world.register) as queue:
        with pytest.raises(JobWithoutResultError, match="in the bank's book"):
            await queue.job(job.id).result()
    assert world.runs == 1


async def test_what_a_restored_file_cannot_tell_may_be_tried_again_by_a_persons_word(
    rig: Rig, autojump_clock: MockClock, tmp_path: Path
) -> None:
    world = World()
    world.bank_tells = False
    async with rig.open(world.register) as queue:
        job = await queue.submit("pay", Note("bob"), run_at_ms=START_MS + 10_000)
        await rig.database.back_up(tmp_path / "backup.db")
    (tmp_path / "backup.db").rename(rig.path)
    async with rig.open(world.register) as queue:
        with pytest.raises(JobOutcomeUnknownError, match="to bob"):
            await queue.job(job.id).result()
        assert [(it.key, it.note) for it in queue.story(job.id).effects] == [("pay", "to bob")]
        await queue.resolve(job.id, State.QUEUED, reason="bob has nothing")
        assert await queue.job(job.id).result() == "receipt"
    assert world.payments == {"bob": 1}


async def test_a_retry_after_a_restore_looks_before_it_tries(
    rig: Rig, autojump_clock: MockClock, tmp_path: Path
) -> None:
    fail = True
    payments: list[str] = []

    def register(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Note) -> str:
            if fail:
                raise PermanentError("the door is shut")

            async def try_() -> str:
                payments.append(args.text)
                return "receipt"

            async def look_up() -> Happened[str] | Looked:
                return Happened("receipt") if payments else Looked.NOT_HAPPENED

            return await context.effect("pay", try_, look_up)

    async with rig.open(register) as queue:
        job = await queue.submit("pay", Note("bob"))
        await settle()
        await rig.database.back_up(tmp_path / "backup.db")
        fail = False
        assert await (await queue.retry(job.id)).result() == "receipt"  # the backup knows nothing of it
    (tmp_path / "backup.db").rename(rig.path)
    async with rig.open(register) as queue:
        assert await (await queue.retry(job.id)).result() == "receipt"
    assert payments == ["bob"]


async def test_the_time_that_a_person_takes_is_not_the_jobs(rig: Rig, autojump_clock: MockClock) -> None:
    come = False
    tried: list[int] = []

    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Note) -> int:
            async def try_() -> None:
                tried.append(context.attempt)
                if len(tried) == 1:
                    raise PermanentError("no answer")

            async def look_up() -> Happened[None] | Looked:
                return Looked.CANNOT_TELL

            async def give_up() -> None:
                await context.wait_until("news", lambda: come, timeout_s=100)

            with trio.move_on_after(1):
                await give_up()
            await context.effect("send", try_, look_up)
            return context.attempt

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("wait", Note("x"))
        with pytest.raises(JobOutcomeUnknownError):
            await job.result()
        await trio.sleep(10_000)
        await queue.resolve(job.id, State.QUEUED)
        assert await job.result() == 2


# Watching


async def test_many_watchers_of_one_job_all_see_all_of_it(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        seen: list[list[State]] = []

        async def watch(job_id: str) -> None:
            seen.append([event.state async for event in queue.watch(job_id)])

        job = await queue.submit("add", Add(1, 2))
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(watch, job.id)
        assert seen == [[State.QUEUED, State.RUNNING, State.SUCCEEDED]] * 5


async def test_a_watch_that_goes_on_after_the_end_ends(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.open(adding, memory=True) as queue:
        job = await queue.submit("add", Add(1, 2))
        numbers = [event.number async for event in queue.watch(job.id)]
        for after, rest in ((numbers[0], numbers[1:]), (numbers[-1], [])):
            with trio.fail_after(1):
                assert [event.number async for event in queue.watch(job.id, after=after)] == rest


async def test_a_watch_of_a_job_that_is_forgotten_meanwhile_says_so(rig: Rig, autojump_clock: MockClock) -> None:
    retention = Retention(succeeded_s=10, sweep_every_s=5)
    async with rig.open(adding, memory=True, retention=retention) as queue:
        job = await queue.submit("add", Add(1, 2))
        watch = queue.watch(job.id)
        assert (await anext(watch)).state is State.QUEUED
        await job.result()
        slow = queue.watch(job.id, after=0)
        await trio.sleep(100)
        with pytest.raises(NotFoundError), trio.fail_after(1):
            async for _ in slow:
                pass


async def test_a_watch_of_a_rare_kind_does_not_look_twice_at_the_others(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("rare", version=1)
        async def rare(context: Context, args: Note) -> None: ...

    async with rig.open(register, memory=True) as queue:
        watch = queue.watch(kind="rare")
        with trio.move_on_after(5):
            await anext(watch)
        for number in range(200):
            await queue.submit("add", Add(number, 0))
        with trio.move_on_after(5):
            await anext(watch)
        last = rig.database.read(lambda c: c.execute("SELECT max(number) FROM job_event").fetchone()[0])
        assert watch._after == last
        await queue.submit("rare", Note("x"))
        assert (await anext(watch)).kind == "rare"


async def test_a_watch_from_a_number_that_is_yet_to_come_begins_now(rig: Rig, autojump_clock: MockClock) -> None:
    """A file that was put back counts on from an earlier number than its watchers know."""
    async with rig.open(adding, memory=True) as queue:
        watch = queue.watch(after=10**9)
        job = await queue.submit("add", Add(1, 2))
        with trio.fail_after(1):
            assert (await anext(watch)).job_id == job.id
        assert await job.result() == Sum(3)
