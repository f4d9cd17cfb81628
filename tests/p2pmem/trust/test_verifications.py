"""verify from asking to its end: deadlines, crashes, changes of the quorum, versions that follow each other."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import days, minutes
from p2pmem_devnet.cluster_node import NodeDownError
from p2pmem_protocol.errors import MisuseError, Reason
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewGraph, NewMember
from tests.p2pmem.trust.scene import Order, addresses, scene, subject


async def test_at_the_deadline_it_says_who_is_missing_and_what_comes_late_counts(
    order: Order, autojump_clock: MockClock
) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed(within=minutes(20))
        of_bo, of_cy = it.sides()
        early, late = (it.bo, it.cy) if it.ada in of_bo else (it.cy, it.bo)
        async with it.apart(of_bo, of_cy):
            # what is early for one side is late for the other; dan hears it the other way round than ada
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
            await it.cluster.advance(minutes=30)
            ended = await it.ada.job(job)
            assert ended.state == "succeeded"
            assert isinstance(ended.result, dict)
            assert ended.result["level"] == "PartiallyVerified"
            _, found, missing = ended.result["missing"].partition("; nothing yet from ")
            assert found
            assert sorted(missing.split(", ")) == sorted([late.name, "dan"])
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, addresses(view)) == (Trust.CONSENSUS_VERIFIED, {early.address, late.address})
        assert await it.dan.decide(approve=True) == 0, "a proposal that has ended asks nobody"
        assert await it.offered(it.verdict(it.dan, asset).encode()) == {None}
        assert len(addresses(await it.agreed(asset))) == 3
        assert (await it.told(asset)).missing == ()


async def test_too_many_rejections_end_it_with_their_reasons(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed()
        async with it.apart(*it.sides()):
            for node, reason in ((it.bo, "the unit is missing"), (it.cy, "wrong drug")):
                assert await node.decide(approve=False, reason=reason) == 1
            await it.cluster.settled()
            assert {node.trust(asset) for node in it.awake} == {Trust.SELF_ATTESTED}
        assert await it.level(asset) is Trust.REJECTED
        told = await it.told(asset)
        assert sorted(each.reason for each in told.signatures if each.kind == "verdict") == [
            "the unit is missing",
            "wrong drug",
        ]
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "Rejected"
        assert sorted(ended.result["rejections"]) == ["bo: the unit is missing", "cy: wrong drug"]


async def test_what_was_rejected_is_below_every_floor_and_a_better_version_takes_its_place(
    order: Order, autojump_clock: MockClock
) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        again = await it.cluster.twin(it.ada, "ada's other")
        await it.cluster.settled()
        # whoever is with dan makes the better version while the other node of ada hears of the rejections
        author, other = (again, it.ada) if order.is_other else (it.ada, again)
        async with it.apart([author, it.dan], [other, it.bo, it.cy]):
            for node in (it.bo, it.cy):
                assert await node.decide(approve=False, reason="no source") == 1
            text = "ex:trial ex:lowers ex:ldl ; ex:source ex:paper ."
            better = await author.share(text, name=asset.name, ttl=days(10))
            await it.cluster.settled()
            assert other.trust(asset) is Trust.REJECTED
            for floor in (Trust.SELF_ATTESTED, Trust.ENDORSED):
                assert await other.versions(min_trust=floor) == []
            assert [each.version for each in await author.versions(min_trust=Trust.SELF_ATTESTED)] == [2]
        await author.start_verify(better)
        await it.cluster.settled()
        of_bo, of_cy = it.sides()
        async with it.apart([*of_bo, again], of_cy):
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
        assert await it.level(better) is Trust.CONSENSUS_VERIFIED
        assert await it.level(asset) is Trust.REJECTED
        assert addresses(await it.agreed(better)) == {it.bo.address, it.cy.address}
        assert (await it.told(better)).kept is (await it.told(asset)).kept is False
        for node in it.awake:
            for floor in (Trust.SELF_ATTESTED, Trust.CONSENSUS_VERIFIED):
                assert [each.version for each in await node.versions(min_trust=floor)] == [2]


@pytest.mark.parametrize("first", ["the verdicts", "the newer version"])
async def test_a_newer_unverified_version_stands_beside_the_verified_one(first: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()

        async def verify() -> None:
            for node in (it.bo, it.cy):
                await node.decide(approve=True)
            await it.cluster.settled()

        if first == "the verdicts":
            await verify()
        newer = await it.ada.share("ex:trial ex:raises ex:ldl .", name=asset.name, ttl=days(10))
        await it.cluster.settled()
        if first == "the newer version":
            await verify()
        assert await it.level(newer) is Trust.SELF_ATTESTED
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        view = await it.agreed(asset)
        assert addresses(view) == {it.bo.address, it.cy.address}
        content, explained, certified = [], [], []
        for node in it.awake:
            (verified,) = await node.versions(min_trust=Trust.CONSENSUS_VERIFIED)
            (latest,) = await node.versions(min_trust=Trust.SELF_ATTESTED)
            assert (verified.version, verified.current) == (1, True)
            assert (latest.version, latest.newer_unverified) == (2, True)
            for floor, version, word in (
                (Trust.CONSENSUS_VERIFIED, 1, "lowers"),
                (Trust.PARTIALLY_VERIFIED, 1, "lowers"),
                (Trust.SELF_ATTESTED, 2, "raises"),
            ):
                found = await node.query("SELECT ?p { ?s ?p ?o }", min_trust=floor)
                assert found.rows == ((f"<http://example.org/{word}>",),), "at a lower floor the newer one is current"
                hits = await node.recall("trial ldl", min_trust=floor)
                assert [hit.version and hit.version.version for hit in hits] == [version]
            content.append(await node.content(asset))
            told = await node.face.explain(asset.graph, asset.reference)
            assert (told.shown, told.kept) == ("ConsensusVerified, 2 of 3, 2 needed, 2 manual", False)
            said = [(each.kind, each.signer, each.decision, each.ignored) for each in told.signatures]
            explained.append((sorted(said), told.missing, told.version.root))
            certified.append((await node.certificate(asset)).statement)
            with pytest.raises(MisuseError, match="not ConsensusVerified"):
                await node.certificate(newer)
        for each in (content, explained, certified):
            assert len(each) == 5
            assert all(other == each[0] for other in each)


@pytest.mark.parametrize("again", ["before anybody heard", "after all heard", "after a restart"])
async def test_asking_twice_is_one_proposal(again: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        others = [node for node in it.awake if node is not it.ada]
        with it.cluster.partition([it.ada], others if again == "before anybody heard" else []):
            job = await it.ada.start_verify(asset)
            if again != "before anybody heard":
                await it.cluster.settled()
            if again == "after a restart":
                await it.cluster.restart(it.ada)
            assert (await it.ada.start_verify(asset)).id == job.id
        await it.wake()
        proposals = [{each.id for each in node.graph.set.proposals(subject(asset))} for node in it.awake]
        assert len(proposals[0]) == 1
        assert all(each == proposals[0] for each in proposals)
        for node in it.verifiers:
            assert len(await node.face.reviews()) == 1
        assert await it.bo.decide(approve=True) + await it.cy.decide(approve=True) == 2
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED


async def test_when_the_proposer_dies_the_others_go_on(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed()
        async with it.apart(*it.sides()):
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
            await it.cluster.settled()
            # it has heard of one of them, and the others go on without it
            assert it.ada.trust(asset) is Trust.PARTIALLY_VERIFIED
            await it.cluster.crash(it.ada)
        assert {node.trust(asset) for node in it.verifiers} == {Trust.CONSENSUS_VERIFIED}
        await it.cluster.restart(it.ada)
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, addresses(view)) == (Trust.CONSENSUS_VERIFIED, {it.bo.address, it.cy.address})
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"
        assert (await it.told(asset)).missing == (str(it.dan.address),)


async def test_what_a_verifier_signed_before_it_died_counts_without_it(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed()
        async with it.apart(*it.sides()):
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
            await it.cluster.settled()
            # bo is dead before those of the other side hear of it, from who was with bo
            await it.cluster.crash(it.bo)
        others = [it.ada, it.cy, it.dan]
        assert {node.trust(asset) for node in others} == {Trust.CONSENSUS_VERIFIED}
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"
        signed = it.said_by(it.bo, asset)
        assert len(signed) == 1
        await it.cluster.restart(it.bo)
        view = await it.agreed(asset)
        assert addresses(view) == {it.bo.address, it.cy.address}
        assert {it.said_by(it.bo, asset, held_by=node) for node in it.awake} == {signed}
        assert (await it.told(asset)).missing == (str(it.dan.address),)


@pytest.mark.parametrize("point", ["review/admit/before", "review/admit/after"])
async def test_a_verifier_that_dies_while_it_signs_has_said_it_once_or_says_it_when_it_is_back(
    autojump_clock: MockClock, point: str
) -> None:
    async with scene(policy="auto", quorum=3) as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        it.bo.crash_at = (point, 1)
        await it.ada.start_verify(asset)
        await it.cluster.crashed(it.bo)
        await it.cluster.settled()
        on_disk = it.said_on_disk(it.bo)
        assert len(on_disk) == point.endswith("after")
        for other in (it.ada, it.cy, it.dan):
            assert it.said_by(it.bo, asset, held_by=other) <= on_disk, "nothing leaves before it is on disk"
        is_known = bool(it.said_by(it.bo, asset))
        assert it.ada.trust(asset) is (Trust.CONSENSUS_VERIFIED if is_known else Trust.PARTIALLY_VERIFIED)
        await it.cluster.restart(it.bo)
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        said = it.said_by(it.bo, asset)
        assert len(said) == 1
        assert on_disk <= said, "what it had said is not said again in other words"


@pytest.mark.parametrize("back", ["together", "one by one, the last first"])
async def test_when_all_verifiers_are_away_for_a_day_they_answer_when_they_are_back(
    back: str, autojump_clock: MockClock
) -> None:
    async with scene(policy="auto") as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        await it.cluster.stop(*it.verifiers)
        job = await it.ada.start_verify(asset)
        await it.cluster.advance(days=1)
        assert (await it.ada.job(job, wait=minutes(1))).state == "waiting"
        if back == "together":
            await it.cluster.stop(it.ada)
            await it.cluster.restart(*it.verifiers)
            await it.cluster.advance(hours=1)
            await it.cluster.restart(it.ada)
        else:
            for node, level in ((it.dan, Trust.PARTIALLY_VERIFIED), (it.cy, Trust.CONSENSUS_VERIFIED)):
                await it.cluster.restart(node)
                await it.cluster.settled()
                assert it.ada.trust(asset) is level
            await it.cluster.restart(it.bo)
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"


async def test_verifiers_that_come_back_apart_after_a_day_answer_on_either_side(
    order: Order, autojump_clock: MockClock
) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed()
        await it.cluster.stop(*it.verifiers)
        await it.cluster.advance(days=1)
        assert (await it.ada.job(job, wait=minutes(1))).state == "waiting"
        async with it.apart(*it.sides()):
            await it.cluster.restart(*it.verifiers)
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
            await it.cluster.settled()
            assert {node.trust(asset) for node in it.awake} == {Trust.PARTIALLY_VERIFIED}
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, addresses(view)) == (Trust.CONSENSUS_VERIFIED, {it.bo.address, it.cy.address})
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"
        assert (await it.told(asset)).missing == (str(it.dan.address),)


async def test_a_proposer_that_dies_before_it_asks_and_is_back_after_the_deadline_says_who_is_missing(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        it.ada.crash_at = ("verify/propose-1/before", 1)
        with pytest.raises(NodeDownError):
            await it.ada.start_verify(asset, within=minutes(20))
        await it.cluster.crashed(it.ada)
        await it.cluster.advance(minutes=30)
        await it.cluster.restart(it.ada)
        await it.cluster.settled()
        (ended,) = await it.ada.face.jobs(state=None, limit=9, kind="verify")
        assert (ended.state, ended.error) == ("succeeded", "")
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "SelfAttested"
        assert "nothing yet from" in ended.result["missing"]


async def test_a_proposer_that_restarts_after_the_deadline_says_what_came_of_it(autojump_clock: MockClock) -> None:
    async with scene() as it:
        _, job = await it.proposed(within=minutes(20))
        await it.cluster.stop(it.ada)
        await it.cluster.advance(minutes=30)
        await it.cluster.restart(it.ada)
        ended = await it.ada.job(job)
        assert ended.state == "succeeded"
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "SelfAttested"


@pytest.mark.parametrize("first", ["the roster", "what it signed", "half of them each"])
async def test_the_key_of_a_former_verifier_signs_nothing_that_counts(first: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        verified, _ = await it.proposed()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        await it.cluster.settled()
        open_, _ = await it.proposed("ex:other ex:is ex:open .")
        under_old = it.verdict(it.dan, open_)
        here = [it.ada, it.bo, it.cy]
        early = {"the roster": [], "what it signed": here, "half of them each": [it.cy]}[first]
        with it.cluster.partition([it.cy] if first == "half of them each" else [], [it.ada, it.bo, it.dan]):
            for node in early:
                assert await it.offer(node, under_old.encode()) is None
                assert node.trust(open_) is Trust.PARTIALLY_VERIFIED
            await it.change(MemberChange(remove=(str(it.dan.address),)))
        await it.cluster.settled()
        under_new = it.verdict(it.dan, open_)
        for node in here:
            assert await it.offer(node, under_old.encode()) is (
                Reason.DUPLICATE if node in early else Reason.WRONG_QUORUM
            )
            assert await it.offer(node, under_new.encode()) is Reason.NOT_LISTED
        assert await it.level(verified) is Trust.CONSENSUS_VERIFIED
        assert await it.level(open_) is Trust.SELF_ATTESTED


async def test_what_rests_on_a_leaked_key_falls_when_it_is_removed_as_leaked(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        await it.cluster.settled()
        solid, _ = await it.proposed("ex:other ex:is ex:solid .")
        for node in (it.bo, it.dan):
            assert await it.offered(it.verdict(node, solid).encode()) == {None}
        change = MemberChange(remove=(str(it.cy.address),), leaked=True)
        preview = await it.dan.face.preview_members(it.cluster.graph, change)
        assert (preview.signer, preview.signs_here) == (str(it.ada.address), False)
        assert [(each.now, each.then) for each in preview.trust] == [
            ("ConsensusVerified, 2 of 3, 2 needed, 2 manual", "SelfAttested, 0 of 2, 2 needed")
        ]
        assert preview.trust[0].reference == asset.reference
        await it.cluster.settled()
        await it.change(change)
        assert await it.level(asset) is Trust.SELF_ATTESTED
        assert await it.level(solid) is Trust.CONSENSUS_VERIFIED


async def test_m_is_neither_0_nor_more_than_can_be_reached(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        verifiers = tuple(NewMember(str(node.address), ("verifier",)) for node in it.verifiers)
        for node in it.awake:
            others = tuple(each for each in verifiers if each.address != str(node.address))
            for m, words in ((0, "verify everything"), (len(others) + 1, "never be reached")):
                with pytest.raises(MisuseError, match=words):
                    await node.face.found(NewGraph("bad", members=others, m=m))
            with pytest.raises(MisuseError, match="nothing could reach it"):
                await node.face.preview_members(it.cluster.graph, MemberChange(m=4))
        with pytest.raises(MisuseError, match="nothing could reach it"):
            await it.ada.change_members(MemberChange(m=4))
        asset, _ = await it.proposed()
        of_bo, of_cy = it.sides()
        early, late = (it.bo, it.cy) if it.ada in of_bo else (it.cy, it.bo)
        async with it.apart(of_bo, of_cy):
            # who is with ada is heard before there is no quorum, and the other after that
            for node in (early, late):
                assert await node.decide(approve=True) == 1
            await it.cluster.settled()
            await it.ada.change_members(MemberChange(m=0))
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.quorum) == (Trust.SELF_ATTESTED, 0, None)
        assert not view.trust.approvals
        assert (await it.told(asset)).m_now == 0
        with pytest.raises(MisuseError, match="no quorum"):
            await it.ada.verify(asset)


async def test_with_m_of_all_a_verifiers_own_things_are_partially_verified_at_most(autojump_clock: MockClock) -> None:
    async with scene(quorum=3) as it:
        asset = await it.bo.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        await it.bo.start_verify(asset)
        await it.cluster.settled()
        for node in (it.cy, it.dan):
            await node.decide(approve=True)
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.n) == (Trust.PARTIALLY_VERIFIED, 3, 2)
        assert "PartiallyVerified at most" in view.trust.would_raise


async def test_what_is_retracted_meanwhile_is_waited_for_no_longer(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, job = await it.proposed()
        await it.ada.retract(asset, reason="the unit is wrong")
        ended = await it.ada.job(job, wait=minutes(1))
        assert (ended.state, "was retracted" in ended.error) == ("failed", True)
