"""An open graph: anybody may read it, over topics and comparisons; writing stays with who is listed."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, hours
from p2pmem_protocol import cbor, frames
from p2pmem_protocol.errors import MisuseError, Reason
from p2pmem_protocol.frames import Heads
from p2pmem_protocol.hello import SYNC_PROTOCOL

from p2pmem.exchange.open_gossip import topic_of
from p2pmem.face import MemberChange, NewGraph, NewMember, NoRightError
from p2pmem.net.flood import FLOOD_PROTOCOL
from p2pmem.net.framing import encode_frames
from p2pmem.net.seam import NotSpokenError

OPEN = pytest.mark.cluster(n=3, access="open")
GATED = pytest.mark.cluster(n=3)


@OPEN
async def test_members_and_a_reader_hear_of_a_share_by_its_topic_within_seconds(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    reader = await cluster.add("reader")
    view = await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    assert view.access == "open"
    assert str(reader.address) not in {member.address for member in view.members}
    await cluster.settled()
    began = trio.current_time()
    asset = await bo.share("ex:trial ex:lowers ex:ldl .")
    await cluster.until_seen(asset, ada, cy, reader)
    assert trio.current_time() - began < 3, "gossip, not the comparison that comes every minute"
    assert {bytes(key.author) for key in reader.graph.set.assets()} == {bytes(bo.address)}
    assert await reader.face.content(cluster.graph, asset.reference) == await bo.face.content(
        cluster.graph, asset.reference
    )


@OPEN
async def test_j2_who_begins_to_read_late_gets_all_that_was_said_before(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    early = [await bo.share(f"ex:trial ex:number {number} .") for number in range(40)]
    await bo.endorse(await ada.share("ex:a ex:b ex:c ."))
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    await cluster.until_seen(early[-1], reader)
    await cluster.advance(minutes=3)
    assert len(reader.graph.set) == len(ada.graph.set) >= 42
    assert [it.connected for it in (await reader.face.status()).sync if it.peer == ada.inside.network.peer_id] == [True]


@OPEN
async def test_a_reader_gets_content_too_large_for_an_envelope(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    await cluster.settled()
    asset = await ada.share("\n".join(f'ex:s{number} rdfs:label "{"x" * 100}" .' for number in range(1_000)))
    await cluster.advance(seconds=5)
    assert len(await reader.face.content(cluster.graph, asset.reference)) > 64 * 1024


@OPEN
async def test_j2_a_reader_may_not_write_and_members_do_not_take_what_it_says(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    with pytest.raises(NoRightError, match="has not the right to share"):
        await reader.share("ex:a ex:b ex:c .")
    await cluster.advance(minutes=2)
    assert len(ada.graph.set) == 0


@OPEN
async def test_a_reader_that_becomes_listed_is_a_member_without_doing_anything(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    await ada.change_members(MemberChange(set=(NewMember(str(reader.address), ("writer",), "reader"),)))
    await cluster.advance(minutes=2)
    assert ada.inside.network.peer_id in {it.peer for it in reader.inside.services.sessions.all()}
    asset = await reader.share("ex:now ex:i ex:write .")
    await cluster.until_seen(asset, *cluster.nodes)


@OPEN
async def test_a_reader_comes_back_after_a_restart_and_after_a_partition(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    await cluster.restart(reader)
    first = await bo.share("ex:a ex:b ex:c .")
    await cluster.until_seen(first, reader)
    with cluster.partition([reader], [ada, bo, cy]):
        await cluster.advance(minutes=5)
        second = await bo.share("ex:d ex:e ex:f .")
        await cluster.advance(minutes=5)
        assert not reader.sees(second)
    await cluster.until_seen(second, reader)


@OPEN
async def test_an_invite_without_roles_to_an_open_graph_makes_a_reader(cluster: Cluster) -> None:
    _, bo, _ = cluster.nodes
    invite = await bo.face.invite(cluster.graph, roles=(), uses=1, life_ms=1)
    reader = await cluster.add("reader")
    view = await reader.face.join(invite, label="reader")
    assert str(reader.address) not in {member.address for member in view.members}


@OPEN
async def test_a_used_up_invite_to_an_open_graph_says_so_and_makes_no_reader(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    invite = await ada.face.invite(cluster.graph, roles=("writer",), uses=1, life_ms=60_000)
    first, late = await cluster.add("first"), await cluster.add("late")
    await first.face.join(invite, label="first")
    with pytest.raises(MisuseError, match="used up or has ended"):
        await late.face.join(invite, label="late")
    assert await late.face.graphs() == ()


@GATED
async def test_a_gated_graph_is_no_topic_and_its_node_speaks_no_gossip(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    await ada.share("ex:a ex:b ex:c .")
    stranger = await cluster.add("stranger")
    network = stranger.inside.network
    peer = await network.connect(ada.inside.network.addresses()[0], expected=None)
    with pytest.raises(NotSpokenError):
        await network.open_stream(peer, FLOOD_PROTOCOL)
    with pytest.raises(MisuseError, match="nobody lets this node into"):
        await stranger.face.follow(cluster.graph, addresses=ada.inside.network.addresses())


@OPEN
async def test_a_gated_graph_beside_an_open_one_is_no_topic_either(cluster: Cluster) -> None:
    """The positive control of the test above, in one node: what is open is listed, what is gated is not."""
    ada, bo, _ = cluster.nodes
    gated = (await ada.face.found(NewGraph("gated", (NewMember(str(bo.address), ("writer",)),)))).graph
    await bo.face.join(await ada.face.invite(gated, roles=(), uses=1, life_ms=1), label="bo")
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    await ada.share("ex:secret ex:is ex:this .", graph=gated)
    await cluster.settled()
    gossip = ada.inside.exchange.open_gossip
    open_id, gated_id = ada.graph.id, ada.graph_named(gated).id
    peers = {node.inside.network.peer_id for node in (bo, reader)}
    assert peers <= gossip.readers(open_id)
    assert gossip.readers(gated_id) == frozenset()
    assert topic_of(open_id) != topic_of(gated_id)
    assert bo.graph_named(gated).set.assets()
    assert len(reader.inside.ledger.graphs) == 1


@OPEN
async def test_what_expires_in_an_open_graph_goes_everywhere_and_does_not_come_again(cluster: Cluster) -> None:
    ada, _, cy = cluster.nodes
    reader = await cluster.add("reader")
    await reader.face.follow(cluster.graph, addresses=ada.inside.network.addresses())
    asset = await ada.share("ex:a ex:b ex:c .", ttl=hours(1))
    await cluster.until_seen(asset, cy, reader)
    await cluster.advance(hours=2)
    assert [len(node.graph.set) for node in cluster.nodes] == [0, 0, 0, 0]


@OPEN
async def test_garbage_on_a_topic_is_held_against_who_sends_it_and_passed_on_to_nobody(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    for number, said in enumerate((b"\xff\xff", b"\xa0", bytes(20)), 1):
        async with cluster.fabric.network("mallory") as mallory:
            peer = await mallory.connect(ada.inside.network.addresses()[0], expected=None)
            stream = await mallory.open_stream(peer, FLOOD_PROTOCOL)
            message = cbor.encode([1, topic_of(ada.graph.id), bytes([number] * 16), said])
            await stream.send_all(encode_frames([message]))
            await cluster.advance(seconds=1)
            assert sum(ada.inside.penalties.reasons.values()) == number
            assert mallory.connected() == frozenset()
            assert [it.state for it in await ada.face.peers() if it.peer == mallory.peer_id] == ["banned"]
            await ada.face.unban_peer(mallory.peer_id)
    assert bo.inside.penalties.reasons == {}


@OPEN
async def test_an_item_of_a_gated_graph_is_not_taken_from_a_topic_and_told_to_nobody(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    gated = (await ada.face.found(NewGraph("gated"))).graph
    asset = await ada.share("ex:secret ex:is ex:this .", graph=gated)
    (record,) = ada.graph_named(gated).set.records()
    data = ada.inside.ledger.raw(record.id)
    assert data is not None
    async with cluster.fabric.network("mallory") as mallory:
        peer = await mallory.connect(bo.inside.network.addresses()[0], expected=None)
        stream = await mallory.open_stream(peer, FLOOD_PROTOCOL)
        await stream.send_all(encode_frames([cbor.encode([1, topic_of(bo.graph.id), bytes(16), data])]))
        await cluster.advance(seconds=1)
    assert bo.inside.penalties.reasons[Reason.BAD_FRAME] == 1
    assert ada.sees(asset)
    assert len(bo.graph.set) == 0


@OPEN
async def test_of_strangers_that_compare_nothing_is_kept(cluster: Cluster) -> None:
    """Whoever names an open graph may compare, under any number of ids."""
    ada, *_ = cluster.nodes
    await cluster.settled()
    kept = ada.inside.exchange.last_comparisons()
    state = ada.inside.exchange._holdings.state(ada.graph.id, ada.clock.now_ms())
    same = encode_frames([frames.encode(Heads(ada.clock.now_ms(), (state,)))])
    for number in range(20):
        async with cluster.fabric.network(f"stranger {number}") as network:
            peer = await network.connect(ada.inside.network.addresses()[0], expected=None)
            stream = await network.open_stream(peer, SYNC_PROTOCOL)
            await stream.send_all(same)
            assert await stream.receive_some()
    assert ada.inside.exchange.last_comparisons().keys() == kept.keys()
