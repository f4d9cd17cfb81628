"""How members find each other: invites, peers told by peers, and one reachable member in the middle."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import replace

import pytest
import trio
from p2pmem_devnet.cluster import NETWORK, Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_jobs import InlineBlocking
from p2pmem_protocol.errors import MisuseError, OutsideError, Reason
from p2pmem_protocol.hello import RELAY_PROTOCOL
from p2pmem_protocol.join import Invite

from p2pmem.face import MemberChange, NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.framing import encode_frames
from p2pmem.net.memory_wire import Link
from p2pmem.node import NodeSettings, Surroundings, open_node
from p2pmem.services.join_streams import RELAY_S
from tests.devnet.asking import owner_behind_nat, sessions

BARE = pytest.mark.cluster(n=1, found=False)
THREE = pytest.mark.cluster(n=3)


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
async def test_a_member_in_the_middle_passes_a_join_on_to_an_owner_behind_nat(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    invite = await owner.face.invite(cluster.graph, roles=("writer",), uses=2, life_ms=60_000)
    assert Invite.parse(invite).addresses == middle.inside.network.addresses()
    # The second one is listed some seconds after the first, later than a wrong token would have had its answer.
    laptop, other_laptop = [await cluster.add(name, listens=False) for name in ("laptop", "other")]
    await laptop.face.join(invite, label="laptop")
    await other_laptop.face.join(invite, label="other")
    members = (await owner.face.graph(cluster.graph)).members
    assert {it.label for it in members} >= {"laptop", "other"}
    for one, other in ((laptop, owner), (owner, laptop), (laptop, other_laptop)):
        asset = await one.share(f"ex:{one.name} ex:says ex:so .")
        await cluster.until_seen(asset, other, middle)
    # The invite is used up, for the next one as for the owner.
    late = await cluster.add("late", listens=False)
    with pytest.raises(MisuseError, match="used up"):
        await late.face.join(invite, label="late")


@BARE
async def test_a_request_that_is_passed_on_waits_for_the_owner_and_is_approved(cluster: Cluster) -> None:
    _, owner = await owner_behind_nat(cluster)
    invite = await owner.face.invite(cluster.graph, roles=("writer",), uses=1, life_ms=600_000, ask=True)
    laptop = await cluster.add("laptop", listens=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: laptop.face.join(invite, label="laptop"))
        while not (waiting := await owner.face.join_requests(cluster.graph)):
            await cluster.advance(seconds=1)
        assert [(it.agent, it.label) for it in waiting] == [(str(laptop.address), "laptop")]
        await owner.face.decide_join(waiting[0].id, approve=True)
    asset = await laptop.share("ex:laptop ex:says ex:so .")
    await cluster.until_seen(asset, owner)


@BARE
async def test_only_a_member_of_the_graph_passes_questions_on(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    invite = Invite.parse(await owner.face.invite(cluster.graph, roles=("writer",), uses=1, life_ms=60_000))
    async with cluster.fabric.network("mallory") as mallory:
        for node in (middle,):
            peer = await mallory.connect(node.inside.network.addresses()[0], expected=None)
            stream = await mallory.open_stream(peer, RELAY_PROTOCOL)
            with suppress(OutsideError):
                await stream.send_all(encode_frames([b"12D3KooWsomebody", invite.token]))
                assert await stream.receive_some() == b""
        assert middle.inside.penalties.reasons.total() == 0, "it was not even read"


@BARE
@pytest.mark.parametrize("asker", [b"\xff\xfe", b"1" * 129], ids=["no text", "too long"])
async def test_a_member_that_passes_on_nonsense_is_refused(cluster: Cluster, asker: bytes) -> None:
    middle, owner = await owner_behind_nat(cluster)
    stream = await middle.inside.network.open_stream(owner.inside.network.peer_id, RELAY_PROTOCOL)
    with suppress(OutsideError):
        await stream.send_all(encode_frames([asker, b"a question"]))
        assert await stream.receive_some() == b""
    assert owner.inside.penalties.reasons == {Reason.BAD_FIELD: 1}


@BARE
@pytest.mark.parametrize("known", [True, False])
async def test_a_wrong_token_gets_its_no_at_the_same_moment_whether_or_not_it_was_passed_on(
    cluster: Cluster, known: bool
) -> None:
    middle, owner = await owner_behind_nat(cluster)
    if not known:
        (graph,) = middle.inside.ledger.graphs.values()
        await middle.inside.services.joining.leave(graph)
    invite = Invite.parse(await owner.face.invite(cluster.graph, roles=("writer",), uses=1, life_ms=60_000))
    stranger = await cluster.add("stranger", listens=False)
    cluster.fabric.set_link("ada", "owner", Link(delay_s=0.3))
    began = trio.current_time()
    with pytest.raises(MisuseError, match="nobody lets"):
        await stranger.inside.services.joining.join(replace(invite, token=bytes(16)), "")
    assert trio.current_time() - began == pytest.approx(RELAY_S, abs=0.001)


@BARE
async def test_who_cannot_be_reached_makes_no_invite_with_rights(cluster: Cluster) -> None:
    node = await cluster.add("laptop", listens=False)
    graph = (await node.face.found(NewGraph("mine"))).graph
    with pytest.raises(MisuseError, match="listens nowhere that others could reach"):
        await node.face.invite(graph, roles=("writer",), uses=1, life_ms=60_000)
    with pytest.raises(MisuseError, match="listens nowhere that others could reach"):
        await node.face.invite(graph, roles=(), uses=1, life_ms=60_000)


@BARE
async def test_an_invite_from_a_node_with_many_addresses_names_sixteen_and_is_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = cluster.nodes
    many = tuple(f"/ip4/9.9.9.{number}/tcp/4001" for number in range(1, 40))
    monkeypatch.setattr(node.inside.network, "addresses", lambda: many)
    graph = (await node.face.found(NewGraph("mine"))).graph
    for roles in (("writer",), ()):
        word = await node.face.invite(graph, roles=roles, uses=1, life_ms=60_000)
        assert Invite.parse(word).addresses == many[:16]


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
    bo.inside.exchange.server._peers = lambda peer, asked: lies
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
    assert (detail.state, detail.banned_until_ms, detail.reason) == ("banned", -1, "by hand")
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
