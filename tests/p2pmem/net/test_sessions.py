"""One session for each peer, however many streams it opens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from p2pmem_jobs import SystemClock
from p2pmem_protocol.hello import Greeting, Speaker, Speakers
from p2pmem_protocol.names import Address, GraphId, network_id

from p2pmem.net import sessions as sessions_module
from p2pmem.net.framing import FrameReader
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId, Stream
from p2pmem.net.sessions import Session, Sessions

PEER = PeerId("12D3KooWBo")
NOBODY = Speakers(())
NETWORK = network_id("sessions")


class Served:
    """What serves sessions: it counts those that run at once, and takes a while to end one."""

    def __init__(self) -> None:
        self.begun = 0
        self.at_once = 0
        self.most_at_once = 0

    async def __call__(self, session: Session, stream: Stream, reader: FrameReader) -> None:
        self.begun += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            self.at_once -= 1


def make_sessions(
    serve: Served, limits: PeerLimits | None = None, membership: Any = None, clock: Any = None
) -> Sessions:
    refused: list[tuple[str, str, PeerId]] = []
    nothing: Any = SimpleNamespace(
        peer_id=PeerId("12D3KooWAda"),
        address_of=lambda peer: f"/ip4/{peer}/tcp/4001",
        refuse=lambda *told: refused.append(told),
        refused=refused,
    )
    return Sessions(
        network=nothing,
        network_id=NETWORK,
        membership=membership or Rosters(0, frozenset()),
        papers=nothing,
        clock=clock or SystemClock(),
        steady_ms=(clock or SystemClock()).now_ms,
        serve=serve,
        penalise=lambda peer, refused: None,
        limits=limits,
    )


async def hold(sessions: Sessions, speakers: Speakers = NOBODY) -> None:
    """What happens once hello is done on a stream that the peer opened."""
    stream = cast("Stream", SimpleNamespace(peer=PEER))
    greeting = Greeting.ours(NETWORK, 0)
    await sessions._hold(stream, cast("FrameReader", None), greeting, speakers, opened_by_us=False)


async def test_of_many_streams_that_one_peer_opens_at_once_one_is_served(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    sessions = make_sessions(served)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, sessions)
        await trio.testing.wait_all_tasks_blocked()
        assert (served.at_once, caplog.messages) == (1, [])
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                nursery.start_soon(hold, sessions)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (served.at_once, served.most_at_once) == (1, 1)
        assert len(sessions.all()) == 1
        assert caplog.messages == ["session.opened_again"], "and not for each of them"
        assert "two nodes run with one peer.key" in vars(caplog.records[0])["why"]
        nursery.cancel_scope.cancel()
    assert (served.at_once, sessions.all()) == (0, ())


async def test_of_strangers_so_many_hellos_a_minute_are_heard_and_of_each_known_member(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    heard: list[PeerId] = []

    async def greet(stream: Stream, *rest: object, may_prove: Callable[[], bool], **more: object) -> None:
        if may_prove():
            heard.append(stream.peer)

    monkeypatch.setattr(sessions_module, "greet_as_listener", greet)
    limits = PeerLimits(
        hellos_per_address_per_minute=3, hellos_per_minute=5, hellos_per_member_per_minute=4, hello_addresses_max=8
    )
    sessions = make_sessions(Served(), limits)

    async def say(where: str, times: int) -> int:
        """How many of so many hellos of a peer at an address are heard; here a peer is called by its address."""
        before = len(heard)
        for _ in range(times):
            await sessions._listen(cast("Stream", SimpleNamespace(peer=PeerId(where))))
        return len(heard) - before

    assert await say("192.0.2.1", 10) == 3
    assert cast("Any", sessions._network).refused == [("hello.refused", "hellos", "192.0.2.1")] * 7, "and it is said"
    assert await say("192.0.2.2", 10) == 2, "of the five of all, which the first did not use up with what was not heard"
    monkeypatch.setattr(sessions, "_is_listed", lambda member: True)
    for number, where in enumerate(("192.0.2.1", "192.0.2.4")):
        sessions._known.note(PeerId(where), Address(bytes([number]) * 20))
        assert await say(where, 10) == 4, "at an address that has used up what strangers may, too"
    await trio.sleep(12)
    assert await say("192.0.2.3", 10) == 1
    await trio.sleep(60)
    assert await say("2001:db8:1::1", 2) + await say("2001:db8:1:2::1", 2) == 3, "of one /48"


async def test_of_all_keys_that_a_graph_lists_so_many_hellos_are_heard_and_those_of_others_beside_them(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    heard: list[PeerId] = []

    async def greet(stream: Stream, *rest: object, may_prove: Callable[[], bool], **more: object) -> None:
        if may_prove():
            heard.append(stream.peer)

    monkeypatch.setattr(sessions_module, "greet_as_listener", greet)
    theirs, ours = GraphId(bytes(32)), GraphId(b"o" * 32)
    mal, ben = [Address(bytes([number]) * 20) for number in range(10)], Address(b"b" * 20)
    listed = {theirs: {*mal, ben}, ours: {ben}}
    rosters = Rosters(0, frozenset())
    rosters.graphs = [theirs, ours]
    monkeypatch.setattr(rosters, "is_member", lambda graph, agent: agent in listed[graph])
    limits = PeerLimits(hellos_per_member_per_minute=4, graph_hellos_per_minute=10)
    sessions = make_sessions(Served(), limits, membership=rosters)

    async def say(agent: Address, times: int) -> int:
        before, peer = len(heard), PeerId(f"192.0.2.{agent[0]}")
        sessions._known.note(peer, agent)
        for _ in range(times):
            await sessions._listen(cast("Stream", SimpleNamespace(peer=peer)))
        return len(heard) - before

    assert [await say(agent, 4) for agent in mal[:4]] == [4, 4, 2, 0]
    assert await say(ben, 5) == 4, "in the other graph there are some left"
    await trio.sleep(60)
    assert await say(mal[5], 5) == 4


class Rosters:
    """Who is in which graph, what is revoked, and how often that was asked."""

    def __init__(self, graphs: int, members: frozenset[Address]) -> None:
        self.graphs = [GraphId(number.to_bytes(32)) for number in range(graphs)]
        self.members = members
        self.revoked: set[Address] = set()
        self.asked = 0

    def stand(self) -> object:
        return self.members, frozenset(self.revoked)

    def graphs_with_head(self) -> list[GraphId]:
        return self.graphs

    def is_member(self, graph: GraphId, agent: Address) -> bool:
        self.asked += 1
        return agent in self.members

    def is_revoked(self, speaker: Speaker, peer: PeerId) -> bool:
        self.asked += 1
        return speaker.agent in self.revoked


async def test_what_a_peer_may_is_judged_once_until_a_roster_a_revocation_or_an_end_changes_it() -> None:
    ada, ben = (Address(bytes([number]) * 20) for number in (1, 2))
    rosters, clock = Rosters(100, frozenset({ada, ben})), SimpleNamespace(now=1_000)
    clock.now_ms = lambda: clock.now
    sessions = make_sessions(Served(), membership=rosters, clock=clock)
    speakers = Speakers((Speaker(ada, 1, 2_000), Speaker(ben, 1, 3_000)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, sessions, speakers)
        await trio.testing.wait_all_tasks_blocked()
        asked = rosters.asked
        for _ in range(1_000):
            assert sessions.member_at(PEER) == str(ada)
            assert sessions.may_have(PEER, rosters.graphs[99])
            assert sessions.standing_of(PEER) is not None
        assert rosters.asked - asked <= 1_000, "nothing but whether it is listed at all, once for each standing"
        clock.now = 1_999
        assert sessions.member_at(PEER) == str(ada)
        clock.now = 2_000
        assert sessions.member_at(PEER) == str(ben), "a credential is good until its end, and not at it"
        clock.now = 1_999
        assert sessions.member_at(PEER) == str(ada), "a clock that was set back is believed"
        clock.now = 2_999
        assert sessions.may_have(PEER, rosters.graphs[0])
        rosters.revoked.add(ben)
        assert not sessions.may_have(PEER, rosters.graphs[0])
        rosters.revoked.clear()
        assert sessions.may_have(PEER, rosters.graphs[0])
        rosters.members = frozenset({ada})
        assert not sessions.may_have(PEER, rosters.graphs[0])
        rosters.members = frozenset({ben})
        assert sessions.may_have(PEER, rosters.graphs[0])
        clock.now = 3_000
        assert not sessions.may_have(PEER, rosters.graphs[0])
        nursery.cancel_scope.cancel()
