"""The group-commit writer, alone."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from p2pmem_jobs.blocking import Blocking, InlineBlocking, ThreadBlocking
from p2pmem_jobs.clock import SystemClock, TrioClock
from p2pmem_jobs.database import Database, Limits, open_database
from p2pmem_jobs.errors import (
    BugError,
    ClosedError,
    DamagedError,
    DiskError,
    MisuseError,
    NewerSchemaError,
    OpenError,
    OutsideError,
    OwnedError,
)

NOTES = ["CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT"]


def add(text: str) -> Callable[[sqlite3.Connection], int]:
    def insert(connection: sqlite3.Connection) -> int:
        cursor = connection.execute("INSERT INTO note(text) VALUES (?)", (text,))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    return insert


def texts(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT text FROM note ORDER BY id")]


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


async def test_a_shielded_write_is_never_withdrawn_even_where_there_is_no_room(tmp_path: Path) -> None:
    blocking = Gate()
    async with open_database(":memory:", blocking=blocking, limits=Limits(waiting_operations=1)) as database:
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


async def test_a_full_queue_holds_its_callers_back_and_forgets_none(place: tuple[Blocking, Path | str]) -> None:
    blocking, path = place
    most = 0
    async with open_database(path, blocking=blocking, limits=Limits(waiting_operations=4)) as database:
        await database.migrate("notes", NOTES)

        async def one(number: int) -> None:
            nonlocal most
            await database.write(add(str(number)))
            most = max(most, database.statistics().waiting)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one, number)
        assert len(database.read(texts)) == 100
    assert most <= 4


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


async def test_a_second_owner_is_told_who_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_database(path, blocking=InlineBlocking()):
        with pytest.raises(OwnedError, match=f"process {os.getpid()}") as refused:
            async with open_database(path, blocking=InlineBlocking()):
                pass
        assert str(os.getpid()) in refused.value.holder
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert database.restores == 0
    assert set(os.listdir(tmp_path)) == {"a.db", "a.db.lock"}
    assert {os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)} == {0o600}


async def test_settings_are_those_that_are_promised(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:

        def setting(name: str) -> object:
            return database._files.writer.execute(f"PRAGMA {name}").fetchone()[0]

        assert (setting("journal_mode"), setting("synchronous"), setting("secure_delete")) == ("wal", 2, 1)


# Files that are not as they should be


async def fill(path: Path, rows: int = 500) -> None:
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(
            lambda c: c.executemany("INSERT INTO note(text) VALUES (?)", [(f"{n:0200}",) for n in range(rows)])
        )


async def test_a_damaged_file_that_was_not_closed_in_order_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    killed = await trio.run_process([sys.executable, "-c", KILLED, str(path)], check=False, env=environment())
    assert killed.returncode == -signal.SIGKILL
    data = bytearray(path.read_bytes())
    page = 4096 * 5
    data[page : page + 4096] = random.Random(7).randbytes(4096)
    path.write_bytes(data)
    log = path.with_name("a.db-wal")
    before = path.read_bytes(), log.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedError, match="restore a backup"):
            async with open_database(path, blocking=InlineBlocking()):
                pass
        assert (path.read_bytes(), log.read_bytes()) == before


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\x00" + b"\xff" * 4096])
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        async with open_database(path, blocking=InlineBlocking()):
            pass
    assert path.read_bytes() == content


async def test_files_of_others_and_of_newer_versions_are_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE theirs(x)")
    other.close()
    with pytest.raises(OpenError, match="another program"):
        async with open_database(tmp_path / "other.db", blocking=InlineBlocking()):
            pass
    await fill(tmp_path / "a.db", 1)
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        with pytest.raises(NewerSchemaError, match="schema 1"):
            await database.migrate("notes", [])
    newer = sqlite3.connect(tmp_path / "a.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(NewerSchemaError, match="format 99"):
        async with open_database(tmp_path / "a.db", blocking=InlineBlocking()):
            pass
    with pytest.raises(OpenError, match="does not exist"):
        async with open_database(tmp_path / "no" / "a.db", blocking=InlineBlocking()):
            pass


async def test_migrations_run_once_in_order_and_whole_or_not_at_all(tmp_path: Path) -> None:
    second = "CREATE TABLE tag(x TEXT); CREATE TRIGGER t AFTER INSERT ON tag BEGIN DELETE FROM tag; SELECT ';'; END;"
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        assert await database.migrate("notes", NOTES) == 0
        with pytest.raises(ZeroDivisionError):
            await database.migrate("notes", [*NOTES, second, lambda _: 1 // 0])
        assert database.read(
            lambda c: c.execute("SELECT count(*) FROM sqlite_master WHERE name = 'tag'").fetchone()
        ) == (0,)
        assert await database.migrate("notes", [*NOTES, second]) == 1
        assert await database.migrate("notes", [*NOTES, second]) == 2
        with pytest.raises(MisuseError, match="middle of a statement"):
            await database.migrate("other", ["CREATE TRIGGER t AFTER INSERT ON tag BEGIN DELETE FROM tag;"])


async def test_a_full_disk_is_a_typed_error_and_the_file_stays_whole(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", blocking=ThreadBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("before"))
        writer = database._files.writer
        writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0] + 2}")
        errors: list[BaseException] = []

        async def one(text: str) -> None:
            try:
                await database.write(add(text))
            except DiskError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, f"{number}" * 20_000)
        assert errors
        stored = database.read(texts)
        assert len(stored) + len(errors) == 21
        writer.execute("PRAGMA max_page_count = 1000000")
        await database.write(add("after"))
        assert database.read(texts) == [*stored, "after"]
        assert database.read(lambda c: c.execute("PRAGMA integrity_check").fetchone()) == ("ok",)


def test_a_disk_that_refuses_to_grow_the_file_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    limit = 300_000

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "a.db")],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        preexec_fn=set_limit,
    )
    acknowledged = int(done.stdout.split()[0])
    assert done.stdout.split()[1] == "DiskError"
    assert acknowledged > 0

    async def count() -> int:
        async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
            return len(database.read(texts))

    assert trio.run(count) == acknowledged


async def test_a_disk_that_fails_to_sync_ends_the_block_because_nobody_knows_what_it_holds(tmp_path: Path) -> None:
    def fail(point: str) -> None:
        if armed and point == "database.before_commit":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

    armed = False
    ended: list[str] = []

    async def use() -> None:
        nonlocal armed
        async with open_database(tmp_path / "a.db", blocking=ThreadBlocking(), crash_point=fail) as database:
            await database.migrate("notes", NOTES)
            armed = True
            with pytest.raises(DiskError, match="failed to sync"):
                await database.write(add("no"))
            try:
                await trio.sleep_forever()
            finally:
                ended.append("cancelled")

    with pytest.raises(DiskError, match="open the file again"):
        await use()
    assert ended == ["cancelled"]
    async with open_database(tmp_path / "a.db", blocking=ThreadBlocking()) as database:
        assert database.read(texts) == []


async def test_another_program_that_locks_the_file_is_named_as_the_cause(tmp_path: Path) -> None:
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        database._files.writer.execute("PRAGMA busy_timeout = 0")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutsideError, match="another program"):
            await database.write(add("no"))
        other.execute("ROLLBACK")
        other.close()
        await database.write(add("yes"))
        assert database.read(texts) == ["yes"]


# Restores


async def test_a_file_that_was_put_back_counts_a_restore(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"

    async def restores() -> int:
        async with open_database(path, blocking=InlineBlocking()) as database:
            return database.restores

    await fill(path, 3)
    plain = path.read_bytes()
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.back_up(copy)
        await database.write(add("later"))
        with pytest.raises(MisuseError, match="exists"):
            await database.back_up(copy)
    assert await restores() == 0
    path.write_bytes(copy.read_bytes())
    assert await restores() == 1
    assert await restores() == 1
    path.write_bytes(plain)
    assert await restores() == 1
    assert await restores() == 1
    path.with_name("a.db.lock").unlink()
    assert await restores() == 2


async def test_a_deleted_text_is_in_no_file_after_a_checkpoint(tmp_path: Path) -> None:
    secret = "the quick brown fox is a secret"
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add(secret))
        await database.write(lambda c: c.execute("DELETE FROM note"))
        await database.checkpoint()
        assert not any(secret.encode() in (tmp_path / name).read_bytes() for name in os.listdir(tmp_path))
        await database.compact()
        await database.write(add("still open"))


# kill -9


def environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "jobs"), str(Path(__file__).parent)])}


KILLED = """
import os, signal, sys, trio
from p2pmem_jobs.blocking import ThreadBlocking
from p2pmem_jobs.database import open_database

