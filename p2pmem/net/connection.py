"""One connection of the libp2p host: its tasks, its streams, its end.

Three tasks look after a connection: one reads the socket and feeds the yamux session, one writes what the session has
to send, one asks for a sign of life when nothing was heard. Streams never touch the socket: `send_all` puts content
into the session while there is room and the window is open. So a cancelled write can not tear a frame apart, and a
connection whose peer does not read holds a bounded queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from p2pmem.net import multistream
from p2pmem.net.counters import Counters, Traffic
from p2pmem.net.room import NOWHERE, Origin
from p2pmem.net.seam import NetworkLimits, NotSpokenError, PeerUnreachableError, StreamClosedError
from p2pmem.net.secure import HandshakeError, SecureChannel
from p2pmem.net.stream import Libp2pStream
from p2pmem.net.wire import WireError
from p2pmem.net.yamux import (
    CONTROL_OUTPUT_MAX_BYTES,
    DataReceived,
    Event,
    GoneAway,
    StreamEnded,
    StreamOpened,
    StreamRefused,
    StreamReset,
    WindowOpened,
    YamuxError,
    YamuxSession,
)

log = logging.getLogger(__name__)

OUTPUT_MAX_BYTES: Final = 128 * 1024
"""What may wait for the socket before writers of streams wait."""
WRITE_BYTES: Final = 64 * 1024
FLUSH_TIMEOUT_S: Final = 1.0
WORK_AT_ONCE: Final = 256
"""Work is accounted for by so much: an honest peer pays nothing for the accounts."""


class Libp2pConnection:
    """A connection to a proven peer, from the handshake's end to its own. `run` is its life."""

    def __init__(
        self,
        channel: SecureChannel,
        *,
        address: str,
        origin: Origin | None,
        limits: NetworkLimits,
        counters: Counters,
        on_stream: Callable[[Libp2pStream], None],
        why_no_work: Callable[[Libp2pConnection, int], str | None],
        on_full: Callable[[], None],
    ) -> None:
        """`why_no_work` is asked whether the peer may make so much work more (`YamuxSession.take_work`), and names the
        limit that it would break; `on_full` is told when all connections together hold too much that is unread."""
        self.peer = channel.peer
        self.address = address
        self.inbound = origin is not None
        self.origin = origin or NOWHERE
        self.traffic: Traffic = channel.wire.traffic
        self.gone = trio.Event()
        """Set by whoever runs the connection, when nothing of it is left and everybody was told."""
        self._channel = channel
        self._limits = limits
        self._counters = counters
        self._on_stream = on_stream
        self._why_no_work, self._on_full = why_no_work, on_full
        self._work = 0
        self._session = YamuxSession(
            client=not self.inbound,
            window_bytes=limits.window_bytes,
            inbound_streams_max=limits.inbound_streams_per_peer_max,
        )
        self._streams: dict[int, Libp2pStream] = {}
        self._left: list[Libp2pStream] = []
        """Streams that the peer gave up, or that ended with the connection, and of which something is unread."""
        self.unread_bytes = 0
        """Also when it has ended, until it is read or nobody can read it any more."""
        self._heard_at = self._came_s = self._quiet_s = trio.current_time()
        self._output_waits = trio.Event()
        self._room = trio.Event()
        self._drained = trio.Event()
        """Set when all is sent, or nothing more can be."""
        self._ending = trio.Event()
        self._why = ""
        self._peer_is_leaving = False

    @property
    def ended(self) -> bool:
        return self._ending.is_set()

    @property
    def why(self) -> str:
        """Why it ended."""
        return self._why

    @property
    def usable(self) -> bool:
        """Whether new streams can be opened."""
        return not self.ended and not self._peer_is_leaving

    async def run(self) -> None:
        """Serve the connection until either side ends it. Never raises but `trio.Cancelled`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guard, self._read)
                nursery.start_soon(self._guard, self._write)
                nursery.start_soon(self._guard, self._keep_alive)
                await self._ending.wait()
                await self._flush()
                nursery.cancel_scope.cancel()
        finally:
            self.end("closed here")
            self._channel.wire.close()

    def end(self, why: str) -> None:
        """Begin to end: streams break now, `run` sends what waits and closes the socket. Again: nothing."""
        if self.ended:
            return
        self._why = why
        self._ending.set()
        self._session.go_away()
        self._output_waits.set()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._peer_left(stream)
        self._room.set()

    def drop(self, why: str) -> None:
        """End without a moment to send what waits: somebody else is to have the place."""
        self.end(why)
        self._drained.set()

    def refuse(self, reason: str, text: str) -> None:
        """End, count and log it under a stable name: what the peer does, or does not do, goes beyond what it may."""
        self._counters.refuse(reason)
        log.warning(
            "net.connection.refused",
            extra={"reason": reason, "address": self.address, "peer": self.peer, "text": text},
        )
        self.end(text)

    def refuse_unread(self) -> None:
        """The same, and throw away what is unread, with who would read it: all connections hold too much together, and
        this one most of it."""
        for stream in (*self._streams.values(), *self._left):
            stream.throw_away()
        self.refuse("unread-in-all", "has most of too much content that nobody reads")

    @property
    def streams_open(self) -> int:
        return len(self._streams)

    @property
    def since_s(self) -> float:
        """Since when no stream is open; while one is, since when the connection stands."""
        return self._came_s if self._streams else self._quiet_s

    async def open_stream(self, protocol: str) -> Libp2pStream:
        stream_id = self._session.open_stream()
        stream = self._streams[stream_id] = Libp2pStream(self, stream_id, protocol)
        self._kick()
        spoken = False
        try:
            with trio.move_on_after(self._limits.open_stream_timeout_s):
                spoken = await multistream.propose(stream, protocol)
        except (StreamClosedError, multistream.NegotiationError):
            if self.ended:
                stream.reset_now()
                raise PeerUnreachableError(f"the connection to {self.peer} ended: {self._why}") from None
        except BaseException:
            stream.reset_now()
            raise
        if not spoken:
            stream.reset_now()
            raise NotSpokenError(f"{self.peer} does not speak {protocol}, or not now")
        stream.agreed(protocol)
        return stream

    # For the streams

    @property
    def has_room(self) -> bool:
        return self._session.output_bytes < OUTPUT_MAX_BYTES

    async def wait_for_room(self) -> None:
        if not self.has_room and not self.ended:
            await self._room.wait()

    def sendable_bytes(self, stream_id: int) -> int:
        return self._session.sendable_bytes(stream_id)

    def put_data(self, stream_id: int, data: memoryview) -> None:
        self._session.send_data(stream_id, data)
        self._kick()

    def released(self, stream_id: int, size_bytes: int) -> None:
        self.dropped(size_bytes)
        self._session.release(stream_id, size_bytes)
        self._kick()

    def dropped(self, size_bytes: int) -> None:
        self.unread_bytes -= size_bytes
        self._counters.unread_bytes -= size_bytes

    def end_stream(self, stream_id: int) -> None:
        self._session.end_stream(stream_id)
        self._kick()

    def close_stream(self, stream_id: int) -> None:
        self._forget(stream_id)
        self._session.close_stream(stream_id)
        self._kick()

    def reset_stream(self, stream_id: int) -> None:
        self._forget(stream_id)
        self._session.reset_stream(stream_id)
        self._kick()

    def _forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
        self._quiet_s = trio.current_time()

    def _peer_left(self, stream: Libp2pStream) -> None:
        self._left = [it for it in (*self._left, stream) if it.unread_bytes]
        stream.peer_reset()

    def _kick(self) -> None:
        if self._session.output_bytes:
            self._output_waits.set()

    # Its tasks

    async def _guard(self, task: Callable[[], object]) -> None:
        """Run a task; whatever it raises ends this connection and nothing else."""
        try:
            await task()  # type: ignore[misc]
        except WireError as error:
            self.end(str(error))
        except (HandshakeError, YamuxError) as error:
            self.refuse("broken-protocol", str(error))
        except Exception:
            log.exception("net.connection.fault", extra={"peer": self.peer})
            self.refuse("fault", "a fault of our own")

    async def _read(self) -> None:
        while data := await self._channel.receive():
            if self.ended:
                continue  # nobody would tell a stream that begins now that it is over
            self._heard_at = trio.current_time()
            for event in self._session.receive_data(data):
                self._take(event)
            self._work += self._session.take_work() + self._channel.take_work()
            if self._work >= WORK_AT_ONCE:
                if (limit := self._why_no_work(self, self._work)) is not None:
                    self.refuse(limit, "more small frames or streams than it may send")
                    return
                self._work = 0
            if self.unread_bytes > self._limits.unread_per_connection_max_bytes:
                self.refuse("unread", "too much content that nobody reads")
                return
            if self._counters.unread_bytes > self._limits.unread_max_bytes:
                self._on_full()
            if self._session.control_output_bytes > CONTROL_OUTPUT_MAX_BYTES:
                self.refuse("unread-answers", "asks without end and does not read the answers")
                return
            self._kick()
        self.end("closed by the peer")

    def _take(self, event: Event) -> None:
        if isinstance(event, StreamOpened):
            if (before := self._streams.get(event.stream_id)) is not None:
                self._peer_left(before)  # both sides had ended it, and its handler goes on
            stream = Libp2pStream(self, event.stream_id, "")
            self._streams[event.stream_id] = stream
            self._on_stream(stream)
            return
        if isinstance(event, GoneAway):
            self._peer_is_leaving = True
            return
        if isinstance(event, StreamRefused):
            self._counters.refuse("inbound-streams-per-peer")
            return
        stream_or_none = self._streams.get(event.stream_id)
        if stream_or_none is None:
            return
        match event:
            case DataReceived(_, data):
                self.unread_bytes += len(data)
                self._counters.unread_bytes += len(data)
                stream_or_none.received(data)
            case StreamEnded():
                stream_or_none.peer_ended()
            case WindowOpened():
                stream_or_none.window_opened()
            case StreamReset():
                self._forget(event.stream_id)
                self._peer_left(stream_or_none)

    async def _write(self) -> None:
        try:
            while True:
                while self._session.output_bytes:
                    await self._channel.write(self._session.take_output(WRITE_BYTES))
                    if self.has_room:
                        self._room.set()
                        self._room = trio.Event()
                if self.ended:
                    return
                self._output_waits = trio.Event()
                await self._output_waits.wait()
        finally:
            self._drained.set()

    async def _keep_alive(self) -> None:
        half_s = self._limits.unheard_timeout_s / 2
        while True:
            unheard_s = trio.current_time() - self._heard_at
            if unheard_s >= 2 * half_s:
                self.refuse("unheard", "nothing heard")
                return
            if unheard_s >= half_s:
                self._session.ping()
                self._kick()
                await trio.sleep(2 * half_s - unheard_s)
            else:
                await trio.sleep(half_s - unheard_s)

    async def _flush(self) -> None:
        """Give the writing task a moment to send what waits; a peer that does not read misses it."""
        with trio.move_on_after(FLUSH_TIMEOUT_S):
            await self._drained.wait()
