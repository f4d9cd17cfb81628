"""The chain of a cluster: anvil as a process of its own, with our contract, and money for every node.

    async with Cluster(3, net="libp2p", chain="anvil") as cluster:
        asset = await cluster.nodes[0].publish(text="ex:a ex:b ex:c .")
        await cluster.anvil.mine(3)

A process lives in real time, and so does such a cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_protocol.keys import Key

from p2pmem.node import OpenChain
from p2pmem_devnet.anvil import CHAIN_ID, Anvil, start_anvil

if TYPE_CHECKING:
    from p2pmem.chain.seam import ChainSettings

POLL_S: Final = 0.05
CONFIRMATIONS: Final = 1


class ClusterChain:
    """A chain that runs. Made by `open_cluster_chain`."""

    def __init__(self, anvil: Anvil, settings: ChainSettings) -> None:
        self.anvil = anvil
        self.settings = settings

    @asynccontextmanager
    async def for_node(self, key: Key) -> AsyncIterator[OpenChain]:
        """A connection of a node's own, which pays from its agent's account: there is plenty in it."""
        from eth_account import Account  # heavy

        from p2pmem.chain.client import open_chain

        await self.anvil.fund(str(key.address))
        async with open_chain(self.settings, Account.from_key(key.secret)) as chain:
            yield OpenChain(chain, self.settings)


@asynccontextmanager
async def open_cluster_chain(directory: Path, network: bytes) -> AsyncIterator[ClusterChain]:
    """Run a chain for the nodes of `network` while the block runs; `AnvilMissingError` says how to get one."""
    from p2pmem.chain.seam import ChainSettings

    await trio.Path(directory).mkdir()
    async with start_anvil(directory) as anvil:
        contract = await anvil.deploy_anchor(network)
        settings = ChainSettings(
            anvil.url, CHAIN_ID, contract, network, confirmations=CONFIRMATIONS, poll_seconds=POLL_S
        )
        yield ClusterChain(anvil, settings)
