"""Each way to hurt a libp2p host that we know of. After each, the host serves somebody else."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
from pathlib import Path

import pytest
import trio

from p2pmem.net import multistream
from p2pmem.net.connection import WORK_AT_ONCE
from p2pmem.net.framing import FrameReader, encode_frames
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NetworkLimits, NotSpokenError, PeerUnreachableError, Standing, Stream, StreamClosedError
from p2pmem.net.secure import Identity, SecureChannel
from p2pmem.net.wire import WireError
from p2pmem.net.yamux import INITIAL_WINDOW_BYTES, SMALL_BYTES, STREAM_WORK
from tests.attacks.raw import ACK, ATTACKER_HOST, DATA, FIN, PING, RST, SYN, WINDOW, frame, negotiate

from .attacker import assert_serves, dial, secured, until_closed, victim, wire_to, write_until_closed
from .helpers import ask, until, until_gone

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


async def read_until(channel: SecureChannel, word: bytes) -> bytes:
    """What the victim sends, until this is in it."""
    heard = b""
    while word not in heard:
        heard += await channel.receive()
    return heard


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


@pytest.mark.parametrize(
    "breach",
    [
        frame(WINDOW, SYN, 1, 0, version=9),
        frame(9, 0, 1, 0),
        frame(WINDOW, SYN, 2, 0),
        frame(DATA, SYN, 1, 2**32 - 1),
        frame(WINDOW, SYN, 1, 2**32 - 1),
        frame(WINDOW, SYN, 1, 0) * 2,
    ],
)
async def test_a_breach_of_yamux_ends_its_connection(breach: bytes) -> None:
    async with victim() as network:
        channel = await secured(network)
        await channel.write(breach)
        await until_closed(channel.wire)
        await assert_serves(network)
        assert network.statistics().refused["broken-protocol"] == 1


async def test_three_hundred_connections_in_turn_leave_nothing_behind() -> None:
    async with victim() as network:
        await assert_serves(network)
        await trio.testing.wait_all_tasks_blocked()
        tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            channel = await secured(network)
            channel.wire.close()
        for peer in network.connected():
            await until_gone(network, peer)
        await assert_serves(network)
        for peer in network.connected():
            await until_gone(network, peer)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert network.statistics().inbound_connections == 0


async def hold(stream: Stream) -> None:
    await trio.sleep_forever()


async def test_content_beyond_the_window_ends_the_connection_before_it_is_held() -> None:
    async with victim() as network:
        network.set_handler("/hold/1", hold)
        channel = await secured(network)
        await channel.write(negotiate(1, "/hold/1"))
        await write_until_closed(channel, itertools.repeat(frame(DATA, 0, 1, 16_384, bytes(16_384)), 20_000))
        received = [peer.wire_received_bytes for peer in network.statistics().peers.values()]
        assert max(received) < 2 * INITIAL_WINDOW_BYTES
        assert network.statistics().refused["broken-protocol"] == 1
        await assert_serves(network)


async def test_many_streams_that_nobody_reads_have_a_limit_together() -> None:
    limits = NetworkLimits(unread_per_connection_max_bytes=1_000_000)
    async with victim(limits) as network:
        network.set_handler("/hold/1", hold)
        channel = await secured(network)
        pieces = itertools.chain.from_iterable(
            [negotiate(stream_id, "/hold/1"), *[frame(DATA, 0, stream_id, 16_384, bytes(16_384))] * 15]
            for stream_id in range(1, 128, 2)
        )
        await write_until_closed(channel, pieces)
        received = [peer.wire_received_bytes for peer in network.statistics().peers.values()]
        assert max(received) < 2_000_000
        assert network.statistics().refused["unread"] == 1
        await assert_serves(network)


async def test_so_many_bytes_may_be_unread_in_all_streams_and_one_more_ends_the_connection() -> None:
    async with victim(NetworkLimits(unread_per_connection_max_bytes=400_000)) as network:
        network.set_handler("/hold/1", hold)
        channel = await secured(network)
        for stream_id in (1, 3):
            await channel.write(negotiate(stream_id, "/hold/1"))
            await read_until(channel, b"/hold/1")
            await channel.write(frame(DATA, 0, stream_id, 200_000, bytes(200_000)))
        await channel.write(frame(PING, SYN, 0, 7))
        await read_until(channel, frame(PING, ACK, 0, 7))
        assert "unread" not in network.statistics().refused
        await channel.write(frame(DATA, 0, 1, 1, b"x"))
        await until_closed(channel.wire)
        assert network.statistics().refused["unread"] == 1


async def test_so_many_bytes_of_all_peers_may_be_unread_and_of_more_who_has_most_goes_and_strangers_first() -> None:
    member = Identity(os.urandom(32))
    async with victim(NetworkLimits(unread_max_bytes=600_000)) as network:
        network.set_handler("/hold/1", hold)
        network.set_standing(lambda peer: Standing("member", frozenset({b"graph"})) if peer == member.peer_id else None)
        ours, most, less = await secured(network, member), await secured(network), await secured(network)
        for channel, size_bytes in ((ours, 250_000), (most, 200_000), (less, 150_000)):
            await channel.write(negotiate(1, "/hold/1"))
            await read_until(channel, b"/hold/1")
            await channel.write(frame(DATA, 0, 1, size_bytes, bytes(size_bytes)))
            await channel.write(frame(PING, SYN, 0, 7))
            await read_until(channel, frame(PING, ACK, 0, 7))
        assert network.counters.unread_bytes == 600_000
        assert network.statistics().refused == {}
        await less.write(frame(DATA, 0, 1, 1, b"x"))
        await until_closed(most.wire)
        assert network.statistics().refused["unread-in-all"] == 1
        assert network.counters.unread_bytes == 400_001
        await assert_serves(network)
        less.wire.close()
        ours.wire.close()
        await until(lambda: not network.connected())


async def test_members_who_leave_much_unread_do_not_end_a_stranger_who_has_little() -> None:
    ours = [Identity(os.urandom(32)) for _ in range(3)]
    members = {identity.peer_id for identity in ours}
    async with victim(NetworkLimits(unread_max_bytes=600_000)) as network:
        network.set_handler("/hold/1", hold)
        network.set_standing(lambda peer: Standing("member", frozenset({b"graph"})) if peer in members else None)
        channels = [await secured(network, identity) for identity in ours]
        stranger = await secured(network)
        for channel, size_bytes in zip((*channels, stranger), (250_000, 200_000, 100_000, 50_001), strict=True):
            await channel.write(negotiate(1, "/hold/1"))
            await read_until(channel, b"/hold/1")
            await channel.write(frame(DATA, 0, 1, size_bytes, bytes(size_bytes)))
        with trio.fail_after(10):
            await until_closed(channels[0].wire)
        await stranger.write(frame(PING, SYN, 0, 7))
        await read_until(stranger, frame(PING, ACK, 0, 7))
        assert network.counters.unread_bytes == 350_001
        for channel in (*channels, stranger):
            channel.wire.close()
        await until(lambda: not network.connected())
        assert network.counters.unread_bytes == 0


async def test_half_a_frame_is_unread_until_the_rest_of_it_comes() -> None:
    got = trio.Event()

    async def whole(stream: Stream) -> None:
        reader = FrameReader(stream, frame_max_bytes=1 << 20)
        assert await reader.receive() == bytes(150_000)
        got.set()
        await reader.receive()

    async with victim(NetworkLimits(unread_per_connection_max_bytes=300_000, unread_max_bytes=500_000)) as network:
        network.set_handler("/whole/1", whole)
        channels = [await secured(network) for _ in range(3)]
        words = encode_frames([bytes(150_000)])
        for channel in channels:
            await channel.write(negotiate(1, "/whole/1"))
            await read_until(channel, b"/whole/1")
            await channel.write(frame(DATA, 0, 1, 140_000, words[:140_000]))
        await until(lambda: network.counters.unread_bytes > 3 * 139_000)
        await channels[0].write(frame(DATA, 0, 1, len(words) - 140_000, words[140_000:]))
        await got.wait()
        await until(lambda: network.counters.unread_bytes < 3 * 139_000)
        for stream_id in (3, 5):
            await channels[1].write(negotiate(stream_id, "/whole/1"))
            await read_until(channels[1], b"/whole/1")
            with contextlib.suppress(WireError):
                await channels[1].write(frame(DATA, 0, stream_id, 100_000, words[:100_000]))
        with trio.fail_after(10):
            await until_closed(channels[1].wire)
        assert network.statistics().refused["unread"] == 1
        for channel in channels:
            channel.wire.close()
        await until(lambda: not network.connected())
        assert network.counters.unread_bytes == 0


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


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (NetworkLimits(connections_max=3), "connections"),
        (NetworkLimits(inbound_connections_max=3), "inbound-connections"),
        (NetworkLimits(connections_per_address_max=3), "connections-per-address"),
        (NetworkLimits(connections_per_peer_max=3), "connections-per-peer"),
    ],
)
async def test_limits_on_connections_hold_at_the_limit_and_one_past_it(limits: NetworkLimits, name: str) -> None:
    same = Identity(os.urandom(32)) if name == "connections-per-peer" else None
    async with victim(limits) as network:
        network.set_standing(lambda peer: Standing(peer, frozenset({b"graph"})))
        channels = [await secured(network, same) for _ in range(3)]
        await until(lambda: network.statistics().connections == 3)
        await until_closed((await secured(network, same)).wire)
        assert network.statistics().connections == 3
        assert network.statistics().refused == {name: 1}
        channels[0].wire.close()
        await until(lambda: network.statistics().connections < 3)
        channels.append(await secured(network, same))
        await until(lambda: network.statistics().connections == 3)
        for channel in channels:
            channel.wire.close()


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


SMALL_FRAMES = {
    "pings": lambda _: frame(PING, SYN, 0, 1),
    "windows": lambda _: frame(WINDOW, 0, 2, 1),
    "empty content": lambda _: frame(DATA, 0, 1, 0),
    "content of a byte": lambda _: frame(DATA, 0, 1, 1, b"x"),
    "content just small": lambda _: frame(DATA, 0, 1, SMALL_BYTES - 1, bytes(SMALL_BYTES - 1)),
}


@pytest.mark.parametrize("name", SMALL_FRAMES)
async def test_so_many_small_frames_are_taken_and_one_more_ends_the_connection(name: str) -> None:
    async with victim(NetworkLimits(work_per_address_per_minute=1024)) as network:
        channel = await secured(network)
        # One message of noise for each 256: these are not small.
        some = b"".join(map(SMALL_FRAMES[name], range(WORK_AT_ONCE)))
        for _ in range(4):
            await channel.write(some)
        await until(lambda: network.statistics().unproven_received_bytes == 0)
        (peer,) = network.connected()
        sent = channel.wire.traffic.wire_sent_bytes
        await until(lambda: network.statistics().peers[peer].wire_received_bytes == sent)
        assert network.connected() == {peer}
        assert "work" not in network.statistics().refused
        await channel.write(some)
        await until_closed(channel.wire)
        assert network.statistics().refused["work"] == 1
        # The account is of the address: another peer of it does not begin anew.
        again = await secured(network)
        await again.write(some)
        await until_closed(again.wire)
        await assert_serves(network)


async def test_to_open_a_stream_counts_as_many_small_frames() -> None:
    async with victim(NetworkLimits(work_per_address_per_minute=1024)) as network:
        channel = await secured(network)
        openings = [frame(WINDOW, SYN, 2 * at + 1, 0) + frame(WINDOW, RST, 2 * at + 1, 0) for at in range(20)]
        assert 15 * (STREAM_WORK + 2) < 1024 < 20 * (STREAM_WORK + 2)
        await channel.write(b"".join(openings[:15]))
        await until(lambda: network.statistics().refused.get("stream-ended") == 15)
        await channel.write(b"".join(openings[15:]))
        await until_closed(channel.wire)
        assert network.statistics().refused["work"] == 1


async def test_messages_of_noise_that_carry_a_byte_each_are_work_whatever_is_in_them() -> None:
    async with victim(NetworkLimits(work_per_address_per_minute=512)) as network:
        channel = await secured(network)
        with contextlib.suppress(WireError):
            for byte in frame(DATA, 0, 1, 2_000, bytes(2_000)):
                await channel.write(bytes([byte]))
        await until_closed(channel.wire)
        assert network.statistics().refused["work"] == 1


async def test_frames_that_carry_enough_are_never_too_many() -> None:
    async with victim(NetworkLimits(work_per_address_per_minute=512)) as network:
        channel = await secured(network)
        await channel.write(negotiate(1, "/echo/1"))
        for _ in range(10):
            await channel.write(frame(DATA, 0, 3, SMALL_BYTES, bytes(SMALL_BYTES)) * WORK_AT_ONCE)
        await channel.write(frame(PING, SYN, 0, 7))
        assert frame(PING, ACK, 0, 7) in await read_until(channel, frame(PING, ACK, 0, 7))
        assert "work" not in network.statistics().refused
        channel.wire.close()


async def test_a_member_has_an_account_of_its_own_whatever_others_at_its_address_send() -> None:
    member = Identity(os.urandom(32))
    async with victim(NetworkLimits(work_per_address_per_minute=512)) as network:
        network.set_standing(lambda peer: Standing("member", frozenset({b"graph"})) if peer == member.peer_id else None)
        stranger = await secured(network)
        await stranger.write(frame(DATA, 0, 1, 0) * 2 * WORK_AT_ONCE)
        await stranger.write(frame(DATA, 0, 1, 0) * WORK_AT_ONCE)
        await until_closed(stranger.wire)
        channel = await secured(network, member)
        await channel.write(frame(DATA, 0, 1, 0) * WORK_AT_ONCE + frame(PING, SYN, 0, 7))
        await read_until(channel, frame(PING, ACK, 0, 7))
        assert member.peer_id in network.connected()
        channel.wire.close()


async def test_ten_thousand_openings_of_streams() -> None:
    async with victim() as network:
        channel = await secured(network)
        openings = (frame(WINDOW, SYN, stream_id, 0) for stream_id in range(1, 2_000_001, 2))
        await write_until_closed(channel, iter(lambda: b"".join(itertools.islice(openings, 100)), b""))
        assert max(peer.inbound_streams for peer in network.statistics().peers.values()) <= 64
        await assert_serves(network)


async def test_questions_without_end_whose_answers_are_not_read() -> None:
    async with victim(NetworkLimits(stalled_write_timeout_s=0.5)) as network:
        channel = await secured(network)
        await write_until_closed(channel, itertools.repeat(frame(PING, SYN, 0, 1) * 1000))
        assert network.statistics().refused["unread-answers"] == 1
        await assert_serves(network)


async def test_a_reader_that_stops_is_cut_off_and_frees_the_writer() -> None:
    async with victim(NetworkLimits(stalled_write_timeout_s=0.2)) as network:
        failed = trio.Event()

        async def flood(stream: Stream) -> None:
            try:
                while True:
                    await stream.send_all(bytes(65_536))
            except StreamClosedError:
                failed.set()

        network.set_handler("/flood/1", flood)
        channel = await secured(network)
        # It opens the window wide, and never reads its socket.
        await channel.write(negotiate(1, "/flood/1") + frame(WINDOW, 0, 1, 2**30))
        await failed.wait()
        channel.wire.close()
        await assert_serves(network)


async def test_streams_that_never_say_what_they_want_are_reset() -> None:
    async with victim(NetworkLimits(open_stream_timeout_s=0.1)) as network:
        channel = await secured(network)
        await channel.write(b"".join(frame(WINDOW, SYN, 2 * index + 1, 0) for index in range(64)))
        await until(lambda: network.statistics().refused.get("protocol-timeout") == 64)
        assert max(peer.inbound_streams for peer in network.statistics().peers.values()) == 0
        channel.wire.close()
        await assert_serves(network)


async def test_resets_and_ends_in_any_order_are_survived() -> None:
    async with victim() as network:
        channel = await secured(network)
        for index in range(200):
            stream_id = 2 * index + 1
            await channel.write(
                negotiate(stream_id, "/echo/1")
                + frame(DATA, (FIN, RST, FIN | RST, ACK)[index % 4], stream_id, 3, b"abc")
                + frame(WINDOW, RST, stream_id, 0)
            )
        channel.wire.close()
        await assert_serves(network)


async def test_streams_opened_and_given_up_do_not_pile_up_handlers() -> None:
    async with victim() as network:
        running = most = 0

        async def work(stream: Stream) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await trio.sleep_forever()

        network.set_handler("/busy/1", work)
        channel = await secured(network)
        for stream_id in range(1, 600, 2):
            await channel.write(negotiate(stream_id, "/busy/1"))
            await trio.testing.wait_all_tasks_blocked()
            await channel.write(frame(WINDOW, RST, stream_id, 0))
        await until(lambda: network.statistics().refused.get("inbound-streams-per-peer", 0) >= 300 - 64)
        assert most == 64
        channel.wire.close()
        await assert_serves(network)


async def test_writes_cancelled_at_any_moment_harm_only_their_stream() -> None:
    async with victim() as network:
        network.set_handler("/hold/1", hold)
        async with Libp2pNetwork(identity_seed=os.urandom(32)) as other:
            peer = await other.connect(network.addresses()[0], expected=None)
            steady = await other.open_stream(peer, "/echo/1")
            for index in range(60):
                stream = await other.open_stream(peer, "/echo/1" if index % 2 else "/hold/1")
                with trio.move_on_after(index / 10_000):
                    await stream.send_all(bytes(5_000_000))
                with pytest.raises(StreamClosedError):
                    await stream.send_all(b"x")
                await steady.send_all(b"tick")
                assert await steady.receive_some() == b"tick"
            assert other.statistics().connections == 1
        await assert_serves(network)


async def test_a_peer_that_gives_no_sign_of_life_is_dropped_and_one_that_does_is_kept() -> None:
    async with victim(NetworkLimits(unheard_timeout_s=0.8)) as network:
        async with Libp2pNetwork(identity_seed=os.urandom(32)) as quiet:
            await quiet.connect(network.addresses()[0], expected=None)
            channel = await secured(network)
            await until(lambda: "unheard" in network.statistics().refused)
            await until(lambda: network.connected() == {quiet.peer_id})
            channel.wire.close()
        await assert_serves(network)


async def test_a_listener_that_fails_listens_again_on_its_port(caplog: pytest.LogCaptureFixture) -> None:
    async with victim() as network, Libp2pNetwork(identity_seed=os.urandom(32)) as other:
        address = network.addresses()[0]
        peer = await other.connect(address, expected=None)
        network._listeners[0].socket.close()
        await until(lambda: network.statistics().restarts == 1)
        assert await ask(other, peer, b"connections stand") == b"connections stand"
        await until(lambda: network._listeners[0].socket.fileno() != -1)
        await assert_serves(network)
        assert network.addresses()[0] == address
    assert "net.listener.failed" in caplog.text


async def test_a_machine_out_of_descriptors_accepts_again_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = trio.SocketListener.accept, [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]

    async def failing(self: trio.SocketListener) -> trio.SocketStream:
        if failures:
            await trio.lowlevel.checkpoint()
            raise OSError(failures.pop(), "as if")
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)
    async with victim() as network:
        await assert_serves(network)
        assert network.statistics().restarts == 0
    assert not failures
    assert caplog.text.count("net.listener.few_descriptors") == 2


async def test_the_port_is_free_as_soon_as_the_network_is_left() -> None:
    async with victim() as network, Libp2pNetwork(identity_seed=os.urandom(32)) as other:
        await other.connect(network.addresses()[0], expected=None)
        host, port = network.addresses()[0].split("/")[2], int(network.addresses()[0].split("/")[4])
        tasks = trio.lowlevel.current_statistics().tasks_living
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(host, port)
    async with Libp2pNetwork(identity_seed=os.urandom(32), listen=(f"/ip4/127.0.0.1/tcp/{port}",)) as again:
        again.set_handler("/echo/1", _echo_once)
        await assert_serves(again)
    assert trio.lowlevel.current_statistics().tasks_living < tasks


async def _echo_once(stream: Stream) -> None:
    await stream.send_all(await stream.receive_some())


FLAT_CONNECTIONS = int(os.environ.get("P2PMEM_FLAT_CONNECTIONS", "2000"))


@pytest.mark.slow
async def test_memory_tasks_and_descriptors_are_flat_over_thousands_of_hostile_connections() -> None:
    """Ten thousand with P2PMEM_FLAT_CONNECTIONS=10000, in some three minutes."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def one(index: int) -> None:
        if index % 4 == 0:
            stream = await dial(network)
            await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n" + os.urandom(index % 300))
            await stream.aclose()
            return
        channel = await secured(network)
        with contextlib.suppress(WireError):
            if index % 4 == 1:
                await channel.write(negotiate(1, "/echo/1") + frame(DATA, 0, 1, 30_000, bytes(30_000)))
            elif index % 4 == 2:
                await channel.write(frame(WINDOW, SYN, 1, 0) * 2)
            else:
                await channel.write(b"".join(negotiate(stream_id, "/hold/1") for stream_id in range(1, 160, 2)))
        channel.wire.close()

    # No limit by address would be reached in earnest: all come from one, one after the other.
    limits = NetworkLimits(
        connections_per_address_max=1000,
        handshakes_per_address_per_minute=1_000_000,
        work_per_address_per_minute=1_000_000_000,
    )
    async with victim(limits) as network:

        async def until_reset(stream: Stream) -> None:
            with contextlib.suppress(StreamClosedError):
                await stream.receive_some()

        network.set_handler("/hold/1", until_reset)

        async def rounds(begin: int, end: int) -> None:
            for index in range(begin, end):
                await one(index)
            await until(lambda: network.statistics().connections == 0 and network.statistics().half_open == 0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            gc.collect()

        await rounds(0, 200)
        tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))
        resident = resident_bytes()
        await rounds(200, FLAT_CONNECTIONS)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        # Of 4,096 peers at most the counters remember four numbers each.
        assert resident_bytes() - resident < 8_000_000
        print(f"{resident_bytes() - resident} bytes more after {FLAT_CONNECTIONS} connections, {tasks} tasks")
        await assert_serves(network)


