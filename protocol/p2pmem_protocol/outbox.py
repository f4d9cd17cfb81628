"""What one member is to be sent, gathered into frames: batching, the window of what is unacknowledged, overflow.

The cost of a stream is per frame, not per byte, so what is to be said waits a little for company: envelopes and
questions some milliseconds, announcements longer, both longer while much is under way, changes of lists a second. An
envelope that comes alone, after a pause, goes at once: it would wait for nobody. When a frame goes, everything goes
with it that fits.

At most 8 frames and 128 KiB are unacknowledged. That keeps a write from ever blocking on the stream's own window, and
so nothing that was begun must be cancelled. Who acknowledges nothing for 10 s is closed.

Everything queued is bounded. `push` and `announce` say False when there is no room; the caller then falls back, from
the envelope to its id, from the id to the flag "reconcile with me", which always has room.

The other direction is here too, because acknowledgements ride on frames: cumulative, due when nothing more is waiting
to be read, or at every 4th frame.

No IO and no clock: `take` gives what to write now, `due_ms` says when to ask again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.frames import (
    FRAME_ENVELOPES_MAX,
    FRAME_IDS_MAX,
    FRAME_LISTS_MAX,
    SHORT_ID_BYTES,
    Frame,
    ListChange,
)

_FRAME_OVERHEAD_BYTES: Final = 64
_ITEM_OVERHEAD_BYTES: Final = 6
_LIST_OVERHEAD_BYTES: Final = 48
_GRAPH_BYTES: Final = 34
_LISTS_BYTES_MAX: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """What one member may cost us. Times in milliseconds."""

    frames_unacked: int = 8
    bytes_unacked: int = 128 * 1024
    frame_bytes: int = 48 * 1024
    """Where a frame is full; a single larger envelope goes alone."""
    queued_bytes: int = 1024 * 1024
    queued_envelopes: int = 1_024
    queued_ids: int = 8_192
    queued_asks: int = 8_192
    envelopes_wait_ms: int = 0
    envelopes_wait_busy_ms: int = 20
    busy_gap_ms: int = 25
    """An envelope that comes so soon after a frame waits for more: several tens a second are better sent together."""
    ids_wait_ms: int = 100
    ids_wait_busy_ms: int = 250
    lists_wait_ms: int = 1_000
    """A change of a list: where many connections come or go at once, each of them is told to all others."""
    ack_every: int = 4
    ack_timeout_ms: int = 10_000


DEFAULT_OUTBOX_LIMITS: Final = OutboxLimits()


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A frame to be written. Envelopes are named by their whole ids: whoever writes looks the bytes up, or leaves out
    what has gone meanwhile."""

    seq: int = 0
    ack: int = 0
    envelopes: tuple[bytes, ...] = ()
    announced: tuple[bytes, ...] = ()
    asked: tuple[bytes, ...] = ()
    lists: tuple[ListChange, ...] = ()
    reconcile: tuple[bytes, ...] = ()

    def frame(self, bodies: Iterable[bytes]) -> Frame:
        """The message to write, with the bytes of the envelopes."""
        return Frame(self.seq, self.ack, tuple(bodies), self.announced, self.asked, self.lists, self.reconcile)


@dataclass(frozen=True, slots=True)
class OutboxStatistics:
    """What is queued and what is under way to one member."""

    queued_envelopes: int
    queued_bytes: int
    queued_ids: int
    unacked_frames: int
    unacked_bytes: int
    sent_frames: int
    overflows: int


@dataclass(frozen=True, slots=True)
class _Sent:
    seq: int
    size_bytes: int
    sent_ms: int


