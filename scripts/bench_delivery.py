"""Measures delivery: from the call that shares to the moment at which every peer's own look-up finds it.

    python scripts/bench_delivery.py                            everything, in some minutes
    python scripts/bench_delivery.py latency burst              some parts: see PARTS
    python scripts/bench_delivery.py sustained --nodes 2 --shares 5000 --json
    python scripts/bench_delivery.py expiry                     50,000 that end together; takes half an hour

One process a node, libp2p on loopback, ledger, store and text index on disk, `synchronous=FULL`. The author is driven
in its own process. A share has five statements, some 1 KB in all, and is found by a look-up in the peer's own store.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

ROOT: Final = Path(__file__).parents[1]
GRAPH: Final = "bench"
ENDS_AT_LEAST_MS: Final = 60_000
SHARED_PER_S_MIN: Final = 100
"""What is to end together has to be shared before: so fast at least."""


class Process:
    """A node of the measurement: asked by lines, which it answers as it can."""

    def __init__(self, number: int, directory: Path, profile: Path | None = None) -> None:
        self.number = number
        self.directory = directory
        self.ready_s = 0.0
        self.address = ""
        self._profile = profile
        self._asked = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._came = trio.Event()
        self._sending = trio.Lock()
        self._ended = False
        self._stdin: trio.abc.SendStream

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the process until it ends; started once the node is ready."""
        path = os.pathsep.join(str(ROOT / name) for name in (".", "protocol", "jobs", "devnet"))
        command = [sys.executable, str(ROOT / "scripts" / "_bench_node.py"), str(self.directory), str(self.number)]
        if self._profile is not None:
            command.append(str(self._profile))
        begin = time.monotonic()
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        try:
            buffer = b""
            async for piece in process.stdout:
                *lines, buffer = (buffer + bytes(piece)).split(b"\n")
                for line in lines:
                    answer = json.loads(line)
                    if answer["number"] == 0:
                        self.ready_s = time.monotonic() - begin
                        task_status.started()
                    self._answers[answer["number"]] = answer
                self._wake()
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            self._ended = True
            self._wake()

    def _wake(self) -> None:
        self._came.set()
        self._came = trio.Event()

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self._asked += 1
        number = self._asked
        line = json.dumps({"number": number, "do": do, **arguments}) + "\n"
        async with self._sending:
            await self._stdin.send_all(line.encode())
        while number not in self._answers:
            if self._ended:
                raise RuntimeError(f"node {self.number} ended before it answered {do}")
            await self._came.wait()
        return self._answers.pop(number)

    async def stop(self) -> None:
        await self._stdin.aclose()
        while not self._ended:
            await self._came.wait()


@dataclass
class Bench:
    """Nodes that share a graph; the first is its owner and the author of everything."""

    nursery: trio.Nursery
    directory: Path
    profile: Path | None
    nodes: list[Process] = field(default_factory=list)
    graph: str = ""

    async def add(self) -> Process:
        number = len(self.nodes)
        profile = self.profile.with_name(f"{self.profile.name}.{number}") if self.profile else None
        node = Process(number, self.directory / f"node-{number}", profile)
        await self.nursery.start(node.run)
        node.address = (await node.ask("info"))["address"]
        self.nodes.append(node)
        return node

    async def begin(self, count: int, roles: tuple[str, ...] = ()) -> None:
        """So many nodes in one graph; the others have these roles, or those of a writer."""
        for _ in range(count):
            await self.add()
        author, *others = self.nodes
        members = [it.address for it in others]
        self.graph = (await author.ask("found", slug=GRAPH, members=members, roles=list(roles)))["graph"]
        await author.ask("watch", graph=self.graph, every=1)
        if others:
            invite = (await author.ask("invite", graph=self.graph, roles=[]))["invite"]
            for node in others:
                await node.ask("join", invite=invite)
                await node.ask("watch", graph=self.graph, every=1)
            for node in self.nodes:
                await node.ask("connected", count=count - 1)

    async def all(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}

        async def one(node: Process) -> None:
            answers[node.number] = await node.ask(do, **arguments)

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(one, node)
        return [answers[node.number] for node in self.nodes]

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


@asynccontextmanager
async def open_bench(profile: Path | None = None) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="p2pmem-bench-") as directory:
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery, Path(directory), profile)
            yield bench
            await bench.stop()
            nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Options:
    nodes: int | None
    shares: int | None
    profile: Path | None


Figures = dict[str, Any]


