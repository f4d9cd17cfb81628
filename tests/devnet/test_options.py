"""What `scripts/devnet` refuses before it starts anything, and with which words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trio
from p2pmem_devnet.cli import main
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.control import control_directory
from p2pmem_devnet.files import check_files, question_about, read_files
from p2pmem_devnet.fleet import real_error
from p2pmem_devnet.options import Options, Order, Rehearsal, parse
from p2pmem_devnet.running import run_directory
from p2pmem_devnet.table import columns
from p2pmem_devnet.telling import Teller, and_list, count, seconds
from p2pmem_protocol.errors import MisuseError, OutsideError
from trio.testing import MockClock

from p2pmem.api.problems import Exit
from p2pmem.importing.errors import BadBaseError

ROOT = Path(__file__).parents[2]
DIES = """
import os, signal
from p2pmem_devnet.running import run_directory
with run_directory() as path:
    (path / "peer.key").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PMEM_DEVNET_CONTROL", str(tmp_path / "control"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "1"], "--nodes is 1: 2 to 12 are possible"),
        (["--nodes", "13"], "--nodes is 13"),
        (["--quorum", "0"], "--quorum is 0: with 5 peers, 1 to 4 others can approve"),
        (["--nodes", "3", "--quorum", "3"], "--quorum is 3: with 3 peers, 1 to 2 others can approve"),
        (["kill"], "it is written: scripts/devnet kill NAME"),
        (["partition", "a,b", "c"], "scripts/devnet partition A,B"),
        (["kill", "dee"], "no devnet is kept: start one with `scripts/devnet --keep`"),
        (["stopp"], "'stopp' is neither a file nor an order; did you mean stop?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("missing", Exit.NOT_FOUND, "there is no file"),
        ("directory", Exit.REFUSED, "is not a file"),
        ("empty", Exit.REFUSED, "the file is empty"),
        ("broken", Exit.REFUSED, "line 2, column 17: not valid Turtle"),
        ("named graphs", Exit.REFUSED, "--merge-graphs"),
        ("a letter", Exit.REFUSED, "not recognised as RDF"),
    ],
)
def test_a_file_that_cannot_be_taken_is_refused_before_anything_starts_with_the_codes_of_p2pmem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, code: Exit, words: str
) -> None:
    path = tmp_path / "x.ttl"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.write_text(" \n")
    elif kind == "broken":
        path.write_text("<urn:a> <urn:b> <urn:c> .\n<urn:a> <urn:b> .\n")
    elif kind == "named graphs":
        path = tmp_path / "x.nq"
        path.write_text("<urn:a> <urn:b> <urn:c> <urn:g> .\n")
    elif kind == "a letter":
        path = tmp_path / "x"
        path.write_text("Dear reader")
    assert main(["--no-chain", str(path)]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("devnet: ")
    assert str(path) in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert main(["--no-chain", str(path), "--json"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in json.loads(captured.err)["error"]["message"]


def test_all_bad_files_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a.ttl", "<urn:a>"), ("b.ttl", "<urn:a> <urn:b> <urn:c> ."), ("c.jsonld", "{")):
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name) for name in ("a.ttl", "b.ttl", "c.jsonld")]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert said.startswith(f"devnet: 2 of 3 files are refused: {tmp_path / 'a.ttl'}: line 1")
    assert f"; {tmp_path / 'c.jsonld'}: " in said


@pytest.mark.parametrize("arguments", [["--nodes", "x"], ["--frob"], ["--nodes", "1"], ["run"], ["kill"]])
def test_wrong_usage_is_one_line_and_in_json_a_problem(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == Exit.MISUSE
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert main([*arguments, "--json"]) == Exit.MISUSE
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["error"]["code"] in ("bad-request", "misuse")


def test_scenarios_are_spread_over_all_cores_unless_it_is_said_otherwise() -> None:
    assert parse(["run", "all", "--count", "3"]) == Rehearsal("all", 1, 3, os.cpu_count() or 1)
    assert parse(["run", "all", "--processes", "1"]) == Rehearsal("all", 1, 1, 1)


def test_a_base_is_taken_as_the_warning_of_relative_iris_says() -> None:
    found = parse(["a.ttl", "--base", "https://example.org/"])
    assert isinstance(found, Options)
    assert found.base == "https://example.org/"


async def test_files_are_checked_against_the_base_that_was_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.ttl").write_text("<a> <b> <c> .")
    files = read_files([tmp_path / "a.ttl"])
    await check_files(files, merge_graphs=False, base="https://example.org/")
    with pytest.raises(BadBaseError):
        await check_files(files, merge_graphs=False, base="nothing")


def test_options_may_stand_between_files() -> None:
    found = parse(["a.ttl", "--json", "b.ttl", "--nodes", "3", "c.ttl", "--merge-graphs"])
    assert found == Options((Path("a.ttl"), Path("b.ttl"), Path("c.ttl")), 3, 2, json=True, merge_graphs=True)


def test_a_kept_devnet_is_found_from_a_terminal_with_another_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("P2PMEM_DEVNET_CONTROL", "XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    found = control_directory()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert control_directory() == found


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (None, False),
        (MisuseError("refused"), False),
        (ExceptionGroup("", [ExceptionGroup("", [MisuseError("refused")])]), False),
        (KeyboardInterrupt(), False),
        (OutsideError("a process ended"), True),
        (ExceptionGroup("", [OutsideError("a process ended")]), True),
        (KeyError("a mistake"), True),
    ],
)
def test_the_directory_of_a_run_goes_unless_it_explains_what_failed_and_then_it_is_named(
    error: BaseException | None, kept: bool
) -> None:
    path = Path()
    try:
        with run_directory() as path:
            (path / "peer.key").write_text("secret")
            if error is not None:
                raise error
    except BaseException as raised:
        notes = getattr(real_error(raised), "__notes__", [])
        assert [str(path) in note for note in notes] == [True] * kept
    assert path.exists() == kept
    shutil.rmtree(path, ignore_errors=True)


async def test_the_directory_of_an_interrupted_run_goes_from_within_nurseries_too() -> None:
    with trio.CancelScope() as scope, run_directory() as path:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert not path.exists()


@pytest.mark.processes
def test_what_a_killed_run_left_goes_at_the_next_and_what_explains_a_failure_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OutsideError), run_directory() as kept:
        raise OutsideError("a process ended")
    folders = os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet"))
    environment = {**os.environ, "PYTHONPATH": folders, "TMPDIR": str(tmp_path)}
    with run_directory() as running:
        subprocess.run([sys.executable, "-c", DIES], env=environment, check=False, timeout=60)
        assert len({it for it in tmp_path.iterdir() if it.is_dir()} - {kept, running}) == 1
        with run_directory() as other:
            assert {it for it in tmp_path.iterdir() if it.is_dir()} == {kept, running, other}
    assert list(tmp_path.iterdir()) == [kept]


async def test_the_question_that_is_proposed_is_answered_by_what_is_in_the_files(autojump_clock: MockClock) -> None:
    async with Cluster(1) as cluster:
        (ada,) = cluster.nodes
        slug = cluster.graph.partition("/")[2]
        await ada.share("ex:a ex:b 7 .")
        assert await question_about(ada.face, slug) == ""
        await ada.share('ex:a rdfs:label "x-1" ; rdfs:comment "Tee hält \\"warm\\", sehr lange, im Winter"@de .')
        question = await question_about(ada.face, slug)
        assert question == "Tee hält warm sehr lange"
        assert await ada.recall(question)


def test_most_of_the_others_have_to_approve_unless_told() -> None:
    for nodes, m in ((2, 1), (3, 2), (4, 2), (5, 3), (12, 6)):
        found = parse(["--nodes", str(nodes)])
        assert isinstance(found, Options)
        assert found.m == m
    assert parse(["partition", "ada,bo"]) == Order("partition", "ada,bo")


def test_files_of_one_name_become_assets_of_two(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my file.ttl").write_text(f"<urn:{folder}> <urn:b> <urn:c> .")
    found = read_files([tmp_path / "one" / "my file.ttl", tmp_path / "two" / "my file.ttl"])
    assert list(found) == ["my-file.ttl", "my-file-2.ttl"]


def test_exit_codes_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "exit codes:" in said
    for code in ("0", "1", "2", "3", "4", "5", "7", "130"):
        assert f"  {code.rjust(3)}  " in said


def test_numbers_are_said_as_people_say_them() -> None:
    assert [seconds(0.0384), seconds(4.21)] == ["38 ms", "4.2 s"]
    assert [count(1, "byte"), count(1234, "byte")] == ["1 byte", "1,234 bytes"]
    assert [and_list([]), and_list(["a"]), and_list(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert columns(["a", "number"], [["x", "1"], ["yyy", "12"]], [False, True]).splitlines()[2:] == [
        "  x         1",
        "  yyy      12",
    ]


async def test_the_story_is_remembered_with_its_times() -> None:
    printed: list[str] = []
    teller = Teller(out=printed.append)
    teller.say("word " * 40)
    assert all(len(line) <= 110 for line in printed[0].splitlines())
    assert teller.told[0].text == "word " * 40
