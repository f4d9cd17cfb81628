"""A cluster with a chain: what is published is anchored there, and every node sees it."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.anvil import AnvilMissingError, find_anvil
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import Asset, ClusterNode
from p2pmem_jobs import Listener
from p2pmem_protocol.errors import MisuseError

from tests.conftest import needs


@pytest.fixture(autouse=True)
def _anvil(request: pytest.FixtureRequest) -> None:
    if "chain" in request.keywords:
        try:
            find_anvil()
        except AnvilMissingError as error:
            needs(str(error))


async def until_anchored(node: ClusterNode, asset: Asset) -> None:
    """Return once this node has itself found the version on the chain."""
    with Listener((node.inside.ledger.changed,)) as listener:
        while not any(
            it.reference == asset.reference and it.anchor is not None and it.anchor.state == "confirmed"
            for it in await node.versions()
        ):
            await listener.wait()


@pytest.mark.chain
@pytest.mark.slow
def test_what_is_published_is_anchored_and_everybody_sees_it_also_after_a_crash() -> None:
    async def main() -> None:
        with trio.fail_after(90):
            async with Cluster(n=3, seed=5, quorum=1, net="libp2p", chain="anvil") as cluster:
                ada, bo, cy = cluster.nodes
                asset = await ada.publish(text='ex:a ex:says "for good" .')
                await cluster.settled()
                await cluster.crash(cy)
                await cluster.restart(cy)
                await cluster.anvil.mine(2)
                for node in (ada, bo, cy):
                    await until_anchored(node, asset)
                assert (await ada.verify(asset)).word == "ConsensusVerified"
                await cluster.settled()
                cluster.audit()

    trio.run(main)


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"chain": "anvil"}, "real time"), ({"chain": "mainnet", "net": "libp2p"}, "None or 'anvil'")],
)
def test_a_chain_that_cannot_be_is_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        Cluster(2, **settings)


def test_a_cluster_without_a_chain_says_how_to_have_one() -> None:
    with pytest.raises(MisuseError, match="chain='anvil'"):
        Cluster(2).anvil  # noqa: B018
