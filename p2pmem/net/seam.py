"""The network as the rest of the node sees it: peers, connections and streams of bytes.

Two implementations keep these promises, and one suite of tests holds both to them: `libp2p_host.Libp2pNetwork` speaks
to the world, `memory.MemoryNetwork` to its neighbours in one process. A network is an async context manager::

    async with fabric.network("alice") as network:
        network.set_handler("/echo/1", echo)
        peer = await network.connect(address, expected=None)
        stream = await network.open_stream(peer, "/echo/1")

What holds for every network:

* A peer is authenticated before anybody above hears of it: its `PeerId` is proven, not claimed.
* There is one CONNECTED event when the first connection to a peer stands, and one DISCONNECTED when the last has gone.
  Whatever ends a connection (either side, a crash, a cut wire once it is noticed), its streams end with it.
* Nothing that a peer sends can end a task above: it sees bytes, the end of a stream, or `StreamClosedError`.
* Every buffer has a limit; a writer whose peer does not read waits.
* Cancelling any call leaves the connection and all other streams whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final, NewType, Protocol, TypeAlias

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError

PeerId = NewType("PeerId", str)
"""Who a peer is: the hash or the key of its identity in base58, `12D3KooW...` for Ed25519 (libp2p peer-ids)."""

READ_BYTES: Final = 64 * 1024
"""How much a reader usually asks for at once."""

PROTOCOL_NAME_MAX_BYTES: Final = 128


class PeerUnreachableError(OutsideError):
    """No connection to that peer stands, or none could be made: nobody answered, or nobody who speaks as we do."""


class WrongPeerError(PeerUnreachableError):
    """Somebody answered at that address, and proved to be another peer than the one that was expected."""


class NotSpokenError(OutsideError):
    """The peer is there, and does not speak that protocol (or not to us, or not more at a time)."""


class StreamClosedError(OutsideError):
    """The stream has ended: reset by the peer, closed here, cancelled in a write, or gone with its connection."""


class LimitReachedError(OutsideError):
    """One of our own limits on connections or streams is reached. Nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """What one node spends on its peers. Each limit is tested at the limit and one past it."""

    connections_max: int = 256
    """Connections in all, both ways."""
    inbound_connections_max: int = 192
    """Of these, how many others may have opened. One more takes the place of a stranger's (`room.py`)."""
    connections_per_peer_max: int = 3
    """More than one only because two sides may dial at once."""
    connections_per_address_max: int = 128
    """Inbound connections from one IP address (one /64 in IPv6)."""
    half_open_max: int = 128
    """Inbound sockets that have not yet proven who they are."""
    half_open_per_address_max: int = 32
    """The same from one IP address, so that one address cannot keep others out."""
    handshakes_per_address_per_minute: int = 600
    """Sockets that one IP address (one /48 in IPv6) may open in a minute, at once or spread. A handshake takes some
    4 ms of CPU, and its first half 1 ms, though it costs who begins it 32 random bytes."""
    handshakes_per_minute: int = 6_000
    """The same of all addresses: half of a core at the most. Whoever has a botnet, or an IPv6 /32, can use it up; then
    newcomers get in by chance, and who is here, and whom this node dials, does not notice."""
    work_per_address_per_minute: int = 300_000
    """Small frames (`yamux.SMALL_BYTES`) that strangers at one IP address (one /48 in IPv6), or one member, may send
    in a minute; each takes 1 to 5 µs of CPU. To open a stream takes as much as 64. More end the connection."""
    work_per_graph_per_minute: int = 1_200_000
    """The same of all members of one context graph; of who is in several, in one that has some left."""
    accounted_addresses_max: int = 4_096
    """For how many addresses and members these accounts are kept; of more, the one that was silent longest is
    forgotten."""
    handshake_timeout_s: float = 10.0
    """From an accepted socket to a proven peer."""
    connect_timeout_s: float = 15.0
    """From `connect` to a proven peer."""
    open_stream_timeout_s: float = 10.0
    """Agreeing on the protocol of a stream, on either side."""
    gone_stream_timeout_s: float = 30.0
    """How long the handler of a stream may go on once the stream has gone, because somebody gave it up, both sides have
    ended it, or its connection has ended. What had arrived before can be read meanwhile, unless it is too much
    (`unread_max_bytes`)."""
    inbound_streams_per_peer_max: int = 64
    """Streams of one peer that we serve at once, each until its handler has returned; one more is reset."""
    window_bytes: int = 256 * 1024
    """What may be on its way in a stream, unread, before its writer waits. Not less than 256 KiB (yamux)."""
    unread_per_connection_max_bytes: int = 8 * 1024 * 1024
    """What one peer may have sent in all streams that nobody here has read yet, or half of a frame; more closes the
    connection."""
    unread_max_bytes: int = 256 * 1024 * 1024
    """The same of all peers together, also of those who have gone. Of more, what these left is thrown away first; then
    the connection ends that has most of it, of a stranger while strangers have more than an eighth, and what is unread
    of it is thrown away."""
    stalled_write_timeout_s: float = 30.0
    """A connection that takes no byte for so long, while we have some to send, is closed."""
    silent_timeout_s: float = 30.0
    """An inbound connection of somebody we do not know, on which no stream is open for so long, is closed. (In memory
    connections cost nothing, and it is not.)"""
    unheard_timeout_s: float = 60.0
    """A connection that gives no sign of life for so long is closed; after half of it, it is asked for one."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise MisuseError(f"network limit {name} must be positive, not {getattr(self, name)}")
        if self.window_bytes < 256 * 1024:
            raise MisuseError(f"window_bytes is {self.window_bytes}; yamux starts with 262144 and can not do with less")


@unique
class PeerEventKind(Enum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """A peer came or went. `address` is where it was seen: for an inbound peer not where it can be dialled."""

    peer: PeerId
    kind: PeerEventKind
    address: str
    inbound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatistics:
    """Bytes to and from one peer since the network began, kept beyond a disconnect for the last 4,096 peers.

    `wire` counts what went through sockets: handshakes, keep-alive, everything. `stream` counts only what `send_all`
    took and `receive_some` gave.
    """

    wire_sent_bytes: int = 0
    wire_received_bytes: int = 0
    stream_sent_bytes: int = 0
    stream_received_bytes: int = 0
    connections: int = 0
    inbound_streams: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStatistics:
    """A snapshot. `refused` counts by the stable name of a reason: `half-open-per-address`, `handshake`, `gate`, ..."""

    peers: Mapping[PeerId, PeerStatistics] = field(default_factory=dict)
    unproven_sent_bytes: int = 0
    """Bytes sent to sockets that never proved who they are."""
    unproven_received_bytes: int = 0
    half_open: int = 0
    connections: int = 0
    inbound_connections: int = 0
    restarts: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


class Stream(Protocol):
    """Bytes both ways between two peers, in order, under back-pressure. One task may read while another writes.

    A second task in the same direction at the same time gets `trio.BusyResourceError`.
    """

    @property
    def peer(self) -> PeerId:
        """The proven identity of the other side."""

    @property
    def protocol(self) -> str:
        """What was agreed on when the stream was opened."""

    async def send_all(self, data: bytes) -> None:
        """Send all of `data`; waits while the peer has `window_bytes` unread.

        Returning means handed over, not received: only the peer's own words say that.

        Raises `StreamClosedError` if the stream is closed or reset, here or there. **Cancelled**, it has sent nobody
        knows how much, so the stream is reset; the connection and its other streams go on.
        """

    async def receive_some(self, max_bytes: int = READ_BYTES) -> bytes:
        """At least one and at most `max_bytes` bytes, as soon as there are any; `b""` once the peer has ended its side.

        Raises `StreamClosedError` after a reset or the loss of the connection, once what had arrived before was read.
        Cancelled, it loses nothing.
        """

    def keep(self, size_bytes: int) -> None:
        """Say how much of what was read is kept, half a frame or a whole one that waits: it counts as unread."""

    async def close_write(self) -> None:
        """End our side: the peer reads `b""` after all we sent. Reading goes on. Again is allowed and does nothing."""

    async def reset(self) -> None:
        """End both sides now, throwing away what is unread; the peer gets `StreamClosedError`. Never waits for it."""

    async def aclose(self) -> None:
        """End our side and stop reading; what the peer still sends makes it a reset. Never raises `StreamClosedError`.

        Cancelled, the stream is reset and gone all the same.
        """


Handler: TypeAlias = Callable[[Stream], Awaitable[None]]
"""Serves one inbound stream in its own task. When it returns, the stream is closed. When it raises, the stream is reset
and the error logged; nothing else is harmed. It is cancelled when the network closes, and `gone_stream_timeout_s` after
its stream has gone: a handler that neither reads nor writes does not notice that itself."""

Gate: TypeAlias = Callable[[PeerId, str], bool]
"""Whether a peer that has proven itself may be connected. Asked in both directions: with the address it dials from, as
`room.Origin.wide` has it, or an empty one where we dial. Must not block. One that raises lets nobody in."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Whose node a peer is: any one name for the member, and in which context graphs, any names for these."""

    member: str
    graphs: frozenset[bytes]


