"""The chain of a devnet: anvil with the contract on it, and accounts with worthless money for all nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from p2pmem_protocol.names import Address, network_id

from p2pmem_devnet.anvil import CHAIN_ID, Anvil, start_anvil

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class DevChain:
    """A chain that runs, and the contract on it."""

    anvil: Anvil
    contract: Address

    @property
    def settings(self) -> Mapping[str, str]:
        """As environment variables of a node."""
        return {
            "P2PMEM_CHAIN_RPC": self.anvil.url,
            "P2PMEM_CHAIN_CONTRACT": str(self.contract),
            "P2PMEM_CHAIN_CHAIN_ID": str(CHAIN_ID),
            "P2PMEM_CHAIN_CONFIRMATIONS": "1",
            "P2PMEM_CHAIN_POLL_S": str(POLL_S),
        }

    async def pay(self, agents: Iterable[Address]) -> None:
        """Give each agent enough for all that a run does."""
        for agent in agents:
            await self.anvil.fund(str(agent))


@asynccontextmanager
async def open_dev_chain(directory: Path, network: str) -> AsyncIterator[DevChain]:
    """Run a chain while the block runs. Raises `AnvilMissingError` where there is no anvil, `AnvilError` otherwise."""
    await trio.Path(directory).mkdir(exist_ok=True)
    async with start_anvil(directory) as anvil:
        yield DevChain(anvil, Address(await anvil.deploy_anchor(network_id(network))))
