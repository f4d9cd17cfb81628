"""The command line as a process of its own, from this checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
P2PMEM = [sys.executable, "-m", "p2pmem"]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("P2PMEM_")},
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet")),
}
