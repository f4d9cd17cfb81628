"""All places are taken: whose a newcomer gets, with a host that listens and many addresses that dial it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from hypothesis import given, strategies as st
from p2pmem_jobs import SystemClock
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.names import Address

from p2pmem.net.known import KnownPeers
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.limits import PeerLimits
from p2pmem.net.memory import MemoryFabric
from p2pmem.net.penalties import Penalties
from p2pmem.net.room import STRANGERS_PART, Origin, origin_of, who_gives_way
from p2pmem.net.seam import NetworkLimits, PeerId, PeerUnreachableError, Standing
from p2pmem.net.secure import Identity, SecureChannel, secure_outbound
from tests.attacks.raw import DATA, FIN, frame, negotiate

from .attacker import assert_serves, dial, secured, until_closed, victim, wire_to
from .helpers import until
from .test_penalties import Kept

FEW = NetworkLimits(inbound_connections_max=12, connections_per_address_max=8)
NEW = PeerId("? new 0")
MEMBER = Standing("member", frozenset({b"graph"}))


def all_members(peer: PeerId) -> Standing:
    return Standing(peer, frozenset({b"graph"}))


async def crowd(network: Libp2pNetwork, host: str, count: int) -> list[SecureChannel]:
    """Proven connections from one address."""
    return [await secured(network, local_address=host) for _ in range(count)]


@asynccontextmanager
async def closing(*channels: SecureChannel) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for channel in channels:
            channel.wire.close()


async def test_silent_connections_from_two_addresses_on_all_places_keep_nobody_out() -> None:
    async with victim(FEW) as network:
        async with closing(*await crowd(network, "127.0.0.2", 8), *await crowd(network, "127.0.0.3", 4)):
            await until(lambda: network.statistics().inbound_connections == 12)
            for _ in range(3):
                await assert_serves(network)
            assert network.statistics().inbound_connections <= 12
            # The newcomers took places of the address that held most, and no more than they needed.
            assert network.statistics().refused == {"inbound-connections": 1}
        await assert_serves(network)


async def test_a_member_and_a_single_stranger_stay_while_two_addresses_take_all_they_can_get() -> None:
    member, stranger = Identity(os.urandom(32)), Identity(os.urandom(32))
    async with victim(FEW) as network:
        network.set_standing(lambda peer: MEMBER if peer == member.peer_id else None)
        # The member is at the address of an attacker, is idle, and was here first.
        ours = await secured(network, member, local_address="127.0.0.2")
        theirs = await secured(network, stranger, local_address="127.0.0.4")
        async with closing(ours, theirs):
            for _ in range(3):
                crowds = [*await crowd(network, "127.0.0.2", 12), *await crowd(network, "127.0.0.3", 12)]
                await until(lambda: network.statistics().inbound_connections == 12)
                assert {member.peer_id, stranger.peer_id} <= network.connected()
                for channel in crowds:
                    channel.wire.close()
            assert network.statistics().refused["inbound-connections"] >= 8
            assert network.statistics().refused["connections-per-address"] >= 4


async def test_to_open_streams_does_not_save_a_crowd_from_somebody_idle_at_another_address() -> None:
    idle = Identity(os.urandom(32))
    async with victim(FEW) as network, closing(await secured(network, idle, local_address="127.0.0.4")):
        busy = await crowd(network, "127.0.0.2", 8)
        silent = await crowd(network, "127.0.0.3", 3)
        async with closing(*busy, *silent):
            for channel in busy[:7]:
                await channel.write(negotiate(1, "/echo/1"))
            await until(lambda: sum(it.inbound_streams for it in network.statistics().peers.values()) == 7)
            await assert_serves(network)
            await until_closed(busy[7].wire)  # of that address the one that had no stream
            async with closing(await secured(network, local_address="127.0.0.5")):
                await assert_serves(network)
                await until_closed(busy[0].wire)  # and then the one that came first
                assert idle.peer_id in network.connected()


async def test_where_only_members_are_a_newcomer_is_refused() -> None:
    async with victim(NetworkLimits(inbound_connections_max=2)) as network:
        network.set_standing(all_members)
        async with closing(*await crowd(network, "127.0.0.2", 2)):
            await until(lambda: network.statistics().inbound_connections == 2)
            before = network.connected()
            await until_closed((await secured(network, local_address="127.0.0.3")).wire)
            assert network.connected() == before


async def test_where_only_members_are_the_further_connections_of_one_peer_give_way() -> None:
    greedy, other = Identity(os.urandom(32)), Identity(os.urandom(32))
    async with victim(NetworkLimits(inbound_connections_max=4)) as network:
        network.set_standing(all_members)
        idle, busy, third = [await secured(network, greedy) for _ in range(3)]
        async with closing(idle, busy, third, await secured(network, other)):
            await busy.write(negotiate(1, "/echo/1"))
            await until(lambda: network.statistics().inbound_connections == 4)
            await until(lambda: sum(it.inbound_streams for it in network.statistics().peers.values()) == 1)
            async with closing(await secured(network, local_address="127.0.0.3")):
                await until_closed(idle.wire)
                async with closing(await secured(network, local_address="127.0.0.3")):
                    await until_closed(third.wire)
                    await until(lambda: len(network.connected()) == 4)
                    before = network.connected()
                    await until_closed((await secured(network, local_address="127.0.0.3")).wire)
                    assert network.connected() == before


async def test_who_is_not_let_in_takes_nobodys_place() -> None:
    async with victim(NetworkLimits(inbound_connections_max=2)) as network:
        here = await crowd(network, "127.0.0.2", 2)
        await until(lambda: network.statistics().inbound_connections == 2)
        before = network.connected()
        network.set_gate(lambda peer, origin: peer in before)
        await until_closed((await secured(network, local_address="127.0.0.3")).wire)
        assert network.connected() == before
        assert network.statistics().refused == {"gate": 1}
        for channel in here:
            channel.wire.close()


async def test_a_stranger_without_a_stream_has_limited_time_and_a_member_has_not() -> None:
    member, stranger = Identity(os.urandom(32)), Identity(os.urandom(32))
    async with victim(NetworkLimits(silent_timeout_s=0.3)) as network:
        network.set_standing(lambda peer: MEMBER if peer == member.peer_id else None)
        idle, busy, silent = await secured(network, member), await secured(network, stranger), await secured(network)
        async with closing(idle, busy, silent):
            await busy.write(negotiate(1, "/echo/1"))
            await until_closed(silent.wire)
            await until(lambda: network.connected() == {member.peer_id, stranger.peer_id})
            assert network.statistics().refused == {"silent": 1}
            # Once its stream has ended, the clock of the other one runs as well.
            await busy.write(frame(DATA, FIN, 1, 0))
            await until_closed(busy.wire)
            assert network.connected() == {member.peer_id}


async def test_half_open_sockets_of_four_addresses_keep_nobody_out() -> None:
    limits = NetworkLimits(half_open_max=16, half_open_per_address_max=4)
    async with victim(limits) as network:
        sockets = [await dial(network, local_address=f"127.0.0.{host}") for host in (2, 3, 4, 5) for _ in range(4)]
        await until(lambda: network.statistics().half_open == 16)
        await assert_serves(network)
        assert await sockets[0].receive_some() == b""
        assert network.statistics().refused == {"half-open": 1}
        assert network.statistics().half_open == 15
        for stream in sockets:
            await stream.aclose()


async def test_of_half_open_sockets_those_of_the_address_with_most_go_first() -> None:
    async with victim(NetworkLimits(half_open_max=6)) as network:
        honest = await wire_to(network, local_address="127.0.0.4")
        sockets = [await dial(network, local_address=f"127.0.0.{host}") for host in (2, 2, 2, 3, 3, 3, 2, 3, 2)]
        for at in (0, 1, 3):
            assert await sockets[at].receive_some() == b""
        assert network.statistics().half_open == 6
        peer = network.peer_id
        channel = await secure_outbound(honest, Identity(os.urandom(32)), peer)
        channel.wire.close()
        for stream in sockets:
            await stream.aclose()


async def test_new_ids_at_an_address_that_is_at_fault_do_not_help_and_members_there_are_let_in() -> None:
    member, limits = Identity(os.urandom(32)), PeerLimits(faults_per_address_max=3)
    forged = RefusedError(Reason.BAD_SIGNATURE, "a signature that is none")
    async with victim() as network, trio.open_nursery() as nursery:
        penalties = Penalties(network, Kept(), SystemClock(), limits, lambda peer: peer == member.peer_id)
        penalties.start()
        nursery.start_soon(penalties.run)
        for _ in range(3):
            attacker = Identity(os.urandom(32))
            channel = await secured(network, attacker)
            await until(lambda peer=attacker.peer_id: peer in network.connected())  # type: ignore[misc]
            penalties.punish(attacker.peer_id, forged)
            await until_closed(channel.wire)
        await until_closed((await secured(network)).wire)
        assert network.statistics().refused == {"gate": 1}
        async with closing(await secured(network, member)):
            await until(lambda: member.peer_id in network.connected())
        await assert_serves(network)  # at another address
        nursery.cancel_scope.cancel()


async def test_in_memory_too_a_stranger_gives_way_and_a_member_does_not() -> None:
    fabric, limits = MemoryFabric(seed=1), NetworkLimits(inbound_connections_max=2)
    async with fabric.network("victim", limits=limits) as network, trio.open_nursery() as nursery:
        (address,) = network.addresses()
        members = {fabric.peer_id_of("member"), fabric.peer_id_of("friend")}
        network.set_standing(lambda peer: MEMBER if peer in members else None)

        async def come(name: str, task_status: trio.TaskStatus[None]) -> None:
            async with fabric.network(name) as here:
                await here.connect(address, expected=None)
                task_status.started()
                await trio.sleep_forever()

        for name in ("member", "stranger", "other", "friend"):
            await nursery.start(come, name)
        assert network.connected() == {fabric.peer_id_of("member"), fabric.peer_id_of("friend")}
        async with fabric.network("late") as late:
            with pytest.raises(PeerUnreachableError):
                await late.connect(address, expected=None)
        nursery.cancel_scope.cancel()


# Without a host


@pytest.mark.parametrize(
    ("host", "narrow", "wide"),
    [
        ("192.0.2.7", "192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/64", "fe80::/48"),
    ],
)
def test_what_counts_as_one_address(host: str, narrow: str, wide: str) -> None:
    assert origin_of(host) == Origin(narrow, wide)


@dataclass(frozen=True, slots=True)
class Here:
    peer: PeerId
    origin: Origin
    streams_open: int
    since_s: float


HERE = st.builds(
    Here,
    st.sampled_from([PeerId("a"), PeerId("b"), PeerId("c")]),
    st.sampled_from([origin_of(host) for host in ("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1")]),
    st.integers(0, 2),
    st.integers(0, 9).map(float),
)


@given(st.lists(HERE, max_size=12))
def test_whoever_gives_way_is_no_member_while_a_stranger_is_here_and_nobody_else_holds_more(here: list[Here]) -> None:
    gone = who_gives_way(here, lambda peer: MEMBER if peer == "a" else None, NEW)
    strangers = [it for it in here if it.peer != "a"]
    if not strangers:
        assert gone in (here if len(here) > 1 else [None]), "of one member's connections one too many"
        return
    assert gone is not None
    held = [(it.origin.wide, it.origin.narrow) for it in strangers]
    assert gone in strangers
    for other in strangers:
        wide, narrow = ([place[at] for place in held] for at in (0, 1))
        holds = (wide.count(other.origin.wide), narrow.count(other.origin.narrow))
        mine = (wide.count(gone.origin.wide), narrow.count(gone.origin.narrow))
        assert holds <= mine
        if holds == mine:
            assert (gone.streams_open > 0, gone.since_s) <= (other.streams_open > 0, other.since_s)


def test_the_addresses_of_one_provider_count_together() -> None:
    many = [Here(PeerId(f"p{n}"), origin_of(f"2001:db8:0:{n:x}::1"), 1, 0.0) for n in range(5)]
    single = Here(PeerId("idle"), origin_of("2001:db8:1::1"), 0, 0.0)
    assert who_gives_way([single, *many], lambda peer: None, NEW) in many


def test_of_a_member_the_newest_peers_are_known_and_of_members_the_newest() -> None:
    limits, here = PeerLimits(peers_of_member_max=3, known_members_max=5), set[PeerId]()
    known, member = KnownPeers(limits, here.__contains__), Address(bytes(20))
    peers = [PeerId(f"peer {n}") for n in range(4)]
    for peer in (*peers[:-1], peers[0], peers[-1]):
        known.note(peer, member)
    assert [peer for peer in peers if known.member_of(peer) == member] == [peers[0], *peers[2:]]
    known.note(peers[0], Address(b"\1" * 20))
    assert known.member_of(peers[0]) == Address(b"\1" * 20)
    for number in range(1, 4):
        known.note(PeerId(f"other {number}"), Address(number.to_bytes(20)))
    assert known.member_of(peers[-1]) == member
    known.note(PeerId("one more"), Address(b"\2" * 20))
    assert known.member_of(peers[-1]) is None
    assert known.member_of(PeerId("one more")) == Address(b"\2" * 20)
    # Whoever is here stays known, however many members come after it.
    here.add(peers[0])
    for number in range(100):
        known.note(PeerId(f"key {number}"), Address((1000 + number).to_bytes(20)))
    assert known.member_of(peers[0]) == Address(b"\1" * 20)
    assert known.member_of(PeerId("one more")) is None


def of(graphs: str, count: int, since_s: float = 0.0, *, member: str = "") -> list[Here]:
    """Members' peers, each in these graphs of one letter, at an address of its own."""
    return [
        Here(
            PeerId(f"{graphs} {member or graphs + str(number)} {since_s + number:g}"),
            Origin(f"{graphs}{number}", ""),
            1,
            since_s + number,
        )
        for number in range(count)
    ]


