"""Yamux, many streams on one connection, without IO (hashicorp/yamux spec, libp2p's `/yamux/1.0.0`).

Bytes go in through `receive_data`, which returns events; bytes to be sent are taken with `take_output`. Who holds a
session does the reading, the writing and the waiting; nothing here waits.

The states of a stream, seen from one side::

                    we end           peer ends         either resets, or we close
    open            write ended      read ended        gone
    write ended     (again: no)      gone              gone
    read ended      gone             (error)           gone

"Gone" streams leave no state behind. Frames for a stream we do not know are legal, because the peer may not yet have
heard that it is gone: content is dropped and answered with a reset, everything else is ignored.

What a peer cannot make us do:

* hold more than `window_bytes` of one stream: content beyond the window is a breach of the protocol;
* serve more than `inbound_streams_max` of its streams: one more is reset at once;
* queue more answers (pings, resets, window updates) than `CONTROL_OUTPUT_MAX_BYTES`: see `control_output_bytes`.

How much work it makes is counted, for who holds the session to bound: a frame costs the same whether it carries twelve
bytes or a thousand, so small ones make work and large ones pay for themselves (`take_work`).

Any breach raises `YamuxError`; the session is then of no further use and the connection is to be closed.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from enum import IntEnum, IntFlag, unique
from typing import Final, TypeAlias

from p2pmem_protocol.errors import BugError

PROTOCOL: Final = "/yamux/1.0.0"
INITIAL_WINDOW_BYTES: Final = 256 * 1024
"""Fixed by the specification: what may be sent in a new stream before anything is heard."""
FRAME_BODY_MAX_BYTES: Final = 32 * 1024
"""What we put in one frame, so that one busy stream does not hold up the others for long."""
CONTROL_OUTPUT_MAX_BYTES: Final = 64 * 1024
SMALL_BYTES: Final = 256
"""A frame that carries less is small. (Measured, a byte in a frame of so many takes 20 ns of CPU, and in an empty one
100 to 400 ns.)"""
STREAM_WORK: Final = 64
"""To open a stream makes as much work as so many small frames: a task, and agreeing on a protocol; some 290 µs."""
_SEND_WINDOW_MAX_BYTES: Final = 2**32 - 1
_HEADER: Final = struct.Struct("!BBHII")


class YamuxError(Exception):
    """The peer broke the protocol of the connection."""


@unique
class _Type(IntEnum):
    DATA = 0
    WINDOW_UPDATE = 1
    PING = 2
    GO_AWAY = 3


class _Flag(IntFlag):
    NONE = 0
    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class DataReceived:
    stream_id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The peer will send no more in this stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer has given the stream up, both ways."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """More may be sent in this stream than before."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """The peer opened more streams than it may; this one was reset."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The peer wants no more streams and is about to close."""

    code: int


Event: TypeAlias = StreamOpened | DataReceived | StreamEnded | StreamReset | WindowOpened | StreamRefused | GoneAway


@dataclass(slots=True)
class _State:
    inbound: bool
    send_window_bytes: int = INITIAL_WINDOW_BYTES
    receive_window_bytes: int = INITIAL_WINDOW_BYTES
    unreturned_bytes: int = 0
    write_ended: bool = False
    read_ended: bool = False


