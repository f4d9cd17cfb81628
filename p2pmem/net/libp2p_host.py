"""The network of the world: TCP, noise and yamux as libp2p speaks them, with a limit on everything a stranger can do.

::

    async with Libp2pNetwork(identity_seed=seed, listen=("/ip4/0.0.0.0/tcp/4001",)) as network:
        ...

The way of an inbound socket, cheapest check first: limits on sockets by address and in all (nothing is read or sent),
handshake in limited time (a wrong first word ends it, before any cryptography), gate, limits on connections. Only then
there is a peer. Where all places are taken somebody gives his up for the newcomer: `room.py` says who. A refusal is
counted under a stable name and logged in one line, `net.refused`, with the address.

Listening is supervised: if it fails, it begins again on the same port, and connections that stand do not notice.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.net import multistream
from p2pmem.net.allowance import Allowance
from p2pmem.net.background import background_nursery
from p2pmem.net.base import NetworkBase, log_failed_handler
from p2pmem.net.connection import FLUSH_TIMEOUT_S, Libp2pConnection
from p2pmem.net.identity import ed25519_of_peer_id
from p2pmem.net.multiaddr import format_tcp, parse_tcp
from p2pmem.net.room import STRANGERS_PART, Origin, at_the_fullest, origin_of
from p2pmem.net.seam import (
    LimitReachedError,
    NetworkLimits,
    NetworkStatistics,
    PeerId,
    PeerUnreachableError,
    StreamClosedError,
    WrongPeerError,
    check_protocol_name,
    peer_of_address,
)
from p2pmem.net.secure import HandshakeError, Identity, SecureChannel, secure_inbound, secure_outbound
from p2pmem.net.stream import Libp2pStream
from p2pmem.net.wire import Wire, WireError

log = logging.getLogger(__name__)

_BACKLOG: Final = 128
_RESTART_PAUSE_S: Final = 0.05
_RESTART_PAUSE_MAX_S: Final = 5.0
_FEW_DESCRIPTORS_PAUSE_S: Final = 0.1
_FEW_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SILENT_LOOKS: Final = 6
"""How often it is looked, within the time that a connection may be silent."""
_ONE_SOCKET_ONLY: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH})


@dataclass(eq=False, slots=True)
class _HalfOpen:
    """A socket that was accepted and has not proven who it is; `refusal` is why it does not, unless it does."""

    origin: Origin
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    refusal: str | None = "handshake-timeout"


def peer_id_of_seed(seed: bytes) -> PeerId:
    """Who the holder of a 32-byte Ed25519 seed is."""
    return Identity(seed).peer_id


class Libp2pNetwork(NetworkBase[Libp2pConnection]):
    """Implements `seam.Network`; an async context manager, entered once."""

    def __init__(
        self,
        *,
        identity_seed: bytes,
        listen: tuple[str, ...] = (),
        announce: tuple[str, ...] = (),
        limits: NetworkLimits | None = None,
        usual_port: int = 0,
    ) -> None:
        """`listen`: multiaddrs as `/ip4/127.0.0.1/tcp/0`. `announce`: further addresses to show, without `/p2p/`.

        `usual_port` is taken where `listen` has port 0, as long as nobody else has it.
        """
        self._identity = Identity(identity_seed)
        super().__init__(self._identity.peer_id, limits or NetworkLimits())
        self._listen = tuple(parse_tcp(address) for address in listen)
        for address in announce:
            parse_tcp(address)
        self._announce = announce
        self._usual_port = usual_port
        self._listeners: list[trio.SocketListener] = []
        self._bound: list[tuple[str, int]] = []
        self._half_open: dict[_HalfOpen, None] = {}
        """Sockets in their handshake, the oldest first."""
        self._handshakes = Allowance(self.limits.handshakes_per_address_per_minute, self.limits.accounted_addresses_max)
        self._all_handshakes = Allowance(self.limits.handshakes_per_minute)
        self._work = Allowance(self.limits.work_per_address_per_minute, self.limits.accounted_addresses_max)
        self._work_of_graphs = Allowance(self.limits.work_per_graph_per_minute, self.limits.accounted_addresses_max)
        self._serving: Counter[PeerId] = Counter()
        self._left: list[Libp2pConnection] = []
        """Connections that have ended while something of them was unread; looked through when the next one ends."""
        self._nursery: trio.Nursery | None = None
        self._closed = False
        self._entered: AbstractAsyncContextManager[Libp2pNetwork] | None = None

    async def __aenter__(self) -> Libp2pNetwork:
        if self._entered is not None:
            raise MisuseError("a network is entered once: make a new one")
        self._entered = self._run()
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._entered is None:
            raise MisuseError("the network was not entered")
        return await self._entered.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[Libp2pNetwork]:
        async with background_nursery() as nursery:
            self._nursery = nursery
            try:
                for host, port in self._listen:
                    await self._bind(host, port)
                for index in range(len(self._listeners)):
                    nursery.start_soon(self._keep_listening, index)
                nursery.start_soon(self._end_silent)
                yield self
            finally:
                self._closed = True
                with trio.CancelScope(shield=True):
                    await self._shut_down()

    async def _bind(self, host: str, port: int) -> None:
        try:
            listeners = await self._open_listeners(host, port)
        except OSError as error:
            raise OutsideError(
                f"cannot listen at {host}:{port} for peers: {error.strerror or error}; set peer.listen to another "
                "address or port, or the port to 0 so that the system chooses one"
            ) from error
        for listener in listeners:
            self._listeners.append(listener)
            self._bound.append(listener.socket.getsockname()[:2])

    async def _open_listeners(self, host: str, port: int) -> list[trio.SocketListener]:
        if port == 0 and self._usual_port:
            with suppress(OSError):
                return await trio.open_tcp_listeners(self._usual_port, host=host, backlog=_BACKLOG)
            log.warning("net.listener.usual_port_taken", extra={"host": host, "port": self._usual_port})
        return await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)

    async def _shut_down(self) -> None:
        for listener in self._listeners:
            await listener.aclose()
        connections = self.all_connections()
        for connection in connections:
            connection.end("closed here")
        with trio.move_on_after(2 * FLUSH_TIMEOUT_S):
            for connection in connections:
                await connection.gone.wait()
        self._events.close()

    # What the node sees

    def addresses(self) -> tuple[str, ...]:
        bound = [format_tcp(*address) for address in self._bound]
        return tuple(f"{where}/p2p/{self.peer_id}" for where in (*bound, *self._announce))

    def statistics(self) -> NetworkStatistics:
        return self._statistics(self._serving, len(self._half_open))

    async def connect(self, address: str, *, expected: PeerId | None) -> PeerId:
        where, peer = peer_of_address(address, expected)
        ed25519_of_peer_id(peer)
        host, port = parse_tcp(where)
        if peer == self.peer_id:
            raise MisuseError(f"{address} is our own address")
        await trio.lowlevel.checkpoint()
        lock = self._dialling.setdefault(peer, trio.Lock())
        try:
            async with lock:
                if not any(connection.usable for connection in self._connections.get(peer, ())):
                    await self._dial(host, port, peer)
        finally:
            if not lock.locked() and self._dialling.get(peer) is lock:
                del self._dialling[peer]
        return peer

    async def open_stream(self, peer: PeerId, protocol: str) -> Libp2pStream:
        check_protocol_name(protocol)
        await trio.lowlevel.checkpoint()
        for connection in self._connections.get(peer, ()):
            if connection.usable:
                return await connection.open_stream(protocol)
        raise PeerUnreachableError(f"{peer} is not connected: connect first")

    async def disconnect(self, peer: PeerId, why: str) -> None:
        connections = tuple(self._connections.get(peer, ()))
        for connection in connections:
            connection.end(why)
        with trio.CancelScope(shield=True):
            for connection in connections:
                await connection.gone.wait()
        await trio.lowlevel.checkpoint()

    # Dialling

    async def _dial(self, host: str, port: int, peer: PeerId) -> None:
        refusal = self._refusal(peer, None)
        if refusal in ("closing", "gate"):
            self.counters.refuse(refusal)
            raise PeerUnreachableError(f"the connection to {peer} is refused here: {refusal}")
        if refusal is not None:
            raise LimitReachedError(f"limit {refusal} is reached: disconnect somebody before connecting to {peer}")
        wire: Wire | None = None
        try:
            with trio.move_on_after(self.limits.connect_timeout_s):
                try:
                    stream = await trio.open_tcp_stream(host, port)
                except (OSError, ValueError) as error:  # ValueError: a name that cannot be one
                    raise PeerUnreachableError(f"nobody answers at {host} port {port}: {error}") from error
                wire = Wire(stream, stalled_write_timeout_s=self.limits.stalled_write_timeout_s)
                channel = await secure_outbound(wire, self._identity, peer)
                if (why := self._refusal(peer, None)) is not None:
                    self.counters.refuse(why)
                    raise PeerUnreachableError(f"the connection to {peer} is refused here: {why}")
                self._add(channel, format_tcp(host, port), None)
                wire = None
                return
        except PeerUnreachableError as error:
            self.counters.refuse("wrong-peer" if isinstance(error, WrongPeerError) else "dial")
            raise
        finally:
            if wire is not None:
                self.counters.unproven.add(wire.traffic)
                wire.close()
        raise PeerUnreachableError(f"{host} port {port} was silent for {self.limits.connect_timeout_s} s")

    # Listening

    async def _keep_listening(self, index: int) -> None:
        pause_s = _RESTART_PAUSE_S
        host, port = self._bound[index]
        while True:
            try:
                await self._accept_all(self._listeners[index])
            except (OSError, trio.ClosedResourceError) as error:
                if self._closed:
                    return
                self.counters.restarts += 1
                log.error("net.listener.failed", extra={"address": format_tcp(host, port), "error": str(error)})
            await self._listeners[index].aclose()
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_PAUSE_MAX_S)
            try:
                (self._listeners[index],) = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
            except OSError as error:
                log.error("net.listener.no_port", extra={"address": format_tcp(host, port), "error": str(error)})

    async def _accept_all(self, listener: trio.SocketListener) -> None:
        if self._nursery is None:
            raise MisuseError("the network was not entered")
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno in _FEW_DESCRIPTORS:
                    log.error("net.listener.few_descriptors", extra={"error": str(error)})
                    await trio.sleep(_FEW_DESCRIPTORS_PAUSE_S)
                    continue
                if error.errno in _ONE_SOCKET_ONLY:
                    continue
                raise
            try:
                address = stream.socket.getpeername()[:2]
            except OSError:
                stream.socket.close()
                continue
            half_open = _HalfOpen(origin_of(address[0]))
            if (too_many := self._too_many_handshakes(half_open.origin)) is not None:
                self._log_refusal(too_many, format_tcp(*address))
                stream.socket.close()
                continue
            self._make_half_open_room(half_open.origin)
            self._half_open[half_open] = None
            self._nursery.start_soon(self._welcome, stream, half_open, format_tcp(*address))

    def _too_many_handshakes(self, origin: Origin) -> str | None:
        """Take one more into account, or the name of the limit that it would break. What an address may not do is not
        counted against all."""
        now_s = trio.current_time()
        if not self._handshakes.take(now_s, origin.wide):
            return "handshakes-per-address"
        return None if self._all_handshakes.take(now_s) else "handshakes"

    def _make_half_open_room(self, origin: Origin) -> None:
        """Where too many are in their handshake, give up the oldest at this address, or at that which has most.

        As for connections (`room.py`), but nothing tells a member from a stranger yet. An honest handshake takes some
        round trips: to end it an attacker opens as many sockets as there are places within these, again and again,
        from the same address or from more addresses than there are places.
        """
        limits = self.limits
        here = [it for it in self._half_open if it.origin.narrow == origin.narrow]
        if len(here) >= limits.half_open_per_address_max:
            self._give_up(here[0], "half-open-per-address")
        elif len(self._half_open) >= limits.half_open_max:
            self._give_up(at_the_fullest(self._half_open, lambda it: it.origin)[0], "half-open")

    def _give_up(self, half_open: _HalfOpen, reason: str) -> None:
        del self._half_open[half_open]
        half_open.refusal = reason
        half_open.scope.cancel()

    async def _welcome(self, stream: trio.SocketStream, half_open: _HalfOpen, address: str) -> None:
        """From an accepted socket to a connection, or to its refusal."""
        wire = Wire(stream, stalled_write_timeout_s=self.limits.stalled_write_timeout_s)
        half_open.scope.deadline = trio.current_time() + self.limits.handshake_timeout_s
        try:
            with half_open.scope:
                try:
                    channel = await secure_inbound(wire, self._identity)
                    half_open.refusal = self._refusal(channel.peer, half_open.origin)
                    if half_open.refusal is None:
                        self._add(channel, address, half_open.origin)
                except (HandshakeError, WireError):
                    half_open.refusal = "handshake"
        finally:
            self._half_open.pop(half_open, None)
            if half_open.refusal is not None:
                self.counters.unproven.add(wire.traffic)
                self._log_refusal(half_open.refusal, address)
                wire.close()

    def _log_refusal(self, reason: str, address: str) -> None:
        self.counters.refuse(reason)
        log.warning("net.refused", extra={"reason": reason, "address": address})

    # Connections

    def _refusal(self, peer: PeerId, origin: Origin | None) -> str | None:
        """Why a proven peer may not be connected, or None. `origin`: from where it dialled; room is made for it then.

        Nothing waits between this and `_add`.
        """
        if self._closed:
            return "closing"
        if peer == self.peer_id:
            return "ourselves"
        return self._why_not(peer, None) if origin is None else self._make_room(peer, origin)

    def _add(self, channel: SecureChannel, address: str, origin: Origin | None) -> None:
        if self._nursery is None:
            raise MisuseError("the network was not entered")
        traffic = self.counters.of(channel.peer)
        traffic.add(channel.wire.traffic)
        channel.wire.traffic = traffic
        connection = Libp2pConnection(
            channel,
            address=address,
            origin=origin,
            limits=self.limits,
            counters=self.counters,
            on_stream=self._serve,
            why_no_work=self._why_no_work,
            on_full=self._end_with_most_unread,
        )
        self._came(connection)
        self._nursery.start_soon(self._run_connection, connection)

    def _why_no_work(self, connection: Libp2pConnection, work: int) -> str | None:
        """The account of a graph may be used up by others than this peer: its name is one that bans nobody."""
        now_s, standing = trio.current_time(), self._standing_of(connection.peer)
        if not self._work.take(now_s, self.account_of(connection.peer), work):
            return "work"
        if standing is not None and not self._work_of_graphs.take_of_one(now_s, standing.graphs, work):
            return "graph-work"
        return None

    def _end_with_most_unread(self) -> None:
        """First what those left who have gone: nobody who is here goes for it. Then of strangers while they hold more
        than is for them, as with places (`room.py`): else members, whom anybody's graph may list, would end whoever has
        just come with a byte unread."""
        left = (connection for connection in self._left if connection.unread_bytes)
        for gone in sorted(left, key=lambda it: it.unread_bytes, reverse=True):
            gone.refuse_unread()
            if self.counters.unread_bytes <= self.limits.unread_max_bytes:
                return
        holding = [connection for connection in self.all_connections() if connection.unread_bytes]
        strangers = [connection for connection in holding if self._standing_of(connection.peer) is None]
        if sum(it.unread_bytes for it in strangers) * STRANGERS_PART > self.limits.unread_max_bytes:
            holding = strangers
        if holding:
            max(holding, key=lambda it: it.unread_bytes).refuse_unread()

    def _went(self, connection: Libp2pConnection, why: str) -> None:
        super()._went(connection, why)
        self._left = [it for it in {*self._left, connection} if it.unread_bytes]

    async def _run_connection(self, connection: Libp2pConnection) -> None:
        try:
            await connection.run()
        finally:
            self._went(connection, connection.why)
            connection.gone.set()

    async def _end_silent(self) -> None:
        """Close what strangers opened and do nothing with; see `room.py`."""
        limit_s = self.limits.silent_timeout_s
        while True:
            await trio.sleep(limit_s / _SILENT_LOOKS)
            for connection in self.all_connections():
                silent_s = trio.current_time() - connection.since_s
                if not connection.inbound or connection.streams_open or self._standing_of(connection.peer):
                    continue
                if silent_s >= limit_s and not connection.ended:
                    connection.refuse("silent", f"no stream for {limit_s:g} s")

    # Streams that peers open

    def _serve(self, stream: Libp2pStream) -> None:
        if self._nursery is None:
            raise MisuseError("the network was not entered")
        # Yamux forgets a stream when it is reset, but its handler may still be at work: that counts, too.
        if self._serving[stream.peer] >= self.limits.inbound_streams_per_peer_max:
            self.counters.refuse("inbound-streams-per-peer")
            stream.reset_now()
            return
        self._serving[stream.peer] += 1
        self._nursery.start_soon(self._serve_stream, stream)

    async def _serve_stream(self, stream: Libp2pStream) -> None:
        """Agree on a protocol, run its handler, close. Nothing but `trio.Cancelled` leaves this task."""
        try:
            protocol: str | None = None
            with trio.move_on_after(self.limits.open_stream_timeout_s):
                protocol = await multistream.answer(stream, self._handlers.__contains__)
            if protocol is None or protocol not in self._handlers:
                self.counters.refuse("protocol-timeout")
                stream.reset_now()
                return
            stream.agreed(protocol)
            await self._handle(self._handlers[protocol], stream)
        except (multistream.NegotiationError, StreamClosedError):
            # A peer that goes away in the middle is no fault of the handler.
            self.counters.refuse("stream-ended")
            stream.reset_now()
        except Exception as error:
            stream.reset_now()
            log_failed_handler(stream, error)
        finally:
            stream.close_now()
            self._serving -= Counter((stream.peer,))


if TYPE_CHECKING:
    from p2pmem.net.seam import Network, OpenNetwork, Stream

    def _keeps_the_seam(network: Libp2pNetwork, stream: Libp2pStream) -> tuple[OpenNetwork, Network, Stream]:
        return network, network, stream
