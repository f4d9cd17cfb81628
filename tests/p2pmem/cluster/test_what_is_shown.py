"""What a person is shown of a node: the words of the command line over values of real nodes."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, hours, minutes
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.names import AssetKey
from p2pmem_protocol.view import AssetView, asset_view
from trio.testing import MockClock

from p2pmem.cli.views import level, show_recall, show_status
from p2pmem.face import MemberChange, NewMember
from p2pmem.services import node_reading

pytestmark = pytest.mark.cluster(n=3, quorum=1)


async def test_what_was_compared_with_a_member_who_has_gone_is_said_as_of_then(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    await cluster.settled()
    assert [it.connected for it in (await ada.face.status()).sync] == [True, True]
    assert "not connected" not in show_status(await ada.face.status())
    gone = bo.inside.network.peer_id
    await cluster.stop(bo)
    await cluster.settled()
    status = await ada.face.status()
    assert {it.peer: it.connected for it in status.sync} == {gone: False, cy.inside.network.peer_id: True}
    (line,) = [line for line in show_status(status).splitlines() if gone[:16] in line]
    assert "was equal; not connected" in line


async def test_a_graph_that_one_left_has_no_line_in_the_status(cluster: Cluster) -> None:
    _, bo, _ = cluster.nodes
    await cluster.settled()
    assert (await bo.face.status()).sync
    await bo.leave()
    status = await bo.face.status()
    assert (status.graphs, status.sync) == (0, ())
    await cluster.advance(minutes=10)
    assert (await bo.face.status()).warnings == (), "whom it knew it need not reach any more"


async def test_a_version_that_nobody_else_can_verify_is_not_said_to_have_0_of_0(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    await ada.change_members(MemberChange(set=(NewMember(str(cy.address), ("writer",)),)))
    await cluster.settled()
    asset = await bo.share("ex:a ex:b ex:c .")
    shown = level((await bo.face.version(cluster.graph, asset.reference)).trust)
    assert shown == "SelfAttested, nobody else can verify it, 1 needed"
    assert (await bo.face.explain(cluster.graph, asset.reference)).shown == shown


async def test_a_draft_that_is_recalled_is_named_once(autojump_clock: MockClock) -> None:
    async with Cluster(1) as cluster:
        (ada,) = cluster.nodes
        await ada.draft('ex:a ex:says "private matter" .', name="mine")
        answer = await ada.face.recall("private matter", graph=None, min_trust=None, min_m=0, limit=10)
        shown = show_recall(answer)
        assert shown.count("draft") == 1
        assert f"your own draft; {ada.address}/mine\n" in shown
        await ada.face.discard(cluster.graph, "mine")
        assert await ada.recall("private matter") == []


async def test_a_long_list_lets_others_go_on_and_leaves_out_what_ended_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reading, "LISTED_AT_ONCE", 1)
    async with Cluster(1) as cluster:
        (ada,) = cluster.nodes
        for name in ("a", "b", "c", "d"):
            await ada.share(f"ex:{name} ex:b ex:c .", name=name, ttl=hours(2) if name == "d" else hours(1))
        await cluster.advance(minutes=58)
        looked: list[AssetKey] = []
        listed: list[str] = []

        def look(graph: GraphSet, key: AssetKey, now_ms: int) -> AssetView:
            looked.append(key)
            return asset_view(graph, key, now_ms)

        async def list_all() -> None:
            listed.extend(it.name for it in await ada.versions())

        monkeypatch.setattr(node_reading, "asset_view", look)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(list_all)
            while not looked:
                await trio.lowlevel.checkpoint()
            assert len(looked) < 3, "others have their turn"
            cluster.skew(ada, minutes(4))
            await ada.inside.services.keeper.sweep()
        assert listed == ["d"]


async def test_a_clock_in_doubt_is_shown_with_how_far_it_jumped_and_what_to_do(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    await cluster.settled()
    assert "clock" not in show_status(await ada.face.status())
    for by, words in ((minutes(7), "7m ahead"), (minutes(-7), "7m back")):
        cluster.skew(ada, by)
        shown = show_status(await ada.face.status())
        assert f"clock      in doubt, jumped {words}\n" in shown
        assert "0 of 2 connected members agree with it" in shown
        assert "say so: `p2pmem clock confirm`" in shown
    cluster.skew(ada, minutes(0))
    assert "clock" not in show_status(await ada.face.status())
