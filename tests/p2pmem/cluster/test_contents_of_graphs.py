"""Content is of the graphs through which it came: whoever knows a hash gets nothing for it in another graph."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import Asset, ClusterNode
from p2pmem_protocol.bodies import Body, ContentRef, Retract, RetractMode, Sealed
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.credential import ActFor, Right
from p2pmem_protocol.envelope import NEVER, Envelope, Unsigned
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CONTENT_INLINE_BYTES_MAX
from p2pmem_protocol.names import GraphName
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from trio.testing import MockClock

from p2pmem.exchange.holdings import SELF, Offered
from p2pmem.face import LimitsChange, MemberChange, NewGraph, NewMember, NotFoundError

LONG = "".join(f"ex:a ex:secret {n} .\n" for n in range(2000))
SHORT = "ex:a ex:secret 1 ."


@dataclass
class Two:
    """ada and bo are in both graphs, cy is in the open one only; `secret` is shared in the other."""

    cluster: Cluster
    ada: ClusterNode
    bo: ClusterNode
    cy: ClusterNode
    other: str

    async def secret(self, text: str) -> tuple[Asset, bytes]:
        asset = await self.ada.share(text, graph=self.other)
        await self.cluster.settled()
        return asset, await self.bo.content(asset)

    def named_by(self, by: ClusterNode, content: bytes, named: ContentRef, name: str = "mine") -> Envelope:
        """A publish by `by` in the cluster's graph under a seal over the root of `content`, which it need not hold."""
        graph, real = by.graph, check_canonical(content)
        seal = Seal(graph.network, graph.id, "", name, 1, real.root, real.line_count, NO_PREVIOUS, by.address)
        return self.said(by, Kind.PUBLISH, Sealed(seal.sign(by.key), named))

    def said(self, by: ClusterNode, kind: Kind, body: Body) -> Envelope:
        """What stays, signed by `by` in the cluster's graph past its node."""
        graph = by.graph
        unsigned = Unsigned(
            network=graph.network,
            graph=graph.id,
            kind=kind,
            author=by.address,
            delegation=None,
            roster=graph.head.header.version if graph.head else 0,
            issued_at_ms=by.clock.now_ms(),
            expires_at_ms=NEVER,
            body=body,
        )
        return unsigned.sign(by.key)

    async def offered(self, item: Envelope) -> None:
        for node in self.cluster.nodes:
            (outcome,), _ = await node.inside.services.admission.admit([Offered(item.encode())], SELF)
            assert outcome.reason is None
        await self.cluster.settled()


@asynccontextmanager
async def two() -> AsyncIterator[Two]:
    async with Cluster(3) as cluster:
        ada, bo, cy = cluster.nodes
        other = (await ada.face.found(NewGraph("other"))).graph
        invite = await ada.face.invite(other, roles=("writer",), uses=1, life_ms=60_000)
        await bo.face.join(invite, label="bo")
        yield Two(cluster, ada, bo, cy, other)


@pytest.mark.parametrize("text", [LONG, SHORT], ids=["attached", "beside its share"])
async def test_who_knows_the_hash_of_another_graphs_content_is_not_given_it(
    text: str, autojump_clock: MockClock
) -> None:
    async with two() as it:
        _, content = await it.secret(text)
        content_hash = keccak256(content)
        named = ContentRef(max(len(content), CONTENT_INLINE_BYTES_MAX + 1), None, content_hash)
        publish = it.named_by(it.cy, content, named)
        await it.offered(publish)
        assert content_hash not in it.cy.inside.ledger.held
        await it.cluster.restart(it.bo)
        await it.cluster.settled()
        assert content_hash not in it.cy.inside.ledger.held
        # Nor is it that version's for those who hold it by another graph: nobody says that he holds it, or shows it.
        (shown,) = await it.bo.versions()
        assert (shown.held, shown.copies) == (False, 0)
        assert not (await it.bo.query("SELECT ?o { ?s <http://example.org/secret> ?o }")).rows
        with pytest.raises(NotFoundError, match="not held"):
            await it.bo.content(Asset(it.cluster.graph, it.cy.address, "mine", 1, "", ""))