async def measure_run(bench: Bench, first: int, count: int, **how: Any) -> Figures:
    """Share so many, and wait until all are found by all: times from the call to the last peer's find."""
    before = await bench.all("statistics")
    begin = time.monotonic()
    shared: Figures = {}
    found: list[Figures] = []

    async def share() -> None:
        shared.update(await bench.nodes[0].ask("share", graph=bench.graph, first=first, count=count, **how))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(share)
        found += await bench.all("visible", graph=bench.graph, count=count, since=first)
    after = await bench.all("statistics")
    began, returned = shared["began"], shared["returned"]
    last = {name: max(each["found"][name] for each in found[1:] or found) for name in began}
    to_all_ms = sorted((last[name] - began[name]) * 1000 for name in began)
    to_return_ms = sorted((returned[name] - began[name]) * 1000 for name in began)
    taken_s = max(last.values()) - begin
    return {
        "nodes": len(bench.nodes),
        "shares": count,
        "visible_p50_ms": _percentile(to_all_ms, 50),
        "visible_p95_ms": _percentile(to_all_ms, 95),
        "returned_p50_ms": _percentile(to_return_ms, 50),
        "returned_p95_ms": _percentile(to_return_ms, 95),
        "seconds": round(taken_s, 2),
        "shares_per_s": round(count / taken_s, 1),
        "cpu_ms_per_share": [
            round((two["cpu_s"] - one["cpu_s"]) * 1000 / count, 2) for one, two in zip(before, after, strict=True)
        ],
        "rss_mb": [round(it["rss_bytes"] / 1e6) for it in after],
        "commits": [
            two["database"]["commits"] - one["database"]["commits"] for one, two in zip(before, after, strict=True)
        ],
        "store_transactions": [
            two["store"]["transactions"] - one["store"]["transactions"] for one, two in zip(before, after, strict=True)
        ],
    }


async def latency(options: Options) -> Figures:
    async with open_bench(options.profile) as bench:
        await bench.begin(options.nodes or 5)
        await measure_run(bench, 0, 40, rate=20)
        return await measure_run(bench, 1000, options.shares or 400, rate=20)


async def large(options: Options) -> Figures:
    async with open_bench(options.profile) as bench:
        await bench.begin(options.nodes or 5)
        await measure_run(bench, 0, 16, rate=8, size_bytes=65_536, statements=64)
        return await measure_run(bench, 1000, options.shares or 160, rate=8, size_bytes=65_536, statements=64)


async def sustained(options: Options) -> list[Figures]:
    figures = []
    for nodes in (options.nodes,) if options.nodes else (2, 5):
        async with open_bench(options.profile) as bench:
            await bench.begin(nodes)
            await bench.all("watch", graph=bench.graph, every=50)
            await measure_run(bench, 0, 100)
            figures.append(await measure_run(bench, 1000, options.shares or (5_000 if nodes == 2 else 2_000)))
    return figures


async def burst(options: Options) -> Figures:
    """A tight loop with 5 nodes; then every share is looked up on every peer."""
    shares = options.shares or 2_000
    async with open_bench(options.profile) as bench:
        await bench.begin(options.nodes or 5)
        await bench.all("watch", graph=bench.graph, every=50)
        figures = await measure_run(bench, 0, shares, together=1_000_000)
        checked = await bench.all("check_all", graph=bench.graph, author=bench.nodes[0].address, count=shares)
        return {**figures, "deliveries": sum(it["found"] for it in checked[1:]), "due": shares * (len(bench.nodes) - 1)}


async def late(options: Options) -> list[Figures]:
    """A node that joins after so many shares, from the call of `join` until its own look-up finds the last."""
    figures = []
    for shares in (options.shares,) if options.shares else (1_000, 5_000):
        async with open_bench(options.profile) as bench:
            await bench.begin(1)
            author = bench.nodes[0]
            await author.ask("watch", graph=bench.graph, every=50)
            await measure_run(bench, 0, shares)
            await author.ask("watch_blocks")
            joiner = await bench.add()
            invite = (await author.ask("invite", graph=bench.graph, roles=["writer"]))["invite"]
            before = await joiner.ask("statistics")
            begin = time.monotonic()
            await joiner.ask("join", invite=invite)
            await joiner.ask("watch", graph=bench.graph, every=50)
            await joiner.ask("found_at_least", graph=bench.graph, author=author.address, count=shares)
            taken_s = time.monotonic() - begin
            after = await joiner.ask("statistics")
            checked = await joiner.ask("check_all", graph=bench.graph, author=author.address, count=shares)
            received = after["received_bytes"] - before["received_bytes"]
            figures.append(
                {
                    "shares": shares,
                    "seconds": round(taken_s, 2),
                    "found": checked["found"],
                    "wire_bytes": received,
                    "payload_bytes": after["payload_bytes"],
                    "wire_to_payload": round(received / after["payload_bytes"], 2),
                    "joiner_cpu_s": round(after["cpu_s"] - before["cpu_s"], 2),
                    "joiner_rss_mb": round(after["rss_bytes"] / 1e6),
                    "server_longest_block_ms": (await author.ask("statistics"))["longest_block_ms"],
                }
            )
    return figures


