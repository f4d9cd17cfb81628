"""Set reconciliation by fingerprints of ranges: Negentropy, protocol version 1, byte for byte.

The *initiator* wants to learn which ids he lacks (`need`) and which the other lacks (`have`). The *responder* keeps no
state between messages but a budget. A message is the version byte 0x61 and then ranges, each an upper bound, a mode
and what the mode says:

    message     = 0x61 *range                          the ranges lie side by side, from the lowest item upwards
    range       = bound mode payload
    bound       = varint(0 for infinity, else 1 + order - order of the bound before) varint(length) prefix of an id
    mode 0      skip: nothing to say about this range
    mode 1      fingerprint of 16 bytes (snapshot.fingerprint_of)
    mode 2      varint(count) and that many ids of 32 bytes: all that the sender has in this range

Who gets a fingerprint that differs from his own splits the range into 16 and answers with their fingerprints, or, below
32 items, with his ids. The responder answers a list of ids with his own list; the initiator compares the two.

Rules that the protocol leaves open and we fix:

* A message has at most `Limits.message_bytes` in either direction. Who runs out of room says one fingerprint for all
  that is left, counted from the last bound he wrote; the next message goes on from there. So nothing that is asked
  (five bytes can ask for everything) makes a longer answer.
* A responder answers at most `Limits.messages` messages; an initiator takes as many. With each step he learns what he
  can fetch at once, so a round that stops half way was not in vain.
* Bounds never fall, nothing follows infinity, varints are the shortest possible: anything else is refused.

Sources: the protocol text v1 of the Negentropy project, and the article "Range-Based Set Reconciliation" (Meyer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from p2pmem_protocol.errors import BugError, MisuseError, Reason, RefusedError
from p2pmem_protocol.snapshot import FINGERPRINT_BYTES, ID_BYTES, View, varint

VERSION: Final = 0x61
_VERSIONS: Final = range(0x60, 0x70)

BUCKETS: Final = 16
_ORDER_MAX: Final = 2**64 - 2
_BOUND_BYTES_MAX: Final = 10 + 1 + ID_BYTES
# What closes a message that ran out of room: infinity (two bytes), the mode and a fingerprint.
_REST_BYTES: Final = 2 + 1 + FINGERPRINT_BYTES
# The answer to any one range (31 ids, or 16 fingerprints) must fit, or a round would not move on.
MESSAGE_BYTES_MIN: Final = 4_096
assert MESSAGE_BYTES_MIN > _REST_BYTES + (BUCKETS + 1) * (_BOUND_BYTES_MAX + 1) + 2 * BUCKETS * ID_BYTES


class Mode(IntEnum):
    SKIP = 0
    FINGERPRINT = 1
    IDS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What one round may cost."""

    message_bytes: int = 128 * 1024
    """The longest message, sent or taken."""
    messages: int = 256
    """How many messages one side answers in a session. With the default length, a million missing ids."""

    def __post_init__(self) -> None:
        if self.message_bytes < MESSAGE_BYTES_MIN or self.messages < 1:
            raise MisuseError(f"a round needs messages of {MESSAGE_BYTES_MIN} bytes or more, and at least one of them")


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Step:
    """What one answer taught the initiator."""

    reply: bytes | None
    """To be sent next; None when the round is over."""
    have: tuple[bytes, ...]
    """Ids that only we have, not told before."""
    need: tuple[bytes, ...]
    """Ids that only the other claims to have, not told before. He may have made them up."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """An upper bound; order None is infinity."""

    order: int | None
    prefix: bytes = b""

    def __lt__(self, other: _Bound) -> bool:
        if self.order is None:
            return False
        if other.order is None:
            return True
        # A prefix stands for the id that goes on with zeros, so zeros at its end say nothing.
        return (self.order, self.prefix.rstrip(b"\0")) < (other.order, other.prefix.rstrip(b"\0"))


_INFINITY: Final = _Bound(None)
_ZERO: Final = _Bound(0)


class _State(Enum):
    NEW = "new"
    ASKING = "asking"
    OVER = "over"


class Initiator:
    """One round from the side that asks. `start`, then `receive` each answer and send what it returns, until None."""

    def __init__(self, view: View, limits: Limits = DEFAULT_LIMITS) -> None:
        self._view = view
        self._limits = limits
        self._answers_left = limits.messages
        self._have: set[bytes] = set()
        self._need: set[bytes] = set()
        self._state = _State.NEW

    def start(self) -> bytes:
        """The first message, which may be sent once."""
        if self._state is not _State.NEW:
            raise MisuseError("this round has begun: make a new Initiator for another one")
        self._state = _State.ASKING
        out = _Writer(self._view, self._limits)
        out.split(self._view.first, self._view.last, _INFINITY)
        return out.message()

    def receive(self, answer: bytes) -> Step:
        """Take the responder's answer to the message sent last.

        Raises RefusedError (BAD_RECONCILIATION) for bytes that no responder sends; the round is over then. The round
        ends without an error, `reply` being None, when the budget of messages is used up.
        """
        if self._state is not _State.ASKING:
            raise MisuseError("no answer is due: this round has not begun or is over")
        self._state = _State.OVER
        have: list[bytes] = []
        need: list[bytes] = []
        out = _Writer(self._view, self._limits)
        for one in _ranges(answer, self._view, self._limits):
            if one.mode is Mode.FINGERPRINT and one.fingerprint != self._view.fingerprint(one.low, one.high):
                if not out.split(one.low, one.high, one.upper):
                    break
                continue
            if one.mode is Mode.IDS:
                ours = dict.fromkeys(self._view.ids(one.low, one.high))
                theirs = dict.fromkeys(one.ids)
                have.extend(item_id for item_id in ours if item_id not in theirs)
                need.extend(item_id for item_id in theirs if item_id not in ours)
            out.skip(one.high, one.upper)
        self._answers_left -= 1
        reply = out.message() if out.has_ranges and self._answers_left else None
        if reply is not None:
            self._state = _State.ASKING
        return Step(reply, _unseen(have, self._have), _unseen(need, self._need))

    @property
    def is_over(self) -> bool:
        return self._state is _State.OVER


class Responder:
    """One session from the side that answers: `respond` with a budget of messages, and nothing else to remember."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._answers_left = limits.messages

    def receive(self, view: View, message: bytes) -> bytes:
        """Answer `message` over `view`, which may be a newer one with each message: what a round compares is ranges,
        whatever was said of them before.

        Raises RefusedError: BAD_RECONCILIATION for bytes that no initiator sends, TOO_MANY when the budget is used up.
        """
        if self._answers_left == 0:
            raise RefusedError(
                Reason.TOO_MANY, f"a session has at most {self._limits.messages} messages: begin another one later"
            )
        self._answers_left -= 1
        return respond(view, message, self._limits)


