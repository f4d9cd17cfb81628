"""Words of few bytes that cost a node much: of strangers so many are answered, of members so many a second."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
import trio
import trio.testing
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol import frames
from p2pmem_protocol.errors import OutsideError, Reason
from p2pmem_protocol.frames import PART_BYTES_MAX, Envelopes, Fetch, FetchPart, Frame, Heads, NotGiven, Part
from p2pmem_protocol.hello import SYNC_PROTOCOL
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.sync_server import FOUND_BYTES, ROOM_BYTES
from p2pmem.net.framing import FrameReader, encode_frames
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId, Stream
from tests.devnet.asking import dial, raw_peers

QUESTION = frames.encode(Heads(0))
FEW = PeerLimits(reader_requests_max=10, reader_requests_per_address_max=25)
SLOW = PeerLimits(member_requests_per_minute=60, member_frames_per_minute=60)
LARGE_ITEM = f'ex:a ex:says "{"x" * 55_000}" .'
LARGE_CONTENT = "".join(f'ex:line{n} ex:says "{n} {"x" * 10_000}" .\n' for n in range(150))
"""Some 1.5 MB, an attachment."""


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


async def share_many(node: ClusterNode, count: int) -> Fetch:
    """Share so much that one message of an answer holds four of them, and the question for all of it."""
    for number in range(count):
        await node.share(LARGE_ITEM.replace("ex:a", f"ex:a{number}"))
    return Fetch(node.graph.id, tuple(it.id for it in node.graph.set.known()))


def note_reads(node: ClusterNode, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items were read at once, each time."""
    holdings, read = node.inside.exchange.server._holdings, list[int]()
    raw = holdings.raw

    def note(graph: GraphId, ids: list[bytes]) -> list[bytes]:
        read.append(len(ids))
        return raw(graph, ids)

    monkeypatch.setattr(holdings, "raw", note)
    return read


@pytest.mark.cluster(n=1, access="open")
async def test_of_a_long_answer_no_more_is_held_than_a_message_for_who_does_not_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada,) = cluster.nodes
    question = await share_many(ada, 24)
    read = note_reads(ada, monkeypatch)
    async with raw_peers(cluster, "stranger") as (network,):
        stream = await network.open_stream(await dial(network, ada), SYNC_PROTOCOL)
        await stream.send_all(encode_frames([frames.encode(question)]))
        await cluster.advance(minutes=1)
        assert sum(read) <= 8, "one is on its way, and one waits"
        await stream.close_write()
        heard = await answers_until_the_end(stream)
    assert sum(read) == 24
    assert [it.more for it in heard if isinstance(it, Envelopes)] == [True] * 5 + [False]
    assert sum(len(it.envelopes) for it in heard if isinstance(it, Envelopes)) == 24


class Deaf:
    """A stream on which a question came, and nobody reads the answer."""

    peer = PeerId("stranger")
    protocol = SYNC_PROTOCOL

    def __init__(self, question: frames.Message) -> None:
        self._said = encode_frames([frames.encode(question)])

    async def receive_some(self, max_bytes: int) -> bytes:
        said, self._said = self._said, b""
        return said

    def keep(self, size_bytes: int) -> None:
        pass

    async def send_all(self, data: bytes) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.cluster(n=1, access="open")
async def test_what_waits_to_be_read_is_held_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_part: bool
) -> None:
    (ada,) = cluster.nodes
    server, size_bytes = ada.inside.exchange.server, PART_BYTES_MAX // 4
    monkeypatch.setattr(server._holdings, "sizes", lambda graph, ids: [(it, size_bytes) for it in ids])
    monkeypatch.setattr(server._holdings, "raw", lambda graph, ids: [bytes(size_bytes) for _ in ids[:4]])
    monkeypatch.setattr(server._holdings, "attachment_piece", lambda *asked: (PART_BYTES_MAX, bytes(PART_BYTES_MAX)))
    ids = tuple(bytes([n]) * 32 for n in range(40))
    stream = Deaf(FetchPart(ada.graph.id, bytes(32)) if is_part else Fetch(ada.graph.id, ids))
    async with trio.open_nursery() as nursery:
        tracemalloc.start()
        try:
            nursery.start_soon(server.serve, stream)
            await trio.testing.wait_all_tasks_blocked()
            held_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            nursery.cancel_scope.cancel()
    assert PART_BYTES_MAX < held_bytes < 2 * PART_BYTES_MAX


