"""What the libp2p host holds after thousands of connections and an hour of hostile traffic: it must be what it held.

    python scripts/bench_soak.py                        10,000 connections, then an hour on a clock twelve times as fast
    python scripts/bench_soak.py --connections 0        the hour only
    python scripts/bench_soak.py --minutes 0            the connections only

The victim is a process of its own. Ends with 1 when memory, tasks or descriptors grew, or somebody honest who came
along between was not served. Takes some eight minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.attacks.soak import soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000, help="one after the other")
    parser.add_argument("--minutes", type=float, default=60.0, help="of hostile traffic, on the victim's clock")
    parser.add_argument("--times", type=float, default=12.0, help="how many times as fast the victim's clock runs")
    args = parser.parse_args()
    report = trio.run(soak, args.connections, args.minutes, args.times)
    for what, count in sorted(report.done.items()):
        print(f"{count:8}  {what}")
    troubles = list(report.troubles())
    print("flat" if not troubles else "not flat: " + "; ".join(troubles))
    return int(bool(troubles))


if __name__ == "__main__":
    sys.exit(main())
