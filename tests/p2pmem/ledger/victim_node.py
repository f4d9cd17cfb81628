"""A node in a process of its own that shares without end, until it is killed. It says what was acknowledged.

python -m tests.p2pmem.ledger.victim_node DIRECTORY FIRST_NUMBER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio
from p2pmem_jobs import SystemClock, ThreadBlocking
from p2pmem_protocol.keys import Key

from p2pmem.face import NewGraph
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node

KEY = Key(b"\7" * 32)
SLUG = "kill"
AT_ONCE = 8


def places(directory: Path) -> Places:
    return Places(directory / "ledger.sqlite", directory / "store", directory / "text.sqlite")


def surroundings() -> Surroundings:
    return Surroundings(blocking=ThreadBlocking(), clock=SystemClock(), random_bytes=os.urandom, inline=True)


def graph_name() -> str:
    return f"{KEY.address}/{SLUG}"


async def share(node: Node, number: int) -> None:
    """Every third is drafted first, every fifth retracted again, so that all kinds of rows are under way."""
    face, graph, name = node.face, graph_name(), f"n{number}"
    data = f'<http://ex.org/{number}> <http://ex.org/says> "word {number}" .\n'.encode()
    if number % 3:
        await face.share_data(graph, name, data, format="nt", base=None, subgraph="", ttl_ms=None)
    else:
        await face.draft(graph, name, data, format="nt", base=None, subgraph="", replace=False)
        await face.share(graph, name, ttl_ms=None)
    if number % 5 == 0:
        await face.retract(graph, name, reason="", successor=None, erase=False)
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


async def main(directory: Path, first: int) -> None:
    network = MemoryFabric(seed=1).network("victim")
    async with open_node(NodeSettings("kill"), Keyring.of(KEY), network, places(directory), surroundings()) as node:
        if not await node.face.graphs():
            await node.face.found(NewGraph(SLUG))
        numbers = iter(range(first, first + 1_000_000))

        async def keep_sharing() -> None:
            for number in numbers:
                await share(node, number)

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(keep_sharing)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
