"""Partitions, late joiners, members that go, restarts: whatever happened, members end with one set."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster, days, hours, minutes, seconds
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_devnet.cluster_settled import NotSettledError
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import parse_hex_id
from p2pmem_protocol.trust import Trust

from p2pmem.exchange.holdings import How, Source
from p2pmem.face import MemberChange, NewMember, NoRightError
from p2pmem.ledger.batch import Delta, NewItem

LARGE = "".join(f'ex:line{n} ex:says "{n} {"x" * 80}" .\n' for n in range(2_000))
"""More than fits inline, so it travels as an attachment."""


async def test_both_sides_of_a_partition_work_on_and_meet_again(cluster: Cluster) -> None:
    ada, bo, cy, dan, eve = cluster.nodes
    with cluster.partition([ada, bo], [cy, dan, eve]):
        here = await bo.share("ex:a ex:b ex:here .")
        there = await cy.publish(text="ex:a ex:b ex:there .")
        await cluster.settled()
        await dan.endorse(there)
        await cluster.advance(hours=3)
        assert not ada.sees(there)
    await cluster.settled()
    for node in cluster.nodes:
        assert node.sees(here)
        assert node.trust(there) is Trust.ENDORSED


async def test_a_partition_that_lets_one_way_through_heals_too(cluster: Cluster) -> None:
    ada, bo, *rest = cluster.nodes
    with cluster.partition([ada], [bo, *rest], one_way=True):
        mine = await ada.share("ex:a ex:b ex:mine .")
        yours = await bo.share("ex:a ex:b ex:yours .")
        await cluster.advance(minutes=7)
        assert not bo.sees(mine)
    await cluster.settled()
    assert bo.sees(mine)
    assert ada.sees(yours)


async def test_a_member_that_loses_power_is_missed_and_comes_back(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    await cluster.crash(bo, silent=True)
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.advance(minutes=5)
    await cluster.restart(bo)
    await cluster.settled()
    assert bo.sees(asset)


async def test_large_content_reaches_members_that_were_away(cluster: Cluster) -> None:
    ada, bo, cy, dan, eve = cluster.nodes
    await cluster.stop(eve)
    with cluster.partition([ada, bo], [cy, dan]):
        asset = await ada.share(LARGE)
        await cluster.settled()
        assert bo.inside.ledger.content(bo.graph, bo.view(asset).content_hash)  # type: ignore[union-attr]
    await cluster.stop(ada)
    await cluster.restart(eve)
    await cluster.settled()
    for node in (bo, cy, dan, eve):
        assert (await node.content(asset)).count(b"\n") == 2_000
    assert await eve.recall("1000")


@pytest.mark.cluster(n=3)
async def test_large_content_survives_a_crash_while_it_is_fetched(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    cluster.slow(bo, delay=seconds(0.1), bytes_per_s=40_000)
    asset = await ada.share(LARGE)
    await cluster.until_seen(asset, bo)
    assert bo.view(asset).content_hash not in bo.inside.ledger.held  # type: ignore[union-attr]
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.settled()
    assert (await bo.content(asset)).count(b"\n") == 2_000


@pytest.mark.slow
@pytest.mark.cluster(n=3)
async def test_a_late_joiner_gets_all_of_two_thousand_shares(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    assets = [await node.share(f"ex:{node.name}{n} ex:says ex:o{n} .") for n in range(1_000) for node in (ada, bo)]
    late = await cluster.join()
    await cluster.settled()
    assert len(late.graph.set) == 2_000
    assert late.sees(assets[0])
    assert late.sees(assets[-1])
    assert (await late.query("SELECT (COUNT(*) AS ?n) { ?s ?p ?o }")).rows[0][0] == _integer(2_000)


async def test_a_removed_member_gets_nothing_more_and_what_it_said_stays(cluster: Cluster) -> None:
    ada, bo, cy, dan, eve = cluster.nodes
    said = await eve.publish(text="ex:a ex:b ex:said .")
    await cluster.settled()
    await cluster.remove(eve)
    await cluster.settled()
    after = await bo.share("ex:a ex:b ex:after .")
    await cluster.advance(hours=1)
    assert not eve.sees(after)
    assert cy.sees(said)
    late = await eve.share("ex:a ex:b ex:unheard .")
    await cluster.restart(eve)
    await cluster.advance(minutes=5)
    assert not any(node.sees(late) for node in (ada, bo, cy, dan))
    assert not eve.sees(after)
    assert not any(eve.inside.services.sessions.all())


async def test_who_is_listed_again_is_a_member_again(cluster: Cluster) -> None:
    ada, bo, *_, eve = cluster.nodes
    await cluster.remove(eve)
    await cluster.settled()
    asset = await bo.share("ex:a ex:b ex:c .")
    await ada.change_members(MemberChange(set=(NewMember(str(eve.address), ("writer",)),)))
    invite = await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=1)
    await eve.face.join(invite, label="")
    await cluster.settled()
    assert eve.sees(asset)
    back = await eve.share("ex:a ex:b ex:back .")
    await cluster.settled()
    assert bo.sees(back)


async def test_who_left_may_come_back_and_stays_after_a_restart(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    await bo.face.leave(cluster.graph)
    with pytest.raises(MisuseError):
        await bo.face.graph(cluster.graph)
    assert await bo.recall("c") == []
    await cluster.settled()
    assert not list(bo.inside.store.placed())
    later = await ada.share("ex:a ex:b ex:later .")
    await cluster.advance(minutes=5)
    invite = await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=1)
    await bo.face.join(invite, label="")
    await cluster.settled()
    assert bo.sees(asset)
    assert bo.sees(later)
    await cluster.restart(bo)
    await cluster.settled()
    assert bo.sees(later)
    assert await bo.recall("later")


async def test_what_was_admitted_may_be_told_after_its_graph_was_left(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    graph, item = bo.graph.id, NewItem(b"\1" * 32, Kind.SHARE, b"as it came")
    await bo.face.leave(cluster.graph)
    bo.inside.exchange.heard(
        Delta(graph, (item,), (), frozenset(), False, False, Source(How.MEMBER, ada.inside.network.peer_id), 1)
    )
    await cluster.settled()
    assert bo.is_up


async def test_a_clock_half_a_minute_wrong_does_no_harm(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    cluster.skew(bo, seconds(30))
    asset = await bo.share("ex:a ex:b ex:c .", ttl=hours(1))
    await cluster.settled()
    assert ada.sees(asset)
    await cluster.advance(hours=1, minutes=1)
    await cluster.settled()
    assert not ada.sees(asset)
    assert not bo.sees(asset)


async def test_a_clock_ten_minutes_wrong_is_kept_out_and_shown(cluster: Cluster) -> None:
    ada, bo, cy, *_ = cluster.nodes
    cluster.skew(bo, minutes(10))
    await cluster.restart(bo)
    asset = await bo.share("ex:a ex:b ex:c .")
    with pytest.raises(NotSettledError):
        await cluster.settled(within=minutes(5))
    assert not ada.sees(asset)
    warnings = (await bo.face.status()).warnings
    assert any("-600 s away from ours" in warning for warning in warnings), warnings
    assert any("+600 s" in warning for warning in (await cy.face.status()).warnings)
    cluster.skew(bo, minutes(0))
    await cluster.restart(bo)
    await cluster.settled(within=minutes(20))
    assert ada.sees(asset)


async def test_a_clock_that_jumps_ahead_erases_nothing(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=hours(5))
    await cluster.settled()
    cluster.skew(bo, hours(24))
    await cluster.advance(minutes=30)
    assert not bo.sees(asset)
    assert any("jumped" in warning for warning in (await bo.face.status()).warnings)
    cluster.skew(bo, hours(0))
    await cluster.advance(minutes=5)
    assert bo.sees(asset)
    await cluster.settled()


async def test_everything_restarts_at_once_and_nothing_is_missing(cluster: Cluster) -> None:
    shared = [await node.share(f"ex:{node.name} ex:b ex:c .") for node in cluster.nodes]
    published = await cluster.nodes[1].publish(text="ex:p ex:b ex:c .")
    job = await cluster.nodes[1].start_verify(published)
    await cluster.crash(*cluster.nodes)
    await cluster.advance(minutes=10)
    await cluster.restart(*reversed(cluster.nodes))
    await cluster.settled()
    assert all(node.sees(asset) for node in cluster.nodes for asset in shared)
    assert (await cluster.nodes[1].job(job)).state == "succeeded"
    assert cluster.nodes[4].trust(published) is Trust.CONSENSUS_VERIFIED


@pytest.mark.cluster(n=3, keep_projections=True)
async def test_projections_are_made_anew_from_the_ledger(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    asset = await ada.share('ex:a ex:says "cholesterol falls" .')
    await bo.draft('ex:a ex:says "a private thought" .')
    await cluster.settled()
    before = await _answers(bo)
    await cluster.wipe_projection(bo)
    await cluster.settled()
    assert await _answers(bo) == before
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.settled()
    assert await _answers(bo) == before
    assert bo.sees(asset)


async def test_who_has_no_right_to_write_is_told_so_and_nobody_hears_it(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    await ada.change_members(MemberChange(set=(NewMember(str(bo.address), ("endorser",)),)))
    await cluster.settled()
    with pytest.raises(NoRightError, match="has not the right to share"):
        await bo.share("ex:a ex:b ex:c .")
    await cluster.settled()
    assert all(not node.graph.set for node in cluster.nodes)


async def test_two_owners_that_fork_are_shown_everywhere(cluster: Cluster) -> None:
    """The owner's key on two nodes that cannot talk: each signs the next roster."""
    ada, bo, cy, dan, eve = cluster.nodes
    twin = await cluster.add("twin")
    await cluster.stop(twin)
    twin.key = ada.key
    await cluster.restart(twin)
    await twin.face.join(await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=1), label="")
    await cluster.settled()
    # Who has not met the twin yet could not reach it from behind the partition.
    await cluster.advance(minutes=1)
    with cluster.partition([ada, bo, cy], [twin, dan, eve]):
        await ada.change_members(MemberChange(remove=(str(dan.address),)))
        await twin.change_members(MemberChange(remove=(str(bo.address),)))
        await cluster.settled()
    await cluster.settled()
    for node in cluster.nodes:
        assert "forked" in (await node.face.graph(cluster.graph)).trouble, node
    asset = await bo.share("ex:a ex:b ex:c .")
    await cluster.settled()
    assert all(node.sees(asset) for node in cluster.nodes)


