"""Damage that SQLite does not see, or would tidy away: empty files, lock files, texts that are none."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_jobs.blocking import InlineBlocking
from p2pmem_jobs.database import open_database
from p2pmem_jobs.errors import DamagedError

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