def standing_of(peer: PeerId) -> Standing | None:
    graphs, member, _ = peer.split(" ")
    return Standing(member, frozenset(map(str.encode, graphs))) if graphs != "?" else None


def crowded_out(here: list[Here], newcomers: list[Here]) -> list[Here]:
    """Who is here in the end, where all places are taken at first."""
    for it in newcomers:
        gone = who_gives_way(here, standing_of, it.peer)
        if gone is not None:
            here = [other for other in here if other is not gone]
            here.append(it)
    return here


def test_a_thousand_keys_of_the_owner_of_one_graph_leave_the_members_of_another_their_share() -> None:
    honest, keys = of("g", 60), of("h", 132, 100)
    assert set(honest) <= set(crowded_out([*honest, *keys], of("h", 1_000, 300)))
    # All places are theirs: who comes has a place for as long as hello takes, and then is a member.
    here = of("h", 192)
    here = crowded_out(here, of("?", 500, 300))
    assert sum(standing_of(it.peer) is None for it in here) == 192 // STRANGERS_PART
    for number in range(60):
        here = crowded_out(here, of("?", 1, 1_000 + number))
        here = [it for it in here if it.since_s != 1_000 + number]
        here += of("g", 60)[number : number + 1]
    here = crowded_out(here, of("?", 500, 2_000))
    assert sum(it.peer.startswith("g") for it in here) == 60
    assert len(here) == 192


