"""An outsider: a peer like any other, on the same network, member of nothing, and hostile.

It dials a node, opens every protocol it can think of and asks for everything, knowing more than an outsider should: the
graph's id, the ids of its envelopes, the hash of its content, and a credential that belongs to a member. What comes
back is counted byte by byte and sorted: the greeting that any peer may have, the one answer "no" (and the clock, which
the greeting tells too), and everything else, which would be a leak. Each question is asked a second time about a graph
that exists nowhere: both answers have to be the same bytes.

That the zero means something, the same client shows by reading an open graph with the same questions.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, unique
from typing import Final, TypeVar

import trio
from p2pmem_jobs import SystemClock
from p2pmem_protocol import frames
from p2pmem_protocol.credential import Carry, SignedCarry
from p2pmem_protocol.errors import OutsideError, RefusedError
from p2pmem_protocol.frames import (
    MESSAGE_BYTES_MAX,
    AskHeaders,
    Envelopes,
    Fetch,
    FetchPart,
    GraphState,
    Headers,
    Heads,
    Message,
    NotGiven,
    Peers,
    RoundMessage,
    RoundOpen,
)
from p2pmem_protocol.hello import (
    JOIN_PROTOCOL,
    MEMBER_PROTOCOL,
    RELAY_PROTOCOL,
    SYNC_PROTOCOL,
    Greeting,
    Proof,
)
from p2pmem_protocol.join import TOKEN_BYTES, Answer, Ask, Reply
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import GraphId, NetworkId
from p2pmem_protocol.negentropy import Initiator
from p2pmem_protocol.snapshot import Snapshot

from p2pmem.exchange.open_gossip import topic_of
from p2pmem.net.framing import FrameDecoder, FrameReader, encode_frames
from p2pmem.net.seam import Network, NotSpokenError, PeerId, Stream

STOCK_PROTOCOLS: Final = (
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/ipfs/kad/1.0.0",
    "/meshsub/1.1.0",
    "/meshsub/1.0.0",
    "/floodsub/1.0.0",
    "/libp2p/circuit/relay/0.2.0/hop",
    "/libp2p/circuit/relay/0.2.0/stop",
    "/libp2p/autonat/1.0.0",
    "/libp2p/dcutr",
    "/rendezvous/1.0.0",
)
ANSWER_S_MAX: Final = 3.0
QUIET_S: Final = 0.3
_KINDS: Final = tuple(sorted(int(kind) for kind in Kind))
M = TypeVar("M")
_NO: Final = Answer(Reply.NO).encode()


@dataclass(frozen=True, slots=True)
class Known:
    """What the outsider found out by means of its own."""

    graph: GraphId
    envelopes: tuple[bytes, ...]
    content_hash: bytes
    credential: SignedCarry


@dataclass(slots=True)
class Haul:
    """What one visit brought. `graph_bytes` is what neither is a greeting nor says no."""

    node: str
    streams: int = 0
    questions: int = 0
    greeting_bytes: int = 0
    no_bytes: int = 0
    graph_bytes: int = 0
    counted_bytes: int = 0
    """What the outsider's own connections counted in all streams: the sum of the three above, or somebody lies."""
    answers_alike: bool = True
    refused_protocols: int = 0

    @property
    def got_nothing(self) -> bool:
        adds_up = self.counted_bytes == self.greeting_bytes + self.no_bytes + self.graph_bytes
        return self.graph_bytes == 0 and self.answers_alike and adds_up and self.streams > 0


@dataclass(frozen=True, slots=True)
class OpenRead:
    """What the same client read in an open graph."""

    envelopes: int
    graph_bytes: int
    found: bool
    gossip_bytes: int
    """What the node says of its own accord, now that it has an open graph."""
    gossip_tells_of_the_gated: bool

    @property
    def shows_what_it_should(self) -> bool:
        return self.found and not self.gossip_tells_of_the_gated


