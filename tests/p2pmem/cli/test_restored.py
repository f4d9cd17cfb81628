"""A copy of a node that runs, and the node that starts from it, as processes and by commands alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import pytest

from .test_stolen import WAIT_S, Machine, machines

__all__ = ["machines"]
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s


def share(machine: Machine, text: str) -> int:
    (machine.home / "x.nt").write_text(f'<urn:n> <urn:says> "{text}" .\n')
    machine.said("draft", "n", "--replace", str(machine.home / "x.nt"))
    return int(machine.said("share", "n")["result"]["version"])


def versions(machine: Machine) -> list[int]:
    return sorted(it["version"] for it in machine.said("versions")["versions"])


def put_back(machine: Machine, copy: Path) -> None:
    """As README says."""
    machine.stop()
    copyfile(copy, machine.home / "ledger.sqlite")
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (machine.home / name).unlink(missing_ok=True)
    machine.start()


def test_a_restored_node_uses_no_number_twice(machines: Callable[[str], Machine], tmp_path: Path) -> None:
    ada, bo = machines("ada"), machines("bo")
    ada.said("graph", "create", "trials")
    bo.said("join", ada.said("graph", "invite", "--roles", "writer")["invite"])
    assert share(ada, "one") == 1
    copy = tmp_path / "copy.sqlite"
    assert ada.said("backup", str(copy)) == {"file": str(copy), "bytes": copy.stat().st_size}
    again = ada("backup", str(copy))
    assert (again.code, "exists already" in again.err) == (2, True)
    assert share(ada, "two") == 2
    until(lambda: versions(bo) == [1, 2])
    bo.stop()
    put_back(ada, copy)
    refused = ada("share", "n")
    assert refused.code == 4
    assert "p2pmem restore confirm" in refused.err
    assert ada.said("status")["restored"]["waiting"]
    bo.start()
    until(lambda: not ada.said("status")["restored"]["waiting"])
    assert share(ada, "three") == 3
    until(lambda: versions(bo) == versions(ada) == [1, 2, 3])
    bo.stop()
    put_back(ada, copy)
    assert ada.said("restore", "confirm", "--all") == {"waiting": []}
    ada.shares("other")
