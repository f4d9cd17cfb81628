"""Files that an earlier version of this package wrote, and a process that is killed while it brings one up to date."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import Context, Happened, InlineBlocking, Looked, Queue, State, open_database
from p2pmem_jobs.tables import COMPONENT, MIGRATIONS
from trio.testing import MockClock

from .conftest import START_MS, Note, Rig

LIVE = """
INSERT INTO job(seq, id, kind, version, args, state, ready, priority, run_at_ms, attempt, detail, submitted_ms)
VALUES (1, 'running', 'old', 1, '{"text":"a"}', 'running', 1, 0, 1, 1, '', 1),
       (2, 'waiting', 'old', 1, '{"text":"b"}', 'waiting', 1, 0, 1, 1, 'asleep', 1),
       (3, 'queued', 'old', 1, '{"text":"c"}', 'queued', 1, 0, 1, 0, '', 1),
       (4, 'paying', 'old', 1, '{"text":"d"}', 'running', 1, 0, 1, 1, '', 1);
INSERT INTO job(seq, id, kind, version, args, state, ready, priority, run_at_ms, attempt, detail, submitted_ms)
VALUES (5, 'done', 'old', 1, '{"text":"e"}', 'running', 0, 0, 1, 1, '', 1);
UPDATE job SET state = 'succeeded', ended_ms = 2, result = '"e"' WHERE seq = 5;
INSERT INTO job_event(job, at_ms, attempt, state, reason) VALUES (1, 1, 0, 'queued', 'submitted');
INSERT INTO job_step(job, name, attempt, ended_ms, result)
VALUES (1, 'first', 1, 1, '"kept"'), (2, 'first', 1, 1, '"kept"'), (2, 'nap', 1, 1, '1');
INSERT INTO job_effect VALUES (4, 'send', 'note', 'intended', 1, NULL, NULL);
"""


async def make_old(path: Path, version: int) -> None:
    """A file as the program of that version left it when it was killed."""
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate(COMPONENT, MIGRATIONS[:version])
        await database.migrate("rows of the test", [LIVE])


def register(queue: Queue) -> None:
    @queue.handler("old", version=1)
    async def old(context: Context, args: Note) -> str:
        first = await context.step("first", lambda: "made anew")
        await context.sleep("nap", 0.01)

        async def try_() -> str:
            return "sent"

        async def look_up() -> Happened[str] | Looked:
            return Happened("was sent")

        return f"{first}, {await context.effect('send', try_, look_up)}"


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
async def test_jobs_of_each_earlier_schema_go_on(rig: Rig, autojump_clock: MockClock, version: int) -> None:
    await make_old(rig.path, version)
    async with rig.open(register) as queue:
        results = {it.id: await queue.job(it.id).result() for it in await queue.list() if it.id != "done"}
        assert results == {
            "running": "kept, sent",
            "waiting": "kept, sent",
            "queued": "made anew, sent",
            "paying": "made anew, was sent",
        }
        assert queue.get("done").state is State.SUCCEEDED
        assert queue.statistics().live == 0
        assert queue.statistics().ended == 5
    async with rig.open(register) as queue:
        assert rig.clock.now_ms() >= START_MS
        assert [it.state for it in await queue.list()] == [State.SUCCEEDED] * 5


KILLED = """
import os, signal, sys, trio
from p2pmem_jobs import ThreadBlocking, open_database
from p2pmem_jobs.tables import COMPONENT, MIGRATIONS

def crash_point(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_database(sys.argv[1], blocking=ThreadBlocking(), crash_point=crash_point) as database:
        await database.migrate(COMPONENT, MIGRATIONS)
trio.run(main)
"""


@pytest.mark.processes
@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
@pytest.mark.parametrize("point", ["database.before_commit", "database.after_commit"])
async def test_killed_during_a_migration_a_file_is_of_the_old_schema_or_of_the_new_one(
    rig: Rig, autojump_clock: MockClock, version: int, point: str
) -> None:
    await make_old(rig.path, version)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "jobs")}
    ended = await trio.run_process([sys.executable, "-c", KILLED, str(rig.path), point], check=False, env=environment)
    assert ended.returncode == -signal.SIGKILL
    connection = sqlite3.connect(rig.path)
    found = connection.execute("SELECT version FROM component_versions WHERE component = 'jobs'").fetchone()[0]
    columns = [row[1] for row in connection.execute("PRAGMA table_info(job_step)")]
    connection.close()
    assert found == (version if point == "database.before_commit" else len(MIGRATIONS))
    assert ("what" in columns) == (found >= 2)
    async with rig.open(register) as queue:
        for record in await queue.list():
            if record.id != "done":
                await queue.job(record.id).result()
