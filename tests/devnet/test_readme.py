"""The examples of the page for test authors do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from p2pmem_devnet.scenarios import parse, run_once

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "devnet" / "README.md").read_text(encoding="utf-8")


def test_every_python_example_is_a_test_that_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        (tmp_path / f"test_example_{number}.py").write_text(block, encoding="utf-8")
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "p2pmem_devnet.testing", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "3 passed" in done.stdout


def test_the_scenario_on_the_page_ends_well() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    outcome = run_once(parse("page", text), seed=1)
    assert not outcome.trouble
    assert outcome.events > 5
