"""Content that nobody reads, on either side, has a limit in each stream, each connection and all together."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from p2pmem.net.framing import FrameReader, encode_frames
from p2pmem.net.gossipsub import MESHSUB, GossipTopics, open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.limits import GossipLimits
from p2pmem.net.multistream import encode_token
from p2pmem.net.seam import READ_BYTES, NetworkLimits, PeerId, Standing, Stream, StreamClosedError
from p2pmem.net.secure import Identity, SecureChannel
from p2pmem.net.topics import Verdict
from p2pmem.net.wire import WireError
from p2pmem.net.yamux import INITIAL_WINDOW_BYTES
from tests.attacks.raw import ACK, DATA, PING, RST, SYN, WINDOW, data, frame, negotiate

from .attacker import assert_serves, hold, read_until, secured, until_closed, victim, write_until_closed
from .helpers import until

STATM: Final = Path("/proc/self/statm")


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
    async with victim(NetworkLimits(unread_max_bytes=600_000, gone_stream_timeout_s=0.2)) as network:
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
        await until(lambda: network.counters.unread_bytes == 0)


async def test_what_those_left_who_have_gone_counts_and_is_thrown_away_before_anybody_who_is_here_goes() -> None:
    may_read, read = trio.Event(), list[int]()

    async def read_later(stream: Stream) -> None:
        await may_read.wait()
        read.append(len(await stream.receive_some(300_000)))

    async with victim(NetworkLimits(unread_max_bytes=600_000)) as network:
        network.set_handler("/hold/1", read_later)
        here = await secured(network)
        await _leave_unread(here, 1, 250_000)
        for size_bytes in (150_000, 160_000):
            channel = await secured(network)
            await _leave_unread(channel, 1, size_bytes)
            channel.wire.close()
            await until(lambda: len(network.connected()) == 1)
        assert network.counters.unread_bytes == 560_000
        await _leave_unread(here, 3, 40_000)
        assert network.statistics().refused == {}
        await here.write(frame(DATA, 0, 3, 1, b"x"))
        await until(lambda: network.counters.unread_bytes == 440_001)
        await until(lambda: network.statistics().refused == {"unread-in-all": 1, "gone-stream": 1})
        may_read.set()
        await until(lambda: network.counters.unread_bytes == 0)
        assert sorted(read) == [40_001, 150_000, 250_000], "the handler of what was thrown away ended with it"
        assert len(network.connected()) == 1
        here.wire.close()


async def test_what_is_unread_in_streams_that_a_peer_gave_up_is_thrown_away_with_its_connection() -> None:
    async with victim(NetworkLimits(unread_max_bytes=300_000)) as network:
        network.set_handler("/hold/1", hold)
        channel = await secured(network)
        await _leave_unread(channel, 1, 200_000)
        await channel.write(frame(WINDOW, RST, 1, 0))
        await _leave_unread(channel, 3, 100_000)
        assert network.counters.unread_bytes == 300_000
        await channel.write(frame(DATA, 0, 3, 1, b"x"))
        await until_closed(channel.wire)
        assert network.counters.unread_bytes == 0
        await until(lambda: network.statistics().refused["gone-stream"] == 2)


async def test_a_frame_that_waits_for_its_turn_goes_with_what_is_thrown_away() -> None:
    """Else who comes and goes has a node hold a frame for each of his streams, which no account has any more."""
    held, ended = trio.Event(), trio.Event()

    async def wait_for_its_turn(stream: Stream) -> None:
        frame_ = await FrameReader(stream, frame_max_bytes=300_000).receive()
        held.set()
        try:
            await trio.sleep_forever()
        finally:
            assert frame_ is not None
            ended.set()

    async with victim(NetworkLimits(unread_max_bytes=250_000)) as network:
        network.set_handler("/hold/1", wait_for_its_turn)
        gone = await secured(network)
        await gone.write(negotiate(1, "/hold/1"))
        await read_until(gone, b"/hold/1")
        whole = encode_frames([bytes(200_000)])
        await gone.write(frame(DATA, 0, 1, len(whole), whole))
        await held.wait()
        gone.wire.close()
        await until(lambda: not network.connected())
        assert network.counters.unread_bytes == 200_000
        network.set_handler("/hold/1", hold)
        here = await secured(network)
        await _leave_unread(here, 1, 50_001)
        await ended.wait()
        assert network.counters.unread_bytes == 50_001
        here.wire.close()


@pytest.mark.skipif(not STATM.exists(), reason="says how much memory a process has")
async def test_whoever_comes_and_goes_and_leaves_content_unread_makes_no_memory_grow() -> None:
    async with victim(NetworkLimits(unread_max_bytes=4_000_000)) as network:
        network.set_handler("/hold/1", hold)
        for _ in range(3):
            await _come_and_go(network)
        before_bytes = _memory_bytes()
        for _ in range(12):
            await _come_and_go(network)
        assert _memory_bytes() - before_bytes < 25_000_000
        assert network.counters.unread_bytes <= 4_000_000


@contextlib.asynccontextmanager
async def gossiping_victim() -> AsyncIterator[tuple[Libp2pNetwork, GossipTopics]]:
    async with victim() as network, open_gossip(network, identity_seed=hashlib.sha256(b"victim").digest()) as topics:
        await topics.subscribe("open", _take)
        yield network, topics


async def test_nothing_stays_of_what_comes_on_a_stream_of_gossip_that_is_given_up() -> None:
    async with gossiping_victim() as (network, topics):
        resets = await secured(network)
        await read_until(resets, MESHSUB.encode())
        agreed = encode_token("/multistream/1.0.0") + encode_token(MESHSUB)
        await resets.write(data(2, agreed + bytes(200_000)) + frame(WINDOW, RST, 2, 0))
        await _ping(resets)
        await until(lambda: network.counters.unread_bytes == 0)

        async def fail() -> None:
            raise RuntimeError("a fault in the router")

        speaks = await secured(network)
        await read_until(speaks, MESHSUB.encode())
        await speaks.write(data(2, agreed))
        await read_until(speaks, b"open")
        pubsub = await topics._running()
        pubsub.manager.run_task(fail)
        with trio.fail_after(10):
            await read_until(speaks, frame(WINDOW, RST, 2, 0))
        for channel in (resets, speaks):
            channel.wire.close()
        await until(lambda: not network.connected())
        assert network.counters.unread_bytes == 0


async def test_nothing_stays_of_what_comes_on_a_stream_that_pubsub_forgot_while_it_greeted() -> None:
    async with gossiping_victim() as (network, topics):
        pubsub, forgotten = await topics._running(), list[ID]()

        async def forget(peer_id: ID) -> None:
            if not forgotten:
                forgotten.append(peer_id)
                pubsub._handle_dead_peer(peer_id)

        pubsub.router.flush_pending_messages = forget
        channel = await secured(network)
        await read_until(channel, MESHSUB.encode())
        await channel.write(data(2, encode_token("/multistream/1.0.0") + encode_token(MESHSUB) + bytes(200_000)))
        await _ping(channel)
        with trio.fail_after(10):
            await until(lambda: bool(forgotten) and network.counters.unread_bytes == 0)
        channel.wire.close()


async def _take(peer: PeerId, content: bytes) -> Verdict:
    return Verdict.ACCEPT


async def _come_and_go(network: Libp2pNetwork) -> None:
    channel = await secured(network)
    for stream_id in range(1, 33, 2):
        await _leave_unread(channel, stream_id, 240_000)
    channel.wire.close()
    await until(lambda: not network.connected())


async def _leave_unread(channel: SecureChannel, stream_id: int, size_bytes: int) -> None:
    await channel.write(negotiate(stream_id, "/hold/1"))
    await read_until(channel, b"/hold/1")
    await channel.write(frame(DATA, 0, stream_id, size_bytes, bytes(size_bytes)))
    await _ping(channel)


async def _ping(channel: SecureChannel) -> None:
    await channel.write(frame(PING, SYN, 0, 7))
    await read_until(channel, frame(PING, ACK, 0, 7))


def _memory_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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


@pytest.mark.parametrize(("size_bytes", "counts"), [(200_000, True), (READ_BYTES, True), (READ_BYTES - 1, False)])
async def test_a_large_frame_is_unread_until_the_next_is_asked_for(size_bytes: int, counts: bool) -> None:
    taken, may_go_on = trio.Event(), trio.Event()

    async def think(stream: Stream) -> None:
        reader = FrameReader(stream, frame_max_bytes=1 << 20)
        await reader.receive()
        taken.set()
        await may_go_on.wait()
        await reader.receive()

    async with victim() as network, Libp2pNetwork(identity_seed=os.urandom(32)) as peer:
        network.set_handler("/think/1", think)
        stream = await peer.open_stream(await peer.connect(network.addresses()[0], expected=None), "/think/1")
        await stream.send_all(encode_frames([bytes(size_bytes)]))
        await taken.wait()
        assert network.counters.unread_bytes == (size_bytes if counts else 0)
        may_go_on.set()
        await until(lambda: network.counters.unread_bytes == 0)


async def test_rpcs_of_gossip_that_wait_for_their_turn_are_unread() -> None:
    seed, limits = hashlib.sha256(b"victim").digest(), GossipLimits(rpcs_per_address_per_minute=1)
    async with (
        victim() as network,
        open_gossip(network, identity_seed=seed, limits=limits),
        Libp2pNetwork(identity_seed=os.urandom(32)) as peer,
    ):
        theirs = await peer.connect(network.addresses()[0], expected=None)
        await until(lambda: MESHSUB in network._handlers)
        streams = [await peer.open_stream(theirs, MESHSUB) for _ in range(3)]
        await streams[0].send_all(encode_frames([rpc_pb2.RPC().SerializeToString()]))
        with trio.fail_after(10):
            for stream in streams:
                await stream.send_all(encode_frames([bytes(500_000)]))
            await until(lambda: network.counters.unread_bytes >= 1_500_000)


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
