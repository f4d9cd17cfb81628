"""What a peer that keeps to no rule is made of: raw sockets, raw frames behind a true handshake, raw words of gossip.

All of it works against any libp2p host with noise and yamux: ours, and py-libp2p as it comes.
"""

from __future__ import annotations

import os
import struct
from typing import Final

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import trio
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from p2pmem.net import multistream
from p2pmem.net.multiaddr import parse_tcp
from p2pmem.net.seam import peer_of_address
from p2pmem.net.secure import Identity, SecureChannel, secure_outbound
from p2pmem.net.wire import Wire

ATTACKER_HOST: Final = "127.0.0.2"
"""Another loopback address than that of honest peers, so that limits by address can tell them apart."""
MESHSUB: Final = "/meshsub/1.1.0"
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
_SIGNED: Final = b"libp2p-pubsub:"


async def dial(address: str, local_address: str = ATTACKER_HOST) -> trio.SocketStream:
    """A bare socket to the host at `address`, which ends in `/p2p/<peer>`."""
    host, port = parse_tcp(address.rpartition("/p2p/")[0])
    return await trio.open_tcp_stream(host, port, local_address=local_address)


async def wire_to(address: str, local_address: str = ATTACKER_HOST) -> Wire:
    return Wire(await dial(address, local_address), stalled_write_timeout_s=10)


async def secured(address: str, identity: Identity | None = None, local_address: str = ATTACKER_HOST) -> SecureChannel:
    """A connection after noise and yamux were agreed on; from here on the attacker writes frames by hand."""
    _, peer = peer_of_address(address, None)
    wire = await wire_to(address, local_address)
    try:
        return await secure_outbound(wire, identity or Identity(os.urandom(32)), peer)
    except BaseException:
        wire.close()
        raise


def frame(kind: int, flags: int, stream_id: int, length: int, body: bytes = b"", version: int = 0) -> bytes:
    """A frame of yamux, whatever its fields say."""
    return struct.pack("!BBHII", version, kind, flags, stream_id, length) + body


def data(stream_id: int, body: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream_id, len(body), body)


def negotiate(stream_id: int, protocol: str, more: bytes = b"") -> bytes:
    """Open a stream and say what it is for, without waiting for an answer; `more` comes right behind."""
    words = multistream.encode_token("/multistream/1.0.0") + multistream.encode_token(protocol)
    return data(stream_id, words + more, SYN)


def delimited(raw: bytes) -> bytes:
    """Bytes with their length in front, as an RPC of gossip is sent."""
    length, head = len(raw), bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(head) + bytes([length]) + raw


def signed_message(identity: Identity, topic: str, content: bytes, number: int) -> rpc_pb2.Message:
    """A message as its author signs it."""
    message = rpc_pb2.Message(
        from_id=ID.from_string(identity.peer_id).to_bytes(),
        seqno=number.to_bytes(8),
        data=content,
        topicIDs=[topic],
    )
    message.signature = identity.key_pair.private_key.sign(_SIGNED + message.SerializeToString())
    message.key = identity.key_pair.public_key.serialize()
    return message


def bad_key_message(author: bytes, topic: str) -> rpc_pb2.Message:
    """A message whose key is none; `author` is an id without a key in it, or empty."""
    return rpc_pb2.Message(
        from_id=author, seqno=bytes(8), data=b"x", topicIDs=[topic], signature=b"s" * 64, key=b"\xff" * 40
    )
