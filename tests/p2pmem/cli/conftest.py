"""Commands against a server over a face in memory: parser, client, HTTP and texts are the real ones."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from p2pmem.api.server import serve_http
from p2pmem.cli.main import main
from p2pmem.face import NewGraph
from p2pmem.home import Home, write_secret
from tests.p2pmem.api.memory_face import MemoryFace
from tests.p2pmem.api.memory_values import AGENT

TOKEN = "a-token-of-this-test"
GRAPH = f"{AGENT}/findings"


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return Said(code, out, err)


@dataclass(frozen=True)
class Node:
    """A node that runs, and its command line."""

    face: MemoryFace
    home: Home
    url: str
    capsys: pytest.CaptureFixture[str]
    stop: trio.Event

    async def __call__(self, *words: str) -> Said:
        command = partial(run_here, self.capsys, *words, "--home", str(self.home.data_dir))
        return await trio.to_thread.run_sync(command, abandon_on_cancel=True)

    async def founded(self) -> None:
        await self.face.found(NewGraph("findings"))

    async def shared(self) -> None:
        """One graph, one draft `x` in it, and its first version, shared by `job-1`."""
        await self.founded()
        line = b"<x:s> <x:p> <x:o> .\n"
        await self.face.draft(GRAPH, "x", line, format=None, base=None, subgraph="", replace=False)
        await self.face.share(GRAPH, "x", ttl_ms=None)
        self.face.calls.clear()


def make_home(path: Path) -> Home:
    home = Home(path, path)
    home.create()
    home.config_file.write_text("")
    write_secret(home.peer_key_file, bytes(32))
    write_secret(home.token_file, TOKEN.encode())
    return home


def write_run_file(home: Home, url: str, pid: int) -> None:
    home.run_file.write_text(json.dumps({"pid": pid, "http": url, "peer": "12D3", "addresses": []}))


@pytest.fixture
async def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Node]:
    face, stop = MemoryFace(), trio.Event()
    home = make_home(tmp_path / "home")
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(lambda task_status: serve_http(face, TOKEN, stop=stop, task_status=task_status))
        write_run_file(home, url, os.getpid())
        yield Node(face, home, url, capsys, stop)
        nursery.cancel_scope.cancel()
