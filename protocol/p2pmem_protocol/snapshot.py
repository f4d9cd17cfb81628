"""The set of a context graph as one sorted, immutable value that serves every peer at once.

Two peers compare sets by fingerprints of ranges. A fingerprint is a hash over the *sum* of ids, so the sum of any
range is the difference of two prefix sums. Building costs one sort; from then on every range costs the same small
number of steps, however many peers ask and whatever they ask for.

How it is laid out, and why:

* All items lie in one `bytes`, 44 bytes each: order (8, big-endian), four zero bytes, id (32). Comparing two such keys
  as bytes is comparing (order, id); a set of 100,000 takes 4.4 MB, not the 25 MB of a list with a sum for each.
* Read as one little-endian integer, many keys add up field by field in a few additions of long integers. The zero
  bytes catch the carries of the order field, so that they never reach the ids. What an id field carries over falls
  into the order field of its neighbour, which nobody reads: exactly the arithmetic modulo 2^256 that is wanted.
* Prefix sums are kept for every 64th item; the rest of a range is added up when it is asked for.

Snapshots are values: a changed set is another snapshot (`changed`). Who begins a round keeps the one it began with; who
answers holds none between messages, and answers each over the newest. A *view* is a snapshot without what ends before
an agreed time; it copies nothing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, error as StructError
from typing import Final, NamedTuple

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.limits import RECONCILE_LEAD_MS

ID_BYTES: Final = 32
FINGERPRINT_BYTES: Final = 16

ORDER_NEVER: Final = 2**53 - 1
"""Where items without an end stand. Exact in a double, and not the 2^64-1 that Negentropy keeps for infinity."""

_ORDER = Struct(">Q4x")
_PAD_BYTES: Final = 4
_KEY_BYTES: Final = _ORDER.size + ID_BYTES
_KEY_BITS: Final = 8 * _KEY_BYTES
_ID_SHIFT: Final = 8 * _ORDER.size
_ID_MASK: Final = 2 ** (8 * ID_BYTES) - 1
_STRIDE: Final = 64
# The zero bytes of a key must catch all carries of one stride.
assert _STRIDE < 2 ** (8 * _PAD_BYTES)


class Item(NamedTuple):
    """One member of the set: where it stands (see `order_of`) and its id."""

    order_ms: int
    id: bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """What two peers compare first: if both are equal, the sets are."""

    count: int
    fingerprint: bytes


def order_of(expires_at_ms: int) -> int:
    """The place of something that ends at `expires_at_ms` (0: never), for `Item.order_ms`."""
    if not 0 <= expires_at_ms < ORDER_NEVER:
        raise MisuseError(f"an end of {expires_at_ms} ms is not a time: give 0 to 2^53-2, where 0 means never")
    return expires_at_ms or ORDER_NEVER


def varint(number: int) -> bytes:
    """`number` in base 128, most significant digit first, as few digits as possible, high bit on all but the last."""
    assert number >= 0
    digits = [number & 0x7F]
    number >>= 7
    while number:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(reversed(digits))


def fingerprint_of(sum_of_ids: int, count: int) -> bytes:
    """The first 16 bytes of SHA-256 over the sum of ids (mod 2^256, little-endian) and the count as a varint."""
    total = (sum_of_ids & _ID_MASK).to_bytes(ID_BYTES, "little")
    return hashlib.sha256(total + varint(count)).digest()[:FINGERPRINT_BYTES]


class Snapshot:
    """An immutable sorted set of items with prefix sums. Make one with `build`; share it freely between peers."""

    __slots__ = ("_data", "_summary", "_sums", "count")

    def __init__(self, data: bytes, sums: list[int]) -> None:
        """Not for callers: `build`, `changed` and `without` make snapshots."""
        self._data = data
        self._sums = sums
        self._summary: tuple[int, Summary] | None = None
        """The last one that was asked for of all items from an index on: many peers ask for the same."""
        self.count = len(data) // _KEY_BYTES

    @classmethod
    def build(cls, items: Iterable[tuple[int, bytes]] = ()) -> Snapshot:
        """Sort `items` (order in ms, id of 32 bytes), which may come in any order; sorted ones cost the least.

        Raises MisuseError when an id has another length, an order is out of range, or an item comes twice.
        """
        pack = _ORDER.pack
        try:
            keys = [pack(order_ms) + item_id for order_ms, item_id in items]
        except (StructError, TypeError, ValueError) as error:
            raise MisuseError(f"an order is an unsigned 64-bit integer and an id is bytes: {error}") from error
        return cls._of_keys(keys)

    @classmethod
    def _of_keys(cls, keys: list[bytes]) -> Snapshot:
        keys.sort()
        data = b"".join(keys)
        # An id of another length shifts all that follows, so that the zero bytes are no longer where they belong.
        columns = range(_ORDER.size - _PAD_BYTES, _ORDER.size)
        if len(data) != len(keys) * _KEY_BYTES or any(any(data[column::_KEY_BYTES]) for column in columns):
            raise MisuseError(f"an id that is not {ID_BYTES} bytes long cannot be reconciled")
        if keys and _ORDER.unpack_from(keys[-1])[0] > ORDER_NEVER:
            raise MisuseError("an order above 2^53-1 cannot be reconciled: use order_of")
        if _has_equal_neighbours(data):
            raise MisuseError("an item was given twice: a snapshot is a set")
        return cls(data, _block_sums(data, [0]))

    def changed(self, add: Iterable[tuple[int, bytes]] = (), remove: Iterable[tuple[int, bytes]] = ()) -> Snapshot:
        """This set with `add` and without `remove`; what is there already, or not there, is passed over.

        Costs a copy of the bytes and the sums from the first change on: new items mostly end last, so mostly little.
        An item in both is removed.
        """
        gone = {_ORDER.pack(order_ms) + item_id for order_ms, item_id in remove}
        new = {_ORDER.pack(order_ms) + item_id for order_ms, item_id in add} - gone
        if any(len(key) != _KEY_BYTES for key in new) or (new and _ORDER.unpack_from(max(new))[0] > ORDER_NEVER):
            raise MisuseError("an item to add has an id that is not 32 bytes long or an order above 2^53-1")
        edits = sorted(new | gone)
        pieces: list[bytes] = []
        first_change = self.count
        copied = 0
        for key in edits:
            index = self._index_of(key, copied)
            held = index < self.count and self._key(index) == key
            if held is (key in new):
                continue
            first_change = min(first_change, index)
            pieces.append(self._data[copied * _KEY_BYTES : index * _KEY_BYTES])
            if held:
                copied = index + 1
            else:
                pieces.append(key)
                copied = index
        if not pieces:
            return self
        pieces.append(self._data[copied * _KEY_BYTES :])
        data = b"".join(pieces)
        return Snapshot(data, _block_sums(data, self._sums[: first_change // _STRIDE + 1]))

    def without(self, ids: Collection[bytes]) -> Snapshot:
        """This set without the items of these ids, wherever they stand. Reads every item once."""
        if not ids:
            return self
        left_out = ids if isinstance(ids, (set, frozenset)) else frozenset(ids)
        data = self._data
        keys = [data[at : at + _KEY_BYTES] for at in range(0, len(data), _KEY_BYTES)]
        kept = b"".join(key for key in keys if key[_ORDER.size :] not in left_out)
        return self if len(kept) == len(data) else Snapshot(kept, _block_sums(kept, [0]))

    def view(self, agreed_ms: int | None = None) -> View:
        """What is in the set 60 s after `agreed_ms`, the later of both peers' clocks; all of it without a time."""
        if agreed_ms is None:
            return View(self, 0)
        cut = min(max(agreed_ms + RECONCILE_LEAD_MS + 1, 0), ORDER_NEVER)
        return View(self, self._index_of(_ORDER.pack(cut)))

    def summary_from(self, first: int) -> Summary:
        """Count and fingerprint of all items from index `first` on."""
        if self._summary is None or self._summary[0] != first:
            count = self.count - first
            total = self.sum_before(self.count) - self.sum_before(first)
            self._summary = (first, Summary(count, fingerprint_of(total, count)))
        return self._summary[1]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Item]:
        return (self.item(index) for index in range(self.count))

    def __contains__(self, item: tuple[int, bytes]) -> bool:
        key = _ORDER.pack(item[0]) + item[1]
        index = self._index_of(key)
        return index < self.count and self._key(index) == key

    def item(self, index: int) -> Item:
        key = self._key(index)
        return Item(_ORDER.unpack_from(key)[0], key[_ORDER.size :])

    def sum_before(self, index: int) -> int:
        """The sum of the ids of the first `index` items, modulo 2^256."""
        assert 0 <= index <= self.count
        block, rest = divmod(index, _STRIDE)
        total = self._sums[block]
        if rest:
            total += _sum_of_ids(self._data[block * _STRIDE * _KEY_BYTES : index * _KEY_BYTES], rest)
        return total & _ID_MASK

    def lower_bound(self, order_ms: int, id_prefix: bytes, low: int) -> int:
        """The index of the first item not below (order, prefix), no lower than `low`."""
        return self._index_of(_ORDER.pack(order_ms) + id_prefix, low)

    def _key(self, index: int) -> bytes:
        return self._data[index * _KEY_BYTES : (index + 1) * _KEY_BYTES]

    def _index_of(self, key: bytes, low: int = 0) -> int:
        # A prefix compares below every key that begins with it, as if it were padded with zero bytes.
        return bisect_left(range(self.count), key, lo=low, key=self._key)


