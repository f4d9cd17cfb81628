"""What members say to each other: seen by all, once, and as it was meant."""

from __future__ import annotations

from datetime import timedelta

import pytest
from p2pmem_devnet.cluster import Cluster, days, hours, seconds
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewMember, NotFoundError
from p2pmem.services.drafting import DraftEditedError

pytestmark = pytest.mark.cluster(n=4, quorum=2)


async def test_saying_the_same_again_changes_nothing(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    await bo.endorse(asset)
    await bo.endorse(asset)
    for reason in ("good", "sound", "fine", "well said"):
        await bo.endorse(asset, reason=reason)
    await ada.share(name=asset.name)
    await ada.share(name=asset.name)
    await cluster.settled()
    view = ada.view(asset)
    assert view is not None
    assert len(view.trust.endorsements) == 1


async def test_a_verified_version_is_verified_everywhere(cluster: Cluster) -> None:
    ada, *others = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    assert await ada.verify(asset) is Trust.CONSENSUS_VERIFIED
    await cluster.settled()
    assert [node.trust(asset) for node in others] == [Trust.CONSENSUS_VERIFIED] * 3


async def test_what_comes_later_and_ends_sooner_is_swept_when_it_ends(cluster: Cluster) -> None:
    ada, *others = cluster.nodes
    await ada.share("ex:a ex:lasts ex:long .", ttl=days(2))
    await cluster.settled()
    short = await ada.share("ex:b ex:lasts ex:not .", ttl=timedelta(seconds=30))
    await cluster.settled()
    swept = [node.inside.services.keeper.statistics().ended for node in others]
    await cluster.advance(seconds=31)
    assert [node.inside.services.keeper.statistics().ended for node in others] == [count + 1 for count in swept]
    assert not any(node.sees(short) for node in cluster.nodes)


async def test_what_ends_is_gone_from_every_face_at_that_instant(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    asset = await ada.share('ex:trial ex:says "cholesterol falls" .', ttl=hours(2))
    await cluster.settled()
    ends_ms = ada.view(asset).lives_until_ms or 0  # type: ignore[union-attr]  # it was just shared
    await cluster.advance(seconds=(ends_ms - bo.clock.now_ms()) / 1000 - 0.001)
    assert await bo.recall("cholesterol")
    assert (await bo.query("SELECT * { ?s ?p ?o }")).rows
    assert await bo.content(asset)
    await cluster.advance(seconds=0.001)
    for node in cluster.nodes:
        assert not node.sees(asset)
        assert await node.recall("cholesterol") == []
        assert (await node.query("SELECT * { ?s ?p ?o }")).rows == ()
        assert await node.versions() == []
        with pytest.raises(MisuseError):
            await node.content(asset)
    await cluster.settled()
    await cluster.advance(minutes=20)
    assert all(not node.inside.ledger.held for node in (bo, *cluster.nodes[2:]))


async def test_what_is_renewed_lives_on_and_what_is_not_does_not(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    kept = await ada.share("ex:a ex:b ex:kept .", ttl=hours(1))
    dropped = await ada.share("ex:a ex:b ex:dropped .", ttl=hours(1))
    await cluster.advance(minutes=30)
    await ada.share(name=kept.name, ttl=hours(1))
    await cluster.settled()
    await cluster.advance(minutes=31)
    assert (bo.sees(kept), bo.sees(dropped)) == (True, False)
    await cluster.advance(minutes=30)
    assert not bo.sees(kept)


async def test_a_retracted_version_is_hidden_and_an_erased_one_is_gone(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    hidden = await ada.publish(text="ex:a ex:b ex:hidden .")
    erased = await ada.publish(text='ex:a ex:says "a secret word" .')
    await cluster.settled()
    await ada.retract(hidden, reason="wrong")
    await ada.retract(erased, erase=True)
    await cluster.settled()
    for node in cluster.nodes:
        assert not node.sees(hidden)
        assert not node.sees(erased)
        assert await node.recall("secret") == []
    await cluster.advance(minutes=10)
    for node in cluster.nodes[1:]:
        assert not _holds(node.inside.ledger, b"a secret word")
        assert _holds(node.inside.ledger, b"hidden")
    late = await cluster.join()
    await cluster.settled()
    assert not late.sees(hidden)
    assert not _holds(late.inside.ledger, b"a secret word")
    assert bo.view(hidden) is not None


async def test_nothing_is_retracted_for_a_successor_that_is_not_there(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    asset = await ada.publish(text="ex:a ex:b ex:c .")

    async def retract(successor: int) -> None:
        await ada.face.retract(cluster.graph, asset.reference, reason="", successor=successor, erase=False)

    with pytest.raises(NotFoundError, match="has no version 9"):
        await retract(9)
    with pytest.raises(MisuseError, match="in its own place"):
        await retract(1)
    assert ada.sees(asset)


async def test_a_draft_edited_after_sealing_is_not_shared_under_the_old_seal(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    name = await ada.draft("ex:a ex:b ex:c .")
    await ada.call(lambda: ada.face.seal(cluster.graph, name))
    await ada.draft("ex:a ex:b ex:d .", name=name)
    with pytest.raises(DraftEditedError, match="edited after it was sealed"):
        await ada.share(name=name)
    await ada.call(lambda: ada.face.seal(cluster.graph, name))
    asset = await ada.share(name=name)
    await cluster.settled()
    assert bo.sees(asset)


async def test_a_draft_put_into_another_sub_graph_after_sealing_is_not_shared_under_the_old_seal(
    cluster: Cluster,
) -> None:
    ada, bo, *_ = cluster.nodes
    name, data = await ada.draft("ex:a ex:b ex:c ."), b"<urn:a> <urn:b> <urn:c> ."

    async def draft(subgraph: str) -> None:
        await ada.face.draft(cluster.graph, name, data, format="turtle", base=None, subgraph=subgraph, replace=True)

    await ada.call(lambda: draft("here"))
    await ada.call(lambda: ada.face.seal(cluster.graph, name))
    await ada.call(lambda: draft("there"))
    (shown,) = await ada.face.drafts(cluster.graph)
    assert (shown.subgraph, shown.edited) == ("there", True)
    with pytest.raises(DraftEditedError, match="edited after it was sealed"):
        await ada.share(name=name)
    await ada.call(lambda: ada.face.seal(cluster.graph, name))
    asset = await ada.share(name=name)
    await cluster.settled()
    view = bo.view(asset)
    assert view is not None
    assert view.subgraph == "there"


async def test_a_name_is_enough_to_read_what_became_of_it_where_only_one_author_has_it(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    assert (await bo.face.history(cluster.graph, asset.name)).reference == f"{ada.address}/{asset.name}"
    with pytest.raises(MisuseError):
        await bo.face.history(cluster.graph, "nothing")


async def test_a_private_draft_never_leaves_its_node(cluster: Cluster) -> None:
    ada, *others = cluster.nodes
    await ada.draft('ex:a ex:says "private matter" .', name="mine")
    await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    await cluster.advance(hours=1)
    for node in others:
        assert await node.recall("private matter") == []
        assert not _holds(node.inside.ledger, b"private matter")
    assert (await ada.recall("private matter"))[0].own_draft


async def test_two_versions_of_one_number_are_a_conflict_that_everybody_sees(cluster: Cluster) -> None:
    """Two nodes of one agent that could not talk to each other seal the same version with other content."""
    ada, bo, *_ = cluster.nodes
    twin = await cluster.add("twin")
    await cluster.stop(twin)
    twin.key = bo.key
    await cluster.restart(twin)
    invite = await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=1)
    await twin.face.join(invite, label="")
    await cluster.settled()
    with cluster.partition([bo], [node for node in cluster.nodes if node is not bo]):
        one = await bo.share("ex:a ex:b ex:one .", name="same")
        other = await twin.share("ex:a ex:b ex:other .", name="same")
    await cluster.settled()
    assert (one.version, other.version) == (1, 1)
    for node in cluster.nodes:
        assert node.view(one).conflict, node  # type: ignore[union-attr]
        assert node.view(other).conflict, node  # type: ignore[union-attr]
    after = await bo.share("ex:a ex:b ex:both .", name="same")
    assert after.version == 2


async def test_a_change_of_quorum_does_not_leave_a_verification_hanging(cluster: Cluster) -> None:
    ada, bo, cy, dan = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    with cluster.partition([ada, bo], [cy, dan]):
        job = await ada.start_verify(asset, within=days(1))
        await cluster.advance(minutes=2)
        assert ada.trust(asset) is Trust.PARTIALLY_VERIFIED
        change = MemberChange(set=(NewMember(str(cy.address), ("writer",)),))
        await ada.change_members(change)
        await cluster.advance(minutes=2)
    assert (await ada.job(job)).state == "succeeded"
    await cluster.settled()
    assert {node.trust(asset) for node in cluster.nodes} == {Trust.CONSENSUS_VERIFIED}
    late = await cluster.join()
    await cluster.settled()
    assert late.trust(asset) is Trust.CONSENSUS_VERIFIED


@pytest.mark.cluster(n=4, quorum=2, policy="manual")
async def test_a_rejected_version_is_below_every_floor(cluster: Cluster) -> None:
    ada, bo, cy, dan = cluster.nodes
    asset = await ada.share('ex:a ex:says "doubtful" .')
    job = await ada.start_verify(asset)
    await cluster.settled()
    for node in (bo, cy):
        assert await node.decide(approve=False, reason="no source") == 1
    await cluster.settled()
    assert (await ada.job(job)).state == "succeeded"
    assert {node.trust(asset) for node in cluster.nodes} == {Trust.REJECTED}
    assert await dan.recall("doubtful") == []
    assert (await dan.query("SELECT * { ?s ?p ?o }")).rows == ()


async def test_verifiers_may_be_away_for_a_weekend(cluster: Cluster) -> None:
    ada, bo, cy, dan = cluster.nodes
    await cluster.stop(bo, cy, dan)
    asset = await ada.publish(text="ex:a ex:b ex:c .")
    job = await ada.start_verify(asset)
    await cluster.advance(days=2.5)
    assert ada.trust(asset) is Trust.SELF_ATTESTED
    await cluster.restart(bo, cy, dan)
    assert (await ada.job(job)).state == "succeeded"
    await cluster.settled()
    assert {node.trust(asset) for node in cluster.nodes} == {Trust.CONSENSUS_VERIFIED}


def _holds(ledger: object, text: bytes) -> bool:
    """Whether the ledger's file holds these bytes in any content, draft or item."""
    database = ledger.database  # type: ignore[attr-defined]
    rows = database.read(
        lambda connection: connection.execute(
            "SELECT data FROM content UNION ALL SELECT data FROM item UNION ALL SELECT content FROM draft"
        ).fetchall()
    )
    return any(text in row[0] for row in rows)


@pytest.mark.parametrize("erase", [False, True], ids=["retracted", "erased"])
async def test_a_publish_that_is_taken_back_waits_for_no_promise(erase: bool, autojump_clock: MockClock) -> None:
    async with Cluster(3, acks=2) as cluster:
        ada, bo, cy = cluster.nodes
        await cluster.stop(bo, cy)
        job = await ada.start_publish(text="ex:a ex:is 1 .")
        await cluster.advance(minutes=1)
        assert (await ada.job(job, wait=seconds(1))).state == "waiting"
        (version,) = await ada.versions()
        await ada.face.retract(cluster.graph, version.reference, reason="", successor=None, erase=erase)
        ended = await ada.job(job, wait=seconds(1))
        assert (ended.state, "was retracted" in ended.error) == ("failed", True)