class YamuxSession:
    """One side of a connection. `client` is the side that dialled: its streams have odd numbers."""

    def __init__(self, *, client: bool, window_bytes: int, inbound_streams_max: int) -> None:
        if window_bytes < INITIAL_WINDOW_BYTES:
            raise BugError(f"a window of {window_bytes} bytes is less than yamux begins with")
        self._client = client
        self._window_bytes = window_bytes
        self._inbound_streams_max = inbound_streams_max
        self._next_id = 1 if client else 2
        self._streams: dict[int, _State] = {}
        self._inbound_streams = 0
        self._input = bytearray()
        self._body_left_bytes = 0
        self._body_stream_id = 0
        self._body_flags = _Flag.NONE
        self._output: deque[tuple[bytes, bool]] = deque()
        self._output_bytes = 0
        self._control_output_bytes = 0
        self._ping_value = 0
        self._work = 0

    # What we do

    @property
    def output_bytes(self) -> int:
        """What waits to be sent."""
        return self._output_bytes

    @property
    def control_output_bytes(self) -> int:
        """How much of it are answers the peer made us give: beyond the limit, it asks and does not read."""
        return self._control_output_bytes

    @property
    def inbound_streams(self) -> int:
        return self._inbound_streams

    def take_work(self) -> int:
        """How much work the peer has made since this was asked last, in small frames."""
        work, self._work = self._work, 0
        return work

    def open_stream(self) -> int:
        """A new stream of ours; the peer hears of it with the next output."""
        stream_id = self._next_id
        if stream_id > 0xFFFF_FFFF:
            raise YamuxError("all numbers of streams are used up: connect anew")
        self._next_id += 2
        self._streams[stream_id] = _State(inbound=False)
        self._put(_Type.WINDOW_UPDATE, _Flag.SYN, stream_id, self._first_credit(self._streams[stream_id]))
        return stream_id

    def sendable_bytes(self, stream_id: int) -> int:
        """How much `send_data` takes now; 0 also for a stream that has ended."""
        state = self._streams.get(stream_id)
        return 0 if state is None or state.write_ended else min(state.send_window_bytes, FRAME_BODY_MAX_BYTES)

    def send_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """Queue `data`, not empty and at most `sendable_bytes`."""
        if not 0 < len(data) <= self.sendable_bytes(stream_id):
            raise BugError(f"{len(data)} bytes do not fit the window of stream {stream_id}")
        self._streams[stream_id].send_window_bytes -= len(data)
        self._put(_Type.DATA, _Flag.NONE, stream_id, len(data), bytes(data))

    def end_stream(self, stream_id: int) -> None:
        """Send no more in it. Unknown or ended: nothing."""
        state = self._streams.get(stream_id)
        if state is None or state.write_ended:
            return
        state.write_ended = True
        self._put(_Type.WINDOW_UPDATE, _Flag.FIN, stream_id, 0)
        if state.read_ended:
            self._remove(stream_id)

    def close_stream(self, stream_id: int) -> None:
        """Send no more and take no more. The peer's content, should it come, is answered with a reset."""
        self.end_stream(stream_id)
        self._remove(stream_id)

    def reset_stream(self, stream_id: int) -> None:
        if stream_id in self._streams:
            self._remove(stream_id)
            self._put(_Type.WINDOW_UPDATE, _Flag.RST, stream_id, 0)

    def release(self, stream_id: int, size_bytes: int) -> None:
        """`size_bytes` of received content were read: let the peer send as much again, told by half windows.

        (An update per read costs more than the reading; measured, some three times of all the CPU of small messages.)
        """
        state = self._streams.get(stream_id)
        if state is None or state.read_ended:
            return
        state.unreturned_bytes += size_bytes
        if state.unreturned_bytes >= self._window_bytes // 2:
            state.receive_window_bytes += state.unreturned_bytes
            self._put(_Type.WINDOW_UPDATE, _Flag.NONE, stream_id, state.unreturned_bytes)
            state.unreturned_bytes = 0

    def ping(self) -> None:
        """Ask for a sign of life: any bytes will do, so no answer is matched."""
        self._ping_value = (self._ping_value + 1) & 0xFFFF_FFFF
        self._put(_Type.PING, _Flag.SYN, 0, self._ping_value)

    def go_away(self, code: int = 0) -> None:
        """Tell the peer that we are about to close: 0 normally, 1 after a breach of the protocol."""
        self._put(_Type.GO_AWAY, _Flag.NONE, 0, code)

    def take_output(self, max_bytes: int) -> bytes:
        """The next bytes to send: whole frames, together at most `max_bytes` unless the first alone is longer."""
        taken: list[bytes] = []
        size_bytes = 0
        while self._output and (not taken or size_bytes + len(self._output[0][0]) <= max_bytes):
            frame, control = self._output.popleft()
            taken.append(frame)
            size_bytes += len(frame)
            if control:
                self._control_output_bytes -= len(frame)
        self._output_bytes -= size_bytes
        return b"".join(taken)

    # What the peer does

    def receive_data(self, data: bytes) -> list[Event]:
        """What the peer's bytes mean, in order. Raises `YamuxError`."""
        self._input += data
        events: list[Event] = []
        at = 0
        while True:
            if self._body_left_bytes:
                piece = bytes(memoryview(self._input)[at : at + self._body_left_bytes])
                if not piece:
                    break
                at += len(piece)
                self._take_body(piece, events)
            elif len(self._input) - at >= _HEADER.size:
                version, kind, flags, stream_id, length = _HEADER.unpack_from(self._input, at)
                at += _HEADER.size
                self._take_header(version, kind, flags, stream_id, length, events)
            else:
                break
        del self._input[:at]
        return events

    def _take_header(
        self, version: int, kind: int, flags: int, stream_id: int, length: int, events: list[Event]
    ) -> None:
        if version != 0:
            raise YamuxError(f"version {version} of yamux is not known")
        self._work += kind != _Type.DATA or length < SMALL_BYTES
        flag = _Flag(flags & 0xF)
        if kind in (_Type.DATA, _Type.WINDOW_UPDATE):
            if stream_id == 0:
                raise YamuxError("stream 0 has no content and no window")
            if _Flag.SYN in flag:
                self._take_opening(stream_id, events)
            if kind == _Type.DATA:
                self._begin_body(stream_id, flag, length, events)
            else:
                self._take_window_update(stream_id, flag, length, events)
        elif kind == _Type.PING:
            if _Flag.SYN in flag:
                self._put(_Type.PING, _Flag.ACK, 0, length, control=True)
        elif kind == _Type.GO_AWAY:
            events.append(GoneAway(length))
        else:
            raise YamuxError(f"frames of type {kind} are not known")

    def _take_opening(self, stream_id: int, events: list[Event]) -> None:
        if (stream_id % 2 == 1) == self._client:
            raise YamuxError(f"the peer opened stream {stream_id}, a number of ours")
        if stream_id in self._streams:
            raise YamuxError(f"the peer opened stream {stream_id} twice")
        if self._inbound_streams >= self._inbound_streams_max:
            self._put(_Type.WINDOW_UPDATE, _Flag.RST, stream_id, 0, control=True)
            events.append(StreamRefused(stream_id))
            return
        self._streams[stream_id] = _State(inbound=True)
        self._inbound_streams += 1
        self._work += STREAM_WORK
        credit = self._first_credit(self._streams[stream_id])
        self._put(_Type.WINDOW_UPDATE, _Flag.ACK, stream_id, credit, control=True)
        events.append(StreamOpened(stream_id))

    def _begin_body(self, stream_id: int, flag: _Flag, length: int, events: list[Event]) -> None:
        state = self._streams.get(stream_id)
        if state is None:
            # Not more than a window may be on its way when the peer hears that the stream is gone.
            if length > self._window_bytes:
                raise YamuxError(f"{length} bytes of content for stream {stream_id}, which is not open")
            if length:
                self._put(_Type.WINDOW_UPDATE, _Flag.RST, stream_id, 0, control=True)
        elif state.read_ended and length:
            raise YamuxError(f"content in stream {stream_id} after its end")
        elif length > state.receive_window_bytes:
            raise YamuxError(f"{length} bytes in stream {stream_id}, {state.receive_window_bytes} are allowed")
        else:
            state.receive_window_bytes -= length
        self._body_stream_id, self._body_flags, self._body_left_bytes = stream_id, flag, length
        if not length:
            self._take_flags(stream_id, flag, events)

    def _take_body(self, piece: bytes, events: list[Event]) -> None:
        self._body_left_bytes -= len(piece)
        if self._body_stream_id in self._streams:
            events.append(DataReceived(self._body_stream_id, piece))
        if not self._body_left_bytes:
            self._take_flags(self._body_stream_id, self._body_flags, events)

    def _take_window_update(self, stream_id: int, flag: _Flag, length: int, events: list[Event]) -> None:
        state = self._streams.get(stream_id)
        if state is not None and length:
            state.send_window_bytes += length
            if state.send_window_bytes > _SEND_WINDOW_MAX_BYTES:
                raise YamuxError(f"the window of stream {stream_id} was opened beyond all numbers")
            events.append(WindowOpened(stream_id))
        self._take_flags(stream_id, flag, events)

    def _take_flags(self, stream_id: int, flag: _Flag, events: list[Event]) -> None:
        state = self._streams.get(stream_id)
        if state is None:
            return
        if _Flag.RST in flag:
            self._remove(stream_id)
            events.append(StreamReset(stream_id))
        elif _Flag.FIN in flag and not state.read_ended:
            state.read_ended = True
            if state.write_ended:
                self._remove(stream_id)
            events.append(StreamEnded(stream_id))

    def _first_credit(self, state: _State) -> int:
        """What our window is larger than the one that yamux begins with; told with the first frame."""
        credit = self._window_bytes - INITIAL_WINDOW_BYTES
        state.receive_window_bytes += credit
        return credit

    def _remove(self, stream_id: int) -> None:
        state = self._streams.pop(stream_id, None)
        if state is not None and state.inbound:
            self._inbound_streams -= 1

    def _put(
        self, kind: _Type, flag: _Flag, stream_id: int, length: int, body: bytes = b"", *, control: bool = False
    ) -> None:
        frame = _HEADER.pack(0, kind, flag, stream_id, length) + body
        self._output.append((frame, control))
        self._output_bytes += len(frame)
        if control:
            self._control_output_bytes += len(frame)