@pytest.mark.cluster(n=1, access="open", limits=PeerLimits(reader_bytes_max=2 * ROOM_BYTES))
async def test_a_long_answer_ends_where_a_stranger_has_had_his_bytes(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    question = await share_many(ada, 24)
    async with raw_peers(cluster, "stranger") as (network,):
        stream = await network.open_stream(await dial(network, ada), SYNC_PROTOCOL)
        await stream.send_all(encode_frames([frames.encode(question)]))
        await stream.close_write()
        *heard, last = await answers_until_the_end(stream)
    assert [type(it) for it in heard] == [Envelopes] * 3
    assert last == NotGiven(int(Reason.TOO_MANY))


@pytest.mark.parametrize("shared", [12, 24])
@pytest.mark.cluster(n=3, quorum=1)
async def test_who_is_taken_out_in_the_middle_of_an_answer_hears_no_more_of_it(cluster: Cluster, shared: int) -> None:
    ada, bo, _ = cluster.nodes
    question = await share_many(ada, shared)
    stream = await bo.inside.network.open_stream(ada.inside.network.peer_id, SYNC_PROTOCOL)
    await stream.send_all(encode_frames([frames.encode(question)]))
    await cluster.advance(seconds=1)
    await cluster.remove(bo)
    await stream.close_write()
    *heard, last = await answers_until_the_end(stream)
    assert 1 <= len(heard) <= 2
    assert all(isinstance(it, Envelopes) and it.more for it in heard)
    assert last == NotGiven(int(Reason.UNKNOWN_GRAPH))


@pytest.mark.cluster(n=2)
async def test_what_left_the_set_in_the_middle_of_an_answer_is_left_out_of_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo, *_ = cluster.nodes
    question = await share_many(ada, 12)
    holdings = ada.inside.exchange.server._holdings
    raw, calls = holdings.raw, list[int]()

    def second_is_gone(graph: GraphId, ids: list[bytes]) -> list[bytes]:
        calls.append(len(ids))
        return [] if len(calls) == 2 else raw(graph, ids)

    monkeypatch.setattr(holdings, "raw", second_is_gone)
    stream = await bo.inside.network.open_stream(ada.inside.network.peer_id, SYNC_PROTOCOL)
    await stream.send_all(encode_frames([frames.encode(question)]))
    await stream.close_write()
    heard = await answers_until_the_end(stream)
    assert [(len(it.envelopes), it.more) for it in heard if isinstance(it, Envelopes)] == [(4, True), (4, False)]


async def pieces(stream: Stream, question: FetchPart, count: int) -> list[float]:
    """When each of so many answers to the same question came."""
    await stream.send_all(encode_frames([frames.encode(question)] * count))
    reader, came = FrameReader(stream, frame_max_bytes=frames.MESSAGE_BYTES_MAX), list[float]()
    for _ in range(count):
        assert isinstance(frames.decode(await reader.receive() or b""), Part)
        came.append(trio.current_time())
    return came


@pytest.mark.cluster(n=2, limits=SLOW)
async def test_a_piece_far_into_an_attachment_counts_as_several_questions_of_a_member(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share(LARGE_CONTENT)
    await cluster.settled()
    await cluster.advance(minutes=5)
    stream = await bo.inside.network.open_stream(ada.inside.network.peer_id, SYNC_PROTOCOL)
    view = ada.view(asset)
    assert view is not None
    began = trio.current_time()
    came = await pieces(stream, FetchPart(ada.graph.id, view.content_hash, 2 * FOUND_BYTES), 21)
    assert came[19] - began < 1
    assert 2 <= came[20] - began < 4


@pytest.mark.cluster(n=1, access="open", limits=PeerLimits(readers_work_per_minute=7))
async def test_all_strangers_together_have_one_account_and_members_their_own(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    asset = await ada.share(LARGE_CONTENT)
    view = ada.view(asset)
    assert view is not None
    near, far = (frames.encode(FetchPart(ada.graph.id, view.content_hash, it)) for it in (0, 2 * FOUND_BYTES))
    answered = []
    async with raw_peers(cluster, "a", "b", "c") as networks:
        for network, question in zip(networks, (far, far, near), strict=True):
            stream = await network.open_stream(await dial(network, ada), SYNC_PROTOCOL)
            await stream.send_all(encode_frames([question, near]))
            await stream.close_write()
            answered.append([isinstance(it, Part) for it in await answers_until_the_end(stream)])
    assert answered == [[True, True], [True, False], [False]]


@pytest.mark.cluster(n=1)
async def test_of_an_attachment_only_the_piece_that_is_asked_for_is_read(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    view = ada.view(await ada.share(LARGE_CONTENT))
    assert view is not None
    whole = ada.inside.ledger.content(ada.graph, view.content_hash)
    assert whole is not None
    holdings = ada.inside.exchange.server._holdings
    for offset in (0, 1, 5 * PART_BYTES_MAX, len(whole) - 1, len(whole), len(whole) + 1):
        tracemalloc.start()
        try:
            found = holdings.attachment_piece(ada.graph.id, view.content_hash, offset, PART_BYTES_MAX)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found == (len(whole), whole[offset : offset + PART_BYTES_MAX])
        assert peak_bytes < 3 * PART_BYTES_MAX
    assert holdings.attachment_piece(ada.graph.id, bytes(32), 0, PART_BYTES_MAX) is None


OF_GRAPH = PeerLimits(graph_requests_per_minute=60, graph_frames_per_minute=60)


@pytest.mark.cluster(n=3, limits=OF_GRAPH)
async def test_all_members_of_a_graph_together_are_answered_so_much_and_the_rest_later(cluster: Cluster) -> None:
    ada, *others = cluster.nodes
    await cluster.advance(minutes=5)
    began = trio.current_time()
    for node in others:
        stream = await node.inside.network.open_stream(ada.inside.network.peer_id, SYNC_PROTOCOL)
        await stream.send_all(encode_frames([QUESTION] * 40))
        await stream.close_write()
        assert len(await answers_until_the_end(stream)) == 40
        came = trio.current_time() - began
        assert came < 1 if node is others[0] else 15 <= came < 30


@pytest.mark.cluster(n=3, limits=OF_GRAPH)
async def test_frames_of_all_members_of_a_graph_are_taken_in_at_one_pace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, *others = cluster.nodes
    await cluster.advance(minutes=5)
    taken = list[float]()
    gossip = ada.inside.exchange._gossip
    received = gossip.frame_received

    def note(*args: object, **more: object) -> object:
        taken.append(trio.current_time())
        return received(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(gossip, "frame_received", note)
    began = trio.current_time()
    for node in others:
        stream = node.inside.exchange._links[ada.inside.network.peer_id]._stream
        await stream.send_all(encode_frames([frames.encode(Frame())] * 40))
    await cluster.advance(minutes=1)
    assert taken[50] - began < 1
    assert 15 <= taken[79] - began < 30
