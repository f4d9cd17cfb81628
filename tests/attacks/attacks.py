"""The attacks, each against any libp2p host at an address.

An attack is a context: on entering it has done its worst, inside it stands, on leaving the attacker has gone. It gives
what the attacker got that nobody may have, in words; empty for nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.insecure.pb import plaintext_pb2
from p2pmem_protocol.errors import OutsideError

from p2pmem.net import multistream
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import PeerId, PeerUnreachableError, Stream, StreamClosedError, peer_of_address
from p2pmem.net.secure import Identity, SecureChannel, _shake_hands
from p2pmem.net.wire import Wire, WireError

from .raw import (
    MESHSUB,
    SYN,
    WINDOW,
    bad_key_message,
    data,
    delimited,
    dial,
    frame,
    negotiate,
    secured,
    signed_message,
    wire_to,
)

CONNECTIONS: Final = 300
HALF_OPEN: Final = 400
HALF_OPEN_EACH: Final = 32
SILENT: Final = (128, 64)
ADDRESSES: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
UNREAD_BYTES: Final = 300_000_000
SUBSCRIPTIONS: Final = 10_000
SYNS: Final = 10_000
HANGING: Final = 300
OVERSIZE_BYTES: Final = 30_000_000
CANCELLED_WRITES_MS: Final = (1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100)
ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where the victim listens, and whom it believes to be connected to."""

    address: str
    connected: Callable[[], Awaitable[list[str]]]

    @property
    def peer(self) -> PeerId:
        return peer_of_address(self.address, None)[1]


Attack = Callable[[Target], AbstractAsyncContextManager[str]]
ATTACKS: Final[dict[str, Attack]] = {}
PEERS: Final[dict[str, int]] = {}
"""As how many peers an attacker comes."""


def attack(name: str, *, peers: int = 1) -> Callable[[Callable[[Target], AsyncIterator[str]]], Attack]:
    def register(work: Callable[[Target], AsyncIterator[str]]) -> Attack:
        ATTACKS[name], PEERS[name] = asynccontextmanager(work), peers
        return ATTACKS[name]

    return register


@contextmanager
def closing(wires: Iterable[Wire]) -> Iterator[None]:
    try:
        yield
    finally:
        for wire in wires:
            wire.close()


@asynccontextmanager
async def gossiping(target: Target, words: bytes) -> AsyncIterator[None]:
    """Say `words` on a gossip stream of its own, and stay."""
    channel = await secured(target.address)
    with closing([channel.wire]):
        with suppress(WireError):
            await channel.write(negotiate(1, MESHSUB, words))
        yield


async def pour(channel: SecureChannel, pieces: Iterable[bytes]) -> None:
    """Write until all is written or the victim has closed the connection."""
    with suppress(WireError):
        for piece in pieces:
            await channel.write(piece)


@attack("garbage instead of a protobuf")
async def garbage(target: Target) -> AsyncIterator[str]:
    async with gossiping(target, delimited(b"\xff" * 20)):
        yield ""


@attack("a bad key, the author's id without one")
async def bad_key(target: Target) -> AsyncIterator[str]:
    rpc = rpc_pb2.RPC(publish=[bad_key_message(b"\x12\x20" + os.urandom(32), "open")])
    async with gossiping(target, delimited(rpc.SerializeToString())):
        yield ""


@attack("a bad key, the author's id empty")
async def bad_key_no_author(target: Target) -> AsyncIterator[str]:
    rpc = rpc_pb2.RPC(publish=[bad_key_message(b"", "open")])
    async with gossiping(target, delimited(rpc.SerializeToString())):
        yield ""


def published(topic: str, count: int) -> bytes:
    identity = Identity(os.urandom(32))
    return b"".join(
        delimited(rpc_pb2.RPC(publish=[signed_message(identity, topic, b"%d" % number, number)]).SerializeToString())
        for number in range(count)
    )


@attack("a validator that raises")
async def raising_validator(target: Target) -> AsyncIterator[str]:
    async with gossiping(target, published("raise", 1)):
        yield ""


@attack("a validator that hangs, 300 messages")
async def hanging_validator(target: Target) -> AsyncIterator[str]:
    async with gossiping(target, published("hang", HANGING)):
        yield ""


@attack("a stream handler that raises")
async def raising_handler(target: Target) -> AsyncIterator[str]:
    channel = await secured(target.address)
    with closing([channel.wire]):
        await channel.write(negotiate(1, "/fail/1"))
        yield ""


@attack("a noise message that does not decrypt")
async def corrupt_noise(target: Target) -> AsyncIterator[str]:
    channel = await secured(target.address)
    with closing([channel.wire]):
        await channel.wire.write((100).to_bytes(2) + os.urandom(100))
        yield ""


@attack("mplex, and in it a message that does not decrypt")
async def corrupt_mplex(target: Target) -> AsyncIterator[str]:
    wire = await wire_to(target.address)
    with closing([wire]):
        if await multistream.propose(wire, "/noise"):
            channel = await _shake_hands(wire, Identity(os.urandom(32)), expected=target.peer, client=True)
            if await multistream.propose(channel, "/mplex/6.7.0"):
                await wire.write((100).to_bytes(2) + os.urandom(100))
        yield ""


