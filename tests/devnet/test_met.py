"""What is kept of where members are: what was seen, little of each, and dialled as hearsay."""

from __future__ import annotations

import random

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.names import Address

from p2pmem.net.dialer import Dialer
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId
from p2pmem.services.met import MetMembers

TWO = pytest.mark.cluster(n=2)
LIMITS = PeerLimits(met_peers_of_graph_max=9)


def kept(node: ClusterNode) -> set[str]:
    rows = node.inside.ledger.database.read(
        lambda connection: connection.execute("SELECT address FROM peer_address").fetchall()
    )
    return {row[0] for row in rows}


@TWO
async def test_an_address_that_a_member_says_is_its_own_is_not_kept_unless_it_was_seen_there(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    peer = bo.inside.network.peer_id
    lies = tuple(
        f"{where}/p2p/{peer}" for where in ("/memory/victim", "/ip4/127.0.0.1/tcp/4001", "/ip4/10.0.0.1/tcp/4001")
    )
    bo.inside.exchange.meeting._announce = lambda: lies
    await ada.inside.network.disconnect(peer, "so that it comes back and says where it is")
    await cluster.advance(minutes=5)
    assert peer in {it.peer for it in ada.inside.services.sessions.all()}
    assert set(ada.inside.exchange.client.known_addresses(peer)) == {lies[0], lies[2]}, "no loopback of ours"
    assert kept(ada) <= {f"/memory/bo/p2p/{peer}"}
    bo.inside.exchange.meeting._announce = lambda: (*lies, f"/memory/bo/p2p/{peer}")
    await ada.inside.network.disconnect(peer, "again")
    await cluster.advance(minutes=5)
    assert kept(ada) == {f"/memory/bo/p2p/{peer}"}


@TWO
async def test_who_was_met_before_a_restart_is_dialled_as_hearsay(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await cluster.settled()
    await cluster.crash(ada, bo)
    await cluster.restart(bo)
    peer = cluster.fabric.peer_id_of("ada")
    await cluster.advance(hours=5)
    target = bo.inside.exchange.dialer._targets[peer]
    assert not target.wanted
    await cluster.restart(ada)
    await cluster.advance(minutes=2)
    assert peer in {it.peer for it in bo.inside.services.sessions.all()}


@TWO
async def test_of_a_member_few_peers_are_kept_and_of_a_graph_a_bounded_number(cluster: Cluster) -> None:
    ada, _ = cluster.nodes
    (graph,) = ada.inside.ledger.graphs
    met = MetMembers(ada.inside.ledger, ada.inside.exchange.dialer, random.Random(1), LIMITS)
    mallory = Address(bytes(20))
    for number in range(LIMITS.peers_of_member_max + 3):
        await met.remember(graph, mallory, PeerId(f"mallory {number}"), f"/memory/m{number}")
    assert {it for it in kept(ada) if it.startswith("/memory/m")} == {
        f"/memory/m{number}" for number in range(3, LIMITS.peers_of_member_max + 3)
    }
    await cluster.advance(seconds=1)
    for number in range(LIMITS.met_peers_of_graph_max):
        await met.remember(graph, Address(number.to_bytes(20)), PeerId(f"o{number}"), f"/memory/o{number}")
    assert kept(ada) == {f"/memory/o{number}" for number in range(LIMITS.met_peers_of_graph_max)}


@pytest.mark.cluster(n=2, limits=LIMITS)
async def test_who_let_this_node_in_is_kept_within_the_same_bounds_and_again_after_it_left_and_came_back(
    cluster: Cluster,
) -> None:
    ada, bo = cluster.nodes
    at_ada = f"/memory/ada/p2p/{ada.inside.network.peer_id}"
    await cluster.settled()
    word = await ada.face.invite(cluster.graph, roles=("writer",), uses=1, life_ms=60_000)
    for _ in range(2):
        assert kept(bo) == {at_ada}
        await bo.face.leave(cluster.graph)
        assert kept(bo) == set()
        await bo.face.join(word, label="bo")
    met, (graph,) = bo.inside.services.joining._met, bo.inside.ledger.graphs
    for number in range(LIMITS.peers_of_member_max + 1):
        await met.remember(graph, None, PeerId(f"member {number}"), f"/memory/m{number}")
    assert kept(bo) - {at_ada} == {f"/memory/m{number}" for number in range(1, LIMITS.peers_of_member_max + 1)}


@TWO
async def test_of_many_that_were_met_some_are_dialled_by_lot(cluster: Cluster) -> None:
    ada, _ = cluster.nodes
    (graph,) = ada.inside.ledger.graphs
    net, fabric = ada.inside.network, cluster.fabric

    async def dialled(chance: int) -> frozenset[PeerId]:
        dialer = Dialer(net, lambda peer: ada.inside.exchange._connected(peer), random.Random(1))
        met = MetMembers(ada.inside.ledger, dialer, random.Random(chance), PeerLimits(members_all_max=5))
        for number in range(20):
            peer = fabric.peer_id_of(f"o{number}")
            await met.remember(graph, Address(number.to_bytes(20)), peer, f"/memory/o{number}/p2p/{peer}")
        met.dial()
        return dialer.wanted()

    first, again, other = [await dialled(chance) for chance in (1, 1, 2)]
    assert len(first) == len(other) == 4
    assert first == again
    assert first != other
