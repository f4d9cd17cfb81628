"""Rounds that a stranger begins in an open graph and leaves open: what they make this node build and hold."""

from __future__ import annotations

import gc
from itertools import combinations

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol import frames
from p2pmem_protocol.frames import NotGiven, RoundMessage, RoundOpen
from p2pmem_protocol.hello import SYNC_PROTOCOL
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.negentropy import Initiator
from p2pmem_protocol.snapshot import Snapshot

from p2pmem.ledger.narrowed import NARROWED_MAX
from p2pmem.net.framing import FrameReader, encode_frames
from p2pmem.net.limits import PeerLimits

ROUNDS = 30


def snapshots_held() -> int:
    gc.collect()
    return sum(isinstance(it, Snapshot) for it in gc.get_objects())


@pytest.mark.cluster(n=1, access="open", limits=PeerLimits(sync_streams_per_peer_max=2 * ROUNDS))
async def test_rounds_left_open_hold_no_snapshots_of_their_own(cluster: Cluster) -> None:
    ada = cluster.nodes[0]
    parts = list(combinations((int(kind) for kind in Kind), 4))[:ROUNDS]
    start = Initiator(Snapshot.build().view()).start()
    async with cluster.fabric.network("stranger") as network:
        peer = await network.connect(ada.inside.network.addresses()[0], expected=None)
        before = snapshots_held()
        streams = []
        for number in range(ROUNDS):
            await ada.share(f"ex:a{number} ex:b ex:c .")
            head = ada.inside.ledger.graph(ada.graph.id).stand
            for kinds in (tuple(int(kind) for kind in Kind), parts[number]):
                stream = await network.open_stream(peer, SYNC_PROTOCOL)
                streams.append(stream)
                asked = RoundOpen(ada.graph.id, head, ada.clock.now_ms(), kinds, start)
                await stream.send_all(encode_frames([frames.encode(asked)]))
                answer = await FrameReader(stream, frame_max_bytes=frames.MESSAGE_BYTES_MAX).receive()
                assert answer is not None
                assert isinstance(frames.decode(answer), RoundMessage | NotGiven)
        assert snapshots_held() - before <= NARROWED_MAX + 1
        for stream in streams:
            await stream.reset()
