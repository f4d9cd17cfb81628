"""A scene: whole nodes that act, one that sleeps through it, and the question what everybody sees in the end.

Whatever happened, all nodes must see the same: those that were there, the one that gets everything at once in rounds
when it wakes up, and two bare sets that are fed the same things forwards and backwards. What happens `apart` happens on
two sides at once, and the nodes of each hear that of their own side first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from itertools import product

from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import Asset, ClusterNode
from p2pmem_protocol.envelope import decode_item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.evidence import Decision, Evidence, Method, Verdict
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.exchange.holdings import How, Offered, Source
from p2pmem.face import Explanation, MemberChange, NewMember

SOMEBODY = Source(How.MEMBER, "12D3KooWSomebody")


@dataclass(frozen=True, slots=True)
class Order:
    """One of the two orders in which nodes hear what happens on two sides; `seed` is that of the cluster."""

    seed: int = 1
    is_other: bool = False


@dataclass
class Scene:
    """ada owns the graph and writes; bo, cy and dan write, endorse and verify; eve reads, and sleeps until `agreed`."""

    cluster: Cluster
    ada: ClusterNode
    bo: ClusterNode
    cy: ClusterNode
    dan: ClusterNode
    eve: ClusterNode
    order: Order = field(default_factory=Order)
    refused: dict[str, set[bytes]] = field(default_factory=dict)
    """What the nodes were handed and did not take."""

    @property
    def verifiers(self) -> tuple[ClusterNode, ...]:
        return self.bo, self.cy, self.dan

    @property
    def awake(self) -> list[ClusterNode]:
        return [node for node in self.cluster.nodes if node.is_up]

    async def proposed(self, text: str = "ex:trial ex:lowers ex:ldl .", **options: object) -> tuple[Asset, str]:
        """A version by ada that all have and that waits for its verifiers; with the id of the job that waits."""
        asset = await self.ada.share(text)
        await self.cluster.settled()
        job = await self.ada.start_verify(asset, **options)  # type: ignore[arg-type]  # handed on
        await self.cluster.settled()
        return asset, job.id

    def sides(self) -> tuple[list[ClusterNode], list[ClusterNode]]:
        """Two sides: bo's, where ada is, and cy's, where dan is. In the other order ada and dan have traded places."""
        with_bo, with_cy = (self.dan, self.ada) if self.order.is_other else (self.ada, self.dan)
        return [self.bo, with_bo], [self.cy, with_cy]

    @asynccontextmanager
    async def apart(self, one: list[ClusterNode], other: list[ClusterNode]) -> AsyncIterator[None]:
        """Within the block neither side hears of what happens on the other; then they meet, and all settle.

        So each side hears what happened on its own first. That it was so is looked at before they meet: every node that
        is awake has heard something that nobody of the other side has.
        """
        with self.cluster.partition(one, other):
            yield
            await self.cluster.settled()
            here, there = ([node for node in side if node.is_up] for side in (one, other))
            assert here, "nobody is there to hear it"
            assert there, "nobody is there to hear it"
            for node, away in [*product(here, there), *product(there, here)]:
                assert self.heard(node) - self.heard(away), f"{node.name} heard nothing before {away.name}"
        await self.cluster.settled()

    def heard(self, node: ClusterNode) -> set[bytes]:
        """All that reached a node: what counts and what does not, rosters, and what it was handed and refused."""
        rows = node.inside.ledger.database.read(
            lambda connection: connection.execute(
                "SELECT data FROM item WHERE graph = ? AND kind <> ?", (node.graph.id, Kind.ACK)
            ).fetchall()
        )
        rosters = {header.id for header in node.graph.headers.headers()}
        return {bytes(row[0]) for row in rows} | rosters | self.refused.get(node.name, set())

    async def agreed(self, asset: Asset) -> VersionView | None:
        """What everybody sees of a version: the same, or this fails. None when nobody sees anything of it."""
        await self.wake()
        graph = self.awake[0].graph
        seen = {node.name: node.view(asset) for node in self.awake if graph.is_member(node.address)}
        for name, view in self._folded(asset).items():
            seen[name] = next((it for it in view.versions if _is(it, asset)), None)
        first = seen.pop(self.ada.name if self.ada.is_up else self.bo.name)
        for name, view in seen.items():
            assert view == first, f"{name} sees something else"
        return first

    async def level(self, asset: Asset) -> Trust | None:
        """How far everybody trusts a version; None when nobody is shown it."""
        view = await self.agreed(asset)
        return view.trust.level if view is not None and view.is_visible else None

    async def told(self, asset: Asset) -> Explanation:
        """What everybody explains of a version, and certifies: the same, or this fails."""
        await self.agreed(asset)
        members = [node for node in self.awake if self.awake[0].graph.is_member(node.address)]
        told = [await node.face.explain(asset.graph, asset.reference) for node in members]
        for each in told:
            assert replace(each, version=told[0].version) == told[0]
            assert each.version.trust == told[0].version.trust
        if told[0].version.trust.level == Trust.CONSENSUS_VERIFIED.word:
            certified = [(await node.certificate(asset)).statement for node in members]
            assert all(each == certified[0] for each in certified)
        return told[0]

    async def wake(self) -> None:
        await self.cluster.settled()
        if not self.eve.is_up:
            await self.cluster.restart(self.eve)
            await self.cluster.settled()

    def _folded(self, asset: Asset) -> dict[str, AssetView]:
        """The asset in sets that were fed what the first node that is awake holds, in two orders."""
        source = self.awake[0]
        graph = source.graph
        rows = source.inside.ledger.database.read(
            lambda connection: connection.execute(
                "SELECT data FROM item WHERE graph = ? AND place = 'in' ORDER BY arrival", (graph.id,)
            ).fetchall()
        )
        now_ms = source.clock.now_ms()
        key = asset.key.asset
        views: dict[str, AssetView] = {}
        for name, ordered in (("forwards", rows), ("backwards", rows[::-1])):
            folded = GraphSet(graph.id, graph.network)
            named = graph.headers.quorums_of(graph.head_id)
            folded.set_head(graph.head, now_ms, forked=graph.set.is_forked, named=named)
            left = [bytes(row[0]) for row in ordered]
            while left:
                again = [data for data in left if not _admitted(folded, data, now_ms)]
                assert len(again) < len(left), "what is in a set is not admitted into another"
                left = again
            views[name] = asset_view(folded, key, now_ms)
        return views

    # What nobody would do through the face

    def verdict(
        self,
        by: ClusterNode | Key,
        asset: Asset,
        decision: Decision = Decision.APPROVE,
        method: Method = Method.MANUAL,
        reason: str = "",
        **other: object,
    ) -> Evidence:
        """A verdict under the head's quorum. `other` replaces fields of it before it is signed."""
        key = by.key if isinstance(by, ClusterNode) else by
        graph = self.ada.graph if self.ada.is_up else self.bo.graph
        assert graph.head is not None
        verdict = Verdict(
            graph.network, graph.id, graph.head.quorum.id, subject(asset), decision, method, reason, key.address
        )
        return Evidence.sign(replace(verdict, **other), key)  # type: ignore[arg-type]  # fields of a verdict

    async def offer(self, node: ClusterNode, data: bytes) -> Reason | None:
        """Hand bytes to a node as a member would; None when they are in its set."""
        (outcome,), _ = await node.inside.services.admission.admit([Offered(data)], SOMEBODY)
        if outcome.reason is not None:
            self.refused.setdefault(node.name, set()).add(data)
        return outcome.reason

    async def offered(self, data: bytes, *nodes: ClusterNode) -> set[Reason | None]:
        """What nodes, all that are awake where none is named, say to the same bytes."""
        return {await self.offer(node, data) for node in nodes or self.awake}

    async def change(self, change: MemberChange) -> None:
        await self.ada.change_members(change)
        await self.cluster.settled()

    def said_by(self, node: ClusterNode, asset: Asset, *, held_by: ClusterNode | None = None) -> frozenset[bytes]:
        """Which verdicts of a node's agent another holds; `ada`, where nobody else is named."""
        version = (held_by or self.ada).graph.set.version(subject(asset))
        assert version is not None
        evidence = version.evidence_in_set()
        return frozenset(it.id for it in evidence if it.kind is Kind.VERDICT and it.author == node.address)

    def said_on_disk(self, node: ClusterNode) -> frozenset[bytes]:
        """Which verdicts of its own a node that is down has in its file, as it will find it when it is back."""
        assert not node.is_up
        with closing(sqlite3.connect(node.disk.places().ledger or "")) as connection:
            rows = connection.execute("SELECT data FROM item WHERE kind = ?", (Kind.VERDICT,)).fetchall()
        verdicts = [Evidence.decode(bytes(row[0])) for row in rows]
        return frozenset(it.id for it in verdicts if it.signer == node.address)


@asynccontextmanager
async def scene(
    order: Order | None = None, *, quorum: int = 2, policy: str = "manual", **settings: object
) -> AsyncIterator[Scene]:
    order = order or Order()
    async with Cluster(5, seed=order.seed, quorum=quorum, policy=policy, **settings) as cluster:
        ada, bo, cy, dan, eve = cluster.nodes
        it = Scene(cluster, ada, bo, cy, dan, eve, order)
        await cluster.settled()
        await it.change(MemberChange(set=(NewMember(str(eve.address), ("reader",), "eve"),)))
        await cluster.stop(eve)
        yield it


def subject(asset: Asset) -> VersionKey:
    return asset.key


def addresses(view: VersionView | None) -> set[Address]:
    """Who approved it."""
    assert view is not None
    return {line.signer for line in view.trust.approvals}


def _is(view: VersionView, asset: Asset) -> bool:
    return view.key == asset.key


def _admitted(graph_set: GraphSet, data: bytes, now_ms: int) -> bool:
    try:
        graph_set.admit(decode_item(data), len(data), now_ms)
    except RefusedError:
        return False
    return True
