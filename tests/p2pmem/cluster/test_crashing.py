"""A node dies at any commit, on either side of it, and comes back: nothing acknowledged is lost, nothing is stuck."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, hours
from p2pmem_devnet.cluster_node import Asset, ClusterNode, NodeDownError
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewMember, NotFoundError

POINTS = ("database.before_commit", "database.after_commit")
Story = Callable[[Cluster, ClusterNode], Awaitable[list[Asset]]]


async def _shares(cluster: Cluster, node: ClusterNode) -> list[Asset]:
    """Draft, share, publish, verify and take back."""
    shared = await _again(cluster, node, lambda: node.share("ex:a ex:b ex:shared .", name="s", ttl=hours(9)))
    published = await _again(cluster, node, lambda: node.publish("p", text="ex:a ex:b ex:published ."))
    await _again(cluster, node, lambda: node.start_verify(published))
    gone = await _again(cluster, node, lambda: node.share("ex:a ex:b ex:gone .", name="g"))
    with suppress(NotFoundError):  # it died after that was written, so there is nothing left to take back
        await _again(cluster, node, lambda: node.retract(gone, erase=True))
    return [shared, published]


async def _reviews(cluster: Cluster, node: ClusterNode) -> list[Asset]:
    """Hear of a proposal, review it, acknowledge what is published, endorse."""
    other = next(it for it in cluster.nodes[1:] if it is not node)
    published = await other.publish(text="ex:a ex:b ex:c .")
    await other.start_verify(published)
    await _again(cluster, node, lambda: cluster.until_seen(published, node))
    await _again(cluster, node, lambda: node.endorse(published))
    return [published]


async def _rosters(cluster: Cluster, node: ClusterNode) -> list[Asset]:
    """The quorum and the members change while the node looks on."""
    ada, *others = cluster.nodes
    other = next(it for it in others if it is not node)
    asset = await other.share("ex:a ex:b ex:c .")
    await ada.change_members(MemberChange(set=(NewMember(str(other.address), ("writer",)),)))
    await ada.change_members(MemberChange(m=1))
    await _again(cluster, node, lambda: node.share("ex:a ex:b ex:late .", name="late"))
    return [asset]


async def _again(cluster: Cluster, node: ClusterNode, call: Callable[[], Awaitable[Asset]]) -> Asset:
    """Do it, and once more when the node died of it: a user whose command broke off runs it again."""
    try:
        return await call()
    except NodeDownError:
        await cluster.crashed(node)
        await cluster.restart(node)
        return await call()


async def _run(story: Story, point: str, at: int, seed: int) -> bool:
    """Run a story in which node cy dies when it passes the point for the `at`-th time. False: it never did."""
    async with Cluster(3, seed=seed, quorum=1) as cluster:
        node = cluster.nodes[2]
        node.crash_at = (point, at)
        assets = await story(cluster, node)
        await cluster.advance(minutes=2)
        node.crash_at = None
        crashed = node.incarnation > 1 or not node.is_up
        if not node.is_up:
            await cluster.restart(node)
        await cluster.settled()
        for asset in assets:
            for each in cluster.nodes:
                assert each.sees(asset), (each, asset)
        for each in cluster.nodes:
            jobs = await each.call(lambda each=each: each.face.jobs(state=None, limit=100))  # type: ignore[misc]
            assert {job.state for job in jobs} <= {"succeeded"}, [job for job in jobs if job.state != "succeeded"]
        if story is not _rosters:
            published = assets[-1]
            assert {each.trust(published) for each in cluster.nodes} == {Trust.CONSENSUS_VERIFIED}
        return crashed


def _walk(story: Story, point: str, begin: int, step: int) -> int:
    """Die at every `step`-th passage of the point until the story is over; returns how often that was."""
    for crashed, at in enumerate(range(begin, 80, step)):
        try:
            died = trio.run(_run, story, point, at, at, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            raise AssertionError(f"{story.__name__}: died at {point} number {at}") from error
        if not died:
            return crashed
    raise AssertionError("the story never ends")


@pytest.mark.parametrize(("point", "begin"), [(POINTS[0], 3), (POINTS[1], 5)])
@pytest.mark.parametrize("story", [_shares, _reviews, _rosters])
def test_a_node_dies_at_a_commit_and_nothing_is_lost(story: Story, point: str, begin: int) -> None:
    assert _walk(story, point, begin, 7) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("story", [_shares, _reviews, _rosters])
def test_a_node_dies_at_any_commit_and_nothing_is_lost(story: Story, point: str) -> None:
    assert _walk(story, point, 1, 1) >= 5
