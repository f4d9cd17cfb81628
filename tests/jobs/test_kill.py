"""Processes that are killed with -9, at every named point and at random ones under load.

A kill is not a power cut: what the operating system was given survives it. That an acknowledged write was synced first
is asked of SQLite, by its settings, in test_files.py.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

POINTS = [
    "database.before_commit",
    "database.after_commit",
    *(
        f"send/{name}"
        for name in (
            "sign/before",
            "sign/unstored",
            "sign/after",
            "book/before",
            "book/after",
            "send/before",
            "send/intended",
            "send/tried",
            "send/after",
            "end/before",
            "end/after",
        )
    ),
]


class Victim:
    """The same file and world, over many processes."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "jobs.db"
        self.world = folder / "world"
        root = Path(__file__).parents[2]
        self._environment = {**os.environ, "PYTHONPATH": str(root / "jobs")}

    def start(self, *mode: str) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("victim.py")
        return subprocess.Popen(
            [sys.executable, str(script), str(self.database), str(self.world), *mode],
            stdout=subprocess.PIPE,
            env=self._environment,
        )

    def effects(self) -> Counter[int]:
        return Counter(int(line) for line in self.world.read_text().split())

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_a_named_point_leaves_a_job_that_ends_as_if_it_had_not_been(
    tmp_path: Path, point: str
) -> None:
    victim = Victim(tmp_path)
    turn = 12 if point.startswith("database") else 2
    with victim.start("die-at", point, str(turn)) as process:
        acknowledged = {int(line) for line in process.communicate()[0].split()}
    assert process.returncode == -signal.SIGKILL, "the point was never reached"
    with victim.start("finish") as process:
        process.communicate()
    assert process.returncode == 0
    states = dict(victim.rows("SELECT args, state FROM job"))
    assert set(states.values()) == {"succeeded"}
    assert len(states) >= len(acknowledged)
    assert victim.effects() == Counter(range(len(states)))
    assert sorted(victim.rows("SELECT number FROM book")) == [(n,) for n in range(len(states))]


def kill_at_random(folder: Path, kills: int, seed: int) -> None:
    """Under load, kills a process after a random number of acknowledgements, again and again."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    victim = Victim(folder)
    acknowledged: set[int] = set()
    for kill in range(kills):
        with victim.start("load", str(kill * 1_000_000)) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(1, 120)):
                acknowledged.add(int(process.stdout.readline()))
            process.kill()
            acknowledged.update(int(line) for line in process.stdout.read().splitlines() if line)
        assert process.returncode == -signal.SIGKILL
    with victim.start("finish") as process:
        process.communicate()
    assert process.returncode == 0
    ended = victim.rows("SELECT dedupe_key, state FROM job WHERE dedupe_key IS NOT NULL")
    assert {state for _, state in ended} == {"succeeded"}
    assert acknowledged <= {int(str(key)) for key, _ in ended}
    effects = victim.effects()
    assert max(effects.values()) == 1
    assert set(effects) == {int(str(key)) for key, _ in ended}
    assert sorted(victim.rows("SELECT number FROM book")) == sorted((number,) for number in effects)
    assert victim.rows("PRAGMA integrity_check") == [("ok",)]
    print(f"{kills} kills, {len(acknowledged)} acknowledged, {len(ended)} ended, {sum(effects.values())} effects")


@pytest.mark.processes
@pytest.mark.slow
def test_25_kills_under_load_lose_no_acknowledged_job_and_repeat_no_effect(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 25, seed=20_261_130)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif("P2PMEM_LONG" not in os.environ, reason="takes minutes; set P2PMEM_LONG=1")
def test_200_kills_under_load_lose_no_acknowledged_job_and_repeat_no_effect(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 200, seed=random.SystemRandom().randrange(2**32))
