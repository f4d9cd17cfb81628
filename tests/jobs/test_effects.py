"""Effects outside: at most once, looked up when in doubt, and a person's word where looking does not tell."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import (
    Context,
    EndedError,
    Happened,
    JobFailedError,
    JobOutcomeUnknownError,
    Looked,
    MisuseError,
    NotDoneError,
    PermanentError,
    Queue,
    QueueLimits,
    State,
    TransientError,
)
from trio.testing import MockClock

from .conftest import START_MS, Register, Rig, settle


@dataclass(frozen=True)
class Pay:
    to: str
    amount: int


@dataclass
class World:
    """What is outside. `fails` says what happens to the next tries; `blind` that looking tells nothing."""

    payments: list[str] = field(default_factory=list)
    fails: list[str] = field(default_factory=list)
    blind: bool = False
    looks: int = 0
    tries: int = 0
    after: Exception | None = None

    async def pay(self, to: str) -> str:
        self.tries += 1
        how = self.fails.pop(0) if self.fails else ""
        if how == "not done":
            raise NotDoneError("the door was shut")
        if how == "lost":
            raise OSError("connection reset before it was sent")
        if how == "hangs":
            await trio.sleep_forever()
        self.payments.append(to)
        if how == "no answer":
            raise OSError("connection reset after it was sent")
        if how == "done, then hangs":
            await trio.sleep_forever()
        return f"receipt {to}"

    async def look(self, to: str) -> Happened[str] | Looked:
        self.looks += 1
        if self.blind:
            return Looked.CANNOT_TELL
        return Happened(f"receipt {to}") if to in self.payments else Looked.NOT_HAPPENED


def paying(world: World) -> Register:
    def register(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Pay) -> str:
            receipt = await context.effect(
                "pay", lambda: world.pay(args.to), lambda: world.look(args.to), note=f"to {args.to}"
            )
            if world.after is not None:
                raise world.after
            return receipt

    return register


async def test_an_effect_happens_once_and_its_result_is_kept(rig: Rig, autojump_clock: MockClock) -> None:
    world = World(after=TransientError("later"))
    async with rig.open(paying(world), memory=True) as queue:
        job = await queue.submit("pay", Pay("bob", 5))
        await settle()
        world.after = None
        assert await job.result() == "receipt bob"
        assert (job.record().attempt, world.payments, world.looks) == (2, ["bob"], 0)
        (effect,) = queue.story(job.id).effects
        assert (effect.key, effect.note, effect.state) == ("pay", "to bob", "done")


@pytest.mark.parametrize(
    ("fails", "tries", "looks"),
    [(["no answer"], 1, 1), (["lost", "lost"], 3, 2), (["not done", "not done"], 3, 0), (["lost", "no answer"], 2, 2)],
)
async def test_an_effect_without_an_answer_is_looked_up_before_it_is_tried_again(
    rig: Rig, autojump_clock: MockClock, fails: list[str], tries: int, looks: int
) -> None:
    world = World(fails=fails)
    async with rig.open(paying(world), memory=True) as queue:
        assert await (await queue.submit("pay", Pay("bob", 5))).result() == "receipt bob"
    assert (world.payments, world.tries, world.looks) == (["bob"], tries, looks)


@pytest.mark.parametrize("happened", [True, False])
async def test_what_looking_cannot_tell_asks_a_person_who_may_have_it_tried_again(
    rig: Rig, autojump_clock: MockClock, happened: bool
) -> None:
    world = World(fails=["no answer" if happened else "lost"], blind=True)
    async with rig.open(paying(world), memory=True) as queue:
        job = await queue.submit("pay", Pay("bob", 5), dedupe_key="k")
        with pytest.raises(JobOutcomeUnknownError, match="to bob"):
            await job.result()
        record = job.record()
        assert record.state is State.OUTCOME_UNKNOWN
        assert not record.ended
        assert (await queue.submit("pay", Pay("bob", 5), dedupe_key="k")).id == job.id
        with pytest.raises(EndedError):
            await queue.cancel(job.id)
        with pytest.raises(EndedError):
            await queue.retry(job.id)
        with pytest.raises(MisuseError):
            await queue.resolve(job.id, State.CANCELLED)
        world.blind = False
        await queue.resolve(job.id, State.QUEUED, reason="the bank says that it did not arrive")
        assert await job.result() == "receipt bob"
    # the person was asked, and even so it was looked up once more
    assert world.payments == ["bob"]


async def test_a_person_may_say_what_came_of_a_job(rig: Rig, autojump_clock: MockClock) -> None:
    world = World(fails=["lost", "lost"], blind=True)
    async with rig.open(paying(world), memory=True) as queue:
        good = await queue.submit("pay", Pay("bob", 5))
        bad = await queue.submit("pay", Pay("eve", 5))
        for job in (good, bad):
            with pytest.raises(JobOutcomeUnknownError):
                await job.result()
        with pytest.raises(MisuseError, match="should be str"):
            await queue.resolve(good.id, State.SUCCEEDED, result=5)
        await queue.resolve(good.id, State.SUCCEEDED, result="receipt, on paper")
        await queue.resolve(bad.id, State.FAILED, reason="never sent")
        assert await good.result() == "receipt, on paper"
        with pytest.raises(JobFailedError, match="never sent"):
            await bad.result()
        with pytest.raises(EndedError, match="only a job whose outcome is unknown"):
            await queue.resolve(bad.id, State.SUCCEEDED)


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
@pytest.mark.parametrize("fails", ["hangs", "done, then hangs"])
async def test_a_job_that_is_stopped_during_an_effect_is_never_just_cancelled_or_failed(
    rig: Rig, autojump_clock: MockClock, how: str, fails: str
) -> None:
    world = World(fails=[fails])
    async with rig.open(paying(world), memory=True) as queue:
        job = await queue.submit("pay", Pay("bob", 5), deadline_ms=START_MS + 60_000 if how == "deadline" else None)
        await settle()
        if how == "cancelled":
            await queue.cancel(job.id)
        with pytest.raises(JobOutcomeUnknownError, match=r"pay \(to bob\)"):
            await job.result()
        await queue.resolve(job.id, State.QUEUED)
        assert await job.result() == "receipt bob"
    assert world.payments == ["bob"]


async def test_a_permanent_error_during_an_effect_leaves_its_outcome_unknown(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Pay) -> str:
            async def try_() -> str:
                raise PermanentError("cannot read the answer")

            async def look_up() -> Happened[str] | Looked:
                return Looked.CANNOT_TELL

            return await context.effect("pay", try_, look_up)

    async with rig.open(register, memory=True) as queue:
        with pytest.raises(JobOutcomeUnknownError, match="cannot read the answer"):
            await (await queue.submit("pay", Pay("bob", 5))).result()


# Restores


async def test_after_a_restore_effects_under_way_are_unknown_and_all_others_are_looked_up_first(
    rig: Rig, autojump_clock: MockClock, tmp_path: Path
) -> None:
    world = World(fails=["done, then hangs"])
    backup = tmp_path / "backup.db"
    async with rig.open(paying(world), drain_s=0) as queue:
        under_way = await queue.submit("pay", Pay("bob", 5))
        later = await queue.submit("pay", Pay("carol", 5), run_at_ms=START_MS + 60_000)
        await settle()
        await rig.database.back_up(backup)
        assert await later.result() == "receipt carol"  # the backup knows nothing of it
    backup.rename(rig.path)
    async with rig.open(paying(world)) as queue:
        record = queue.get(under_way.id)
        assert record.state is State.OUTCOME_UNKNOWN
        assert "restored from a backup" in record.detail
        assert await queue.job(later.id).result() == "receipt carol"
        new = await queue.submit("pay", Pay("dave", 5))
        looks = world.looks
        assert await new.result() == "receipt dave"
        assert world.looks == looks
    async with rig.open(paying(world)) as queue:
        assert queue.get(under_way.id).state is State.OUTCOME_UNKNOWN
    assert Counter(world.payments) == {"bob": 1, "carol": 1, "dave": 1}


# Crash points


@dataclass
class Snapshots:
    """Copies the files at every crash point, as they would be after a kill there, with the world as it then was."""

    path: Path
    folder: Path
    world: World
    taken: list[tuple[str, Path, list[str]]] = field(default_factory=list)

    def take(self, name: str) -> None:
        copy = self.folder / f"{len(self.taken)}.db"
        for suffix in ("", "-wal", ".lock"):
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        self.taken.append((name, copy, list(self.world.payments)))


def story_of_a_payment(world: World, rig: Rig) -> Register:
    """A handler with everything in it: a step, rows, a wait, an effect."""

    def register(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Pay) -> str:
            text = await context.step("text", lambda: f"{args.amount} to {args.to}")
            await context.step_rows(
                "book", lambda c: c.execute("INSERT INTO book VALUES ('booked', ?)", (text,)).rowcount
            )
            await context.sleep("cool down", 10)
            receipt = await context.effect("pay", lambda: world.pay(args.to), lambda: world.look(args.to))
            await context.step_rows(
                "close", lambda c: c.execute("INSERT INTO book VALUES ('closed', ?)", (receipt,)).rowcount
            )
            return receipt

    return register


async def run_payment(rig: Rig, world: World, crash_point: Callable[[str], None]) -> list[tuple[str, str]]:
    async with rig.open(story_of_a_payment(world, rig), crash_point=crash_point) as queue:
        await rig.database.migrate("book", ["CREATE TABLE book(what TEXT, text TEXT) STRICT"])
        job = await queue.submit("pay", Pay("bob", 5), dedupe_key="the only one")
        assert await job.result() == "receipt bob"
        return rig.database.read(lambda c: c.execute("SELECT what, text FROM book ORDER BY rowid").fetchall())


async def test_killed_at_any_point_a_job_ends_as_if_it_had_not_been(
    rig: Rig, autojump_clock: MockClock, tmp_path: Path
) -> None:
    world = World()
    (tmp_path / "copies").mkdir()
    snapshots = Snapshots(rig.path, tmp_path / "copies", world)
    unkilled = await run_payment(rig, world, snapshots.take)
    assert unkilled == [("booked", "5 to bob"), ("closed", "receipt bob")]
    names = [name for name, _, _ in snapshots.taken]
    assert names == [
        "pay/text/before",
        "pay/text/unstored",
        "pay/text/after",
        "pay/book/before",
        "pay/book/after",
        "pay/pay/before",
        "pay/pay/intended",
        "pay/pay/tried",
        "pay/pay/after",
        "pay/close/before",
        "pay/close/after",
        "pay/end/before",
        "pay/end/after",
    ]
    for name, copy, payments in snapshots.taken:
        rig.path = copy
        world.payments = payments
        assert await run_payment(rig, world, lambda _: None) == unkilled, name
        assert world.payments == ["bob"], name


async def test_a_job_that_the_process_always_dies_of_fails_with_its_history(
    rig: Rig, autojump_clock: MockClock, tmp_path: Path
) -> None:
    world = World(fails=["hangs"] * 10)

    def register(queue: Queue) -> None:
        @queue.handler("poison", version=1)
        async def poison(context: Context, args: Pay) -> None:
            await trio.sleep(1)
            snapshots.take("dies")
            await trio.sleep_forever()

        @queue.handler("healthy", version=1)
        async def healthy(context: Context, args: Pay) -> str:
            await context.step(f"step {context.attempt}", lambda: 1)
            await trio.sleep_forever()
            return "never"

    snapshots = Snapshots(rig.path, tmp_path / "copies", world)
    snapshots.folder.mkdir()
    job_ids = []
    for death in range(5):
        snapshots.path = rig.path
        async with rig.open(register, drain_s=0, limits=QueueLimits(deaths=3)) as queue:
            if death == 0:
                healthy = await queue.submit("healthy", Pay("x", 1))
                await settle()
                job_ids = [(await queue.submit("poison", Pay("x", 1))).id, healthy.id]
            await trio.sleep(2)
            if death == 4:
                break
        rig.path = snapshots.taken[-1][1]
    async with rig.open(register, drain_s=0) as queue:
        poison = queue.story(job_ids[0])
        assert poison.job.state is State.FAILED
        assert poison.job.error == "the process died 4 times while it ran"
        assert [event.state for event in poison.events].count(State.RUNNING) == 4
        assert not queue.get(job_ids[1]).ended
