"""Whoever dials and does not get through: other words, other keys, half-open sockets. After each, others are served."""

from __future__ import annotations

import contextlib
import os

import pytest
import trio

from p2pmem.net import multistream
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NetworkLimits, PeerUnreachableError
from p2pmem.net.secure import Identity
from tests.attacks.raw import ATTACKER_HOST

from .attacker import assert_serves, dial, secured, until_closed, victim, wire_to
from .helpers import until

GARBAGE = {
    "nothing": b"",
    "zeros": bytes(5000),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "huge varint": b"\xff" * 64,
    "bad text": b"\x05\xff\xfe\xfd\xfc\n",
    "long word": b"\xff\x7f" + b"a" * 20_000,
    "no newline": b"\x13/multistream/1.0.0x",
    "half a word": b"\x13/multistream",
    "proposals without end": multistream.encode_token("/multistream/1.0.0") + multistream.encode_token("/x") * 100,
    "noise of zeros": multistream.encode_token("/multistream/1.0.0") + multistream.encode_token("/noise") + bytes(70),
    "noise, longest": multistream.encode_token("/multistream/1.0.0")
    + multistream.encode_token("/noise")
    + b"\xff\xff"
    + bytes(65_535),
    "noise, broken off": multistream.encode_token("/multistream/1.0.0")
    + multistream.encode_token("/noise")
    + b"\x00\x20"
    + os.urandom(32),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_instead_of_a_handshake(garbage: bytes) -> None:
    async with victim(NetworkLimits(handshake_timeout_s=0.3)) as network:
        stream = await dial(network)
        try:
            await stream.send_all(garbage)
            if garbage == b"":
                await stream.send_eof()
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
        await stream.aclose()
        statistics = network.statistics()
        assert statistics.refused.keys() <= {"handshake", "handshake-timeout"}
        assert statistics.half_open == 0
        assert not network.connected()
        await assert_serves(network)


@pytest.mark.parametrize("protocol", ["/plaintext/2.0.0", "/secio/1.0.0", "/tls/1.0.0", "ls"])
async def test_a_dialler_that_wants_other_security_is_told_no(protocol: str) -> None:
    async with victim() as network:
        wire = await wire_to(network)
        assert not await multistream.propose(wire, protocol)
        wire.close()
        await assert_serves(network)


async def test_an_identity_whose_key_was_only_read_somewhere_is_refused() -> None:
    stolen = Identity(os.urandom(32)).key_pair.public_key
    thief = Identity(os.urandom(32))

    class Thief(type(thief.key_pair.private_key)):  # type: ignore[misc]
        def get_public_key(self) -> object:
            return stolen

    thief.noise.libp2p_privkey = Thief(thief.key_pair.private_key.impl)  # type: ignore[attr-defined]
    async with victim() as network:
        with pytest.raises(Exception, match="no connection"):
            await secured(network, thief)
        assert not network.connected()
        await assert_serves(network)
        assert network.statistics().refused["handshake"] == 1


@pytest.mark.parametrize("kind", ["rsa", "secp256k1", "ecdsa"])
async def test_an_identity_of_another_kind_of_key_is_refused(kind: str) -> None:
    from libp2p.crypto.ecc import create_new_key_pair as new_ecdsa
    from libp2p.crypto.rsa import create_new_key_pair as new_rsa
    from libp2p.crypto.secp256k1 import create_new_key_pair as new_secp256k1

    other = Identity(os.urandom(32))
    pair = {"rsa": lambda: new_rsa(2048), "secp256k1": new_secp256k1, "ecdsa": lambda: new_ecdsa("P-256")}[kind]()
    other.noise.libp2p_privkey = pair.private_key
    async with victim() as network:
        with pytest.raises(Exception, match="no connection"):
            await secured(network, other)
        assert not network.connected()
        await assert_serves(network)


@pytest.mark.parametrize("muxer", ["/mplex/6.7.0", "ls", "/yamux/2.0.0"])
async def test_a_dialler_that_wants_another_muxer_is_told_no(muxer: str) -> None:
    from p2pmem.net.secure import _shake_hands

    async with victim() as network:
        wire = await wire_to(network)
        assert await multistream.propose(wire, "/noise")
        channel = await _shake_hands(wire, Identity(os.urandom(32)), expected=network.peer_id, client=True)
        assert not await multistream.propose(channel, muxer)
        wire.close()
        await assert_serves(network)


@pytest.mark.parametrize("size", [0, 1, 16, 1000, 65_535])
async def test_a_message_that_does_not_decrypt_ends_its_connection(size: int) -> None:
    async with victim() as network:
        channel = await secured(network)
        await channel.wire.write(size.to_bytes(2) + os.urandom(size))
        await until_closed(channel.wire)
        await assert_serves(network)


async def test_of_all_addresses_so_many_sockets_a_minute_are_heard_and_what_one_may_not_is_not_counted() -> None:
    limits = NetworkLimits(handshakes_per_address_per_minute=3, handshakes_per_minute=6)
    async with victim(limits) as network:
        for _ in range(9):
            await (await dial(network)).aclose()
        await until(lambda: network.statistics().refused.get("handshakes-per-address") == 6)
        for number in range(3):
            channel = await secured(network, local_address=f"127.0.0.{10 + number}")
            channel.wire.close()
        await (await dial(network, local_address="127.0.0.20")).aclose()
        await until(lambda: network.statistics().refused.get("handshakes") == 1)
        assert network.statistics().refused["handshakes-per-address"] == 6


async def test_four_hundred_half_open_sockets_of_one_address_do_not_keep_others_out() -> None:
    limits = NetworkLimits(half_open_per_address_max=16)
    async with victim(limits) as network:
        sockets = [await dial(network) for _ in range(400)]
        await until(lambda: network.statistics().refused.get("half-open-per-address") == 384)
        assert network.statistics().half_open == 16
        await assert_serves(network)
        for stream in sockets:
            await stream.aclose()


async def test_a_listener_that_says_nothing_is_given_up_in_time() -> None:
    async with Libp2pNetwork(identity_seed=os.urandom(32), limits=NetworkLimits(connect_timeout_s=0.1)) as network:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nobody = Identity(os.urandom(32)).peer_id
        with pytest.raises(PeerUnreachableError, match=r"silent for 0\.1 s"):
            await network.connect(f"/ip4/127.0.0.1/tcp/{port}", expected=nobody)
        await listener.aclose()


async def test_a_half_open_socket_has_limited_time() -> None:
    async with victim(NetworkLimits(handshake_timeout_s=0.1)) as network:
        stream = await dial(network)
        assert await stream.receive_some() == b""
        await stream.aclose()
        assert network.statistics().refused == {"handshake-timeout": 1}
        assert network.statistics().unproven_sent_bytes == 0


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (NetworkLimits(half_open_max=3), "half-open"),
        (NetworkLimits(half_open_per_address_max=3), "half-open-per-address"),
    ],
)
async def test_one_half_open_socket_past_a_limit_takes_the_place_of_the_oldest(
    limits: NetworkLimits, name: str
) -> None:
    async with victim(limits) as network:
        sockets = [await dial(network) for _ in range(3)]
        await until(lambda: network.statistics().half_open == 3)
        assert network.statistics().refused == {}
        sockets.append(await dial(network))
        assert await sockets[0].receive_some() == b""
        assert network.statistics().half_open == 3
        assert network.statistics().refused == {name: 1}
        await assert_serves(network)
        for stream in sockets:
            await stream.aclose()


