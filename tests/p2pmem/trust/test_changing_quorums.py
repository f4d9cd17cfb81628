"""verify while the quorum changes: who is asked again, what was verified stays, and what was half done does not."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import minutes
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.evidence import Decision
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.cli.views_trust import show_explanation
from p2pmem.face import Explanation, MemberChange
from p2pmem.work import verifying
from tests.p2pmem.trust.scene import Order, addresses, scene


async def test_a_quorum_that_changes_half_way_is_asked_again_and_old_verdicts_do_not_count(
    order: Order, autojump_clock: MockClock
) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed()
        old = {node: it.verdict(node, asset).encode() for node in (it.bo, it.cy)}
        of_bo, of_cy = it.sides()
        with_ada, late = (of_bo, it.cy) if it.ada in of_bo else (of_cy, it.bo)
        async with it.apart(of_bo, of_cy):
            # ada's side hears a verdict and then of the quorum; the other side another verdict, and of both after it
            for node, side in ((it.bo, of_bo), (it.cy, of_cy)):
                assert await it.offered(old[node], *side) == {None}
            await it.ada.change_members(MemberChange(remove=(str(it.dan.address),), m=2))
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.n) == (Trust.SELF_ATTESTED, 2, 2)
        assert await it.offered(old[late], *with_ada) == {Reason.WRONG_QUORUM}
        assert await it.bo.decide(approve=True) + await it.cy.decide(approve=True) == 2
        await it.cluster.settled()
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"


async def test_a_quorum_that_changes_again_after_its_proposer_has_restarted_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        _, job = await it.proposed()
        await it.change(MemberChange(remove=(str(it.dan.address),), m=2))
        for m in (1, 2):
            await it.cluster.restart(it.ada)
            await it.cluster.settled()
            await it.change(MemberChange(m=m))
        assert len(await it.bo.face.reviews()) == 1
        assert await it.bo.decide(approve=True) + await it.cy.decide(approve=True) == 2
        await it.cluster.settled()
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"


async def test_however_often_the_quorum_changes_it_is_asked_again(autojump_clock: MockClock) -> None:
    async with scene() as it:
        _, job = await it.proposed()
        for change in range(20):
            await it.ada.change_members(MemberChange(m=1 + change % 2))
        await it.cluster.settled()
        assert (await it.ada.job(job, wait=minutes(1))).state == "waiting"
        assert await it.bo.decide(approve=True) + await it.cy.decide(approve=True) == 2
        await it.cluster.settled()
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"


async def test_an_owner_who_changes_the_quorum_for_ever_makes_nobody_sign_for_ever(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "QUORUMS_ASKED_MAX", 4)
    async with scene() as it:
        asset, job = await it.proposed()
        for change in range(3):
            await it.change(MemberChange(m=1 + change % 2))
        assert (await it.ada.job(job, wait=minutes(1))).state == "waiting"
        await it.cluster.restart(it.ada)
        for change in range(6):
            await it.change(MemberChange(m=2 - change % 2))
        ended = await it.ada.job(job)
        assert ended.state == "failed"
        assert "the quorum changed 4 times" in ended.error
        assert await it.bo.face.reviews() == ()
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        assert await it.bo.decide(approve=True) == 1


async def test_where_there_is_no_quorum_for_a_time_the_next_one_is_asked(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, job = await it.proposed()
        told = await it.ada.face.preview_members(it.cluster.graph, MemberChange(m=0))
        assert any("from 2 of 3 to none; open requests to verify wait for the next one" in each for each in told.notes)
        await it.change(MemberChange(m=0))
        await it.cluster.restart(it.ada)
        await it.cluster.advance(hours=1)
        shown = await it.ada.job(job, wait=minutes(1))
        assert (shown.state, "the graph has no quorum" in shown.waiting_for) == ("waiting", True)
        assert await it.bo.face.reviews() == ()
        await it.change(MemberChange(m=1))
        assert await it.bo.decide(approve=True) == 1
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"


async def test_where_there_is_no_quorum_at_the_deadline_that_is_said(autojump_clock: MockClock) -> None:
    async with scene() as it:
        _, job = await it.proposed(within=minutes(20))
        await it.change(MemberChange(m=0))
        await it.cluster.advance(minutes=30)
        ended = await it.ada.job(job)
        assert ended.state == "succeeded"
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "SelfAttested"
        assert "the graph has no quorum" in ended.result["missing"]


def _label(told: Explanation, node: ClusterNode) -> str:
    """As who signed is named: one who is a member no more has no label."""
    return next(it.label or it.signer for it in told.signatures if it.signer == str(node.address))


async def test_a_complete_certificate_stays_when_the_quorum_changes(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        await it.cluster.settled()
        half, _ = await it.proposed("ex:half ex:is ex:done .")
        await it.bo.decide(approve=True)
        await it.cluster.settled()
        before = (await it.bo.certificate(asset)).statement
        await it.change(MemberChange(remove=(str(it.cy.address),), m=1))
        members = [node for node in it.awake if node is not it.cy]
        await it.wake()
        for node in [*members, it.eve]:
            view = node.view(asset)
            assert view is not None
            assert view.trust.level is Trust.CONSENSUS_VERIFIED
            assert addresses(view) == {it.bo.address, it.cy.address}
            assert view.trust.certificate is not None
            assert (await node.certificate(asset)).statement == before
            told = await node.face.explain(asset.graph, asset.reference)
            assert (told.kept, set(told.missing)) == (True, {str(it.bo.address), str(it.dan.address)})
            assert told.m_now == 1, "who reads it learns how many the quorum of now would need"
            rows = [row.split() for row in show_explanation(told).splitlines()]
            (by,) = [row for row in rows if "earlier" in row]
            assert {word.rstrip(",") for word in by[-2:]} == {"bo", _label(told, it.cy)}
            (silent,) = [row for row in rows if row[:1] == ["silent"]]
            assert silent == ["silent", "under", "that", "of", "now", *told.missing]
            assert ["needed", "under", "that", "of", "now", "1"] in rows
            lower = node.view(half)
            assert lower is not None
            assert lower.trust.level is Trust.SELF_ATTESTED
        # a rejection under the new quorum is shown beside it and takes nothing away
        assert await it.offer(it.ada, it.verdict(it.dan, asset, Decision.REJECT).encode()) is None
        await it.cluster.settled()
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, len(view.trust.rejections)) == (Trust.CONSENSUS_VERIFIED, 1)
        assert await it.level(half) is Trust.SELF_ATTESTED


async def test_what_the_owner_saw_complete_stays_for_those_who_hear_of_it_after_the_quorum_has_changed(
    order: Order, autojump_clock: MockClock
) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        of_bo, of_cy = it.sides()
        early, late = (it.bo, it.cy) if it.ada in of_bo else (it.cy, it.bo)
        assert await it.dan.decide(approve=True) == 1
        await it.cluster.settled()
        async with it.apart(of_bo, of_cy):
            # complete on either side, by dan and another one each; ada's side hears of the quorum after that
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
            await it.cluster.settled()
            assert {node.trust(asset) for node in it.awake} == {Trust.CONSENSUS_VERIFIED}
            await it.ada.change_members(MemberChange(m=3))
            await it.cluster.settled()
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m) == (Trust.CONSENSUS_VERIFIED, 2)
        assert addresses(view) == {it.dan.address, early.address}, "as far as the owner knew when it changed the quorum"
        told = await it.told(asset)
        assert (told.kept, told.m_now) == (True, 3)
        assert str(late.address) in told.missing
        assert await it.offered(it.verdict(late, asset).encode()) == {None}
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
