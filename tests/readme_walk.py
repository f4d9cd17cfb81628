"""The walk in README.md: its commands, run as they stand there, and its output, held against what they print.

A block of the walk is fenced as `console` and comes after `<!-- walk: NAME -->`; the name is the terminal. In it `$ `
begins a command, `> ` goes on with it, and the rest is what it prints. A line `...` stands for any lines. What differs
from run to run is written as it was once, and shortened where an ellipsis says so: addresses, ids, invites, ports,
times. Where a command names one of those, it means the one that was printed at that place this time.

`python -m tests.readme_walk` prints the blocks anew, with what the commands print now.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
HOME_SHOWN = "~"
ANSWER_S_MAX = 60.0
COMES_S_MAX = 30.0
"""How long something that another node said may take to be seen here: a person would ask again."""

_BLOCK = re.compile(r"<!-- walk: (\w+) -->\n+```console\n(.*?)```", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<id>0x[0-9a-f]{8,}(?:…|\.\.\.)?)|(?P<invite>p2pmem1[a-z2-7]{4,}…?)|(?P<peer>12D3Koo\w+(?:…|\.\.\.)?)"
    r"|(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ)|(?P<port>(?<=127\.0\.0\.1:)\d+|(?<=/tcp/)\d+)"
    r"|(?P<now>(?:online|not connected)(?=\s+\d{4}-\d\d-\d\d ))"
    r"|(?P<acks>(?<=  acks      )\d+)"
    r"|(?P<job>\b01[0-9a-f]{6}(?:[0-9a-f]{20}|…))|(?P<up>(?<=, up )[\dhms ]+)"
)
_SHOWN = {"id": 10, "invite": 16, "peer": 14, "job": 8}


@dataclass
class Step:
    """A command of one terminal, and what README says that it prints."""

    terminal: str
    command: str
    output: list[str] = field(default_factory=list)


def steps(text: str) -> Iterator[Step]:
    """The walk, in the order of the page."""
    for terminal, block in _BLOCK.findall(text):
        step: Step | None = None
        for line in block.splitlines():
            if line.startswith("$ "):
                if step is not None:
                    yield step
                step = Step(terminal, line[2:])
            elif step is not None and line.startswith("> "):
                step.command += "\n" + line[2:]
            elif step is not None:
                step.output.append(line)
        if step is not None:
            yield step


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    return " ".join(_TOKEN.sub(lambda found: f"<{found.lastgroup}>", line).split())


def tokens(line: str) -> list[str]:
    return [found[0] for found in _TOKEN.finditer(line)]


def match(expected: list[str], heard: list[str]) -> list[tuple[str, str]] | None:
    """The pairs of lines, as README has them and as they came; None when they do not match."""
    if not expected:
        return [] if not heard else None
    if expected[0].strip() == "...":
        for skipped in range(len(heard) + 1):
            rest = match(expected[1:], heard[skipped:])
            if rest is not None:
                return rest
        return None
    if not heard or plain(expected[0]) != plain(heard[0]):
        return None
    rest = match(expected[1:], heard[1:])
    return None if rest is None else [(expected[0], heard[0]), *rest]


class Terminal:
    """A shell of its own, whose commands come from the walk. A context manager; everything it started ends with it."""

    def __init__(self, home: Path, bin_: Path) -> None:
        self._home = home
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the terminal
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("P2PMEM_", "XDG_"))}
        environment |= {"HOME": str(home), "PATH": f"{bin_}{os.pathsep}{environment['PATH']}"}
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._shell.pid, number)
                self._shell.wait(10)
        self._shell.wait(10)
        self._reader.join(10)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._shell.stdout is not None
        with self._shell.stdout as stdout:
            for line in stdout:
                self._lines.put(line.rstrip("\n").replace(str(self._home), HOME_SHOWN))

    def run(self, command: str, *, lines_in_background: int = 0) -> tuple[list[str], int]:
        """What it printed, and its exit code. What goes on in the background may print so many lines more."""
        mark = f"-- {time.monotonic_ns()}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{command}\nprintf '%s %s\\n' '{mark}' $?\n")
        self._shell.stdin.flush()
        heard: list[str] = []
        code: int | None = None
        while code is None or len(heard) < lines_in_background:
            try:
                line = self._lines.get(timeout=ANSWER_S_MAX)
            except queue.Empty:
                raise AssertionError(f"{command!r} printed {heard} and did not end; {self.errors()}") from None
            if line.startswith(mark):
                code = int(line.rpartition(" ")[2])
            else:
                heard.append(line)
        return heard, code

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


class Walk:
    """Runs steps, and knows what README's addresses and ids are this time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._bin = home / "bin"
        self._bin.mkdir()
        shim = self._bin / "p2pmem"
        folders = os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet"))
        shim.write_text(f'#!/bin/sh\nPYTHONPATH="{folders}" exec "{sys.executable}" -m p2pmem "$@"\n')
        shim.chmod(0o755)
        self._terminals: dict[str, Terminal] = {}
        self._now: dict[str, str] = {}

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *error: object) -> None:
        for terminal in self._terminals.values():
            terminal.__exit__(None, None, None)

    def command(self, step: Step) -> str:
        """The command with this run's values in place of README's."""
        return _TOKEN.sub(lambda found: self._now.get(found[0], found[0]), step.command)

    def run(self, step: Step, *, strict: bool = True) -> list[str]:
        """Run a step, again while what it reads has not come yet, and learn from what it printed."""
        terminal = self._terminals.get(step.terminal)
        if terminal is None:
            terminal = self._terminals[step.terminal] = Terminal(self.home, self._bin)
        background = step.command.rstrip().endswith("&")
        until_s = time.monotonic() + (COMES_S_MAX if strict else 0)
        while True:
            heard, code = terminal.run(self.command(step), lines_in_background=len(step.output) if background else 0)
            pairs = match(step.output, heard)
            if code == 0 and pairs is not None:
                break
            if not strict:
                return heard
            if time.monotonic() >= until_s or not _only_reads(step.command):
                told = [f"$ {self.command(step)}", *heard, f"(exit code {code}) README has:", *step.output]
                raise AssertionError("\n".join([*told, terminal.errors()]))
        for shown, real in pairs:
            self._now.update(zip(tokens(shown), tokens(real), strict=True))
        return heard

    def learn(self, shown: str, real: str) -> None:
        self._now[shown] = real


def _only_reads(command: str) -> bool:
    return command.startswith(
        ("p2pmem recall", "p2pmem query", "p2pmem versions", "p2pmem trust explain", "p2pmem status")
    )


def shorten(line: str) -> str:
    def shown(found: re.Match[str]) -> str:
        kept = _SHOWN.get(found.lastgroup or "")
        return found[0] if kept is None or len(found[0]) <= kept + 2 else found[0][:kept] + "…"

    return _TOKEN.sub(shown, line)


def main() -> None:
    """Print every block as it would stand in README now."""
    with tempfile.TemporaryDirectory() as home, Walk(Path(home)) as walk:
        terminal = ""
        for step in steps(README.read_text()):
            if step.terminal != terminal:
                print(f"\n<!-- walk: {step.terminal} -->")
                terminal = step.terminal
            print("$ " + "\n> ".join(shorten(walk.command(step)).splitlines()), flush=True)
            if _only_reads(step.command):
                time.sleep(2)
            for line in walk.run(step, strict=False):
                for token in tokens(line):
                    walk.learn(shorten(token), token)
                print(shorten(line), flush=True)


if __name__ == "__main__":
    main()
