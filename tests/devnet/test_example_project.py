"""A project somewhere else installs the wheel, and its first test with the fixture passes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from p2pmem_devnet.scenarios import names

pytest.importorskip("hatchling", reason="hatchling builds the wheel: it comes with requirements/build.lock")

ROOT = Path(__file__).resolve().parents[2]
TEST = '''
"""What our agents need of a shared memory."""

async def test_a_note_of_one_agent_is_found_by_another(cluster):
    ada, bo, *_ = cluster.nodes
    await ada.share('ex:note ex:says "the bridge is closed" .')
    await cluster.settled()
    (hit,) = await bo.recall("bridge")
    assert "closed" in hit.text
'''


@pytest.mark.slow
@pytest.mark.processes
def test_a_project_that_installs_the_wheel_has_the_fixture(tmp_path: Path) -> None:
    dist, site, project = tmp_path / "dist", tmp_path / "site", tmp_path / "project"
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)], ROOT)
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # what installing a pure wheel does
    (project / "tests").mkdir(parents=True)
    (project / "tests" / "test_agents.py").write_text(TEST, encoding="utf-8")
    said = _run([sys.executable, "-m", "pytest", "-v", "-p", "p2pmem_devnet.testing"], project, PYTHONPATH=str(site))
    assert "1 passed" in said
    where = "import p2pmem, p2pmem_devnet.scenarios as s; print(p2pmem.__file__, len(s.names()))"
    assert f"{site}" in (told := _run([sys.executable, "-c", where], project, PYTHONPATH=str(site)))
    assert told.split()[1] == str(len(names()))


def _run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