async def _answers(node: ClusterNode) -> object:
    rows = (await node.query("SELECT * { ?s ?p ?o } ORDER BY ?s ?p ?o")).rows
    hits = [hit.text for hit in await node.recall("cholesterol thought")]
    history = (await node.query("SELECT ?s ?p ?o { GRAPH ?g { ?s ?p ?o } } ORDER BY ?s ?p ?o")).rows
    return rows, hits, history


def _integer(n: int) -> str:
    return f'"{n}"^^<http://www.w3.org/2001/XMLSchema#integer>'


@pytest.mark.cluster(n=2)
async def test_a_promise_to_keep_what_is_published_is_renewed_in_a_graph_where_nothing_happens(
    cluster: Cluster,
) -> None:
    ada, bo = cluster.nodes
    asset = await ada.publish(text="ex:a ex:b ex:c .")
    await cluster.settled()
    graph, root = bo.inside.ledger.named(cluster.graph), parse_hex_id(asset.root)
    (first,) = {record.ends_at_ms for record in graph.set.acks(root)}
    for node in cluster.nodes:
        cluster.skew(node, days(160))
        await node.face.confirm_clock()
    await cluster.advance(hours=13)
    await cluster.settled()
    assert max(record.ends_at_ms for record in graph.set.acks(root)) > first + days(150).total_seconds() * 1000
