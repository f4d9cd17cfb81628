"""What the limit on memory counts of a worker that does little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

import pyoxigraph as ox
import pytest

from p2pmem.store.query_process import frame_length, pack
from p2pmem.store.query_worker import worker_environment

SNAPSHOTS: Final = 4
QUESTIONS: Final = 24
ADDRESSES_KB_MAX: Final = 640 * 1024


def heard(source: IO[bytes]) -> bytes:
    return source.read(frame_length(source.read(4)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc, which only Linux has")
def test_a_worker_that_opens_many_snapshots_does_not_run_out_of_addresses(tmp_path: Path) -> None:
    store = ox.Store(str(tmp_path / "store"))
    store.add(ox.Quad(ox.NamedNode("urn:a"), ox.NamedNode("urn:b"), ox.Literal("c"), ox.NamedNode("urn:g")))
    store.flush()
    for number in range(SNAPSHOTS):
        store.backup(str(tmp_path / f"{number}"))
    command = [sys.executable, "-s", "-m", "p2pmem.store.query_process"]
    with subprocess.Popen(
        command, env=worker_environment(), cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert heard(process.stdout) == b"ready"
        for number in range(QUESTIONS):
            question = {
                "snapshot": str(tmp_path / f"{number % SNAPSHOTS}"),
                "sparql": "SELECT * { ?s ?p ?o }",
                "default_graphs": ["urn:g"],
                "named_graphs": [],
                "max_rows": 10,
                "max_bytes": 10_000,
                "time_ms": 5_000,
                "memory_bytes": 1 << 30,
            }
            process.stdin.write(pack(json.dumps(question).encode()))
            process.stdin.flush()
            assert json.loads(heard(process.stdout))["row_count"] == 1
            heard(process.stdout)
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        assert int(lines["VmPeak"].split()[0]) < ADDRESSES_KB_MAX
        process.stdin.close()
