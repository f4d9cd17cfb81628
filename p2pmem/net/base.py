"""What both networks of the seam have in common: handlers, the gate, who is connected, who is told, what is counted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar

import trio

from p2pmem.net.counters import Counters
from p2pmem.net.events import PeerEvents
from p2pmem.net.gate import admits
from p2pmem.net.room import Origin, origin_of_address, who_gives_way
from p2pmem.net.seam import (
    Gate,
    Handler,
    NetworkLimits,
    NetworkStatistics,
    PeerEvent,
    PeerEventKind,
    PeerId,
    Standing,
    StandingOf,
    Stream,
    check_protocol_name,
)

log = logging.getLogger(__name__)

_STRANGERS: Final = frozenset((b"",))
_NO_ROOM: Final = frozenset({"connections", "inbound-connections", "connections-per-address"})


class Connected(Protocol):
    """One connection, as far as keeping count of it goes."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def address(self) -> str: ...

    @property
    def inbound(self) -> bool: ...

    @property
    def origin(self) -> Origin:
        """From where it was opened, if inbound; otherwise `NOWHERE`."""

    @property
    def streams_open(self) -> int: ...

    @property
    def since_s(self) -> float: ...

    def drop(self, why: str) -> None:
        """End it at once, whatever waits to be sent."""


class ServedStream(Stream, Protocol):
    """A stream that a peer opened."""

    def served_in(self, scope: trio.CancelScope, timeout_s: float) -> None:
        """`scope` holds its handler: to be cancelled so long after the stream has gone."""


C = TypeVar("C", bound=Connected)


