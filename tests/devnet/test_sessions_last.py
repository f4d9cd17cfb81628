"""Sessions among many members who all come at once, and all tell each other whom they are connected to."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster, seconds


def sessions(cluster: Cluster) -> dict[tuple[str, str], int]:
    """When each session that stands was opened."""
    return {
        (node.name, session.peer): session.opened_ms
        for node in cluster.nodes
        for session in node.inside.services.sessions.all()
    }


@pytest.mark.slow
@pytest.mark.cluster(n=16)
async def test_of_many_who_come_back_at_once_nobody_is_taken_for_one_who_acknowledges_nothing(cluster: Cluster) -> None:
    cluster.slow(*cluster.nodes, delay=seconds(0.02), jitter=seconds(0.02))
    for _ in range(3):
        with cluster.partition(cluster.nodes[:8], cluster.nodes[8:]):
            await cluster.advance(minutes=2)
        while len(sessions(cluster)) < 16 * 15:
            await cluster.advance(seconds=1)
        before = sessions(cluster)
        await cluster.advance(minutes=1)
        assert sessions(cluster) == before
