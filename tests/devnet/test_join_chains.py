"""Rosters that a stranger shows: one that lists him is taken, and what others cost tells nothing of what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.join import Answer, Chain, Reply
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.roster import Body, Parts

from p2pmem.face import MemberChange, NewMember
from tests.devnet.asking import answer_to, ask_of, key_of, raw_peers


def chain_of(node: ClusterNode) -> Chain:
    """The roster that counts at a node, as it is shown to others."""
    head = node.graph.head
    assert head is not None
    return Chain(node.graph.headers.chain_to(head.id), head.body.parts)


@pytest.mark.cluster(n=2)
async def test_a_forged_roster_is_read_no_further_where_its_graph_is_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, _ = cluster.nodes
    true, mallory, read = chain_of(ada), key_of("mallory"), 0
    decode = Parts.decode

    def count(parts: Parts, graph: GraphId) -> Body:
        nonlocal read
        read += 1
        return decode(parts, graph)

    monkeypatch.setattr(Parts, "decode", count)
    forged = replace(true, headers=tuple(replace(it, signature=mallory.sign(it.id)) for it in true.headers))
    async with raw_peers(cluster, "mallory") as (network,):
        for chain, reads in ((forged, 0), (true, 1)):
            for graph in (ada.graph.id, GraphId(bytes(32))):
                read, ask = 0, ask_of(mallory, network.peer_id, graph, ada.clock.now_ms())
                assert await answer_to(network, ada, replace(ask, chain=chain)) == Answer(Reply.NO)
                assert read == (reads if graph == ada.graph.id else 0)
    assert ada.inside.penalties.reasons.total() == 0


@pytest.mark.cluster(n=2)
async def test_j1_a_stranger_shows_the_roster_that_lists_him_to_a_member_that_has_not_heard_of_it(
    cluster: Cluster,
) -> None:
    ada, bo = cluster.nodes
    carl, mallory, old = key_of("carl"), key_of("mallory"), chain_of(ada)
    with cluster.partition([ada], [bo]):
        await ada.change_members(MemberChange(set=(NewMember(str(carl.address), ("writer",), "carl"),)))
        new = chain_of(ada)
        async with raw_peers(cluster, "carl", "mallory") as (of_carl, of_mallory):
            # Who is not listed hears no, whatever he shows; and nobody's word moves the node to what does not list him.
            for key, network, shown in ((mallory, of_mallory, new), (carl, of_carl, old), (carl, of_carl, None)):
                ask = replace(ask_of(key, network.peer_id, ada.graph.id, bo.clock.now_ms()), chain=shown)
                assert await answer_to(network, bo, ask) == Answer(Reply.NO)
                assert chain_of(bo) == old
            ask = replace(ask_of(carl, of_carl.peer_id, ada.graph.id, bo.clock.now_ms()), chain=new)
            assert await answer_to(of_carl, bo, ask) == Answer(Reply.LISTED, new)
            assert chain_of(bo) == new


@pytest.mark.cluster(n=3)
async def test_j1_any_member_hands_the_roster_to_whom_it_lists_and_nobody_to_others(cluster: Cluster) -> None:
    ada = cluster.nodes[0]
    carl, mallory = key_of("carl"), key_of("mallory")
    await ada.change_members(MemberChange(set=(NewMember(str(carl.address), ("writer",), "carl"),)))
    await cluster.settled()
    async with raw_peers(cluster, "carl", "mallory") as (of_carl, of_mallory):
        for node in cluster.nodes:
            ask = ask_of(carl, of_carl.peer_id, ada.graph.id, node.clock.now_ms())
            assert await answer_to(of_carl, node, ask) == Answer(Reply.LISTED, chain_of(ada))
            ask = ask_of(mallory, of_mallory.peer_id, ada.graph.id, node.clock.now_ms())
            assert await answer_to(of_mallory, node, ask) == Answer(Reply.NO)
