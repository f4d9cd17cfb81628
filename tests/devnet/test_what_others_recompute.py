"""A root, a proof and a certificate from a running fleet, recomputed and checked by code that is not ours."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pyoxigraph as ox
import pytest
import trio
from p2pmem_devnet.anvil import NPM_DIRECTORY
from p2pmem_devnet.fleet import FleetSettings, NodeProcess, open_fleet
from p2pmem_devnet.group import finished, found, on_all

from tests.devnet.check_certificate import check

HERE = Path(__file__).parent
TURTLE = resources.files("p2pmem_devnet").joinpath("data", "finding.ttl").read_bytes()

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@dataclass(frozen=True)
class Made:
    """What a fleet of three made of the shipped finding."""

    root: str
    content: bytes
    proof: dict[str, object]
    certificates: dict[str, bytes]
    statements: list[dict[str, object]]


async def make(directory: Path) -> Made:
    async with open_fleet(["ada", "bo", "cy"], directory, FleetSettings("devnet")) as fleet:
        await fleet.start()
        group = await found(fleet, "trial", 2, chain=False)
        ada, graph = group.founder.face, group.graph
        await ada.draft(graph, "finding", TURTLE, format="turtle", base=None, subgraph="", replace=False)
        await finished(ada, await ada.share(graph, "finding", ttl_ms=None))
        job = await finished(ada, await ada.verify(graph, "finding", deadline_ms=None))
        version = await ada.version(graph, job.reference)
        content = await ada.content(graph, version.reference)
        line = next(line for line in content.decode().splitlines() if "0.934" in line)
        certificates: dict[str, bytes] = {}
        statements: list[dict[str, object]] = []

        async def certify(node: NodeProcess) -> None:
            made = await node.face.certificate(graph, version.reference)
            certificates[node.name] = bytes.fromhex(made.cbor)
            statements.append(made.statement)

        await on_all(group.members, certify)
        return Made(version.root, content, await ada.proof(graph, version.reference, line), certificates, statements)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return trio.run(make, tmp_path_factory.mktemp("fleet"))


def shuffled_quads() -> str:
    """The same graph as another program would write it: other labels of blank nodes, another order."""
    written = ox.serialize(ox.parse(TURTLE, ox.RdfFormat.TURTLE), format=ox.RdfFormat.N_QUADS)
    assert written is not None
    lines = written.decode().splitlines()
    random.Random(3).shuffle(lines)
    return "\n".join(lines) + "\n"


@pytest.mark.node
def test_npm_packages_compute_the_same_root_and_accept_the_same_proof(made: Made) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js on the path")
    if not (NPM_DIRECTORY / "node_modules" / "rdf-canonize").is_dir():
        pytest.skip(f"no rdf-canonize: run `npm ci --ignore-scripts` in {NPM_DIRECTORY}")
    asked = {"quads": shuffled_quads(), "statement": made.proof["statement"], "proof": made.proof["proof"]}
    done = subprocess.run(
        [node, "-e", (HERE / "recompute.cjs").read_text()],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=NPM_DIRECTORY,
        check=True,
    )
    theirs = json.loads(done.stdout)
    assert theirs["content"].encode() == made.content
    assert theirs["root"] == made.root == made.proof["root"]
    assert theirs["leaves"] == made.proof["leaves"]
    assert theirs["proven"] is True


def test_the_signatures_of_every_peers_certificate_hold_for_eth_account(made: Made) -> None:
    said = {check(certificate) for certificate in made.certificates.values()}
    assert len(made.certificates) == 3
    assert len(said) == 1
    (words,) = said
    assert words.startswith("2 of 2 verified 0x")
    assert words.endswith(made.root)


def test_peers_certify_the_same_statement(made: Made) -> None:
    assert len(made.statements) == 3
    assert made.statements[0] == made.statements[1] == made.statements[2]


def test_a_changed_byte_of_a_certificate_is_noticed(made: Made) -> None:
    data = made.certificates["ada"]
    at = data.index(bytes.fromhex(made.root[2:]))
    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with pytest.raises(AssertionError):
        check(changed)


def test_the_script_runs_by_itself(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "certificate.cbor"
    file.write_bytes(made.certificates["bo"])
    done = subprocess.run(
        [sys.executable, "-I", str(HERE / "check_certificate.py"), str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.root in done.stdout
