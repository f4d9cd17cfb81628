"""How fast the triple store, the query workers and the text index are, on disk, in a temporary directory.

    PYTHONPATH=.:protocol:jobs python scripts/bench_store.py [--assets 100000] [--batch 200] [--json]

Each asset has five statements, one of which many assets share; the assets lie in four aggregates.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import trio
from p2pmem_jobs.blocking import ThreadBlocking

from p2pmem.recall.passages import extract_passages
from p2pmem.recall.text_index import TextEntry, TextFilter, TextIndex, open_text_index
from p2pmem.store.placement import Placement
from p2pmem.store.projection import OxigraphProjection, open_projection
from p2pmem.store.query_worker import open_query_workers
from p2pmem.store.terms import Iri

U = TypeVar("U")
Figures = dict[str, float]

AGGREGATES = [f"did:dkg:context-graph:0x{'0' * 40}/bench/_shared_memory/level-{level}" for level in range(4)]
LOOKUPS = 2_000
QUERIES = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=200, help="changes per transaction")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="p2pmem-bench-store-"))
    try:
        figures = trio.run(bench, folder, arguments.assets, arguments.batch, random.Random(arguments.seed))
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))
    else:
        for name, figure in figures.items():
            print(f"{name:<66} {figure:>12,.2f}")


def resident_mb() -> float:
    """Memory of this process, in MB; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return int(status.read_text().split("VmRSS:")[1].split()[0]) / 1_000


async def bench(folder: Path, assets: int, batch: int, chance: random.Random) -> Figures:
    figures: Figures = {}
    async with open_projection(folder / "store", ThreadBlocking()) as projection:
        await bench_store(projection, figures, assets, batch, chance)
        await bench_workers(projection, folder / "snapshots", figures, assets, chance)
        await bench_sweep(projection, figures, assets, batch)
        await projection.check()
    async with open_text_index(folder / "text.sqlite", ThreadBlocking()) as index:
        await bench_text(index, figures, assets, batch, chance)
    return figures


async def bench_store(
    projection: OxigraphProjection, figures: Figures, assets: int, batch: int, chance: random.Random
) -> None:
    async def put(some: list[Placement]) -> None:
        await projection.apply(projection.position + 1, some)

    placements = [place(number, number % 4) for number in range(assets)]
    held_mb = resident_mb()
    await rate(figures, "assets put", put, placements, batch)
    figures[f"memory of the store after {assets} assets, MB"] = resident_mb() - held_mb
    single = [place(number, number % 4) for number in range(assets, assets + 1_000)]
    await rate(figures, "assets put", put, single, 1)
    moved = [place(number, (number + 1) % 4) for number in range(min(assets, 10_000))]
    await rate(figures, "assets moved", put, moved, batch)
    for graphs in (AGGREGATES[:1], AGGREGATES[:2], AGGREGATES):

        async def look_up(number: int, graphs: list[str] = graphs) -> None:
            await projection.lookup(Iri(f"http://example.org/s/{number}"), None, None, graphs)

        numbers = [chance.randrange(assets) for _ in range(LOOKUPS)]
        await latency(figures, f"lookup of a subject over {len(graphs)} aggregates", look_up, numbers)

    async def join(number: int) -> None:
        text = "SELECT ?s ?a ?b { ?s <http://example.org/p/0> ?a ; <http://example.org/p/1> ?b }"
        answer = await projection.query(text, AGGREGATES, bind={"s": Iri(f"http://example.org/s/{number}")})
        assert answer.row_count == 1

    await latency(figures, "two patterns in SPARQL over 4 aggregates", join, numbers[:500])


