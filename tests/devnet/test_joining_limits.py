"""What somebody who asks to be let in may cost, at each limit and one past it; and that strangers keep nobody out."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.errors import MisuseError, OutsideError, Reason
from p2pmem_protocol.hello import JOIN_PROTOCOL

from p2pmem.net.framing import encode_frames
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import Stream

ALONE = pytest.mark.cluster(
    n=1, limits=PeerLimits(join_streams_max=2, waiting_requests_max=2, join_ask_max_bytes=2_000, join_ask_timeout_s=3)
)


async def open_join(cluster: Cluster, stack: AsyncExitStack, name: str) -> Stream:
    """A join stream of a stranger of that name, who has said nothing yet."""
    network = await stack.enter_async_context(cluster.fabric.network(name))
    (node, *_) = cluster.nodes
    return await network.open_stream(
        await network.connect(node.inside.network.addresses()[0], expected=None), JOIN_PROTOCOL
    )


async def ended_after_s(stream: Stream) -> float:
    """How long it takes until the other side ends the stream, without a word."""
    began = trio.current_time()
    with suppress(OutsideError):
        assert await stream.receive_some() == b""
    return trio.current_time() - began


@ALONE
async def test_a_join_stream_that_says_nothing_is_over_in_time(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        stream = await open_join(cluster, stack, "mallory")
        assert await ended_after_s(stream) == pytest.approx(3, abs=0.01)


@ALONE
@pytest.mark.parametrize(("size_bytes", "oversize"), [(2_000, 0), (2_001, 1)])
async def test_a_question_may_be_so_long_and_no_longer(cluster: Cluster, size_bytes: int, oversize: int) -> None:
    (ada,) = cluster.nodes
    async with AsyncExitStack() as stack:
        stream = await open_join(cluster, stack, "mallory")
        await stream.send_all(encode_frames([bytes(size_bytes)]))
        assert await ended_after_s(stream) < 1
    assert ada.inside.penalties.reasons[Reason.OVERSIZE] == oversize
    assert ada.inside.penalties.reasons.total() == 1


@ALONE
async def test_of_more_join_streams_than_are_served_the_one_that_was_silent_longest_ends(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        first = await open_join(cluster, stack, "one")
        await trio.sleep(0.5)
        second = await open_join(cluster, stack, "two")
        await trio.sleep(0.5)
        third = await open_join(cluster, stack, "three")
        assert await ended_after_s(first) < 0.1
        assert await ended_after_s(second) == pytest.approx(2.5, abs=0.1)
        assert await ended_after_s(third) == pytest.approx(0.5, abs=0.1)


@ALONE
async def test_strangers_on_all_join_streams_keep_nobody_out(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    opened = 0

    async def occupy(name: str) -> None:
        nonlocal opened
        async with cluster.fabric.network(name) as network:
            peer = await network.connect(ada.inside.network.addresses()[0], expected=None)
            while True:
                await ended_after_s(await network.open_stream(peer, JOIN_PROTOCOL))
                opened += 1
                await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(occupy, f"mallory{number}")
        await cluster.advance(seconds=1)
        new = await cluster.join("new")
        nursery.cancel_scope.cancel()
    assert opened > 20
    asset = await new.share("ex:new ex:is ex:here .")
    await cluster.until_seen(asset, ada)


@ALONE
async def test_so_many_requests_wait_for_a_person_and_no_more(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    invite = await ada.face.invite(cluster.graph, roles=("writer",), uses=9, life_ms=3_600_000, ask=True)

    async def asks(node: ClusterNode) -> type[Exception]:
        with pytest.raises((MisuseError, OutsideError)) as caught:
            await node.face.join(invite, label=node.name)
        return caught.type

    nodes = [await cluster.add(name) for name in ("bo", "cy", "dan")]
    assert [await asks(node) for node in nodes] == [OutsideError, OutsideError, MisuseError]
    requests = await ada.face.join_requests(cluster.graph)
    assert [it.label for it in requests] == ["bo", "cy"]
    await ada.face.decide_join(requests[0].id, approve=False)
    assert await asks(nodes[2]) is OutsideError
    assert [it.label for it in await ada.face.join_requests(cluster.graph)] == ["cy", "dan"]
