"""How members find each other: invites, peers told by peers, and one reachable member in the middle."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from p2pmem_devnet.cluster import NETWORK, Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_jobs import InlineBlocking
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.join import Invite

from p2pmem.face import MemberChange, NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.node import NodeSettings, Surroundings, open_node

BARE = pytest.mark.cluster(n=1, found=False)
THREE = pytest.mark.cluster(n=3)


def sessions(node: ClusterNode) -> set[str]:
    return {it.peer for it in node.inside.services.sessions.all()}


async def star(cluster: Cluster) -> tuple[ClusterNode, list[ClusterNode]]:
    """A node that can be reached, and three members behind NAT."""
    (middle,) = cluster.nodes
    cluster.graph = (await middle.face.found(NewGraph("star"))).graph
    laptops = [await cluster.add(name, listens=False) for name in ("bo", "cy", "dan")]
    invite = await middle.face.invite(cluster.graph, roles=("writer", "endorser"), uses=3, life_ms=60_000)
    for laptop in laptops:
        await laptop.face.join(invite, label=laptop.name)
    return middle, laptops


@BARE
async def test_one_reachable_member_in_the_middle_is_enough(cluster: Cluster) -> None:
    middle, laptops = await star(cluster)
    await cluster.settled()
    for laptop in laptops:
        assert sessions(laptop) == {middle.inside.network.peer_id}
        asset = await laptop.share(f"ex:{laptop.name} ex:says ex:so .")
        await cluster.until_seen(asset, *cluster.nodes)
    # It goes away and comes back; nobody does anything about it.
    await cluster.crash(middle)
    asset = await laptops[0].share("ex:nobody ex:hears ex:this .")
    await cluster.advance(minutes=10)
    assert not laptops[1].sees(asset)
    await cluster.restart(middle)
    await cluster.advance(minutes=2)
    await cluster.until_seen(asset, *cluster.nodes)


@BARE
async def test_who_cannot_be_reached_makes_no_invite_with_rights(cluster: Cluster) -> None:
    node = await cluster.add("laptop", listens=False)
    graph = (await node.face.found(NewGraph("mine"))).graph
    with pytest.raises(MisuseError, match="listens nowhere that others could reach"):
        await node.face.invite(graph, roles=("writer",), uses=1, life_ms=60_000)
    with pytest.raises(MisuseError, match="listens nowhere that others could reach"):
        await node.face.invite(graph, roles=(), uses=1, life_ms=60_000)


@BARE
async def test_an_invite_without_rights_from_behind_nat_leads_to_a_member_that_can_be_reached(cluster: Cluster) -> None:
    middle, (bo, *_) = await star(cluster)
    new = await cluster.add("new")
    await middle.change_members(MemberChange(set=(NewMember(str(new.address), ("writer",), "new"),)))
    await cluster.settled()
    invite = await bo.face.invite(cluster.graph, roles=(), uses=1, life_ms=60_000)
    assert Invite.parse(invite).addresses == middle.inside.network.addresses()
    await new.face.join(invite, label="new")
    asset = await new.share("ex:new ex:is ex:here .")
    await cluster.until_seen(asset, bo)


@BARE
@pytest.mark.parametrize("named", [True, False])
async def test_a_node_that_knows_no_address_any_more_dials_those_of_its_settings(cluster: Cluster, named: bool) -> None:
    middle, (bo, *_) = await star(cluster)
    await cluster.stop(bo)
    places = bo.disk.places()
    assert places.ledger is not None
    with closing(sqlite3.connect(places.ledger)) as database:
        database.execute("DELETE FROM peer_address")
        database.commit()
    addresses = middle.inside.network.addresses() if named else ()
    settings = NodeSettings(NETWORK, "bo", bootstrap=addresses)
    surroundings = Surroundings(blocking=InlineBlocking(), clock=bo.clock, inline=True)
    network = cluster.fabric.network("bo", listen=False)
    async with open_node(settings, Keyring.of(bo.key), network, places, surroundings) as node:
        await cluster.advance(minutes=2)
        met = {it.peer for it in node.services.sessions.all()}
        assert met == ({middle.inside.network.peer_id} if named else set())


@THREE
async def test_members_tell_each_other_where_members_are(cluster: Cluster) -> None:
    """Everybody joined at ada's; with ada gone the others have met, and a newcomer finds bo and cy by dialling ada."""
    ada, bo, cy = cluster.nodes
    await cluster.settled()
    assert cy.inside.network.peer_id in sessions(bo)
    new = await cluster.join("new")
    await cluster.advance(seconds=30)
    assert {bo.inside.network.peer_id, cy.inside.network.peer_id} <= sessions(new)
    await cluster.crash(ada)
    asset = await new.share("ex:still ex:works ex:well .")
    await cluster.until_seen(asset, bo, cy)


@THREE
async def test_a_member_that_tells_of_a_thousand_peers_makes_others_dial_few_and_give_up(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    lies = tuple(f"/memory/nobody-{n}/p2p/{cluster.fabric.peer_id_of(f'nobody-{n}')}" for n in range(1_000))
    lies += ("nonsense", "/ip4/127.0.0.1/tcp/22", f"/ip4/127.0.0.1/tcp/22/p2p/{cluster.fabric.peer_id_of('nobody-1')}")
    bo.inside.exchange._peers_of = lambda peer, asked: lies  # type: ignore[method-assign]
    bo.inside.exchange.server._peers = bo.inside.exchange._peers_of
    await ada.change_members(MemberChange(set=(NewMember(str(bo.address), ("writer",), "bo"),), m=1))
    await cluster.advance(seconds=1)
    assert 20 < len(ada.inside.exchange.dialer.wanted()) <= 140
    await cluster.advance(hours=2)
    assert ada.inside.exchange.dialer.wanted() <= {it.inside.network.peer_id for it in (bo, cy)}
    asset = await bo.share("ex:and ex:all ex:works .")
    await cluster.until_seen(asset, ada, cy)


@THREE
async def test_a_banned_peer_stays_out_over_a_restart_until_it_is_let_in_again(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    await cluster.settled()
    peer = bo.inside.network.peer_id
    assert (await ada.face.peer(peer)).state == "member"
    detail = await ada.face.ban_peer(peer, for_ms=None)
    assert (detail.state, detail.banned_until_ms) == ("banned", -1)
    for _ in range(2):
        await cluster.advance(minutes=5)
        assert peer not in ada.inside.network.connected()
        asset = await ada.share("ex:not ex:from ex:me .")
        await cluster.advance(seconds=1)
        assert cy.sees(asset)
        await cluster.restart(ada)
    assert [it.state for it in await ada.face.peers() if it.peer == peer] == ["banned"]
    await ada.face.unban_peer(peer)
    await cluster.advance(minutes=2)
    assert (await ada.face.peer(peer)).state == "member"


@THREE
async def test_a_ban_for_a_time_ends(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    peer = bo.inside.network.peer_id
    await ada.face.ban_peer(peer, for_ms=60_000)
    await cluster.advance(seconds=59)
    assert peer not in ada.inside.network.connected()
    await cluster.advance(minutes=2)
    assert (await ada.face.peer(peer)).state == "member"
    with pytest.raises(MisuseError):
        await ada.face.ban_peer(ada.inside.network.peer_id, for_ms=None)
    with pytest.raises(MisuseError):
        await ada.face.ban_peer(peer, for_ms=0)
    with pytest.raises(MisuseError):
        await ada.face.ban_peer("nobody", for_ms=1)
