"""Words of few bytes that cost a node much: of strangers so many are answered, of members so many a second."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol import frames
from p2pmem_protocol.errors import OutsideError, Reason
from p2pmem_protocol.frames import Frame, Heads, NotGiven
from p2pmem_protocol.hello import SYNC_PROTOCOL

from p2pmem.net.framing import FrameReader, encode_frames
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import Stream
from tests.devnet.asking import dial, raw_peers

QUESTION = frames.encode(Heads(0))
FEW = PeerLimits(reader_requests_max=10, reader_requests_per_address_max=25)
SLOW = PeerLimits(member_requests_per_minute=60, member_frames_per_minute=60)


async def answers_until_the_end(stream: Stream) -> list[frames.Message]:
    reader, heard = FrameReader(stream, frame_max_bytes=frames.MESSAGE_BYTES_MAX), list[frames.Message]()
    with suppress(OutsideError):
        while (data := await reader.receive()) is not None:
            heard.append(frames.decode(data))
    return heard


@pytest.mark.cluster(n=1, limits=FEW)
async def test_a_stranger_who_has_used_up_what_he_may_ask_hears_it_once_and_the_stream_ends(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    async with raw_peers(cluster, "stranger") as (network,):
        peer = await dial(network, ada)
        for answered in (10, 0):
            stream = await network.open_stream(peer, SYNC_PROTOCOL)
            await stream.send_all(encode_frames([QUESTION] * 1_000))
            *heard, last = await answers_until_the_end(stream)
            assert [type(it) for it in heard] == [Heads] * answered
            assert last == NotGiven(int(Reason.TOO_MANY))


@pytest.mark.cluster(n=1, limits=PeerLimits(sync_streams_per_peer_max=3))
async def test_of_one_peer_so_many_sync_streams_are_served_at_once_and_one_more_ends(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    async with raw_peers(cluster, "stranger", "other") as (network, other):
        peer = await dial(network, ada)
        half = encode_frames([bytes(1_000)])[:-1]
        streams = [await network.open_stream(peer, SYNC_PROTOCOL) for _ in range(4)]
        for stream in streams[:3]:
            await stream.send_all(half)
        assert await answers_until_the_end(streams[3]) == []
        for stream in streams[:3]:
            with trio.move_on_after(1) as scope:
                await stream.receive_some()
            assert scope.cancelled_caught
        await streams[0].reset()
        for network_of in (network, other):
            stream = await network_of.open_stream(await dial(network_of, ada), SYNC_PROTOCOL)
            await stream.send_all(encode_frames([QUESTION]))
            await stream.close_write()
            assert [type(it) for it in await answers_until_the_end(stream)] == [Heads]


@pytest.mark.cluster(n=1, limits=FEW)
async def test_a_stranger_who_asks_as_ever_new_peers_has_what_his_address_has(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada,) = cluster.nodes
    monkeypatch.setattr(ada.inside.exchange.server, "_address_of", lambda peer: "/ip4/192.0.2.1/tcp/1")
    answered = []
    async with raw_peers(cluster, "a", "b", "c", "d") as networks:
        for network in networks:
            stream = await network.open_stream(await dial(network, ada), SYNC_PROTOCOL)
            await stream.send_all(encode_frames([QUESTION] * 11))
            answered.append(sum(isinstance(it, Heads) for it in await answers_until_the_end(stream)))
    assert answered == [10, 10, 5, 0]


@pytest.mark.cluster(n=2, limits=SLOW)
async def test_a_member_is_answered_so_many_questions_at_once_and_the_others_one_a_second(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await cluster.advance(minutes=5)
    began = trio.current_time()
    heard: list[float] = []
    stream = await bo.inside.network.open_stream(ada.inside.network.peer_id, SYNC_PROTOCOL)
    await stream.send_all(encode_frames([QUESTION] * 70))
    reader = FrameReader(stream, frame_max_bytes=frames.MESSAGE_BYTES_MAX)
    for _ in range(70):
        assert isinstance(frames.decode(await reader.receive() or b""), Heads)
        heard.append(trio.current_time() - began)
    assert heard[59] < 1
    assert 9 <= heard[69] < 12
    await stream.reset()
    asset = await bo.share("ex:bo ex:is ex:here .")
    await cluster.until_seen(asset, ada)


@pytest.mark.cluster(n=2, limits=SLOW)
async def test_of_a_member_so_many_frames_are_taken_in_at_once_and_the_others_one_a_second(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await cluster.advance(minutes=5)
    taken: list[float] = []
    gossip = ada.inside.exchange._gossip
    received = gossip.frame_received

    def note(*args: object, **more: object) -> object:
        taken.append(trio.current_time())
        return received(*args, **more)  # type: ignore[arg-type]

    gossip.frame_received = note  # type: ignore[assignment,method-assign]
    began = trio.current_time()
    stream = bo.inside.exchange._links[ada.inside.network.peer_id]._stream
    await stream.send_all(encode_frames([frames.encode(Frame())] * 70))
    await cluster.advance(seconds=30)
    assert taken[59] - began < 1
    assert 9 <= taken[69] - began < 12
    assert ada.inside.network.peer_id in bo.inside.network.connected()


@pytest.mark.cluster(n=2, limits=SLOW)
async def test_what_a_member_left_behind_that_is_gone_is_not_taken_in_for_hours(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await cluster.advance(minutes=5)
    (session,) = ada.inside.services.sessions.all()
    stream = bo.inside.exchange._links[ada.inside.network.peer_id]._stream
    await stream.send_all(encode_frames([frames.encode(Frame())] * 10_000))
    await cluster.advance(seconds=5)
    await cluster.crash(bo)
    await cluster.advance(minutes=2)
    assert ada.inside.services.sessions.get(session.peer) is None
    assert ada.inside.exchange._links == {}
