"""Random histories of a queue, with restarts, crashes and restores, against what must hold of any of them.

The files are copied at an instant when nothing is being written, which is what a kill there leaves behind.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from p2pmem_jobs import (
    ConflictError,
    Context,
    Database,
    EndedError,
    Happened,
    InlineBlocking,
    Looked,
    PermanentError,
    Queue,
    QueueLimits,
    RetryPolicy,
    Signal,
    State,
    TransientError,
    TrioClock,
    open_database,
)
from p2pmem_jobs.states import CHANGES, FINAL, HAS_TASK, HOLDS_DEDUPE_KEY

KINDS = ("narrow", "wide")
CONCURRENCY = {"narrow": 1, "wide": 3}
PLANS = ("ok", "flaky", "permanent", "gate", "sleep", "long", "effect", "blind", "broke")
ENDS = {plan: {State.SUCCEEDED} for plan in PLANS} | {"permanent": {State.FAILED}, "broke": {State.FAILED}}


@dataclass(frozen=True)
class Work:
    plan: str
    number: int


@dataclass
class World:
    """What is outside of the queue, and is not taken back by a crash or a restore."""

    gate_open: bool = False
    gate: Signal = field(default_factory=Signal)
    effects: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    running: Counter[str] = field(default_factory=Counter)
    # a retry does what the first of its jobs was to do, and no more
    first: Callable[[str], str] = field(default=lambda job_id: job_id)

    async def work(self, context: Context, args: Work) -> str:
        assert context.attempt >= 1
        await context.step("begin", lambda: args.number)
        if args.plan == "flaky" and self.failed[context.job_id] < 2:
            self.failed[context.job_id] += 1
            raise TransientError("not yet")
        if args.plan == "permanent":
            raise PermanentError("never")
        if args.plan == "gate":
            await context.wait_until("gate", lambda: self.gate_open, on=self.gate)
        if args.plan == "sleep":
            await context.sleep("nap", 40)
        if args.plan == "long":
            self.running[context.kind] += 1
            try:
                assert self.running[context.kind] <= CONCURRENCY[context.kind]
                await trio.sleep(15)
            finally:
                self.running[context.kind] -= 1
        if args.plan in ("effect", "blind", "broke"):
            await context.effect("pay", lambda: self.pay(context, args), lambda: self.look(context, args))
        if args.plan == "broke":
            raise PermanentError("paid, and then no more")
        return f"{args.plan} {args.number}"

    async def pay(self, context: Context, args: Work) -> None:
        await trio.sleep(3)
        first = self.first(context.job_id)
        self.effects[first] += 1
        assert self.effects[first] == 1, "an effect happened twice"
        await trio.sleep(3)
        if args.plan == "blind" or args.number % 2:
            raise OSError("no answer")

    async def look(self, context: Context, args: Work) -> Happened[None] | Looked:
        if args.plan == "blind":
            return Looked.CANNOT_TELL
        return Happened(None) if self.effects[self.first(context.job_id)] else Looked.NOT_HAPPENED


class History:
    """A queue and its world, over starts, crashes and restores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "jobs.db"
        self.clock = TrioClock(1_800_000_000_000)
        self.random = random.Random(1)
        self.world = World(first=self.first)
        self.copies = 0
        self.cancelled: set[str] = set()
        self.backup: Path | None = None
        self.queue: Queue
        self.database: Database

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with open_database(self.path, blocking=InlineBlocking()) as self.database:
            # a kill in every second step is more than any real job sees
            self.queue = Queue(
                self.database,
                clock=self.clock,
                random_bytes=self.random.randbytes,
                limits=QueueLimits(running_jobs=3, deaths=1_000),
            )
            for kind in KINDS:
                self.queue.handler(
                    kind, version=1, concurrency=CONCURRENCY[kind], retry=RetryPolicy(first_s=1, cap_s=5)
                )(self.world.work)
            async with self.queue.run(drain_s=2):
                yield

    def first(self, job_id: str) -> str:
        while (before := self.queue.get(job_id).retry_of) is not None:
            job_id = before
        return job_id

    async def step(self, what: str, a: int, b: int) -> None:
        """One step inside a run of the queue."""
        jobs = await self.queue.list(limit=1_000)
        chosen = jobs[a % len(jobs)].id if jobs else None
        if what == "submit":
            key = f"key {b % 3}" if b % 4 == 0 else None
            work = Work(PLANS[a % len(PLANS)], b)
            try:
                await self.queue.submit(
                    KINDS[b % 2],
                    work,
                    dedupe_key=key,
                    priority=b % 3,
                    run_at_ms=self.clock.now_ms() + (b % 5) * 5_000 if b % 2 else None,
                )
            except ConflictError as conflict:
                holder = self.queue.get(conflict.job_id)
                assert holder.state in HOLDS_DEDUPE_KEY
        elif what == "advance":
            await trio.sleep(1 + a % 20)
        elif what == "cancel" and chosen:
            try:
                await self.queue.cancel(chosen)
                self.cancelled.add(chosen)
            except EndedError:
                assert self.queue.get(chosen).state in FINAL | {State.OUTCOME_UNKNOWN}
        elif what == "retry" and chosen:
            await self.retry(chosen)
        elif what == "pause":
            await self.queue.pause(KINDS[a % 2])
        elif what == "resume":
            await self.queue.resume(KINDS[a % 2])
        elif what == "gate":
            self.world.gate_open = bool(a % 2)
            self.world.gate.notify()
        elif what == "resolve":
            await self.resolve((State.SUCCEEDED, State.FAILED, State.QUEUED)[b % 3])
        elif what == "backup":
            self.backup = self.folder / f"backup {self.copies}"
            self.copies += 1
            await self.database.back_up(self.backup)

    async def retry(self, chosen: str) -> None:
        old = self.queue.get(chosen)
        try:
            new = (await self.queue.retry(chosen)).record()
        except EndedError:
            assert old.state not in (State.FAILED, State.CANCELLED)
        except ConflictError:
            assert old.dedupe_key is not None
        else:
            assert old.state in (State.FAILED, State.CANCELLED)
            assert self.first(new.id) == self.first(chosen) or new.dedupe_key == old.dedupe_key is not None
        live = [it for it in await self.queue.list(limit=1_000) if it.state not in (State.FAILED, State.CANCELLED)]
        beside = Counter(self.first(it.id) for it in live)
        assert not beside or max(beside.values()) == 1, "a job and its retry stand beside one another"

    async def resolve(self, to: State) -> None:
        for job in await self.queue.list(states={State.OUTCOME_UNKNOWN}, limit=1_000):
            if to is State.QUEUED and self.world.effects[self.first(job.id)]:
                continue  # the person looks, before the word is given
            await self.queue.resolve(job.id, to, **({"result": "by hand"} if to is State.SUCCEEDED else {}))
            self.cancelled.add(job.id)  # a person decided; any end will do

    def copy(self) -> Path:
        """The files as a kill now would leave them, lock file and all."""
        self.copies += 1
        to = self.folder / f"{self.copies}.db"
        for suffix in ("", "-wal", ".lock"):
            if (source := self.path.with_name(self.path.name + suffix)).exists():
                shutil.copyfile(source, to.with_name(to.name + suffix))
        return to

    async def check(self) -> None:
        """What holds at every instant."""
        keys: Counter[tuple[str, str]] = Counter()
        states: Counter[State] = Counter()
        listed = await self.queue.list(limit=1_000)
        await trio.testing.wait_all_tasks_blocked()
        for story in [self.queue.story(job.id) for job in listed]:
            job, events = story.job, story.events
            states[job.state] += 1
            assert events[0].state is State.QUEUED
            for before, after in pairwise(events):
                assert after.state in CHANGES[before.state], (before, after)
                assert after.attempt == before.attempt + (after.state is State.RUNNING and before.state is State.QUEUED)
                assert after.at_ms >= before.at_ms
            assert events[-1].state is job.state
            assert (job.ended_ms is not None) == (job.state in FINAL)
            assert (job.state is State.CANCELLED) <= (job.id in self.cancelled)
            if job.dedupe_key is not None and job.state in HOLDS_DEDUPE_KEY:
                keys[job.kind, job.dedupe_key] += 1
        assert not keys or max(keys.values()) == 1
        statistics = self.queue.statistics()
        assert statistics.ended == sum(states[state] for state in FINAL)
        assert statistics.live == sum(states.values()) - statistics.ended
        assert statistics.running_here <= 3

    async def finish(self) -> None:
        """Lets everything end, and looks at how it ended."""
        self.world.gate_open = True
        self.world.gate.notify()
        for kind in KINDS:
            await self.queue.resume(kind)
        for _ in range(3):
            await trio.sleep(2_000)
            await self.resolve(State.SUCCEEDED)
        for job in await self.queue.list(limit=1_000):
            plan = job.args.split('"plan":"')[1].split('"')[0]
            assert job.state in FINAL, job
            assert job.state in ENDS[plan] or job.id in self.cancelled, job
        assert not any(job.state in HAS_TASK for job in await self.queue.list(limit=1_000))


