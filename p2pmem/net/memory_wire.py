"""The wires of the in-memory network, and the two ends of a stream on them.

Nothing here runs by itself: what is sent is stamped with the time at which it arrives, and whoever reads waits until
then. So a stream costs no task, and under a clock that jumps ahead a day of traffic takes as long as its work.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_protocol.errors import BugError, MisuseError

from p2pmem.net.seam import READ_BYTES, PeerId
from p2pmem.net.stream_base import StreamBase, check_read_size

if TYPE_CHECKING:
    from p2pmem.net.memory import Connection

CONTROL_BYTES: Final = 28
"""What a frame costs beside its content: a yamux header and the tag of a noise message."""
_PIECE_BYTES: Final = 64 * 1024
_JITTER_STEP_S: Final = 0.005
NEVER: Final = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How one direction between two nodes behaves. The defaults are an ideal wire."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to so much more delay, drawn anew for each piece; bytes never overtake each other. With jitter all arrive on
    multiples of 5 ms, so that what is there at the same one is taken in at once."""
    bytes_per_s: float = math.inf
    mean_life_s: float = math.inf
    """A connection breaks by itself after a time drawn from an exponential distribution with this mean."""

    def __post_init__(self) -> None:
        if self.delay_s < 0 or self.jitter_s < 0 or self.bytes_per_s <= 0 or self.mean_life_s <= 0:
            raise MisuseError(f"{self}: delays are not negative, bandwidth and life are positive")


class Wire:
    """One direction from one node to another: when will what is sent now be there?"""

    def __init__(self, link: Link, random: Random) -> None:
        self.link = link
        self.random = random
        self.blocked_at = NEVER
        self._released_at = -NEVER
        self._free_at = 0.0
        self._last_arrival_at = 0.0

    @property
    def blocked(self) -> bool:
        return self.blocked_at != NEVER

    def block(self) -> None:
        if not self.blocked:
            self.blocked_at = trio.current_time()

    def release(self) -> None:
        """What was held back is sent again and needs the usual time from now on."""
        if self.blocked:
            self.blocked_at = NEVER
            self._released_at = trio.current_time() + self.link.delay_s

    def arrival(self, size_bytes: int) -> float:
        """When `size_bytes` sent now have arrived; later than all that was sent before."""
        begin = max(trio.current_time(), self._free_at)
        self._free_at = begin + size_bytes / self.link.bytes_per_s
        at = self._free_at + self.link.delay_s
        if self.link.jitter_s:
            at = math.ceil((at + self.random.uniform(0.0, self.link.jitter_s)) / _JITTER_STEP_S) * _JITTER_STEP_S
        self._last_arrival_at = max(self._last_arrival_at, at)
        return self._last_arrival_at

    def visible_at(self, arrives_at: float) -> float:
        """When it can be read: not while the wire is blocked, unless it was there before."""
        at = max(arrives_at, self._released_at)
        return at if at < self.blocked_at else NEVER


@dataclass(slots=True)
class _Piece:
    arrives_at: float
    data: bytes
    """Empty for the end of the peer's side."""


