"""Quotas: what each listed member, with all who act for it, may have in the set (rules Q1 to Q3).

What is charged stands in the order (issued_at, id); each that still fits all limits counts, and one that does not is
passed over. Retracts and revokes have a count of their own and are decided before anything else: revokes first, since
an agent gone bad must not use up the count with retracts and so keep its principal from ending the delegation.

    live bytes     every charged thing: its encoded size, and the content attached to it
    live items     what expires: share, propose, ack
    durable items  what stays: publish, anchor
    cuts           retract, revoke

What the head lists is in the set outside the quota and is not in an account. Evidence is charged to nobody.

The line of charged things is kept in blocks with sums, so that a thing that comes late costs a walk over the few blocks
in which something changes, also when the quota is full: a member that fills its quota must not make its peers slow.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from p2pmem_protocol.names import Address
from p2pmem_protocol.records import FOREVER, Record, RetractRecord, RevokeRecord, State
from p2pmem_protocol.roster import Quotas

Cut: TypeAlias = RetractRecord | RevokeRecord

ASIDE_KEPT_MAX: Final = 1_000
"""So many things of one principal that were pushed out of its quota, and as many that it revoked, are kept aside;
beyond, the latest go."""

_BLOCK_RECORDS_MAX: Final = 512


@dataclass(slots=True)
class Usage:
    """Sums of what counts."""

    live_bytes: int = 0
    live_items: int = 0
    durable_items: int = 0

    def add(self, record: Record, sign: int = 1) -> None:
        durable = record.ends_at_ms == FOREVER
        self.live_bytes += sign * record.charge_bytes
        self.live_items += sign * (not durable)
        self.durable_items += sign * durable

    def add_all(self, other: Usage) -> None:
        self.live_bytes += other.live_bytes
        self.live_items += other.live_items
        self.durable_items += other.durable_items

    def has_room(self, record: Record, quotas: Quotas) -> bool:
        durable = record.ends_at_ms == FOREVER
        return (
            self.live_bytes + record.charge_bytes <= quotas.live_bytes
            and self.live_items + (not durable) <= quotas.live_items
            and self.durable_items + durable <= quotas.durable_items
        )

    def has_room_for_all(self, other: Usage, quotas: Quotas) -> bool:
        return (
            self.live_bytes + other.live_bytes <= quotas.live_bytes
            and self.live_items + other.live_items <= quotas.live_items
            and self.durable_items + other.durable_items <= quotas.durable_items
        )

    def is_at_least(self, other: Usage) -> bool:
        return (
            self.live_bytes >= other.live_bytes
            and self.live_items >= other.live_items
            and self.durable_items >= other.durable_items
        )


class _Block:
    """Some neighbours in the line, the sums of those in the set, and the earliest end of all (0: not known)."""

    __slots__ = ("_earliest_ms", "records", "usage")

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.usage = Usage()
        self._earliest_ms = 0
        for record in records:
            if record.state is State.IN:
                self.usage.add(record)

    def insert(self, record: Record) -> None:
        insort(self.records, record, key=place_in_line)
        if self._earliest_ms:
            self._earliest_ms = min(self._earliest_ms, record.ends_at_ms)

    def remove(self, position: int) -> None:
        record = self.records.pop(position)
        if record.ends_at_ms <= self._earliest_ms:
            self._earliest_ms = 0

    def earliest_ms(self) -> int:
        if not self._earliest_ms:
            self._earliest_ms = min(record.ends_at_ms for record in self.records)
        return self._earliest_ms


class Account:
    """One principal's things. `usage` is of those charged things that are in the set, `over` counts those aside.

    `revokes` and `retracts` are the cuts that count within the quota, `waiting` the retracts that were pushed out of
    it, each in order; `cuts` are all that are known. `by_agent` holds everything else of this principal that is known,
    by who signed it and by its id.
    """

    __slots__ = ("_blocks", "by_agent", "cuts", "over", "principal", "retracts", "revokes", "usage", "waiting")

    def __init__(self, principal: Address) -> None:
        self.principal = principal
        self.by_agent: dict[Address, dict[bytes, Record]] = {}
        self.cuts: dict[bytes, Cut] = {}
        self.revokes: list[RevokeRecord] = []
        self.retracts: list[RetractRecord] = []
        self.waiting: list[RetractRecord] = []
        self.usage = Usage()
        self.over = 0
        self._blocks: list[_Block] = []

    @property
    def is_empty(self) -> bool:
        return not self.cuts and not self.by_agent

    # The line of charged things

    def charged(self) -> Iterator[Record]:
        for block in self._blocks:
            yield from block.records

    def rebuild(self, line: list[Record]) -> None:
        """Start the line anew from records in order. What is in the set is counted, the rest is over."""
        size = _BLOCK_RECORDS_MAX // 2
        self._blocks = [_Block(line[start : start + size]) for start in range(0, len(line), size)]
        self.usage = Usage()
        for block in self._blocks:
            self.usage.add_all(block.usage)
        self.over = sum(record.state is not State.IN for record in line)

    def insert(self, record: Record) -> None:
        """Put a thing into the line. It counts for nothing until it is counted."""
        if not self._blocks:
            self._blocks.append(_Block([record]))
            return
        place = self._block_of(record)
        block = self._blocks[place]
        block.insert(record)
        if len(block.records) > _BLOCK_RECORDS_MAX:
            half = len(block.records) // 2
            self._blocks[place : place + 1] = [_Block(block.records[:half]), _Block(block.records[half:])]

    def remove(self, record: Record) -> None:
        place = self._block_of(record)
        block = self._blocks[place]
        block.remove(self._position(block, record))
        if not block.records:
            del self._blocks[place]

    def count(self, record: Record, sign: int) -> None:
        """Add a thing in the line to the sums, or take it off."""
        self.usage.add(record, sign)
        self._blocks[self._block_of(record)].usage.add(record, sign)

    def has_ended(self, t_ms: int) -> bool:
        """Whether something in the line has ended at `t_ms` and still waits for a sweep."""
        return any(block.earliest_ms() <= t_ms for block in self._blocks)

    def has_room(self, record: Record, quotas: Quotas) -> bool:
        """Whether `record`, at its place in the line, fits. Exact while nothing in the line has ended."""
        if self.usage.has_room(record, quotas):
            return True
        if not self._blocks or record.order > self._blocks[-1].records[-1].order:
            return False
        place = self._block_of(record)
        block = self._blocks[place]
        return self._used_before(place, self._position(block, record)).has_room(record, quotas)

    def settle_from(self, record: Record, quotas: Quotas) -> list[tuple[Record, State]]:
        """What changes when `record`, which is in the line and fits, comes to count: it, and what is pushed out or
        finds room after it. Exact while nothing in the line has ended."""
        place = self._block_of(record)
        position = self._position(self._blocks[place], record)
        old, new = self._used_before(place, position), self._used_before(place, position)
        assert new.has_room(record, quotas)
        new.add(record)
        changes = [(record, State.IN)]
        changes += _walk(self._blocks[place].records[position + 1 :], old, new, quotas)
        for block in self._blocks[place + 1 :]:
            if old == new:
                break
            if new.is_at_least(old) and new.has_room_for_all(block.usage, quotas):
                old.add_all(block.usage)
                new.add_all(block.usage)
            else:
                changes += _walk(block.records, old, new, quotas)
        return changes

    def latest_over(self, count: int) -> list[Record]:
        """The last `count` things in the line that are over the quota."""
        found: list[Record] = []
        for block in reversed(self._blocks):
            for record in reversed(block.records):
                if len(found) == count:
                    return found
                if record.state is State.OVER:
                    found.append(record)
        return found

    def _block_of(self, record: Record) -> int:
        """Where the block is in which `record` stands, or would stand."""
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if self._blocks[middle].records[-1].order < record.order:
                low = middle + 1
            else:
                high = middle
        return low

    def _position(self, block: _Block, record: Record) -> int:
        return bisect_left(block.records, record.order, key=place_in_line)

    def _used_before(self, place: int, position: int) -> Usage:
        used = Usage()
        for block in self._blocks[:place]:
            used.add_all(block.usage)
        for record in self._blocks[place].records[:position]:
            if record.state is State.IN:
                used.add(record)
        return used


def _walk(line: Iterable[Record], old: Usage, new: Usage, quotas: Quotas) -> list[tuple[Record, State]]:
    """Decide records in order again after `new` instead of `old` was used before them; both go on."""
    changes: list[tuple[Record, State]] = []
    for record in line:
        counted = record.state is State.IN
        if counted:
            old.add(record)
        fits = new.has_room(record, quotas)
        if fits:
            new.add(record)
        if fits != counted:
            changes.append((record, State.IN if fits else State.OVER))
    return changes


def passed_over(line: Iterable[Record], quotas: Quotas, t_ms: int) -> set[bytes]:
    """The ids of those that do not fit at `t_ms`, among records in order. What has ended by then takes no room."""
    used = Usage()
    over: set[bytes] = set()
    for record in line:
        if record.ends_at_ms <= t_ms:
            continue
        if used.has_room(record, quotas):
            used.add(record)
        else:
            over.add(record.id)
    return over


def place_in_line(record: Record) -> tuple[int, bytes]:
    """The order in which a quota is filled (rule Q1)."""
    return (record.issued_at_ms, record.id)


def in_order(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=place_in_line)
