"""The group-commit writer, alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from p2pmem_jobs.blocking import Blocking, InlineBlocking, ThreadBlocking
from p2pmem_jobs.clock import SystemClock, TrioClock
from p2pmem_jobs.database import Database, Limits, open_database
from p2pmem_jobs.errors import BugError, ClosedError, DiskError, MisuseError

from .notes import NOTES, add, texts


@pytest.fixture(params=["thread, file", "inline, file", "thread, memory", "inline, memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Blocking, Path | str]:
    how, where = request.param.split(", ")
    return (
        ThreadBlocking() if how == "thread" else InlineBlocking(),
        tmp_path / "notes.db" if where == "file" else ":memory:",
    )


class Gate(InlineBlocking):
    """Holds a group back until it is opened, so that a test sees what happens while a commit is under way."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.opened = trio.Event()
        self.holds = False

    async def run(self, fn, *args):  # type: ignore[no-untyped-def]
        if self.holds:
            self.reached.set()
            await self.opened.wait()
        return await super().run(fn, *args)


async def test_a_write_is_seen_by_every_read_that_begins_after_it_returned(place: tuple[Blocking, Path | str]) -> None:
    blocking, path = place
    async with open_database(path, blocking=blocking) as database:
        await database.migrate("notes", NOTES)
        assert await database.write(add("one")) == 1
        assert database.read(texts) == ["one"]
        assert await database.read_slowly(texts) == ["one"]


async def test_an_error_takes_back_its_own_part_of_the_group_and_reaches_its_own_caller(
    place: tuple[Blocking, Path | str],
) -> None:
    blocking, path = place
    raised: list[str] = []
    async with open_database(path, blocking=blocking) as database:
        await database.migrate("notes", NOTES)

        def half(connection: sqlite3.Connection) -> None:
            add("half")(connection)
            raise ValueError("on purpose")

        async def fail(write: Callable[[sqlite3.Connection], object]) -> None:
            try:
                await database.write(write)
            except (ValueError, sqlite3.IntegrityError) as error:
                raised.append(type(error).__name__)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(database.write, add(str(number)))
            nursery.start_soon(fail, half)
            nursery.start_soon(fail, lambda connection: connection.execute("INSERT INTO note(text) VALUES (NULL)"))
        statistics = database.statistics()
        assert sorted(database.read(texts)) == sorted(map(str, range(50)))
    assert sorted(raised) == ["IntegrityError", "ValueError"]
    assert statistics.failed == 2
    assert statistics.operations == 51
    assert statistics.commits < 20


async def test_writers_that_come_during_a_commit_share_the_next_one() -> None:
    blocking = Gate()
    async with open_database(":memory:", blocking=blocking, limits=Limits(operations_per_commit=8)) as database:
        await database.migrate("notes", NOTES)
        blocking.holds = True
        before = database.statistics().commits
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(database.write, add(str(number)))
            await blocking.reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert database.read(texts) == []
            blocking.opened.set()
        assert database.statistics().commits - before <= 4
        assert database.statistics().largest_group == 8


async def test_callbacks_run_after_the_commit_in_its_order_and_before_the_callers_go_on() -> None:
    seen: list[tuple[int, int]] = []
    went_on: list[int] = []
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)

        async def one(number: int) -> None:
            def after(row: int) -> None:
                assert not went_on
                seen.append((row, len(database.read(texts))))

            await database.write(add(str(number)), after=after)
            went_on.append(number)
            assert len(seen) == 10

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one, number)
    assert [row for row, _ in seen] == list(range(1, 11))
    assert {count for _, count in seen} == {10}


async def test_a_cancelled_write_that_waits_is_withdrawn_and_one_that_has_begun_completes() -> None:
    blocking = Gate()
    results: list[int] = []
    async with open_database(":memory:", blocking=blocking) as database:
        await database.migrate("notes", NOTES)
        blocking.holds = True
        begun, waiting = trio.CancelScope(), trio.CancelScope()

        async def write(text: str, scope: trio.CancelScope) -> None:
            with scope:
                results.append(await database.write(add(text)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "begun", begun)
            await blocking.reached.wait()
            nursery.start_soon(write, "waiting", waiting)
            await trio.testing.wait_all_tasks_blocked()
            begun.cancel()
            waiting.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.cancelled_caught
            assert not begun.cancelled_caught
            blocking.opened.set()
        assert database.read(texts) == ["begun"]
        assert results == [1]
        assert database.statistics().waiting == 0


async def test_a_shielded_write_is_never_withdrawn() -> None:
    blocking = Gate()
    async with open_database(":memory:", blocking=blocking) as database:
        await database.migrate("notes", NOTES)
        blocking.holds = True

        async def write(text: str) -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await database.write(add(text), shield=True)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(write, str(number))
            await blocking.reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            blocking.opened.set()
        assert sorted(database.read(texts)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["plain", "shield", "owed"])
async def test_however_many_writes_wait_they_are_stored_in_the_order_in_which_they_were_asked_for(kind: str) -> None:
    blocking = Gate()
    many = 4_400
    asked: list[str] = []
    async with open_database(":memory:", blocking=blocking) as database:
        await database.migrate("notes", NOTES)
        blocking.holds = True

        async def one(number: int) -> None:
            asked.append(str(number))
            await database.write(add(str(number)), shield=kind == "shield", owed=kind == "owed")

        async with trio.open_nursery() as nursery:
            for number in range(many):
                nursery.start_soon(one, number)
            await trio.testing.wait_all_tasks_blocked()
            blocking.opened.set()
        assert database.read(texts) == asked


async def test_a_write_cannot_end_the_transaction_or_change_settings(place: tuple[Blocking, Path | str]) -> None:
    blocking, path = place
    async with open_database(path, blocking=blocking) as database:
        await database.migrate("notes", NOTES)
        for bad in (
            lambda c: c.commit(),
            lambda c: c.execute("COMMIT"),
            lambda c: c.execute("ROLLBACK"),
            lambda c: c.execute("RELEASE operation"),
            lambda c: c.execute("ROLLBACK TO operation"),
            lambda c: c.executescript("CREATE TABLE t(x)"),
            lambda c: c.execute("PRAGMA synchronous = OFF"),
            lambda c: c.execute("ATTACH ':memory:' AS other"),
        ):

            def write(connection: sqlite3.Connection, bad: Callable[[sqlite3.Connection], object] = bad) -> None:
                add("half")(connection)
                bad(connection)

            with pytest.raises(MisuseError):
                await database.write(write)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.write, add("good"))
        assert database.read(texts) == ["good"]


