"""Each attack that we know of, against py-libp2p as it comes and against the host of a node: dies, leaks or survives.

    python scripts/bench_attacks.py                       all of them, in some minutes
    python scripts/bench_attacks.py --only "bad key"      those whose name has these words
    python scripts/bench_attacks.py --kind ours           one of the two
    python scripts/bench_attacks.py --json                the same for machines

Each victim is a process of its own, with limits on memory, CPU and time. Ends with 1 when our host does not survive.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.attacks.attacks import ATTACKS
from tests.attacks.table import KINDS, lines, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORDS", help="part of the name of an attack")
    parser.add_argument("--kind", choices=KINDS, action="append", help="which host (default: both)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    names = [name for name in ATTACKS if args.only in name]
    if not names:
        parser.error(f"no attack has {args.only!r} in its name; there are: " + "; ".join(ATTACKS))
    kinds = tuple(args.kind or KINDS)
    rows = trio.run(table, names, kinds)
    if args.json:
        print(json.dumps({name: {kind: str(it) for kind, it in outcomes.items()} for name, outcomes in rows}))
    else:
        print("\n".join(lines(rows, kinds)))
    return int(any(outcomes[kind].word != "survives" for _, outcomes in rows for kind in kinds if kind == "ours"))


if __name__ == "__main__":
    sys.exit(main())