@dataclass(frozen=True, slots=True)
class View:
    """The items of a snapshot from index `first` on. Indexes are those of the snapshot."""

    snapshot: Snapshot
    first: int

    @property
    def last(self) -> int:
        """One past the last index."""
        return self.snapshot.count

    @property
    def count(self) -> int:
        return self.snapshot.count - self.first

    def fingerprint(self, low: int, high: int) -> bytes:
        """The fingerprint of the items from `low` up to but without `high`."""
        assert self.first <= low <= high <= self.last
        return self.fingerprints((low, high))[0]

    def fingerprints(self, borders: Sequence[int]) -> list[bytes]:
        """The fingerprints of the ranges between neighbouring `borders`; each border is added up once."""
        assert self.first <= borders[0]
        sums = [self.snapshot.sum_before(border) for border in borders]
        return [
            fingerprint_of(sums[at + 1] - sums[at], borders[at + 1] - borders[at]) for at in range(len(borders) - 1)
        ]

    def ids(self, low: int, high: int) -> list[bytes]:
        assert self.first <= low <= high <= self.last
        return [self.snapshot.item(index).id for index in range(low, high)]

    def summary(self, leaving_out: Iterable[tuple[int, bytes]] = ()) -> Summary:
        """Count and fingerprint of the view, without the items of `leaving_out` that are in it.

        What was issued in the last seconds is still under way to some peers; leaving it out is a subtraction, so that
        busy peers that miss nothing find their sets equal.
        """
        snapshot = self.snapshot
        if not leaving_out or not self.count:
            return snapshot.summary_from(self.first)
        floor = snapshot.item(self.first).order_ms
        total = snapshot.sum_before(self.last) - snapshot.sum_before(self.first)
        count = self.count
        for order_ms, item_id in set(leaving_out):
            if order_ms >= floor and (order_ms, item_id) in snapshot:
                total -= int.from_bytes(item_id, "little")
                count -= 1
        return Summary(count, fingerprint_of(total, count))