class Outsider:
    """Speaks through `network`, which it does not own."""

    def __init__(self, network: Network, network_id: NetworkId, key: Key) -> None:
        """From now on it also hears what nodes tell it of their own accord, in any protocol."""
        self._network = network
        self._network_id = network_id
        self._key = key
        self._clock = SystemClock()
        self._told: dict[PeerId, bytes] = {}
        self._was_told = trio.Event()
        for protocol in (*STOCK_PROTOCOLS, MEMBER_PROTOCOL, SYNC_PROTOCOL, JOIN_PROTOCOL, RELAY_PROTOCOL):
            network.set_handler(protocol, self._hear)

    async def _hear(self, stream: Stream) -> None:
        async for data in _pieces(stream):
            self._told[stream.peer] = self._told.get(stream.peer, b"") + data
            self._was_told.set()

    # The gated graph

    async def visit(self, haul: Haul, address: str, known: Known) -> None:
        """Try all that a peer may do without being shown the door. Raises `OutsideError` when it cannot dial."""
        peer = await self._network.connect(address, expected=None)
        before = self._counted(peer)
        for protocol in STOCK_PROTOCOLS:
            await self._try_stock(peer, protocol, haul)
        nobodys = GraphId(secrets.token_bytes(32))
        for question, other in zip(self._questions(known, known.graph), self._questions(known, nobodys), strict=True):
            await self._try_questions(peer, (question, other), haul)
        await self._try_join(peer, known, haul)
        await self._try_member(peer, self._own_credential(), haul)
        haul.graph_bytes += len(self._told.get(peer, b""))
        haul.counted_bytes += self._counted(peer) - before

    async def lie(self, haul: Haul, address: str, known: Known) -> None:
        """Show a member's credential as one's own. A node ends the connection for that, and closes its door a while."""
        peer = await self._network.connect(address, expected=None)
        before = self._counted(peer)
        await self._try_member(peer, known.credential, haul)
        haul.counted_bytes += self._counted(peer) - before

    def _counted(self, peer: PeerId) -> int:
        counted = self._network.statistics().peers.get(peer)
        return counted.stream_received_bytes if counted is not None else 0

    async def _try_stock(self, peer: PeerId, protocol: str, haul: Haul) -> None:
        try:
            stream = await self._network.open_stream(peer, protocol)
        except NotSpokenError:
            haul.refused_protocols += 1
            return
        haul.streams += 1
        haul.graph_bytes += len(await _listen(stream))

    def _questions(self, known: Known, graph: GraphId) -> Iterator[Message]:
        now_ms = self._clock.now_ms()
        start = Initiator(Snapshot.build().view()).start()
        yield Heads(now_ms, (GraphState(graph),))
        yield AskHeaders(graph)
        yield RoundOpen(graph, bytes(32), now_ms, _KINDS, start)
        yield RoundMessage(start)
        yield Fetch(graph, known.envelopes)
        yield FetchPart(graph, known.content_hash)
        yield FetchPart(graph, known.content_hash, is_roster=True)
        yield Peers(graph, ("/ip4/127.0.0.1/tcp/9",))

    async def _try_questions(self, peer: PeerId, questions: tuple[Message, Message], haul: Haul) -> None:
        """One question about this graph and about one that nobody has, each on a stream of its own to its end."""
        answers: list[list[bytes]] = []
        for question in questions:
            said = await self._ask(peer, SYNC_PROTOCOL, [frames.encode(question)], haul, _says_no)
            answers.append([_without_clock(frame) for frame in said])
        haul.answers_alike = haul.answers_alike and answers[0] == answers[1] != []

    async def _try_join(self, peer: PeerId, known: Known, haul: Haul) -> None:
        answers: list[list[bytes]] = []
        for graph in (known.graph, GraphId(secrets.token_bytes(32))):
            ask = Ask(
                greeting=self._greeting(),
                proof=Proof((self._own_credential(),)),
                graph=graph,
                label="mallory",
            ).enter(secrets.token_bytes(TOKEN_BYTES), self._network.peer_id)
            answers.append(await self._ask(peer, JOIN_PROTOCOL, [ask.encode()], haul, _refuses_to_list))
        haul.answers_alike = haul.answers_alike and answers[0] == answers[1] != []

    async def _try_member(self, peer: PeerId, credential: SignedCarry, haul: Haul) -> None:
        """hello: with a credential of its own it proves an agent that nobody knows, with a member's it lies."""
        said = [self._greeting().encode(), Proof((credential,)).encode()]
        await self._ask(peer, MEMBER_PROTOCOL, said, haul, _greets)

    async def _ask(
        self, peer: PeerId, protocol: str, said: list[bytes], haul: Haul, sort: Callable[[int, bytes], Sort]
    ) -> list[bytes]:
        """Say it all, hear all there is to hear, and count every byte of it."""
        stream = await self._network.open_stream(peer, protocol)
        haul.streams += 1
        haul.questions += 1
        await stream.send_all(encode_frames(said))
        await stream.close_write()
        data = await _listen(stream)
        heard = _frames_in(data)
        sizes = {Sort.GREETING: 0, Sort.NO: 0, Sort.LEAK: 0}
        for index, frame in enumerate(heard):
            sizes[sort(index, frame)] += len(encode_frames([frame]))
        haul.greeting_bytes += sizes[Sort.GREETING]
        haul.no_bytes += sizes[Sort.NO]
        haul.graph_bytes += len(data) - sizes[Sort.GREETING] - sizes[Sort.NO]
        return heard

    def _greeting(self) -> Greeting:
        return Greeting.ours(self._network_id, self._clock.now_ms())

    def _own_credential(self) -> SignedCarry:
        until_ms = self._clock.now_ms() + DAY_MS
        return Carry(self._network_id, self._key.address, self._network.peer_id, 1, until_ms).sign(self._key)

    # The open graph

    async def read_open(self, address: str, graph: GraphId, canary: bytes, gated: Known) -> OpenRead:
        """Reconcile an open graph from nothing and fetch all of it, asking as above; and hear its gossip.

        Raises `OutsideError` when the node does not answer as rule J2 wants.
        """
        peer = await self._network.connect(address, expected=None)
        stream = await self._network.open_stream(peer, SYNC_PROTOCOL)
        try:
            line = _Line(stream)
            now_ms = self._clock.now_ms()
            states = (await line.ask(Heads(now_ms, (GraphState(graph),)), Heads)).graphs
            if not states:
                raise OutsideError("a node does not speak about its open graph")
            await line.ask(AskHeaders(graph), Headers)
            initiator = Initiator(Snapshot.build().view())
            answer = await line.ask(RoundOpen(graph, states[0].head, now_ms, _KINDS, initiator.start()), RoundMessage)
            needed = list(initiator.receive(answer.message).need)
            fetched: list[bytes] = []
            if needed:
                fetched += (await line.ask(Fetch(graph, tuple(needed)), Envelopes)).envelopes
        finally:
            await stream.reset()
        with trio.move_on_after(QUIET_S):
            await self._was_told.wait()
        gossip = self._told.get(peer, b"")
        words = (gated.graph, topic_of(gated.graph).encode(), gated.content_hash, *gated.envelopes)
        return OpenRead(
            envelopes=len(fetched),
            graph_bytes=line.heard_bytes,
            found=any(canary in envelope for envelope in fetched),
            gossip_bytes=len(gossip),
            gossip_tells_of_the_gated=any(word in gossip or word.hex().encode() in gossip for word in words),
        )


