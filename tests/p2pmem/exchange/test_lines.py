"""How many streams a node opens to ask: few, which are used again."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol.hello import SYNC_PROTOCOL

from p2pmem.exchange.sync_client import IDLE_LINES_MAX
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId, Stream

LONG = "long " * 20_000


@pytest.mark.cluster(n=2)
async def test_however_many_contents_are_fetched_from_a_peer_few_streams_are_opened(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await cluster.settled()
    network, opened = bo.inside.network, list[str]()
    open_stream = network.open_stream

    async def count(peer: PeerId, protocol: str) -> Stream:
        opened.append(protocol)
        return await open_stream(peer, protocol)

    network.open_stream = count  # type: ignore[method-assign]
    assets = [await ada.share(f'ex:a{number} ex:says "{LONG}" .') for number in range(30)]
    await cluster.settled()
    await cluster.advance(seconds=10)
    assert all([await bo.content(asset) for asset in assets])
    assert opened.count(SYNC_PROTOCOL) <= 5
    assert PeerLimits().sync_streams_per_peer_max > IDLE_LINES_MAX
    await cluster.crash(ada)
    await cluster.advance(minutes=2)
    assert bo.inside.exchange.client._lines == {}