class MemoryStream(StreamBase):
    """One end of a stream; implements `seam.Stream`."""

    def __init__(self, connection: Connection, protocol: str, *, window_bytes: int) -> None:
        super().__init__(protocol)
        self._connection = connection
        self._window_bytes = window_bytes
        self._twin: MemoryStream | None = None
        self._inbox: deque[_Piece] = deque()
        self._room_bytes = window_bytes
        self._credits: deque[tuple[float, int]] = deque()
        self._unreturned_bytes = 0
        self._reset_at = NEVER
        """When the peer's reset arrives."""
        self._refused_at = NEVER
        """When the news arrives that the peer reads no more."""
        self.answer: tuple[float, bool] | None = None
        """The peer's answer to the opening, and when it arrives."""
        self._read_ended = False
        self._broken = False
        self._alarm_at = NEVER

    @property
    def peer(self) -> PeerId:
        return self._connection.peer

    def join(self, twin: MemoryStream) -> None:
        self._twin, twin._twin = twin, self

    def notify_at(self, at: float) -> None:
        """`notify` when it is `at`, unless that comes about earlier anyhow: who waits then asks for the next time."""
        if at <= trio.current_time():
            self.notify()
        elif at < self._alarm_at:
            self._alarm_at = at
            self._connection.alarms.at(at, self._ring)

    def _ring(self) -> None:
        self._alarm_at = NEVER
        self.notify()

    def break_off(self) -> None:
        """The connection has gone. What arrived before can still be read; what was on its way is lost."""
        self._broken = True
        now, inward = trio.current_time(), self._connection.inward
        while self._inbox and inward.visible_at(self._inbox[-1].arrives_at) > now:
            self._inbox.pop()
        self._gone_at(now)
        self.notify()

    async def send_all(self, data: bytes) -> None:
        with self._sending:
            try:
                # Others have their turn when there is no room: before each piece it costs more than sending it.
                await trio.lowlevel.checkpoint_if_cancelled()
                rest = memoryview(data)
                self._check_writable()
                while rest:
                    await self._wait_for_room()
                    size = min(len(rest), self._room_bytes, _PIECE_BYTES)
                    self._room_bytes -= size
                    self._put(bytes(rest[:size]))
                    self._connection.traffic.stream_sent_bytes += size
                    rest = rest[size:]
            except trio.Cancelled:
                self.reset_now()
                raise

    async def receive_some(self, max_bytes: int = READ_BYTES) -> bytes:
        check_read_size(max_bytes)
        has_waited = False
        with self._receiving:
            await trio.lowlevel.checkpoint_if_cancelled()
            while True:
                data, next_at = self._take(max_bytes)
                if data is not None:
                    if not has_waited:
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    return data
                await self._wait_until(next_at)
                has_waited = True

    def keep(self, size_bytes: int) -> None:
        """In memory a stream's window is all that bounds what is unread."""

    async def close_write(self) -> None:
        await trio.lowlevel.checkpoint()
        self._end_write()

    def close_now(self) -> None:
        if self._closed:
            return
        self._end_write()
        self._closed = True
        if self._inbox and self._inbox[0].data:
            self._refuse_more()
        self._inbox.clear()
        self._forget()

    def reset_now(self) -> None:
        if self._closed:
            return
        self._closed = self._write_ended = True
        self._inbox.clear()
        if not self._broken:
            twin = self._peer_end()
            twin._reset_at = min(twin._reset_at, self._connection.outward.arrival(CONTROL_BYTES))
            twin._gone_at(twin._reset_at)
            self._connection.count_sent(CONTROL_BYTES)
            twin.notify()
        self._forget()

    async def wait_for_answer(self) -> None:
        """Until the peer's answer to the opening has arrived, or the connection has ended."""
        while not self._broken:
            at = self._connection.inward.visible_at(self.answer[0] if self.answer else NEVER)
            if at <= trio.current_time():
                return
            await self._wait_until(at)

    def _forget(self) -> None:
        self._connection.forget(self)
        self._gone_at(trio.current_time())
        self.notify()

    def _peer_end(self) -> MemoryStream:
        if self._twin is None:
            raise BugError("a stream has only one end")
        return self._twin

    def _put(self, data: bytes) -> None:
        twin = self._peer_end()
        arrives_at = self._connection.outward.arrival(len(data) + CONTROL_BYTES)
        self._connection.count_sent(len(data) + CONTROL_BYTES)
        if twin._closed:
            twin._refuse_more()
            return
        twin._inbox.append(_Piece(arrives_at, data))
        # Whoever waits need not look before it is there. Held back by a partition, it is looked at when that heals.
        twin.notify_at(twin._connection.inward.visible_at(arrives_at))

    def _refuse_more(self) -> None:
        """Tell the writer at the other end that nobody reads any more."""
        twin = self._peer_end()
        twin._refused_at = min(twin._refused_at, self._connection.outward.arrival(CONTROL_BYTES))
        twin.notify()

    def _end_write(self) -> None:
        if self._write_ended:
            return
        self._write_ended = True
        if not self._broken:
            self._put(b"")
            self._peer_end()._look_whether_gone()
        self._look_whether_gone()
        self.notify()

    def _look_whether_gone(self) -> None:
        """Both sides have said all: nobody hears its handler any more, once the peer's end has arrived."""
        if self._write_ended and self._read_ended:
            self._gone_at(trio.current_time())
        elif self._write_ended and self._inbox and not self._inbox[-1].data:
            self._gone_at(self._inbox[-1].arrives_at)

    def _check_writable(self) -> None:
        now, inward = trio.current_time(), self._connection.inward
        if self._closed or self._write_ended:
            raise self._closed_error()
        if self._broken:
            raise self._lost_error()
        if inward.visible_at(min(self._reset_at, self._refused_at)) <= now:
            raise self._reset_error()

    async def _wait_for_room(self) -> None:
        while True:
            self._check_writable()
            now, inward = trio.current_time(), self._connection.inward
            while self._credits and inward.visible_at(self._credits[0][0]) <= now:
                self._room_bytes += self._credits.popleft()[1]
            if self._room_bytes:
                return
            next_at = min(self._reset_at, self._refused_at, self._credits[0][0] if self._credits else NEVER)
            await self._wait_until(inward.visible_at(next_at))

    def _take(self, max_bytes: int) -> tuple[bytes | None, float]:
        """What can be read now, or None and the time to look again."""
        now, inward = trio.current_time(), self._connection.inward
        if self._closed:
            raise self._closed_error()
        taken = bytearray()
        while self._inbox and len(taken) < max_bytes and inward.visible_at(self._inbox[0].arrives_at) <= now:
            piece = self._inbox[0]
            if not piece.data:
                if not taken:
                    self._inbox.popleft()
                    self._read_ended = True
                break
            room = max_bytes - len(taken)
            taken += piece.data[:room]
            if len(piece.data) <= room:
                self._inbox.popleft()
            else:
                piece.data = piece.data[room:]
        if taken:
            self._connection.traffic.stream_received_bytes += len(taken)
            self._give_credit(len(taken))
            return bytes(taken), NEVER
        if self._read_ended:
            return b"", NEVER
        if self._broken:
            raise self._lost_error()
        if inward.visible_at(self._reset_at) <= now:
            raise self._reset_error()
        next_at = min(self._reset_at, self._inbox[0].arrives_at if self._inbox else NEVER)
        return None, inward.visible_at(next_at)

    def _give_credit(self, size_bytes: int) -> None:
        """Return room to the writer by half windows, as yamux does: a message per read would cost more than it."""
        self._unreturned_bytes += size_bytes
        if self._unreturned_bytes < self._window_bytes // 2 or self._broken:
            return
        twin = self._peer_end()
        twin._credits.append((self._connection.outward.arrival(CONTROL_BYTES), self._unreturned_bytes))
        self._connection.count_sent(CONTROL_BYTES)
        self._unreturned_bytes = 0
        twin.notify()

    async def _wait_until(self, at: float) -> None:
        changed = self._changed
        self.notify_at(at)
        await changed.wait()
