"""`_meta` follows content: nobody who asks waits for company, and what a stop left out comes after the next start."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from trio.testing import MockClock

from p2pmem.face import NewGraph
from p2pmem.keyring import Keyring
from p2pmem.ledger.lifecycle import LifecycleStep, event_statements
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, open_node
from p2pmem.services import describing, node_reading
from p2pmem.store.query import StoreBehind
from tests.p2pmem.ledger.victim_node import KEY, places, surroundings

STATES = """
    PREFIX dkg: <http://dkg.io/ontology/>
    SELECT ?name ?state { GRAPH ?g { ?a dkg:assertionName ?name ; dkg:state ?state } }
"""


async def share(node: Node, graph: str, name: str) -> None:
    text = b'<urn:a> <urn:p> "x" .\n'
    await node.face.share_data(graph, name, text, format="nt", base=None, subgraph="", ttl_ms=None)


async def states(node: Node, graph: str) -> set[tuple[str | None, ...]]:
    answer = await node.face.query(STATES, graph=graph, layer=None, min_trust=None, at_least=0)
    return set(answer.rows)


async def everything(node: Node, graph: str) -> set[tuple[str | None, ...]]:
    answer = await node.face.query(
        "SELECT * { GRAPH ?g { ?s ?p ?o } }", graph=graph, layer=None, min_trust=None, at_least=0
    )
    return set(answer.rows)


async def test_who_asks_for_histories_does_not_wait_until_many_have_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describing, "GATHERED_S", 1e6)
    monkeypatch.setattr(describing, "EVENTS_AT_ONCE", 2)
    network = MemoryFabric(seed=1).network("ada")
    async with open_node(NodeSettings("meta"), Keyring.of(KEY), network, places(tmp_path), surroundings()) as node:
        graph = (await node.face.found(NewGraph("meta"))).graph
        for number in range(3):
            await share(node, graph, f"n{number}")
            assert len(await states(node, graph)) == number + 1


async def test_what_was_not_described_when_the_node_stopped_is_described_after_its_start(tmp_path: Path) -> None:
    keyring, at = Keyring.of(KEY), places(tmp_path)
    fabric = MemoryFabric(seed=1)
    async with open_node(NodeSettings("meta"), keyring, fabric.network("ada"), at, surroundings()) as node:
        graph = (await node.face.found(NewGraph("meta"))).graph
        await share(node, graph, "early")
        assert len(await states(node, graph)) == 1
        await share(node, graph, "late")
        assert node.store.described < node.ledger.position
    async with open_node(NodeSettings("meta"), keyring, fabric.network("ada2"), at, surroundings()) as node:
        assert node.store.described < node.ledger.position
        assert await states(node, graph) == {('"early"', '"promoted"'), ('"late"', '"promoted"')}


async def test_steps_that_were_told_are_not_told_again_and_nothing_is_missing_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[LifecycleStep] = []

    def noted(step: LifecycleStep, previous: LifecycleStep | None) -> bytes:
        steps.append(step)
        return event_statements(step, previous)

    monkeypatch.setattr(describing, "event_statements", noted)
    network = MemoryFabric(seed=1).network("ada")
    async with open_node(NodeSettings("meta"), Keyring.of(KEY), network, places(tmp_path), surroundings()) as node:
        graph = (await node.face.found(NewGraph("meta"))).graph
        for text in (b'<urn:a> <urn:p> "1" .\n', b'<urn:a> <urn:p> "2" .\n'):
            await node.face.share_data(graph, "same", text, format="nt", base=None, subgraph="", ttl_ms=None)
            assert await states(node, graph) == {('"same"', '"promoted"')}
        assert len(steps) == len({step.step for step in steps}) == 2
        told = await everything(node, graph)
        await node.services.projector.renew()
        assert await everything(node, graph) == told


async def test_a_node_made_anew_describes_everything_anew(tmp_path: Path) -> None:
    network = MemoryFabric(seed=1).network("ada")
    async with open_node(NodeSettings("meta"), Keyring.of(KEY), network, places(tmp_path), surroundings()) as node:
        graph = (await node.face.found(NewGraph("meta"))).graph
        await share(node, graph, "kept")
        await states(node, graph)
        await node.services.projector.renew()
        assert await states(node, graph) == {('"kept"', '"promoted"')}


def test_descriptions_come_in_a_quiet_while_and_wait_while_there_is_much_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(describing, "BUSY", 20)
    monkeypatch.setattr(describing, "EVENTS_AT_ONCE", 5)
    monkeypatch.setattr(describing, "GATHERED_S", 10.0)

    async def main() -> None:
        async with Cluster(2, seed=3, quorum=1) as cluster:
            ada = cluster.nodes[0]
            store, ledger = ada.inside.store, ada.inside.ledger
            await cluster.advance(seconds=60)
            await ada.share("ex:a ex:b ex:c .")
            assert store.described < ledger.position
            await cluster.advance(seconds=11 * describing.FEW_WAIT // 2)
            assert store.described < ledger.position, "so few wait for more of them"
            await cluster.advance(seconds=11 * describing.FEW_WAIT // 2)
            described = store.described
            assert described == ledger.position
            for seconds in (4, 4, 4, 4, 5, 1):
                for number in range(30):
                    await ada.share(f"ex:a ex:b ex:c{number} .")
                await cluster.advance(seconds=seconds)
            assert store.described == described
            await ada.inside.services.projector.described(described + 1)
            assert store.described < ledger.position
            await cluster.advance(seconds=1)
            assert store.described == ledger.position, "it goes on, though who asked has gone"
            for number in range(5):
                await ada.share(f"ex:a ex:b ex:later{number} .")
            await cluster.advance(seconds=21)
            assert store.described == ledger.position

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_query_that_would_look_complete_without_what_meta_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reading, "DESCRIBED_S", 0.0)
    monkeypatch.setattr(describing, "GATHERED_S", 1e6)
    network = MemoryFabric(seed=1).network("ada")
    async with open_node(NodeSettings("meta"), Keyring.of(KEY), network, places(tmp_path), surroundings()) as node:
        graph = (await node.face.found(NewGraph("meta"))).graph
        await share(node, graph, "early")
        at, describer = node.ledger.position, node.services.projector.describer
        with pytest.raises(StoreBehind, match=f"what _meta says is at ledger position {describer.position}, {at} was"):
            await states(node, graph)
        for plain in ('SELECT * { ?s ?p "graph" }', "SELECT * { ?s <urn:graph> ?o }"):
            answer = await node.face.query(plain, graph=graph, layer=None, min_trust=None, at_least=0)
            assert answer.position == node.ledger.position, "it does not look there"
        await node.services.projector.described(node.ledger.position)
        assert await states(node, graph) == {('"early"', '"promoted"')}
