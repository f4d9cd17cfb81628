"""Strangers take all the places of a node: its members keep theirs, come back to them, and new ones get one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol.errors import OutsideError

from p2pmem.face import NewGraph, NewMember
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import NetworkLimits

FEW = PeerLimits(network=NetworkLimits(inbound_connections_max=4))
CROWD = 12


@asynccontextmanager
async def crowd(cluster: Cluster) -> AsyncIterator[None]:
    """Strangers that connect to the first node, say nothing, and connect again when they lose their connection."""
    (address,) = cluster.nodes[0].inside.network.addresses()

    async def stay(name: str, task_status: trio.TaskStatus[None]) -> None:
        async with cluster.fabric.network(name) as stranger:
            task_status.started()
            while True:
                with suppress(OutsideError):
                    await stranger.connect(address, expected=None)
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for number in range(CROWD):
            await nursery.start(stay, f"stranger {number}")
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.cluster(n=3, limits=FEW)
async def test_members_stay_and_new_ones_join_while_strangers_take_all_places(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    async with crowd(cluster):
        await cluster.advance(minutes=5)
        new = await cluster.join("new")
        await cluster.crash(bo)
        await cluster.advance(minutes=1)
        await cluster.restart(bo)
        await cluster.advance(minutes=1)
        assert ada.inside.network.statistics().inbound_connections == 4
        here = {it.peer for it in ada.inside.services.sessions.all()}
        assert here == {node.inside.network.peer_id for node in (bo, cy, new)}
    asset = await new.share("ex:all ex:is ex:well .")
    await cluster.until_seen(asset, ada, bo, cy)


@pytest.mark.cluster(n=1, found=False, limits=PeerLimits(network=NetworkLimits(inbound_connections_max=16)))
async def test_keys_that_the_owner_of_one_graph_lists_keep_no_member_of_another_out(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    honest = (await ada.face.found(NewGraph("honest"))).graph
    mallory = await cluster.add("mallory")
    keys = [await cluster.add(f"key{number}", listens=False) for number in range(16)]
    listed = tuple(NewMember(str(node.address), ("writer",), node.name) for node in (ada, *keys))
    graph = (await mallory.face.found(NewGraph("crowd", members=listed))).graph
    await ada.face.join(await mallory.face.invite(graph, roles=(), uses=1, life_ms=1), label="ada")
    invite = await ada.face.invite(graph, roles=(), uses=1, life_ms=1)
    for key in keys:
        with suppress(OutsideError):
            await key.face.join(invite, label=key.name)
    await cluster.advance(minutes=2)
    assert ada.inside.network.statistics().inbound_connections >= 14
    laptops = [await cluster.add(name, listens=False) for name in ("bo", "cy", "dan")]
    invite = await ada.face.invite(honest, roles=("writer",), uses=3, life_ms=600_000)
    for laptop in laptops:
        await laptop.face.join(invite, label=laptop.name)
    await cluster.advance(minutes=5)
    here = {it.peer for it in ada.inside.services.sessions.all()}
    assert here >= {laptop.inside.network.peer_id for laptop in laptops}


@pytest.mark.cluster(n=4)
async def test_who_is_a_member_no_more_is_a_stranger_at_once(cluster: Cluster) -> None:
    ada, bo, cy, _ = cluster.nodes
    is_known = ada.inside.services.sessions.is_known
    await cluster.settled()
    assert is_known(bo.inside.network.peer_id)
    assert not is_known(cluster.fabric.peer_id_of("stranger"))
    await cluster.crash(cy)
    await cluster.advance(minutes=2)
    assert is_known(cluster.fabric.peer_id_of("cy")), "it may come back"
    await cluster.remove(cy)
    assert is_known(bo.inside.network.peer_id)
    assert not is_known(cluster.fabric.peer_id_of("cy"))