async def test_what_comes_through_both_graphs_is_given_in_both(autojump_clock: MockClock) -> None:
    async with two() as it:
        _, content = await it.secret(LONG)
        asset = await it.ada.share(LONG)
        await it.cluster.settled()
        assert await it.cy.content(asset) == content
        await it.cluster.stop(it.ada)
        await it.cluster.restart(it.bo)
        await it.cluster.restart(it.cy)
        await it.cluster.settled()
        assert await it.bo.content(asset) == await it.cy.content(asset) == content


async def test_what_no_version_of_a_graph_names_any_more_is_not_of_that_graph(autojump_clock: MockClock) -> None:
    async with two() as it:
        asset, content = await it.secret(LONG)
        content_hash = keccak256(content)
        mine = await it.ada.publish(text=LONG)
        await it.cluster.settled()
        assert content_hash in it.bo.graph.held
        await it.ada.retract(mine, erase=True)
        await it.cluster.settled()
        await it.bo.inside.services.admission.purge()
        assert content_hash not in it.bo.graph.held
        assert await it.bo.content(asset) == content
        await it.cluster.restart(it.bo)
        await it.cluster.settled()
        assert content_hash not in it.bo.graph.held
        assert await it.bo.content(asset) == content


@pytest.mark.parametrize(
    ("taken", "life", "stays"),
    [(False, 1, True), (True, 1, False), (True, 3, True)],
    ids=["of somebody that the author does not act for", "that the author took", "while it is shared for another"],
)
async def test_a_principals_erasure_takes_from_its_agents_node_what_was_said_for_it_and_nothing_else(
    taken: bool, life: int, stays: bool, autojump_clock: MockClock
) -> None:
    async with two() as it:
        asset = await it.cy.share(SHORT, ttl=timedelta(hours=life))
        await it.cluster.advance(minutes=120)
        given = ActFor(it.bo.graph.network, it.bo.address, it.cy.address, 1, "", Right.all()).sign(it.bo.key)
        if taken:
            await it.cy.face.accept_delegation(str(given))
        body = Retract(it.cy.address, asset.name, 1, RetractMode.ERASE, None, "", given)
        await it.offered(it.said(it.bo, Kind.RETRACT, body))
        await it.cy.inside.services.admission.purge()
        rows = it.cy.inside.ledger.database.read(lambda of: of.execute("SELECT name FROM own").fetchall())
        assert ((asset.name,) in rows) is stays
        if it.cy.sees(asset):
            assert (await it.cy.face.explain(it.cluster.graph, asset.reference)).retracts == ()


@pytest.mark.parametrize("text", [LONG, SHORT], ids=["attached", "beside its share"])
async def test_what_a_head_has_cut_comes_back_with_its_content(text: str, autojump_clock: MockClock) -> None:
    async with Cluster(3) as cluster:
        ada, bo, cy = cluster.nodes
        asset = await cy.share(text)
        await cluster.settled()
        content = await bo.content(asset)
        await cluster.stop(cy)
        await ada.change_members(MemberChange(remove=(str(cy.address),), leaked=True, m=0))
        await cluster.settled()
        assert not bo.sees(asset)
        for node in (ada, bo):
            await node.inside.services.admission.purge()
        await ada.change_members(MemberChange(set=(NewMember(str(cy.address), ("writer",), "cy"),)))
        await cluster.settled()
        assert await ada.content(asset) == await bo.content(asset) == content


@pytest.mark.parametrize("text", [LONG, SHORT], ids=["attached", "beside its share"])
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_what_finds_room_again_after_its_content_went_is_fetched_again(
    text: str, restarted: bool, autojump_clock: MockClock
) -> None:
    async with Cluster(3) as cluster:
        ada, bo, cy = cluster.nodes
        await cy.share("ex:a ex:first 1 .")
        await cluster.advance(minutes=1)
        asset = await cy.share(text)
        await cluster.settled()
        content = await bo.content(asset)
        await ada.change_members(MemberChange(limits=LimitsChange(live_items=1)))
        await cluster.settled()
        assert not bo.sees(asset)
        await bo.inside.services.admission.purge()
        assert keccak256(content) not in bo.inside.ledger.held
        bo.inside.services.admission.is_partial = restarted
        await ada.change_members(MemberChange(limits=LimitsChange(live_items=9)))
        await cluster.advance(minutes=1)
        if restarted:
            await cluster.restart(bo)
        await cluster.settled()
        assert await bo.content(asset) == content


