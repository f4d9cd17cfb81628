"""Faults of py-libp2p 0.8.1, each in as few lines as it takes. They are why parts of it are not used here.

Each test asserts the *fault*. When an upgrade mends it the test fails, and what we built in its place can be looked at
again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import pytest
import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo, info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.insecure.pb import plaintext_pb2
from libp2p.stream_muxer.yamux.yamux import DEFAULT_WINDOW_SIZE
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr
from noise.exceptions import NoiseInvalidMessage

from p2pmem.net import multistream
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.multiaddr import parse_tcp
from p2pmem.net.seam import PeerId, PeerUnreachableError, StreamClosedError
from p2pmem.net.secure import Identity, SecureChannel, _shake_hands
from p2pmem.net.wire import Wire
from tests.attacks import raw
from tests.attacks.raw import bad_key_message, data, delimited, negotiate

LOOPBACK = Multiaddr("/ip4/127.0.0.1/tcp/0")
MESHSUB = TProtocol("/meshsub/1.1.0")


@asynccontextmanager
async def stock_host() -> AsyncIterator[IHost]:
    host = new_host(key_pair=create_new_key_pair(os.urandom(32)))
    async with host.run(listen_addrs=[LOOPBACK]):
        try:
            yield host
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await host.close()


def swarm_of(host: IHost) -> Swarm:
    swarm = host.get_network()
    assert isinstance(swarm, Swarm)
    return swarm


async def wire_to(host: IHost) -> Wire:
    return await raw.wire_to(str(host.get_addrs()[0]))


async def secured(host: IHost) -> SecureChannel:
    return await raw.secured(str(host.get_addrs()[0]))


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.005)


async def test_by_default_a_plaintext_dialler_is_whoever_it_says_it_is() -> None:
    stolen = create_new_key_pair(os.urandom(32)).public_key
    async with stock_host() as host:
        wire = await wire_to(host)
        assert await multistream.propose(wire, "/plaintext/2.0.0")
        claim = plaintext_pb2.Exchange(id=ID.from_pubkey(stolen).to_bytes())
        claim.pubkey.ParseFromString(stolen.serialize())
        await wire.write(delimited(claim.SerializeToString()))
        await wire.read_exactly((await wire.read_exactly(1))[0])
        assert await multistream.propose(wire, "/yamux/1.0.0")
        await until(lambda: ID.from_pubkey(stolen) in swarm_of(host).connections)
        wire.close()


async def serve(task_status: Any) -> None:
    """A stock host until cancelled, with a handler that has a fault."""

    async def fail(stream: INetStream) -> None:
        raise RuntimeError("a fault in a handler")

    host = new_host(key_pair=create_new_key_pair(os.urandom(32)))
    async with host.run(listen_addrs=[LOOPBACK]):
        host.set_stream_handler(TProtocol("/fail/1"), fail)
        task_status.started(host)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await host.close()


async def killed_by(attack: Callable[[IHost], Awaitable[Wire]]) -> None:
    """Raises what the host dies of; returns if it lives on."""
    async with trio.open_nursery() as nursery:
        host = await nursery.start(serve)
        wire = await attack(host)
        try:
            with trio.move_on_after(3):
                await trio.sleep_forever()
        finally:
            wire.close()
        nursery.cancel_scope.cancel()


async def test_a_stream_handler_that_raises_takes_the_host_down() -> None:
    async def attack(host: IHost) -> Wire:
        channel = await secured(host)
        await channel.write(negotiate(1, "/fail/1"))
        return channel.wire

    with pytest.raises(ExceptionGroup) as caught:
        await killed_by(attack)
    assert caught.group_contains(RuntimeError, match="a fault in a handler")


async def test_a_corrupt_message_over_mplex_which_the_dialler_chooses_takes_the_host_down() -> None:
    async def attack(host: IHost) -> Wire:
        wire = await wire_to(host)
        assert await multistream.propose(wire, "/noise")
        channel = await _shake_hands(wire, Identity(os.urandom(32)), expected=PeerId(str(host.get_id())), client=True)
        assert await multistream.propose(channel, "/mplex/6.7.0")
        await wire.write((100).to_bytes(2) + os.urandom(100))
        return wire

    with pytest.raises(ExceptionGroup) as caught:
        await killed_by(attack)
    assert caught.group_contains(NoiseInvalidMessage)


async def test_inbound_slots_do_not_come_back() -> None:
    async with stock_host() as host:
        for _ in range(5):
            channel = await secured(host)
            channel.wire.close()
        await until(lambda: swarm_of(host).get_total_connections() == 0)
        assert swarm_of(host)._inbound_limiter.borrowed_tokens == 5


async def test_the_window_of_a_stream_is_announced_and_not_enforced() -> None:
    async with stock_host() as host:

        async def never_read(stream: INetStream) -> None:
            await trio.sleep_forever()

        host.set_stream_handler(TProtocol("/hold/1"), never_read)
        channel = await secured(host)
        await channel.write(negotiate(1, "/hold/1"))
        for _ in range(16):
            await channel.write(data(1, bytes(65_536)))
        (connection,) = swarm_of(host).get_connections()
        await until(lambda: len(connection.muxed_conn.stream_buffers[1]) > 3 * DEFAULT_WINDOW_SIZE)  # type: ignore[attr-defined]
        channel.wire.close()


async def test_leaving_a_host_leaves_its_port_open() -> None:
    host = new_host(key_pair=create_new_key_pair(os.urandom(32)))
    async with host.run(listen_addrs=[LOOPBACK]):
        name, port = parse_tcp(str(host.get_addrs()[0]).rpartition("/p2p/")[0])
    stream = await trio.open_tcp_stream(name, port)
    await stream.aclose()
    with trio.CancelScope(shield=True), trio.move_on_after(5):
        await host.close()


async def test_a_peer_that_could_not_be_reached_once_is_not_tried_again_for_a_minute() -> None:
    async with stock_host() as dialler, stock_host() as other:
        dead = PeerInfo(other.get_id(), [Multiaddr("/ip4/127.0.0.1/tcp/1")])
        with pytest.raises(Exception, match="unable to connect"):
            await dialler.connect(dead)
        dialler.get_peerstore().clear_addrs(other.get_id())
        with pytest.raises(Exception, match="negative cache"):
            await dialler.connect(info_from_p2p_addr(other.get_addrs()[0]))


async def test_a_stranger_gets_a_list_of_all_protocols() -> None:
    async with stock_host() as host:
        host.set_stream_handler(TProtocol("/secret/1"), lambda stream: stream.close())
        channel = await secured(host)
        await channel.write(negotiate(1, "ls"))
        got = bytearray()
        with trio.fail_after(5):
            while b"/secret/1" not in got:
                got += await channel.receive()
        channel.wire.close()


async def gossip_under(attack: bytes) -> None:
    """A stock pubsub that is sent one frame on its stream; returns if it is alive after all."""
    host = new_host(key_pair=create_new_key_pair(os.urandom(32)))
    router = GossipSub(protocols=[MESHSUB], degree=3, degree_low=2, degree_high=4, heartbeat_interval=1)
    pubsub = Pubsub(host, router, strict_signing=True)
    async with (
        host.run(listen_addrs=[LOOPBACK]),
        background_trio_service(pubsub),
        background_trio_service(router),
    ):
        channel: SecureChannel | None = None
        try:
            await pubsub.wait_until_ready()
            await pubsub.subscribe("topic")
            channel = await secured(host)
            await channel.write(negotiate(1, MESHSUB, attack))
            with trio.move_on_after(3):
                await pubsub.manager.wait_finished()
        finally:
            if channel is not None:
                channel.wire.close()
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await host.close()


BAD_FRAMES = {
    "garbage": b"\xff" * 20,
    "bad key": rpc_pb2.RPC(publish=[bad_key_message(os.urandom(34), "topic")]).SerializeToString(),
    "bad key, no author": rpc_pb2.RPC(publish=[bad_key_message(b"", "topic")]).SerializeToString(),
}


@pytest.mark.parametrize("attack", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_one_frame_ends_pubsub(attack: bytes) -> None:
    with pytest.raises(BaseExceptionGroup):
        await gossip_under(delimited(attack))


async def test_numbers_of_messages_begin_at_the_second_of_the_start() -> None:
    """At more than a message a second the last number before a restart is ahead of the first one after it, and peers
    that remember it take what is new for old."""
    async with stock_host() as host:
        pubsub = Pubsub(host, GossipSub(protocols=[MESHSUB], degree=3, degree_low=2, degree_high=4))
        assert abs(pubsub.counter - time.time()) < 60


async def test_sockets_that_say_nothing_hold_all_inbound_slots() -> None:
    async with stock_host() as host:
        address = str(host.get_addrs()[0])
        sockets = [await raw.dial(address) for _ in range(250)]
        limiter = swarm_of(host)._inbound_limiter
        await until(lambda: limiter.available_tokens == 0)
        for stream in sockets:
            stream.socket.close()


async def test_a_large_write_that_is_cancelled_breaks_the_whole_connection() -> None:
    """Not each time: it depends on where in the write it is. So it is tried until one does."""
    async with stock_host() as host, Libp2pNetwork(identity_seed=os.urandom(32)) as reader:

        async def give_up(stream: INetStream) -> None:
            wait_s = int(await stream.read(10)) / 1000
            with contextlib.suppress(Exception), trio.move_on_after(wait_s):
                await stream.write(bytes(8_000_000))
            with contextlib.suppress(Exception):
                await stream.reset()

        host.set_stream_handler(TProtocol("/cancel/1"), give_up)
        peer = await reader.connect(str(host.get_addrs()[0]), expected=None)
        with trio.fail_after(30):
            for wait_ms in itertools.cycle((1, 5, 10, 20, 40)):
                try:
                    stream = await reader.open_stream(peer, "/cancel/1")
                    await stream.send_all(b"%d" % wait_ms)
                    while await stream.receive_some():
                        pass
                except StreamClosedError:
                    continue
                except PeerUnreachableError:
                    break


async def test_of_messages_that_wait_for_a_peer_a_limit_of_none_keeps_all() -> None:
    router = GossipSub(protocols=[], degree=6, degree_low=4, degree_high=12, max_pending_messages_per_peer=0)
    peer = ID.from_pubkey(create_new_key_pair(os.urandom(32)).public_key)
    for _ in range(100):
        router._prune_pending_messages(peer)
        router._pending_messages[peer].append((time.time(), rpc_pb2.RPC()))
    assert len(router._pending_messages[peer]) == 100
