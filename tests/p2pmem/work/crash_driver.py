"""A process that does the main job on three nodes, and kills itself with -9 at a named point of the author's jobs.

    python crash_driver.py DIRECTORY [POINT]

The nodes are whole, their ledgers and stores on disk in DIRECTORY, their network in memory. Run again without a point
it goes on with what it finds. At its end it writes what became of everything to DIRECTORY/summary.json, and which
points of the author's jobs it passed, of all kinds that it has, to DIRECTORY/points.json. With P2PMEM_TEST_RPC in the
environment the graph is anchored on that chain.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address, network_id
from p2pmem_protocol.records import SealedRecord

from p2pmem.face import Face, JobView, NewGraph, NewMember, NotFoundError
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, OpenChain, Places, Surroundings, open_node
from p2pmem.work.sharing import ShareArgs

KEYS: Final = [Key(bytes([number]) * 32) for number in (1, 2, 3)]
NETWORK: Final = "crashes"
DATA: Final = b'<https://example.org/a> <https://example.org/says> "what is killed comes back" .\n'
NOTE: Final = b'<https://example.org/c> <https://example.org/says> "and what is shared step by step" .\n'
OTHER: Final = b'<https://example.org/b> <https://example.org/says> "so does what others say" .\n'
ENDED: Final = ("succeeded", "failed", "cancelled", "outcome_unknown")


class Points:
    """Notes the named points that the author passes, with how often so far, and dies at one."""

    def __init__(self, directory: Path, die_at: str | None) -> None:
        self._directory = directory
        self._die_at = die_at
        self.seen: list[str] = []
        self._times: Counter[str] = Counter()
        self.armed = False
        self.is_over = False

    def __call__(self, name: str) -> None:
        # The node registers a quorum by itself, while everybody still meets.
        if self.is_over or not (self.armed or name.startswith("register/")):
            return
        self._times[name] += 1
        passed = f"{name}#{self._times[name]}"
        self.seen.append(passed)
        if passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, kinds: frozenset[str]) -> None:
        self.is_over = True
        found = {"kinds": sorted(kinds), "points": self.seen}
        (self._directory / "points.json").write_text(json.dumps(found))


@asynccontextmanager
async def open_chain_of_test() -> AsyncIterator[OpenChain | None]:
    url = os.environ.get("P2PMEM_TEST_RPC")
    if url is None:
        yield None
        return
    from eth_account import Account

    from p2pmem.chain.client import open_chain
    from p2pmem.chain.seam import ChainSettings

    settings = ChainSettings(
        url=url,
        chain_id=31_337,
        contract=Address.parse(os.environ["P2PMEM_TEST_CONTRACT"]),
        network=network_id(NETWORK),
        confirmations=1,
        poll_seconds=0.05,
    )
    async with open_chain(settings, Account.from_key(KEYS[0].secret)) as chain:
        yield OpenChain(chain, settings)


async def run(directory: Path, die_at: str | None) -> None:
    points = Points(directory, die_at)
    async with AsyncExitStack() as stack:
        fabric = MemoryFabric(seed=1)
        chain = await stack.enter_async_context(open_chain_of_test())
        nodes: list[Node] = []
        for number, key in enumerate(KEYS):
            home = directory / f"node{number}"
            home.mkdir(exist_ok=True)
            surroundings = Surroundings(
                random_bytes=random.Random(f"{number} {os.getpid()}").randbytes,
                **({"crash_point": points} if number == 0 else {}),
            )
            nodes.append(
                await stack.enter_async_context(
                    open_node(
                        NodeSettings(NETWORK, label="abc"[number]),
                        Keyring.of(key),
                        fabric.network(f"node{number}"),
                        Places(home / "ledger.sqlite", home / "store", home / "text.sqlite"),
                        surroundings,
                        chain if number == 0 else None,
                    )
                )
            )
        graph = await meet(nodes, with_chain=chain is not None)
        points.armed = True
        await main_job(nodes[0], graph, with_chain=chain is not None)
        await work_for_others(nodes, graph)
        await settle(nodes)
        points.write(nodes[0].queue.kinds)
        summary = await summarise(nodes, graph, chain, directory)
        (directory / "summary.json").write_text(json.dumps(summary, indent=1, sort_keys=True))


async def meet(nodes: list[Node], *, with_chain: bool) -> str:
    """Found the graph, or find it again, and let everybody in."""
    author = nodes[0].face
    graphs = await author.graphs()
    if graphs:
        graph = graphs[0]
    else:
        members = tuple(NewMember(str(key.address), ("writer", "endorser", "verifier")) for key in KEYS)
        graph = await author.found(NewGraph("main", members, m=2, acks_min=2, chain=with_chain))
    invite = await author.invite(graph.graph, roles=(), uses=1, life_ms=60_000)
    for node in nodes[1:]:
        await node.face.join(invite, label="")
    return graph.graph


async def main_job(node: Node, graph: str, *, with_chain: bool) -> None:
    """Share, publish, verify, with a chain attest, and share once more: each only if it was not asked for before."""
    face = node.face
    asked = {job.kind for job in await face.jobs(state=None, limit=100)}
    if not asked & {"share", "publish", "verify"}:
        await draft(face, graph, "finding", DATA)
    asks: list[tuple[str, Callable[[], Awaitable[JobView]]]] = [
        ("share", lambda: face.share(graph, "finding", ttl_ms=3_600_000)),
        ("publish", lambda: face.publish(graph, "finding")),
        ("verify", lambda: face.verify(graph, "finding", deadline_ms=None)),
    ]
    if with_chain:
        await until_ended(face, "register")
        asks.append(("attest", lambda: face.attest(graph, "finding")))
    for kind, ask in asks:
        if kind not in asked:
            await ask()
        await until_ended(face, kind)
    await share_as_job(node, graph)


async def draft(face: Face, graph: str, name: str, data: bytes) -> None:
    try:
        await face.version(graph, name)
    except NotFoundError:
        await face.draft(graph, name, data, format="nt", base=None, subgraph="", replace=True)


async def share_as_job(node: Node, graph: str) -> None:
    """What the node shares has nothing to wait for, so it is written at once; the steps of its job are these."""
    await draft(node.face, graph, "note", NOTE)
    args = ShareArgs(node.ledger.named(graph).id, bytes(KEYS[0].address), "note", 3_600_000)
    await (await node.queue.submit("share", args, dedupe_key="note")).result()


async def work_for_others(nodes: list[Node], graph: str) -> None:
    """What the author does with the words of somebody else: endorse them, and give its verdict as a verifier."""
    author, other = nodes[0].face, nodes[1].face
    reference = f"{KEYS[1].address}/other@1"
    asked = {job.kind for job in await other.jobs(state=None, limit=100)}
    if "share" not in asked:
        await other.share_data(graph, "other", OTHER, format="nt", base=None, subgraph="", ttl_ms=3_600_000)
    await nodes[0].ledger.until(partial(holds, nodes[0], graph, KEYS[1].address))
    if "endorse" not in {job.kind for job in await author.jobs(state=None, limit=100)}:
        await author.endorse(graph, reference, reason="it is so", withdraw=False)
    await until_ended(author, "endorse")
    if "verify" not in asked:
        await other.verify(graph, reference, deadline_ms=None)
    await until_ended(other, "verify")
    await until_ended(author, "review")


def holds(node: Node, graph: str, author: Address) -> bool:
    """Whether the node has something by this author, and its bytes."""
    records = node.ledger.named(graph).set.records()
    return any(
        isinstance(it, SealedRecord) and it.author == author and it.content_hash in node.ledger.held for it in records
    )


async def until_ended(face: Face, kind: str) -> JobView:
    for job in await face.jobs(state=None, limit=100):
        if job.kind == kind:
            return await face.job(job.id, wait_ms=60_000)
    raise AssertionError(f"no {kind} was asked for")


async def settle(nodes: list[Node]) -> None:
    """Every job everywhere has ended, and all nodes have the same set."""
    with trio.fail_after(60):
        for node in nodes:
            for job in await node.face.jobs(state=None, limit=1_000):
                if job.state not in ENDED:
                    await node.face.job(job.id, wait_ms=30_000)

        def ids(node: Node) -> set[bytes]:
            return {it.id for graph in node.ledger.graphs.values() for it in graph.set.records()}

        # Each node is waited for by what it hears itself: nobody wakes it when another one changes.
        while any(ids(node) != ids(nodes[0]) for node in nodes):
            wanted = set().union(*map(ids, nodes))
            for node in nodes:
                await node.ledger.until(partial(lambda node, wanted: wanted <= ids(node), node, wanted))


async def summarise(nodes: list[Node], graph: str, chain: OpenChain | None, directory: Path) -> dict[str, object]:
    """What must be the same however often the process was killed: all but times and ids."""
    author = nodes[0]
    records = list(author.ledger.named(graph).set.records())
    version = await author.face.version(graph, "finding")
    other = f"{KEYS[1].address}/other@1"
    jobs = Counter((job.kind, job.state) for job in await author.face.jobs(state=None, limit=1_000))
    certificates = [(await node.face.certificate(graph, version.reference)).statement for node in nodes]
    with sqlite3.connect(directory / "node0" / "ledger.sqlite") as connection:
        lifecycle = connection.execute("SELECT transition, version FROM lifecycle ORDER BY step").fetchall()
    return {
        "envelopes": {
            f"{kind.word} by {author_}": count
            for (kind, author_), count in sorted(
                Counter((record.kind, str(record.author)) for record in records).items()
            )
        },
        "jobs": {
            f"{kind} {state}": count
            for (kind, state), count in sorted(jobs.items())
            if kind not in ("anchor", "register")
        },
        "lifecycle": lifecycle,
        "levels": [(await node.face.version(graph, version.reference)).trust.level for node in nodes],
        "levels of the other": [(await node.face.version(graph, other)).trust.level for node in nodes],
        "layer": version.layer.value,
        "root": version.root,
        "version": version.version,
        "anchor": version.anchor.state if version.anchor else None,
        "certificate": certificates[0],
        "certificates equal": all(each == certificates[0] for each in certificates),
        "nonces used": await nonces_used(chain),
    }


async def nonces_used(chain: OpenChain | None) -> int:
    """How many transactions of the author are on the chain."""
    if chain is None:
        return 0
    import httpx

    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_getTransactionCount"}
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            chain.settings.url, json={**call, "params": ["0x" + chain.chain.sender.hex(), "latest"]}
        )
    return int(answer.json()["result"], 16)


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