@pytest.mark.parametrize("text", [LONG, SHORT], ids=["attached", "beside its publish"])
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
async def test_what_finds_room_again_after_its_content_went_everywhere_is_given_by_its_author(
    text: str, restarted: bool, autojump_clock: MockClock
) -> None:
    async with Cluster(3) as cluster:
        ada, bo, cy = cluster.nodes
        asset = await cy.publish(text=text)
        await cluster.settled()
        content = await bo.content(asset)
        await ada.change_members(MemberChange(limits=LimitsChange(durable_items=0)))
        await cluster.settled()
        for node in cluster.nodes:
            await node.inside.services.admission.purge()
        assert keccak256(content) not in bo.inside.ledger.held
        if restarted:
            await cluster.restart(*cluster.nodes)
            await cluster.settled()
        await ada.change_members(MemberChange(limits=LimitsChange(durable_items=9)))
        await cluster.settled()
        for node in cluster.nodes:
            assert await node.content(asset) == content


async def test_what_came_beside_its_share_comes_back_without_anybody_who_has_it(autojump_clock: MockClock) -> None:
    async with Cluster(3) as cluster:
        ada, bo, cy = cluster.nodes
        asset = await cy.publish(text=SHORT)
        await cluster.settled()
        content = await bo.content(asset)
        await cluster.stop(cy)
        await ada.change_members(MemberChange(limits=LimitsChange(durable_items=0)))
        await cluster.settled()
        for node in (ada, bo):
            await node.inside.services.admission.purge()
        assert keccak256(content) not in bo.inside.ledger.held
        await ada.change_members(MemberChange(limits=LimitsChange(durable_items=9)))
        await cluster.settled()
        for node in (ada, bo, bo):
            assert await node.content(asset) == content
            await cluster.restart(node)


async def test_what_is_fetched_is_judged_without_a_look_at_the_rest_of_the_set(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two() as it:
        for number in range(20):
            await it.ada.share(f"ex:a ex:n {number} .")
        await it.cluster.stop(it.cy)
        asset = await it.ada.share(LONG)
        await it.cluster.settled()
        content = await it.ada.content(asset)
        with it.cluster.partition([it.cy], [it.ada, it.bo]):
            await it.cluster.restart(it.cy)
            await it.cluster.advance(seconds=5)  # after a start each service looks at everything once
            graph = it.cy.graph
            gone_through: list[str] = []
            for name in ("assets", "records", "known", "contents"):
                real = getattr(GraphSet, name)

                def counted(self: GraphSet, name: str = name, real: Any = real) -> Any:
                    gone_through.append(name)
                    return real(self)

                monkeypatch.setattr(GraphSet, name, counted)
            admission = it.cy.inside.services.admission
            share = next(
                item for item in it.ada.graph.set.records() if getattr(item, "content_hash", b"") == keccak256(content)
            )
            data = it.ada.inside.ledger.raw(share.id) or b""
            gone_through.clear()
            await admission.admit([Offered(data)], SELF)
            await admission.keep_attachment(graph.id, content, keccak256(content))
            assert keccak256(content) in graph.held
            assert not gone_through


@pytest.mark.parametrize("left", [False, True], ids=["a graph it is in", "a graph it had left"])
async def test_what_is_written_down_for_a_graph_that_does_not_name_it_is_not_of_that_graph(
    left: bool, autojump_clock: MockClock
) -> None:
    async with two() as it:
        _, content = await it.secret(LONG)
        content_hash = keccak256(content)
        if left:
            await it.bo.leave()
            await it.cluster.settled()
        graph = GraphName.parse(it.cluster.graph).id

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO attached VALUES (?, ?)", (graph, content_hash))

        await it.bo.inside.ledger.database.write(write)
        await it.cluster.restart(it.bo)
        if left:
            invite = await it.ada.face.invite(it.cluster.graph, roles=("writer",), uses=1, life_ms=60_000)
            await it.bo.face.join(invite, label="bo")
        await it.cluster.settled()
        named = ContentRef(max(len(content), CONTENT_INLINE_BYTES_MAX + 1), None, content_hash)
        await it.offered(it.named_by(it.cy, content, named))
        await it.cluster.restart(it.bo)
        await it.cluster.settled()
        assert content_hash not in it.bo.graph.held
        assert content_hash not in it.cy.inside.ledger.held
