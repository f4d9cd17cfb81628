"""Dialling under a virtual clock: pauses that grow, peers that come back, and hearsay that is given up."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import GraphId
from trio.testing import MockClock

from p2pmem.net.dialer import HEARD_S_MIN, Dialer
from p2pmem.net.greet import NotWelcomeError
from p2pmem.net.limits import PeerLimits
from p2pmem.net.memory import MemoryFabric
from p2pmem.net.seam import PeerId

Connected = Callable[[PeerId], Awaitable[None]]


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def at(fabric: MemoryFabric, name: str) -> str:
    """Where a node of this name is, or would be."""
    return f"/memory/{name}/p2p/{fabric.peer_id_of(name)}"


class Meetings:
    """When which peer was met; each meeting lasts until the peer is gone."""

    def __init__(self, fabric: MemoryFabric, me: str) -> None:
        self.at: list[float] = []
        self._fabric, self._me = fabric, me
        self.ended = trio.Event()

    async def __call__(self, peer: PeerId) -> None:
        self.at.append(trio.current_time())
        await self.ended.wait()
        self.ended = trio.Event()


async def test_pauses_double_with_a_spread_up_to_the_longest(clock: MockClock) -> None:
    del clock
    limits = PeerLimits(first_dial_pause_s=1.0, longest_dial_pause_s=16.0)
    fabric, tries = MemoryFabric(seed=1), list[float]()
    async with fabric.network("me") as me:
        dial = me.connect

        async def connect(address: str, *, expected: PeerId | None) -> PeerId:
            tries.append(trio.current_time())
            return await dial(address, expected=expected)

        me.connect = connect  # type: ignore[method-assign]
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(5), limits)
        dialer.want(at(fabric, "nobody"))
        with trio.move_on_after(100):
            await dialer.run()
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    bounds = [1, 2, 4, 8, 16, 16, 16]
    assert len(pauses) >= len(bounds)
    assert all(bound / 2 <= pause <= bound + 0.1 for pause, bound in zip(pauses, bounds, strict=False)), pauses


async def test_a_peer_that_comes_back_is_met_within_the_longest_pause_and_pauses_begin_anew(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=2)
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        meetings = Meetings(fabric, "me")
        dialer = Dialer(me, meetings, random.Random(6))
        await nursery.start(dialer.run)
        dialer.want(at(fabric, "you"))
        await trio.sleep(3_600)
        assert meetings.at == []
        async with fabric.network("you"):
            began = trio.current_time()
            await trio.sleep(301)
            assert len(meetings.at) == 1
            assert meetings.at[0] - began <= 300.1
            meetings.ended.set()
            lost = trio.current_time()
            await trio.sleep(1)
            assert len(meetings.at) == 2
            assert meetings.at[1] - lost <= 0.3
        nursery.cancel_scope.cancel()


async def test_who_was_away_for_a_while_is_met_again_after_about_as_long(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=2)
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        meetings = Meetings(fabric, "me")
        dialer = Dialer(me, meetings, random.Random(6))
        await nursery.start(dialer.run)
        dialer.want(at(fabric, "you"))
        await trio.sleep(30)
        async with fabric.network("you"):
            await trio.sleep(31)
            assert len(meetings.at) == 1
        nursery.cancel_scope.cancel()


async def test_when_one_that_was_away_comes_the_others_that_are_away_are_dialled_soon(clock: MockClock) -> None:
    """A cable is in again: whoever was behind it is not waited for until its own pause is over."""
    del clock
    fabric = MemoryFabric(seed=2)
    names = [f"peer-{number}" for number in range(8)]
    async with fabric.network("me") as me, trio.open_nursery() as nursery, AsyncExitStack() as others:
        came: dict[PeerId, float] = {}

        async def meet(peer: PeerId) -> None:
            came[peer] = trio.current_time()
            dialer.came(peer)
            await trio.sleep_forever()

        dialer = Dialer(me, meet, random.Random(6))
        await nursery.start(dialer.run)
        for name in names:
            dialer.want(f"/memory/{name}/p2p/{fabric.peer_id_of(name)}")
        await trio.sleep(3_600)
        for name in names:
            await others.enter_async_context(fabric.network(name))
        await trio.sleep(301)
        assert len(came) == len(names)
        assert max(came.values()) - min(came.values()) < 1
        nursery.cancel_scope.cancel()


async def test_who_is_still_away_when_another_comes_back_is_dialled_once_and_then_as_seldom_as_before(
    clock: MockClock,
) -> None:
    del clock
    fabric, tries = MemoryFabric(seed=2), list[float]()
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        dial = me.connect

        async def connect(address: str, *, expected: PeerId | None) -> PeerId:
            if address == at(fabric, "away"):
                tries.append(trio.current_time())
            return await dial(address, expected=expected)

        me.connect = connect  # type: ignore[method-assign]

        is_back = trio.Event()

        async def meet(peer: PeerId) -> None:
            dialer.came(peer)
            is_back.set()
            await trio.sleep_forever()

        dialer = Dialer(me, meet, random.Random(6))
        await nursery.start(dialer.run)
        for name in ("away", "back"):
            dialer.want(at(fabric, name))
        await trio.sleep(3_600)
        async with fabric.network("back"):
            await is_back.wait()
            came_s = trio.current_time()
            tries.clear()
            await trio.sleep(600)
            assert tries[0] - came_s < 1
            assert all(later - earlier >= 150 for earlier, later in pairwise(tries)), tries
            nursery.cancel_scope.cancel()


async def test_sessions_that_end_soon_again_and_again_begin_less_and_less_often(clock: MockClock) -> None:
    del clock
    fabric, began = MemoryFabric(seed=2), list[float]()
    lasts_s = 0.05

    async def ended_by_the_twin(peer: PeerId) -> None:
        began.append(trio.current_time())
        dialer.hear(address)  # what is said in each session of where the peer is, is no news
        await trio.sleep(lasts_s)

    async with fabric.network("me") as me, fabric.network("you") as you, trio.open_nursery() as nursery:
        dialer = Dialer(me, ended_by_the_twin, random.Random(6), PeerLimits(lasting_s=15.0))
        await nursery.start(dialer.run)
        address = you.addresses()[0]
        dialer.want(address)
        await trio.sleep(3_600)
        assert 15 < len(began) < 50
        lasts_s = 20.0
        await trio.sleep(330)
        began.clear()
        await trio.sleep(100)
        assert 4 <= len(began) <= 5, "one that lasts is followed at once"
        nursery.cancel_scope.cancel()


async def test_who_is_not_welcome_asks_less_and_less_often_and_anew_when_something_changed(clock: MockClock) -> None:
    del clock
    fabric, tries = MemoryFabric(seed=2), list[float]()

    async def not_welcome(peer: PeerId) -> None:
        tries.append(trio.current_time())
        raise NotWelcomeError(peer)

    async with fabric.network("me") as me, fabric.network("you") as you, trio.open_nursery() as nursery:
        dialer = Dialer(me, not_welcome, random.Random(6), PeerLimits(unwelcome_dial_pause_s=200.0))
        await nursery.start(dialer.run)
        dialer.want(you.addresses()[0])
        await trio.sleep(3_600)
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert max(pauses) <= 200
        assert all(pause >= 100 for pause in pauses[-8:])
        assert len(tries) < 50
        tries.clear()
        dialer.dial_soon()
        await trio.sleep(10)
        assert len(tries) >= 4, "the other may hear of the change a moment later"
        nursery.cancel_scope.cancel()


async def test_hearsay_is_given_up_after_its_failures_and_a_wish_is_not(clock: MockClock) -> None:
    del clock
    limits = PeerLimits(heard_failures_max=3)
    fabric = MemoryFabric(seed=3)
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(7), limits)
        await nursery.start(dialer.run)
        wanted = dialer.want(at(fabric, "a"))
        heard = dialer.hear(at(fabric, "b"))
        both = dialer.hear(at(fabric, "c"))
        dialer.want(at(fabric, "c"))
        assert dialer.wanted() == {wanted, heard, both}
        await trio.sleep(3_600)
        assert dialer.wanted() == {wanted, both}
        nursery.cancel_scope.cancel()


async def test_who_was_reached_once_is_dialled_on_though_only_heard_of(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=4)
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        meetings = Meetings(fabric, "me")
        dialer = Dialer(me, meetings, random.Random(8), PeerLimits(heard_failures_max=2))
        await nursery.start(dialer.run)
        async with fabric.network("you") as you:
            peer = dialer.hear(you.addresses()[0])
            await trio.sleep(1)
        meetings.ended.set()
        await trio.sleep(3_600)
        assert dialer.wanted() == {peer}
        nursery.cancel_scope.cancel()


async def test_of_the_addresses_of_a_peer_the_latest_few_are_dialled(clock: MockClock) -> None:
    del clock
    fabric, tries = MemoryFabric(seed=6), list[str]()
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        dial = me.connect

        async def connect(address: str, *, expected: PeerId | None) -> PeerId:
            tries.append(address.partition("/p2p/")[0])
            return await dial(address, expected=expected)

        me.connect = connect  # type: ignore[method-assign]
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(1), PeerLimits(addresses_per_peer_max=2))
        for place in ("a", "b", "c"):
            dialer.want(f"/memory/{place}/p2p/{fabric.peer_id_of('you')}")
        await nursery.start(dialer.run)
        await trio.sleep(60)
        assert set(tries) == {"/memory/b", "/memory/c"}
        nursery.cancel_scope.cancel()


async def test_of_peers_and_of_hearsay_only_so_many_are_dialled(clock: MockClock) -> None:
    del clock
    limits = PeerLimits(wanted_peers_max=5, heard_peers_max=3)
    fabric = MemoryFabric(seed=5)

    async with fabric.network("me") as me:
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(9), limits)
        for name in "abc":
            dialer.hear(at(fabric, name))
        with pytest.raises(MisuseError, match="only heard of"):
            dialer.hear(at(fabric, "d"))
        dialer.want(at(fabric, "d"))
        dialer.want(at(fabric, "e"))
        with pytest.raises(MisuseError, match="wanted already"):
            dialer.want(at(fabric, "f"))
        for bad in ("nonsense", "/memory/x", f"/memory/me/p2p/{me.peer_id}"):
            with pytest.raises(MisuseError):
                dialer.hear(bad)


async def test_who_was_heard_of_in_the_graph_that_has_most_gives_way_to_somebody_of_another(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=5)
    honest, other = GraphId(b"g" * 32), GraphId(b"h" * 32)

    async with fabric.network("me") as me:
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(9), PeerLimits(heard_peers_max=4))
        for name in "abcd":
            dialer.hear(at(fabric, name), other)
        with pytest.raises(MisuseError, match="only heard of"):
            dialer.hear(at(fabric, "e"), other)
        for name in "xy":
            dialer.hear(at(fabric, name), honest)
        assert dialer.wanted() == {fabric.peer_id_of(name) for name in "abxy"}
        for graph in (honest, other):
            with pytest.raises(MisuseError, match="only heard of"):
                dialer.hear(at(fabric, "z"), graph)


async def test_of_hearsay_that_fills_all_room_what_does_not_answer_gives_way_and_what_is_connected_does_not(
    clock: MockClock,
) -> None:
    del clock
    limits = PeerLimits(heard_peers_max=2, heard_failures_max=3)
    fabric = MemoryFabric(seed=5)

    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(9), limits)
        await nursery.start(dialer.run)
        async with fabric.network("here"):
            gone, here = dialer.hear(at(fabric, "gone"), met_before=True), dialer.hear(at(fabric, "here"))
            await trio.sleep(100)
            assert here in me.connected()
            assert dialer.wanted() == {gone, here}, "who was met before is dialled on"
            new = dialer.hear(at(fabric, "new"))
            assert dialer.wanted() == {here, new}
            assert here in me.connected()
            with pytest.raises(MisuseError, match="only heard of"):
                dialer.hear(at(fabric, "other"))
        nursery.cancel_scope.cancel()


async def test_addresses_that_swallow_what_is_sent_there_fill_the_room_for_seconds(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=5)

    async with fabric.network("me") as me, fabric.network("you") as you, trio.open_nursery() as nursery:
        dial = me.connect

        async def connect(address: str, *, expected: PeerId | None) -> PeerId:
            if "lie" in address:
                await trio.sleep(15)
            return await dial(address, expected=expected)

        me.connect = connect  # type: ignore[method-assign]
        dialer = Dialer(me, Meetings(fabric, "me"), random.Random(9), PeerLimits(heard_peers_max=3))
        await nursery.start(dialer.run)
        lies = [dialer.hear(at(fabric, f"lie {number}")) for number in range(3)]
        await trio.sleep(HEARD_S_MIN - 0.01)
        with pytest.raises(MisuseError, match="only heard of"):
            dialer.hear(you.addresses()[0])
        await trio.sleep(0.01)
        dialer.hear(you.addresses()[0])
        await trio.sleep(1)
        assert me.connected() == {you.peer_id}
        for number in range(3, 6):
            dialer.hear(at(fabric, f"lie {number}"))
            await trio.sleep(HEARD_S_MIN)
        assert you.peer_id in dialer.wanted(), "who answered stays"
        assert not dialer.wanted() & set(lies)
        nursery.cancel_scope.cancel()


async def test_a_fault_of_ours_in_what_a_peer_says_ends_no_more_than_its_session(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    del clock
    fabric, met = MemoryFabric(seed=5), list[PeerId]()

    async def fail(peer: PeerId) -> None:
        met.append(peer)
        async with trio.open_nursery():
            raise ValueError("what nobody thought of")

    async with (
        fabric.network("me") as me,
        fabric.network("you") as you,
        fabric.network("other") as other,
        trio.open_nursery() as nursery,
    ):
        dialer = Dialer(me, fail, random.Random(9))
        await nursery.start(dialer.run)
        dialer.want(you.addresses()[0])
        await trio.sleep(5)
        dialer.want(other.addresses()[0])
        await trio.sleep(5)
        assert met.count(you.peer_id) >= 4
        assert other.peer_id in met
        assert "peer.session_failed" in caplog.text
        nursery.cancel_scope.cancel()


async def test_hearsay_does_not_displace_the_address_that_a_person_gave(clock: MockClock) -> None:
    del clock
    fabric = MemoryFabric(seed=6)
    async with fabric.network("me") as me, fabric.network("you") as you, trio.open_nursery() as nursery:
        meetings = Meetings(fabric, "me")
        dialer = Dialer(me, meetings, random.Random(10))
        dialer.want(you.addresses()[0])
        for number in range(100):
            dialer.hear(f"/memory/lie-{number}/p2p/{you.peer_id}")
        await nursery.start(dialer.run)
        await trio.sleep(1)
        assert len(meetings.at) == 1
        nursery.cancel_scope.cancel()


async def test_hearsay_does_not_displace_where_a_peer_answered_and_is_forgotten_while_it_is_away(
    clock: MockClock,
) -> None:
    """A member that says of another to be at so many places keeps nobody from it, and nobody is knocked at for ever."""
    del clock
    fabric, tries = MemoryFabric(seed=6), list[str]()
    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        dial, meetings = me.connect, Meetings(fabric, "me")

        async def connect(address: str, *, expected: PeerId | None) -> PeerId:
            tries.append(address)
            return await dial(address, expected=expected)

        me.connect = connect  # type: ignore[method-assign]
        dialer = Dialer(me, meetings, random.Random(10), PeerLimits(heard_failures_max=3))
        await nursery.start(dialer.run)
        async with fabric.network("you") as you:
            (true_address,) = you.addresses()
            dialer.hear(true_address)
            await trio.sleep(1)
            for number in range(100):
                dialer.hear(f"/memory/lie-{number}/p2p/{you.peer_id}")
        meetings.ended.set()
        await trio.sleep(600)
        assert any("lie" in address for address in tries)
        tries.clear()
        await trio.sleep(600)
        assert set(tries) == {true_address}
        async with fabric.network("you"):
            await trio.sleep(301)
            assert len(meetings.at) == 2
        nursery.cancel_scope.cancel()
