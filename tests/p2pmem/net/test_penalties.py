"""Bans that grow, and allowances that grow back, each at its limit and one past it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import TrioClock
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from trio.testing import MockClock

from p2pmem.exchange.allowance import Allowances
from p2pmem.net.faults import Faults
from p2pmem.net.limits import AskLimits, GossipLimits, PeerLimits
from p2pmem.net.memory import MemoryFabric
from p2pmem.net.penalties import FOR_GOOD_MS, Ban, Penalties
from p2pmem.net.seam import NetworkLimits, PeerId, PeerUnreachableError

FORGED = RefusedError(Reason.BAD_SIGNATURE, "a signature that is none")
BEHIND = RefusedError(Reason.NOT_LISTED, "not listed here")
BASE_MS = 1_000_000


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Kept:
    def __init__(self) -> None:
        self.bans: dict[PeerId, Ban] = {}

    def load(self) -> Mapping[PeerId, Ban]:
        return dict(self.bans)

    async def keep(self, peer: PeerId, ban: Ban | None) -> None:
        if ban is None:
            self.bans.pop(peer, None)
        else:
            self.bans[peer] = ban


async def test_a_ban_doubles_each_time_up_to_the_longest_and_a_day_of_peace_begins_anew(clock: MockClock) -> None:
    del clock
    limits = PeerLimits(first_ban_s=10, longest_ban_s=60)
    peer = MemoryFabric.peer_id_of("you")
    async with MemoryFabric(seed=1).network("me") as me:
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS), limits)
        for expected_s in (10, 20, 40, 60, 60):
            penalties.punish(peer, FORGED)
            await trio.sleep(expected_s - 0.001)
            assert not penalties.may_connect(peer)
            await trio.sleep(0.002)
            assert penalties.may_connect(peer)
        await trio.sleep(limits.forgiven_after_s)
        penalties.punish(peer, FORGED)
        await trio.sleep(10.001)
        assert penalties.may_connect(peer)
        assert penalties.refusals[peer] == 6


async def test_what_depends_on_roster_or_time_is_counted_and_held_against_nobody(clock: MockClock) -> None:
    del clock
    peer = MemoryFabric.peer_id_of("you")
    async with MemoryFabric(seed=1).network("me") as me:
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS))
        penalties.punish(peer, BEHIND)
        assert penalties.may_connect(peer)
        assert penalties.reasons == {Reason.NOT_LISTED: 1}
        assert penalties.refusals[peer] == 0


async def test_who_is_punished_loses_its_connection_and_the_ban_is_kept(clock: MockClock) -> None:
    del clock
    fabric, kept = MemoryFabric(seed=1), Kept()
    async with fabric.network("me") as me, fabric.network("you") as you, trio.open_nursery() as nursery:
        penalties = Penalties(me, kept, TrioClock(BASE_MS))
        penalties.start()
        nursery.start_soon(penalties.run)
        await you.connect(me.addresses()[0], expected=None)
        penalties.punish(you.peer_id, FORGED)
        await trio.testing.wait_all_tasks_blocked()
        assert me.connected() == frozenset()
        assert kept.bans[you.peer_id].reason == "bad_signature"
        again = Penalties(me, kept, TrioClock(BASE_MS))
        assert not again.may_connect(you.peer_id)
        nursery.cancel_scope.cancel()


async def test_who_is_slow_to_go_delays_no_other_and_undoes_no_ban_of_a_person(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not read what is said last to him stands for a second; a program that reads the log bans him in it."""
    del clock
    fabric, kept, asked = MemoryFabric(seed=1), Kept(), list[PeerId]()
    first, other = (MemoryFabric.peer_id_of(name) for name in ("you", "another"))

    async def go_slowly(peer: PeerId, why: str) -> None:
        del why
        asked.append(peer)
        await trio.sleep(1)

    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        monkeypatch.setattr(me, "disconnect", go_slowly)
        penalties = Penalties(me, kept, TrioClock(BASE_MS))
        nursery.start_soon(penalties.run)
        penalties.punish(first, FORGED)
        penalties.punish(other, FORGED)
        await trio.testing.wait_all_tasks_blocked()
        assert set(asked) == {first, other}
        assert set(kept.bans) == {first, other}
        await penalties.ban(first, None)
        await penalties.pardon(other)
        await trio.sleep(5)
        assert set(kept.bans) == {first}
        assert kept.bans[first].until_ms == FOR_GOOD_MS
        nursery.cancel_scope.cancel()