async def main():
    async with open_database(sys.argv[1], blocking=ThreadBlocking()) as database:
        await database.write(lambda c: c.execute("INSERT INTO note(text) VALUES ('last')"))
        os.kill(os.getpid(), signal.SIGKILL)
trio.run(main)
"""

FULL = """
import sys, trio
from p2pmem_jobs.blocking import ThreadBlocking
from p2pmem_jobs.database import open_database
from p2pmem_jobs.errors import DiskError

async def main():
    done = 0
    try:
        async with open_database(sys.argv[1], blocking=ThreadBlocking()) as database:
            await database.migrate("notes", ["CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"])
            while True:
                await database.write(lambda c: c.execute("INSERT INTO note(text) VALUES (?)", ("x" * 2000,)))
                done += 1
    except DiskError as error:
        print(done, type(error).__name__)
trio.run(main)
"""

CRASHING = """
import os, signal, sys, trio
from p2pmem_jobs.blocking import ThreadBlocking
from p2pmem_jobs.database import open_database

async def main():
    left = int(sys.argv[3])
    def crash_point(name):
        nonlocal left
        if name == sys.argv[2]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    async def one(database, number):
        def insert(connection):
            connection.execute("INSERT INTO note(text) VALUES (?)", (f"{number} a",))
            connection.execute("INSERT INTO note(text) VALUES (?)", (f"{number} b",))
        await database.write(insert)
        os.write(1, f"{number}\\n".encode())

    async with open_database(sys.argv[1], blocking=ThreadBlocking(), crash_point=crash_point) as database:
        await database.migrate("notes", ["CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"])
        for start in range(0, 1000, 10):
            async with trio.open_nursery() as nursery:
                for number in range(start, start + 10):
                    nursery.start_soon(one, database, number)
trio.run(main)
"""


@pytest.mark.processes
@pytest.mark.parametrize("point", ["database.before_commit", "database.after_commit"])
async def test_a_process_killed_around_a_commit_keeps_what_it_acknowledged_whole(tmp_path: Path, point: str) -> None:
    for turn in (2, 5):
        path = tmp_path / f"{turn}.db"
        ended = await trio.run_process(
            [sys.executable, "-c", CRASHING, str(path), point, str(turn)],
            capture_stdout=True,
            check=False,
            env=environment(),
        )
        assert ended.returncode == -signal.SIGKILL
        acknowledged = {int(line) for line in ended.stdout.split()}
        async with open_database(path, blocking=InlineBlocking()) as database:
            stored = database.read(texts)
            assert database.restores == 0
        whole = {int(text.split()[0]) for text in stored}
        assert len(stored) == 2 * len(whole)
        assert acknowledged <= whole


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
