"""Writes that are owed: a disk that refuses is asked until it takes them, in their order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import DiskError, InlineBlocking, open_database
from p2pmem_jobs.database import Database
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.jobs.notes import NOTES, add, texts

LARGE = "x" * 50_000


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def fill(database: Database) -> Callable[[], object]:
    """From now on the disk has no room; returns what makes some."""
    writer = database._files.writer
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0] + 2}")
    return lambda: writer.execute("PRAGMA max_page_count = 1000000")


async def test_what_is_owed_is_stored_once_there_is_room_and_in_its_order(tmp_path: Path, clock: MockClock) -> None:
    del clock
    told: list[str] = []
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database, trio.open_nursery() as nursery:
        await database.migrate("notes", NOTES)
        make_room = fill(database)

        async def owe(text: str) -> None:
            await database.write(add(text), lambda _: told.append(text), owed=True)

        wanted = [LARGE, *(f"{number}" for number in range(5))]
        for text in wanted:
            nursery.start_soon(owe, text)
            await wait_all_tasks_blocked()
        await trio.sleep(60)
        assert told == []
        assert database.read(texts) == []
        assert not database.is_idle
        make_room()
        await trio.sleep(2)
        assert told == wanted
        assert database.read(texts) == wanted


async def test_who_owes_nothing_is_told_that_the_disk_is_full_and_waits_for_nobody(
    tmp_path: Path, clock: MockClock
) -> None:
    del clock
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database, trio.open_nursery() as nursery:
        await database.migrate("notes", NOTES)
        make_room = fill(database)

        async def owe() -> None:
            await database.write(add(LARGE), owed=True)

        nursery.start_soon(owe)
        await wait_all_tasks_blocked()
        for _ in range(3):
            with trio.fail_after(5), pytest.raises(DiskError):
                await database.write(add("not owed"))
        make_room()
        await trio.sleep(2)
        await database.write(add("not owed"))
        assert database.read(texts) == [LARGE, "not owed"]


@pytest.mark.parametrize("how", ["let go", "close"])
async def test_nobody_waits_for_a_full_disk_once_the_database_lets_go(
    tmp_path: Path, clock: MockClock, how: str
) -> None:
    del clock
    ended = trio.Event()

    async def owe(database: Database) -> None:
        with pytest.raises(DiskError):
            await database.write(add(LARGE), owed=True)
        ended.set()

    async with trio.open_nursery() as nursery, open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("before"))
        fill(database)
        nursery.start_soon(owe, database)
        await trio.sleep(5)
        assert not ended.is_set()
        if how == "let go":
            database.let_go()
            with trio.fail_after(0.1):
                await ended.wait()
    assert ended.is_set()
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        assert database.read(texts) == ["before"]


async def test_a_cancelled_caller_waits_for_what_it_owes(tmp_path: Path, clock: MockClock) -> None:
    del clock
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        make_room = fill(database)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: database.write(add(LARGE), owed=True))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
                make_room()
        assert database.read(texts) == [LARGE]
