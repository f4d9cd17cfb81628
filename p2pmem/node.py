"""The composition root: a node from its parts. Reads like a table of contents.

`open_node` puts a node together from a network, places on disk and surroundings (blocking IO, clock, randomness); tests
give it a network in memory and a virtual clock. `home_node` opens one from a home directory, with libp2p.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_jobs import (
    Blocking,
    Clock,
    CrashPoint,
    Queue,
    QueueLimits,
    Retention,
    SystemClock,
    ThreadBlocking,
    open_database,
)
from p2pmem_jobs.database import no_crash
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address, network_id

from p2pmem.config import FREE_DISK_MIN_MB
from p2pmem.exchange.exchange import Exchange
from p2pmem.face import Face
from p2pmem.home import Home
from p2pmem.importing.importer import Importer, Imports, InlineImporter
from p2pmem.keyring import Keyring
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.bans import LedgerBans
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.ledger_holdings import LedgerHoldings
from p2pmem.ledger.rosters import Rosters
from p2pmem.net.flood import open_flood
from p2pmem.net.limits import PeerLimits
from p2pmem.net.penalties import Penalties
from p2pmem.net.reach import worth_telling
from p2pmem.net.seam import Network, OpenNetwork
from p2pmem.net.sessions import Sessions
from p2pmem.net.topics import OpenTopics
from p2pmem.recall.recalling import Recalling
from p2pmem.recall.text_index import open_text_index
from p2pmem.review.judging import Judge, ReviewSettings, open_judge
from p2pmem.services.auditing import Auditing
from p2pmem.services.backing_up import BackingUp
from p2pmem.services.certifying import Certifying
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.chain_health import ChainHealth
from p2pmem.services.chain_watch import ChainWatch
from p2pmem.services.clock_watch import ClockWatch, SteadyClock, since_boot_ms, virtual_ms
from p2pmem.services.compacting import Compacting
from p2pmem.services.delegating import Delegating
from p2pmem.services.disk_watch import DiskWatch
from p2pmem.services.drafting import Drafting
from p2pmem.services.duties import PROMISES_EVERY_S, Duties
from p2pmem.services.joining import Joining
from p2pmem.services.keeper import Keeper
from p2pmem.services.lifetimes import Lifetimes
from p2pmem.services.may_sign import MaySign
from p2pmem.services.member_desk import MemberDesk
from p2pmem.services.membership import Membership
from p2pmem.services.met import MetMembers
from p2pmem.services.node_face import NodeFace
from p2pmem.services.papers import OwnPapers
from p2pmem.services.parts import Services
from p2pmem.services.peering import Peering
from p2pmem.services.preparing import Preparing
from p2pmem.services.projector import Projector
from p2pmem.services.restored import Restored
from p2pmem.services.showing import Showing
from p2pmem.services.signing import Signing
from p2pmem.services.signing_desk import SigningDesk
from p2pmem.services.timetable import Chore, run_timetable
from p2pmem.services.troubles import Troubles
from p2pmem.services.wallets import Wallets
from p2pmem.store.projection import OxigraphProjection, open_projection
from p2pmem.store.query_worker import InlineQueries, Queries, open_query_workers
from p2pmem.work.anchoring import AnchoringJobs
from p2pmem.work.outgoing import Outgoing
from p2pmem.work.registering import RegisteringJobs
from p2pmem.work.reviewing import ReviewingJobs
from p2pmem.work.sharing import SharingJobs
from p2pmem.work.verifying import VerifyingJobs

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain, ChainSettings

log = logging.getLogger(__name__)

FREE_DISK_MIN_BYTES: Final = FREE_DISK_MIN_MB * 1_000_000
DRAIN_S: Final = 5.0
PURGE_EVERY_S: Final = 300
JOBS_SWEPT_EVERY_S: Final = 600.0
WAITS_LOOK_EVERY_S: Final = 600.0
"""What our jobs wait for wakes them; a look is for a wall clock that was set."""
REVIEW_EVERY_S: Final = 600
RECHECK_EVERY_S: Final = 60


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is, wherever it runs."""

    network: str
    label: str = ""
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    """Where members are dialled from the start, besides those met before."""
    review: ReviewSettings = field(default_factory=ReviewSettings)
    renews_own_shares: bool = False
    free_disk_min_bytes: int = FREE_DISK_MIN_BYTES
    """With less than that free, nothing of others is taken in."""
    limits: PeerLimits = field(default_factory=PeerLimits)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a node keeps its things; None is memory."""

    ledger: Path | None = None
    store: Path | None = None
    text: Path | None = None
    snapshots: Path | None = None

    @property
    def measured(self) -> tuple[Path, ...]:
        """What takes room for good."""
        return tuple(place for place in (self.ledger, self.store, self.text) if place is not None)

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.measured, *([self.snapshots] if self.snapshots is not None else []))

    @classmethod
    def of(cls, home: Home) -> Places:
        return cls(home.ledger_file, home.store_dir, home.text_file, home.snapshots_dir)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node takes from outside: where blocking calls run, what time it is, and chance.

    `inline` says that nothing may run in a worker process either, as virtual time demands.
    """

    blocking: Blocking = field(default_factory=ThreadBlocking)
    clock: Clock = field(default_factory=SystemClock)
    random_bytes: Callable[[int], bytes] = os.urandom
    inline: bool = False
    crash_point: CrashPoint = no_crash
    free_bytes: Callable[[], int] | None = None
    """How much the disk still takes; None where there is no disk to fill, and none is watched."""
    projection_gathers_s: float = 0.0
    """So long what is new may wait for more before the triple store and the text index take it in, unless somebody
    waits for it. For simulations in which hardly anybody asks them."""