StandingOf: TypeAlias = Callable[[PeerId], Standing | None]
"""How a peer stands: None for a stranger. A member's connections are kept when room for others is made. Must not
block."""


class Network(Protocol):
    """One node's place among its peers. Used from one trio task tree; entered once."""

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""

    def addresses(self) -> tuple[str, ...]:
        """Where we listen, as multiaddrs that end in `/p2p/<peer id>`; empty if we do not. Changes only on entry."""

    def set_handler(self, protocol: str, handler: Handler) -> None:
        """From now on `handler` serves inbound streams of `protocol`; replaces an earlier one for new streams.

        `protocol` begins with `/` and has at most 128 bytes of printable ASCII without space, otherwise `MisuseError`.
        """

    def remove_handler(self, protocol: str) -> None:
        """No longer serve `protocol`. Streams being served go on. Unknown: nothing happens."""

    def set_gate(self, gate: Gate) -> None:
        """Let `gate` decide who may be connected, from now on. Peers already connected stay; see `disconnect`."""

    def set_standing(self, standing_of: StandingOf) -> None:
        """Say who is a member's, from now on; until then nobody is. See `room.py` for what that is good for."""

    async def connect(self, address: str, *, expected: PeerId | None) -> PeerId:
        """Make sure a connection to the peer at `address` stands, and return who it is. Connected already: at once.

        The peer must prove to be `expected`, or whom the `/p2p/` part of the address names. An address without that
        part and no `expected`, or two that differ, is `MisuseError`; so is our own address.

        Raises `PeerUnreachableError` (nobody there, within `connect_timeout_s`; refused by gate), `WrongPeerError`,
        `LimitReachedError`. A failure is never remembered: the next call tries again; pacing is the caller's part.
        Cancelled, no connection stays behind, unless another caller wanted the same one.
        """

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """A new stream to a connected peer, agreed on.

        Raises `PeerUnreachableError` if it is not connected (there is no hidden dialling) or the connection ends
        meanwhile, `NotSpokenError` if it does not speak the protocol or does not agree within `open_stream_timeout_s`.
        Cancelled, the half-open stream is reset.
        """

    def connected(self) -> frozenset[PeerId]:
        """Who is connected now."""

    def address_of(self, peer: PeerId) -> str:
        """Where a connected peer was seen, as in `PeerEvent`; empty if it is not connected."""

    def account_of(self, peer: PeerId) -> str:
        """Whose account pays for what a connected peer costs: that of the member, for a node of one, so that nobody at
        its address uses up what it may do, nor it what they may; of others that of their address, as
        `room.Origin.wide` has it, because a peer id costs nothing."""

    def accounts_beside(self, peer: PeerId) -> frozenset[bytes]:
        """Which accounts pay for it, too, where many keys are not to cost more than one: of a member's node those of
        its context graphs, one of which pays; of all strangers together one, under no name."""

    def refuse(self, event: str, reason: str, peer: PeerId) -> None:
        """Count under a stable name what is refused above the network, and log it in one line: `event`, with `reason`,
        `address` and `peer`."""

    def dialled_at(self, peer: PeerId) -> str:
        """Where we dialled a connected peer, and it proved itself; empty if only it has dialled us."""

    async def disconnect(self, peer: PeerId, why: str) -> None:
        """Close all connections to `peer`; streams end. Not connected: nothing happens. `why` goes to the log.

        Returns when they are gone and DISCONNECTED has been queued, in bounded time, also if cancelled.
        """

    def peer_events(self) -> trio.MemoryReceiveChannel[PeerEvent]:
        """A channel of its own, beginning with one CONNECTED for each peer connected now.

        It holds 1,024 events. A reader who falls behind further finds the channel ended (`trio.EndOfChannel`) and asks
        for a new one, which again begins with the truth; nothing is ever lost silently. Ends when the network closes.
        """

    def statistics(self) -> NetworkStatistics:
        """A snapshot of the counters. Costs time in proportion to the peers."""


