"""What README.md says is so: the walk runs as it stands there, and every command, option, file and link exists."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from p2pmem_devnet import options
from p2pmem_protocol.content import IRI_BYTES_MAX, LITERAL_BYTES_MAX
from p2pmem_protocol.limits import STATEMENTS_MAX

from p2pmem.api.problems import EXIT_MEANINGS
from p2pmem.api.routes import CALLS, FILE_BYTES_MAX
from p2pmem.cli.command import make_parser
from p2pmem.cli.main import COMMANDS
from p2pmem.home import Home
from p2pmem.importing.formats import Format
from p2pmem.ledger.lifecycle import Transition
from tests.readme_walk import README, ROOT, Walk, match, plain, steps

TEXT = README.read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
WALKED = set("init run graph join draft share publish endorse verify recall query trust status".split())  # noqa: SIM905
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(TEXT) if found == language]


def said(text: str, program: str) -> Iterator[list[str]]:
    """Every `program ...` in code, as words, up to what is no plain word of it."""
    lines = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    for language, body in _FENCE.findall(text):
        if language in ("sh", "console"):
            lines += [line for line in body.splitlines() if language == "sh" or line.startswith("$ ")]
    for line in lines:
        begun = re.search(rf"(?:^|\$ |[ (])(?:\.venv/bin/)?{re.escape(program)}((?: .*)?)$", line)
        if begun is not None:
            yield re.split(r" #|[;|&>]", begun[1])[0].split()


# The walk


@pytest.mark.slow
@pytest.mark.processes
def test_the_walk_in_two_terminals_prints_what_the_page_shows(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine, and the walk is written for one")
    with Walk(tmp_path) as walk:
        for step in steps(TEXT):
            if step.command.startswith("curl") and shutil.which("curl") is None:
                continue
            walk.run(step)
    for home in ("ada", "bo"):
        there = {re.sub(r"-(wal|shm)$", "", path.name) for path in (tmp_path / home).iterdir()}
        assert there - files_named() == set()


def files_named() -> set[str]:
    """What README says that a home has."""
    section = TEXT.partition("## Where files lie")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name.rstrip("/") for row in rows for name in row.split("`")[1::2]}


def test_the_walk_has_every_step_of_a_memory() -> None:
    walked = {step.command.split()[1] for step in steps(TEXT) if step.command.startswith("p2pmem ")}
    assert walked >= WALKED
    assert {step.terminal for step in steps(TEXT)} == {"ada", "bo"}


def test_output_that_differs_in_a_word_does_not_match() -> None:
    shown = ["share succeeded 0x932d48f5…/x", "...", "  version   1"]
    real = ["share succeeded 0x" + "ab" * 20 + "/x", "  root  0x" + "cd" * 32, "  version   1"]
    assert match(shown, real) is not None
    assert match(shown, [*real[:-1], "  version   2"]) is None
    assert match(shown, real[1:]) is None
    assert match([], ["anything"]) is None
    assert plain("until 2026-11-30 12:15:43Z") == plain("until 2027-01-01 00:00:00Z")


# Commands and options


def _command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def check_p2pmem(words: list[str]) -> None:
    """Raises unless these words begin with a command that exists, and all options in them are its own."""
    parser: argparse.ArgumentParser = make_parser(COMMANDS)
    rest = list(words)
    while (choices := _command_parsers(parser)) and rest and not rest[0].startswith("-"):
        assert rest[0] in choices, f"there is no command `p2pmem {' '.join(words)}`"
        parser = choices[rest.pop(0)]
    known = {option for action in parser._actions for option in action.option_strings}
    for word in rest:
        if word.startswith("-") and len(word) > 1:
            assert word in known, f"`p2pmem {' '.join(words)}`: there is no {word}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_of_p2pmem_on_the_page_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = [*said(text, "p2pmem"), *said(text, "scripts/p2pmem")]
    assert named or page == "CHANGELOG.md"
    for words in named:
        check_p2pmem(words)


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert list(said("Say `p2pmem grap create x` now.", "p2pmem")) == [["grap", "create", "x"]]
    with pytest.raises(AssertionError, match="no command"):
        check_p2pmem(["grap", "create"])
    with pytest.raises(AssertionError, match="there is no --forever"):
        check_p2pmem(["share", "x", "--forever"])


def test_options_that_stand_alone_in_the_text_exist() -> None:
    known = {
        option
        for command in COMMANDS
        for parser in [argparse.ArgumentParser()]
        if command.arguments(parser) or True
        for action in parser._actions
        for option in action.option_strings
    }
    known |= {"--home", "--json", "--version"}
    known |= {option for action in options._parser()._actions for option in action.option_strings}
    text = _FENCE.sub("", TEXT)
    alone = {found for span in re.findall(r"`([^`\n]+)`", text) for found in re.findall(r"(?<!\S)--[a-z-]+", span)}
    assert alone
    assert alone - known == set()


def test_every_order_to_the_devnet_is_one_that_it_takes() -> None:
    named = [words for words in said(TEXT, "scripts/devnet") if words]
    assert {words[0] for words in named if not words[0].startswith("-")} == set(options.ORDERS)
    for words in named:
        options.parse([word for word in words if word != "FILE..."])


# Files and links


@pytest.mark.parametrize("page", [*PAGES, "devnet/README.md", "jobs/README.md", "protocol/README.md"])
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name) if name else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in {_anchor(line) for line in path.read_text().splitlines() if line.startswith("#")}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lstrip("# ").lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_in_code_is_there(page: str) -> None:
    text = _FENCE.sub("", (ROOT / page).read_text())
    roots = "|".join(("scripts", "tests", "protocol", "jobs", "p2pmem", "devnet", "requirements", r"\.ci"))
    for span in re.findall(r"`([^`\n]+)`", text):
        for name in re.findall(rf"(?<![\w/.$])((?:{roots})/[\w./*-]+)", span):
            if "NAME" not in name and not name.endswith("node_modules"):
                assert list(ROOT.glob(name.rstrip("/."))), f"{page} names {name}"


def test_the_files_of_a_home_are_those_that_a_home_has() -> None:
    home = Home(Path("/h"), Path("/h"))
    has = {
        value.name
        for it in dir(home)
        if it.endswith(("_file", "_dir")) and isinstance(value := getattr(home, it), Path)
    }
    assert files_named() == has - {"h"}


def test_what_undoes_a_setup_removes_all_that_it_makes_in_the_checkout() -> None:
    (undo,) = re.findall(r"^`rm -rf ([^`]+)`", TEXT, re.MULTILINE)
    script = (ROOT / "scripts" / "_setup.py").read_text()
    made = {
        "/".join(re.findall(r'"([^"]+)"', path))
        for path in re.findall(r"^(?:VENV|CACHE) = ROOT((?: / \"[^\"]+\")+)$", script, re.MULTILINE)
    }
    npm = "/".join(re.findall(r'"([^"]+)"', next(iter(re.findall(r"^NPM = ROOT(.*)$", script, re.MULTILINE)))))
    assert set(undo.split()) == {*made, f"{npm}/node_modules"}
    assert len(made) == 2


def test_the_limits_of_files_are_those_of_the_program() -> None:
    files = TEXT.partition("**Files.**")[2].partition("\n\n")[0]
    assert f"{FILE_BYTES_MAX // 2**20} MiB and {STATEMENTS_MAX:,} statements a file" in " ".join(files.split())
    assert f"{LITERAL_BYTES_MAX // 2**20} MiB a literal, {IRI_BYTES_MAX // 2**10} KiB an IRI" in " ".join(files.split())
    assert all(form.title in files for form in Format)
    for parameter in re.findall(r"`(\w+)`", files.partition("`POST /v1/drafts`")[2]):
        assert parameter in CALLS["draft"].in_query


def test_the_words_of_a_history_are_those_of_the_ledger() -> None:
    table = TEXT.partition("| in `p2pmem history` |")[2].partition("\n\n")[0]
    shown = " ".join(row.rpartition("| ")[2] for row in table.replace(" |\n", "\n").splitlines())
    assert {it.value for it in Transition} - set(re.findall(r"\w+", shown)) == set()


def test_no_page_names_what_there_is_not() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("devnet/*.md"), *ROOT.glob("p2pmem/**/*.py"), *ROOT.glob("devnet/**/*.py")]
    assert len(pages) > 100
    named = [page for page in pages if "node_modules" not in page.parts and re.search(r"\bMCP\b", page.read_text())]
    assert named == []
    for page in ROOT.glob("*/README.md"):
        assert "pip install 'p2pmem" not in page.read_text(), "it is on no index: in a checkout it is '.[EXTRA]'"


def test_the_exit_codes_are_those_of_the_program() -> None:
    table = TEXT.partition("<!-- exit codes -->")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", table, re.MULTILINE))
    assert rows == {str(code.value): meaning for code, meaning in EXIT_MEANINGS.items()}


def test_there_is_one_place_for_the_table_of_the_delivery_bench() -> None:
    assert TEXT.count("<!-- bench: delivery -->") == TEXT.count("<!-- /bench: delivery -->") == 1


# The map of the code


def test_the_map_of_the_code_has_every_folder_and_every_module() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## The map of the code")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in row.split("`")[1::2]}
    for package in ("protocol/p2pmem_protocol", "jobs/p2pmem_jobs", "devnet/p2pmem_devnet"):
        for path in (ROOT / package).glob("*.py"):
            assert path.stem.startswith("__") or any(fnmatch(path.stem, name) for name in named), f"no line has {path}"
    folders = {f"p2pmem/{path.parent.name}" for path in (ROOT / "p2pmem").glob("*/__init__.py")}
    assert folders == {name for name in named if name.startswith("p2pmem/")}
    modules = {path.stem for package in ("protocol", "jobs", "devnet") for path in (ROOT / package).glob("*/*.py")}
    gone = {it for it in named if "/" not in it and not any(fnmatch(module, it) for module in modules)}
    assert gone == set()


# Python


@pytest.mark.slow
def test_every_block_of_python_is_a_test_that_passes(tmp_path: Path) -> None:
    examples = blocks("python")
    assert examples
    for number, example in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    folders = os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet"))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "p2pmem_devnet.testing", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(examples)} passed" in ran.stdout
