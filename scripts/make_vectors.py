#!/usr/bin/env python3
"""Write protocol/vectors/*.json: what another implementation is checked against, beside those of moving envelopes.

    python scripts/make_vectors.py [--check]

Keys follow from names, times are fixed, nothing is random. With --check nothing is written, and the exit status says
whether the files are what this script would write.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "protocol")]

from scripts.vectors.contents import contents  # noqa: E402
from scripts.vectors.conversation import conversation  # noqa: E402
from scripts.vectors.items import items  # noqa: E402
from scripts.vectors.rosters import heads, rosters  # noqa: E402
from scripts.vectors.set_cases import sets  # noqa: E402
from scripts.vectors.sets import admission, certificates, trust  # noqa: E402
from scripts.vectors.values import cbor_values, names, structs  # noqa: E402

VECTORS: Final = ROOT / "protocol" / "vectors"
FILES: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "names": names,
    "cbor": cbor_values,
    "structs": structs,
    "contents": contents,
    "items": items,
    "rosters": rosters,
    "heads": heads,
    "trust": trust,
    "admission": admission,
    "sets": sets,
    "certificates": certificates,
    "conversation": conversation,
}


def written(name: str) -> str:
    """The text of one file."""
    return json.dumps(FILES[name](), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    differing = []
    for name in FILES:
        path = VECTORS / f"{name}.json"
        if not check:
            path.write_text(written(name), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != written(name):
            differing.append(path.name)
    if differing:
        raise SystemExit(f"{', '.join(differing)}: not what scripts/make_vectors.py writes; look at what changed")


if __name__ == "__main__":
    main()
