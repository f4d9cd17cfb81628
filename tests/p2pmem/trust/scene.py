"""A scene: whole nodes that act, one that sleeps through it, and the question what everybody sees in the end.

Whatever happened, all nodes must see the same: those that were there, the one that gets everything at once in rounds
when it wakes up, and two bare sets that are fed the same things forwards and backwards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace

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
from p2pmem.face import MemberChange, NewMember

SOMEBODY = Source(How.MEMBER, "12D3KooWSomebody")


@dataclass
class Scene:
    """ada owns the graph and writes; bo, cy and dan write, endorse and verify; eve reads, and sleeps until `agreed`."""

    cluster: Cluster
    ada: ClusterNode
    bo: ClusterNode
    cy: ClusterNode
    dan: ClusterNode
    eve: ClusterNode

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
        return outcome.reason

    async def offered(self, data: bytes) -> set[Reason | None]:
        """What all nodes that are awake say to the same bytes."""
        return {await self.offer(node, data) for node in self.awake}

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
async def scene(seed: int = 1, *, quorum: int = 2, policy: str = "manual", **settings: object) -> AsyncIterator[Scene]:
    async with Cluster(5, seed=seed, quorum=quorum, policy=policy, **settings) as cluster:
        ada, bo, cy, dan, eve = cluster.nodes
        it = Scene(cluster, ada, bo, cy, dan, eve)
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