def test_of_the_graph_that_is_over_its_share_the_newest_of_the_member_with_most_peers_goes() -> None:
    few, many, single = of("h", 2, 50, member="few"), of("h", 3, 0, member="many"), of("h", 10)
    assert who_gives_way([*few, *many, *single, *of("g", 2, 100)], standing_of, NEW) is many[2]


def test_who_comes_as_the_newest_of_the_graph_most_over_its_share_does_not_get_in_and_one_of_another_does() -> None:
    here = of("h", 16)
    assert who_gives_way(here, standing_of, of("h", 1, 90)[0].peer) is None
    assert who_gives_way(here, standing_of, of("g", 1, 90)[0].peer) is here[-1]
    assert who_gives_way(here, standing_of, here[3].peer) is here[3], "who connects anew does so in its own place"


def test_only_an_eighth_of_the_places_is_not_for_members() -> None:
    strangers, members = of("?", 2), of("g", 14)
    assert who_gives_way([*strangers, *members], standing_of, NEW) is strangers[0]
    assert who_gives_way([*strangers[:1], *members, *of("h", 1, 90)], standing_of, NEW) is members[-1]


SOME = st.lists(st.sampled_from(["g", "h", "i", "gh", "hi", "ghi", "?"]), min_size=1, max_size=40)


@given(SOME)
def test_nobody_gives_way_in_a_graph_that_is_not_over_its_share(which: list[str]) -> None:
    here = [of(graphs, number + 1)[number] for number, graphs in enumerate(which)]
    gone = who_gives_way(here, standing_of, NEW)
    members = [who for it in here if (who := standing_of(it.peer)) is not None]
    kept = len(here) - len(here) // STRANGERS_PART
    if gone is None:
        assert len(members) == len(here) == kept
        return
    who = standing_of(gone.peer)
    assert (who is None) == (len(members) <= kept)
    if who is not None:
        graphs = [graph for it in members for graph in it.graphs]
        assert all(graphs.count(it) > kept // len(set(graphs)) for it in who.graphs)
