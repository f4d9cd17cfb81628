"""Topics without a mesh: whoever joined a topic passes each of its messages on to everybody else who joined, once.

For clusters in virtual time, where a node lives through months in seconds: GossipSub's heartbeat would cost a round of
work for every one of those seconds. Same interface, same promises, any network of the seam. In the world a node speaks
GossipSub.

Each side opens one stream to the other and says on it, in frames of CBOR:

    [0, topic, ...]             the topics joined, all of them, whenever that changes
    [1, topic, id, data]        a message; the id is drawn by who published it
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.errors import MisuseError, OutsideError, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256

from p2pmem.net.background import background_nursery
from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.seam import Network, PeerEventKind, PeerId, Stream
from p2pmem.net.topics import TOPIC_DATA_MAX_BYTES, TOPICS_MAX, Blame, Receiver, Verdict, check_topic

log = logging.getLogger(__name__)

FLOOD_PROTOCOL: Final = "/p2pmem/flood/1"
FRAME_MAX_BYTES: Final = TOPIC_DATA_MAX_BYTES + 4_096
QUEUE_MAX: Final = 1_024
SEEN_MAX: Final = 20_000
ID_BYTES: Final = 16
RECEIVE_TIMEOUT_S: Final = 5.0
_JOINED: Final = 0
_MESSAGE: Final = 1


@dataclass(slots=True)
class _Neighbour:
    """What goes to one peer. `joined` is what it said; `frames` what waits to be written."""

    send: trio.MemorySendChannel[bytes]
    receive: trio.MemoryReceiveChannel[bytes]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @classmethod
    def new(cls) -> _Neighbour:
        return cls(*trio.open_memory_channel[bytes](QUEUE_MAX))

    def put(self, frame: bytes) -> None:
        """Queue, or drop when the peer does not keep up: a comparison will bring it."""
        try:
            self.send.send_nowait(frame)
        except trio.WouldBlock:
            log.debug("net.flood.dropped")


class FloodTopics:
    """Implements `topics.Topics`. Made and entered by `open_flood`."""

    def __init__(self, network: Network, blame: Blame, nursery: trio.Nursery) -> None:
        self._network = network
        self._blame = blame
        self._nursery = nursery
        self._receivers: dict[str, Receiver] = {}
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._joined: dict[PeerId, frozenset[str]] = {}
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._published = 0

    async def subscribe(self, topic: str, receiver: Receiver) -> None:
        check_topic(topic)
        if topic not in self._receivers and len(self._receivers) >= TOPICS_MAX:
            raise MisuseError(f"{TOPICS_MAX} topics are joined already: leave one first")
        self._receivers[topic] = receiver
        self._tell_all()

    async def unsubscribe(self, topic: str) -> None:
        if self._receivers.pop(topic, None) is not None:
            self._tell_all()

    async def publish(self, topic: str, data: bytes) -> None:
        if topic not in self._receivers:
            raise MisuseError(f"topic {topic[:80]!r} is not joined: subscribe first")
        if len(data) > TOPIC_DATA_MAX_BYTES:
            raise MisuseError(f"{len(data)} bytes are more than the {TOPIC_DATA_MAX_BYTES} a topic carries")
        self._published += 1
        message_id = keccak256(f"{self._network.peer_id}/{self._published}".encode() + data)[:ID_BYTES]
        self._note(message_id)
        self._pass_on(topic, message_id, data, None)

    async def announce(self, peer: PeerId) -> None:
        self._meet(peer)

    def peers(self, topic: str) -> frozenset[PeerId]:
        return frozenset(peer for peer, joined in self._joined.items() if topic in joined)

    # To others

    def _tell_all(self) -> None:
        for neighbour in self._neighbours.values():
            neighbour.put(self._ours())

    def _ours(self) -> bytes:
        topics: list[Value] = [*sorted(self._receivers)]
        return cbor.encode([_JOINED, *topics])

    def _pass_on(self, topic: str, message_id: bytes, data: bytes, giver: PeerId | None) -> None:
        frame = cbor.encode([_MESSAGE, topic, message_id, data])
        for peer in sorted(self.peers(topic)):
            neighbour = self._neighbours.get(peer)
            if peer != giver and neighbour is not None:
                neighbour.put(frame)

    def _note(self, message_id: bytes) -> None:
        self._seen[message_id] = None
        while len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    # Peers that come and go

    async def follow(self) -> None:
        """Open a stream to whoever is connected, as long as the network lives."""
        while True:
            async for event in self._network.peer_events():
                if event.kind is PeerEventKind.CONNECTED:
                    self._meet(event.peer)
                elif event.peer not in self._network.connected():
                    self._part(event.peer)
            await trio.sleep(RECEIVE_TIMEOUT_S)

    def _meet(self, peer: PeerId) -> None:
        if peer not in self._neighbours and peer in self._network.connected():
            neighbour = self._neighbours[peer] = _Neighbour.new()
            neighbour.put(self._ours())
            self._nursery.start_soon(self._speak, peer, neighbour)

    def _part(self, peer: PeerId) -> None:
        self._joined.pop(peer, None)
        neighbour = self._neighbours.pop(peer, None)
        if neighbour is not None:
            neighbour.scope.cancel()

    async def _speak(self, peer: PeerId, neighbour: _Neighbour) -> None:
        with neighbour.scope:
            try:
                stream = await self._network.open_stream(peer, FLOOD_PROTOCOL)
                async for frame in neighbour.receive:
                    await send_frames(stream, frame)
            except OutsideError as error:
                log.debug("net.flood.not_spoken", extra={"peer": peer, "why": type(error).__name__})
        if self._neighbours.get(peer) is neighbour:
            del self._neighbours[peer]

    async def listen(self, stream: Stream) -> None:
        """Serve what one peer says."""
        peer = stream.peer
        reader = FrameReader(stream, frame_max_bytes=FRAME_MAX_BYTES)
        self._meet(peer)
        try:
            await reader.each(partial(self._take_frame, peer))
        except RefusedError as error:
            self._blame(peer, str(error))
        except OutsideError as error:
            log.debug("net.flood.ended", extra={"peer": peer, "why": type(error).__name__})

    async def _take_frame(self, peer: PeerId, data: bytes) -> bool:
        await self._take(peer, cbor.decode(data, limit_bytes=FRAME_MAX_BYTES))
        return True

    async def _take(self, peer: PeerId, value: Value) -> None:
        match value:
            case [0, *topics] if len(topics) <= TOPICS_MAX:
                self._joined[peer] = frozenset(topic for topic in topics if isinstance(topic, str))
            case [1, str() as topic, bytes() as message_id, bytes() as data] if len(message_id) == ID_BYTES:
                if message_id not in self._seen and topic in self._receivers:
                    self._note(message_id)
                    await self._receive(peer, topic, message_id, data)
            case _:
                raise RefusedError(Reason.BAD_FRAME, "neither topics nor a message")

    async def _receive(self, peer: PeerId, topic: str, message_id: bytes, data: bytes) -> None:
        verdict = Verdict.IGNORE
        with trio.move_on_after(RECEIVE_TIMEOUT_S):
            verdict = await self._receivers[topic](peer, data)
        if verdict is Verdict.REJECT:
            self._blame(peer, "a message that its topic rejects")
        if verdict is Verdict.ACCEPT:
            self._pass_on(topic, message_id, data, peer)


@asynccontextmanager
async def open_flood(network: Network, blame: Blame) -> AsyncIterator[FloodTopics]:
    """Flooding over `network`, until the block ends."""
    async with background_nursery() as nursery:
        topics = FloodTopics(network, blame, nursery)
        network.set_handler(FLOOD_PROTOCOL, topics.listen)
        nursery.start_soon(topics.follow)
        try:
            yield topics
        finally:
            network.remove_handler(FLOOD_PROTOCOL)


if TYPE_CHECKING:
    from p2pmem.net.topics import Topics

    def _keeps_the_interface(topics: FloodTopics) -> Topics:
        return topics
