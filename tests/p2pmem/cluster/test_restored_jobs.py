"""A job that a restored copy holds, and that had its effect after the copy was made, has it no second time."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from p2pmem_devnet.anvil import AnvilMissingError, find_anvil
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import Asset, ClusterNode, NodeDownError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.records import ProposeRecord, SealedRecord

from p2pmem.face import JobView
from p2pmem.work.sharing import ShareArgs
from tests.conftest import needs

FIRST, SECOND = (f"ex:a ex:b ex:{it} ." for it in ("one", "two"))


def ledger_of(node: ClusterNode) -> Path:
    path = node.disk.places().ledger
    assert path is not None
    return path


@pytest.fixture
def anvil_is_there() -> None:
    try:
        find_anvil()
    except AnvilMissingError as error:
        needs(str(error))


class Copy:
    """A node's ledger as it was when it passed a crash point; the node goes on after that."""

    def __init__(self, node: ClusterNode) -> None:
        """The node is down, and its log is still beside its ledger: a copy is one file."""
        self.node = node
        with TemporaryDirectory() as place:
            copy = Path(place, "copy.sqlite")
            for suffix in ("", "-wal"):
                copyfile(f"{ledger_of(node)}{suffix}", f"{copy}{suffix}")
            connection = sqlite3.connect(copy)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            self.data = copy.read_bytes()

    @classmethod
    async def at(cls, node: ClusterNode, point: str, ask: Callable[[], Awaitable[object]]) -> Copy:
        """Of the moment at which the node passes `point` while it does what it is asked."""
        node.crash_at = (point, 1)
        with suppress(NodeDownError):
            await ask()
        await node.cluster.crashed(node)
        copy = cls(node)
        await node.cluster.restart(node)
        return copy

    def _replace_files(self) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{ledger_of(self.node)}{suffix}").unlink(missing_ok=True)
        ledger_of(self.node).write_bytes(self.data)

    async def put_back(self) -> None:
        await self.node.cluster.stop(self.node)
        self._replace_files()
        await self.node.cluster.restart(self.node)


async def ended(node: ClusterNode, kind: str) -> JobView:
    """The node's only job of a kind, once it has ended."""
    (job,) = await node.face.jobs(state=None, limit=10, before=None, kind=kind)
    return await node.job(job)


def said(node: ClusterNode, kind: Kind) -> list[SealedRecord]:
    return [it for it in node.graph.set.records() if isinstance(it, SealedRecord) and it.kind is kind]


@pytest.mark.cluster(n=2, acks=1)
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_a_publish_that_came_back_from_members_is_not_published_as_the_next_version(
    cluster: Cluster, is_sealed: bool
) -> None:
    ada, bo = cluster.nodes
    await ada.draft(FIRST, name="n")
    if is_sealed:
        await ada.face.seal(cluster.graph, "n")
    copy = await Copy.at(ada, "publish/admit/before", lambda: ada.start_publish("n"))
    first = await ended(ada, "publish")
    await cluster.settled()
    await copy.put_back()
    again = await ended(ada, "publish")
    assert again.state == "succeeded", again
    assert again.id == first.id
    assert again.result == first.result
    assert await ada.face.drafts(None) == ()
    await cluster.settled()
    for node in (ada, bo):
        (published,) = said(node, Kind.PUBLISH)
        assert published.key.version == 1