class NetworkBase(Generic[C]):
    """The part of `seam.Network` that does not depend on how bytes travel."""

    def __init__(self, peer_id: PeerId, limits: NetworkLimits) -> None:
        self.limits = limits
        self.counters = Counters()
        self._peer_id = peer_id
        self._handlers: dict[str, Handler] = {}
        self._gate: Gate | None = None
        self._standing_of: StandingOf = _nobody
        self._connections: dict[PeerId, list[C]] = {}
        self._dialling: dict[PeerId, trio.Lock] = {}
        self._events = PeerEvents()

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def set_handler(self, protocol: str, handler: Handler) -> None:
        self._handlers[check_protocol_name(protocol)] = handler

    def remove_handler(self, protocol: str) -> None:
        self._handlers.pop(protocol, None)

    def set_gate(self, gate: Gate) -> None:
        self._gate = gate

    def set_standing(self, standing_of: StandingOf) -> None:
        self._standing_of = standing_of

    def connected(self) -> frozenset[PeerId]:
        return frozenset(self._connections)

    def address_of(self, peer: PeerId) -> str:
        connections = self._connections.get(peer)
        return connections[0].address if connections else ""

    def account_of(self, peer: PeerId) -> str:
        standing = self._standing_of(peer)
        return standing.member if standing is not None else origin_of_address(self.address_of(peer)).wide

    def accounts_beside(self, peer: PeerId) -> frozenset[bytes]:
        standing = self._standing_of(peer)
        return standing.graphs if standing is not None else _STRANGERS

    def refuse(self, event: str, reason: str, peer: PeerId) -> None:
        self.counters.refuse(reason)
        log.warning(event, extra={"reason": reason, "address": self.address_of(peer), "peer": peer})

    def dialled_at(self, peer: PeerId) -> str:
        return next((it.address for it in self._connections.get(peer, ()) if not it.inbound), "")

    def peer_events(self) -> trio.MemoryReceiveChannel[PeerEvent]:
        return self._events.subscribe(
            _event(connections[0], PeerEventKind.CONNECTED) for connections in self._connections.values()
        )

    def all_connections(self) -> tuple[C, ...]:
        return tuple(connection for some in self._connections.values() for connection in some)

    async def _handle(self, handler: Handler, stream: ServedStream) -> None:
        """Run a handler while its stream stands and `gone_stream_timeout_s` more, and let out what it raises."""
        with trio.CancelScope() as scope:
            stream.served_in(scope, self.limits.gone_stream_timeout_s)
            await handler(stream)
        if scope.cancelled_caught:
            self.counters.refuse("gone-stream")
            log.warning("net.handler.ended", extra={"protocol": stream.protocol, "peer": stream.peer})

    def _statistics(self, inbound_streams: Mapping[PeerId, int], half_open: int) -> NetworkStatistics:
        return self.counters.snapshot(
            connections={peer: len(some) for peer, some in self._connections.items()},
            inbound_streams=dict(inbound_streams),
            inbound_connections=sum(connection.inbound for connection in self.all_connections()),
            half_open=half_open,
        )

    def limit_reached(self, peer: PeerId, origin: Origin | None) -> str | None:
        """The name of the limit that one more connection would break, or None. `origin`: from where, if inbound."""
        limits, connections = self.limits, self.all_connections()
        if len(self._connections.get(peer, ())) >= limits.connections_per_peer_max:
            return "connections-per-peer"
        if len(connections) >= limits.connections_max:
            return "connections"
        if origin is not None:
            inbound = [connection.origin.narrow for connection in connections if connection.inbound]
            if len(inbound) >= limits.inbound_connections_max:
                return "inbound-connections"
            if inbound.count(origin.narrow) >= limits.connections_per_address_max:
                return "connections-per-address"
        return None

    def _why_not(self, peer: PeerId, origin: Origin | None) -> str | None:
        """Why a proven peer may not be connected, by gate and limits, or None."""
        where = origin.wide if origin is not None else ""
        return self.limit_reached(peer, origin) if admits(self._gate, peer, where) else "gate"

    def _make_room(self, peer: PeerId, origin: Origin) -> str | None:
        """The same for one that dialled us; where only room is wanting, another's connection ends for it."""
        while (why_not := self._why_not(peer, origin)) is not None and why_not in _NO_ROOM:
            inbound = [connection for connection in self.all_connections() if connection.inbound]
            if why_not == "connections-per-address":
                inbound = [connection for connection in inbound if connection.origin.narrow == origin.narrow]
            gone = who_gives_way(inbound, self._standing_of, peer)
            if gone is None:
                break
            self.counters.refuse(why_not)
            log.warning("net.refused", extra={"reason": why_not, "address": gone.address})
            gone.drop("gave way to a newcomer")
            self._went(gone, "gave way to a newcomer")
        return why_not

    def _came(self, connection: C) -> None:
        """Keep count of a connection, and tell when it is the first to its peer."""
        some = self._connections.setdefault(connection.peer, [])
        some.append(connection)
        if len(some) == 1:
            self._events.publish(_event(connection, PeerEventKind.CONNECTED))
            log.info("net.peer.connected", extra={"peer": connection.peer, "address": connection.address})

    def _went(self, connection: C, why: str) -> None:
        """The opposite; a connection that is not counted any more is none."""
        some = self._connections.get(connection.peer, [])
        if connection not in some:
            return
        some.remove(connection)
        if not some:
            del self._connections[connection.peer]
            self.counters.gone(connection.peer)
            self._events.publish(_event(connection, PeerEventKind.DISCONNECTED))
            log.info(
                "net.peer.disconnected", extra={"peer": connection.peer, "address": connection.address, "why": why}
            )


def _nobody(peer: PeerId) -> Standing | None:
    """Before we are told who is a member's."""
    return None


def _event(connection: Connected, kind: PeerEventKind) -> PeerEvent:
    return PeerEvent(connection.peer, kind, connection.address, connection.inbound)


def log_failed_handler(stream: Stream, error: Exception) -> None:
    """Code of the node raised on a peer's stream: its stream is reset, and this is all that comes of it."""
    log.warning(
        "net.handler.failed",
        extra={"protocol": stream.protocol, "peer": stream.peer, "error": type(error).__name__},
        exc_info=error,
    )