async def test_an_async_function_is_no_write() -> None:
    async def write(connection: sqlite3.Connection) -> None: ...

    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        with pytest.raises(MisuseError, match="async"):
            await database.write(write)


async def test_a_read_cannot_write_and_may_read_within(place: tuple[Blocking, Path | str]) -> None:
    blocking, path = place
    async with open_database(path, blocking=blocking) as database:
        await database.migrate("notes", NOTES)
        with pytest.raises((sqlite3.OperationalError, DiskError), match="readonly"):
            database.read(add("no"))
        await database.write(add("yes"))
        assert database.read(lambda _: database.read(texts)) == ["yes"]
        with pytest.raises(MisuseError, match="connection that it is given"):
            await database.write(lambda _: database.read(texts))


async def test_a_cancelled_scan_is_interrupted(tmp_path: Path) -> None:
    def for_ever(connection: sqlite3.Connection) -> object:
        sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        began.set()
        return connection.execute(sql).fetchone()

    class Flag:
        def set(self) -> None:
            trio.from_thread.run_sync(scope.cancel)

    began = Flag()
    async with open_database(tmp_path / "a.db", blocking=ThreadBlocking()) as database:
        with trio.CancelScope() as scope:
            await database.read_slowly(for_ever)
        assert scope.cancelled_caught
        assert await database.read_slowly(lambda c: c.execute("SELECT 1").fetchone()) == (1,)


async def test_a_callback_that_raises_is_a_bug_and_leaves_nobody_hanging() -> None:
    def bad(_: object) -> None:
        raise ValueError("on purpose")

    async def write_all() -> None:
        async with open_database(":memory:", blocking=InlineBlocking()) as database:
            await database.migrate("notes", NOTES)
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(database.write, add(str(number)), bad)

    with pytest.raises(BugError, match="on purpose"):
        await write_all()


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match=r"^mine$"):
        async with open_database(":memory:", blocking=InlineBlocking()):
            raise ValueError("mine")
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        pass
    with pytest.raises(ClosedError):
        await database.write(add("late"))
    with pytest.raises(ClosedError):
        database.read(texts)


async def test_clean_up_in_a_cancelled_scope_still_writes(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_database(tmp_path / "a.db", blocking=ThreadBlocking()) as database:
            await database.migrate("notes", NOTES)
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await database.write(add("last words"))
    async with open_database(tmp_path / "a.db", blocking=ThreadBlocking()) as database:
        assert database.read(texts) == ["last words"]


# The other seams


async def test_virtual_time_moves_the_trio_clock_and_a_step_moves_it_alone(autojump_clock: object) -> None:
    clock = TrioClock(1_000)
    await trio.sleep(0.3)
    assert clock.now_ms() == 1_300
    clock.step(-500)
    assert clock.now_ms() == 800
    assert SystemClock().now_ms() > 1_700_000_000_000


@pytest.mark.parametrize("blocking", [ThreadBlocking(1), InlineBlocking()])
async def test_a_blocking_call_is_not_begun_when_it_is_already_cancelled(blocking: Blocking) -> None:
    calls: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await blocking.run(calls.append, 1)
    assert scope.cancelled_caught
    assert calls == []
    await blocking.run(calls.append, 2)
    assert calls == [2]


async def test_database_statistics_count_reads(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        assert isinstance(database, Database)
        database.read(lambda c: None)
        await database.read_slowly(lambda c: None)
        assert (database.statistics().reads, database.statistics().slow_reads) == (1, 1)


async def test_a_database_is_idle_once_every_write_is_on_disk_and_told() -> None:
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        await trio.testing.wait_all_tasks_blocked()
        assert database.is_idle
        while_told: list[bool] = []
        await database.write(lambda _: None, lambda _: while_told.append(database.is_idle))
        assert while_told == [False]
        await trio.testing.wait_all_tasks_blocked()
        assert database.is_idle
