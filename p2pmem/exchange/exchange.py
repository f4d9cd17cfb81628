"""The exchange: everything that moves envelopes between this node and its members.

    ledger --delta--> gossip machine --commands--> links (a stream a member) and comparisons
    links --envelopes--> admission --delta--> ...

Gossip is quick and may lose; comparisons lose nothing. One is made on connect, on a head change, when a peer's state
turns out to differ, and about ten seconds after something new with the next member around a ring of all: so each is
asked by one, and if all were equal, all are. Where not everybody is connected with everybody, and after the loss of a
connection, it is three drawn by lot instead. And every minute it is one with all, or of many with some (`pace`). It
counts for both, so who was asked asks so many less.

What is in an open graph goes by its topic instead of by member streams, to members and readers alike (`open_gossip`);
comparisons are the same for both.

That minute grows: after each comparison that found both equal, whoever made it, the next one with that member may wait
twice as long, up to a quarter of an hour, or four minutes where something is said. A difference that is found brings it
back for all.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from math import inf, isinf
from typing import Final

import trio
from p2pmem_jobs import Clock, Listener, Signal
from p2pmem_protocol.errors import OutsideError, RefusedError
from p2pmem_protocol.frames import GraphState
from p2pmem_protocol.gossip import Close, Command, Compare, Gossip, GossipStatistics, Reconcile, Wake
from p2pmem_protocol.hello import SYNC_PROTOCOL
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, GraphId

from p2pmem.exchange.comparisons import Comparisons, LastComparison
from p2pmem.exchange.crowd import is_small
from p2pmem.exchange.fetching import Fetching
from p2pmem.exchange.holdings import Holdings, How
from p2pmem.exchange.link import Link, Recent, ticks_ms
from p2pmem.exchange.meeting import Meeting
from p2pmem.exchange.open_gossip import OpenGossip
from p2pmem.exchange.open_reading import OpenReading
from p2pmem.exchange.pace import NEVER_S, SPREAD_MAX, Comparer, around, period_s
from p2pmem.exchange.parting import Parting
from p2pmem.exchange.sync_client import Comparison, SyncClient
from p2pmem.exchange.sync_server import SyncServer
from p2pmem.ledger.batch import Delta
from p2pmem.net.dialer import Dialer
from p2pmem.net.framing import FrameReader
from p2pmem.net.greet import NotWelcomeError
from p2pmem.net.limits import PeerLimits
from p2pmem.net.pace import Pace
from p2pmem.net.seam import Network, PeerId, Stream
from p2pmem.net.sessions import Session, Sessions
from p2pmem.net.topics import OpenTopics

log = logging.getLogger(__name__)

AFTER_NEWS_S: Final = 10.0
AFTER_NEWS_MEMBERS: Final = 3
CLOCK_LOOK_S: Final = 3600.0
FOLLOW_HEAD_S: Final = 2.0


class Exchange:
    """Moves envelopes. `run` it in the node's nursery once the network stands."""

    def __init__(
        self,
        *,
        network: Network,
        sessions: Sessions,
        holdings: Holdings,
        raw: Callable[[bytes], bytes | None],
        clock: Clock,
        chance: random.Random,
        announce: Callable[[], tuple[str, ...]],
        met: Callable[[GraphId, Address, PeerId, str], Awaitable[None]],
        penalise: Callable[[PeerId, RefusedError], None],
        part: Callable[[PeerId, float], Awaitable[None]],
        compared: Callable[[Collection[Address], Collection[Address], list[Comparison]], None],
        open_topics: OpenTopics,
        limits: PeerLimits,
    ) -> None:
        """`announce` gives the addresses that others may dial us at; `raw` the bytes of an item in the set; `met` is
        told where a peer of a member was met, to remember it beyond this run; `part` ends the connection to a peer,
        and keeps it ended for some seconds; `compared` is told of each comparison with a node: which agents speak
        through it, and which members it is."""
        self._network, self._sessions, self._holdings, self._raw = network, sessions, holdings, raw
        self._clock, self._chance, self._limits = clock, chance, limits
        self._penalise, self._told = penalise, compared
        self._gossip, self._recent = Gossip(network.peer_id), Recent()
        self._pace = self._pace_of_frames()
        self._links: dict[PeerId, Link] = {}
        self._comparers: dict[PeerId, Comparer] = {}
        self._compared = Comparisons()
        self._tick = trio.Event()
        self._tick_ms = inf
        """When the machine is called next."""
        self._news = trio.Event()
        self._news_s = NEVER_S
        self._news_of: set[GraphId | None] = set()
        """In which graphs there is news; None: a connection was lost."""
        self._acknowledged = Signal()
        self.client = SyncClient(network, holdings, clock)
        self._parting = Parting(
            network, sessions, holdings, self._gossip.list_length, announce, self._unhear, part, limits
        )
        self.dialer = Dialer(network, self._connected, chance, limits, own=announce, spare=self._parting.spare)
        self.meeting = Meeting(network, sessions, holdings, self.client, self.dialer, chance, announce, met, limits)
        self.server = SyncServer(
            holdings,
            clock,
            may_read=sessions.may_read,
            shared_with=sessions.shared_with,
            differs=self._differs,
            equal=self._found_equal,
            peers=self.meeting.peers_of,
            penalise=penalise,
            member_at=sessions.member_at,
            address_of=network.address_of,
            refuse=network.refuse,
            limits=limits,
        )
        self.fetching = Fetching(holdings, self.client, self._sources, penalise, chance)
        self.open_gossip = OpenGossip(
            network, open_topics, holdings, sessions.open_graphs, penalise, moved=self._acknowledged
        )
        self.open_reading = OpenReading(
            network, self.client, sessions.open_graphs, self._compared_with, penalise, chance
        )

    # Running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer, dial, gossip and compare until cancelled."""
        self._network.set_handler(SYNC_PROTOCOL, self.server.serve)
        self._sessions.start()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.dialer.run)
            nursery.start_soon(self._run_ticks)
            nursery.start_soon(self._run_news)
            nursery.start_soon(self._parting.run)
            nursery.start_soon(self.fetching.run)
            nursery.start_soon(self.open_gossip.run)
            task_status.started()

    def _pace_of_frames(self) -> Pace:
        return Pace(
            self._network.address_of,
            self._limits.member_frames_per_minute,
            self._limits.known_members_max,
            graphs_of=self._sessions.shared_with,
            graph_per_minute=self._limits.graph_frames_per_minute,
        )

    def _unhear(self, peer: PeerId) -> None:
        self.dialer.unhear(peer)

    async def _connected(self, peer: PeerId) -> None:
        """A peer that we want was dialled: be its member, or read the open graphs that it has."""
        try:
            await self._sessions.open(peer)
        except NotWelcomeError:
            if not any(self._sessions.open_graphs()):
                raise
            await self.open_reading.read(peer)

    async def serve(self, session: Session, stream: Stream, reader: FrameReader) -> None:
        """What `Sessions` runs as long as a session lasts."""
        peer = session.peer
        link = Link(
            session,
            stream,
            reader,
            gossip=self._gossip,
            holdings=self._holdings,
            recent=self._recent,
            raw=self._raw,
            do=self._do,
            follow_head=partial(self._follow_head, peer),
            turn=partial(self._pace.turn, self._sessions.member_at(peer) or peer, peer),
        )
        comparer = Comparer()
        self._links[peer], self._comparers[peer] = link, comparer
        self._parting.came(peer)
        self.dialer.came(peer)
        self._do(self._gossip.peer_joined(peer, self._streamed(session), ticks_ms()))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_quietly, link.write)
                nursery.start_soon(self._compare_with, session, comparer)
                nursery.start_soon(self._judge_in_time, session)
                await self._read(link)
                nursery.cancel_scope.cancel()
        finally:
            del self._links[peer], self._comparers[peer]
            self._parting.went(peer)
            self._do(self._gossip.peer_left(peer, ticks_ms()))
            self._look_soon(None)
            with trio.CancelScope(shield=True):
                await self.client.forget(peer)

    async def _follow_head(self, peer: PeerId, graph: GraphId) -> None:
        """Ask a member for its newest roster, for a moment; whatever fails is left to comparisons."""
        with trio.move_on_after(FOLLOW_HEAD_S):
            try:
                await self.client.follow_head(peer, graph)
            except RefusedError as error:
                self._penalise(peer, error)
            except OutsideError as error:
                log.info("head.not_followed", extra={"peer": peer, "why": type(error).__name__})

    async def _read(self, link: Link) -> None:
        try:
            await link.read()
        except RefusedError as error:
            self._penalise(link.peer, error)
        except OutsideError as error:
            log.info("link.broke", extra={"peer": link.peer, "why": type(error).__name__})

    # What the ledger tells

    def heard(self, delta: Delta) -> None:
        """A change is on disk: relay what is new, follow a head."""
        now_ms = ticks_ms()
        for item in delta.entered:
            self._recent.add(item.id, item.data)
        if self._sessions.is_open(delta.graph):
            self.open_gossip.heard(delta)
        elif delta.source.how is How.ROUND:
            sizes = [(item.id, len(item.data)) for item in delta.entered]
            self._do(self._gossip.reconciled(delta.graph, sizes, now_ms))
        elif delta.entered:
            commands: dict[Command, None] = {}
            for item in delta.entered:
                if delta.source.how is How.MEMBER:
                    giver = delta.source.peer
                    done = self._gossip.admitted(delta.graph, item.id, len(item.data), giver, now_ms)
                else:
                    done = self._gossip.published(delta.graph, item.id, len(item.data), now_ms)
                commands.update(dict.fromkeys(done))
            self._do(commands)
        if delta.head_changed:
            self._head_changed(delta.graph)
        if delta.entered:
            self._look_soon(delta.graph)
            if delta.source.how in (How.MEMBER, How.TOPIC):
                self.fetching.look(delta.graph, delta.source.peer)
            if any(item.kind is Kind.REVOKE for item in delta.entered):
                self._judge_anew()
            every_s = self._period_s
            for comparer in self._comparers.values():
                comparer.news(every_s, self._spread)

    def _head_changed(self, graph: GraphId) -> None:
        self._gossip.head_changed(graph)
        self.client.head_changed(graph)
        self._judge_anew()
        self.open_gossip.look()
        self.open_reading.begin_anew()
        for comparer in self._comparers.values():
            comparer.meets = True
            comparer.new_head()
        self._want_all(graph)
        self.dialer.dial_soon()

    def _streamed(self, session: Session) -> frozenset[GraphId]:
        """The graphs that go over this member's stream: gated ones. Open ones go by their topics."""
        return frozenset(it for it in self._sessions.graphs_of(session) if not self._sessions.is_open(it))

    def _judge_anew(self) -> None:
        """What sessions allow may have changed: by a head, a revocation, the end of a credential."""
        self._sessions.review()
        now_ms = ticks_ms()
        for session in self._sessions.all():
            streamed = self._streamed(session)
            for graph in self._sessions.graphs_with_head():
                change = self._gossip.graph_shared if graph in streamed else self._gossip.graph_unshared
                self._do(change(session.peer, graph, now_ms))

    async def _judge_in_time(self, session: Session) -> None:
        """Judge anew at the instant when a credential of this session ends."""
        while ends := [end for it in session.speakers.speakers if (end := it.until_ms) > self._clock.now_ms()]:
            # The wall clock may step, so it is looked at again now and then.
            await trio.sleep(min((min(ends) - self._clock.now_ms()) / 1000, CLOCK_LOOK_S))
            if min(ends) <= self._clock.now_ms():
                self._judge_anew()

    async def room(self, graph: GraphId) -> None:
        """Return once members take what is published: who publishes faster waits here. Cancel it with a scope."""
        if not self._is_pressed(graph):
            return
        with Listener((self._acknowledged,)) as listener:
            while self._is_pressed(graph):
                await listener.wait()

    def _is_pressed(self, graph: GraphId) -> bool:
        return self.open_gossip.is_pressed if self._sessions.is_open(graph) else self._gossip.is_pressed(graph)

    # Commands of the machine

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Wake(peer):
                    link = self._links.get(PeerId(peer))
                    if link is not None:
                        link.wake()
                case Reconcile(peer, graph):
                    self._want(PeerId(peer), GraphId(graph) if graph else None)
                case Compare(graph):
                    self._want_all(GraphId(graph))
                case Close(peer):
                    self._sessions.close(PeerId(peer))
        if self._gossip.next_ms() < self._tick_ms:
            self._tick.set()
        self._acknowledged.notify()

    async def _run_ticks(self) -> None:
        while True:
            self._tick_ms = self._gossip.next_ms()
            wait_ms = self._tick_ms - ticks_ms()
            self._tick = trio.Event()
            with trio.move_on_after(3600 if isinf(wait_ms) else max(wait_ms, 1) / 1000) as scope:
                await self._tick.wait()
            if scope.cancelled_caught:
                self._do(self._gossip.tick(ticks_ms()))

    # Comparisons

    def compare_now(self, graph: GraphId | None = None) -> None:
        """Compare with everybody soon."""
        self._want_all(graph)
        self.open_reading.want()

    def last_comparisons(self) -> dict[tuple[PeerId, GraphId], LastComparison]:
        return self._compared.last()

    @property
    def recent_bytes(self) -> int:
        """How much is kept in memory so that relaying does not read the disk."""
        return self._recent.size_bytes

    def gossip_statistics(self) -> GossipStatistics:
        return self._gossip.statistics()

    def _want(self, peer: PeerId, graph: GraphId | None) -> None:
        comparer = self._comparers.get(peer)
        if comparer is not None:
            comparer.want(graph)

    def _want_all(self, graph: GraphId | None) -> None:
        for comparer in self._comparers.values():
            comparer.want(graph)

    def _differs(self, peer: PeerId, theirs: GraphState, head: bytes) -> None:
        """A peer that asked for our state has another: what we lack, only a round of our own will bring. `head` is
        ours."""
        graph, comparer = GraphId(theirs.graph), self._comparers.get(peer)
        if comparer is not None and theirs.head != head:
            comparer.told_head(graph, theirs.head)
        self._want(peer, graph)

    def _look_soon(self, graph: GraphId | None) -> None:
        """Something is new in a graph, or what a peer had for us is lost with its connection (None): in a moment ask
        somebody."""
        self._news.set()
        self._news_s = trio.current_time()
        self._news_of.add(graph)

    async def _run_news(self) -> None:
        while True:
            await self._news.wait()
            # Not all members ask in the same instant, so that being asked can stand for asking.
            await trio.sleep(AFTER_NEWS_S * self._spread())
            self._news, graphs, self._news_of = trio.Event(), self._news_of, set()
            for peer in sorted(self._whom_to_ask(graphs)):
                self._want(peer, None)

    def _whom_to_ask(self, graphs: Collection[GraphId | None]) -> set[PeerId]:
        """Who is asked after news: in a small graph the next member around the ring of all; where not everybody is
        connected with everybody, and after a loss, some by lot. Not who was found equal since."""
        asked: set[PeerId] = set()
        for graph in graphs:
            if graph is None or not is_small(self._limits, self._holdings.member_count(graph)):
                peers = [peer for peer, comparer in self._comparers.items() if comparer.equal_s < self._news_s]
                done = len(self._comparers) - len(peers)
                asked.update(self._chance.sample(sorted(peers), min(max(AFTER_NEWS_MEMBERS - done, 0), len(peers))))
            else:
                ring = around(self._network.peer_id, self._comparers, self._clock.now_ms())
                asked.update(itertools.islice((it for it in ring if self._sessions.may_have(it, graph)), 1))
        return {peer for peer in asked if self._comparers[peer].equal_s < self._news_s}

    def _members(self, graph: GraphId) -> list[PeerId]:
        """Whom we are connected to in a graph."""
        return [session.peer for session in self._sessions.all() if self._sessions.may_have(session.peer, graph)]

    def _sources(self, graph: GraphId) -> list[PeerId]:
        """Whom to ask for content: members, and of an open graph whoever we read it from."""
        return [*self._members(graph), *(self.open_reading.peers() if self._sessions.is_open(graph) else ())]

    def _found_equal(self, peer: PeerId, states: Collection[GraphState]) -> None:
        """A member asked for our state of these graphs and has the same: as good as having asked it."""
        comparer, session = self._comparers.get(peer), self._sessions.get(peer)
        if comparer is None or session is None:
            return
        graphs = frozenset(GraphId(state.graph) for state in states)
        same = [Comparison(GraphId(state.graph), True, state.count, state.count, 0) for state in states]
        self._compared.note(peer, same, self._clock.now_ms())
        self._tell(session, same)
        if any(self._holdings.wanted_attachments(graph) for graph in graphs):
            return
        if self._sessions.graphs_of(session) <= graphs:
            comparer.rest(self._period_s, self._spread(), equal=True)

    async def _compare_with(self, session: Session, comparer: Comparer) -> None:
        """Compare on connect, when wanted, and every so often (`pace`)."""
        while True:
            graphs = comparer.take()
            shared = self._sessions.graphs_of(session)
            chosen = sorted(shared if graphs is None else shared & graphs)
            progress = True
            if chosen:
                results = await self._compare(session, chosen)
                progress = bool(results) and all(result.equal or result.fetched for result in results)
                same = all(result.equal and not result.fetched for result in results)
                comparer.rest(self._period_s, self._spread(), equal=same and len(results) == len(shared))
                if not same:
                    for other in self._comparers.values():
                        other.differed(self._period_s, self._spread)
            # A pause between rounds lets what is under way arrive.
            comparer.pause(self._spread, progress=progress)
            await self._until_due(comparer)

    async def _until_due(self, comparer: Comparer) -> None:
        """Return once a comparison is wanted, or due (then it is one of all graphs), and the pause is over."""
        while True:
            now_s = trio.current_time()
            if now_s >= comparer.due_s and not comparer.wanted.is_set():
                comparer.want(None)
            if comparer.wanted.is_set() and now_s >= comparer.rested_s:
                return
            comparer.sooner = trio.Event()
            with trio.move_on_at(comparer.rested_s if comparer.wanted.is_set() else comparer.due_s):
                await comparer.sooner.wait()

    @property
    def _period_s(self) -> float:
        return period_s(len(self._comparers))

    def _spread(self) -> float:
        """Periods have a jitter so that peers spread out."""
        return self._chance.uniform(2 - SPREAD_MAX, SPREAD_MAX)

    async def _compare(self, session: Session, graphs: list[GraphId]) -> list[Comparison]:
        """One comparison. Empty when it failed."""
        try:
            results = await self.client.compare(session.peer, graphs)
            comparer = self._comparers.get(session.peer)
            if comparer is not None:
                asks = [graph for graph in graphs if comparer.meets or self.meeting.wants_more(graph)]
                comparer.meets = False
                for graph in asks:
                    await self.meeting.meet(session, graph)
        except RefusedError as error:
            self._penalise(session.peer, error)
            return []
        except OutsideError as error:
            log.info("sync.failed", extra={"peer": session.peer, "why": str(error)})
            return []
        self._compared_with(session.peer, results)
        self._tell(session, results)
        return results

    def _tell(self, session: Session, results: list[Comparison]) -> None:
        agents = frozenset(it.agent for it in session.speakers.speakers)
        self._told(agents, self._sessions.names_of(session.speakers, session.peer), results)

    def _compared_with(self, peer: PeerId, results: list[Comparison]) -> None:
        self._compared.note(peer, results, self._clock.now_ms())


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    """A broken stream ends a writer; its reader says so."""
    try:
        await work()
    except OutsideError:
        await trio.sleep_forever()
