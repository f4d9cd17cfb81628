"""Streams opened, torn and given up in ways that no honest peer would. After each, the host serves somebody else."""

from __future__ import annotations

import itertools
import os

import pytest
import trio

from p2pmem.net import multistream
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NetworkLimits, NotSpokenError, Stream, StreamClosedError
from tests.attacks.raw import ACK, DATA, FIN, RST, SYN, WINDOW, frame, negotiate

from .attacker import assert_serves, hold, read_until, secured, until_closed, victim, write_until_closed
from .helpers import until


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


async def test_ten_thousand_openings_of_streams() -> None:
    async with victim() as network:
        channel = await secured(network)
        openings = (frame(WINDOW, SYN, stream_id, 0) for stream_id in range(1, 2_000_001, 2))
        await write_until_closed(channel, iter(lambda: b"".join(itertools.islice(openings, 100)), b""))
        assert max(peer.inbound_streams for peer in network.statistics().peers.values()) <= 64
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


@pytest.mark.parametrize("end", [RST, FIN])
async def test_a_stream_under_the_number_of_one_that_has_gone_is_another_stream(end: int) -> None:
    may_end = trio.Event()

    async def linger(stream: Stream) -> None:
        await stream.close_write()
        await may_end.wait()

    async with victim() as network:
        network.set_handler("/linger/1", linger)
        channel = await secured(network)
        await channel.write(negotiate(1, "/linger/1"))
        await read_until(channel, frame(WINDOW, FIN, 1, 0))
        await channel.write(frame(WINDOW, end, 1, 0) + negotiate(1, "/echo/1"))
        await read_until(channel, b"/echo/1")
        may_end.set()
        (peer,) = network.connected()
        await until(lambda: network.statistics().peers[peer].inbound_streams == 1)
        await channel.write(frame(DATA, 0, 1, 5, b"still"))
        with trio.fail_after(10):
            await read_until(channel, b"still")
        channel.wire.close()
        await until(lambda: not network.connected())
        await until(lambda: not network._serving)
