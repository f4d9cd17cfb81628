"""Damage that SQLite does not see, or would tidy away: empty files, lock files, texts that are none."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import Context, Queue
from p2pmem_jobs.blocking import InlineBlocking
from p2pmem_jobs.database import open_database
from p2pmem_jobs.errors import DamagedError
from trio.testing import MockClock

from .conftest import Note, Rig
from .notes import KILLED, environment, fill, texts


@pytest.mark.parametrize("removed", [False, True])
async def test_a_file_that_lost_all_its_text_is_refused_and_its_log_stays(tmp_path: Path, removed: bool) -> None:
    path, log, lock = (tmp_path / name for name in ("a.db", "a.db-wal", "a.db.lock"))
    await fill(path)
    killed = await trio.run_process([sys.executable, "-c", KILLED, str(path)], check=False, env=environment())
    assert killed.returncode == -signal.SIGKILL
    whole = path.read_bytes()
    before = log.read_bytes(), lock.read_bytes()
    if removed:
        path.unlink()
    else:
        os.truncate(path, 0)
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"beside it lies its log a\.db-wal.*Put the file back"):
            async with open_database(path, blocking=InlineBlocking()):
                pass
        assert (log.read_bytes(), lock.read_bytes()) == before
    path.write_bytes(whole)
    async with open_database(path, blocking=InlineBlocking()) as database:
        assert database.read(texts)[-1] == "last"
        assert database.restores == 0


async def test_an_empty_file_is_a_new_one_only_where_none_was_before(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    await fill(path)
    os.truncate(path, 0)
    with pytest.raises(DamagedError, match="is empty, and was not"):
        async with open_database(path, blocking=InlineBlocking()):
            pass
    path.unlink()
    await fill(path)


@pytest.mark.parametrize("lock", ["[" * 4000, '{"generation": 9223372036854775807}', '{"generation": true}', "\0"])
async def test_a_lock_file_that_is_damaged_is_as_good_as_none(tmp_path: Path, lock: str) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    path.with_name("a.db.lock").write_text(lock)
    for _ in range(2):
        async with open_database(path, blocking=InlineBlocking()) as database:
            assert database.restores == 1


def echoing(queue: Queue) -> None:
    @queue.handler("echo", version=1)
    async def echo(context: Context, args: Note) -> str:
        text = await context.step("take", lambda: f"step of {args.text}")
        await context.sleep("a while", 60)
        return text


def damage(path: Path, text: bytes, by: bytes) -> None:
    data = path.read_bytes()
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, by))


@pytest.mark.parametrize("by", [b"on\xff", b'on"'])
@pytest.mark.parametrize("where", [b'"text":"one', b'"step of one'])
async def test_a_job_with_a_damaged_text_fails_and_the_others_go_on(
    rig: Rig, autojump_clock: MockClock, where: bytes, by: bytes
) -> None:
    async with rig.open(echoing, drain_s=0) as queue:
        one, two = [(await queue.submit("echo", Note(text))).id for text in ("one", "two")]
        await trio.sleep(1)
    damage(rig.path, where, where.replace(b"one", by))
    async with rig.open(echoing) as queue:
        assert await queue.job(two).result() == "step of two"
        error = rig.database.read(lambda c: c.execute("SELECT error FROM job WHERE id = ?", (one,)).fetchone()[0])
        assert "cannot be read: the file is damaged there" in error


@pytest.mark.parametrize("column", ["state", "args", "owner"])
async def test_a_damaged_text_is_told_as_such_to_who_reads_it(rig: Rig, autojump_clock: MockClock, column: str) -> None:
    async with rig.open(echoing) as queue:
        await queue.pause("echo")
        job = await queue.submit("echo", Note("one"), owner="me")
        # what a bit that fell over in the file looks like from inside
        fallen = {
            "state": "CAST('quened' AS TEXT)",
            "args": "CAST(x'22ff22' AS TEXT)",
            "owner": "CAST(x'6dff' AS TEXT)",
        }
        await rig.database.write(lambda c: c.execute(f"UPDATE job SET {column} = {fallen[column]}").rowcount)
        with pytest.raises(DamagedError, match=r"damaged.*Nothing was mended"):
            queue.get(job.id)
        await queue.resume("echo")
        other = await queue.submit("echo", Note("two"), owner="me")
        if column != "owner":  # which a claim reads as text
            assert await other.result() == "step of two"
