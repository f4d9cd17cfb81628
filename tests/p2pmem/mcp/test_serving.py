"""`p2pmem mcp` as the process that a model's client starts, beside the node that it talks to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.p2pmem.cli.conftest import run_here
from tests.p2pmem.cli.processes import ENVIRONMENT, P2PMEM
from tests.p2pmem.mcp.test_tools import ask, problem

pytestmark = pytest.mark.processes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    subprocess.run([*P2PMEM, "init", "--home", str(tmp_path)], env=ENVIRONMENT, check=True, capture_output=True)
    return tmp_path


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[None]:
    """The node of a directory, from ready to killed."""
    run = partial(trio.run_process, env=ENVIRONMENT, stdout=subprocess.PIPE, check=False)
    async with trio.open_nursery() as nursery:
        node = await nursery.start(run, [*P2PMEM, "run", "--home", str(home)])
        assert (await node.stdout.receive_some()).startswith(b"ready: ")
        yield
        node.kill()


def serving(home: Path, *more: str) -> StdioServerParameters:
    command, *words = P2PMEM
    return StdioServerParameters(command=command, args=[*words, "mcp", "--home", str(home), *more], env=ENVIRONMENT)


async def test_the_tools_stay_while_the_node_comes_and_goes(home: Path) -> None:
    statements = '<urn:ex:a> <urn:ex:says> "aspirin lowers it" .'
    async with Client(stdio_client(serving(home))) as model:
        assert "start it with `p2pmem run` first" in await problem(model, "status")
        async with running(home):
            assert (await ask(model, "status"))["graphs"] == 0
            assert "`p2pmem graph create` founds one" in await problem(model, "share", name="n", statements=statements)
            create = [*P2PMEM, "graph", "create", "findings", "--home", str(home)]
            await trio.run_process(create, env=ENVIRONMENT, capture_stdout=True)
            assert (await ask(model, "share", name="n", statements=statements))["state"] == "succeeded"
        assert "is gone; start it with `p2pmem run` again" in await problem(model, "recall", question="aspirin")
        async with running(home):
            (passage,) = (await ask(model, "recall", question="aspirin"))["passages"]
            assert "aspirin lowers it" in passage["said"]


async def test_an_agent_asks_many_things_at_once_with_a_token_of_its_own(home: Path) -> None:
    (key_file,) = (home / "agents").glob("*.json")
    agent = f"0x{json.loads(key_file.read_text())['address'].removeprefix('0x')}"
    statements = '<urn:ex:a> <urn:ex:says> "aspirin lowers it" .'
    answers: list[str] = []
    async with running(home), Client(stdio_client(serving(home, "--agent", agent))) as model:
        create = [*P2PMEM, "graph", "create", "findings", "--home", str(home)]
        await trio.run_process(create, env=ENVIRONMENT, capture_stdout=True)
        assert "retract" not in {tool.name for tool in (await model.list_tools()).tools}

        async def say(number: int) -> None:
            job = await ask(model, "share", name=f"n{number}", statements=statements.replace("ex:a", f"ex:{number}"))
            answers.append(job["state"])

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(say, number)
        assert answers == ["succeeded"] * 20
        shown = [await ask(model, "show", reference=f"n{number}") for number in range(20)]
        assert {it["statements"] for it in shown} == {
            statements.replace("ex:a", f"ex:{number}") + "\n" for number in range(20)
        }


def test_an_interrupt_ends_it_though_a_thread_reads_the_input(home: Path) -> None:
    server = serving(home)
    with subprocess.Popen(
        [server.command, *server.args], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT


def test_what_is_no_agent_or_no_node_is_said_before_anything_is_served(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run_here(capsys, "mcp", "--home", str(home), "--agent", "0x12")
    assert (said.code, said.out) == (2, "")
    said = run_here(capsys, "mcp", "--home", str(tmp_path / "none"))
    assert said.code != 0
    assert "p2pmem init" in said.err


def test_without_the_sdk_it_says_what_to_install(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "p2pmem.mcp.server", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mcp"]:
        monkeypatch.setitem(sys.modules, name, None)
    said = run_here(capsys, "mcp", "--home", str(home))
    assert (said.code, said.out) == (2, "")
    assert "pip install 'p2pmem[mcp]'" in said.err
