"""Frames that cost more than they carry: so many are taken, by address or member, and one more is not."""

from __future__ import annotations

import contextlib
import os

import pytest
import trio

from p2pmem.net.connection import WORK_AT_ONCE
from p2pmem.net.seam import NetworkLimits, Standing
from p2pmem.net.secure import Identity
from p2pmem.net.wire import WireError
from p2pmem.net.yamux import SMALL_BYTES, STREAM_WORK
from tests.attacks.raw import ACK, DATA, PING, RST, SYN, WINDOW, frame, negotiate

from .attacker import assert_serves, read_until, secured, until_closed, victim
from .helpers import until

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


async def test_all_members_of_one_graph_have_one_account_and_those_of_another_their_own() -> None:
    graph_of = {Identity(bytes([number]) * 32): b"theirs" if number < 3 else b"ours" for number in range(1, 4)}
    standing = {it.peer_id: Standing(it.peer_id, frozenset({graph})) for it, graph in graph_of.items()}
    async with victim(NetworkLimits(work_per_graph_per_minute=2 * WORK_AT_ONCE)) as network:
        network.set_standing(standing.get)
        first, second, other = [await secured(network, it) for it in graph_of]
        await first.write(frame(DATA, 0, 1, 0) * WORK_AT_ONCE + frame(PING, SYN, 0, 7))
        await read_until(first, frame(PING, ACK, 0, 7))
        await second.write(frame(DATA, 0, 1, 0) * 2 * WORK_AT_ONCE)
        with trio.fail_after(20):
            await until_closed(second.wire)
        await other.write(frame(DATA, 0, 1, 0) * WORK_AT_ONCE + frame(PING, SYN, 0, 7))
        await read_until(other, frame(PING, ACK, 0, 7))
        assert network.statistics().refused == {"graph-work": 1}, "not what a program that blocks addresses looks for"
        first.wire.close()
        other.wire.close()
