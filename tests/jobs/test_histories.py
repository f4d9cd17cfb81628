"""Random histories of writes: a disk that fills up and gets room, callers that are cancelled, ends of all sorts."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
import trio
from p2pmem_jobs import Database, InlineBlocking, JobsError, Limits, open_database
from trio.testing import MockClock

HISTORIES = 2_000 if os.environ.get("P2PMEM_LONG") else 100
KINDS = ("owed", "owed", "plain", "shield", "raises", "alone")
ENDS = ("room", "let go", "close")


class Unsteady(InlineBlocking):
    """Commits take their time, and now and then there is no thread for one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_steady = True

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        await trio.sleep(self._chance.choice([0, 0, 0.01, 0.5]))
        if not self.is_steady and getattr(fn, "__name__", "") == "_run_group" and self._chance.random() < 0.02:
            raise RuntimeError("there is no thread")
        return await super().run(fn, *args)


class History:
    """What was asked for, in order, and what came of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.room = 10
        self.kinds: list[str] = []
        self.outcomes: dict[int, str] = {}
        self.told: list[int] = []
        self.scopes: list[trio.CancelScope] = []

    async def write(self, database: Database, number: int, kind: str, size: int) -> None:
        def fn(connection: sqlite3.Connection) -> int:
            if size > self.room:
                full = sqlite3.OperationalError("database or disk is full")
                full.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise full
            if kind == "raises":
                raise ValueError("on purpose")
            connection.execute("INSERT INTO note VALUES (?)", (number,))
            return number

        outcome = "cancelled"
        try:
            with self.scopes[number]:
                if kind == "alone":
                    await database.checkpoint()
                else:
                    await database.write(fn, self.told.append, owed=kind == "owed", shield=kind == "shield")
                outcome = "stored"
        except (JobsError, ValueError) as error:
            outcome = type(error).__name__
        self.outcomes[number] = outcome

    async def ask(self, database: Database, nursery: trio.Nursery) -> None:
        chance = self.chance
        for _ in range(chance.randrange(5, 60)):
            for _ in range(chance.randrange(6)):
                number, kind = len(self.kinds), chance.choice(KINDS)
                self.kinds.append(kind)
                self.scopes.append(trio.CancelScope())
                nursery.start_soon(self.write, database, number, kind, chance.choice([1, 1, 5, 20]))
                await trio.testing.wait_all_tasks_blocked()  # so that they ask one after the other
            if chance.random() < 0.3:
                self.room = chance.choice([0, 1, 5, 30])
            if self.scopes and chance.random() < 0.3:
                chance.choice(self.scopes).cancel()
            await trio.sleep(chance.choice([0, 0.001, 0.3, 1.1, 5]))

    def check(self, end: str, stored: list[int]) -> None:
        assert self.told == stored, "who writes is told in the order of the commits"
        owed = [number for number, kind in enumerate(self.kinds) if kind == "owed"]
        kept = [number for number in stored if self.kinds[number] == "owed"]
        assert kept == owed[: len(kept)], "what is owed is stored in the order in which it was asked for, without a gap"
        if end == "room":
            assert kept == owed, "with room, all that is owed is stored"
        for number, outcome in self.outcomes.items():
            if self.kinds[number] != "alone":
                assert (outcome == "stored") == (number in stored), "what raises has stored nothing"
            if self.kinds[number] in ("owed", "shield"):
                assert outcome != "cancelled"


async def live(seed: int) -> None:
    history = History(seed)
    end = history.chance.choice(ENDS)
    limits = Limits(operations_per_commit=history.chance.choice([1, 3, 256]))
    blocking = Unsteady(history.chance)
    async with trio.open_nursery() as nursery:
        async with open_database(":memory:", blocking=blocking, limits=limits) as database:
            await database.migrate("notes", ["CREATE TABLE note(number INTEGER) STRICT"])
            blocking.is_steady = False
            await history.ask(database, nursery)
            if end == "room":
                history.room = 100
            elif end == "let go":
                database.let_go()
            if end != "close":
                await trio.sleep(100)
                assert len(history.outcomes) == len(history.kinds), "nobody hangs"
            stored = database.read(lambda c: [row[0] for row in c.execute("SELECT number FROM note ORDER BY rowid")])
            known = len(history.told)
        await trio.sleep(10)
        assert len(history.outcomes) == len(history.kinds), "nobody hangs"
    history.check(end, stored + history.told[known:])


@pytest.mark.parametrize("part", range(5))
def test_whatever_happens_what_is_owed_is_stored_in_its_order_and_nobody_hangs(part: int) -> None:
    for seed in range(part * HISTORIES // 5, (part + 1) * HISTORIES // 5):
        try:
            trio.run(live, seed, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
