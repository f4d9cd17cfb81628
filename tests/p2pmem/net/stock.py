"""py-libp2p as it comes, for tests that need the other side or its faults."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import create_new_key_pair
from multiaddr import Multiaddr


@asynccontextmanager
async def stock_host(**options: Any) -> AsyncIterator[IHost]:
    """A host with py-libp2p's defaults but for `options`, closed so that nothing stays behind."""
    host = new_host(key_pair=create_new_key_pair(os.urandom(32)), **options)
    async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        try:
            yield host
        finally:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(5):
                    await host.close()


def address_of(host: IHost) -> str:
    """Where a stock host listens, with its peer id."""
    (address,) = host.get_addrs()
    return str(address)
