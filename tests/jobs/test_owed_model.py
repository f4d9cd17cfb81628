"""Writes of both kinds, some cancelled, on a disk that refuses now and then: what is told is what is stored."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_jobs import InlineBlocking, OutsideError, open_database
from p2pmem_jobs.database import Database, Limits
from trio.testing import MockClock

ROUNDS = 60
TABLE = ["CREATE TABLE written(number INTEGER NOT NULL, padding TEXT NOT NULL) STRICT"]


class Flaky(InlineBlocking):
    """A disk and a machine that refuse now and then, while `is_bad`: before a write, in one, or at the commit."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.is_bad = False

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        if getattr(fn, "__name__", "") == "_run_group" and self._fails():
            raise OSError("no thread")
        return await super().run(fn, *args)

    def crash_point(self, point: str) -> None:
        if point == "database.before_commit" and self._fails():
            raise full()

    def _fails(self) -> bool:
        return self.is_bad and self._chance.random() < 0.1


def full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


class Asked:
    """What was asked of a database, in its order, and what came of it."""

    def __init__(self, chance: random.Random, disk: Flaky, database: Database) -> None:
        self._chance = chance
        self._disk = disk
        self._database = database
        self.told: dict[int, str] = {}
        self.after: list[int] = []
        self.owed: list[int] = []  # but for those that fail by their own fault
        self.scopes: list[trio.CancelScope] = []

    async def write(self, number: int, scope: trio.CancelScope) -> None:
        kind = self._chance.choice(("plain", "plain", "large", "faulty", "refused"))
        owed = self._chance.random() < 0.6
        self.told[number] = "nothing"
        if owed and kind != "faulty":
            self.owed.append(number)

        def write(connection: sqlite3.Connection) -> int:
            padding = "x" * (30_000 if kind == "large" else 10)
            connection.execute("INSERT INTO written VALUES (?, ?)", (number, padding))
            if kind == "faulty":
                raise ValueError(number)
            if kind == "refused" and self._disk.is_bad and self._chance.random() < 0.6:
                raise full()
            return number

        with scope:
            try:
                await self._database.write(write, self.after.append, owed=owed)
            except (ValueError, OutsideError):
                self.told[number] = "error"
            else:
                self.told[number] = "stored"
        if scope.cancelled_caught:
            self.told[number] = "withdrawn"

    async def go_on(self, nursery: trio.Nursery) -> None:
        for _ in range(self._chance.randrange(12)):
            self.scopes.append(trio.CancelScope())
            nursery.start_soon(self.write, len(self.scopes), self.scopes[-1])
        if self._chance.random() < 0.3:
            self.make_room(self._chance.randrange(7))
        elif self._chance.random() < 0.3:
            self.make_room(1_000_000)
        if self.scopes and self._chance.random() < 0.4:
            self._chance.choice(self.scopes).cancel()
        await trio.sleep(self._chance.choice((0, 0, 0.3, 1, 2.5)))

    def make_room(self, pages: int) -> None:
        writer = self._database._files.writer
        used = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {used + pages}")


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_what_is_told_of_a_write_is_what_is_stored_and_what_is_owed_has_no_gap(
    seed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    chance = random.Random(seed)
    disk = Flaky(chance)
    limits = Limits(operations_per_commit=chance.choice((1, 2, 5, 256)))
    path = tmp_path / "a.db"
    async with open_database(path, blocking=disk, limits=limits, crash_point=disk.crash_point) as database:
        await database.migrate("written", TABLE)
        asked = Asked(chance, disk, database)
        disk.is_bad = True
        async with trio.open_nursery() as nursery:
            for _ in range(chance.randint(3, 15)):
                await asked.go_on(nursery)
            if chance.random() < 0.5:
                database.let_go()
            else:
                disk.is_bad = False
                asked.make_room(1_000_000)
    async with open_database(path, blocking=InlineBlocking()) as database:
        rows = database.read(lambda c: [row[0] for row in c.execute("SELECT number FROM written ORDER BY rowid")])
    assert sorted(rows) == sorted(number for number, told in asked.told.items() if told == "stored")
    assert "nothing" not in asked.told.values()
    assert rows == asked.after, "each was told once, in the order of the writes"
    stored = [number for number in rows if number in asked.owed]
    assert stored == asked.owed[: len(stored)], "in their order, and without a gap"
