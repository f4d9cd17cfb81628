"""A policy that asks others (shapes that are not there yet, a command that fails) may have no answer for long."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import days, hours, minutes
from p2pmem_devnet.cluster_node import Asset
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.seal import Seal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.review.judging import AutoJudge, Judgement
from p2pmem.services import duties
from tests.p2pmem.trust.scene import Scene, addresses, scene

LONG = "".join(f"ex:trial ex:n {n} .\n" for n in range(2_000))
"""Judged by a job, as everything but what is small and judged by `auto`."""


async def asked_about(it: Scene) -> Asset:
    """What ada shared and asks the verifiers about, for eight hours."""
    asset = await it.ada.share(LONG)
    await it.cluster.settled()
    await it.ada.start_verify(asset, within=hours(8))
    return asset


async def test_a_judge_that_gives_no_answer_is_asked_again_as_long_as_anybody_asks_for_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = False
    judge = AutoJudge.judge

    async def sometimes(self: AutoJudge, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        if not answers:
            raise OutsideError("it does not answer")
        return await judge(self, graph, seal, content)

    monkeypatch.setattr(AutoJudge, "judge", sometimes)
    async with scene(policy="auto") as it:
        asset = await it.ada.share(LONG, ttl=days(1))
        await it.cluster.settled()
        job = await it.ada.start_verify(asset, within=hours(8))
        await it.cluster.advance(minutes=1)
        await it.ada.change_members(MemberChange(m=3))
        await it.cluster.advance(hours=1)
        assert (await it.ada.job(job, wait=minutes(1))).state == "waiting"
        for node in it.verifiers:
            # of the first quorum nobody asks for anything any more, and the second one is asked to the end
            reviews = await node.face.jobs(state=None, limit=9, kind="review")
            assert sorted(each.state for each in reviews) == ["cancelled", "queued"]
        answers = True
        await it.cluster.advance(hours=3)
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        ended = await it.ada.job(job)
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"


async def test_a_judge_is_not_asked_on_behalf_of_a_quorum_that_verifies_no_more(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, answered = False, 0
    judge = AutoJudge.judge

    async def sometimes(self: AutoJudge, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        nonlocal answered
        if not answers:
            raise OutsideError("it does not answer")
        answered += 1
        return await judge(self, graph, seal, content)

    monkeypatch.setattr(AutoJudge, "judge", sometimes)
    async with scene(policy="auto") as it:
        asset = await asked_about(it)
        await it.cluster.advance(minutes=1)
        answers = True
        await it.change(MemberChange(m=3))
        await it.cluster.advance(hours=3)
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        assert answered == 3, "once for each verifier"


async def test_a_review_for_a_quorum_that_verifies_no_more_gives_its_place_to_another_at_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "REVIEWS_PER_PROPOSER_MAX", 1)
    asked: list[str] = []

    async def never(self: AutoJudge, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        asked.append(seal.name)
        raise OutsideError("it does not answer")

    monkeypatch.setattr(AutoJudge, "judge", never)
    async with scene(policy="auto") as it:
        asset = await asked_about(it)
        await it.cluster.advance(hours=7)
        (waits,) = await it.bo.face.jobs(state=None, limit=9, kind="review")
        assert waits.state == "queued", "tried again in up to two hours"
        asked.clear()
        await it.ada.change_members(MemberChange(m=3))
        await it.cluster.advance(minutes=1)
        states = sorted(each.state for each in await it.bo.face.jobs(state=None, limit=9, kind="review"))
        assert states == ["cancelled", "queued"]
        assert set(asked) == {asset.name}, "on behalf of the quorum that verifies now"


async def test_a_judge_that_gives_no_answer_is_not_asked_after_the_deadline(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def never(self: AutoJudge, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        nonlocal asked
        asked += 1
        raise OutsideError("it does not answer")

    monkeypatch.setattr(AutoJudge, "judge", never)
    async with scene(policy="auto") as it:
        asset = await it.ada.share(LONG)
        await it.cluster.settled()
        await it.ada.start_verify(asset, within=hours(1))
        await it.cluster.advance(hours=4)
        assert 3 * 12 <= asked <= 3 * 16, "a few times, and seldom after that"
        for node in it.verifiers:
            (review,) = await node.face.jobs(state=None, limit=9, kind="review")
            assert (review.state, "nobody asks for it any more" in review.error) == ("failed", True)


@pytest.mark.parametrize("how", ["it fails", "it takes long"])
async def test_what_a_person_decides_meanwhile_stands_whatever_the_judge_says_later(
    how: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = trio.Event()
    judge = AutoJudge.judge

    async def sometimes(self: AutoJudge, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        if how == "it fails" and not answers.is_set():
            raise OutsideError("it does not answer")
        await answers.wait()
        return await judge(self, graph, seal, content)

    monkeypatch.setattr(AutoJudge, "judge", sometimes)
    async with scene(policy="auto") as it:
        asset = await asked_about(it)
        await it.cluster.advance(minutes=30)
        assert await it.bo.decide(approve=False, reason="I read it, and it is wrong") == 1
        if how == "it fails":
            await it.cluster.advance(hours=2)
            (by_policy,) = await it.bo.face.jobs(state="failed", limit=9, kind="review")
            assert "a person has decided" in by_policy.error, "it is not asked in vain"
        answers.set()
        await it.cluster.advance(hours=3)
        view = await it.agreed(asset)
        assert view is not None
        assert addresses(view) == {it.cy.address, it.dan.address}
        assert [line.signer for line in view.trust.rejections] == [it.bo.address]
        (by_policy,) = await it.bo.face.jobs(state="failed", limit=9, kind="review")
        assert "a person has decided" in by_policy.error