OpenNetwork: TypeAlias = AbstractAsyncContextManager[Network]
"""What `async with` takes. Leaving it closes all connections and frees the port before it returns, cancelled or not."""


def check_protocol_name(protocol: str) -> str:
    """The name itself, or `MisuseError` with the rule it broke."""
    if not protocol.startswith("/") or len(protocol) > PROTOCOL_NAME_MAX_BYTES:
        raise MisuseError(
            f"protocol name {protocol!r}: begins with '/' and has at most {PROTOCOL_NAME_MAX_BYTES} bytes"
        )
    if not protocol.isascii() or not protocol.isprintable() or " " in protocol:
        raise MisuseError(f"protocol name {protocol!r}: printable ASCII without spaces only")
    return protocol


def peer_of_address(address: str, expected: PeerId | None) -> tuple[str, PeerId]:
    """Split `<where>/p2p/<peer>` into where and whom to expect there.

    Raises `MisuseError` if nobody is named, or two different ones are.
    """
    where, mark, named = address.rpartition("/p2p/")
    if not mark:
        where, named = address, ""
    if not where.startswith("/"):
        raise MisuseError(f"address {address!r} is not a multiaddr such as /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...")
    if named and expected is not None and named != expected:
        raise MisuseError(f"address {address!r} names another peer than the expected {expected}")
    if not named and expected is None:
        raise MisuseError(f"address {address!r} names no peer: append /p2p/<peer id>, or say whom to expect")
    return where, PeerId(named) if named else PeerId(str(expected))
