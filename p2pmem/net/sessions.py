"""Sessions: who is connected, who stands behind each peer, and which context graphs may move between us.

A session begins when hello is done on a member stream and lasts as long as that stream. What it allows is looked at
whenever it is asked, and judged anew when anything has changed: a head, a revocation, a credential that ended act at
once, and nobody has to remember to tell anybody.

Whoever dialled opens the member stream, so it proves itself first. When both sides dialled at once there are two
streams; the one that the peer with the lower id opened stays.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Protocol

import trio
from p2pmem_jobs.clock import Clock
from p2pmem_protocol.credential import SignedActFor, SignedCarry
from p2pmem_protocol.errors import OutsideError, RefusedError
from p2pmem_protocol.frames import MESSAGE_BYTES_MAX
from p2pmem_protocol.hello import MEMBER_PROTOCOL, Greeting, Proof, Speaker, Speakers, clocks_agree
from p2pmem_protocol.names import Address, GraphId, NetworkId

from p2pmem.net.allowance import Allowance
from p2pmem.net.framing import FrameReader
from p2pmem.net.greet import NotWelcomeError, greet_as_listener, greet_as_opener
from p2pmem.net.known import KnownPeers
from p2pmem.net.limits import PeerLimits
from p2pmem.net.room import origin_of_address
from p2pmem.net.seam import Network, PeerId, Standing, Stream

log = logging.getLogger(__name__)

SOON_MS = 60_000
_TWICE = "it lost its connection, or two nodes run with one peer.key: when it goes on, give each a key of its own"
SEEN_MAX = 10_000  # agents of whom it is remembered when they were last here


class Membership(Protocol):
    """What a session must know of rosters, by the heads that this node holds now."""

    def graphs_with_head(self) -> Iterable[GraphId]:
        """Graphs that this node takes part in and has a head for."""

    def stand(self) -> Hashable:
        """As long as it is the same, so are all answers here; cheap, because it is asked for each question of a
        peer."""

    def is_member(self, graph: GraphId, agent: Address) -> bool:
        """Whether the head lists the agent in any role."""

    def is_open(self, graph: GraphId) -> bool:
        """Whether the head lets anybody read."""

    def is_revoked(self, speaker: Speaker, peer: PeerId) -> bool:
        """Whether an admitted revocation ended this credential."""

    def is_delegation_revoked(self, principal: Address, agent: Address, serial: int) -> bool:
        """Whether the principal has ended this delegation (rule D1)."""


class Papers(Protocol):
    """The credentials that this node shows for its own agents."""

    def credentials(self) -> tuple[SignedCarry, ...]:
        """One for each agent, good for days to come."""

    def delegations(self) -> tuple[SignedActFor, ...]:
        """For which principals they act."""


@dataclass(frozen=True, slots=True)
class Session:
    """One peer that has proven who it speaks for. `clock_apart_ms` is its clock less ours at hello, which was when our
    clocks said `opened_ms` and `steady_ms`."""

    peer: PeerId
    speakers: Speakers
    greeting: Greeting
    clock_apart_ms: int
    opened_by_us: bool
    opened_ms: int
    steady_ms: int

    @property
    def may_reconcile(self) -> bool:
        """Whether the clocks are close enough (rule R2)."""
        return clocks_agree(0, self.clock_apart_ms)


Serve = Callable[[Session, Stream, FrameReader], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Judged:
    """Whose membership a peer may use, and in which graphs, as long as the membership is as it was (`stand`) and it is
    a time from `from_ms` to before `until_ms`, when a credential ends. To judge anew takes time in proportion to
    credentials and graphs, 4 ms for 64 and 100, and it is asked for each question of a peer."""

    stand: Hashable
    from_ms: int
    until_ms: float
    names: frozenset[Address]
    graphs: frozenset[GraphId]
    member: Address | None

    def holds(self, stand: Hashable, now_ms: int) -> bool:
        return self.from_ms <= now_ms < self.until_ms and self.stand == stand


@dataclass(slots=True)
class _Open:
    session: Session
    scope: trio.CancelScope
    ended: trio.Event
    judged: _Judged | None = None


class Sessions:
    """All sessions of one node. `serve` runs as long as a session lasts, in its own task."""

    def __init__(
        self,
        *,
        network: Network,
        network_id: NetworkId,
        membership: Membership,
        papers: Papers,
        clock: Clock,
        steady_ms: Callable[[], int],
        serve: Serve,
        penalise: Callable[[PeerId, RefusedError], None],
        limits: PeerLimits | None = None,
    ) -> None:
        """`steady_ms` goes on evenly whatever is done to the wall clock."""
        limits = limits or PeerLimits()
        self._steady_ms = steady_ms
        self._hellos_of_address = Allowance(limits.hellos_per_address_per_minute, limits.hello_addresses_max)
        self._hellos_of_member = Allowance(limits.hellos_per_member_per_minute, limits.known_members_max)
        self._hellos_of_graph = Allowance(limits.graph_hellos_per_minute, limits.known_members_max)
        self._hellos = Allowance(limits.hellos_per_minute)
        self._network = network
        self._network_id = network_id
        self._membership = membership
        self._papers = papers
        self._clock = clock
        self._serve = serve
        self._penalise = penalise
        self._open: dict[PeerId, _Open] = {}
        self._known = KnownPeers(limits, self._open.__contains__)
        self._said_again_ms = -SOON_MS
        self._last_seen_ms: dict[Address, int] = {}  # of those who went, the longest ago first

    def start(self) -> None:
        """From now on, answer who opens a member stream."""
        self._network.set_handler(MEMBER_PROTOCOL, self._listen)
        self._network.set_standing(self.standing_of)

    def get(self, peer: PeerId) -> Session | None:
        found = self._open.get(peer)
        return found.session if found else None

    def all(self) -> tuple[Session, ...]:
        return tuple(open_.session for open_ in self._open.values())

    def member_of(self, session: Session) -> Address | None:
        """Whose membership the peer uses now: one name for each peer, though it may speak for several."""
        return self._judged(session.speakers, session.peer).member

    def member_at(self, peer: PeerId) -> str | None:
        """The name of that member, for a peer with a session; None for others."""
        session = self.get(peer)
        member = self.member_of(session) if session is not None else None
        return str(member) if member is not None else None

    def apart_ms(self, session: Session) -> int:
        """Its clock less ours as it is now, if its clock went on evenly since hello; ours may have been set."""
        return session.greeting.clock_ms + self._steady_ms() - session.steady_ms - self._clock.now_ms()

    def is_known(self, peer: PeerId) -> bool:
        """Whether this is one of the newest peers of somebody that a graph of ours lists. Of each there are few, though
        all of them may have a session."""
        member = self._known.member_of(peer)
        return member is not None and self._is_listed(member)

    def standing_of(self, peer: PeerId) -> Standing | None:
        """Whose node it is, and in which graphs, if it is known."""
        member = self._known.member_of(peer)
        if member is None or not self._is_listed(member):
            return None
        return Standing(str(member), self.shared_with(peer) or frozenset(self._listed_in((member,))))

    def _listed_in(self, names: Collection[Address]) -> Iterator[GraphId]:
        for graph in self._membership.graphs_with_head():
            if any(self._membership.is_member(graph, name) for name in names):
                yield graph

    def _is_listed(self, name: Address) -> bool:
        return any(self._membership.is_member(graph, name) for graph in self._membership.graphs_with_head())

    def is_online(self, agent: Address) -> bool:
        """Whether a session with somebody who speaks for this agent is open."""
        return any(it.agent == agent for session in self.all() for it in session.speakers.speakers)

    def last_seen_ms(self, agent: Address) -> int:
        """When a session with the agent last ended, since this node was started: now if one is open, 0 if none was."""
        return self._clock.now_ms() if self.is_online(agent) else self._last_seen_ms.get(agent, 0)

    def _note_seen(self, session: Session) -> None:
        for speaker in session.speakers.speakers:
            self._last_seen_ms.pop(speaker.agent, None)
            self._last_seen_ms[speaker.agent] = self._clock.now_ms()
        while len(self._last_seen_ms) > SEEN_MAX:
            del self._last_seen_ms[next(iter(self._last_seen_ms))]

    def graphs_of(self, session: Session) -> frozenset[GraphId]:
        """The context graphs that may move between us and this peer, by heads, revocations and time as they are now."""
        return self._shared(session.speakers, session.peer)

    def _shared(self, speakers: Speakers, peer: PeerId) -> frozenset[GraphId]:
        return self._judged(speakers, peer).graphs

    def graphs_with_head(self) -> tuple[GraphId, ...]:
        """All graphs of this node in which anything can be judged."""
        return tuple(self._membership.graphs_with_head())

    def is_open(self, graph: GraphId) -> bool:
        """Whether the head lets anybody read."""
        return self._membership.is_open(graph)

    def open_graphs(self) -> tuple[GraphId, ...]:
        """The open graphs that this node follows."""
        return tuple(graph for graph in self._membership.graphs_with_head() if self._membership.is_open(graph))

    def may_read(self, peer: PeerId, graph: GraphId) -> bool:
        """Whether what is in this graph may be told to that peer now: to members, and of an open graph to anybody who
        names it (rule J2)."""
        return self._membership.is_open(graph) or self.may_have(peer, graph)

    def may_have(self, peer: PeerId, graph: GraphId) -> bool:
        """Whether that peer takes part in this graph now, as the node of a member."""
        return graph in self.shared_with(peer)

    def shared_with(self, peer: PeerId) -> frozenset[GraphId]:
        """The graphs that may move between us and a peer now; none without a session."""
        session = self.get(peer)
        return self.graphs_of(session) if session is not None else frozenset()

    def names_of(self, speakers: Speakers, peer: PeerId) -> frozenset[Address]:
        """Whose membership this peer may use now: of agents whose credential stands, and of the principals that these
        still act for."""
        return self._judged(speakers, peer).names

    def _judged(self, speakers: Speakers, peer: PeerId) -> _Judged:
        """As judged before, for a session, if that still holds."""
        stand, now_ms = self._membership.stand(), self._clock.now_ms()
        found = self._open.get(peer)
        if found is None or found.session.speakers is not speakers:
            return self._judge(speakers, peer, stand, now_ms)
        if found.judged is None or not found.judged.holds(stand, now_ms):
            found.judged = self._judge(speakers, peer, stand, now_ms)
        return found.judged

    def _judge(self, speakers: Speakers, peer: PeerId, stand: Hashable, now_ms: int) -> _Judged:
        names: set[Address] = set()
        until_ms = min((it.until_ms for it in speakers.speakers if it.until_ms > now_ms), default=inf)
        for speaker in speakers.speakers:
            if now_ms >= speaker.until_ms or self._membership.is_revoked(speaker, peer):
                continue
            names.add(speaker.agent)
            names.update(
                principal
                for principal, serial in speaker.principals
                if not self._membership.is_delegation_revoked(principal, speaker.agent, serial)
            )
        graphs, member = frozenset(self._listed_in(names)), min(filter(self._is_listed, names), default=None)
        return _Judged(stand, now_ms, until_ms, frozenset(names), graphs, member)

    def peers_of(self, name: Address) -> tuple[PeerId, ...]:
        """Whose nodes may use the membership of `name` now, of those that hello is done with."""
        return tuple(it.peer for it in self.all() if name in self.names_of(it.speakers, it.peer))

    async def open(self, peer: PeerId) -> None:
        """Do hello as the one who dialled, and serve the session until it ends. If one stands, wait for its end.

        Raises `OutsideError` (nobody there, not welcome, the stream broke) and `RefusedError` (the peer's words do not
        hold). Cancelled, the session ends.
        """
        standing = self._open.get(peer)
        if standing is not None:
            await standing.ended.wait()
            return
        stream = await self._network.open_stream(peer, MEMBER_PROTOCOL)
        try:
            reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
            now_ms = self._clock.now_ms()
            ours = Greeting.ours(self._network_id, now_ms)
            proof = Proof(self._papers.credentials(), self._papers.delegations())
            theirs, speakers = await greet_as_opener(stream, reader, ours=ours, proof=proof, now_ms=now_ms)
            if not self._shared(speakers, peer):
                raise NotWelcomeError(f"{peer} speaks for nobody that shares a context graph with us any more")
            await self._hold(stream, reader, theirs, speakers, opened_by_us=True)
        except RefusedError as error:
            self._penalise(peer, error)
            raise
        finally:
            await stream.reset()

    def _may_prove(self, peer: PeerId) -> bool:
        """Whether the proof of a peer that opened is looked at. Who has used up what it may hears what a stranger does,
        and dials again after some time."""
        may = self._takes_hello(peer)
        if not may:
            self._network.refuse("hello.refused", "hellos", peer)
        return may

    def _takes_hello(self, peer: PeerId) -> bool:
        """So many a minute of each member's known peers, whatever others at their address do, of all that one graph
        lists, and of others."""
        now_s, standing = trio.current_time(), self.standing_of(peer)
        if standing is not None:
            may = self._hellos_of_member.take(now_s, standing.member)
            return may and self._hellos_of_graph.take_of_one(now_s, standing.graphs)
        where = origin_of_address(self._network.address_of(peer)).wide
        return self._hellos_of_address.take(now_s, where) and self._hellos.take(now_s)

    async def _listen(self, stream: Stream) -> None:
        reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
        now_ms = self._clock.now_ms()
        ours = Greeting.ours(self._network_id, now_ms)

        def may_prove() -> bool:
            return self._may_prove(stream.peer)

        def prove(speakers: Speakers) -> Proof | None:
            return self._proof_for(speakers, stream.peer)

        try:
            greeted = await greet_as_listener(
                stream, reader, ours=ours, may_prove=may_prove, prove=prove, now_ms=now_ms
            )
            if greeted is None:
                log.info("hello.stranger", extra={"peer": stream.peer})
                return
            await self._hold(stream, reader, *greeted, opened_by_us=False)
        except RefusedError as error:
            self._penalise(stream.peer, error)
        except OutsideError as error:
            log.info("session.ended", extra={"peer": stream.peer, "why": type(error).__name__})

    def _proof_for(self, speakers: Speakers, peer: PeerId) -> Proof | None:
        """Only those of our agents that share a graph with the opener's."""
        shared = self._shared(speakers, peer)
        delegations = self._papers.delegations()

        def shares(agent: Address) -> bool:
            ours = {agent, *(it.delegation.principal for it in delegations if it.delegation.agent == agent)}
            return any(self._membership.is_member(graph, name) for graph in shared for name in ours)

        shown = tuple(it for it in self._papers.credentials() if shares(it.carry.agent))
        if not shown:
            return None
        agents = {it.carry.agent for it in shown}
        return Proof(shown, tuple(it for it in delegations if it.delegation.agent in agents))

    async def _hold(
        self, stream: Stream, reader: FrameReader, theirs: Greeting, speakers: Speakers, *, opened_by_us: bool
    ) -> None:
        peer = stream.peer
        now_ms = self._clock.now_ms()
        apart_ms, steady_ms = theirs.clock_ms - now_ms, self._steady_ms()
        session = Session(peer, speakers, theirs, apart_ms, opened_by_us, now_ms, steady_ms)
        while (standing := self._open.get(peer)) is not None:  # another one may have begun while the last one ended
            if not self._newer_stays(standing.session, opened_by_us):
                if opened_by_us:
                    await standing.ended.wait()
                return
            self._note_again(standing.session, opened_by_us=opened_by_us)
            standing.scope.cancel()
            await standing.ended.wait()
        mine = self._open[peer] = _Open(session, trio.CancelScope(), trio.Event())
        member = self.member_of(session)
        if member is not None:
            self._known.note(peer, member)
        log.info("session.opened", extra={"peer": peer, "by_us": opened_by_us, "apart_ms": session.clock_apart_ms})
        try:
            with mine.scope:
                await self._serve(session, stream, reader)
        finally:
            if self._open.get(peer) is mine:
                del self._open[peer]
            self._note_seen(session)
            mine.ended.set()
            log.info("session.closed", extra={"peer": peer})

    def _newer_stays(self, standing: Session, opened_by_us: bool) -> bool:
        if opened_by_us == standing.opened_by_us:
            return True  # the peer opened again because it lost the older stream
        return opened_by_us == (self._network.peer_id < standing.peer)

    def _note_again(self, standing: Session, *, opened_by_us: bool) -> None:
        """Say it where a peer begins anew so soon that it may be two, which end each other's sessions for ever: once in
        a while, of whichever peer."""
        now_ms = self._clock.now_ms()
        is_soon = opened_by_us == standing.opened_by_us and now_ms - standing.opened_ms < SOON_MS
        if is_soon and now_ms >= self._said_again_ms + SOON_MS:
            self._said_again_ms = now_ms
            log.warning("session.opened_again", extra={"peer": standing.peer, "why": _TWICE})

    def begin_anew(self) -> None:
        """End all sessions, because there is more to show in hello; dialling brings them back at once."""
        for standing in list(self._open.values()):
            standing.scope.cancel()

    def close(self, peer: PeerId) -> None:
        """End the session with a peer, if there is one."""
        standing = self._open.get(peer)
        if standing is not None:
            standing.scope.cancel()

    def review(self) -> None:
        """End sessions that allow nothing any more: call after a head changed, a revocation came, or a day passed."""
        for standing in list(self._open.values()):
            if not self.graphs_of(standing.session):
                log.info("session.no_longer_shares", extra={"peer": standing.session.peer})
                standing.scope.cancel()
