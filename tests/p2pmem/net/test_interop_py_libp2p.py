"""Our host and py-libp2p's own swarm, noise and yamux understand each other, both ways."""

from __future__ import annotations

import os

import pytest
import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from p2pmem.net.gossipsub import MESHSUB, open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NotSpokenError, PeerId
from p2pmem.net.topics import Verdict

from .helpers import ask, echo, until
from .stock import address_of, stock_host

ECHO = TProtocol("/echo/1")


async def stock_echo(stream: INetStream) -> None:
    data = bytearray()
    while len(data) < 5:
        data += await stream.read(5 - len(data))
    size = int(data.decode())
    content = bytearray()
    while len(content) < size:
        content += await stream.read(65_536)
    await stream.write(bytes(content))
    await stream.close()


async def test_we_dial_py_libp2p() -> None:
    async with stock_host() as stock, Libp2pNetwork(identity_seed=os.urandom(32)) as ours:
        stock.set_stream_handler(ECHO, stock_echo)
        peer = await ours.connect(address_of(stock), expected=PeerId(str(stock.get_id())))
        for size in (1, 1000, 90_000):
            content = os.urandom(size)
            stream = await ours.open_stream(peer, "/echo/1")
            await stream.send_all(f"{size:05}".encode() + content)
            got = bytearray()
            while len(got) < size:
                got += await stream.receive_some()
            assert got == content
            await stream.aclose()
        with pytest.raises(NotSpokenError):
            await ours.open_stream(peer, "/nobody/speaks/this")


async def test_py_libp2p_dials_us() -> None:
    async with (
        Libp2pNetwork(identity_seed=os.urandom(32), listen=("/ip4/127.0.0.1/tcp/0",)) as ours,
        stock_host() as stock,
    ):
        ours.set_handler("/echo/1", echo)
        await stock.connect(info_from_p2p_addr(Multiaddr(ours.addresses()[0])))
        for size in (1, 1000, 700_000):
            content = os.urandom(size)
            stream = await stock.new_stream(ID.from_string(ours.peer_id), [ECHO])
            got = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.write, content)
                while len(got) < size:
                    got += await stream.read(65_536)
            assert got == content
            await stream.close()


async def test_a_stream_can_be_opened_over_a_connection_py_libp2p_dialled() -> None:
    async with (
        Libp2pNetwork(identity_seed=os.urandom(32), listen=("/ip4/127.0.0.1/tcp/0",)) as ours,
        stock_host() as stock,
    ):
        stock.set_stream_handler(ECHO, stock_echo)
        await stock.connect(info_from_p2p_addr(Multiaddr(ours.addresses()[0])))
        assert await ask(ours, PeerId(str(stock.get_id())), b"00003abc") == b"abc"


async def test_gossip_goes_both_ways_between_us_and_py_libp2p_as_it_comes() -> None:
    seed = os.urandom(32)
    got: list[bytes] = []

    async def take(peer: PeerId, data: bytes) -> Verdict:
        got.append(data)
        return Verdict.ACCEPT

    router = GossipSub(protocols=[TProtocol(MESHSUB)], degree=3, degree_low=2, degree_high=4, heartbeat_interval=1)
    async with (
        Libp2pNetwork(identity_seed=seed, listen=("/ip4/127.0.0.1/tcp/0",)) as ours,
        open_gossip(ours, identity_seed=seed) as topics,
        stock_host() as stock,
    ):
        pubsub = Pubsub(stock, router, strict_signing=True)
        async with background_trio_service(pubsub), background_trio_service(router):
            await pubsub.wait_until_ready()
            subscription = await pubsub.subscribe("open")
            await topics.subscribe("open", take)
            await stock.connect(info_from_p2p_addr(Multiaddr(ours.addresses()[0])))
            await until(lambda: bool(topics.neighbours("open")) and bool(router.mesh.get("open")))
            await topics.publish("open", b"from us")
            assert (await subscription.get()).data == b"from us"
            await pubsub.publish("open", b"from py-libp2p")
            await until(lambda: got == [b"from py-libp2p"])