@pytest.mark.parametrize("where", ["/ip6/::1/tcp/0", "/dns/localhost/tcp/0"])
async def test_other_kinds_of_address_can_be_listened_at_and_dialled(where: str) -> None:
    try:
        async with Libp2pNetwork(identity_seed=os.urandom(32), listen=(where,)) as network:
            network.set_handler("/echo/1", _echo_once)
            await assert_serves(network)
    except OSError as error:
        pytest.skip(f"this machine has no {where}: {error}")


async def test_a_stranger_cannot_ask_for_a_list_of_what_is_spoken() -> None:
    async with victim() as network:
        channel = await secured(network)
        words = multistream.encode_token("/multistream/1.0.0") + multistream.encode_token("ls")
        await channel.write(frame(DATA, SYN, 1, len(words), words))
        got = bytearray()
        expected = multistream.encode_token("na")
        while not got.endswith(expected):
            got += await channel.receive()
        assert b"echo" not in got
        channel.wire.close()


@pytest.mark.parametrize("protocol", ["/ipfs/id/1.0.0", "/ipfs/ping/1.0.0", "/ipfs/id/push/1.0.0", "/meshsub/1.1.0"])
async def test_protocols_nobody_asked_for_are_not_served(protocol: str) -> None:
    async with victim() as network, Libp2pNetwork(identity_seed=os.urandom(32)) as other:
        peer = await other.connect(network.addresses()[0], expected=None)
        with pytest.raises(NotSpokenError):
            await other.open_stream(peer, protocol)


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
