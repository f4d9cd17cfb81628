"""What a cluster promises to whoever tests with it."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, NotSettledError, days, minutes
from p2pmem_devnet.cluster_node import NodeDownError
from p2pmem_protocol.trust import Trust


async def test_what_my_agents_need(cluster: Cluster) -> None:
    ada, bo, cy, *_ = cluster.nodes
    asset = await ada.share("ex:trial ex:lowers ex:ldl .", ttl=days(2))
    await cluster.settled()
    with cluster.partition([ada, bo], [cy]):
        await bo.endorse(asset)
    await cluster.settled()
    assert cy.trust(asset) is Trust.ENDORSED
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.settled()
    assert bo.trust(asset) is Trust.ENDORSED


@pytest.mark.cluster(n=2)
async def test_what_has_not_settled_is_a_table_with_reasons(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    cluster.skew(bo, minutes(20))
    await cluster.restart(bo)
    await bo.share("ex:from ex:the ex:future .")
    with pytest.raises(NotSettledError) as caught:
        await cluster.settled(within=minutes(3))
    text = str(caught.value)
    assert "ada" in text
    assert "share" in text
    assert "the clock of bo is +1200 s away" in text
    assert ada.sees(asset)


@pytest.mark.cluster(n=2)
async def test_a_node_that_is_down_answers_nothing(cluster: Cluster) -> None:
    _, bo = cluster.nodes
    await cluster.crash(bo)
    with pytest.raises(NodeDownError):
        await bo.share("ex:a ex:b ex:c .")


@pytest.mark.slow
@pytest.mark.cluster(n=50, quorum=3, audit=False)
async def test_fifty_nodes_are_ready_at_once_and_come_to_hold_the_same(cluster: Cluster) -> None:
    assert all(node.inside.ledger.graphs for node in cluster.nodes)
    assert trio.current_time() < 1, "nobody is told to come again later"
    asset = await cluster.nodes[7].share("ex:a ex:b ex:c .")
    await cluster.until_seen(asset)
