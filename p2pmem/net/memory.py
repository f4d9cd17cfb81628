"""A network inside one process: the same promises as the real one, with faults from a seed, on trio's clock.

Under `trio.testing.MockClock(autojump_threshold=0)` delays cost nothing, so tests of hours run in seconds::

    fabric = MemoryFabric(seed=7, link=Link(delay_s=0.02))
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:
        await alice.connect(bob.addresses()[0], expected=None)
        fabric.partition({"alice"}, {"bob"})

What can be done to it: delay, jitter, bandwidth and random loss of connections per link (`set_link`), `cut` a
connection, `partition` and `heal`, one way or both, `crash` a node, with or without a last word.

A connection is like one of TCP: what arrives on it is whole, in order and once. So what differs is the order of what
comes over several connections, which jitter changes with the seed, and twice comes only what a node says twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.net.background import background_nursery
from p2pmem.net.base import NetworkBase, log_failed_handler
from p2pmem.net.identity import peer_id_of_ed25519
from p2pmem.net.memory_alarms import Alarms
from p2pmem.net.memory_wire import CONTROL_BYTES, NEVER, Link, MemoryStream, Wire
from p2pmem.net.room import NOWHERE, Origin
from p2pmem.net.seam import (
    Handler,
    LimitReachedError,
    NetworkLimits,
    NetworkStatistics,
    NotSpokenError,
    PeerId,
    PeerUnreachableError,
    WrongPeerError,
    check_protocol_name,
    peer_of_address,
)

log = logging.getLogger(__name__)

_HANDSHAKE_BYTES: Final = 400
_DIAL_ROUND_TRIPS: Final = 3


@dataclass(slots=True)
class _Opening:
    arrives_at: float
    ours: MemoryStream
    theirs: MemoryStream


class Connection:
    """One side's end of a connection. A task of its network looks after it: `keep`."""

    def __init__(self, owner: MemoryNetwork, other: MemoryNetwork, *, inbound: bool, lost_at: float) -> None:
        self.owner = owner
        self.peer = other.peer_id
        self.address = f"/memory/{other.name}"
        self.inbound = inbound
        self.origin = other.origin if inbound else NOWHERE
        self.outward = owner.fabric.wire(owner.name, other.name)
        self.inward = owner.fabric.wire(other.name, owner.name)
        self.alarms = owner.fabric.alarms
        self.traffic = owner.counters.of(self.peer)
        self.twin: Connection | None = None
        self.closed = False
        self.lost_at = lost_at
        self.streams: set[MemoryStream] = set()
        self.serving = 0
        self._came_s = self._quiet_s = trio.current_time()
        self._ends_at = NEVER
        self._openings: deque[_Opening] = deque()
        self._changed = trio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def notify_all(self) -> None:
        self.notify()
        for stream in self.streams:
            stream.notify()

    def count_sent(self, size_bytes: int) -> None:
        self.traffic.wire_sent_bytes += size_bytes
        if self.twin is not None:
            self.twin.traffic.wire_received_bytes += size_bytes

    def forget(self, stream: MemoryStream) -> None:
        self.streams.discard(stream)
        self._quiet_s = trio.current_time()

    @property
    def streams_open(self) -> int:
        return len(self.streams)

    @property
    def since_s(self) -> float:
        return self._came_s if self.streams else self._quiet_s

    def drop(self, why: str) -> None:
        self.end(why)

    def end(self, why: str, *, tell: bool = True) -> None:
        """Close this end now, and let the other one know as soon as a message can reach it."""
        if self.closed:
            return
        self.closed = True
        if tell and self.twin is not None:
            self.twin.ends_at(self.outward.arrival(CONTROL_BYTES))
        for stream in tuple(self.streams):
            stream.break_off()
        self.streams.clear()
        self.owner.connection_ended(self, why)
        self.notify()

    def ends_at(self, at: float) -> None:
        self._ends_at = min(self._ends_at, at)
        self.notify()

    async def keep(self) -> None:
        """Notice the end, however it comes, and answer the openings of streams."""
        while not self.closed:
            now = trio.current_time()
            blocked_at = min(self.inward.blocked_at, self.outward.blocked_at)
            unheard_at = blocked_at + self.owner.fabric.partition_notice_s
            if self.inward.visible_at(self._ends_at) <= now:
                self.end("closed by the peer", tell=False)
            elif self.lost_at <= now:
                self.end("lost", tell=False)
            elif unheard_at <= now:
                self.end("nothing heard")
            else:
                opening_at = self.inward.visible_at(self._openings[0].arrives_at) if self._openings else NEVER
                if opening_at <= now:
                    self._answer(self._openings.popleft())
                    continue
                changed = self._changed
                with trio.move_on_at(min(self.inward.visible_at(self._ends_at), self.lost_at, unheard_at, opening_at)):
                    await changed.wait()

    def _answer(self, opening: _Opening) -> None:
        accepted = self.owner.serve(self, opening.theirs)
        if accepted:
            self.streams.add(opening.theirs)
        opening.ours.answer = (self.outward.arrival(CONTROL_BYTES), accepted)
        self.count_sent(CONTROL_BYTES)
        opening.ours.notify()

    async def open_stream(self, protocol: str) -> MemoryStream:
        if self.twin is None or self.closed:
            raise PeerUnreachableError(f"{self.peer} is not connected: connect first")
        limits = self.owner.limits
        ours = MemoryStream(self, protocol, window_bytes=limits.window_bytes)
        theirs = MemoryStream(self.twin, protocol, window_bytes=limits.window_bytes)
        ours.join(theirs)
        self.streams.add(ours)
        size_bytes = CONTROL_BYTES + len(protocol)
        self.twin._openings.append(_Opening(self.outward.arrival(size_bytes), ours, theirs))
        self.count_sent(size_bytes)
        self.twin.notify()
        try:
            with trio.move_on_after(limits.open_stream_timeout_s):
                await ours.wait_for_answer()
        except trio.Cancelled:
            ours.reset_now()
            raise
        if self.closed:
            raise PeerUnreachableError(f"the connection to {self.peer} ended while a stream was being opened")
        if ours.answer is None or not ours.answer[1]:
            ours.reset_now()
            raise NotSpokenError(f"{self.peer} does not speak {protocol}, or not now")
        return ours


