"""The files of a database: who owns them, what is refused, and what survives."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_jobs import files
from p2pmem_jobs.blocking import InlineBlocking, ThreadBlocking
from p2pmem_jobs.database import open_database
from p2pmem_jobs.errors import (
    DamagedError,
    DiskError,
    MisuseError,
    NewerSchemaError,
    OpenError,
    OutsideError,
    OwnedError,
)
from p2pmem_jobs.files import Files

from .notes import CRASHING, FULL, KILLED, NOTES, add, environment, fill, texts


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


@pytest.mark.parametrize("first", ["name", "link", "folder"])
async def test_a_file_has_one_owner_by_whichever_name_it_is_opened(tmp_path: Path, first: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "a.db")
    names = {
        "name": tmp_path / "real" / "a.db",
        "link": tmp_path / "link.db",
        "folder": tmp_path / "folder" / "a.db",
    }
    async with open_database(names[first], blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("one"))
        for name in names.values():
            with pytest.raises(OwnedError):
                async with open_database(name, blocking=InlineBlocking()):
                    pass
    for name in names.values():
        async with open_database(name, blocking=InlineBlocking()) as database:
            assert database.read(texts) == ["one"]
            assert database.restores == 0
    assert sorted(os.listdir(tmp_path)) == ["folder", "link.db", "real"]


async def test_a_file_with_a_second_hard_link_is_refused_by_either_name_until_it_has_one_again(tmp_path: Path) -> None:
    path, other = tmp_path / "a.db", tmp_path / "b.db"
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        os.link(path, other)
        for name in (path, other):
            with pytest.raises(OpenError, match=r"is in use|2 names \(hard links\)"):
                async with open_database(name, blocking=InlineBlocking()):
                    pass
        await database.write(add("one"))
    for name in (path, other):
        with pytest.raises(OpenError, match=r"2 names \(hard links\).*Remove the other"):
            async with open_database(name, blocking=InlineBlocking()):
                pass
    other.unlink()
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert database.read(texts) == ["one"]
        assert database.restores == 0


@pytest.mark.processes
async def test_a_file_that_was_moved_while_it_is_open_has_its_owner_still(tmp_path: Path) -> None:
    path, moved = tmp_path / "a.db", tmp_path / "b.db"
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        path.rename(moved)
        refused = await trio.run_process(
            [sys.executable, "-c", KILLED, str(moved)], check=False, env=environment(), capture_stderr=True
        )
        assert refused.returncode == 1
        assert b"in use by another process, which opened it under another name" in refused.stderr
        moved.rename(path)
        await database.write(add("one"))
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert database.read(texts) == ["one"]


async def test_damage_that_is_found_only_when_it_is_read_is_told_with_what_to_do_and_nothing_else_is_lost(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    await fill(path, 500)
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate("other", ["CREATE TABLE other(x INTEGER) STRICT"])
    data = bytearray(path.read_bytes())
    pages = slice(4096 * 10, 4096 * 20)
    data[pages] = random.Random(7).randbytes(4096 * 10)
    path.write_bytes(data)
    async with open_database(path, blocking=InlineBlocking()) as database:
        for _ in range(2):
            with pytest.raises(DamagedError, match=r"a\.db is damaged: .* Nothing was mended.*restore a backup"):
                database.read(texts)
            with pytest.raises(DamagedError, match="restore a backup"):
                await database.read_slowly(texts)
            with pytest.raises(DamagedError, match="restore a backup"):
                await database.write(lambda c: c.execute("UPDATE note SET text = text || 'x'"))
            await database.write(lambda c: c.execute("INSERT INTO other VALUES (1)"))
        assert database.read(lambda c: c.execute("SELECT count(*) FROM other").fetchone()) == (2,)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
async def test_a_folder_that_may_not_be_written_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("p2pmem_jobs.files.os.open", refuse)
    with pytest.raises(OpenError, match=r"may not be written .*make files in its folder"):
        async with open_database(tmp_path / "a.db", blocking=InlineBlocking()):
            pass


async def test_a_file_that_may_only_be_read_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    await fill(path, 3)
    before = path.read_bytes()
    connect = files._connect

    def connect_to_read(where: str, uri: bool = False) -> sqlite3.Connection:
        connection = connect(where, uri)
        connection.execute("PRAGMA query_only = ON")  # SQLite says the same of a file without the right to write it
        return connection

    monkeypatch.setattr(files, "_connect", connect_to_read)
    with pytest.raises(OpenError, match="may not be written"):
        async with open_database(path, blocking=InlineBlocking()):
            pass
    assert path.read_bytes() == before
    monkeypatch.undo()
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert len(database.read(texts)) == 3


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match="is no file"):
        async with open_database(tmp_path, blocking=InlineBlocking()):
            pass


async def test_a_backup_that_does_not_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        with pytest.raises(DiskError, match="was not written"):
            await database.back_up(tmp_path / "no" / "copy.db")
        monkeypatch.setattr("p2pmem_jobs.files.os.link", refuse)
        with pytest.raises(DiskError, match="no space left"):
            await database.back_up(tmp_path / "copy.db")
        monkeypatch.undo()
        assert not [name for name in os.listdir(tmp_path) if "copy" in name]

        def fill_up(_: Files, connection: sqlite3.Connection, part: Path, *__: object) -> None:
            del connection
            for name in (part.name, f"{part.name}-journal"):  # as SQLite leaves them
                part.with_name(name).touch()
            raise OSError(errno.ENOSPC, "no space left on device")

        monkeypatch.setattr(Files, "_copy", fill_up)
        with pytest.raises(DiskError, match="no space left"):
            await database.back_up(tmp_path / "copy.db")
        monkeypatch.undo()
        assert not [name for name in os.listdir(tmp_path) if "copy" in name]
        await database.back_up(tmp_path / "copy.db")


async def test_a_backup_takes_no_name_that_is_a_link_or_that_sqlite_reads_beside_the_file(tmp_path: Path) -> None:
    name = tmp_path / "notes.db"
    link, folder = tmp_path / "link", tmp_path / "folder"
    link.symlink_to(tmp_path / "nowhere")
    folder.symlink_to(tmp_path)
    async with open_database(name, blocking=InlineBlocking()) as database:
        for to in (link, folder / "notes.db", folder / "notes.db.lock"):
            with pytest.raises(MisuseError, match="exists already"):
                await database.back_up(to)
        for name in ("notes.db-journal", "folder/notes.db-journal", "other.db-wal", "other.db-shm"):
            with pytest.raises(MisuseError, match="SQLite would take"):
                await database.back_up(tmp_path / name)
    assert link.is_symlink()
    assert not [name for name in os.listdir(tmp_path) if "-" in name]


@pytest.mark.parametrize("has_links", [True, False])
async def test_a_file_that_appears_while_a_backup_is_made_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    copy, to = Files._copy, tmp_path / "copy.db"

    def meanwhile(*args: Any) -> None:
        copy(*args)
        to.write_text("of somebody else")

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not has_links:
        monkeypatch.setattr("p2pmem_jobs.files.os.link", refuse)
    async with open_database(tmp_path / "a.db", blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("kept"))
        with monkeypatch.context() as patch:
            patch.setattr(Files, "_copy", meanwhile)
            with pytest.raises(MisuseError, match="exists by now"):
                await database.back_up(to)
        assert to.read_text() == "of somebody else"
        assert [it for it in os.listdir(tmp_path) if "copy" in it] == ["copy.db"]
        await database.back_up(tmp_path / "other.db")
    async with open_database(tmp_path / "other.db", blocking=InlineBlocking()) as copied:
        assert copied.read(texts) == ["kept"]
    assert not [it for it in os.listdir(tmp_path) if it.endswith(".part")]


async def test_writes_go_on_while_a_backup_is_made_which_is_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, may_go_on = threading.Event(), threading.Event()
    copy = Files._copy

    def slowly(self: Files, connection: sqlite3.Connection, part: Path, cancelled: Callable[[], bool]) -> None:
        connection.execute("SELECT count(*) FROM database_facts").fetchone()
        copying.set()
        assert may_go_on.wait(10)
        copy(self, connection, part, cancelled)

    monkeypatch.setattr(Files, "_copy", slowly)
    async with open_database(tmp_path / "a.db", blocking=ThreadBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("before"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.back_up, tmp_path / "copy.db")
            await trio.to_thread.run_sync(copying.wait, 10)
            await database.write(add("meanwhile"))
            may_go_on.set()
        copying.clear()
        may_go_on.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(database.back_up, tmp_path / "other.db")
            await trio.to_thread.run_sync(copying.wait, 10)
            nursery.cancel_scope.cancel()
            may_go_on.set()
    assert not [name for name in os.listdir(tmp_path) if "other" in name], "given up, nothing of it is left"
    async with open_database(tmp_path / "copy.db", blocking=InlineBlocking()) as copied:
        assert copied.read(texts) == ["before"]


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


@pytest.mark.processes
@pytest.mark.parametrize("copied", ["backup", "file"])
async def test_a_file_that_is_put_back_beside_the_log_of_another_is_refused_and_not_mixed(
    tmp_path: Path, copied: str
) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    await fill(path, 100)
    if copied == "backup":
        async with open_database(path, blocking=InlineBlocking()) as database:
            await database.back_up(copy)
    else:
        copy.write_bytes(path.read_bytes())
    killed = await trio.run_process([sys.executable, "-c", KILLED, str(path)], check=False, env=environment())
    assert killed.returncode == -signal.SIGKILL
    copy.replace(path)
    before = path.read_bytes(), (tmp_path / "a.db-wal").read_bytes()
    for _ in range(2):
        with pytest.raises(OpenError, match="the log of the file that was there before"):
            async with open_database(path, blocking=InlineBlocking()):
                pass
        assert (path.read_bytes(), (tmp_path / "a.db-wal").read_bytes()) == before
    for name in ("a.db-wal", "a.db-shm"):
        (tmp_path / name).unlink()
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert database.restores == 1
        assert len(database.read(texts)) == 100


@pytest.mark.processes
async def test_killed_again_and_again_a_file_knows_its_own_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    await fill(path, 100)
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.back_up(copy)
    copy.replace(path)
    for turn in range(1, 4):
        script = KILLED.replace("'last'", f"'last {turn}'")
        await trio.run_process([sys.executable, "-c", script, str(path)], check=False, env=environment())
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert database.read(texts)[-3:] == ["last 1", "last 2", "last 3"]
        assert database.restores == 1


@pytest.mark.processes
async def test_another_process_is_told_which_one_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_database(path, blocking=InlineBlocking()):
        refused = await trio.run_process(
            [sys.executable, "-c", KILLED, str(path)], check=False, env=environment(), capture_stderr=True
        )
    assert refused.returncode == 1
    assert f"is in use by process {os.getpid()}".encode() in refused.stderr


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


async def test_who_empties_the_log_is_told_when_a_read_still_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(add("secret"))
        database._files.writer.execute("PRAGMA busy_timeout = 1")
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM note").fetchone()
            await database.write(lambda c: c.execute("DELETE FROM note").rowcount)
            for empty in (database.checkpoint, database.compact):
                with pytest.raises(OutsideError, match=r"was not emptied.*Ask again"):
                    await empty()
        await database.checkpoint()
        assert b"secret" not in path.read_bytes() + path.with_name("a.db-wal").read_bytes()
