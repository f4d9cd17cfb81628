"""A cluster: whole nodes in one process, with real ledgers, stores, jobs and admission, on a network in memory.

    async with Cluster(3, seed=7) as cluster:                # under trio.testing.MockClock(autojump_threshold=0)
        ada, bo, cy = cluster.nodes
        asset = await ada.share("ex:trial ex:lowers ex:ldl .", ttl=days(2))
        await cluster.settled()
        with cluster.partition([ada, bo], [cy]):
            await bo.endorse(asset)
        await cluster.settled()
        assert cy.trust(asset) is Trust.ENDORSED
        cluster.audit()

The first node founds `cluster.graph` and owns it; the others are listed as writers, endorsers and verifiers. Time is
virtual, so days take no longer than the work in them, and everything is drawn from the seed: the same seed gives the
same trace, in any process.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import trio
from p2pmem_jobs import InlineBlocking
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address, GraphId, network_id
from trio.testing import MockClock

from p2pmem.exchange.holdings import How
from p2pmem.face import MemberChange, NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.ledger.batch import Delta
from p2pmem.net.limits import PeerLimits
from p2pmem.net.memory import MemoryFabric, MemoryNetwork
from p2pmem.net.seam import Network
from p2pmem.node import NodeSettings, OpenChain, Surroundings, open_node
from p2pmem.review.judging import ReviewSettings
from p2pmem_devnet.auditor import AuditError, Auditor
from p2pmem_devnet.cluster_chain import ClusterChain, open_cluster_chain
from p2pmem_devnet.cluster_disk import Disk, private_directory
from p2pmem_devnet.cluster_links import Links
from p2pmem_devnet.cluster_node import Asset, ClusterClock, ClusterNode
from p2pmem_devnet.cluster_settings import ClusterSettings
from p2pmem_devnet.cluster_settled import NotSettledError, find_gaps
from p2pmem_devnet.cluster_trace import Trace, deterministic_scheduling
from p2pmem_devnet.stranger import Stranger

if TYPE_CHECKING:
    from p2pmem_devnet.anvil import Anvil
    from p2pmem_devnet.cluster_blocking import BlockingCluster

log = logging.getLogger(__name__)

NAMES: Final = ("ada", "bo", "cy", "dan", "eve", "fay", "gus", "hal", "ida", "jon")
NETWORK: Final = "cluster"
STARTS_MS: Final = 1_800_000_000_000
"""What time it is when a cluster begins: a round number in January 2027."""
SETTLES_WITHIN: Final = timedelta(minutes=10)
_FIRST_LOOK_S: Final = 0.005
_LONGEST_LOOK_S: Final = 1.0


def days(n: float) -> timedelta:
    return timedelta(days=n)


def hours(n: float) -> timedelta:
    return timedelta(hours=n)


def minutes(n: float) -> timedelta:
    return timedelta(minutes=n)


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


class Cluster(Links):
    """N whole nodes. An async context manager, entered once, under a trio clock that jumps ahead."""

    def __init__(self, n: int = 5, seed: int = 0, **settings: Any) -> None:
        """`settings` are those of `ClusterSettings`."""
        self.settings = ClusterSettings(n, seed, **settings)
        self.seed = seed
        self._is_real = self.settings.net == "libp2p"
        self.nodes: list[ClusterNode] = []
        self.graph = ""
        self.trace = Trace()
        self.fabric: MemoryFabric
        self.strangers: list[Stranger] = []
        self.removed: dict[ClusterNode, int] = {}
        """Members that were taken out, and when."""
        self.ever_listed: set[Address] = set()
        self._changed_ms: dict[GraphId, int] = {}
        self._auditor = Auditor(self)
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}
        self._partitions = []
        self._chain: ClusterChain | None = None

    @staticmethod
    def blocking(n: int = 5, seed: int = 0, **settings: Any) -> BlockingCluster:
        """The same for programs without trio: `with Cluster.blocking(3) as cluster:`, and every call blocks."""
        from p2pmem_devnet.cluster_blocking import BlockingCluster

        return BlockingCluster(n, seed, **settings)

    # Beginning and end

    async def __aenter__(self) -> Cluster:
        is_virtual = isinstance(trio.lowlevel.current_clock(), MockClock)
        if is_virtual and self._is_real:
            raise MisuseError("a cluster over libp2p lives in real time: run it under trio.run() as it is")
        if not is_virtual and not self._is_real:
            raise MisuseError(
                "a cluster lives in virtual time: run it under trio.testing.MockClock(autojump_threshold=0), "
                "with the pytest fixture `cluster`, or as `Cluster.blocking(...)`"
            )
        async with AsyncExitStack() as stack:
            self.directory = stack.enter_context(private_directory())
            if not self._is_real:
                stack.enter_context(deterministic_scheduling(self.seed))
            self.fabric = MemoryFabric(seed=self.seed, link=self.settings.link)
            if self.settings.chain is not None:
                place = self.directory / ".chain"
                self._chain = await stack.enter_async_context(open_cluster_chain(place, network_id(NETWORK)))
            self._nursery = await stack.enter_async_context(_nursery())
            for number in range(self.settings.nodes):
                await self._start(self._add(_name(number)))
            if self.settings.found:
                await self._found()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    def _add(self, name: str) -> ClusterNode:
        secret = hashlib.sha256(f"p2pmem cluster {self.seed} {name}".encode()).digest()
        disk = Disk(self.directory / name, keeps_projections=self.settings.keep_projections)
        base_ms = STARTS_MS - round(trio.current_time() * 1000) if not self.nodes else self.nodes[0].clock.base_ms
        node = ClusterNode(self, name, Key(secret), ClusterClock(base_ms), disk)
        self.nodes.append(node)
        return node

    async def _found(self) -> None:
        """The first node founds the graph with everybody listed, and the others come in by an invite without rights."""
        owner, *others = self.nodes
        settings = self.settings
        members = tuple(
            NewMember(str(node.address), settings.roles_of(number), node.name) for number, node in enumerate(others)
        )
        view = await owner.face.found(
            NewGraph(
                "shared",
                members=members,
                m=settings.quorum,
                access=settings.access,
                ttl_default_ms=_ms(settings.ttl),
                ttl_max_ms=_ms(settings.ttl_max),
                acks_min=settings.acks,
                chain=settings.chain is not None,
            )
        )
        self.graph = view.graph
        invite = await owner.face.invite(self.graph, roles=(), uses=1, life_ms=1)
        # No more at once than the owner answers: who is told to come again does so seconds later.
        turns = trio.CapacityLimiter(PeerLimits().join_streams_max)

        async def join_in_turn(node: ClusterNode) -> None:
            async with turns:
                await _join(node, invite)

        async with trio.open_nursery() as nursery:
            for node in others:
                nursery.start_soon(join_in_turn, node)
        await self._until_everybody_knows_everybody()

    async def _until_everybody_knows_everybody(self) -> None:
        """A test may part members at once, and each part is to go on: members learn of each other from the owner."""
        wanted = len(self.nodes) - 1
        for node in self.nodes if wanted < self.settings.limits.members_all_max else ():
            while len(node.inside.services.sessions.all()) < wanted:
                await trio.sleep(_FIRST_LOOK_S)

    # Nodes that come and go

    async def _start(self, node: ClusterNode) -> None:
        node.incarnation += 1
        self._ended[node.name] = trio.Event()
        await self._nursery.start(self._run, node)

    async def _run(self, node: ClusterNode, *, task_status: trio.TaskStatus[None]) -> None:
        chance = Random(f"{self.seed}/{node.name}/{node.incarnation}")  # noqa: S311 - a test draws its chance from a seed
        node.points.clear()

        def crash_point(name: str) -> None:
            node.points[name] = node.points.get(name, 0) + 1
            if node.crash_at is not None and node.crash_at[0] == name:
                left = node.crash_at[1] - 1
                node.crash_at = (name, left) if left else None
                if not left:
                    self._kill(node)

        surroundings = Surroundings(
            blocking=InlineBlocking(),
            clock=node.clock,
            random_bytes=chance.randbytes,
            inline=True,
            crash_point=crash_point,
            projection_gathers_s=self.settings.projection_gathers.total_seconds(),
        )
        review = ReviewSettings(self.settings.policy)
        settings = NodeSettings(NETWORK, node.name, review=review, limits=self.settings.limits)
        try:
            with trio.CancelScope() as scope:
                self._scopes[node.name] = scope
                network = self._network_of(node)
                async with (
                    self._chain_of(node) as chain,
                    open_node(
                        settings, Keyring.of(node.key), network, node.disk.places(), surroundings, chain
                    ) as inside,
                ):
                    inside.ledger.listen(lambda delta: self._heard(node, delta))
                    node.went_up(inside)
                    task_status.started()
                    await trio.sleep_forever()
        except BaseException as error:
            if not node.is_crashed:
                raise
            # A node that was killed may fall over its own ruins; nobody hears of it.
            log.debug("cluster.node.fell", extra={"node": node.name, "error": repr(error)})
        finally:
            node.went_down()
            self._ended[node.name].set()

    @property
    def anvil(self) -> Anvil:
        """The chain's process: blocks are made, and taken back, by it."""
        if self._chain is None:
            raise MisuseError("this cluster has no chain; Cluster(net='libp2p', chain='anvil') has one")
        return self._chain.anvil

    def _chain_of(self, node: ClusterNode) -> AbstractAsyncContextManager[OpenChain | None]:
        return nullcontext() if self._chain is None else self._chain.for_node(node.key)

    def _network_of(self, node: ClusterNode) -> AbstractAsyncContextManager[Network]:
        if not self._is_real:
            return self.fabric.network(node.name, limits=self.settings.limits.network, listen=node.listens)
        from p2pmem.net.libp2p_host import Libp2pNetwork  # heavy

        seed = hashlib.sha256(f"p2pmem cluster {self.seed} peer {node.name}".encode()).digest()
        return Libp2pNetwork(
            identity_seed=seed,
            listen=("/ip4/127.0.0.1/tcp/0",) if node.listens else (),
            limits=self.settings.limits.network,
            usual_port=node.port,
        )

    def _heard(self, node: ClusterNode, delta: Delta) -> None:
        """A node committed a change. What a dying one still does nobody hears of."""
        if node.is_crashed:
            return
        self.trace.delta(node.name, delta)
        self._changed_ms[delta.graph] = self.nodes[0].clock.now_ms() - self.nodes[0].clock.skew_ms
        if delta.source.how is How.OWN:
            node.said += [(item.kind, node.clock.now_ms()) for item in delta.entered]
        graph = node.inside.ledger.graphs.get(delta.graph) if delta.head_changed and node.is_up else None
        if graph is not None and graph.head is not None:
            self.ever_listed |= {member.address for member in graph.head.body.members}

    def _kill(self, node: ClusterNode, *, silent: bool = False) -> None:
        """What a kill does, at this very instant: the disk stays as it is, the network goes, no task goes on."""
        if node.is_crashed:
            return
        node.is_crashed = True
        node.disk.cut()
        self.trace.note(node.name, "crashed")
        if not self._is_real:
            self.fabric.crash(node.name, silent=silent)
        node.went_down()
        self._scopes[node.name].cancel()

    async def crash(self, *nodes: ClusterNode, silent: bool = False) -> None:
        """Kill nodes now: what was not committed is gone. `silent` as by a power cut, so that others do not notice for
        half a minute."""
        for node in nodes:
            node.inside  # noqa: B018 - raises for a node that is down
            self._kill(node, silent=silent)
        for node in nodes:
            await self._ended[node.name].wait()

    async def crashed(self, node: ClusterNode) -> None:
        """Return once a node that was told to crash (`crash_at`) has done so."""
        await self._ended[node.name].wait()

    async def stop(self, *nodes: ClusterNode) -> None:
        """Stop nodes in order, as an operator does."""
        for node in nodes:
            node.inside  # noqa: B018
            self.trace.note(node.name, "stopped")
            self._scopes[node.name].cancel()
            await self._ended[node.name].wait()

    async def restart(self, *nodes: ClusterNode) -> None:
        """Start nodes again with what is on their disks; one that runs is stopped before."""
        for node in nodes:
            if node.is_up:
                await self.stop(node)
            await self._ended[node.name].wait()
            self.trace.note(node.name, "restarted")
            await self._start(node)

    async def wipe_projection(self, *nodes: ClusterNode) -> None:
        """Restart nodes without their triple store and text index: both are made anew from the ledger."""
        for node in nodes:
            await self.stop(node)
            node.disk.wipe_projections()
            await self.restart(node)

    async def join(self, name: str | None = None, *, roles: tuple[str, ...] = ("writer", "endorser")) -> ClusterNode:
        """A new node that the owner lets in by an invite."""
        node = self._add(name or _name(len(self.nodes)))
        await self._start(node)
        owner = self.nodes[0]
        invite = await owner.face.invite(self.graph, roles=roles, uses=1, life_ms=60_000)
        await _join(node, invite)
        return node

    async def add(self, name: str | None = None, *, listens: bool = True) -> ClusterNode:
        """A new node that is no member of anything. One that does not listen can only dial others, as behind NAT."""
        node = self._add(name or _name(len(self.nodes)))
        node.listens = listens
        await self._start(node)
        return node

    async def twin(self, of: ClusterNode, name: str) -> ClusterNode:
        """A second node of the same agent, a member as it is one. The running members that can reach it have met it."""
        node = self._add(name)
        node.key = of.key
        await self._start(node)
        owner = next(it for it in self.nodes if it.is_up)
        await _join(node, await owner.face.invite(self.graph, roles=(), uses=1, life_ms=1))
        others = [it for it in self.nodes if it.is_up and it not in (node, *self.removed) and self.can_reach(node, it)]
        while len(self.nodes) <= self.settings.limits.members_all_max and len(
            node.inside.services.sessions.all()
        ) < len(others):
            await trio.sleep(_FIRST_LOOK_S)
        return node

    async def remove(self, *nodes: ClusterNode) -> None:
        """The owner takes members out; their nodes run on."""
        await self.nodes[0].change_members(MemberChange(remove=tuple(str(node.address) for node in nodes)))
        self.removed.update({node: self.nodes[0].clock.now_ms() for node in nodes})

    async def stranger(self) -> Stranger:
        """A hostile client that knows where everybody is; what he hears is kept for the auditor."""
        self._must_be_in_memory()
        name = f"stranger-{len(self.strangers)}"
        network = await self._nursery.start(self._keep_network, name)
        secret = hashlib.sha256(f"p2pmem cluster {self.seed} {name}".encode()).digest()
        chance = Random(f"{self.seed}/{name}")  # noqa: S311
        now_ms = self.nodes[0].clock.now_ms()
        stranger = Stranger(network, network_id(NETWORK), Key(secret), now_ms, chance)
        self.strangers.append(stranger)
        return stranger

    async def _keep_network(self, name: str, *, task_status: trio.TaskStatus[MemoryNetwork]) -> None:
        async with self.fabric.network(name) as network:
            task_status.started(network)
            await trio.sleep_forever()

    # Time

    def skew(self, node: ClusterNode, by: timedelta) -> None:
        """From now on the node's wall clock is wrong by so much."""
        node.clock.skew_ms = round(by.total_seconds() * 1000)
        self.trace.note(node.name, "skewed", node.clock.skew_ms)

    async def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time go by."""
        await trio.sleep(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds())

    # Looking

    def reachable(self) -> list[tuple[ClusterNode, ...]]:
        """Running nodes in groups that can reach each other, directly or over others, both ways."""
        up = [node for node in self.nodes if node.is_up]
        groups: list[list[ClusterNode]] = []
        for node in up:
            touching = [group for group in groups if any(self.can_reach(node, other) for other in group)]
            merged = [node, *(other for group in touching for other in group)]
            groups = [group for group in groups if group not in touching] + [merged]
        return [tuple(sorted(group, key=self.nodes.index)) for group in groups]

    async def settled(self, within: timedelta = SETTLES_WITHIN) -> None:
        """Return once no work is left anywhere and all members that can reach each other hold the same.

        Raises `NotSettledError`, with a table of what is missing where and why, when that takes longer than `within`
        of the cluster's time.
        """
        began_s, pause_s = trio.current_time(), _FIRST_LOOK_S
        deadline = began_s + within.total_seconds()
        while gaps := find_gaps(self.reachable()):
            if trio.current_time() >= deadline:
                raise NotSettledError(gaps, within.total_seconds())
            await trio.sleep(pause_s)
            # Who has waited for long need not know it to the second.
            pause_s = min(2 * pause_s, max(_LONGEST_LOOK_S, (trio.current_time() - began_s) / 50))

    def audit(self) -> None:
        """Raise `AuditError` for whatever must never be; see `auditor` for the list. At any time."""
        findings = self._auditor.audit()
        if findings:
            raise AuditError(findings)

    def changed_ms(self, graph: GraphId) -> int:
        """When any node last committed a change of this graph."""
        return self._changed_ms.get(graph, 0)

    async def until_seen(self, asset: Asset, *nodes: ClusterNode) -> None:
        """Return once these nodes (none named: all that run) show a version. For who waits for less than `settled`."""
        for node in nodes or [it for it in self.nodes if it.is_up]:
            await node.call(partial(node.inside.ledger.until, partial(node.sees, asset)))


@asynccontextmanager
async def _nursery() -> AsyncIterator[trio.Nursery]:
    """Tasks that end with the block."""
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


async def _join(node: ClusterNode, invite: str) -> None:
    await node.call(lambda: node.face.join(invite, label=node.name))


def _name(number: int) -> str:
    return NAMES[number] if number < len(NAMES) else f"node-{number}"


def _ms(time: timedelta | None) -> int | None:
    return None if time is None else round(time.total_seconds() * 1000)