class Outbox:
    """The sending side towards one member, and the count of what came from it."""

    def __init__(self, limits: OutboxLimits = DEFAULT_OUTBOX_LIMITS) -> None:
        self._limits = limits
        self._envelopes: OrderedDict[bytes, int] = OrderedDict()
        self._envelopes_bytes = 0
        self._announced: OrderedDict[bytes, None] = OrderedDict()
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        self._lists: deque[ListChange] = deque()
        self._reconcile: OrderedDict[bytes, None] = OrderedDict()
        # When the oldest thing of each pace was queued; None when nothing is.
        self._fast_since_ms: int | None = None
        self._slow_since_ms: int | None = None
        self._lists_since_ms: int | None = None
        self._unacked: deque[_Sent] = deque()
        self._unacked_bytes = 0
        self._last_sent_ms: float = -inf
        self._seq_sent = 0
        self._seq_received = 0
        self._received_unacked = 0
        self._ack_is_due = False
        self._overflows = 0

    # What is to be sent

    def push(self, item_id: bytes, size_bytes: int, now_ms: int) -> bool:
        """Queue an envelope. False when there is no room; one that is queued already needs none."""
        if item_id in self._envelopes:
            return True
        if (
            len(self._envelopes) >= self._limits.queued_envelopes
            or self._envelopes_bytes + size_bytes > self._limits.queued_bytes
        ):
            self._overflows += 1
            return False
        self._envelopes[item_id] = size_bytes
        self._envelopes_bytes += size_bytes
        # Whoever gets it whole need not be told of it.
        self._announced.pop(item_id[:SHORT_ID_BYTES], None)
        self._fast_since_ms = now_ms if self._fast_since_ms is None else self._fast_since_ms
        return True

    def announce(self, short_id: bytes, now_ms: int) -> bool:
        """Queue an announcement. False when there is no room."""
        if short_id not in self._announced and len(self._announced) >= self._limits.queued_ids:
            self._overflows += 1
            return False
        self._announced[short_id] = None
        self._slow_since_ms = now_ms if self._slow_since_ms is None else self._slow_since_ms
        return True

    def ask(self, short_id: bytes, now_ms: int) -> bool:
        """Queue a question. False when there is no room; it will be put to somebody else in time."""
        if short_id not in self._asked and len(self._asked) >= self._limits.queued_asks:
            self._overflows += 1
            return False
        self._asked[short_id] = None
        self._fast_since_ms = now_ms if self._fast_since_ms is None else self._fast_since_ms
        return True

    def withdraw_ask(self, short_id: bytes) -> None:
        """Do not ask, if the question has not gone yet."""
        self._asked.pop(short_id, None)

    def withdraw(self, item_id: bytes) -> None:
        """The member has it by now: neither send nor announce it, if that has not gone yet. A short id is enough for
        the latter."""
        size_bytes = self._envelopes.pop(item_id, None)
        if size_bytes is not None:
            self._envelopes_bytes -= size_bytes
        self._announced.pop(item_id[:SHORT_ID_BYTES], None)

    def tell_list(self, change: ListChange, now_ms: int) -> None:
        """Queue a change of our list. There are as many as connections that come and go."""
        self._lists.append(change)
        if change.is_whole:
            self._slow_since_ms = now_ms if self._slow_since_ms is None else self._slow_since_ms
        else:
            self._lists_since_ms = now_ms if self._lists_since_ms is None else self._lists_since_ms

    @property
    def queued_lists(self) -> int:
        return len(self._lists)

    def drop_lists(self, graph: bytes) -> None:
        """Forget queued changes for `graph`: a whole list follows, or none is due any more."""
        self._lists = deque(change for change in self._lists if change.graph != graph)

    def flag(self, graph: bytes, now_ms: int) -> None:
        """Say "reconcile with me" for `graph` in the next frame: always has room, there is one per shared graph."""
        self._reconcile[graph] = None
        self._slow_since_ms = now_ms if self._slow_since_ms is None else self._slow_since_ms

    # What came back

    def acked(self, seq: int) -> None:
        """The member has taken in all frames up to `seq`. Raises RefusedError for one that was never sent."""
        if seq > self._seq_sent:
            raise RefusedError(Reason.BAD_FRAME, f"frame {seq} is acknowledged, {self._seq_sent} is the last one sent")
        while self._unacked and self._unacked[0].seq <= seq:
            self._unacked_bytes -= self._unacked.popleft().size_bytes

    def received(self, seq: int, *, is_last: bool) -> None:
        """A numbered frame came; `is_last` when nothing more waits to be read.

        Raises RefusedError when it is not the next one: a stream loses nothing, so somebody miscounts.
        """
        if seq != self._seq_received + 1:
            raise RefusedError(Reason.BAD_FRAME, f"frame {seq} came after frame {self._seq_received}")
        self._seq_received = seq
        self._received_unacked += 1
        if self._received_unacked >= self._limits.ack_every:
            self._ack_is_due = True
        if is_last:
            self.all_is_read()

    def all_is_read(self) -> None:
        """Nothing more waits to be read, whatever came last: a frame that is nothing but an acknowledgement, too, may
        stand behind one that waits for ours, whose sender would close after `ack_timeout_ms`."""
        if self._received_unacked:
            self._ack_is_due = True

    # When, and what

    def due_ms(self) -> float:
        """When `take` has something: at once (-inf), at a time, or not before something happens (inf)."""
        if self._ack_is_due:
            return -inf
        if not self._has_room():
            return inf
        if (
            len(self._envelopes) >= FRAME_ENVELOPES_MAX
            or self._envelopes_bytes >= self._limits.frame_bytes
            or len(self._announced) >= FRAME_IDS_MAX
        ):
            return -inf
        limits = self._limits
        is_slow = 2 * len(self._unacked) >= limits.frames_unacked
        due = inf
        if self._fast_since_ms is not None:
            is_busy = is_slow or self._fast_since_ms - self._last_sent_ms < limits.busy_gap_ms
            due = self._fast_since_ms + (limits.envelopes_wait_busy_ms if is_busy else limits.envelopes_wait_ms)
        if self._slow_since_ms is not None:
            due = min(due, self._slow_since_ms + (limits.ids_wait_busy_ms if is_slow else limits.ids_wait_ms))
        if self._lists_since_ms is not None:
            due = min(due, self._lists_since_ms + limits.lists_wait_ms)
        return due

    def overdue_ms(self) -> float:
        """When the oldest frame will have been unacknowledged for too long; inf when none is under way."""
        return self._unacked[0].sent_ms + self._limits.ack_timeout_ms if self._unacked else inf

    def take(self, now_ms: int) -> Outgoing | None:
        """The frame to write now, or None when none is due. It counts as sent."""
        if self.due_ms() > now_ms:
            return None
        if not self._has_content():
            # What was queued has been withdrawn.
            self._fast_since_ms = self._slow_since_ms = self._lists_since_ms = None
        if not self._has_room() or not self._has_content():
            return Outgoing(ack=self._take_ack()) if self._ack_is_due else None
        lists = self._take_lists()
        reconcile = tuple(self._reconcile)
        self._reconcile.clear()
        asked = _take_ids(self._asked)
        announced = _take_ids(self._announced)
        size_bytes = (
            _FRAME_OVERHEAD_BYTES
            + sum(map(_list_bytes, lists))
            + _GRAPH_BYTES * len(reconcile)
            + SHORT_ID_BYTES * (len(asked) + len(announced))
        )
        envelopes, size_bytes = self._take_envelopes(size_bytes)
        self._seq_sent += 1
        self._last_sent_ms = now_ms
        self._unacked.append(_Sent(self._seq_sent, size_bytes, now_ms))
        self._unacked_bytes += size_bytes
        # What is left over has waited long enough.
        self._fast_since_ms = now_ms - self._limits.envelopes_wait_busy_ms if self._envelopes or self._asked else None
        self._slow_since_ms = now_ms - self._limits.ids_wait_busy_ms if self._announced else None
        self._lists_since_ms = now_ms - self._limits.lists_wait_ms if self._lists else None
        return Outgoing(self._seq_sent, self._take_ack(), envelopes, announced, asked, lists, reconcile)

    @property
    def is_pressed(self) -> bool:
        """Whether the queue of envelopes is more than half full."""
        return (
            2 * self._envelopes_bytes > self._limits.queued_bytes
            or 2 * len(self._envelopes) > self._limits.queued_envelopes
        )

    def statistics(self) -> OutboxStatistics:
        return OutboxStatistics(
            queued_envelopes=len(self._envelopes),
            queued_bytes=self._envelopes_bytes,
            queued_ids=len(self._announced),
            unacked_frames=len(self._unacked),
            unacked_bytes=self._unacked_bytes,
            sent_frames=self._seq_sent,
            overflows=self._overflows,
        )

    def _has_content(self) -> bool:
        return bool(self._envelopes or self._announced or self._asked or self._lists or self._reconcile)

    def _has_room(self) -> bool:
        """Whether another frame may be under way. The first one always may, so a large envelope is never stuck."""
        if not self._unacked:
            return True
        ids = min(len(self._announced), FRAME_IDS_MAX) + min(len(self._asked), FRAME_IDS_MAX)
        next_bytes = _FRAME_OVERHEAD_BYTES + SHORT_ID_BYTES * ids
        if self._envelopes:
            next_bytes += next(iter(self._envelopes.values()))
        return (
            len(self._unacked) < self._limits.frames_unacked
            and self._unacked_bytes + min(next_bytes, self._limits.bytes_unacked) <= self._limits.bytes_unacked
        )

    def _take_ack(self) -> int:
        self._ack_is_due = False
        self._received_unacked = 0
        return self._seq_received

    def _take_lists(self) -> tuple[ListChange, ...]:
        taken: list[ListChange] = []
        size_bytes = 0
        while self._lists and len(taken) < FRAME_LISTS_MAX and size_bytes < _LISTS_BYTES_MAX:
            change = self._lists.popleft()
            size_bytes += _list_bytes(change)
            taken.append(change)
        return tuple(taken)

    def _take_envelopes(self, size_bytes: int) -> tuple[tuple[bytes, ...], int]:
        """Envelopes that still fit a frame of `size_bytes`, one at least, and what the frame then comes to."""
        taken: list[bytes] = []
        window_left = self._limits.bytes_unacked - self._unacked_bytes
        while self._envelopes and len(taken) < FRAME_ENVELOPES_MAX:
            item_id, item_bytes = next(iter(self._envelopes.items()))
            grown = size_bytes + item_bytes + _ITEM_OVERHEAD_BYTES
            if taken and grown > min(self._limits.frame_bytes, window_left):
                break
            del self._envelopes[item_id]
            self._envelopes_bytes -= item_bytes
            taken.append(item_id)
            size_bytes = grown
        return tuple(taken), size_bytes


def _list_bytes(change: ListChange) -> int:
    return _LIST_OVERHEAD_BYTES + SHORT_ID_BYTES * (len(change.added) + len(change.removed))


def _take_ids(queue: OrderedDict[bytes, None]) -> tuple[bytes, ...]:
    return tuple(queue.popitem(last=False)[0] for _ in range(min(len(queue), FRAME_IDS_MAX)))
