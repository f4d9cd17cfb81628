"""`scripts/devnet` as a person runs it: the story comes true, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from p2pmem_devnet.anvil import BINARY_VARIABLE, AnvilMissingError, find_anvil

ROOT = Path(__file__).parents[2]
SLOWEST_S = 300

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def has_chain() -> bool:
    try:
        find_anvil()
    except AnvilMissingError:
        return False
    return True


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "p2pmem_devnet", *arguments]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Everything that a run writes lies under `home`, so that what it leaves behind is found."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "protocol", "jobs", "devnet")),
        "TMPDIR": str(home),
        "P2PMEM_DEVNET_CONTROL": str(home / "control"),
        **more,
    }


def left_behind(home: Path) -> list[str]:
    """Processes that know of `home` by their environment or their arguments."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(home) in words and int(process.name) != os.getpid():
            found.append(words.split(b"\0")[0].decode(errors="replace"))
    return found


def directories(home: Path) -> list[str]:
    """Those of runs, which hold keys."""
    return [path.name for path in home.iterdir() if path.name.startswith("p2pmem-devnet-")]


def devnet(home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(home, **more), timeout=SLOWEST_S
    )


@dataclass(frozen=True)
class Run:
    code: int
    document: Mapping[str, Any]
    errors: str
    home: Path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("story")
    done = devnet(home, "--json")
    return Run(done.returncode, json.loads(done.stdout), done.stderr, home)


def test_all_peers_agree(story: Run) -> None:
    assert (story.code, story.errors) == (0, "")
    assert story.document["ok"] is True
    assert story.document["problems"] == []
    (asset,) = story.document["assets"]
    assert len(asset["on"]) == 5
    assert {peer["root"] for peer in asset["on"].values()} == {asset["root"]}
    assert {(peer["layer"], peer["shown"]) for peer in asset["on"].values()} == {
        ("published", "ConsensusVerified 3 of 4")
    }
    assert all(peer["statement"]["root"] == asset["root"] for peer in asset["on"].values())
    assert list(asset["stages"]) == ["drafted", "shared", "published", "endorsed", "verified"]


@pytest.mark.chain
def test_the_root_is_on_the_chain(story: Run) -> None:
    if not has_chain():
        pytest.skip("no anvil")
    (asset,) = story.document["assets"]
    assert len(asset["transaction"]) == 66
    assert asset["block"] > 0


def test_every_member_could_query_what_was_shared(story: Run) -> None:
    assert sorted(story.document["visible_seconds"]) == ["bo", "cy", "dee", "eli"]


def test_the_outsider_got_no_byte_of_the_gated_graph_and_the_canary_of_the_open_one(story: Run) -> None:
    outsider = story.document["outsider"]
    assert [visit["node"] for visit in outsider["visits"]] == ["ada", "bo", "cy", "dee", "eli"]
    for visit in outsider["visits"]:
        assert visit["graph_bytes"] == 0
        assert visit["answers_alike"] is True
        assert visit["counted_bytes"] == visit["greeting_bytes"] + visit["no_bytes"] > 0
        assert visit["questions"] >= 20
        assert visit["refused_protocols"] == 12
    assert outsider["open_graph"]["found"] is True
    assert outsider["open_graph"]["graph_bytes"] > 500
    assert outsider["open_graph"]["gossip_tells_of_the_gated"] is False


def test_the_contradiction_was_beneath_the_finding_and_then_it_expired_everywhere(story: Run) -> None:
    assert "retainedEfficiency" in story.document["folded"]
    assert story.document["expired_on"] == ["ada", "bo", "cy", "dee", "eli"]
    assert all("a-quick-look" not in hit["reference"] for hit in story.document["recalled"])