def respond(view: View, message: bytes, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The responder's answer to `message` over `view`: a pure function, at most `limits.message_bytes` long.

    The work is bounded by the length of the message and of the answer, not by the set. To another version the answer is
    the one byte of ours. Raises RefusedError (BAD_RECONCILIATION).
    """
    if message[:1] and message[0] in _VERSIONS and message[0] != VERSION:
        return bytes([VERSION])
    out = _Writer(view, limits)
    for one in _ranges(message, view, limits):
        if one.mode is Mode.FINGERPRINT and one.fingerprint != view.fingerprint(one.low, one.high):
            has_room = out.split(one.low, one.high, one.upper)
        elif one.mode is Mode.IDS:
            has_room = out.list_ids(one.low, one.high, one.upper)
        else:
            has_room = True
            out.skip(one.high, one.upper)
        if not has_room:
            break
    return out.message()


def _unseen(ids: list[bytes], seen: set[bytes]) -> tuple[bytes, ...]:
    new = tuple(item_id for item_id in dict.fromkeys(ids) if item_id not in seen)
    seen.update(new)
    return new


# Reading


@dataclass(frozen=True, slots=True)
class _Range:
    """A range as it was read, with the indexes of our own items in it."""

    low: int
    high: int
    upper: _Bound
    mode: Mode
    fingerprint: bytes = b""
    ids: tuple[bytes, ...] = ()


def _bad(text: str) -> RefusedError:
    return RefusedError(Reason.BAD_RECONCILIATION, text)


class _Reader:
    """Takes numbers and bytes from the front of a message; refuses what is cut short."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0
        self._order = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._message)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._message):
            raise _bad(f"a message of {len(self._message)} bytes ends within a field")
        taken = self._message[self._at : end]
        self._at = end
        return taken

    def number(self) -> int:
        value = 0
        for position in range(10):
            digit = self.take(1)[0]
            if position == 0 and digit == 0x80:
                raise _bad("a number is written with a leading zero")
            value = value << 7 | digit & 0x7F
            if digit < 0x80:
                if value >= 2**64:
                    break
                return value
        raise _bad("a number is above 2^64-1")

    def bound(self) -> _Bound:
        offset = self.number()
        length = self.number()
        if length > ID_BYTES:
            raise _bad(f"a bound has an id prefix of {length} bytes; {ID_BYTES} is the most")
        prefix = self.take(length)
        if offset == 0:
            return _INFINITY
        self._order += offset - 1
        if self._order > _ORDER_MAX:
            raise _bad("a bound is above the highest order")
        return _Bound(self._order, prefix)


