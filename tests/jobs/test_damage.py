"""Damage that SQLite does not see, or would tidy away: empty files, lock files, texts that are none."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import Context, Looked, Queue, State
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
        assert await other.result() == "step of two"


BAD = "CAST(x'6fff65' AS TEXT)"
DAMAGE = {
    "id": f"UPDATE job SET id = {BAD}",
    "owner": f"UPDATE job SET owner = {BAD}",
    "kind": f"UPDATE job SET kind = {BAD}",
    "step": f"UPDATE job_step SET name = {BAD} WHERE what = 'step'",
    "reason": f"UPDATE job_event SET reason = {BAD} WHERE number = 1",
    "change": f"UPDATE job_event SET state = {BAD} WHERE number = 2",
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("where", [*DAMAGE])
async def test_a_job_that_is_damaged_where_many_are_read_stops_no_other_and_is_told_of(
    rig: Rig, autojump_clock: MockClock, where: str, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open(echoing, drain_s=0) as queue:
        await queue.submit("echo", Note("one"), owner="me")
        await trio.sleep(1)  # it has done its step, and is asleep
        await queue.pause("echo")
    if not is_open:
        async with open_database(rig.path, blocking=InlineBlocking()) as database:
            await database.write(lambda c: c.execute(DAMAGE[where]).rowcount)
    async with rig.open(echoing) as queue:
        if is_open:
            await rig.database.write(lambda c: c.execute(DAMAGE[where]).rowcount)
        watch = queue.watch(after=0)
        others = [await queue.submit("echo", Note("two"), owner="me") for _ in range(40)]
        await queue.resume("echo")
        for other in others:
            with trio.fail_after(1_000):
                assert await other.result() == "step of two"
        readable = [number for number in range(1, 101) if where != "change" or number != 2]
        assert [(await anext(watch)).number for _ in readable] == readable
        *listed, one = await queue.list(limit=1_000)
        assert [job.id for job in listed] == [other.id for other in others][::-1]
    if where in ("reason", "change"):
        assert one.state is State.SUCCEEDED
    elif where != "kind":
        assert one.state is State.FAILED
        assert "the file is damaged there" in (one.error or "")
        assert "job.damaged" in [record.getMessage() for record in caplog.records]
    elif not is_open:  # nothing looks for it while it is open
        assert "its kind 'o\\\\xffe' cannot be read: the file is damaged there" in (one.parked or "")


async def test_a_damaged_job_with_an_effect_under_way_is_one_of_which_nobody_knows_the_outcome(
    rig: Rig, autojump_clock: MockClock
) -> None:
    def paying(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Note) -> None:
            async def look_up() -> Looked:
                return Looked.NOT_HAPPENED

            await context.effect("pay", trio.sleep_forever, look_up)

    async with rig.open(paying, drain_s=0) as queue:
        await queue.submit("pay", Note("one"), owner="me")
        await trio.sleep(1)
    async with open_database(rig.path, blocking=InlineBlocking()) as database:
        await database.write(lambda c: c.execute(DAMAGE["owner"]).rowcount)
    async with rig.open(paying) as queue:
        await trio.sleep(1)
        (one,) = await queue.list()
        assert one.state is State.OUTCOME_UNKNOWN


async def test_an_effect_that_is_done_is_not_tried_again_where_its_key_is_damaged(
    rig: Rig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    paid = 0

    def paying(queue: Queue) -> None:
        @queue.handler("pay", version=1)
        async def pay(context: Context, args: Note) -> None:
            async def try_() -> None:
                nonlocal paid
                paid += 1

            async def look_up() -> Looked:
                return Looked.NOT_HAPPENED

            await context.effect("pay", try_, look_up)
            await context.sleep("a while", 60)

    async with rig.open(paying, drain_s=0) as queue:
        await queue.submit("pay", Note("one"), owner="me")
        await trio.sleep(1)
    async with open_database(rig.path, blocking=InlineBlocking()) as database:
        await database.write(lambda c: c.execute(f"UPDATE job_effect SET key = {BAD}").rowcount)
    async with rig.open(paying) as queue:
        await queue.submit("pay", Note("two"), owner="me")
        await trio.sleep(100)
        other, one = await queue.list()
    assert (one.state, other.state) == (State.OUTCOME_UNKNOWN, State.SUCCEEDED)
    assert "the file is damaged there" in (one.error or "")
    assert "job.damaged" in [record.getMessage() for record in caplog.records]
    assert paid == 2