async def history(options: Options) -> list[Figures]:
    """Sustained sharing with 2 nodes while the history grows, in tenths; then memory, restart, and idle rounds."""
    shares = options.shares or 50_000
    figures: list[Figures] = []
    async with open_bench(options.profile) as bench:
        await bench.begin(options.nodes or 2)
        await bench.all("watch", graph=bench.graph, every=50)
        for tenth in range(10):
            figures.append(await measure_run(bench, tenth * shares // 10, shares // 10))
            await bench.all("reset", graph=bench.graph)
            print(json.dumps(figures[-1]), file=sys.stderr)
        last = bench.nodes.pop()
        await last.stop()
        again = await bench.add()
        figures.append(
            {"restart_s": round(again.ready_s, 2), "rss_mb": round((await again.ask("statistics"))["rss_bytes"] / 1e6)}
        )
    return figures


async def expiry(options: Options) -> list[Figures]:
    """Shares that all end at one instant, on their author's node and on those of members, while all are read."""
    shares = options.shares or 50_000
    async with open_bench(options.profile) as bench:
        await bench.begin(options.nodes or 3)
        await bench.all("watch", graph=bench.graph, every=50)
        ends_ms = round(time.time() * 1000) + ENDS_AT_LEAST_MS + round(shares * 1000 / SHARED_PER_S_MIN)
        shared = await measure_run(bench, 0, shares, ends_ms=ends_ms)
        print(json.dumps(shared), file=sys.stderr)
        ends = (await bench.all("ends", graph=bench.graph))[0]
        await bench.all("watch_blocks")
        author, before = bench.nodes[0].address, await bench.all("statistics")
        found = await bench.all("end", graph=bench.graph, author=author, ends_ms=ends["last_ms"])
        after = await bench.all("statistics")
        print(json.dumps(found), file=sys.stderr)
        swept_ms = ends["last_ms"] + round(1000 * max(it["after_s"]["set"] for it in found))
        purged = await bench.all("purge", swept_ms=swept_ms)
    return [
        {
            "node": number,
            "shares": ends["count"],
            "end_within_ms": ends["last_ms"] - ends["first_ms"],
            "gone_after_s": each["after_s"],
            "gone_per_s": round(shares / max(each["after_s"].values())),
            "purged_s": purge["seconds"],
            "purged_per_s": round(shares / max(purge["seconds"], 0.01)),
            "left_bytes": purge["left_bytes"],
            "cpu_s": round(two["cpu_s"] - one["cpu_s"], 2),
            "longest_block_ms": two["longest_block_ms"],
            **each["seen"],
        }
        for number, (each, one, two, purge) in enumerate(zip(found, before, after, purged, strict=True))
    ]


async def start(options: Options) -> Figures:
    async with open_bench(options.profile) as bench:
        await bench.begin(1)
        node = bench.nodes[0]
        return {"ready_s": round(node.ready_s, 2), "rss_mb": round((await node.ask("statistics"))["rss_bytes"] / 1e6)}


PARTS: Final[dict[str, Callable[[Options], Awaitable[Any]]]] = {
    "start": start,
    "latency": latency,
    "large": large,
    "sustained": sustained,
    "burst": burst,
    "late": late,
    "history": history,
    "expiry": expiry,
}
LONG: Final = ("history", "expiry")


def _percentile(ordered: list[float], percent: int) -> float:
    if len(ordered) < 2:
        return round(ordered[0], 1) if ordered else 0.0
    return round(statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1], 1)


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PARTS)}")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_ = f"any of {', '.join(PARTS)}; without any, all but {' and '.join(LONG)}"
    parser.add_argument("parts", nargs="*", type=_part, help=help_)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--shares", type=int)
    parser.add_argument("--profile", type=Path, help="where each node writes what cProfile says, with its number")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for part in arguments.parts or [name for name in PARTS if name not in LONG]:
        results[part] = trio.run(PARTS[part], Options(arguments.nodes, arguments.shares, arguments.profile))
        if not arguments.json:
            for figures in results[part] if isinstance(results[part], list) else [results[part]]:
                print(f"{part}: " + ", ".join(f"{name} {value}" for name, value in figures.items()), flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
