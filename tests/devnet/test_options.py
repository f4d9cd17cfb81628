"""What `scripts/devnet` refuses before it starts anything, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from p2pmem_devnet.cli import main
from p2pmem_devnet.files import read_files
from p2pmem_devnet.options import Options, Order, parse
from p2pmem_devnet.table import columns
from p2pmem_devnet.telling import Teller, and_list, count, seconds


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
    ("kind", "words"), [("missing", "there is no file"), ("directory", "is a directory"), ("empty", "is empty")]
)
def test_a_file_that_cannot_be_read_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: str
) -> None:
    path = tmp_path / "x.ttl"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.write_text(" \n")
    assert main(["--no-chain", str(path)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


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
    for code in ("0", "1", "2", "3", "4", "5", "130"):
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