@unique
class Sort(Enum):
    """What a frame that came back is."""

    GREETING = "greeting"
    NO = "no"
    LEAK = "leak"


class _Line:
    """Questions and answers on one stream, counted."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
        self.heard_bytes = 0

    async def ask(self, question: Message, kind: type[M]) -> M:
        await self._stream.send_all(encode_frames([frames.encode(question)]))
        data = None
        with trio.move_on_after(ANSWER_S_MAX):
            data = await self._reader.receive()
        answer = frames.decode(data) if data is not None else None
        if data is None or not isinstance(answer, kind):
            raise OutsideError(f"a node answers {type(question).__name__} with {type(answer).__name__}")
        self.heard_bytes += len(data)
        return answer


async def _listen(stream: Stream) -> bytes:
    """All that comes until the other side ends, or says nothing for a while."""
    return b"".join([data async for data in _pieces(stream)])


async def _pieces(stream: Stream) -> AsyncIterator[bytes]:
    patience_s = ANSWER_S_MAX
    try:
        while True:
            data = b""
            with trio.move_on_after(patience_s):
                data = await stream.receive_some()
            if not data:
                return
            patience_s = QUIET_S
            yield data
    except OutsideError:
        return
    finally:
        await stream.reset()


def _frames_in(data: bytes) -> list[bytes]:
    """The whole frames in what was heard; what is none is left over, and counts as a leak."""
    decoder = FrameDecoder(frame_max_bytes=MESSAGE_BYTES_MAX)
    decoder.feed(data)
    found: list[bytes] = []
    with suppress(RefusedError):
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    return found


def _says_no(index: int, frame: bytes) -> Sort:
    """One answer that gives nothing: NotGiven, or the heads of no graph."""
    with suppress(RefusedError):
        message = frames.decode(frame)
        if index == 0 and (isinstance(message, NotGiven) or (isinstance(message, Heads) and not message.graphs)):
            return Sort.NO
    return Sort.LEAK


def _refuses_to_list(index: int, frame: bytes) -> Sort:
    return Sort.NO if index == 0 and frame == _NO else Sort.LEAK


def _greets(index: int, frame: bytes) -> Sort:
    with suppress(RefusedError):
        Greeting.decode(frame)
        return Sort.GREETING if index == 0 else Sort.LEAK
    return Sort.LEAK


def _without_clock(frame: bytes) -> bytes:
    """The clock is the only thing in an answer that differs from one moment to the next."""
    try:
        message = frames.decode(frame)
    except RefusedError:
        return frame
    return frames.encode(replace(message, clock_ms=0)) if isinstance(message, Heads) else frame
