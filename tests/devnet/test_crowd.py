"""Graphs with more members than everybody is connected with: some by lot, and whoever needs it most."""

from __future__ import annotations

from dataclasses import replace

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode

from p2pmem.face import NewGraph
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId

SMALL = PeerLimits(
    members_all_max=4,
    members_few=2,
    members_dialled=3,
    members_connected_max=3,
    members_connected_reachable_max=8,
)
TIGHT = PeerLimits(
    members_all_max=4,
    members_few=2,
    members_dialled=3,
    members_connected_max=3,
    members_connected_reachable_max=3,
)


def connected(node: ClusterNode) -> set[PeerId]:
    return {it.peer for it in node.inside.services.sessions.all()}


def peer(node: ClusterNode) -> PeerId:
    return node.inside.network.peer_id


@pytest.mark.slow
@pytest.mark.cluster(n=10, limits=SMALL)
async def test_above_the_number_for_everybody_each_dials_some_by_lot_and_all_hear_all(cluster: Cluster) -> None:
    await cluster.advance(minutes=5)
    dialled = [len(node.inside.exchange.dialer.wanted()) for node in cluster.nodes]
    # Of those it heard of each dials no more than it needs; nobody is connected with all nine others but, perhaps, ada,
    # at whose address all others joined.
    assert max(dialled[1:]) < 9
    assert all(2 <= len(connected(node)) <= 8 for node in cluster.nodes)
    asset = await cluster.nodes[-1].share("ex:all ex:hear ex:this .")
    await cluster.until_seen(asset, *cluster.nodes)


@pytest.mark.cluster(n=4, limits=replace(TIGHT, members_connected_reachable_max=1))
async def test_in_a_small_graph_everybody_stays_connected_though_there_is_no_room(cluster: Cluster) -> None:
    await cluster.advance(minutes=5)
    assert [len(connected(node)) for node in cluster.nodes] == [3, 3, 3, 3]


@pytest.mark.cluster(n=1, found=False, limits=TIGHT)
async def test_a_full_node_never_leaves_members_that_have_no_other(cluster: Cluster) -> None:
    (middle,) = cluster.nodes
    cluster.graph = (await middle.face.found(NewGraph("star"))).graph
    laptops = [await cluster.add(f"laptop{at}", listens=False) for at in range(6)]
    invite = await middle.face.invite(cluster.graph, roles=("writer",), uses=6, life_ms=60_000)
    for laptop in laptops:
        await laptop.face.join(invite, label=laptop.name)
    await cluster.advance(minutes=5)
    assert connected(middle) == {peer(laptop) for laptop in laptops}
    asset = await laptops[0].share("ex:all ex:hear ex:this .")
    await cluster.until_seen(asset, *cluster.nodes)


@pytest.mark.cluster(n=1, found=False, limits=TIGHT)
async def test_a_full_node_leaves_a_member_that_has_others_for_one_that_has_none(cluster: Cluster) -> None:
    (middle,) = cluster.nodes
    cluster.graph = (await middle.face.found(NewGraph("star"))).graph
    others = [await cluster.add(name) for name in ("bo", "cy", "dan")]
    invite = await middle.face.invite(cluster.graph, roles=("writer",), uses=4, life_ms=600_000)
    for node in others:
        await node.face.join(invite, label=node.name)
    await cluster.advance(minutes=2)
    assert all(len(connected(node)) == 3 for node in cluster.nodes)
    laptop = await cluster.add("laptop", listens=False)
    await laptop.face.join(invite, label="laptop")
    await cluster.advance(seconds=30)
    assert peer(laptop) in connected(middle)
    assert len(connected(middle)) == 3
    # Whoever was left is not dialled, nor let in, for a minute; it hears everything from the others.
    (left,) = [node for node in others if peer(node) not in connected(middle)]
    asset = await laptop.share("ex:all ex:hear ex:this .")
    await cluster.until_seen(asset, *cluster.nodes)
    assert peer(left) not in connected(middle)
    assert await middle.face.peers()
    assert peer(left) not in {PeerId(it.peer) for it in await middle.face.peers()}, "it is not banned"


@pytest.mark.cluster(n=6, limits=TIGHT)
async def test_many_peers_of_one_member_that_say_they_have_no_other_push_nobody_out(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    await cluster.advance(minutes=3)
    parting, of_bo, parted, wronged = ada.inside.exchange._parting, {peer(bo)}, set[PeerId](), set[PeerId]()
    told, part = parting._list_length, parting._part
    parting._list_length = lambda peer, graph: 0 if peer in of_bo else told(peer, graph)

    async def noted(who: PeerId, for_s: float) -> None:
        parted.add(who)
        if who not in of_bo and sum(it.peer in of_bo for it in parting._neighbours()) > 1:
            wronged.add(who)
        await part(who, for_s)

    parting._part = noted
    for number in range(4):
        of_bo.add(peer(await cluster.twin(bo, f"twin{number}")))
    await cluster.advance(minutes=3)
    assert parted & of_bo
    assert not wronged


@pytest.mark.cluster(n=6, limits=replace(SMALL, heard_peers_max=4))
async def test_peers_of_one_member_that_fill_all_that_is_dialled_on_hearsay_give_way_to_others(
    cluster: Cluster,
) -> None:
    ada, bo, cy, *_ = cluster.nodes
    dialer = ada.inside.exchange.dialer
    for it in dialer.wanted():
        dialer.unwant(it)
    for it in connected(ada):
        await ada.inside.network.disconnect(it, "so that ada dials")
    for node in [bo, *[await cluster.twin(bo, f"twin{number}") for number in range(3)]]:
        ada.inside.exchange.meeting.hear_of(node.inside.network.addresses()[0])
    await cluster.advance(seconds=4)
    ada.inside.exchange.meeting.hear_of(cy.inside.network.addresses()[0])
    assert peer(cy) in dialer.wanted()


@pytest.mark.cluster(n=6, limits=SMALL)
async def test_peers_of_one_member_count_as_one_that_is_met(cluster: Cluster) -> None:
    ada, bo, *_ = cluster.nodes
    (graph,) = ada.inside.ledger.graphs
    await cluster.twin(bo, "twin")
    await cluster.advance(minutes=2)
    members = {ada.inside.services.sessions.member_of(it) for it in ada.inside.services.sessions.all()}
    assert ada.inside.exchange.meeting._members_met(graph) == len(members)
    assert ada.inside.exchange.meeting._members_met(graph) < len(connected(ada))