def test_a_question_recalls_the_finding_with_who_stands_behind_it(story: Run) -> None:
    hit = story.document["recalled"][0]
    assert "93 %" in hit["text"]
    assert hit["trust"] == "ConsensusVerified"
    names = {peer["agent"]: peer["name"] for peer in story.document["peers"]}
    said = {(names[it["address"]], it["decision"], it["method"]) for it in hit["signers"]}
    assert said == {
        ("bo", "approve", "auto"),
        ("cy", "approve", "auto"),
        ("dee", "approve", "manual"),
        ("eli", "reject", "manual"),
        ("bo", "endorse", ""),
    }
    assert "61 %" in next(it["reason"] for it in hit["signers"] if it["decision"] == "reject")


def test_an_idle_node_is_small(story: Run) -> None:
    assert all(0 < peer["rss_bytes"] < 150 * 1024 * 1024 for peer in story.document["peers"])


def test_nothing_is_left_of_a_run(story: Run) -> None:
    assert left_behind(story.home) == []
    assert directories(story.home) == []


def test_without_anvil_it_says_so_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "a.ttl"
    file.write_text("<urn:a> <urn:b> <c> .\n")
    program = tmp_path / "no-anvil-here"
    done = devnet(tmp_path, "--nodes", "2", str(file), **{BINARY_VARIABLE: str(program)})
    assert done.returncode == 0, done.stderr
    assert "no chain: " in done.stdout
    assert "Both peers agree" in done.stdout
    assert left_behind(tmp_path) == []


def test_a_file_that_is_no_rdf_ends_the_run_with_its_line_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broken.ttl"
    file.write_text("<urn:a> <urn:b> <urn:c> .\n<urn:a> <urn:b> .\n")
    done = devnet(tmp_path, "--no-chain", "--nodes", "2", str(file))
    assert done.returncode == 3
    assert "broken.ttl" in done.stderr
    assert "line 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind(tmp_path) == []
    assert directories(tmp_path) == []


def test_a_kept_devnet_takes_orders_and_ends_when_told(tmp_path: Path) -> None:
    file = tmp_path / "a.nt"
    file.write_text('<urn:a> <urn:b> "tea keeps warm" .\n')
    arguments = command("--keep", "--no-chain", "--nodes", "2", str(file))
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment(tmp_path)) as process:
        assert process.stdout is not None
        hints: dict[str, str] = {}
        for line in process.stdout:
            hints |= {word: line.strip() for word in ("P2PMEM_HOME=", "p2pmem recall", "p2pmem query") if word in line}
            if "scripts/devnet stop" in line:
                break
        else:
            pytest.fail("it did not stay up")

        def order(*words: str) -> str:
            return devnet(tmp_path, *words).stdout

        home = hints["P2PMEM_HOME="].partition("=")[2]
        for word in ("p2pmem recall", "p2pmem query"):
            words = [sys.executable, "-m", *shlex.split(hints[word].removeprefix("scripts/"))]
            env = environment(tmp_path, P2PMEM_HOME=home)
            said = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
            assert "tea keeps warm" in said.stdout, said
        assert order("kill", "bo") == "bo is killed (-9)\n"
        assert "bo     down" in order("status")
        assert devnet(tmp_path, "kill", "bo").returncode == 2
        assert devnet(tmp_path, "kill", "nobody").returncode == 2
        assert order("start", "bo").startswith("bo is up: http://127.0.0.1:")
        assert "no byte passes" in order("partition", "ada,bo")
        assert "no byte passes between ada and bo" in order("status")
        assert "ended" in order("heal")
        assert "no byte" not in order("status")
        assert devnet(tmp_path, "--keep", "--no-chain", "--nodes", "2", str(file)).returncode == 2
        assert order("stop") == "it ends\n"
        assert process.wait(60) == 0
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_ends_everything(tmp_path: Path, how: signal.Signals) -> None:
    with subprocess.Popen(
        command("--no-chain", "--nodes", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "are up" in line:
                break
        process.send_signal(how)
        code = process.wait(60)
    assert code == (-9 if how is signal.SIGKILL else 130)
    assert how is signal.SIGKILL or directories(tmp_path) == []
    deaths = 0
    while left_behind(tmp_path):  # after SIGKILL nobody waits for the nodes: they end by themselves
        deaths += 1
        assert deaths < 10_000