def _sum_of_ids(keys: bytes, count: int) -> int:
    """The sum of the ids in `count` keys that lie side by side, modulo 2^256: halves are added until one is left."""
    total = int.from_bytes(keys, "little")
    while count > 1:
        count = (count + 1) // 2
        bits = count * _KEY_BITS
        total = (total & ((1 << bits) - 1)) + (total >> bits)
    return total >> _ID_SHIFT & _ID_MASK


def _has_equal_neighbours(data: bytes) -> bool:
    """Whether a key lies beside its equal. The last bytes of all keys are compared at once; few need a closer look."""
    count = len(data) // _KEY_BYTES
    if count < 2:
        return False
    differ = 0
    for column in range(_KEY_BYTES - 4, _KEY_BYTES):
        digits = int.from_bytes(data[column::_KEY_BYTES], "little")
        differ |= digits ^ (digits >> 8)
    # Byte i is zero exactly if keys i and i + 1 agree in their last four bytes.
    marks = (differ & ((1 << 8 * (count - 1)) - 1)).to_bytes(count - 1, "little")
    at = marks.find(0)
    while at >= 0:
        low, high = at * _KEY_BYTES, (at + 1) * _KEY_BYTES
        if data[low:high] == data[high : high + _KEY_BYTES]:
            return True
        at = marks.find(0, at + 1)
    return False


def _block_sums(data: bytes, known: list[int]) -> list[int]:
    """Sums before item 0, 64, 128 and so on; `known` are the first of them, which the caller knows to hold."""
    step = _STRIDE * _KEY_BYTES
    sums = list(known)
    total = sums[-1]
    for at in range((len(sums) - 1) * step, len(data) - step + 1, step):
        total = (total + _sum_of_ids(data[at : at + step], _STRIDE)) & _ID_MASK
        sums.append(total)
    return sums
