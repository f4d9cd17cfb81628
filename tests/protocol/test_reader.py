"""A reader in another language, written from the specification and the vectors alone, agrees with the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.node_tools import NodeTools
from tests.suites import Suites

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
READER = sorted(Path(__file__).with_name("reader").glob("*.mjs"))

pytestmark = pytest.mark.node


def run(node_tools: NodeTools, folder: Path, vectors: Path) -> subprocess.CompletedProcess[str]:
    if not (node_tools.modules / "ethers").is_dir():
        pytest.skip("no ethers among the npm packages: run scripts/setup")
    folder.mkdir()
    program = node_tools.lay_out(folder, *READER) / "main.mjs"
    command = [node_tools.program, str(program), str(vectors)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_reader_agrees_with_every_vector(node_tools: NodeTools, suites: Suites, tmp_path: Path) -> None:
    ran = run(node_tools, tmp_path / "reader", VECTORS)
    assert ran.returncode == 0, ran.stderr
    print(ran.stdout)
    lines = re.findall(r"^(\w+) (\d+) (\d+)$", ran.stdout, re.MULTILINE)
    for name, cases, held in lines:
        suites(f"protocol/vectors/{name}.json, read in JavaScript").count(int(cases), int(held))
    assert {name for name, _, _ in lines} == {path.stem for path in VECTORS.glob("*.json")}
    assert all(int(cases) == int(held) >= 10 for _, cases, held in lines)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("items", ["accepted", 0, "id"]),
        ("rosters", ["quorums", 0, "id"]),
        ("contents", ["canonical", 0, "root"]),
        ("structs", ["structs", 2, "digest"]),
        ("heads", ["cases", 2, "head"]),
        ("admission", ["reconciled", 0, "items", 0, 1]),
        ("sets", ["cases", 3, "views", 0, "versions", 0, "root"]),
    ],
)
def test_the_reader_disagrees_when_a_vector_is_wrong(
    node_tools: NodeTools, tmp_path: Path, file: str, path: list[str | int]
) -> None:
    wrong = tmp_path / "vectors"
    shutil.copytree(VECTORS, wrong)
    content = json.loads((wrong / f"{file}.json").read_text())
    *steps, last = path
    place = content
    for step in steps:
        place = place[step]
    place[last] = place[last][:-1] + ("0" if place[last][-1] != "0" else "1")
    (wrong / f"{file}.json").write_text(json.dumps(content))
    ran = run(node_tools, tmp_path / "reader", wrong)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"{file}: ")
