"""A stolen laptop is shut out by one command: three nodes as processes, and nothing but the command line."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import run_here
from .processes import ENVIRONMENT, P2PMEM

WAIT_S = 90.0


class Machine:
    """A node as a process, and the commands of whoever sits at it."""

    def __init__(self, home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home / name
        self._capsys = capsys
        self.agent = str(self("init", "--label", name).json["agent"])
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*P2PMEM, "run", "--home", str(self.home)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready: ")

    def __call__(self, *words: str) -> Any:
        return run_here(self._capsys, *words, "--home", str(self.home), "--json")

    def said(self, *words: str) -> Any:
        """What a command answers that has to work."""
        answer = self(*words)
        assert answer.code == 0, answer.err
        return answer.json

    def shares(self, name: str) -> None:
        (self.home / "x.nt").write_text(f'<urn:{name}> <urn:says> "{name}" .\n')
        self.said("draft", name, str(self.home / "x.nt"))
        self.said("share", name)

    def sees(self, name: str) -> bool:
        return any(it["reference"].endswith(f"/{name}@1") for it in self.said("versions")["versions"])

    def members(self) -> set[str]:
        """Whose nodes it is connected to, as members."""
        return {agent for it in self.said("peer", "list")["peers"] if it["state"] == "member" for agent in it["agents"]}

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], Machine]]:
    started: list[Machine] = []

    def start(name: str) -> Machine:
        started.append(Machine(tmp_path, name, capsys))
        return started[-1]

    yield start
    for machine in started:
        machine.stop()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do, in vain for so long at most."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.processes
def test_a_stolen_laptop_is_shut_out_by_one_command(machines: Callable[[str], Machine]) -> None:
    ada, bo, laptop = (machines(name) for name in ("ada", "bo", "laptop"))
    ada.said("graph", "create", "lab")
    bo.said("join", ada.said("graph", "invite", "--roles", "writer")["invite"])
    word = bo.said("acting", "allow", laptop.agent, "--label", "laptop", "--rights", "share")["word"]
    laptop.said("acting", "accept", word)
    laptop.said("join", ada.said("graph", "invite", "--roles", "")["invite"])
    laptop.shares("before")
    until(lambda: ada.sees("before") and bo.sees("before"))
    assert laptop.agent in ada.members()

    done = bo.said("revoke", laptop.agent)

    assert (done["kept"], len(done["graphs"])) == (1, 1)
    until(lambda: laptop.agent not in ada.members() | bo.members())
    ada.shares("after")
    until(lambda: bo.sees("after"))
    assert not laptop.sees("after")
    assert ada.sees("before"), "what it said before still counts"
    # It dials again and again, and asks to be let in; it is nobody now.
    assert laptop("join", ada.said("graph", "invite", "--roles", "")["invite"]).code != 0
    assert not laptop.sees("after")
    assert bo.agent in ada.members(), "and whom it acted for goes on"
