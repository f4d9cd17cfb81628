"""Evidence goes with what it is about: it outlives a share once that is published, and ends with one that expires."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import hours, minutes
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from tests.p2pmem.trust.scene import scene


@pytest.mark.parametrize("first", ["the evidence", "what was published"])
async def test_evidence_gathered_while_shared_counts_once_published(first: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .", ttl=minutes(20))
        await it.cluster.settled()
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        apart = [it.ada, it.dan] if first == "what was published" else []
        with it.cluster.partition(apart, [it.bo, it.cy]):
            # bo and cy judge the share alone; ada and dan, apart from them, hear the publication before the verdicts
            for node in (it.bo, it.cy):
                await node.decide(approve=True)
            await it.dan.endorse(asset)
            await it.ada.publish(asset)
            await it.cluster.settled()
            assert it.ada.trust(asset) is (Trust.ENDORSED if apart else Trust.CONSENSUS_VERIFIED)
        await it.cluster.settled()
        await it.cluster.advance(minutes=30)
        view = await it.agreed(asset)
        assert view is not None
        assert view.published
        assert view.shared_until_ms is None
        assert view.trust.level is Trust.CONSENSUS_VERIFIED
        assert len(view.trust.endorsements) == 1


@pytest.mark.parametrize("apart", [False, True])
async def test_evidence_goes_with_an_expired_share_and_does_not_come_back(
    apart: bool, autojump_clock: MockClock
) -> None:
    async with scene() as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .", ttl=minutes(20))
        await it.cluster.settled()
        verdicts = [it.verdict(node, asset) for node in (it.bo, it.cy)]
        with it.cluster.partition([it.dan] if apart else [], [it.ada, it.bo, it.cy]):
            # dan hears them the other way round; apart, it and the others know of one each, and never of the same
            for node in it.awake:
                told = verdicts[::-1] if node is it.dan else verdicts
                for verdict in told[: 1 if apart else 2]:
                    assert await it.offer(node, verdict.encode()) is None
            level = Trust.PARTIALLY_VERIFIED if apart else Trust.CONSENSUS_VERIFIED
            assert all(node.trust(asset) is level for node in it.awake)
            await it.cluster.advance(minutes=30)
        assert await it.agreed(asset) is None
        for verdict in verdicts:
            assert await it.offered(verdict.encode()) == {Reason.SUBJECT_NOT_HELD}
            assert all(verdict.id not in node.graph.set for node in it.awake)


@pytest.mark.parametrize("policy", ["manual", "auto"])
async def test_what_expired_with_its_verdicts_and_is_shared_again_is_verified_again(
    policy: str, autojump_clock: MockClock
) -> None:
    async with scene(policy=policy) as it:
        # by a job, as everything but what is small and judged by `auto`
        text = "".join(f"ex:trial ex:n {n} .\n" for n in range(2_000))
        for again in (text, None):
            asset = await it.ada.share(again, name="trial", ttl=hours(2))
            await it.cluster.settled()
            job = await it.ada.start_verify(asset)
            await it.cluster.settled()
            for node in (it.bo, it.cy) if again else (it.cy, it.bo):
                assert await node.decide(approve=True) == (policy == "manual")
            assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
            assert (await it.ada.job(job)).state == "succeeded"
            await it.cluster.advance(hours=3)
            assert await it.agreed(asset) is None
