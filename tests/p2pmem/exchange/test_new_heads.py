"""How soon members hear of a roster: only a comparison tells of it, and it does not wait for what others wait for."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.names import GraphId
from trio.testing import MockClock

from p2pmem.exchange.pace import DIFFERS_PAUSE_S, SPREAD_MAX, Comparer
from p2pmem.face import MemberChange

GRAPH = GraphId(bytes(32))
SOON_S = DIFFERS_PAUSE_S * SPREAD_MAX + 0.1
"""The short pause after a comparison that was just made, and what is under way."""


async def heard_after_s(cluster: Cluster, by: ClusterNode) -> float:
    """How long until all members have the head that `by` has now."""
    began_s, head = trio.current_time(), by.graph.head_id
    for node in cluster.nodes:
        await node.inside.ledger.until(lambda here=node: here.graph.head_id == head)  # type: ignore[misc]
    return trio.current_time() - began_s


@pytest.mark.parametrize("gap_s", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_roster_soon_after_another_is_heard_as_soon_as_that(
    gap_s: float, seed: int, autojump_clock: MockClock
) -> None:
    async with Cluster(5, seed=seed, quorum=2, policy="manual") as cluster:
        await cluster.settled()
        await cluster.advance(minutes=2)
        ada = cluster.nodes[0]
        for m in (1, 2, 3):
            await ada.change_members(MemberChange(m=m))
            if m < 3:
                await trio.sleep(gap_s)
        assert await heard_after_s(cluster, ada) <= SOON_S


async def test_a_member_whose_disk_is_full_hears_of_a_roster_at_once(autojump_clock: MockClock) -> None:
    async with Cluster(2, seed=1, quorum=1, policy="manual") as cluster:
        ada, bo = cluster.nodes
        await cluster.settled()
        bo.inside.services.admission.is_partial = True
        await ada.share("ex:trial ex:lowers ex:ldl .")
        # what bo cannot take it is offered in vain, less and less often
        await cluster.advance(minutes=30)
        for m in (0, 1):
            await ada.change_members(MemberChange(m=m))
            assert await heard_after_s(cluster, ada) <= SOON_S


async def test_a_head_ends_the_long_pause_once(autojump_clock: MockClock) -> None:
    comparer = Comparer()
    for head, ends in ((b"one", True), (b"one", False), (b"two", True)):
        for _ in range(3):
            comparer.pause(lambda: 1.0, progress=False)
        comparer.told_head(GRAPH, head)
        left_s = comparer.rested_s - trio.current_time()
        assert (left_s == DIFFERS_PAUSE_S) is ends
        assert (comparer.stuck == 0) is ends