async def test_a_clock_that_is_set_back_keeps_nobody_out_but_whom_a_person_banned(clock: MockClock) -> None:
    """As of a machine that begins in a wrong year, until somebody tells it the time."""
    del clock
    year_ms = 365 * 24 * 3_600_000

    class SetBack(TrioClock):
        back_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() - self.back_ms

    wall = SetBack(BASE_MS + year_ms)
    peer, left, banned, other = (MemoryFabric.peer_id_of(name) for name in "abcd")
    async with MemoryFabric(seed=1).network("me") as me:
        penalties = Penalties(me, Kept(), wall)
        penalties.punish(peer, FORGED)
        await penalties.hold_off(left, 60)
        await penalties.ban(banned, 60_000)
        for _ in range(30):
            penalties._faults.note("192.0.2.1", round(trio.current_time() * 1000))
        assert not any(penalties.may_connect(it, "192.0.2.1") for it in (peer, left, banned, other))
        wall.back_ms = year_ms
        await trio.sleep(61)
        assert [penalties.may_connect(it, "192.0.2.1") for it in (peer, left, banned, other)] == [
            True,
            True,
            False,
            True,
        ]
        penalties.punish(peer, FORGED)
        assert not penalties.may_connect(peer)
        await trio.sleep(21)
        assert penalties.may_connect(peer), "the second time twice as long, from now"


async def test_only_so_many_bans_are_kept_and_those_of_a_person_are_never_forgotten(clock: MockClock) -> None:
    del clock
    kept = Kept()
    peers = [MemoryFabric.peer_id_of(f"peer {number}") for number in range(5)]
    async with MemoryFabric(seed=1).network("me") as me, trio.open_nursery() as nursery:
        penalties = Penalties(me, kept, TrioClock(BASE_MS), PeerLimits(banned_peers_max=3))
        nursery.start_soon(penalties.run)
        await penalties.ban(peers[0], None)
        for peer in peers[1:3]:
            penalties.punish(peer, FORGED)
        assert set(penalties.banned()) == set(peers[:3])
        penalties.punish(peers[3], FORGED)
        assert set(penalties.banned()) == {peers[0], *peers[2:4]}
        await trio.testing.wait_all_tasks_blocked()
        assert set(kept.bans) == set(penalties.banned())
        nursery.cancel_scope.cancel()


async def test_bans_of_strangers_displace_neither_those_of_members_nor_those_of_a_person(clock: MockClock) -> None:
    del clock
    person, member, other = (MemoryFabric.peer_id_of(name) for name in ("by a person", "member", "other member"))
    async with MemoryFabric(seed=1).network("me") as me:
        members, limits = {member, other}, PeerLimits(banned_peers_max=4)
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS), limits, members.__contains__)
        await penalties.ban(person, 3_600_000)
        penalties.punish(person, FORGED)
        penalties.punish(member, FORGED)
        penalties.punish(other, FORGED)
        for number in range(20):
            newest = MemoryFabric.peer_id_of(f"stranger {number}")
            penalties.punish(newest, FORGED)
            assert set(penalties.banned()) == {person, member, other, newest}
        # Among members alone the oldest goes; what a person said stays.
        more = [MemoryFabric.peer_id_of(f"member {number}") for number in range(3)]
        members.update(more)
        for peer in more:
            penalties.punish(peer, FORGED)
        assert set(penalties.banned()) == {person, *more}


async def test_after_many_faults_at_an_address_no_stranger_is_let_in_from_there_for_a_while(clock: MockClock) -> None:
    del clock
    limits = PeerLimits(faults_per_address_max=3, fault_forgiven_s=60, first_ban_s=1)
    fabric = MemoryFabric(seed=1)
    member, stranger = fabric.peer_id_of("member"), fabric.peer_id_of("stranger")
    async with fabric.network("me") as me, fabric.network("you") as you, trio.open_nursery() as nursery:
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS), limits, lambda peer: peer == member)
        penalties.start()
        nursery.start_soon(penalties.run)
        for number in range(3):
            assert penalties.may_connect(stranger, "/memory/you"), number
            await you.connect(me.addresses()[0], expected=None)
            penalties.punish(you.peer_id, FORGED)
            await trio.sleep(10)  # longer than the ban
            assert me.connected() == frozenset()
        with pytest.raises(PeerUnreachableError):
            await you.connect(me.addresses()[0], expected=None)
        assert not penalties.may_connect(stranger, "/memory/you")
        assert penalties.may_connect(stranger, "/memory/elsewhere")
        assert penalties.may_connect(stranger), "where we dial it"
        assert penalties.may_connect(member, "/memory/you")
        await trio.sleep(60)
        await you.connect(me.addresses()[0], expected=None)
        nursery.cancel_scope.cancel()


def test_faults_are_forgiven_one_by_one_and_of_addresses_so_many_are_remembered() -> None:
    faults = Faults(PeerLimits(faults_per_address_max=2, fault_forgiven_s=10, addresses_at_fault_max=2))
    for address in ("a", "a", "a", "b", "b"):
        faults.note(address, 0)
    assert [faults.are_too_many(it, 0) for it in "abc"] == [True, True, False]
    assert [faults.are_too_many("a", at_ms) for at_ms in (9_999, 10_000, 30_000)] == [True, False, False]
    faults.note("a", 10_000)
    assert faults.are_too_many("a", 10_001), "what is left of the older ones counts"
    faults.note("c", 10_000)
    assert not faults.are_too_many("b", 0), "forgotten"
    assert faults.are_too_many("a", 10_001)


