"""A host of ours under attack, and an attacker at its door."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
import trio

from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NetworkLimits, PeerId, Stream
from p2pmem.net.secure import Identity, SecureChannel
from p2pmem.net.wire import Wire, WireError
from tests.attacks import raw

from .helpers import ask, echo


@asynccontextmanager
async def victim(limits: NetworkLimits | None = None) -> AsyncIterator[Libp2pNetwork]:
    """A host under attack, with an echo."""
    async with Libp2pNetwork(
        identity_seed=hashlib.sha256(b"victim").digest(), listen=("/ip4/127.0.0.1/tcp/0",), limits=limits
    ) as network:
        network.set_handler("/echo/1", echo)
        yield network


async def dial(network: Libp2pNetwork, *, local_address: str = raw.ATTACKER_HOST) -> trio.SocketStream:
    return await raw.dial(network.addresses()[0], local_address)


async def wire_to(network: Libp2pNetwork, *, local_address: str = raw.ATTACKER_HOST) -> Wire:
    return await raw.wire_to(network.addresses()[0], local_address)


async def secured(
    network: Libp2pNetwork, identity: Identity | None = None, *, local_address: str = raw.ATTACKER_HOST
) -> SecureChannel:
    """A connection after noise and yamux were agreed on; from here on the attacker writes frames by hand."""
    return await raw.secured(network.addresses()[0], identity, local_address)


async def write_until_closed(channel: SecureChannel, pieces: Iterable[bytes]) -> None:
    """Write one piece after the other; the victim has to close the connection before they are all written."""
    with pytest.raises(WireError):
        await _write_all(channel, pieces)
    channel.wire.close()


async def _write_all(channel: SecureChannel, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        await channel.write(piece)


async def until_closed(wire: Wire) -> None:
    """Wait until the victim closes the connection."""
    try:
        while await wire.fill():
            pass
    except WireError:
        pass
    wire.close()


async def assert_serves(network: Libp2pNetwork) -> PeerId:
    """Somebody honest comes along and is served."""
    async with Libp2pNetwork(identity_seed=os.urandom(32)) as honest:
        peer = await honest.connect(network.addresses()[0], expected=None)
        assert await ask(honest, peer, b"are you there") == b"are you there"
        return honest.peer_id


async def read_until(channel: SecureChannel, word: bytes) -> bytes:
    """What the victim sends, until this is in it."""
    heard = b""
    while word not in heard:
        heard += await channel.receive()
    return heard


async def hold(stream: Stream) -> None:
    await trio.sleep_forever()