@attack("plaintext, with somebody else's public key")
async def stolen_key(target: Target) -> AsyncIterator[str]:
    stolen = create_new_key_pair(os.urandom(32)).public_key
    owner = ID.from_pubkey(stolen)
    wire = await wire_to(target.address)
    with closing([wire]), suppress(WireError):
        if await multistream.propose(wire, "/plaintext/2.0.0"):
            claim = plaintext_pb2.Exchange(id=owner.to_bytes())
            claim.pubkey.ParseFromString(stolen.serialize())
            await wire.write(delimited(claim.SerializeToString()))
            await wire.read_exactly((await wire.read_exactly(1))[0])
            await multistream.propose(wire, "/yamux/1.0.0")
        is_believed = False
        with trio.move_on_after(1):
            while not (is_believed := str(owner) in await target.connected()):
                await trio.sleep(0.05)
        yield "is taken for that somebody" if is_believed else ""


@attack("300 connections, one after the other")
async def connections_in_turn(target: Target) -> AsyncIterator[str]:
    for _ in range(CONNECTIONS):
        try:
            channel = await secured(target.address)
        except PeerUnreachableError:
            break
        channel.wire.close()
    yield ""


@attack("300 MB into a stream that nobody reads")
async def unread(target: Target) -> AsyncIterator[str]:
    channel = await secured(target.address)
    with closing([channel.wire]):
        await channel.write(negotiate(1, "/hold/1"))
        piece = data(1, bytes(65_536 - 12)) * 4
        await pour(channel, itertools.repeat(piece, UNREAD_BYTES // len(piece)))
        yield ""


@attack("400 sockets that say nothing")
async def half_open(target: Target) -> AsyncIterator[str]:
    sockets: list[trio.SocketStream] = []
    try:
        with suppress(OSError):
            for _ in range(HALF_OPEN):
                sockets.append(await dial(target.address))
        yield ""
    finally:
        for stream in sockets:
            stream.socket.close()


@attack("128 sockets of four addresses that say nothing")
async def half_open_from_four(target: Target) -> AsyncIterator[str]:
    sockets: list[trio.SocketStream] = []
    try:
        with suppress(OSError):
            for host in ADDRESSES:
                for _ in range(HALF_OPEN_EACH):
                    sockets.append(await dial(target.address, host))
        yield ""
    finally:
        for stream in sockets:
            stream.socket.close()


@attack("192 connections of two addresses, all silent", peers=192)
async def silent(target: Target) -> AsyncIterator[str]:
    wires: list[Wire] = []
    with closing(wires):
        for host, count in zip(ADDRESSES, SILENT, strict=False):
            with suppress(PeerUnreachableError, OSError):
                for _ in range(count):
                    wires.append((await secured(target.address, local_address=host)).wire)
        yield ""


@attack("10,000 subscriptions")
async def subscriptions(target: Target) -> AsyncIterator[str]:
    rpc = rpc_pb2.RPC()
    for number in range(SUBSCRIPTIONS):
        rpc.subscriptions.add(subscribe=True, topicid=f"topic {number} " + "x" * 50)
    words = delimited(rpc.SerializeToString())
    channel = await secured(target.address)
    with closing([channel.wire]):
        await pour(channel, (negotiate(1, MESHSUB), *(data(1, piece) for piece in _pieces(words, 65_000))))
        yield ""


@attack("an RPC of a size beyond all limits")
async def oversize(target: Target) -> AsyncIterator[str]:
    channel = await secured(target.address)
    with closing([channel.wire]):
        head = delimited(bytes(OVERSIZE_BYTES))[:4]
        await channel.write(negotiate(1, MESHSUB, head))
        piece = data(1, bytes(65_000))
        await pour(channel, itertools.repeat(piece, OVERSIZE_BYTES // 65_000))
        yield ""


@attack("10,000 openings of streams (SYN)")
async def syn_flood(target: Target) -> AsyncIterator[str]:
    channel = await secured(target.address)
    with closing([channel.wire]):
        openings = [frame(WINDOW, SYN, 2 * number + 1, 0) for number in range(SYNS)]
        await pour(channel, (b"".join(openings[at : at + 100]) for at in range(0, SYNS, 100)))
        yield ""


@attack("large writes that are given up half way")
async def cancelled_writes(target: Target) -> AsyncIterator[str]:
    """Here the victim itself gives a write up; its peer, who reads, loses whatever else was on the connection."""
    async with Libp2pNetwork(identity_seed=os.urandom(32)) as reader, trio.open_nursery() as nursery:
        peer = await reader.connect(target.address, expected=None)
        done = 0
        with suppress(OutsideError):
            for wait_ms in CANCELLED_WRITES_MS:
                stream = await reader.open_stream(peer, "/cancel/1")
                nursery.start_soon(_drain, stream)
                await stream.send_all(b"%d" % wait_ms)
                steady = await reader.open_stream(peer, "/echo/1")
                await trio.sleep(wait_ms / 1000)
                await steady.send_all(b"tick")
                with trio.fail_after(ANSWER_S):
                    await steady.receive_some()
                await steady.reset()
                done += 1
        nursery.cancel_scope.cancel()
        is_whole = done == len(CANCELLED_WRITES_MS)
    yield "" if is_whole else f"tears the connection apart at write {done + 1}"


async def _drain(stream: Stream) -> None:
    with suppress(StreamClosedError):
        while await stream.receive_some():
            pass


def _pieces(raw: bytes, size_bytes: int) -> Iterator[bytes]:
    for at in range(0, len(raw), size_bytes):
        yield raw[at : at + size_bytes]
