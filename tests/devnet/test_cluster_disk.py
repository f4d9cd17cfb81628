"""Where a cluster's nodes keep their things: gone with the cluster, also when its process was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from p2pmem_devnet.cluster_disk import private_directory

ROOT = Path(__file__).parents[2]
DIES = """
import os, signal, sys
from pathlib import Path
from p2pmem_devnet.cluster_disk import private_directory
with private_directory(Path(sys.argv[1])) as path:
    (path / "ledger.sqlite").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_directory_is_private_and_goes_with_the_block(tmp_path: Path) -> None:
    with private_directory(tmp_path) as path:
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "ledger.sqlite").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_what_a_killed_process_left_goes_when_the_next_cluster_begins_and_what_others_use_stays(tmp_path: Path) -> None:
    folders = os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet"))
    command = [sys.executable, "-c", DIES, str(tmp_path)]
    with private_directory(tmp_path) as mine:
        subprocess.run(command, env={**os.environ, "PYTHONPATH": folders}, check=False, timeout=60)
        left = {it.name for it in tmp_path.iterdir()}
        assert len(left) == 4
        with private_directory(tmp_path) as other:
            assert {it for it in tmp_path.iterdir() if it.is_dir()} == {mine, other}
        assert mine.is_dir()
    assert list(tmp_path.iterdir()) == []