async def bench_workers(
    projection: OxigraphProjection, directory: Path, figures: Figures, assets: int, chance: random.Random
) -> None:
    async with open_query_workers(projection, directory, ThreadBlocking(), workers=1) as workers:

        async def ask(number: int) -> None:
            text = f"SELECT * {{ <http://example.org/s/{number}> ?p ?o }}"
            answer = await workers.query(text, default_graphs=AGGREGATES)
            assert answer.row_count == 4

        async def ask_fresh(number: int) -> None:
            await projection.apply(projection.position + 1, [place(2_000_000 + number, 0)])
            text = f"SELECT * {{ <http://example.org/s/{2_000_000 + number}> ?p ?o }}"
            answer = await workers.query(text, default_graphs=AGGREGATES, at_least=projection.position)
            assert answer.row_count == 4

        await latency(figures, "first query of a worker", ask, [1])
        await latency(figures, "query in a warm worker", ask, [chance.randrange(assets) for _ in range(QUERIES)])
        await latency(figures, "write, then query that has seen it", ask_fresh, list(range(30)))


async def bench_sweep(projection: OxigraphProjection, figures: Figures, assets: int, batch: int) -> None:
    async def drop(some: list[str]) -> None:
        await projection.apply(projection.position + 1, drop=some)

    graphs = [place(number, 0).graph_iri for number in range(assets // 2)]
    await rate(figures, "assets dropped", drop, graphs, max(batch, 500))


async def bench_text(index: TextIndex, figures: Figures, assets: int, batch: int, chance: random.Random) -> None:
    words = [f"word{number}" for number in range(20_000)]
    weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(words))))
    entries = []
    for number in range(assets):
        text = " ".join(chance.choices(words, cum_weights=weights, k=40))
        content = f'<http://example.org/s/{number}> <http://example.org/says> "{text}" .\n'.encode()
        passages = extract_passages(content).passages
        author, layer = f"0x{number % 50}", "shared"
        entries.append(TextEntry(f"urn:g{number}", "cg", "a", 1, b"", author, layer, number % 4, 0, passages))

    async def put(some: list[TextEntry]) -> None:
        await index.apply(index.position + 1, some)

    await rate(figures, "passages of 40 words indexed", put, entries, batch)
    filter_ = TextFilter(("cg",), now_ms=1, least_level=1)

    async def search(count: int) -> None:
        await index.search(" ".join(chance.choices(words, cum_weights=weights, k=count)), 10, filter_)

    await latency(figures, "search, any of 3 words, top 10", search, [3] * 200)
    await latency(figures, "search, any of 8 words, top 10", search, [8] * 200)

    async def drop(some: list[str]) -> None:
        await index.apply(index.position + 1, drop=some)

    dropped = [entry.graph_iri for entry in entries[: assets // 5]]
    await rate(figures, "passages dropped", drop, dropped, 500)


def place(number: int, level: int) -> Placement:
    subject = f"<http://example.org/s/{number}>"
    lines = [f'{subject} <http://example.org/p/{part}> "value {number} of {part}" .\n' for part in range(4)]
    lines.append(f"<http://example.org/topic/{number % 100}> <http://example.org/in> <http://example.org/field> .\n")
    return Placement(f"urn:bench:asset:{number}", AGGREGATES[level], "".join(lines).encode())


async def rate(
    figures: Figures, name: str, act: Callable[[list[U]], Awaitable[None]], items: list[U], batch: int
) -> None:
    """Items per second, `batch` in a call; and per second of processor time, which other load does not change."""
    began, began_cpu = time.perf_counter(), time.process_time()
    for some in batches(items, batch):
        await act(some)
    figures[f"{name}, {batch} a transaction, per second"] = len(items) / (time.perf_counter() - began)
    figures[f"{name}, {batch} a transaction, per CPU second"] = len(items) / (time.process_time() - began_cpu)


async def latency(figures: Figures, name: str, act: Callable[[int], Awaitable[None]], arguments: list[int]) -> None:
    """Median and 95th percentile in milliseconds."""
    taken_ms = []
    for argument in arguments:
        began = time.perf_counter()
        await act(argument)
        taken_ms.append((time.perf_counter() - began) * 1_000)
    taken_ms.sort()
    figures[f"{name}, ms p50"] = taken_ms[len(taken_ms) // 2]
    if len(taken_ms) > 1:
        figures[f"{name}, ms p95"] = taken_ms[len(taken_ms) * 95 // 100]


def batches(items: list[U], size: int) -> Iterator[list[U]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


if __name__ == "__main__":
    main()
