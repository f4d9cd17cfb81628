"""Asks to be let in, by peers on the cluster's network that are no nodes: they say what a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.credential import Carry
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.hello import JOIN_PROTOCOL, Greeting, Proof
from p2pmem_protocol.join import ANSWER_BYTES_MAX, Answer, Ask
from p2pmem_protocol.keys import Key
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import GraphId, GraphName, network_id

from p2pmem.face import NewGraph, NewMember
from p2pmem.net.framing import FrameReader, encode_frames, send_frames
from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.seam import PeerId, Stream

NETWORK = network_id("cluster")


def sessions(node: ClusterNode) -> set[str]:
    return {it.peer for it in node.inside.services.sessions.all()}


async def owner_behind_nat(cluster: Cluster) -> tuple[ClusterNode, ClusterNode]:
    """A graph whose owner only dials, and a member in the middle that can be reached."""
    (middle,) = cluster.nodes
    owner = await cluster.add("owner", listens=False)
    members = (NewMember(str(middle.address), ("writer",), "middle"),)
    cluster.graph = (await owner.face.found(NewGraph("mine", members=members))).graph
    peer = await owner.inside.network.connect(middle.inside.network.addresses()[0], expected=None)
    chain = owner.inside.ledger.graph(GraphName.parse(cluster.graph).id)
    assert chain.head is not None
    await middle.inside.services.joining._rosters.adopt(
        chain.name, chain.headers.chain_to(chain.head.id), chain.head.body.parts
    )
    owner.inside.exchange.dialer.want(middle.inside.network.addresses()[0])
    await cluster.settled()
    assert sessions(owner) == {peer}
    return middle, owner


def key_of(name: str) -> Key:
    """The key of an agent that nobody knows."""
    return Key(name.encode().ljust(32, b"."))


def ask_of(
    key: Key, peer: PeerId, graph: GraphId, now_ms: int, token: bytes = b"", *, life_ms: int = DAY_MS, label: str = "x"
) -> Ask:
    """What the node of the agent with that key says when it asks to be let in."""
    proof = Proof((Carry(NETWORK, key.address, peer, 1, now_ms + life_ms).sign(key),))
    return Ask(Greeting.ours(NETWORK, now_ms), proof, graph, label).enter(token, peer)


@asynccontextmanager
async def raw_peers(cluster: Cluster, *names: str) -> AsyncIterator[list[MemoryNetwork]]:
    """Peers on the cluster's network that are no nodes, each at an address of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(cluster.fabric.network(name)) for name in names]


async def dial(network: MemoryNetwork, node: ClusterNode) -> PeerId:
    return await network.connect(node.inside.network.addresses()[0], expected=None)


async def open_join(network: MemoryNetwork, node: ClusterNode) -> Stream:
    """A join stream on which nothing was said yet."""
    return await network.open_stream(await dial(network, node), JOIN_PROTOCOL)


async def answer_to(network: MemoryNetwork, node: ClusterNode, ask: Ask) -> Answer | None:
    """Ask, and hear the answer, or None when there comes none."""
    stream = await open_join(network, node)
    try:
        with suppress(OutsideError):
            await send_frames(stream, ask.encode())
            data = await FrameReader(stream, frame_max_bytes=ANSWER_BYTES_MAX).receive()
            return Answer.decode(data) if data is not None else None
    finally:
        await stream.reset()
    return None


async def ended_at_s(stream: Stream) -> float:
    """When the other side ended the stream, without a word."""
    with suppress(OutsideError):
        assert await stream.receive_some() == b""
    return trio.current_time()


async def said_on(stream: Stream, *frames: bytes) -> bytes:
    """Say frames, and hear all that comes."""
    heard = b""
    try:
        with suppress(OutsideError):
            await stream.send_all(encode_frames(frames))
            while data := await stream.receive_some():
                heard += data
    finally:
        await stream.reset()
    return heard