class MemoryNetwork(NetworkBase[Connection]):
    """A node's place in a `MemoryFabric`; implements `seam.Network`. Made and entered by `MemoryFabric.network`."""

    def __init__(
        self, fabric: MemoryFabric, name: str, nursery: trio.Nursery, *, limits: NetworkLimits, listen: bool
    ) -> None:
        super().__init__(fabric.peer_id_of(name), limits)
        self.fabric = fabric
        self.name = name
        self.origin = Origin(f"/memory/{name}", f"/memory/{name}")
        self.listening = listen
        self.down = False
        self._nursery = nursery

    def addresses(self) -> tuple[str, ...]:
        return (f"/memory/{self.name}/p2p/{self._peer_id}",) if self.listening else ()

    def statistics(self) -> NetworkStatistics:
        serving = {peer: sum(end.serving for end in ends) for peer, ends in self._connections.items()}
        return self._statistics(serving, half_open=0)

    async def connect(self, address: str, *, expected: PeerId | None) -> PeerId:
        where, peer = peer_of_address(address, expected)
        if peer == self._peer_id:
            raise MisuseError(f"{address} is our own address")
        await trio.lowlevel.checkpoint()
        self._check_up()
        lock = self._dialling.setdefault(peer, trio.Lock())
        try:
            async with lock:
                if peer not in self._connections:
                    await self._dial(where, peer)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._dialling.pop(peer, None)
        return peer

    async def open_stream(self, peer: PeerId, protocol: str) -> MemoryStream:
        check_protocol_name(protocol)
        await trio.lowlevel.checkpoint()
        self._check_up()
        connections = self._connections.get(peer)
        if not connections:
            raise PeerUnreachableError(f"{peer} is not connected: connect first")
        return await connections[0].open_stream(protocol)

    async def disconnect(self, peer: PeerId, why: str) -> None:
        for connection in tuple(self._connections.get(peer, ())):
            connection.end(why)
        await trio.lowlevel.checkpoint()

    def serve(self, connection: Connection, stream: MemoryStream) -> bool:
        """Start the handler of an inbound stream, if there is one and the peer has not too many already."""
        handler = self._handlers.get(stream.protocol)
        serving = sum(end.serving for end in self._connections.get(connection.peer, ()))
        if handler is None or serving >= self.limits.inbound_streams_per_peer_max:
            self.counters.refuse("protocol-not-spoken" if handler is None else "inbound-streams-per-peer")
            return False
        connection.serving += 1
        self._nursery.start_soon(self._run_handler, handler, connection, stream)
        return True

    async def _run_handler(self, handler: Handler, connection: Connection, stream: MemoryStream) -> None:
        try:
            await self._handle(handler, stream)
        except Exception as error:
            stream.reset_now()
            log_failed_handler(stream, error)
        finally:
            stream.close_now()
            connection.serving -= 1

    def connection_ended(self, connection: Connection, why: str) -> None:
        self._went(connection, why)

    def go_down(self, why: str, *, tell: bool) -> None:
        """End everything at once; from now on every call fails and nobody reaches us."""
        self.down = True
        for connection in self.all_connections():
            connection.end(why, tell=tell)
        self._events.close()
        self._nursery.cancel_scope.cancel()

    def admits(self, peer: PeerId, origin: Origin | None) -> bool:
        """Gate and limits, counted where they refuse; room is made for who dials us, from `origin`."""
        why_not = self._why_not(peer, None) if origin is None else self._make_room(peer, origin)
        if why_not is not None:
            self.counters.refuse(why_not)
        return why_not is None

    def add(self, connection: Connection) -> None:
        self._came(connection)
        self._nursery.start_soon(connection.keep)

    async def _dial(self, where: str, peer: PeerId) -> None:
        full = self.limit_reached(peer, None)
        if full is not None:
            raise LimitReachedError(f"limit {full} is reached: disconnect somebody before connecting to {peer}")
        if not self.admits(peer, None):
            raise PeerUnreachableError(f"the connection to {peer} is refused here: gate")
        name = where.removeprefix("/memory/")
        if not where.startswith("/memory/") or not name:
            raise PeerUnreachableError(f"{where}: only /memory/<name> can be dialled in this network")
        with trio.move_on_after(self.limits.connect_timeout_s):
            other = await self._shake_hands(name)
            if other.peer_id != peer:
                raise WrongPeerError(f"{where} proved to be {other.peer_id}, not {peer}")
            if not other.admits(self._peer_id, self.origin) or not self.admits(peer, None):
                raise PeerUnreachableError(f"{where} or we ourselves refused the connection")
            self._check_up()
            self.fabric.join(self, other)
            return
        raise PeerUnreachableError(f"{where} did not answer within {self.limits.connect_timeout_s} s")

    async def _shake_hands(self, name: str) -> MemoryNetwork:
        """The round trips of TCP and noise; somebody has to listen at each of them."""
        outward, inward = self.fabric.wire(self.name, name), self.fabric.wire(name, self.name)
        other: MemoryNetwork | None = None
        for _ in range(_DIAL_ROUND_TRIPS):
            await self.fabric.sleep_until_visible(outward, outward.arrival(_HANDSHAKE_BYTES))
            await self.fabric.sleep_until_visible(inward, inward.arrival(_HANDSHAKE_BYTES))
            other = self.fabric.listening(name)
            if other is None:
                break
        if other is None:
            raise PeerUnreachableError(f"nobody listens at /memory/{name}")
        return other

    def _check_up(self) -> None:
        if self.down:
            raise PeerUnreachableError(f"the network of {self.name} is closed or has crashed: enter it anew")


