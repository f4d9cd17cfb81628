"""What goes wrong: one clear line, the exit code that the help names, and nothing changed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from p2pmem_protocol.errors import BugError, OutsideError, Reason, RefusedError

from p2pmem.api.problems import Exit
from p2pmem.home import write_secret
from tests.p2pmem.api.memory_values import proof_of

from .conftest import Node, Said, make_home, run_here, write_run_file

GIVES_UP_S = 30.0


def one_line(said: Said) -> str:
    assert said.out == ""
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "required: COMMAND"),
        (["nothing"], "p2pmem: there is no command 'nothing' (see `p2pmem --help`)"),
        (["shrae", "x"], "p2pmem: there is no command 'shrae'; did you mean share? (see `p2pmem --help`)"),
        (
            ["graph", "members2"],
            "p2pmem graph: there is no command 'members2'; did you mean members? (see `p2pmem graph",
        ),
        (["graph"], "required: COMMAND"),
        (["graph", "create"], "required: SLUG"),
        (["share", "x", "--ttl", "soon"], "'soon' is no duration"),
        (["share", "x", "--ttl", "0s"], "no duration above 0"),
        (["share", "x", "--ttl", "-5m"], "'-5m' is no duration"),
        (["share", "x", "--tt", "1s"], "unrecognized arguments"),
        (["draft", "x", "a.ttl", "b.ttl"], "p2pmem draft: unrecognized arguments: b.ttl (see `p2pmem draft --help`)"),
        (["job", "show", "j", "--graph", "g"], "p2pmem job show: unrecognized arguments: --graph g (see"),
        (["draft"], "required: NAME"),
        (["versions", "--layer", "all"], "working, shared, published"),
        (["versions", "--layer", "working"], "`p2pmem drafts` lists them"),
        (["job", "resolve", "j", "--as", "maybe"], "invalid choice"),
        (["job", "list", "--limit", "many"], "invalid int"),
        (["graph", "create", "x", "--member", "=writer"], "names no address"),
        (["job", "show", "\udcff"], "job holds bytes that are no UTF-8"),
        (["job", "list", "--before", "\udcff"], "before holds bytes that are no UTF-8"),
        (["graph", "create", "x", "--member", f"0x{'0' * 40}=writer=\udcff"], "member holds bytes that are no UTF-8"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    said = run_here(capsys, *words)
    assert said.code == Exit.MISUSE
    assert says in one_line(said)
    assert "--help" in said.err
    for as_json in (run_here(capsys, "--json", *words), run_here(capsys, *words, "--json")):
        assert as_json.code == Exit.MISUSE
        problem = json.loads(one_line(as_json))["error"]
        assert problem["code"] == "bad-request"
        assert says in problem["message"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["graph", "create", "findings"], Exit.MISUSE, "exists already"),
        (["graph", "create", "x", "--m", "0"], Exit.MISUSE, "M = 0"),
        (["graph", "show", "--graph", "0x/x"], Exit.MISUSE, "is not an address"),
        (["graph", "show", "--graph", f"0x{'0' * 40}/x"], Exit.NOT_FOUND, "unknown here or not yours"),
        (["graph", "leave"], Exit.MISUSE, "say which context graph to leave: `p2pmem graph leave GRAPH`"),
        (["graph", "show", "findings", "--graph", "other"], Exit.MISUSE, "once: findings or --graph other"),
        (["graph", "show", "other"], Exit.NOT_FOUND, "no context graph here is called 'other'"),
        (["job", "show", ""], Exit.NOT_FOUND, "there is no job ''"),
        (["job", "cancel", ".."], Exit.NOT_FOUND, "there is no job '..'"),
        (["peer", "show", "a/b?c"], Exit.NOT_FOUND, "there is no peer 'a/b?c'"),
        (["share", "nothing"], Exit.NOT_FOUND, "no draft 'nothing'"),
        (["discard", "nothing"], Exit.NOT_FOUND, "no draft 'nothing'"),
        (["publish", "nothing"], Exit.NOT_FOUND, "nothing"),
        (["share", "x", "--ttl", "99d"], Exit.MISUSE, "maximum"),
        (["show", "nothing"], Exit.NOT_FOUND, "nothing"),
        (["join", "hello"], Exit.MISUSE, "not an invite"),
        (["job", "show", "nothing"], Exit.NOT_FOUND, "no job nothing"),
        (["job", "watch", "nothing"], Exit.NOT_FOUND, "no job nothing"),
        (["job", "cancel", "job-1"], Exit.MISUSE, "has ended"),
        (["proof", "export", "x", "--statement", "never said"], Exit.REFUSED, "not in it"),
        (["draft", "x", "no-such-file"], Exit.NOT_FOUND, "there is no file no-such-file"),
        (["draft", "x", "."], Exit.REFUSED, ". is not a file"),
        (["query", "--file", "."], Exit.REFUSED, ". is not a file"),
        (["query"], Exit.MISUSE, "SPARQL or with --file"),
        (["query", "--file", "no-such-file"], Exit.NOT_FOUND, "no-such-file"),
        (["changes", "--limit", "0"], Exit.MISUSE, "--limit"),
    ],
)
async def test_what_cannot_be_is_one_line_and_its_exit_code(
    node: Node, words: list[str], code: Exit, says: str
) -> None:
    await node.shared()
    said = await node(*words)
    assert (said.code, says in one_line(said)) == (code, True), said
    as_json = await node(*words, "--json")
    assert as_json.code == code
    assert set(json.loads(as_json.err)["error"]) >= {"code", "message"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError(Reason.OVER_QUOTA, "your quota is used up"), Exit.REFUSED),
        (OutsideError("the chain does not answer"), Exit.OUTSIDE),
        (BugError("a promise is broken"), Exit.BUG),
        (KeyError("a promise is broken"), Exit.BUG),
    ],
)
async def test_an_error_of_the_node_keeps_its_family(node: Node, error: Exception, code: Exit) -> None:
    node.face.fail["status"] = error
    said = await node("status")
    assert said.code == code
    one_line(said)


async def test_a_wrong_token_is_said_as_such(node: Node) -> None:
    node.home.token_file.unlink()
    write_secret(node.home.token_file, b"another-token-altogether")
    said = await node("status")
    assert said.code == Exit.NOT_ALLOWED
    assert "token" in one_line(said)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"a b\nc", b"\xff\xfe\x00"])
async def test_a_token_file_that_holds_no_token_is_said_as_such_and_not_repeated(node: Node, content: bytes) -> None:
    node.home.token_file.unlink()
    write_secret(node.home.token_file, content)
    said = await node("status")
    assert said.code == Exit.MISUSE
    assert f"{node.home.token_file} does not hold a token" in one_line(said)


async def test_a_token_that_others_can_read_is_not_used(node: Node) -> None:
    node.home.token_file.chmod(0o644)
    said = await node("status")
    assert said.code == Exit.MISUSE
    assert "chmod 600" in one_line(said)


def test_no_node_is_said_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run_here(capsys, "status", "--home", str(tmp_path))
    assert said.code == Exit.MISUSE
    assert "`p2pmem init`" in one_line(said)
    home = make_home(tmp_path)
    said = run_here(capsys, "status", "--home", str(tmp_path))
    assert said.code == Exit.OUTSIDE
    assert "`p2pmem run`" in one_line(said)
    write_run_file(home, "http://127.0.0.1:1", os.getpid())
    said = run_here(capsys, "--home", str(tmp_path), "status")
    assert said.code == Exit.OUTSIDE
    assert "127.0.0.1:1" in one_line(said)
    home.run_file.write_text("{")
    assert "does not say who runs here" in one_line(run_here(capsys, "status", "--home", str(tmp_path)))


def test_the_file_of_a_process_that_is_gone_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_run_file(make_home(tmp_path), "http://127.0.0.1:1", gone.pid)
    said = run_here(capsys, "status", "--home", str(tmp_path))
    assert said.code == Exit.OUTSIDE
    assert f"process {gone.pid} is gone" in one_line(said)


# Jobs


@asynccontextmanager
async def waiting(node: Node, *words: str) -> AsyncIterator[list[Said]]:
    """A command that waits for its job; after the block, what it said in the end."""
    await node.shared()
    node.face.hold = True
    said: list[Said] = []

    async def command() -> None:
        said.append(await node(*words))

    with trio.fail_after(GIVES_UP_S):  # a command that fails never does what the loop below waits for
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command)
            while not any(name == "watch_job" for name, _ in node.face.calls):
                await trio.testing.wait_all_tasks_blocked(0.01)
            yield said


async def test_a_job_is_waited_for_and_how_it_waits_is_told(node: Node) -> None:
    async with waiting(node, "verify", "x") as said:
        await node.face.progress("job-2", "2 of 3; waiting for \x1b[1mbob")
        await trio.testing.wait_all_tasks_blocked(0.05)
        await node.face.finish("job-2", result={"level": "Rejected", "shown": "1 of 3"})
    assert said[0].code == Exit.JOB_ENDED_BADLY
    assert "Rejected" in said[0].out
    assert "verify: waiting - 2 of 3; waiting for \N{REPLACEMENT CHARACTER}[1mbob" in said[0].err


async def test_without_waiting_the_job_is_the_answer(node: Node) -> None:
    await node.shared()
    node.face.hold = True
    said = await node("share", "x", "--no-wait", "--json")
    assert (said.code, said.json["state"]) == (0, "running")
    assert (await node("job", "cancel", said.json["id"])).code == 0


async def test_the_next_page_of_a_list_is_one_of_the_same_jobs(node: Node) -> None:
    await node.shared()
    said = await node("job", "list", "--state", "succeeded", "--kind", "share", "--limit", "1")
    assert "more: p2pmem job list --state succeeded --kind share --limit 1 --before job-1\n" in said.err


async def test_the_end_of_patience_says_that_the_job_goes_on(node: Node) -> None:
    await node.shared()
    node.face.hold = True
    said = await node("publish", "x", "--wait", "1ms")
    assert said.code == Exit.TIMEOUT
    assert "p2pmem job watch job-2" in said.err


@pytest.mark.parametrize("state", ["failed", "cancelled", "outcome_unknown"])
async def test_a_job_that_ended_badly_says_so_by_its_exit_code(node: Node, state: str) -> None:
    await node.shared()
    node.face.hold = True
    await node("publish", "x", "--no-wait")
    await node.face.finish("job-2", state, error="no member holds the bytes")
    said = await node("job", "watch", "job-2")
    assert said.code == Exit.JOB_ENDED_BADLY
    assert "no member holds the bytes" in said.out
    assert ("job resolve job-2" in said.out) == (state == "outcome_unknown")


async def test_a_node_that_stops_in_between_is_said(node: Node) -> None:
    async with waiting(node, "publish", "x") as said:
        node.stop.set()
    assert said[0].code == Exit.OUTSIDE
    assert "p2pmem job watch job-2" in said[0].err


async def test_changes_end_with_an_error_when_the_node_stops(node: Node) -> None:
    await node.founded()
    said: list[Said] = []

    async def command() -> None:
        said.append(await node("changes", "--since", "0", "--json"))

    with trio.fail_after(GIVES_UP_S):  # a command that fails never does what the loop below waits for
        async with trio.open_nursery() as nursery:
            nursery.start_soon(command)
            while not any(name == "changes" for name, _ in node.face.calls):
                await trio.testing.wait_all_tasks_blocked(0.01)
            node.stop.set()
    assert said[0].code == Exit.OUTSIDE
    assert json.loads(said[0].err)["error"]["code"] == "unreachable"


def test_an_interruption_is_a_problem_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("p2pmem.cli.main._run", interrupt)
    said = run_here(capsys, "status", "--home", str(tmp_path), "--json")
    assert (said.code, json.loads(one_line(said))["error"]["code"]) == (Exit.INTERRUPTED, "interrupted")


# Offline checks


def test_a_proof_that_was_tampered_with_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "<x:a> <x:b> <x:c> .\n"
    proof = proof_of([line, "<x:d> <x:e> <x:f> .\n", "<x:g> <x:h> <x:i> .\n"], line, "a/b@1")
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(proof))
    assert run_here(capsys, "proof", "check", str(file), "--root", str(proof["root"])).code == 0
    assert run_here(capsys, "proof", "check", str(file), "--root", "0x" + "0" * 64).code == Exit.MISUSE
    for name, value in (("statement", line.replace("x:a", "x:b")), ("root", "0x" + "0" * 64), ("leaves", 300)):
        file.write_text(json.dumps({**proof, name: value}))
        said = run_here(capsys, "proof", "check", str(file))
        assert said.code == Exit.REFUSED
        one_line(said)
    for text in ("{}", "nothing", json.dumps({**proof, "leaf": "0x00"})):
        file.write_text(text)
        said = run_here(capsys, "proof", "check", str(file))
        assert said.code == Exit.REFUSED
        assert one_line(said).startswith(f"p2pmem: {file} is not a proof: ")
    assert run_here(capsys, "proof", "check", str(tmp_path / "none")).code == Exit.NOT_FOUND


def test_a_file_that_is_something_else_is_said_to_be_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.protocol.test_certificate import made

    turtle, good = tmp_path / "ok.ttl", tmp_path / "x.certificate"
    turtle.write_text("@prefix x: <x:> . x:s x:p x:o .\n")
    good.write_bytes(made().encode())
    for words, says in (
        (["trust", "check", str(turtle)], f"{turtle} is not a certificate, which `p2pmem trust export` writes: "),
        (["trust", "check", str(good), "--content", str(turtle)], f"{turtle} is not what `p2pmem content` wrote"),
        (["trust", "check", str(good), "--head", str(turtle)], f"{turtle} is not a roster that `p2pmem graph roster`"),
        (["proof", "check", str(turtle)], f"{turtle} is not a proof: it is not JSON"),
    ):
        said = run_here(capsys, *words)
        assert said.code == Exit.REFUSED
        assert one_line(said).startswith(f"p2pmem: {says}")
        problem = json.loads(run_here(capsys, *words, "--json").err)["error"]
        assert (problem["code"], problem["message"].startswith(says)) == ("bad-file", True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert "standard input is not a certificate" in one_line(run_here(capsys, "trust", "check", "-"))


def test_a_certificate_is_checked_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from p2pmem_protocol.certificate_json import to_json

    from tests.protocol.test_certificate import made

    file = tmp_path / "x.certificate"
    file.write_bytes(made().encode())
    said = run_here(capsys, "trust", "check", str(file))
    assert said.code == 0
    assert said.out.startswith("holds: ")
    assert "2 of 3 under quorum 2" in said.out
    as_json = run_here(capsys, "trust", "check", str(file), "--json").json
    assert as_json["holds"] is True
    file.write_text(to_json(made()))
    assert run_here(capsys, "trust", "check", str(file), "--json").json == as_json
    data = bytearray(made().encode())
    data[-20] ^= 1
    file.write_bytes(data)
    said = run_here(capsys, "trust", "check", str(file))
    assert said.code == Exit.REFUSED
    assert f"{file} does not hold: " in one_line(said)
    file.write_bytes(made().encode())
    other = tmp_path / "other.nq"
    other.write_text("<x:a> <x:b> <x:c> .\n")
    said = run_here(capsys, "trust", "check", str(file), "--content", str(other))
    assert said.code == Exit.REFUSED
    assert "other content" in one_line(said)
