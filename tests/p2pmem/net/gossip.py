"""Nodes that gossip, in a line, and RPCs of a size."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from libp2p.pubsub.pb import rpc_pb2

from p2pmem.net.gossipsub import GossipTopics, open_gossip
from p2pmem.net.limits import GossipLimits
from p2pmem.net.seam import Network, PeerId
from p2pmem.net.secure import Identity
from p2pmem.net.topics import Verdict
from tests.attacks.raw import signed_message

from .conftest import Networks


class Inbox:
    """A receiver that takes everything, or answers as told."""

    def __init__(self, verdict: Verdict = Verdict.ACCEPT) -> None:
        self.got: list[bytes] = []
        self.verdict = verdict

    async def __call__(self, peer: PeerId, data: bytes) -> Verdict:
        self.got.append(data)
        return self.verdict


class Node:
    def __init__(self, network: Network, topics: GossipTopics, blamed: list[str]) -> None:
        self.network, self.topics, self.blamed = network, topics, blamed


@asynccontextmanager
async def nodes(
    networks: Networks, count: int, secret: frozenset[str] = frozenset(), limits: GossipLimits | None = None
) -> AsyncIterator[list[Node]]:
    """So many nodes in a line; `secret` topics are spoken of only among the first two."""
    async with AsyncExitStack() as stack:
        line: list[Node] = []
        insiders = {networks.peer_id_of(f"node {index}") for index in range(2)}
        for index in range(count):
            name = f"node {index}"
            network = await stack.enter_async_context(networks.network(name))
            blamed: list[str] = []
            topics = await stack.enter_async_context(
                open_gossip(
                    network,
                    identity_seed=hashlib.sha256(name.encode()).digest(),
                    may_speak=lambda peer, topic: topic not in secret or peer in insiders,
                    blame=lambda peer, why, blamed=blamed: blamed.append(why),  # type: ignore[misc]
                    limits=limits,
                )
            )
            line.append(Node(network, topics, blamed))
        for left, right in itertools.pairwise(line):
            await left.network.connect(right.network.addresses()[0], expected=None)
        yield line


AUTHOR = Identity(b"\x17" * 32)


def subscribed(count: int) -> rpc_pb2.RPC:
    return rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid="open")] * count)


def published(count: int) -> rpc_pb2.RPC:
    return rpc_pb2.RPC(publish=[signed_message(AUTHOR, "open", b"x", number) for number in range(count)])


def controlled(kind: str, count: int, ids: int = 0) -> rpc_pb2.RPC:
    entry = {"topicID": "open"} if kind != "iwant" else {}
    if kind in ("ihave", "iwant"):
        entry["messageIDs"] = [f"{number:04x}".encode() for number in range(ids)]  # type: ignore[assignment]
    rpc = rpc_pb2.RPC()
    for _ in range(count):
        getattr(rpc.control, kind).add(**entry)
    return rpc


def padded(size_bytes: int) -> rpc_pb2.RPC:
    rpc = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * 1_900)])
    rpc.subscriptions[0].topicid += "x" * (size_bytes - rpc.ByteSize())
    assert rpc.ByteSize() == size_bytes
    return rpc
