"""An open graph over the real network: a founder, a member and a reader, with GossipSub between them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from p2pmem_protocol.keys import Key

from p2pmem.exchange.open_gossip import topic_of
from p2pmem.face import NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.gossipsub import MESHSUB, open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NotSpokenError
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from tests.p2pmem.net.helpers import until

pytestmark = pytest.mark.slow


def key_of(name: str) -> Key:
    return Key(hashlib.sha256(name.encode()).digest())


@asynccontextmanager
async def running(name: str) -> AsyncIterator[Node]:
    seed = hashlib.sha256(f"peer {name}".encode()).digest()
    network = Libp2pNetwork(identity_seed=seed, listen=("/ip4/127.0.0.1/tcp/0",))
    topics = partial(open_gossip, identity_seed=seed)
    settings, keyring = NodeSettings("test", name), Keyring.of(key_of(name))
    async with open_node(settings, keyring, network, Places(), Surroundings(), topics=topics) as node:
        yield node


async def say(node: Node, graph: str, name: str) -> str:
    data = f"<http://example.org/{name}> <http://example.org/says> 'this' .".encode()
    await node.face.draft(graph, name, data, format="turtle", base=None, subgraph="", replace=False)
    job = await node.face.share(graph, name, ttl_ms=None)
    assert job.state == "succeeded", job.error
    return job.reference


async def held(node: Node, graph: str, count: int) -> None:
    await node.ledger.until(lambda: len(node.ledger.named(graph).set) >= count)


async def test_a_member_and_a_reader_hear_of_what_is_said_over_gossipsub() -> None:
    with trio.fail_after(60):
        async with running("founder") as founder, running("member") as member, running("reader") as reader:
            listed = NewMember(str(key_of("member").address), ("writer",), "member")
            graph = (await founder.face.found(NewGraph("open", (listed,), access="open"))).graph
            at = founder.network.addresses()
            await member.face.join(await founder.face.invite(graph, roles=(), uses=1, life_ms=1), label="member")
            await reader.face.follow(graph, addresses=at)
            gossip = founder.exchange.open_gossip
            wanted = {member.network.peer_id, reader.network.peer_id}
            await until(lambda: wanted <= gossip.readers(founder.ledger.named(graph).id))
            await say(member, graph, "one")
            await held(founder, graph, 1)
            # The reader is connected to the founder alone, and never to the member.
            await held(reader, graph, 1)
            assert member.network.peer_id not in reader.network.connected()
            await say(founder, graph, "two")
            await held(reader, graph, 2)
            await held(member, graph, 2)
            assert founder.penalties.reasons == member.penalties.reasons == reader.penalties.reasons == {}
            assert topic_of(founder.ledger.named(graph).id) not in graph


async def test_a_node_with_gated_graphs_alone_speaks_no_gossipsub() -> None:
    with trio.fail_after(60):
        async with running("founder") as founder, running("reader") as reader:
            await founder.face.found(NewGraph("gated"))
            peer = await reader.network.connect(founder.network.addresses()[0], expected=None)
            with pytest.raises(NotSpokenError):
                await reader.network.open_stream(peer, MESHSUB)
            await founder.face.found(NewGraph("open", access="open"))
            await trio.testing.wait_all_tasks_blocked(0.2)
            stream = await reader.network.open_stream(peer, MESHSUB)
            await stream.reset()
