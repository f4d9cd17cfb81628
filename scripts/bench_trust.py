"""How fast versions are verified, and how fast they are found at a floor of trust.

    PYTHONPATH=.:protocol:jobs python scripts/bench_trust.py [verify] [together] [lookup] [--nodes 5] [--assets 200]

verify    a process a node over libp2p on loopback, each with ledger, store and text index on disk (`synchronous=FULL`),
          policy auto: from the moment at which the author asks for all, until every node shows all as ConsensusVerified
together  the same with all nodes in this one process, their stores in memory
lookup    one subject at a floor, over many assets in the aggregates of all floors, as a query of a user is answered

Signatures bound both from below, so raw coincurve is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import coincurve
import trio
from bench_delivery import Bench, measure_run, open_bench  # type: ignore[import-not-found]  # it lies beside this
from p2pmem_jobs import ThreadBlocking
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import GraphName
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import asset_view

from p2pmem.face import Layer, NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from p2pmem.services.placing import FLOORS, aggregate_iri
from p2pmem.store.placement import Placement
from p2pmem.store.projection import open_projection
from p2pmem.store.query_worker import Queries, open_query_workers

Figures = dict[str, float]
PARTS: Final = ("verify", "together", "lookup")
IN_FLIGHT: Final = 64
VERIFIED: Final = Floor(Trust.CONSENSUS_VERIFIED)
LOOKUPS: Final = 400


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PARTS)}")
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", type=_part, help=f"any of {', '.join(PARTS)}; all without any")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--assets", type=int, default=200, help="versions to verify")
    parser.add_argument("--stored", type=int, default=100_000, help="assets in the store of `lookup`")
    parser.add_argument("--profile", type=Path, help="where each node of `verify` writes what cProfile says")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="p2pmem-bench-trust-"))
    figures = raw()
    try:
        recovery_us = figures["raw recovery, us"]
        if "verify" in (args.parts or PARTS):
            figures |= trio.run(verify, args.nodes, args.assets, recovery_us, args.profile)
        if "together" in (args.parts or PARTS):
            figures |= trio.run(verify_together, folder, args.nodes, args.assets, recovery_us)
        if "lookup" in (args.parts or PARTS):
            figures |= trio.run(lookup, folder, args.stored)
    finally:
        shutil.rmtree(folder)
    if args.json:
        print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))
    else:
        for name, figure in figures.items():
            print(f"{name:<72} {figure:>12,.2f}")


def raw() -> Figures:
    """coincurve by itself: what one signature costs here and now, in processor time."""
    key = coincurve.PrivateKey(b"\x11" * 32)
    digests = [keccak256(number.to_bytes(4)) for number in range(500)]
    begin = time.process_time()
    signatures = [key.sign_recoverable(digest, hasher=None) for digest in digests]
    signed = time.process_time()
    for digest, signature in zip(digests, signatures, strict=True):
        coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)
    ended = time.process_time()
    return {
        "raw signing, us": 1e6 * (signed - begin) / len(digests),
        "raw recovery, us": 1e6 * (ended - signed) / len(digests),
    }


# verify


ROLES: Final = ("writer", "endorser", "verifier")


async def verify(count: int, assets: int, recovery_us: float, profile: Path | None) -> Figures:
    async with open_bench(profile) as bench:
        await bench.begin(count, ROLES)
        await bench.all("watch", graph=bench.graph, every=50)
        await measure_run(bench, 0, IN_FLIGHT)
        await measure_verified(bench, 0, IN_FLIGHT)  # so that nothing is measured that is done once
        await measure_run(bench, 1_000, assets)
        await bench.all("profile_anew")
        took_s, by_node = await measure_verified(bench, 1_000, assets)
        figures = of_verified("", count, assets, recovery_us, took_s, sum(it["cpu_s"] for it in by_node))
        for what in ("loop_cpu_s", "commits", "writes", "store_transactions"):
            per_version = [it[what] / assets * (1e3 if what == "loop_cpu_s" else 1) for it in by_node]
            shown = "ms of processor of the event loop" if what == "loop_cpu_s" else what.replace("_", " ")
            figures[f"verified, {shown} a version, at the author"] = per_version[0]
            figures[f"verified, {shown} a version, at another node"] = statistics.mean(per_version[1:])
        return figures


async def measure_verified(bench: Bench, first: int, assets: int) -> tuple[float, list[Figures]]:
    """Seconds until so many are verified everywhere, and what each process did in that time."""
    before = await bench.all("statistics")
    begin = time.monotonic()
    answers: list[dict[str, float]] = []

    async def ask_for_all() -> None:
        await bench.nodes[0].ask("verify", graph=bench.graph, first=first, count=assets, together=IN_FLIGHT)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_for_all)
        answers += await bench.all("verified", graph=bench.graph, first=first, count=assets)
    after = await bench.all("statistics")
    by_node = [
        {
            "cpu_s": two["cpu_s"] - one["cpu_s"],
            "loop_cpu_s": two["loop_cpu_s"] - one["loop_cpu_s"],
            "commits": two["database"]["commits"] - one["database"]["commits"],
            "writes": two["database"]["operations"] - one["database"]["operations"],
            "store_transactions": two["store"]["transactions"] - one["store"]["transactions"],
        }
        for one, two in zip(before, after, strict=True)
    ]
    return max(it["at"] for it in answers) - begin, by_node


def of_verified(where: str, count: int, assets: int, recovery_us: float, took_s: float, cpu_s: float) -> Figures:
    others = count - 1
    # A proposal and the verdicts of all others, each checked by everybody who did not sign it.
    recoveries = (1 + others) * others
    return {
        f"verified{where}, {count} nodes, versions/s": assets / took_s,
        f"verified{where}, ms of processor a version, all nodes together": 1e3 * cpu_s / assets,
        f"verified{where}, times the raw recoveries in it": 1e6 * cpu_s / assets / (recoveries * recovery_us),
    }


async def verify_together(folder: Path, count: int, assets: int, recovery_us: float) -> Figures:
    async with AsyncExitStack() as stack:
        nodes = [await open_one(stack, folder, number) for number in range(count)]
        author, *others = nodes
        members = tuple(NewMember(str(node.services.signing.default_agent), ROLES) for node in others)
        graph = (await author.face.found(NewGraph("bench", members=members))).graph
        invite = await author.face.invite(graph, roles=(), uses=1, life_ms=600_000)
        for node in others:
            await node.face.join(invite, label="")
        names = [f"note-{number}" for number in range(assets)]
        await shared(nodes, graph, names)
        begin, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for at in range(IN_FLIGHT):
                nursery.start_soon(ask, author, graph, names[at::IN_FLIGHT])
            for node in nodes:
                nursery.start_soon(until_verified, node, graph)
        took_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return of_verified(", all in one process", count, assets, recovery_us, took_s, cpu_s)


async def open_one(stack: AsyncExitStack, folder: Path, number: int) -> Node:
    home = folder / f"node-{number}"
    home.mkdir()
    opened = open_node(
        NodeSettings("bench", f"node-{number}"),
        Keyring.of(Key(keccak256(b"bench key" + bytes([number])))),
        Libp2pNetwork(identity_seed=bytes([number + 1]) * 32, listen=("/ip4/127.0.0.1/tcp/0",)),
        Places(home / "ledger.sqlite"),
        Surroundings(inline=True, blocking=ThreadBlocking()),
    )
    return await stack.enter_async_context(opened)


async def shared(nodes: list[Node], graph: str, names: list[str]) -> None:
    """All have all, before anything is measured."""
    face = nodes[0].face
    for name in names:
        data = f'<urn:x:{name}> <https://schema.org/name> "the note {name}" .\n'.encode()
        await face.draft(graph, name, data, format="nt", base=None, subgraph="", replace=False)
        await face.share(graph, name, ttl_ms=None)
    for node in nodes:
        await node.ledger.until(partial(_has, node, graph, len(names)))


def _has(node: Node, graph: str, assets: int) -> bool:
    return len(list(node.ledger.named(graph).set.assets())) == assets


async def ask(node: Node, graph: str, names: list[str]) -> None:
    """Ask for one after the other, each until it is decided."""
    for name in names:
        job = await node.face.verify(graph, name, deadline_ms=None)
        ended = await node.face.job(job.id, wait_ms=300_000)
        assert isinstance(ended.result, dict), ended
        assert ended.result["level"] == Trust.CONSENSUS_VERIFIED.word, ended


async def until_verified(node: Node, graph: str) -> None:
    """Look at what each change touches, until all is verified."""
    found = node.ledger.named(graph)
    left = set(found.set.assets())
    touched = set(left)
    stop = node.ledger.listen(lambda delta: touched.update(delta.assets))
    while left:
        await node.ledger.until(lambda: not touched.isdisjoint(left))
        now_ms = node.ledger.clock.now_ms()
        left.difference_update(
            [key for key in touched & left if next(iter(asset_view(found.set, key, now_ms).current(VERIFIED)), None)]
        )
        touched.clear()
    stop()


# lookup


async def lookup(folder: Path, assets: int) -> Figures:
    name = GraphName(Key(b"\x01" * 32).address, "bench")
    ranges = [(low, high) for low in FLOORS for high in FLOORS if low <= high]
    chance = random.Random(1)
    async with open_projection(folder / "store", ThreadBlocking()) as store:
        puts: list[Placement] = []
        for number in range(assets):
            low, high = ranges[number % len(ranges)]
            iri = f"{name.iri}/_shared_memory/{name.creator}/note-{number}"
            content = f'<urn:x:{number}> <https://schema.org/name> "note {number}" .\n'.encode()
            puts.append(Placement(iri, aggregate_iri(name, Layer.SHARED, low, high), content))
            if len(puts) == 1_000 or number == assets - 1:
                await store.fill(puts)
                puts = []
        await store.apply(1)
        async with open_query_workers(store, folder / "snapshots", ThreadBlocking()) as queries:
            return await look_up(queries, name, assets, chance)


async def look_up(queries: Queries, name: GraphName, assets: int, chance: random.Random) -> Figures:
    figures: Figures = {}
    for floor in (Trust.SELF_ATTESTED, Trust.CONSENSUS_VERIFIED):
        dataset = [
            aggregate_iri(name, layer, low, high)
            for layer in (Layer.SHARED, Layer.PUBLISHED)
            for low in FLOORS
            for high in FLOORS
            if low <= floor <= high
        ]
        took_ms: list[float] = []
        for _ in range(LOOKUPS):
            sparql = f"SELECT ?o {{ <urn:x:{chance.randrange(assets)}> <https://schema.org/name> ?o }}"
            begin = time.perf_counter()
            await queries.query(sparql, default_graphs=dataset, named_graphs=[], at_least=0)
            took_ms.append(1e3 * (time.perf_counter() - begin))
        took_ms = sorted(took_ms[10:])
        figures[f"lookup at {floor.word} over {assets:,}, median ms"] = statistics.median(took_ms)
        figures[f"lookup at {floor.word} over {assets:,}, 95 of 100 within ms"] = took_ms[len(took_ms) * 95 // 100]
    return figures


if __name__ == "__main__":
    main()
