"""What a verification writes: little, and together. Counted, not timed."""

from __future__ import annotations

from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import JobView
from p2pmem.work.reviewing import AT_ONCE_BYTES_MAX
from tests.p2pmem.trust.scene import scene


async def reviews(node: ClusterNode) -> list[JobView]:
    return [job for job in await node.face.jobs(state=None, limit=100) if job.kind == "review"]


async def test_a_verdict_of_the_policy_auto_is_one_write_with_the_job_that_tells_of_it(
    autojump_clock: MockClock,
) -> None:
    async with scene(policy="auto", quorum=3) as it:
        assets = [await it.ada.share(f"ex:trial ex:is {number} .") for number in range(4)]
        await it.cluster.settled()
        before = it.bo.inside.ledger.database.statistics().operations
        for asset in assets:
            await it.ada.start_verify(asset)
        await it.cluster.settled()
        found = await reviews(it.bo)
        assert [job.state for job in found] == ["succeeded"] * 4
        assert {job.result["decision"] for job in found if isinstance(job.result, dict)} == {"approve"}
        story = await it.bo.face.job_story(found[0].id)
        assert (len(story.events), story.steps) == (1, ())
        # Of each version at most: the proposal, its own verdict, and those of the two others.
        assert it.bo.inside.ledger.database.statistics().operations - before <= 4 * 4
        for asset in assets:
            assert await it.level(asset) is Trust.CONSENSUS_VERIFIED


async def test_content_that_takes_long_to_look_at_is_reviewed_as_a_job(autojump_clock: MockClock) -> None:
    async with scene(policy="auto", quorum=3) as it:
        asset = await it.ada.share(f'ex:trial ex:says "{"much " * (AT_ONCE_BYTES_MAX // 5)}" .')
        await it.cluster.settled()
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        (found,) = await reviews(it.bo)
        assert [step.name for step in (await it.bo.face.job_story(found.id)).steps] == ["admit"]
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED


async def test_a_proposal_changes_nothing_that_is_written_about_trust(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        before = it.bo.inside.store.statistics()
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        after = it.bo.inside.store.statistics()
        assert after.position > before.position
        assert (after.meta_changes, after.placements) == (before.meta_changes, before.placements)


async def test_verdicts_that_come_together_are_projected_together(autojump_clock: MockClock) -> None:
    async with scene(policy="auto", quorum=3) as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        before = it.dan.inside.store.statistics()
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        after = it.dan.inside.store.statistics()
        assert it.dan.trust(asset) is Trust.CONSENSUS_VERIFIED
        assert after.transactions - before.transactions <= 2
        assert after.meta_changes - before.meta_changes <= 2
