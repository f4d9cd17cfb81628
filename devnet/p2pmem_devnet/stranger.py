"""A hostile client: somebody with a network of his own, a key that nobody listed, and tricks. It keeps what it hears.

He is given the worst that can have leaked: the id of the graph, the names of peers, the ids of items. With all that he
is to learn nothing, and to stop nobody. `Cluster.stranger` makes one; the auditor reads what he heard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio
from p2pmem_protocol import frames
from p2pmem_protocol.credential import Carry
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.frames import AskHeaders, Fetch, FetchPart, Frame, GraphState, Heads, Message, Peers, RoundOpen
from p2pmem_protocol.hello import (
    JOIN_PROTOCOL,
    MEMBER_PROTOCOL,
    RELAY_PROTOCOL,
    SYNC_PROTOCOL,
    Greeting,
    Proof,
)
from p2pmem_protocol.join import TOKEN_BYTES, Ask
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import Address, GraphId, NetworkId

from p2pmem.net.framing import encode_frames
from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.seam import PeerId, Stream

PATIENCE_S: Final = 8.0
GARBAGE_BYTES: Final = 4_096
STREAMS_AT_ONCE: Final = 100
_KINDS: Final = tuple(sorted(int(kind) for kind in Kind))


@dataclass
class Stranger:
    """One hostile peer. Each trick returns what came back; everything that ever came is in `heard`."""

    network: MemoryNetwork
    network_id: NetworkId
    key: Key
    now_ms: int
    chance: Random
    heard: bytearray = field(default_factory=bytearray)
    tricks: int = 0

    async def everything(self, address: str, graph: GraphId, ids: Iterable[bytes], victim: Address) -> None:
        """All tricks against one node, one after the other."""
        known = tuple(ids)
        await self.hello(address, self.key)
        await self.hello(address, self.key, says_to_be=victim)
        await self.ask(address, *self._questions(graph, known))
        await self.join(address, graph, bytes(TOKEN_BYTES))
        await self.join(address, GraphId(bytes(32)), b"")
        for protocol in (MEMBER_PROTOCOL, SYNC_PROTOCOL, JOIN_PROTOCOL, RELAY_PROTOCOL):
            await self.garbage(address, protocol)
            await self.silence(address, protocol)
        await self.flood(address)

    def _questions(self, graph: GraphId, ids: tuple[bytes, ...]) -> tuple[Message, ...]:
        some = ids[: frames.FETCH_IDS_MAX] or (bytes(32),)
        return (
            Heads(self.now_ms, (GraphState(graph),)),
            AskHeaders(graph, ()),
            Fetch(graph, some),
            FetchPart(graph, some[0]),
            FetchPart(graph, some[0], is_roster=True),
            Peers(graph, ()),
            RoundOpen(graph, bytes(32), self.now_ms, _KINDS, b"\x61\x00\x00\x02\x00"),
        )

    async def hello(self, address: str, key: Key, *, says_to_be: Address | None = None) -> bytes:
        """Be polite and prove a key that nobody knows, or name a member that the key does not belong to."""
        carry = Carry(self.network_id, key.address, self.network.peer_id, 1, self.now_ms + DAY_MS)
        signed = carry.sign(key)
        proof = Proof((signed,)).encode()
        if says_to_be is not None:
            proof = proof.replace(bytes(key.address), bytes(says_to_be))
        greeting = Greeting.ours(self.network_id, self.now_ms).encode()
        return await self._talk(address, MEMBER_PROTOCOL, encode_frames([greeting, proof]))

    async def ask(self, address: str, *questions: Message) -> bytes:
        """Skip hello and ask what members ask, each on a stream of its own."""
        return b"".join(
            [await self._talk(address, SYNC_PROTOCOL, encode_frames([frames.encode(it)])) for it in questions]
        )

    async def join(self, address: str, graph: GraphId, token: bytes) -> bytes:
        """Ask to be let in with a token that was never given out."""
        carry = Carry(self.network_id, self.key.address, self.network.peer_id, 1, self.now_ms + DAY_MS)
        greeting = Greeting.ours(self.network_id, self.now_ms)
        ask = Ask(greeting, Proof((carry.sign(self.key),)), graph, "friend").enter(token, self.network.peer_id)
        return await self._talk(address, JOIN_PROTOCOL, encode_frames([ask.encode()]))

    async def garbage(self, address: str, protocol: str) -> bytes:
        """Bytes by chance, and a length that promises gigabytes."""
        heard = await self._talk(address, protocol, self.chance.randbytes(GARBAGE_BYTES))
        return heard + await self._talk(address, protocol, b"\xff\xff\xff\x7f" + bytes(64))

    async def silence(self, address: str, protocol: str) -> bytes:
        """Open a stream and say nothing, or stop in the middle of a frame."""
        return await self._talk(address, protocol, b"") + await self._talk(address, protocol, b"\x40half a frame")

    async def push(self, address: str, *envelopes: bytes) -> bytes:
        """Send envelopes on a member stream that no hello was made on."""
        return await self._talk(address, MEMBER_PROTOCOL, encode_frames([frames.encode(Frame(envelopes=envelopes))]))

    async def flood(self, address: str) -> None:
        """Open many streams at once and keep them."""
        async with trio.open_nursery() as nursery:
            for _ in range(STREAMS_AT_ONCE):
                nursery.start_soon(self._talk, address, SYNC_PROTOCOL, b"\x01")

    async def _talk(self, address: str, protocol: str, data: bytes) -> bytes:
        """Say something on a new stream and listen until the other side ends it, for some seconds at most."""
        self.tricks += 1
        heard = bytearray()
        with trio.move_on_after(PATIENCE_S):
            try:
                peer = await self.network.connect(address, expected=None)
                async with self._stream(peer, protocol) as stream:
                    if data:
                        await stream.send_all(data)
                    while some := await stream.receive_some():
                        heard += some
            except OutsideError:
                pass  # shown the door, as he should be
        self.heard += heard
        return bytes(heard)

    @asynccontextmanager
    async def _stream(self, peer: PeerId, protocol: str) -> AsyncIterator[Stream]:
        stream = await self.network.open_stream(peer, protocol)
        try:
            yield stream
        finally:
            with trio.CancelScope(shield=True):
                await stream.reset()
