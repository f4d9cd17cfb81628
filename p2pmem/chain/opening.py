"""Opening the chain that the configuration of a node names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from p2pmem_protocol.names import Address, network_id

from p2pmem.chain.seam import Chain, ChainSettings
from p2pmem.config import Config


@asynccontextmanager
async def open_configured(config: Config, secret: bytes) -> AsyncIterator[tuple[Chain, ChainSettings] | None]:
    """The chain and its settings, with transactions signed by `secret`; None when no chain is set. Raises as
    `open_chain`. What speaks to a chain is loaded only if there is one."""
    if not config.chain_rpc:
        yield None
        return
    from eth_account import Account

    from p2pmem.chain.client import open_chain

    settings = ChainSettings(
        url=config.chain_rpc,
        chain_id=config.chain_id,
        contract=Address.parse(config.chain_contract),
        network=network_id(config.network),
        confirmations=config.chain_confirmations,
        poll_seconds=config.chain_poll_s,
    )
    async with open_chain(settings, Account.from_key(secret)) as chain:
        yield chain, settings
