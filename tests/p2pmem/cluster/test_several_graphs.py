"""A node that takes part in several graphs keeps each of them whole, whatever the others have in common with it."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from trio.testing import MockClock

from p2pmem.face import NewGraph


async def _join_second(cluster: Cluster, *nodes: ClusterNode) -> str:
    """Another graph of the first node, equal in its limits, kept lists and certificates, and the nodes in it."""
    owner = cluster.nodes[0]
    second = (await owner.face.found(NewGraph("second"))).graph
    for node in nodes:
        invite = await owner.face.invite(second, roles=("writer",), uses=1, life_ms=60_000)
        await node.face.join(invite, label=node.name)
    return second


async def _troubles(node: ClusterNode) -> dict[str, str]:
    return {view.graph: view.trouble for view in await node.face.graphs()}


async def test_graphs_with_equal_parts_of_rosters_are_all_there_after_a_restart(autojump_clock: MockClock) -> None:
    async with Cluster(2) as cluster:
        ada, bo = cluster.nodes
        second = await _join_second(cluster, bo)
        await cluster.stop(ada, bo)
        await cluster.restart(ada, bo)
        for node in (ada, bo):
            assert await _troubles(node) == {cluster.graph: "", second: ""}


@pytest.mark.parametrize("left_first", [True, False])
async def test_leaving_one_graph_takes_nothing_from_another(left_first: bool, autojump_clock: MockClock) -> None:
    async with Cluster(2) as cluster:
        _, bo = cluster.nodes
        second = await _join_second(cluster, bo)
        leaves, stays = (cluster.graph, second) if left_first else (second, cluster.graph)
        await bo.face.leave(leaves)
        await cluster.stop(bo)
        await cluster.restart(bo)
        assert await _troubles(bo) == {stays: ""}
