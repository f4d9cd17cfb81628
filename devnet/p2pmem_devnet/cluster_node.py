"""One node of a cluster, as a test holds it: what its users call, in few words, and what tests look at.

Every call goes to the node's face, as HTTP and the command line do. A call that is under way when the node crashes
raises `NodeDownError`: what of it had been committed is there after a restart, and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, GraphId, GraphName, VersionKey, parse_hex_id
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import AssetView, VersionView as ProtocolView, asset_view

from p2pmem.face import CertificateView, Face, JobView, Layer, MemberChange, QueryAnswer, RecallHit, VersionView
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.net.multiaddr import parse_tcp
from p2pmem.node import Node
from p2pmem.references import parse_reference

if TYPE_CHECKING:
    from p2pmem_devnet.cluster import Cluster
    from p2pmem_devnet.cluster_disk import Disk

T = TypeVar("T")

PREFIXES: Final = (
    "@prefix ex: <http://example.org/> .\n"
    "@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
    "@prefix schema: <https://schema.org/> .\n"
    "@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .\n"
)
"""Put before Turtle that declares no prefix itself."""


class NodeDownError(OutsideError):
    """The node is not running: it was crashed or stopped. Restart it."""


class JobFailedError(AssertionError):
    """A job that a test counted on did not succeed."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A version that was shared or published, as a test hands it from node to node."""

    graph: str
    author: Address
    name: str
    version: int
    root: str
    seal: str

    @property
    def key(self) -> VersionKey:
        return VersionKey(self.author, self.name, self.version, parse_hex_id(self.root), parse_hex_id(self.seal))

    @property
    def reference(self) -> str:
        return f"{self.author}/{self.name}@{self.version}"

    def __str__(self) -> str:
        return self.reference


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that a node acknowledged: a job by its id, or a draft by its name. It must outlive any crash."""

    at_ms: int
    graph: GraphId
    name: str = ""
    job: str = ""


class ClusterClock:
    """A node's wall clock: the cluster's virtual time and an error that the test sets."""

    def __init__(self, base_ms: int) -> None:
        self.base_ms = base_ms
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self.base_ms + round(trio.current_time() * 1000) + self.skew_ms


class ClusterNode:
    """One node. Made by a cluster; the same handle stands for it across crashes and restarts."""

    def __init__(self, cluster: Cluster, name: str, key: Key, clock: ClusterClock, disk: Disk) -> None:
        self.cluster = cluster
        self.name = name
        self.key = key
        self.clock = clock
        self.disk = disk
        self.incarnation = 0
        self.listens = True
        self.port = 0
        """Where it listened last, over libp2p: as a node does, it listens there again, for where else would those who
        start at the same time look for it?"""
        self.crash_at: tuple[str, int] | None = None
        """Crash when the crash point of this name is passed for the n-th time from now: (name, n)."""
        self.points: dict[str, int] = {}
        """How often each crash point was passed since the last start."""
        self.is_crashed = False
        self.promises: list[Promise] = []
        self.said: list[tuple[Kind, int]] = []
        """Kinds of what this node's agent said, and when."""
        self._node: Node | None = None
        self._calls: set[trio.CancelScope] = set()
        self._names = 0

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.is_up else ' (down)'}>"

    @property
    def address(self) -> Address:
        """The address of this node's agent."""
        return self.key.address

    @property
    def is_up(self) -> bool:
        return self._node is not None

    @property
    def inside(self) -> Node:
        """The running node with all its parts, for tests that look into it."""
        if self._node is None:
            raise NodeDownError(f"{self.name} is down; `await cluster.restart({self.name})` starts it again")
        return self._node

    @property
    def face(self) -> Face:
        return self.inside.face

    @property
    def graph(self) -> LedgerGraph:
        """The cluster's graph as this node's ledger has it."""
        return self.graph_named(self.cluster.graph)

    def graph_named(self, graph: str) -> LedgerGraph:
        return self.inside.ledger.named(graph)

    def went_up(self, node: Node) -> None:
        self._node = node
        self.is_crashed = False
        for address in node.network.addresses():
            if address.startswith("/ip4/"):
                self.port = parse_tcp(address.partition("/p2p/")[0])[1]

    def went_down(self) -> None:
        self._node = None
        for scope in list(self._calls):
            scope.cancel()

    async def call(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Run a call to this node. Raises `NodeDownError` when the node goes down before it answers."""
        if self._node is None:
            raise NodeDownError(f"{self.name} is down")
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await fn()
            finally:
                self._calls.discard(scope)
        raise NodeDownError(f"{self.name} went down before it had answered")

    # Working memory

    async def draft(
        self, text: str | bytes, *, name: str | None = None, replace: bool = False, graph: str | None = None
    ) -> str:
        """Write to a private draft; returns its name. `text` is Turtle, its usual prefixes may be left out."""
        name = name or self._next_name()
        face = self.face
        data = _turtle(text)
        wanted = graph or self.cluster.graph
        await self.call(
            lambda: face.draft(wanted, name, data, format="turtle", base=None, subgraph="", replace=replace)
        )
        self._note(wanted, name=name)
        return name

    # Saying something

    async def share(
        self,
        text: str | bytes | None = None,
        *,
        name: str | None = None,
        ttl: timedelta | None = None,
        graph: str | None = None,
    ) -> Asset:
        """Draft `text` (or take the draft `name` as it is), seal it and share it. Without `ttl` for the graph's time.

        With a `name` that was shared before and no text it renews that; with a text it makes the next version.
        """
        if text is not None:
            name = await self.draft(text, name=name, replace=True, graph=graph)
        if name is None:
            raise MisuseError("give a text to share, or the name of a draft")
        face, wanted, chosen = self.face, graph or self.cluster.graph, name
        ttl_ms = None if ttl is None else round(ttl.total_seconds() * 1000)
        return await self._asset(await self.call(lambda: face.share(wanted, chosen, ttl_ms=ttl_ms)), wanted)

    async def publish(
        self, what: Asset | str | None = None, *, text: str | bytes | None = None, graph: str | None = None
    ) -> Asset:
        """Publish a version, a name, or a new `text`."""
        job = await self.start_publish(what, text=text, graph=graph)
        return await self._asset(job, graph or self.cluster.graph)

    async def start_publish(
        self, what: Asset | str | None = None, *, text: str | bytes | None = None, graph: str | None = None
    ) -> JobView:
        """The same, without waiting for what it waits for."""
        if text is not None:
            what = await self.draft(text, name=what if isinstance(what, str) else None, graph=graph)
        if what is None:
            raise MisuseError("give something to publish")
        face, wanted = self.face, graph or self.cluster.graph
        reference = f"{what.author}/{what.name}" if isinstance(what, Asset) else what
        return await self.call(lambda: face.publish(wanted, reference))

    async def endorse(self, asset: Asset, *, reason: str = "", withdraw: bool = False) -> None:
        face = self.face
        job = await self.call(lambda: face.endorse(asset.graph, asset.reference, reason=reason, withdraw=withdraw))
        await self._succeeded(job)

    async def start_verify(self, asset: Asset, *, within: timedelta | None = None) -> JobView:
        """Ask the verifiers, and return the job that waits for them."""
        face = self.face
        deadline_ms = None if within is None else self.clock.now_ms() + round(within.total_seconds() * 1000)
        job = await self.call(lambda: face.verify(asset.graph, asset.reference, deadline_ms=deadline_ms))
        self._note(asset.graph, job=job.id)
        return job

    async def verify(self, asset: Asset, *, within: timedelta | None = None) -> Trust:
        """Ask the verifiers and wait for what comes of it."""
        job = await self._succeeded(await self.start_verify(asset, within=within))
        assert isinstance(job.result, dict)
        return Trust.parse(str(job.result["level"]))

    async def retract(
        self, asset: Asset, *, reason: str = "", successor: int | None = None, erase: bool = False
    ) -> None:
        face = self.face
        await self.call(
            lambda: face.retract(asset.graph, asset.reference, reason=reason, successor=successor, erase=erase)
        )

    async def job(self, job: JobView | str, *, wait: timedelta = timedelta(minutes=9)) -> JobView:
        """A job once it has ended, or as it is after `wait`."""
        face, job_id = self.face, job if isinstance(job, str) else job.id
        return await self.call(lambda: face.job(job_id, wait_ms=round(wait.total_seconds() * 1000)))

    async def decide(self, *, approve: bool, reason: str = "") -> int:
        """Decide every review that waits for this node's verifier, as a person; returns how many there were."""
        face = self.face
        reviews = await self.call(face.reviews)
        for review in reviews:
            job = await self.call(partial(face.decide_review, review.id, approve=approve, reason=reason))
            await self._succeeded(job)
        return len(reviews)

    async def change_members(self, change: MemberChange, *, graph: str | None = None) -> None:
        face, wanted = self.face, graph or self.cluster.graph
        await self.call(lambda: face.change_members(wanted, change))

    async def leave(self, *, graph: str | None = None) -> None:
        """Forget a graph at this node."""
        face, wanted = self.face, graph or self.cluster.graph
        await self.call(lambda: face.leave(wanted))

    # Reading

    async def recall(
        self, question: str, *, min_trust: Trust | None = None, min_m: int = 0, limit: int = 10
    ) -> list[RecallHit]:
        face = self.face
        floor = None if min_trust is None else min_trust.word
        answer = await self.call(lambda: face.recall(question, graph=None, min_trust=floor, min_m=min_m, limit=limit))
        return list(answer.hits)

    async def query(
        self, sparql: str, *, min_trust: Trust | None = None, layer: Layer | None = None, graph: str | None = None
    ) -> QueryAnswer:
        face, wanted = self.face, graph or self.cluster.graph
        floor = None if min_trust is None else min_trust.word
        return await self.call(lambda: face.query(sparql, graph=wanted, layer=layer, min_trust=floor, at_least=0))

    async def versions(self, *, min_trust: Trust | None = None, graph: str | None = None) -> list[VersionView]:
        face, wanted = self.face, graph or self.cluster.graph
        floor = None if min_trust is None else min_trust.word
        return list(await self.call(lambda: face.versions(wanted, layer=None, min_trust=floor)))

    async def content(self, asset: Asset) -> bytes:
        face = self.face
        return await self.call(lambda: face.content(asset.graph, asset.reference))

    async def certificate(self, asset: Asset) -> CertificateView:
        face = self.face
        return await self.call(lambda: face.certificate(asset.graph, asset.reference))

    def view(self, asset: Asset) -> ProtocolView | None:
        """The version as this node sees it now, or None when nothing of it is live here."""
        found = self._asset_view(asset)
        return next((it for it in found.versions if _is(it, asset)), None)

    def sees(self, asset: Asset) -> bool:
        """Whether a reader at this node is shown the version."""
        found = self._asset_view(asset)
        return any(_is(it, asset) and it.is_visible for it in found.versions)

    def trust(self, asset: Asset) -> Trust | None:
        """How far the version is trusted here now; None when it is not shown here."""
        view = self.view(asset)
        return view.trust.level if view is not None and view.is_visible else None

    def _asset_view(self, asset: Asset) -> AssetView:
        key = parse_reference(asset.reference, asset.author).key
        return asset_view(self.graph_named(asset.graph).set, key, self.clock.now_ms())

    # Inside

    def _note(self, graph: str, *, name: str = "", job: str = "") -> None:
        """Remember what was acknowledged, for the auditor."""
        self.promises.append(Promise(self.clock.now_ms(), GraphName.parse(graph).id, name, job))

    def _next_name(self) -> str:
        self._names += 1
        return f"note-{self._names}"

    async def _asset(self, job: JobView, graph: str) -> Asset:
        ended = await self._succeeded(job)
        assert isinstance(ended.result, dict)
        author, _, name = str(ended.result["reference"]).rpartition("/")
        version, root, seal = int(ended.result["version"]), str(ended.result["root"]), str(ended.result["seal"])
        return Asset(str(GraphName.parse(graph)), Address.parse(author), name, version, root, seal)

    async def _succeeded(self, job: JobView) -> JobView:
        self._note(job.graph or self.cluster.graph, job=job.id)
        ended = await self.job(job)
        if ended.state != "succeeded":
            why = ended.error or ended.waiting_for or ended.progress
            raise JobFailedError(f"{self.name}: the {ended.kind} of {ended.reference} is {ended.state}: {why}")
        return ended


def _is(view: ProtocolView, asset: Asset) -> bool:
    return view.key == asset.key


def _turtle(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    return (text if "@prefix" in text or "PREFIX" in text else PREFIXES + text).encode()
