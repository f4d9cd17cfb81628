"""The cluster over the real network, in real time."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.trust import Trust


def test_five_nodes_over_libp2p_do_the_main_job_in_one_process() -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with Cluster(n=5, seed=3, quorum=2, net="libp2p") as cluster:
                ada, bo, cy, *_ = cluster.nodes
                asset = await ada.share('ex:a ex:says "over wires" .')
                await cluster.settled()
                assert all(node.sees(asset) for node in cluster.nodes)
                await bo.endorse(asset)
                await cluster.crash(cy)
                await ada.verify(asset)
                await cluster.restart(cy)
                await cluster.settled()
                assert {node.trust(asset) for node in cluster.nodes} == {Trust.CONSENSUS_VERIFIED}
                with pytest.raises(MisuseError, match="net='memory'"):
                    cluster.slow(ada)
                cluster.audit()

    trio.run(main)


def test_nodes_of_one_address_that_all_start_again_at_once_meet_again() -> None:
    async def main() -> None:
        with trio.fail_after(60):
            async with Cluster(n=4, seed=5, net="libp2p") as cluster:
                ada, *_ = cluster.nodes
                await cluster.crash(*cluster.nodes)
                await cluster.restart(*cluster.nodes)
                asset = await ada.share('ex:a ex:says "here again" .')
                await cluster.settled()
                assert all(node.sees(asset) for node in cluster.nodes)
                refused = [set(node.inside.network.statistics().refused) for node in cluster.nodes]
                assert set().union(*refused) <= {"dial", "stream-ended"}, "nobody is refused for who else comes"

    trio.run(main)