@dataclass(frozen=True, slots=True)
class OpenChain:
    """A chain that is open, and the settings it was opened with."""

    chain: Chain
    settings: ChainSettings


@dataclass(frozen=True, slots=True)
class Node:
    """A running node. `face` is what its users call; the rest is for who looks inside, such as tests and metrics."""

    face: Face
    services: Services
    ledger: Ledger
    network: Network
    exchange: Exchange
    queue: Queue
    store: OxigraphProjection
    penalties: Penalties


@asynccontextmanager
async def open_node(
    settings: NodeSettings,
    keyring: Keyring,
    network: OpenNetwork,
    places: Places,
    surroundings: Surroundings,
    chain: OpenChain | None = None,
    topics: OpenTopics = open_flood,
) -> AsyncIterator[Node]:
    """Run a node until the block ends. On leaving it is drained; cancelled, it stops at once. Either way nothing that
    was acknowledged is lost. `topics` is how it gossips about open graphs.

    Raises `MisuseError` for what is set wrong, and the errors of the parts (`OwnedError` when another process has the
    directory, `OutsideError` when a port is in use).
    """
    at = surroundings
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(places.ledger or ":memory:", blocking=at.blocking, crash_point=at.crash_point)
        )
        ledger = await Ledger.open(database, at.clock, network_id(settings.network), at.random_bytes)
        store = await stack.enter_async_context(open_projection(places.store, at.blocking))
        text = await stack.enter_async_context(open_text_index(places.text, at.blocking))
        queries = await stack.enter_async_context(_open_queries(store, places, at))
        imports = await stack.enter_async_context(_open_imports(at))
        net = await stack.enter_async_context(network)
        papers = await OwnPapers.open(keyring, ledger, net.peer_id)
        restored = await Restored.open(ledger, papers.agents, settings.limits)
        limits = QueueLimits(look_every_s=WAITS_LOOK_EVERY_S)
        queue = Queue(
            database,
            clock=at.clock,
            random_bytes=at.random_bytes,
            limits=limits,
            retention=Retention(sweep_every_s=JOBS_SWEPT_EVERY_S),
            clock_is_right=lambda: not built.clock_watch.look(),
            crash_point=at.crash_point,
        )
        judge = await stack.enter_async_context(open_judge(settings.review, ledger))
        built = _Built(settings, keyring, ledger, restored, net, papers, queue, imports, judge, at, chain, topics)
        now_ms = built.clock_watch.certain_ms
        projector = Projector(ledger, store, text, keyring, now_ms=now_ms, gathers_s=at.projection_gathers_s)
        compacting = Compacting(ledger, built.keeper, projector, queries, at.blocking, places.measured)
        recalling, backups = Recalling(ledger, text, built.showing), BackingUp(ledger, places.all)
        built.build(store, queries, projector, recalling, compacting, backups)
        nursery = await stack.enter_async_context(_nursery())
        stack.callback(database.let_go)  # what the nursery runs may wait for a disk that has no room
        await built.start(nursery)
        await stack.enter_async_context(queue.run(drain_s=DRAIN_S))
        stack.callback(database.let_go)  # and so may jobs
        await built.start_after_queue(nursery)
        log.info("node.ready", extra={"peer": net.peer_id, "graphs": len(ledger.graphs)})
        yield built.node