@pytest.mark.cluster(n=2, acks=1)
async def test_so_it_is_when_the_next_version_came_back_too(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await ada.draft(FIRST, name="n")
    copy = await Copy.at(ada, "publish/admit/before", lambda: ada.start_publish("n"))
    first = await ended(ada, "publish")
    later = await ada.share(SECOND, name="n")
    await cluster.settled()
    del ada.promises[:], ada.said[-1:]  # the share's job is what a restore loses
    await copy.put_back()
    assert (await ended(ada, "publish")).result == first.result
    await cluster.settled()
    assert [len(said(node, Kind.PUBLISH)) for node in (ada, bo)] == [1, 1]
    assert ada.sees(later)


@pytest.mark.cluster(n=2)
async def test_what_was_taken_back_since_is_not_published_again(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await ada.draft(FIRST, name="n")
    copy = await Copy.at(ada, "publish/admit/before", lambda: ada.start_publish("n"))
    result: Any = (await ended(ada, "publish")).result
    version = await ada.face.version(cluster.graph, f"{ada.address}/n@1")
    assert version.version == result["version"]
    await ada.face.retract(cluster.graph, "n", reason="wrong", successor=None, erase=False)
    await cluster.settled()
    await copy.put_back()
    again = await ended(ada, "publish")
    assert again.state == "failed"
    assert "was retracted" in again.error
    await cluster.settled()
    assert [len(said(node, Kind.PUBLISH)) for node in (ada, bo)] == [1, 1]
    # Its content may be said again, by whoever wants that: as the next version.
    await ada.face.seal(cluster.graph, "n")
    assert (await ada.publish("n")).version == 2


@pytest.mark.cluster(n=2)
async def test_a_share_that_waited_and_came_back_from_members_is_not_shared_again(cluster: Cluster) -> None:
    ada, bo = cluster.nodes

    async def ask() -> None:
        args = ShareArgs(ada.graph.id, bytes(ada.address), "n", None)
        await ada.inside.queue.submit(ada.inside.services.sharing.share, args)

    await ada.draft(FIRST, name="n")
    copy = await Copy.at(ada, "share/admit/before", ask)
    first = await ended(ada, "share")
    await cluster.settled()
    await cluster.advance(minutes=5)
    await copy.put_back()
    again = await ended(ada, "share")
    assert again.state == "succeeded", again
    assert again.result == first.result
    assert await ada.face.drafts(None) == ()
    await cluster.settled()
    assert [len(said(node, Kind.SHARE)) for node in (ada, bo)] == [1, 1]
    # By hand it is a renewal, of the same version.
    await cluster.advance(minutes=5)
    assert (await ada.share(name="n")).version == 1


@pytest.mark.cluster(n=2)
async def test_what_is_published_already_is_not_signed_for_again(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await ada.publish(text=FIRST, what="n")
    await cluster.advance(minutes=5)
    assert (await ada.publish("n")).version == 1
    await cluster.settled()
    assert [len(said(node, Kind.PUBLISH)) for node in (ada, bo)] == [1, 1]


@pytest.mark.cluster(n=2)
async def test_what_another_node_of_the_agent_said_is_that_version_here_too(cluster: Cluster) -> None:
    ada, _ = cluster.nodes
    twin = await cluster.twin(ada, "ada2")
    first = await ada.share(FIRST, name="n")
    await cluster.settled()
    assert (await twin.share(FIRST, name="n")).key == first.key
    again = await ada.share(SECOND, name="m")
    await cluster.settled()
    how: dict[str, Any] = {"format": "turtle", "base": None, "subgraph": "", "ttl_ms": None}
    data = f"@prefix ex: <http://example.org/> .\n{SECOND}".encode()
    job = await twin.face.share_data(cluster.graph, "m", data, **how)
    assert job.result["seal"] == again.seal
    assert (await twin.share(SECOND, name="n")).version == 2
    # What this node let go itself it says anew as it is asked to.
    assert (await twin.share(SECOND, name="n")).version == 3


@pytest.mark.cluster(n=2)
async def test_an_endorsement_that_came_back_from_members_is_one(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share(FIRST, name="n")
    await cluster.settled()
    copy = await Copy.at(bo, "endorse/admit/before", lambda: bo.endorse(asset, reason="read it"))
    first = await ended(bo, "endorse")
    await cluster.settled()
    await cluster.advance(minutes=5)
    await copy.put_back()
    assert (await ended(bo, "endorse")).result == first.result
    await cluster.settled()
    for node in (ada, bo):
        assert len([it for it in node.graph.set.records() if it.kind is Kind.ENDORSE]) == 1


@pytest.mark.cluster(n=3, policy="manual")
async def test_a_proposal_that_came_back_from_members_is_one(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    asset: Asset = await ada.share(FIRST, name="n")
    await cluster.settled()
    copy = await Copy.at(ada, "verify/propose-1/before", lambda: ada.start_verify(asset))
    await cluster.settled()
    await cluster.advance(minutes=5)
    await copy.put_back()
    await cluster.advance(minutes=5)
    await cluster.settled()
    for node in cluster.nodes:
        assert len([it for it in node.graph.set.records() if isinstance(it, ProposeRecord)]) == 1
    for node in (bo, cy):
        assert await node.decide(approve=True) == 1
    assert (await ended(ada, "verify")).state == "succeeded"


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.usefixtures("anvil_is_there")
@pytest.mark.parametrize("point", ["publish/admit/before", "anchor/admit/before"])
def test_what_was_anchored_since_is_anchored_once(point: str) -> None:
    async def scenario() -> None:
        with trio.fail_after(90):
            async with Cluster(n=2, seed=5, net="libp2p", chain="anvil", acks=1) as cluster:
                ada, bo = cluster.nodes
                await ada.draft(FIRST, name="n")
                copy = await Copy.at(ada, point, lambda: ada.start_publish("n"))
                await succeeded(ada, "publish", "anchor")
                await cluster.settled()
                sent = await transactions(cluster, ada)
                await copy.put_back()
                await succeeded(ada, "publish", "anchor")
                await cluster.settled()
                assert await transactions(cluster, ada) == sent
                for node in (ada, bo):
                    assert [it.key.version for it in said(node, Kind.PUBLISH)] == [1]
                    assert len([it for it in node.graph.set.records() if it.kind is Kind.ANCHOR]) == 1

    trio.run(scenario)


async def succeeded(node: ClusterNode, *kinds: str) -> None:
    """Waits for all jobs of these kinds, in this order: one may ask for the next."""
    for kind in kinds:
        for job in await node.face.jobs(state=None, limit=10, kind=kind):
            assert (await node.job(job)).state == "succeeded"


async def transactions(cluster: Cluster, node: ClusterNode) -> int:
    return int(await cluster.anvil.rpc("eth_getTransactionCount", str(node.address), "latest"), 16)