def _ranges(message: bytes, view: View, limits: Limits) -> Iterator[_Range]:
    """The ranges of `message`, one by one, checked as they are read."""
    if len(message) > limits.message_bytes:
        raise _bad(f"a message of {len(message)} bytes; {limits.message_bytes} is the most")
    reader = _Reader(message)
    version = reader.take(1)[0]
    if version != VERSION:
        raise _bad(f"version byte {version:#04x}; this side speaks {VERSION:#04x}")
    low = view.first
    lower = _ZERO
    while not reader.is_done:
        if lower.order is None:
            raise _bad("something follows the range that ends at infinity")
        upper = reader.bound()
        if upper < lower:
            raise _bad("a bound lies below the one before it")
        high = view.last
        if upper.order is not None:
            high = view.snapshot.lower_bound(upper.order, upper.prefix, low)
        mode = reader.number()
        if mode == Mode.SKIP:
            yield _Range(low, high, upper, Mode.SKIP)
        elif mode == Mode.FINGERPRINT:
            yield _Range(low, high, upper, Mode.FINGERPRINT, fingerprint=reader.take(FINGERPRINT_BYTES))
        elif mode == Mode.IDS:
            body = reader.take(reader.number() * ID_BYTES)
            ids = tuple(body[at : at + ID_BYTES] for at in range(0, len(body), ID_BYTES))
            yield _Range(low, high, upper, Mode.IDS, ids=ids)
        else:
            raise _bad(f"mode {mode} is none of skip, fingerprint, ids")
        low, lower = high, upper


# Writing


class _Writer:
    """Builds one message within its limit.

    `_low` is the index at the last bound that was written; what lies between it and the present range is skipped, and
    the skip is written only when something follows. A range that does not fit is not begun: the rest of the message is
    then one fingerprint from `_low` to the end, and the writer is full.
    """

    def __init__(self, view: View, limits: Limits) -> None:
        self._view = view
        self._room = limits.message_bytes - _REST_BYTES
        self._out = bytearray([VERSION])
        self._order = 0
        self._low = view.first
        self._skipped: tuple[int, _Bound] | None = None
        self._is_full = False

    @property
    def has_ranges(self) -> bool:
        return len(self._out) > 1

    def message(self) -> bytes:
        return bytes(self._out)

    def skip(self, high: int, upper: _Bound) -> None:
        """Nothing to say about what lies between the bound before and `upper`."""
        self._skipped = (high, upper)

    def split(self, low: int, high: int, upper: _Bound) -> bool:
        """Say what we have in a range that differs: fingerprints of 16 parts, or all ids if it has few. False: full."""
        count = high - low
        if count < 2 * BUCKETS:
            return self._write(high, upper, Mode.IDS, varint(count) + b"".join(self._view.ids(low, high)))
        share, extra = divmod(count, BUCKETS)
        borders = [low + bucket * share + min(bucket, extra) for bucket in range(BUCKETS + 1)]
        for border, fingerprint in zip(borders[1:], self._view.fingerprints(borders), strict=True):
            bound = upper if border == high else _between(self._view, border)
            if not self._write(border, bound, Mode.FINGERPRINT, fingerprint):
                return False
        return True

    def list_ids(self, low: int, high: int, upper: _Bound) -> bool:
        """All our ids in a range, or as many as fit; then the next message goes on behind them. False: full."""
        room = self._room - len(self._out) - 2 * (_BOUND_BYTES_MAX + 1) - 10
        fit = max(0, room // ID_BYTES)
        if high - low <= fit:
            return self._write(high, upper, Mode.IDS, varint(high - low) + b"".join(self._view.ids(low, high)))
        if fit:
            end = low + fit
            self._write(end, _between(self._view, end), Mode.IDS, varint(fit) + b"".join(self._view.ids(low, end)))
        self._fill()
        return False

    def _write(self, high: int, upper: _Bound, mode: Mode, payload: bytes) -> bool:
        if self._is_full:
            raise BugError("a range was written behind the one that closes the message")
        order = self._order
        piece = bytearray()
        if self._skipped is not None:
            encoded, order = _encode_bound(self._skipped[1], order)
            piece += encoded + varint(Mode.SKIP)
        encoded, order = _encode_bound(upper, order)
        piece += encoded + varint(mode) + payload
        if len(self._out) + len(piece) > self._room:
            self._fill()
            return False
        self._out += piece
        self._order = order
        self._low = high
        self._skipped = None
        return True

    def _fill(self) -> None:
        if self._skipped is not None:
            encoded, order = _encode_bound(self._skipped[1], self._order)
            if len(self._out) + len(encoded) + 1 <= self._room:
                self._out += encoded + varint(Mode.SKIP)
                self._order = order
                self._low = self._skipped[0]
            self._skipped = None
        encoded, _ = _encode_bound(_INFINITY, self._order)
        self._out += encoded + varint(Mode.FINGERPRINT) + self._view.fingerprint(self._low, self._view.last)
        self._is_full = True


def _encode_bound(bound: _Bound, order_before: int) -> tuple[bytes, int]:
    """The bytes of `bound` after one of `order_before`, and the order that the next one counts from."""
    if bound.order is None:
        return b"\0\0", order_before
    assert bound.order >= order_before
    return varint(1 + bound.order - order_before) + varint(len(bound.prefix)) + bound.prefix, bound.order


def _between(view: View, index: int) -> _Bound:
    """The shortest bound above item `index - 1` and not above item `index`."""
    below, above = view.snapshot.item(index - 1), view.snapshot.item(index)
    if below.order_ms != above.order_ms:
        return _Bound(above.order_ms)
    length = next(at for at in range(ID_BYTES) if below.id[at] != above.id[at]) + 1
    return _Bound(above.order_ms, above.id[:length])