class _Built:
    """The services of a node, made in the order in which they need each other."""

    def __init__(
        self,
        settings: NodeSettings,
        keyring: Keyring,
        ledger: Ledger,
        restored: Restored,
        net: Network,
        papers: OwnPapers,
        queue: Queue,
        imports: Imports,
        judge: Judge | None,
        at: Surroundings,
        chain: OpenChain | None,
        topics: OpenTopics,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._papers = papers
        self._ledger = ledger
        self._restored = restored
        self._net = net
        self._queue = queue
        self._judge = judge
        self._at = at
        self._steady_ms = virtual_ms if at.inline else since_boot_ms
        self._chain = chain
        contract = Address(chain.settings.contract) if chain else None
        self._facts = ChainFacts(ledger, chain.settings.chain_id if chain else 0, contract)
        self.showing = Showing(ledger, self._facts)
        self._penalties = Penalties(
            net, LedgerBans(ledger.database), at.clock, settings.limits, lambda peer: self._sessions.is_known(peer)
        )
        self.admission = Admission(ledger, at.blocking)
        self._rosters = Rosters(ledger, self.admission, lambda: not self.clock_watch.look())
        self._make_exchange(papers)
        self._met = MetMembers(ledger, self._exchange.dialer, self._chance(), settings.limits)
        self._make_signing(keyring)
        self._drafting = Drafting(ledger, self._signing, imports, at.blocking)
        self._make_membership(keyring, papers)
        self._make_jobs()
        self._delegating = Delegating(
            ledger, keyring, papers, self._signing, self._membership, self._outgoing, self._greet_anew
        )
        self._peering = Peering(ledger, net, self._sessions, self._exchange, self._penalties, self.admission)
        self.keeper = Keeper(ledger, self.admission, self.clock_watch)
        self._lifetimes = Lifetimes(
            ledger,
            self._signing,
            self._sharing,
            renews=settings.renews_own_shares,
        )
        self._disk = DiskWatch(
            ledger, self.admission, at.free_bytes or _no_end, settings.free_disk_min_bytes, self._exchange.compare_now
        )
        self._certifying = Certifying(ledger)
        self._auditing = Auditing(ledger)
        self._watch = self._make_watch(chain) if chain else None
        self._registering = (
            RegisteringJobs(ledger, keyring, self._facts, self._certifying, queue, chain.chain) if chain else None
        )

    def _make_exchange(self, papers: OwnPapers) -> None:
        """The two know each other: the exchange serves sessions, and asks them who may have what."""
        holdings = LedgerHoldings(self._ledger, self.admission, self._rosters, self._penalties.punish)
        self._sessions = Sessions(
            network=self._net,
            network_id=self._ledger.network,
            membership=self._ledger,
            papers=papers,
            clock=self._at.clock,
            steady_ms=self._steady_ms,
            serve=lambda session, stream, reader: self._exchange.serve(session, stream, reader),
            penalise=self._penalties.punish,
            limits=self._settings.limits,
        )
        self._exchange = Exchange(
            network=self._net,
            sessions=self._sessions,
            holdings=holdings,
            raw=self._ledger.raw,
            clock=self._at.clock,
            chance=self._chance(),
            announce=self._announce,
            met=lambda graph, member, peer, address: self._met.remember(graph, member, peer, address),
            penalise=self._penalties.punish,
            part=self._penalties.hold_off,
            compared=self._restored.compared,
            open_topics=self._topics,
            limits=self._settings.limits,
        )

    def _make_signing(self, keyring: Keyring) -> None:
        self.clock_watch = ClockWatch(self._ledger, self._sessions, self._steady_ms)
        self._may_sign = MaySign(self._restored, self.clock_watch)
        self._signing = Signing(self._ledger, keyring, self._may_sign)

    def _chance(self) -> random.Random:
        return random.Random(self._at.random_bytes(16))  # noqa: S311 - spreads load, keeps no secret

    def _make_membership(self, keyring: Keyring, papers: OwnPapers) -> None:
        self._membership = Membership(self._ledger, self.admission, self._rosters, keyring, self._may_sign)
        self._members = MemberDesk(self._membership, self._facts, keyring, self._ledger.clock)
        self._preparing = Preparing(self._ledger, self._members, keyring)
        self._joining = Joining(
            network=self._net,
            ledger=self._ledger,
            rosters=self._rosters,
            membership=self._membership,
            papers=papers,
            dialer=self._exchange.dialer,
            met=self._met,
            announce=self._announce,
            sessions=self._sessions,
            penalise=self._penalties.punish,
            limits=self._settings.limits,
        )

    def _make_jobs(self) -> None:
        ledger, queue = self._ledger, self._queue
        outgoing = self._outgoing = Outgoing(ledger, self.admission, self._may_sign)
        self._sharing = SharingJobs(ledger, self._signing, self._drafting, outgoing, self._facts, queue)
        self._verifying = VerifyingJobs(ledger, self._signing, outgoing, queue)
        reviewing = ReviewingJobs(ledger, self._signing, outgoing, self._judge, queue)
        self._duties = Duties(
            ledger,
            outgoing,
            self._signing,
            reviewing,
            queue,
            policy=self._settings.review.policy,
        )

    def _make_wallets(self) -> SigningDesk:
        return SigningDesk(
            ledger=self._ledger,
            signing=self._signing,
            wallets=Wallets(self._ledger, self._signing),
            drafting=self._drafting,
            sharing=self._sharing,
            outgoing=self._outgoing,
            membership=self._membership,
            members=self._members,
            preparing=self._preparing,
            papers=self._papers,
            delegating=self._delegating,
            registering=self._registering,
        )

    def _make_watch(self, chain: OpenChain) -> ChainWatch:
        set_ = chain.settings
        jobs = AnchoringJobs(
            self._ledger,
            self._signing,
            self._outgoing,
            self._facts,
            self._queue,
            chain=chain.chain,
            chain_id=set_.chain_id,
            contract=Address(set_.contract),
        )
        return ChainWatch(
            self._ledger,
            self._facts,
            self._signing,
            jobs,
            self._queue,
            chain.chain,
            set_.chain_id,
            ChainHealth(self._ledger, self._facts, chain.chain, set_.url),
            poll_s=set_.poll_seconds,
            confirmations=set_.confirmations,
        )

    def _make_troubles(self, projector: Projector) -> Troubles:
        return Troubles(
            self._ledger,
            self._sessions,
            self._exchange.dialer,
            self.clock_watch,
            self._restored,
            self._disk,
            self._lifetimes,
            self._facts,
            self._signing,
            projector,
            self._auditing,
        )

    def build(
        self,
        store: OxigraphProjection,
        queries: Queries,
        projector: Projector,
        recalling: Recalling,
        compacting: Compacting,
        backups: BackingUp,
    ) -> None:
        """Put together what users call."""
        services = Services(
            ledger=self._ledger,
            admission=self.admission,
            network=self._net,
            sessions=self._sessions,
            exchange=self._exchange,
            signing=self._signing,
            facts=self._facts,
            drafting=self._drafting,
            membership=self._membership,
            members=self._members,
            preparing=self._preparing,
            wallets=self._make_wallets(),
            joining=self._joining,
            duties=self._duties,
            keeper=self.keeper,
            clock_watch=self.clock_watch,
            restored=self._restored,
            backups=backups,
            disk=self._disk,
            lifetimes=self._lifetimes,
            compacting=compacting,
            troubles=self._make_troubles(projector),
            delegating=self._delegating,
            peering=self._peering,
            projector=projector,
            recalling=recalling,
            queries=queries,
            showing=self.showing,
            certifying=self._certifying,
            registering=self._registering,
            auditing=self._auditing,
            outgoing=self._outgoing,
            sharing=self._sharing,
            verifying=self._verifying,
            queue=self._queue,
            clock=self._at.clock,
            chain=self._chain.settings.url if self._chain else "",
            started_ms=self._at.clock.now_ms(),
            label=self._settings.label,
            network_name=self._settings.network,
        )
        self.node = Node(
            NodeFace(services), services, self._ledger, self._net, self._exchange, self._queue, store, self._penalties
        )

    async def start(self, nursery: trio.Nursery) -> None:
        """Start what listens to the ledger, then what talks to others."""
        self._ledger.listen(self.keeper.heard)
        self._ledger.listen(self._exchange.heard)
        self._ledger.listen(self._duties.heard)
        self._ledger.listen(self._sharing.heard)
        self._ledger.listen(self._verifying.heard)
        if self._watch is not None:
            self._ledger.listen(self._watch.heard)
        if self._registering is not None:
            self._ledger.listen(self._registering.heard)
        await nursery.start(self.node.services.projector.run)
        nursery.start_soon(self.node.services.projector.describer.run)
        nursery.start_soon(self.keeper.run)
        nursery.start_soon(self._restored.run)
        nursery.start_soon(self._auditing.run)
        if self._at.free_bytes is not None:
            nursery.start_soon(self._disk.run)
        self._penalties.start()
        nursery.start_soon(self._penalties.run)
        await nursery.start(self._exchange.run)
        self._joining.start()
        for address in self._settings.bootstrap:
            try:
                self._exchange.dialer.want(address)
            except MisuseError as error:  # one list for all members names each of them too
                log.warning("peer.bootstrap_passed_over", extra={"why": str(error)})
        self._met.dial()

    def _chores(self) -> tuple[Chore, ...]:
        async def review_sessions() -> None:
            self._sessions.review()

        chores = [Chore("purge", PURGE_EVERY_S, self.keeper.purge_now_and_then)]
        chores.append(Chore("credentials", REVIEW_EVERY_S, review_sessions))
        chores.append(Chore("promises", PROMISES_EVERY_S, self._duties.renew_promises))
        if self._watch is not None:
            chores.append(Chore("anchors", RECHECK_EVERY_S, self._watch.recheck))
        return tuple(chores)

    async def start_after_queue(self, nursery: trio.Nursery) -> None:
        """Start what submits jobs by itself, and what the clock drives."""
        await nursery.start(run_timetable, self._chores(), SteadyClock(self._steady_ms), self._at.blocking)
        nursery.start_soon(self._duties.run)
        nursery.start_soon(self._lifetimes.run)
        if self._watch is not None:
            nursery.start_soon(self._watch.run)
        if self._registering is not None:
            nursery.start_soon(self._registering.run)

    def _greet_anew(self) -> None:
        """There is more to show in hello."""
        self._sessions.begin_anew()
        self._exchange.open_reading.begin_anew()
        self._exchange.dialer.dial_soon()

    def _announce(self) -> tuple[str, ...]:
        """Where others can dial us: what was set, when something was; a router's inside is of no use to them."""
        named = tuple(f"{address}/p2p/{self._net.peer_id}" for address in self._settings.announce)
        return worth_telling(named or self._net.addresses())


def _no_end() -> int:
    return sys.maxsize


@asynccontextmanager
async def _nursery() -> AsyncIterator[trio.Nursery]:
    """Background tasks that end with the block."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _open_queries(store: OxigraphProjection, places: Places, at: Surroundings) -> AsyncIterator[Queries]:
    if at.inline or places.snapshots is None or not store.is_on_disk:
        yield InlineQueries(store)
        return
    async with open_query_workers(store, places.snapshots, at.blocking) as workers, _nursery() as nursery:
        nursery.start_soon(workers.retire_idle)
        yield workers


@asynccontextmanager
async def _open_imports(at: Surroundings) -> AsyncIterator[Imports]:
    if at.inline:
        yield InlineImporter()
        return
    async with Importer() as importer:
        yield importer
