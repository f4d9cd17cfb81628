"""The package as others use it: what it imports, and the example that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = "import sys; import p2pmem_jobs{}; print(*{{name.split('.')[0] for name in sys.modules}})"
TRIO = "import sys; import trio; print(*{name.split('.')[0] for name in sys.modules})"


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'jobs')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.processes
def test_it_imports_trio_and_the_standard_library_and_apscheduler_only_for_its_clock() -> None:
    allowed = loaded_by(TRIO) | sys.stdlib_module_names | {"p2pmem_jobs"}
    assert loaded_by(LOADED.format("")) <= allowed
    extra = loaded_by(LOADED.format(".scheduling")) - allowed
    assert "apscheduler" in extra
    assert not any(name.startswith("p2pmem") for name in extra)


@pytest.mark.processes
def test_the_example_of_the_readme_runs_and_goes_on_after_it_was_stopped(tmp_path: Path) -> None:
    readme = (ROOT / "jobs" / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    lines = [line for line in example[1].splitlines() if line.strip()]
    assert len(lines) <= 32
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example[1]],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "jobs")},
        )
        assert done.stdout.splitlines()[-1] == "sent to ada@example.org"
    assert (tmp_path / "outbox.txt").read_text() == "Welcome, Ada\n"