async def test_a_peer_that_forges_while_banned_for_good_stays_banned_for_good(clock: MockClock) -> None:
    del clock
    peer = MemoryFabric.peer_id_of("you")
    async with MemoryFabric(seed=1).network("me") as me:
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS))
        await penalties.ban(peer, None)
        penalties.punish(peer, FORGED)
        await trio.sleep(80_000)
        assert not penalties.may_connect(peer)
        assert await penalties.pardon(peer)
        assert penalties.may_connect(peer)
        assert not await penalties.pardon(peer)


@pytest.mark.parametrize(("quiet_s", "next_ban_s"), [(1_000, 20), (1_000.001, 10)])
async def test_who_behaved_for_long_enough_begins_anew(clock: MockClock, quiet_s: float, next_ban_s: float) -> None:
    del clock
    peer = MemoryFabric.peer_id_of("you")
    async with MemoryFabric(seed=1).network("me") as me:
        limits = PeerLimits(first_ban_s=10, longest_ban_s=60, forgiven_after_s=1_000)
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS), limits)
        penalties.punish(peer, FORGED)
        await trio.sleep(quiet_s)
        penalties.punish(peer, FORGED)
        await trio.sleep(next_ban_s - 0.01)
        assert not penalties.may_connect(peer)
        await trio.sleep(0.02)
        assert penalties.may_connect(peer)


async def test_who_is_held_off_is_let_in_again_after_that_time_and_is_not_banned(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=1)
    async with fabric.network("me") as me, fabric.network("you") as you:
        penalties = Penalties(me, Kept(), TrioClock(BASE_MS))
        penalties.start()
        await you.connect(me.addresses()[0], expected=None)
        await penalties.hold_off(you.peer_id, 60)
        assert me.connected() == frozenset()
        assert penalties.banned() == {}
        await trio.sleep(59.99)
        with pytest.raises(PeerUnreachableError):
            await you.connect(me.addresses()[0], expected=None)
        await trio.sleep(0.01)
        await you.connect(me.addresses()[0], expected=None)


def test_a_reader_asks_so_often_and_takes_so_much_and_it_grows_back() -> None:
    limits = PeerLimits(reader_requests_max=10, reader_bytes_max=1_000, reader_refill_s=10)
    allowances, peer, other = Allowances(limits), PeerId("you"), PeerId("other")
    assert [allowances.may_ask(peer, "here", 0.0) for _ in range(11)] == [True] * 10 + [False]
    assert allowances.may_ask(other, "here", 0.0)
    assert allowances.may_ask(peer, "here", 1.0)
    assert not allowances.may_ask(peer, "here", 1.0)
    allowances.answered(other, "here", 999, 1.0)
    assert allowances.may_ask(other, "here", 1.0)
    allowances.answered(other, "here", 1_001, 1.0)
    assert not allowances.may_ask(other, "here", 1.0)
    assert allowances.may_ask(other, "here", 21.0)


def test_accounts_are_kept_for_so_many_readers() -> None:
    allowances = Allowances(PeerLimits(reader_requests_max=1, readers_max=2))
    for name in "abc":
        assert allowances.may_ask(PeerId(name), "here", 0.0)
    assert allowances.may_ask(PeerId("a"), "here", 0.0), "the oldest was forgotten"
    assert not allowances.may_ask(PeerId("c"), "here", 0.0)


def test_readers_at_one_address_ask_and_take_so_much_together_whatever_ids_they_have() -> None:
    limits = PeerLimits(reader_requests_per_address_max=3, reader_bytes_per_address_max=1_000)
    allowances = Allowances(limits)
    assert [allowances.may_ask(PeerId(name), "here", 0.0) for name in "abcd"] == [True] * 3 + [False]
    assert allowances.may_ask(PeerId("d"), "there", 0.0)
    allowances.answered(PeerId("d"), "there", 999, 0.0)
    assert allowances.may_ask(PeerId("e"), "there", 0.0)
    allowances.answered(PeerId("e"), "there", 1, 0.0)
    assert not allowances.may_ask(PeerId("f"), "there", 0.0)
    assert allowances.may_ask(PeerId("f"), "there", 20.0)


@pytest.mark.parametrize("kind", [PeerLimits, GossipLimits, AskLimits, NetworkLimits])
def test_every_limit_is_above_nothing(kind: type) -> None:
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name not in ("network", "gossip", "asks"):
            with pytest.raises(MisuseError, match=name):
                kind(**{name: 0})


@pytest.mark.parametrize("kind", [PeerLimits, GossipLimits, AskLimits, NetworkLimits])
def test_every_limit_is_set_by_a_test_which_reaches_it(kind: type) -> None:
    here = Path(__file__)
    texts = [path.read_text() for path in here.parents[2].rglob("test_*.py") if path != here] + [here.read_text()]
    names = [name for name in kind.__dataclass_fields__ if name not in ("network", "gossip", "asks")]  # type: ignore[attr-defined]
    assert [name for name in names if not any(re.search(rf"\b{name}=", text) for text in texts)] == []
