#!/usr/bin/env python3
"""What clusters cost: how soon five and fifty nodes are ready, and what a virtual day of twenty takes.

    scripts/bench cluster [--day PART] [--profile] [--json]

`--day 1` runs the whole of the scenario `day`, `--day 0.1` a tenth of it with a tenth of everything in it. Times of the
processor carry over to a machine where others work too, wall times do not: the load is printed beside them. The
yardstick is a loop of Python in the same process; ratios to it carry over to other machines.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType

import trio
from trio.testing import MockClock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in (".", "protocol", "jobs", "devnet")]

from p2pmem_devnet.cluster import Cluster  # noqa: E402
from p2pmem_devnet.scenarios import Scenario, be_quiet, load, run_once  # noqa: E402

SAMPLED_EVERY_S = 0.005
SHOWN = 25
READY_MOST_S = {5: 0.3, 50: 5.0}
DAY_MOST_S = 60.0


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the processor and of the wall."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    action()
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


def yardstick() -> None:
    """Dictionary entries and texts: some 40 ms on a machine of today."""
    found: dict[int, int] = {}
    for number in range(400_000):
        found[number & 1023] = number * 3
        str(number)


def ready(nodes: int) -> tuple[float, float]:
    """Until a cluster of so many is ready, best of three."""

    async def begin() -> None:
        began.append((time.process_time(), time.perf_counter()))
        async with Cluster(nodes, seed=1):
            took.append((time.process_time() - began[-1][0], time.perf_counter() - began[-1][1]))

    began: list[tuple[float, float]] = []
    took: list[tuple[float, float]] = []
    for _ in range(3):
        gc.collect()
        trio.run(begin, clock=MockClock(autojump_threshold=0))
    return min(cpu_s for cpu_s, _ in took), min(wall_s for _, wall_s in took)


def part_of(day: Scenario, part: float) -> Scenario:
    """The day, or a part of it with as much of everything in it."""
    steps: list[tuple[str, dict[str, object]]] = []
    for word, given in day.steps:
        if word == "live":
            counts = {it: round(given[it] * part) for it in ("shares", "verifications", "faults")}
            given = {**given, **counts, "over": f"{timedelta(days=part) / timedelta(hours=1)} hours"}
        steps.append((word, given))
    return replace(day, steps=tuple(steps))


class Samples:
    """Where the time goes: every so often, which functions of ours are on the stack."""

    def __init__(self) -> None:
        self.count = 0
        self.within: Counter[str] = Counter()

    def take(self, _: int, frame: FrameType | None) -> None:
        self.count += 1
        names: set[str] = set()
        while frame is not None:
            code = frame.f_code
            names.add(f"{'/'.join(code.co_filename.split('/')[-2:])} {code.co_qualname}")
            frame = frame.f_back
        self.within.update(names)

    def __enter__(self) -> Samples:
        signal.signal(signal.SIGPROF, self.take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLED_EVERY_S, SAMPLED_EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def show(self) -> None:
        for name, count in self.within.most_common(SHOWN):
            print(f"  {100 * count / self.count:5.1f} %  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--day", type=float, default=0.05, metavar="PART", help="how much of a day (default: 0.05)")
    parser.add_argument("--profile", action="store_true", help="say where the day's time went")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    be_quiet()
    yard_s = min(timed(yardstick)[0] for _ in range(5))
    figures: dict[str, float] = {"load": os.getloadavg()[0], "yardstick, CPU s": yard_s}
    for nodes, most_s in READY_MOST_S.items():
        cpu_s, wall_s = ready(nodes)
        figures |= {f"{nodes} nodes ready, CPU s": cpu_s, f"{nodes} nodes ready, wall s (under {most_s:g})": wall_s}
    if asked.day:
        samples = Samples()
        outcomes = []
        story = part_of(load("day"), asked.day)
        if asked.profile:
            with samples:
                cpu_s, wall_s = timed(lambda: outcomes.append(run_once(story, 1)))
        else:
            cpu_s, wall_s = timed(lambda: outcomes.append(run_once(story, 1)))
        (outcome,) = outcomes
        if outcome.trouble:
            sys.exit(outcome.trouble)
        figures |= {
            "changes of ledgers": outcome.events,
            f"{asked.day:g} of a day, CPU s": cpu_s,
            f"{asked.day:g} of a day, wall s": wall_s,
            f"a whole day at that pace, CPU s (under {DAY_MOST_S:g})": cpu_s / asked.day,
        }
    if asked.json:
        print(json.dumps(figures))
        return
    print(f"{'':50}    figure   x yardstick")
    for name, figure in figures.items():
        ratio = f"{figure / yard_s:14.1f}" if " s" in name else ""
        print(f"{name:50}{figure:10.3f}{ratio}")
    if asked.profile:
        print("on the stack, part of the time:")
        samples.show()


if __name__ == "__main__":
    main()