async def test_of_one_address_so_many_sockets_a_minute_are_heard_and_one_more_is_closed_at_once() -> None:
    async with victim(NetworkLimits(handshakes_per_address_per_minute=5, accounted_addresses_max=2)) as network:
        channels = [await secured(network) for _ in range(5)]
        refused = await dial(network)
        with contextlib.suppress(trio.BrokenResourceError):
            assert await refused.receive_some() == b""
        await refused.aclose()
        assert network.statistics().refused == {"handshakes-per-address": 1}
        assert network.statistics().unproven_received_bytes == 0
        await assert_serves(network)  # at another address, and what stands there goes on
        await until(lambda: len(network.connected()) >= 5)
        # Accounts are kept for so many addresses.
        await (await dial(network, local_address="127.0.0.5")).aclose()
        channels.append(await secured(network))
        for channel in channels:
            channel.wire.close()


async def test_bytes_sent_to_a_stranger_are_counted_to_the_last_one() -> None:
    async with victim() as network:
        stream = await dial(network, local_address=ATTACKER_HOST)
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        got = 0
        try:
            while data := await stream.receive_some():
                got += len(data)
        except trio.BrokenResourceError:
            pass
        await stream.aclose()
        assert network.statistics().unproven_sent_bytes == got == 0
        assert network.statistics().unproven_received_bytes == 18
        channel = await secured(network)
        read = channel.wire.traffic.wire_received_bytes
        await until(lambda: bool(network.connected()))
        (counted,) = network.statistics().peers.values()
        assert counted.wire_sent_bytes == read
        assert counted.stream_sent_bytes == 0
        channel.wire.close()
