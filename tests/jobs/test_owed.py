"""Writes that are owed: a disk that refuses is asked until it takes them, in their order."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import (
    BugError,
    Context,
    DamagedError,
    DiskError,
    FullError,
    InlineBlocking,
    Queue,
    State,
    open_database,
    tables,
)
from p2pmem_jobs.database import Database
from trio.testing import MockClock, wait_all_tasks_blocked

from .conftest import Add, Note, Rig, Sum, adding
from .notes import NOTES, add, texts

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


async def test_one_of_several_owed_writes_that_raises_takes_back_its_own_part_alone(tmp_path: Path) -> None:
    errors: list[str] = []
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)

        def fail(connection: sqlite3.Connection) -> None:
            add("never")(connection)
            raise ValueError("its own fault")

        async def owe(write: Callable[[sqlite3.Connection], object]) -> None:
            try:
                await database.write(write, owed=True)
            except ValueError as error:
                errors.append(str(error))

        before = database.statistics()
        async with trio.open_nursery() as nursery:
            for write in (add("one"), fail, add("two"), fail, add("three")):
                nursery.start_soon(owe, write)
        after = database.statistics()
        assert sorted(database.read(texts)) == ["one", "three", "two"]
        assert errors == ["its own fault"] * 2
        assert (after.operations - before.operations, after.failed - before.failed) == (3, 2)
        assert after.failed_commits == 0


async def test_nothing_of_a_group_is_stored_where_one_of_it_hides_that_its_transaction_has_ended(
    tmp_path: Path,
) -> None:
    raised: list[type[Exception]] = []

    def hide(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            add(LARGE)(connection)  # SQLite takes back the whole transaction

    async def owe(write: Callable[[sqlite3.Connection], object]) -> None:
        try:
            await database.write(write, owed=True)
        except BugError as error:
            raised.append(type(error))

    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        fill(database)
        async with trio.open_nursery() as nursery:
            for write in (hide, *(add(str(number)) for number in range(20)), hide):
                nursery.start_soon(owe, write)
        assert database.read(texts) == []
    assert raised == [BugError] * 22


async def test_a_sync_that_failed_is_not_tried_again_by_itself_for_what_is_owed(tmp_path: Path) -> None:
    failures = [sqlite3.OperationalError("disk I/O error")]
    failures[0].sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC

    def fail_once(connection: sqlite3.Connection) -> None:
        if failures:
            raise failures.pop()
        add("no")(connection)

    async def use() -> None:
        async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
            await database.migrate("notes", NOTES)
            with pytest.raises(DiskError, match="failed to sync"):
                await database.write(fail_once, owed=True)
            await trio.sleep_forever()

    with pytest.raises(DiskError, match="open the file again"):
        await use()
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        assert database.read(texts) == []


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


def damaged(_: sqlite3.Connection) -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    raise error


def full_queue(_: sqlite3.Connection) -> None:
    raise FullError("the queue is full")


@pytest.mark.parametrize(("write", "error"), [(damaged, DamagedError), (full_queue, FullError)])
async def test_what_no_waiting_helps_is_told_at_once_and_holds_nobody_up(
    tmp_path: Path, clock: MockClock, write: Callable[[sqlite3.Connection], None], error: type[Exception]
) -> None:
    del clock
    ended: list[str] = []

    async def owe(database: Database) -> None:
        with pytest.raises(error):
            await database.write(write, owed=True)
        await database.write(add("x"), owed=True)
        ended.extend(database.read(texts))

    async with trio.open_nursery() as nursery, open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        nursery.start_soon(owe, database)
        await trio.sleep(0.5)
        assert ended == ["x"]


async def test_what_is_owed_and_has_room_is_not_held_up_by_writes_that_have_none(
    tmp_path: Path, clock: MockClock
) -> None:
    del clock

    async def ask(database: Database) -> None:
        while True:
            with pytest.raises(DiskError):
                await database.write(add(LARGE))

    async with trio.open_nursery() as nursery, open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        fill(database)
        with trio.move_on_at(60) as scope:
            async with trio.open_nursery() as asking:
                for _ in range(5):
                    asking.start_soon(ask, database)
                nursery.start_soon(lambda: database.write(add("small"), lambda _: scope.cancel(), owed=True))
        assert trio.current_time() < 10
        assert database.read(texts) == ["small"]


async def test_a_full_disk_can_be_backed_up_to_another_one_and_checkpointed(tmp_path: Path, clock: MockClock) -> None:
    del clock

    async def owe(database: Database) -> None:
        with pytest.raises(DiskError):
            await database.write(add(LARGE), owed=True)

    async with trio.open_nursery() as nursery, open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("before"))
        fill(database)
        nursery.start_soon(owe, database)
        await trio.sleep(1.5)
        with trio.fail_after(3):
            await database.back_up(tmp_path / "other.db")
            await database.checkpoint()
        assert database.read(texts) == ["before"]
    async with open_database(tmp_path / "other.db", blocking=InlineBlocking()) as copy:
        assert copy.read(texts) == ["before"]


async def test_nothing_that_is_owed_is_stored_after_something_that_was_lost(tmp_path: Path, clock: MockClock) -> None:
    del clock
    refused: list[str] = []
    async with trio.open_nursery() as nursery, open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        fill(database)

        async def owe(text: str) -> None:
            with pytest.raises(DiskError, match="full"):
                await database.write(add(text), owed=True)
            refused.append(text[:5])

        for text in (LARGE, "after"):
            nursery.start_soon(owe, text)
            await wait_all_tasks_blocked()
        await trio.sleep(2)
        database.let_go()
        await wait_all_tasks_blocked()
        await owe("later")
        await database.write(add("owes nothing"))
        assert database.read(texts) == ["owes nothing"]
    assert sorted(refused) == ["after", "later", "xxxxx"]


async def test_a_disk_that_stays_full_fills_no_log(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del clock
    caplog.set_level(logging.INFO)
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database, trio.open_nursery() as nursery:
        await database.migrate("notes", NOTES)
        make_room = fill(database)
        nursery.start_soon(lambda: database.write(add(LARGE), owed=True))
        await trio.sleep(590)
        make_room()
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("database.")]
    assert said == ["database.refused"] * 10 + ["database.refuses_no_more"]
    assert "full" in caplog.records[0].error  # type: ignore[attr-defined]


async def test_a_step_that_is_owed_is_stored_in_its_order_also_of_a_job_that_was_cancelled(
    rig: Rig, autojump_clock: MockClock
) -> None:
    told: list[str] = []

    def register(queue: Queue) -> None:
        @queue.handler("note", version=1)
        async def note(context: Context, args: Note) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await context.step_rows("note it", add(args.text), after=lambda _: told.append("step"), owed=True)

    async with rig.open(register) as queue, trio.open_nursery() as nursery:
        await rig.database.migrate("notes", NOTES)
        job = await queue.submit("note", Note(LARGE))
        await trio.sleep(0.5)
        await queue.cancel(job.id)
        make_room = fill(rig.database)
        await trio.sleep(1)
        nursery.start_soon(lambda: rig.database.write(add("after it"), lambda _: told.append("after"), owed=True))
        await trio.sleep(5)
        assert told == []
        make_room()
        await trio.sleep(2)
        assert queue.get(job.id).state is State.CANCELLED
        assert queue.story(job.id).steps == ()
        assert rig.database.read(texts) == [LARGE, "after it"]
        assert told == ["step", "after"]


async def test_a_claim_that_fails_for_long_fills_no_log(
    rig: Rig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise DiskError("full")

    async with rig.open(adding) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(tables, "claim", refuse)
            job = await queue.submit("add", Add(1, 2))
            await trio.sleep(590)
        assert await job.result() == Sum(3)
    assert [record.getMessage() for record in caplog.records] == ["queue.claim_failed"] * 10
