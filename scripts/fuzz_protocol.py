#!/usr/bin/env python3
"""Fuzz a reader of bytes from peers, guided by coverage. Only the package's own refusal may leave it.

    python scripts/fuzz_protocol.py TARGET [--seconds 120] [--seed 1]
    python scripts/fuzz_protocol.py --list

Needs `atheris`, which the project does not depend on: install it into an environment with a Python that it has wheels
for, with what p2pmem_protocol needs. It begins with the vectors of the target, and stops with what broke the reader.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "protocol")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--list", action="store_true", help="names of the targets")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        raise SystemExit("atheris is not installed: pip install atheris") from None
    with atheris.instrument_imports(include=["p2pmem_protocol"]):
        from scripts.vectors.targets import targets

        found = targets()
    if arguments.list or arguments.target not in found:
        raise SystemExit(f"targets: {', '.join(found)}")
    fuzz(atheris, arguments.target, arguments.seconds, arguments.seed)


def fuzz(atheris: Any, name: str, seconds: int, seed: int) -> None:
    """Never returns: the end of the time, or a failure, ends the process."""
    from p2pmem_protocol.errors import RefusedError

    from scripts.vectors.targets import targets

    target = targets()[name]
    outcomes: Counter[str] = Counter()
    end_s = time.monotonic() + seconds

    def one_input(data: bytes) -> None:
        # The fuzzer would end the process by itself, and say nothing of this.
        if time.monotonic() >= end_s:
            print(f"{name}: {outcomes.total()} inputs, {dict(outcomes.most_common())}", flush=True)
            os._exit(0)
        try:
            assert target.read(data) == data, "what was accepted is written in another way"
        except RefusedError as refused:
            outcomes[refused.reason.name] += 1
        else:
            outcomes["accepted"] += 1

    folder = Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
    for number, data in enumerate(target.corpus):
        (folder / str(number)).write_bytes(data)
    limits = [f"-seed={seed}", "-max_len=16384", "-rss_limit_mb=1024", "-timeout=20", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *limits, str(folder)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
