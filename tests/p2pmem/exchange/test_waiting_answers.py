"""Of answers that nobody reads so much is held in all, and who reads loses none to those who do not."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
import trio
import trio.testing
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol import frames
from p2pmem_protocol.frames import AskHeaders, Fetch, Headers, NotGiven
from p2pmem_protocol.hello import SYNC_PROTOCOL

from p2pmem.exchange import sync_server
from p2pmem.exchange.waiting import WaitingAnswers
from p2pmem.net.framing import encode_frames
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId, StreamClosedError
from tests.devnet.asking import dial, raw_peers

from .test_how_much_is_asked import Deaf, answers_until_the_end, share_many

QUESTION = Fetch(bytes(32), (bytes(32),))


class Asker(Deaf):
    def __init__(self, peer: str) -> None:
        super().__init__(QUESTION)
        self.peer = PeerId(peer)


class Held:
    """Answers to peers named `graph.account.anything`; of strangers the graph has no name."""

    def __init__(self, bytes_max: int, nursery: trio.Nursery) -> None:
        self.lost: Counter[str] = Counter()
        self.refused: list[tuple[str, str, PeerId]] = []
        self._nursery = nursery
        self._answers = WaitingAnswers(
            bytes_max,
            account_of=lambda peer: peer.rpartition(".")[0],
            graphs_of=lambda peer: [it for it in peer.partition(".")[0].split("+") if it],
            refuse=lambda *what: self.refused.append(what),
        )

    async def hold(self, peer: str, size_bytes: int) -> None:
        async def send() -> None:
            try:
                await self._answers.send(Asker(peer), bytes(size_bytes))
            except StreamClosedError:
                self.lost[peer] += 1

        self._nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()


async def test_as_many_bytes_wait_as_may_and_one_more_gives_one_up() -> None:
    async with trio.open_nursery() as nursery:
        held = Held(10, nursery)
        await held.hold(".x.1", 4)
        await held.hold(".x.2", 6)
        assert not held.lost
        await held.hold(".x.3", 1)
        assert held.lost == {".x.1": 1}, "the oldest"
        assert held.refused == [("sync.refused", "answers-waiting", ".x.1")]
        await held.hold(".x.4", 3)
        assert held.lost == {".x.1": 1}, "what was given up counts no more"
        nursery.cancel_scope.cancel()


async def test_what_was_read_counts_no_more() -> None:
    class Reads(Asker):
        async def send_all(self, data: bytes) -> None:
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        held = Held(10, nursery)
        for _ in range(5):
            await held._answers.send(Reads(".x.1"), bytes(10))
        await held.hold(".x.2", 10)
        assert not held.lost
        nursery.cancel_scope.cancel()


async def test_it_is_taken_from_the_graph_that_holds_most_and_there_from_the_account_that_does() -> None:
    async with trio.open_nursery() as nursery:
        held = Held(100, nursery)
        await held.hold("ours.ada.1", 30)
        await held.hold("ours+theirs.bo.1", 10)
        for key in range(55):
            await held.hold(f"theirs.key{key}.1", 1)
        await held.hold(".x.1", 5)
        assert not held.lost
        for _ in range(15):
            await held.hold("theirs.key0.1", 1)
        assert held.lost == {"theirs.key0.1": 15}, "one account holds most there"
        for number in range(2, 5):
            await held.hold(f".x.{number}", 5)
        assert {it.partition(".")[0] for it in held.lost} == {"theirs"}, "nobody else's graph holds as much"
        nursery.cancel_scope.cancel()


@pytest.mark.cluster(n=2, access="open", limits=PeerLimits(answers_waiting_max_bytes=800_000))
async def test_strangers_who_read_nothing_on_all_their_streams_keep_no_answer_from_who_reads(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    question = encode_frames([frames.encode(await share_many(ada, 8))])
    async with raw_peers(cluster, "deaf", "reads") as (deaf, reads):
        peer = await dial(deaf, ada)
        silent = [await deaf.open_stream(peer, SYNC_PROTOCOL) for _ in range(8)]
        for stream in silent:
            with suppress(StreamClosedError):
                await stream.send_all(question)
        await cluster.advance(seconds=5)
        assert ada.inside.network.statistics().refused["answers-waiting"] >= 1
        stream = await reads.open_stream(await dial(reads, ada), SYNC_PROTOCOL)
        await stream.send_all(question)
        await stream.close_write()
        assert [type(it).__name__ for it in await answers_until_the_end(stream)] == ["Envelopes"] * 2
        assert bo.inside.network.peer_id in ada.inside.network.connected()


@pytest.mark.cluster(n=3, quorum=1, access="open")
async def test_roster_headers_are_read_while_they_are_sent(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_server, "HEADERS_OF_ONE_MESSAGE", 1)
    ada, bo, _ = cluster.nodes
    await cluster.remove(bo)
    holdings, read = ada.inside.exchange.server._holdings, list[int]()
    headers = holdings.headers

    def note(graph: bytes, ids: list[bytes]) -> list[bytes]:
        read.append(len(ids))
        return headers(ada.graph.id, ids)

    monkeypatch.setattr(holdings, "headers", note)
    held = holdings.header_ids(ada.graph.id)
    async with raw_peers(cluster, "stranger") as (network,):
        peer = await dial(network, ada)
        for known in ((), held[:1], held, (bytes(32),)):
            stream = await network.open_stream(peer, SYNC_PROTOCOL)
            await stream.send_all(encode_frames([frames.encode(AskHeaders(ada.graph.id, known))]))
            await stream.close_write()
            heard = await answers_until_the_end(stream)
            assert not any(isinstance(it, NotGiven) for it in heard)
            came = [it for message in heard if isinstance(message, Headers) for it in message.headers]
            assert len(came) == len(set(held) - set(known))
            assert [it.more for it in heard if isinstance(it, Headers)] == [True] * (len(heard) - 1) + [False]
    assert max(read) == 1
    assert len(held) >= 2