class MemoryFabric:
    """All that lies between the nodes of one process. Names of nodes are the caller's; ids follow from the names."""

    def __init__(self, *, seed: int, link: Link | None = None, partition_notice_s: float = 30.0) -> None:
        self.seed = seed
        self.partition_notice_s = partition_notice_s
        self.alarms = Alarms()
        self._default_link = link or Link()
        self._wires: dict[tuple[str, str], Wire] = {}
        self._networks: dict[str, MemoryNetwork] = {}
        self._changed = trio.Event()

    @asynccontextmanager
    async def network(
        self, name: str, *, limits: NetworkLimits | None = None, listen: bool = True
    ) -> AsyncIterator[MemoryNetwork]:
        """Enter the fabric as `name`, one at a time, again and again. `listen=False`: can dial, cannot be dialled."""
        if not name or "/" in name:
            raise MisuseError(f"the name of a node is not empty and has no '/': {name!r}")
        if name in self._networks and not self._networks[name].down:
            raise MisuseError(f"{name!r} is already in this fabric")
        async with background_nursery() as nursery:
            network = MemoryNetwork(self, name, nursery, limits=limits or NetworkLimits(), listen=listen)
            self._networks[name] = network
            nursery.start_soon(self.alarms.run)
            try:
                yield network
            finally:
                network.go_down("closed here", tell=True)
                if self._networks.get(name) is network:
                    del self._networks[name]

    @staticmethod
    def peer_id_of(name: str) -> PeerId:
        """Who the node of that name is: no secret key belongs to it."""
        return peer_id_of_ed25519(hashlib.sha256(b"p2pmem in-memory network: " + name.encode()).digest())

    def set_link(self, source: str, target: str, link: Link, *, both_ways: bool = True) -> None:
        """How what is sent from now on from `source` to `target` travels."""
        self.wire(source, target).link = link
        if both_ways:
            self.wire(target, source).link = link

    def partition(self, left: Iterable[str], right: Iterable[str], *, both_ways: bool = True) -> None:
        """Hold back all bytes from `left` to `right` (and back), until `heal`. Nodes may join later.

        Connections end on both sides when they have been held up for `partition_notice_s`; dialling times out.
        """
        for source, target in _pairs(left, right):
            self.wire(source, target).block()
            if both_ways:
                self.wire(target, source).block()
        self._notify_all()

    def heal(self) -> None:
        """End all partitions. What was held back arrives, on the connections that still stand."""
        for wire in self._wires.values():
            wire.release()
        self._notify_all()

    def cut(self, left: str, right: str) -> None:
        """Lose all connections between two nodes now; both notice at once."""
        for name, other in ((left, right), (right, left)):
            network = self._networks.get(name)
            if network is not None:
                for connection in network.all_connections():
                    if connection.peer == self.peer_id_of(other):
                        connection.end("cut", tell=False)

    def crash(self, name: str, *, silent: bool = False) -> None:
        """End the network of `name` in the middle of everything: its handlers, its connections; its calls fail.

        Not silent, as when a process is killed: its system closes its sockets, so that peers notice after the delay.
        Silent, as when a machine loses power: they notice after `partition_notice_s`. It may enter again at once.
        """
        network = self._networks.pop(name, None)
        if network is None:
            raise MisuseError(f"{name!r} is not in this fabric")
        notice_at = trio.current_time() + self.partition_notice_s
        twins = [connection.twin for connection in network.all_connections()]
        network.go_down("crashed", tell=not silent)
        for twin in twins:
            if silent and twin is not None:
                twin.ends_at(notice_at)

    def wire(self, source: str, target: str) -> Wire:
        """The one direction from `source` to `target`; its chances come from the seed and the two names alone."""
        key = (source, target)
        if key not in self._wires:
            self._wires[key] = Wire(self._default_link, Random(f"{self.seed}/{source}/{target}"))  # noqa: S311
        return self._wires[key]

    def listening(self, name: str) -> MemoryNetwork | None:
        network = self._networks.get(name)
        return network if network is not None and network.listening and not network.down else None

    def join(self, dialler: MemoryNetwork, listener: MemoryNetwork) -> None:
        """Put a connection between two networks, at both in the same instant."""
        wire = self.wire(dialler.name, listener.name)
        mean_life_s = wire.link.mean_life_s
        lost_at = NEVER if mean_life_s == NEVER else trio.current_time() + wire.random.expovariate(1 / mean_life_s)
        ours = Connection(dialler, listener, inbound=False, lost_at=lost_at)
        theirs = Connection(listener, dialler, inbound=True, lost_at=lost_at)
        ours.twin, theirs.twin = theirs, ours
        ours.count_sent(_HANDSHAKE_BYTES)
        theirs.count_sent(_HANDSHAKE_BYTES)
        listener.add(theirs)
        dialler.add(ours)

    async def sleep_until_visible(self, wire: Wire, arrives_at: float) -> None:
        while (at := wire.visible_at(arrives_at)) > trio.current_time():
            changed = self._changed
            with trio.move_on_at(at):
                await changed.wait()

    def _notify_all(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        for network in self._networks.values():
            for connection in network.all_connections():
                connection.notify_all()


def _pairs(left: Iterable[str], right: Iterable[str]) -> list[tuple[str, str]]:
    sources, targets = sorted(set(left)), sorted(set(right))
    if set(sources) & set(targets):
        raise MisuseError(f"a node cannot be on both sides of a partition: {sorted(set(sources) & set(targets))}")
    return [(source, target) for source in sources for target in targets]


if TYPE_CHECKING:
    from p2pmem.net.seam import Network, Stream

    def _keeps_the_seam(network: MemoryNetwork, stream: MemoryStream) -> tuple[Network, Stream]:
        return network, stream
