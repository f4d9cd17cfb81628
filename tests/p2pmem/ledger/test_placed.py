"""What a node knows after its start of what its projections hold: whatever has gone meanwhile goes from them too."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

from p2pmem_jobs import SystemClock

from p2pmem.face import NewGraph
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, open_node
from tests.p2pmem.ledger.victim_node import KEY, places, surroundings

HOUR_MS = 3_600_000


class Clock(SystemClock):
    """The wall clock, so far ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@asynccontextmanager
async def open_at(directory: Path, clock: Clock) -> AsyncIterator[Node]:
    network = MemoryFabric(seed=1).network("ada")
    taken = replace(surroundings(), clock=clock)
    async with open_node(NodeSettings("placed"), Keyring.of(KEY), network, places(directory), taken) as node:
        yield node


async def share(node: Node, graph: str, name: str, ttl_ms: int | None = None) -> None:
    data = f'<urn:{name}> <urn:says> "word" .\n'.encode()
    await node.face.share_data(graph, name, data, format="nt", base=None, subgraph="", ttl_ms=ttl_ms)


def names_in(node: Node) -> set[str]:
    return {iri.rpartition("/")[2] for iri in node.store.placed()}


async def test_what_ended_while_the_text_index_was_behind_the_store_leaves_both(tmp_path: Path) -> None:
    clock = Clock()
    async with open_at(tmp_path, clock) as node:
        graph = (await node.face.found(NewGraph("placed"))).graph
        await share(node, graph, "stays")
    earlier = shutil.copy(tmp_path / "text.sqlite", tmp_path / "earlier.sqlite")
    async with open_at(tmp_path, clock) as node:
        await share(node, graph, "ends", ttl_ms=HOUR_MS)
        assert names_in(node) == {"stays", "ends"}
    shutil.copy(earlier, tmp_path / "text.sqlite")
    clock.ahead_ms = 2 * HOUR_MS
    async with open_at(tmp_path, clock) as node:
        await node.services.keeper.sweep()
        await node.services.projector.reached(node.ledger.position)
        assert names_in(node) == {"stays"}
        await node.store.check()


async def test_what_ended_while_the_node_was_stopped_leaves_its_projections(tmp_path: Path) -> None:
    clock = Clock()
    async with open_at(tmp_path, clock) as node:
        graph = (await node.face.found(NewGraph("placed"))).graph
        await share(node, graph, "stays")
        await share(node, graph, "ends", ttl_ms=HOUR_MS)
    clock.ahead_ms = 2 * HOUR_MS
    async with open_at(tmp_path, clock) as node:
        await node.services.keeper.sweep()
        await node.services.projector.reached(node.ledger.position)
        assert names_in(node) == {"stays"}


async def test_what_left_the_store_while_the_text_index_was_behind_leaves_the_index_too(tmp_path: Path) -> None:
    clock = Clock()
    async with open_at(tmp_path, clock) as node:
        graph = (await node.face.found(NewGraph("placed"))).graph
        await share(node, graph, "stays")
        await share(node, graph, "goes")
        await share(node, graph, "ends", ttl_ms=HOUR_MS)
    earlier = shutil.copy(tmp_path / "text.sqlite", tmp_path / "earlier.sqlite")
    clock.ahead_ms = 2 * HOUR_MS
    async with open_at(tmp_path, clock) as node:
        await node.face.retract(graph, "goes", reason="", successor=None, erase=True)
        await node.services.keeper.sweep()
        await node.services.projector.reached(node.ledger.position)
        assert names_in(node) == {"stays"}
    shutil.copy(earlier, tmp_path / "text.sqlite")
    async with open_at(tmp_path, clock) as node:
        await node.services.projector.reached(node.ledger.position)
        assert names_in(node) == {"stays"}
        await node.store.check()
    with closing(sqlite3.connect(tmp_path / "text.sqlite")) as connection:
        rows = connection.execute("SELECT graph_iri FROM asset").fetchall()
    assert [iri.rpartition("/")[2] for (iri,) in rows] == ["stays"]
