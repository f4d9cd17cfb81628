"""A member whose hellos end in one instant has one session all the same, and loses it when it is taken out."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.credential import Carry
from p2pmem_protocol.frames import MESSAGE_BYTES_MAX
from p2pmem_protocol.hello import MEMBER_PROTOCOL, Greeting, Proof
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import network_id

from p2pmem.face import MemberChange
from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.seam import PeerId, Stream

NETWORK = network_id("cluster")


class Member:
    """A peer with a member's key that says its last word when it likes."""

    def __init__(self, network: MemoryNetwork, node: ClusterNode, speaks_for: ClusterNode) -> None:
        self._network, self._node = network, node
        now_ms = node.clock.now_ms()
        carry = Carry(NETWORK, speaks_for.key.address, network.peer_id, 1, now_ms + DAY_MS)
        self.greeting = Greeting.ours(NETWORK, now_ms).encode()
        self.proof = Proof((carry.sign(speaks_for.key),)).encode()
        self._asked, self._dialled = list[Stream](), trio.Event()
        network.set_handler(MEMBER_PROTOCOL, self._hear)

    async def _hear(self, stream: Stream) -> None:
        reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
        await reader.receive()
        await send_frames(stream, self.greeting)
        await reader.receive()
        self._asked.append(stream)
        self._dialled.set()
        await trio.sleep_forever()

    async def asked(self) -> Stream:
        """The stream on which the node, which dialled, waits for our proof."""
        await self._dialled.wait()
        return self._asked[0]

    async def greet(self, peer: PeerId) -> Stream:
        """Hello but for the last word, which is the proof."""
        stream = await self._network.open_stream(peer, MEMBER_PROTOCOL)
        await send_frames(stream, self.greeting)
        return stream


def name_above(cluster: Cluster, node: ClusterNode) -> str:
    """Of a peer with a higher id than the node's: then the hello that the node opened goes before the peer's."""
    return next(
        name
        for name in (f"mallory {number}" for number in range(100))
        if cluster.fabric.peer_id_of(name) > node.inside.network.peer_id
    )


@pytest.mark.cluster(n=3)
@pytest.mark.parametrize("apart", range(-3, 4))
async def test_hellos_that_end_at_once_leave_one_session_that_ends_in_time(cluster: Cluster, apart: int) -> None:
    """`apart`: by how many steps of the scheduler the last word of one comes before that of the other."""
    ada, bo, _ = cluster.nodes
    async with cluster.fabric.network(name_above(cluster, ada)) as network:
        member = Member(network, ada, bo)
        ada.inside.exchange.dialer.want(network.addresses()[0])
        dialled = await member.asked()
        peer = ada.inside.network.peer_id
        first, second = await member.greet(peer), await member.greet(peer)
        await send_frames(first, member.proof)
        await trio.sleep(0.5)
        assert ada.inside.exchange._sessions.get(network.peer_id) is not None
        at_once = [second, dialled] if apart < 0 else [dialled, second]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_frames, at_once[0], member.proof)
            for _ in range(abs(apart)):
                await trio.lowlevel.checkpoint()
            nursery.start_soon(send_frames, at_once[1], member.proof)
        await trio.sleep(1)
        inside = ada.inside.exchange
        assert inside._sessions.get(network.peer_id) is not None, "what stands is known, so it ends with a membership"
        await ada.change_members(MemberChange(remove=(str(bo.address),), m=1))
        await trio.sleep(1)
        assert inside._sessions.get(network.peer_id) is None
        assert network.peer_id not in inside._links
        assert network.peer_id not in inside._gossip._peers