STEPS = ("submit", "submit", "submit", "advance", "advance", "cancel", "pause", "resume", "gate", "resolve", "backup")
STEPS += ("retry", "retry")
small = st.integers(0, 40)
starts = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(STEPS), small, small), max_size=12),
        st.sampled_from(["stop", "crash", "crash", "restore"]),
    ),
    min_size=1,
    max_size=4,
)


async def live(history: History, plan: list[tuple[list[tuple[str, int, int]], str]]) -> None:
    for steps, end in plan:
        copy: Path | None = None
        async with history.open():
            await history.check()
            for what, a, b in steps:
                await history.step(what, a, b)
                await trio.testing.wait_all_tasks_blocked()
                await history.check()
            if end == "crash":
                copy = history.copy()
                effects, failed = history.world.effects.copy(), history.world.failed.copy()
        if copy is not None:
            history.path = copy
            history.world.effects, history.world.failed = effects, failed
        elif end == "restore" and history.backup is not None:
            shutil.copyfile(history.backup, history.path)
    async with history.open():
        await history.finish()
        await history.check()


@settings(max_examples=int(os.environ.get("P2PMEM_HISTORIES", "60")))
@given(starts)
def test_whatever_happens_to_it_a_queue_keeps_its_promises(
    plan: list[tuple[list[tuple[str, int, int]], str]],
) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:

        async def main() -> None:
            await live(History(Path(folder)), plan)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
