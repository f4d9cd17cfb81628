"""Killed with -9 at every named point of its jobs, a node ends as one that was never killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_devnet.anvil import AnvilMissingError, start_anvil
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import network_id

DRIVER = Path(__file__).parent / "crash_driver.py"
REPO = Path(__file__).parents[3]
AUTHOR = Key(bytes([1]) * 32).address
FEW = (
    "share/admit/before#1",
    "database.before_commit#2",
    "database.after_commit#2",
    "publish/admit/before#1",
    "verify/propose-1/after#1",
    "endorse/admit/after#1",
    "review/admit/before#1",
)
FEW_ON_A_CHAIN = (
    "register/send-1/tried#1",
    "anchor/sign-1/after#1",
    "attest/send-1/tried#1",
)
ON_A_CHAIN = frozenset({"register", "anchor", "attest"})
COMMITS_MAX = 6
"""So many of the commits are tried: how many there are later depends on what comes together."""
SHARES = 3
"""The points are shared out among so many tests, which run side by side where there are cores."""

pytestmark = [pytest.mark.processes]


def drive(directory: Path, point: str | None, more: dict[str, str]) -> int:
    """Run the driver once; its return code."""
    paths = os.pathsep.join(str(REPO / part) for part in (".", "protocol", "jobs", "devnet"))
    environment = {**os.environ, "PYTHONPATH": paths, **more}
    command = [sys.executable, str(DRIVER), str(directory), *([point] if point else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(done.stderr[-4_000:])
    return done.returncode


def summary_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def unkilled(directory: Path, more: dict[str, str]) -> dict[str, Any]:
    directory.mkdir()
    assert drive(directory, None, more) == 0
    return summary_of(directory)


def points_of(directory: Path) -> list[str]:
    """The points that a run passed, which are of every kind of job that the node has: a new kind has to be driven."""
    found = json.loads((directory / "points.json").read_text())
    points: list[str] = found["points"]
    assert {it.partition("/")[0] for it in points if "/" in it} == set(found["kinds"])
    return points


def check_kill(directory: Path, point: str, expected: dict[str, Any], more: dict[str, str]) -> None:
    directory.mkdir()
    assert drive(directory, point, more) == -signal.SIGKILL, f"{point} was never passed"
    assert drive(directory, None, more) == 0
    assert summary_of(directory) == expected, point


def test_a_node_that_is_killed_in_a_job_ends_like_one_that_was_not(tmp_path: Path) -> None:
    expected = unkilled(tmp_path / "unkilled", {})
    assert set(FEW) <= set(points_of(tmp_path / "unkilled"))
    for number, point in enumerate(FEW):
        check_kill(tmp_path / f"killed-{number}", point, expected, {})


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_named_point_of_what_a_node_does_without_a_chain_may_be_the_last(tmp_path: Path, share: int) -> None:
    expected = unkilled(tmp_path / "unkilled", {})
    points = points_of(tmp_path / "unkilled")
    for number, point in enumerate(few_commits(points)[share::SHARES]):
        check_kill(tmp_path / f"killed-{number}", point, expected, {})


def few_commits(points: list[str]) -> list[str]:
    return [it for it in points if not it.startswith("database.") or int(it.partition("#")[2]) <= COMMITS_MAX]


async def with_chain(directory: Path, points: tuple[str, ...] | None, share: int = 0) -> None:
    """Each run has a chain of its own, since what was sent is counted on it."""

    async def run(name: str, point: str | None) -> dict[str, Any]:
        home = directory / name
        home.mkdir()
        try:
            (home / "chain").mkdir()
            async with start_anvil(home / "chain") as anvil:
                contract = await anvil.deploy_anchor(network_id("crashes"))
                await anvil.fund(str(AUTHOR), 100)
                more = {"P2PMEM_TEST_RPC": anvil.url, "P2PMEM_TEST_CONTRACT": "0x" + contract.hex()}
                code = await trio.to_thread.run_sync(drive, home, point, more)
                if point is not None:
                    assert code == -signal.SIGKILL, f"{point} was never passed"
                    assert await trio.to_thread.run_sync(drive, home, None, more) == 0
        except AnvilMissingError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        return summary_of(home)

    expected = await run("unkilled", None)
    assert expected["anchor"] == "confirmed"
    assert expected["nonces used"] == len(ON_A_CHAIN), "one transaction of each kind"
    every = [it for it in points_of(directory / "unkilled") if it.partition("/")[0] in {*ON_A_CHAIN, "publish"}]
    assert {it.partition("/")[0] for it in every} > ON_A_CHAIN
    for number, point in enumerate(points or every[share::SHARES]):
        assert await run(f"killed-{number}", point) == expected, point


@pytest.mark.chain
async def test_a_kill_between_a_transaction_and_its_receipt_leaves_one_transaction(tmp_path: Path) -> None:
    await with_chain(tmp_path, FEW_ON_A_CHAIN)


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
async def test_every_named_point_of_what_needs_a_chain_may_be_the_last(tmp_path: Path, share: int) -> None:
    await with_chain(tmp_path, None, share)
