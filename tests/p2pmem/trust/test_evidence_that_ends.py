"""Evidence goes with what it is about: it outlives a share once that is published, and ends with one that expires."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import hours, minutes
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from tests.p2pmem.trust.scene import Order, addresses, scene


async def test_evidence_gathered_while_shared_counts_once_published(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .", ttl=minutes(20))
        await it.cluster.settled()
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        async with it.apart(*it.sides()):
            # bo and cy judge the share; ada's side hears of the publication before it hears of the other verdict
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True) == 1
            await it.dan.endorse(asset)
            await it.cluster.settled()
            assert {node.trust(asset) for node in it.awake} == {Trust.PARTIALLY_VERIFIED}
            await it.ada.publish(asset)
        await it.cluster.advance(minutes=30)
        view = await it.agreed(asset)
        assert view is not None
        assert view.published
        assert view.shared_until_ms is None
        assert (view.trust.level, addresses(view)) == (Trust.CONSENSUS_VERIFIED, {it.bo.address, it.cy.address})
        assert [line.signer for line in view.trust.endorsements] == [it.dan.address]
        assert (await it.told(asset)).missing == (str(it.dan.address),)


@pytest.mark.parametrize("meet", [True, False])
async def test_evidence_goes_with_an_expired_share_and_does_not_come_back(
    meet: bool, order: Order, autojump_clock: MockClock
) -> None:
    async with scene(order) as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .", ttl=minutes(20))
        await it.cluster.settled()
        verdicts = [it.verdict(node, asset) for node in (it.bo, it.cy)]
        # where they do not meet they know of one verdict each, and never of the same
        with it.cluster.partition(*(([], []) if meet else it.sides())):
            async with it.apart(*it.sides()):
                for verdict, side in zip(verdicts, it.sides(), strict=True):
                    assert await it.offered(verdict.encode(), *side) == {None}
            level = Trust.CONSENSUS_VERIFIED if meet else Trust.PARTIALLY_VERIFIED
            assert {node.trust(asset) for node in it.awake} == {level}
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
