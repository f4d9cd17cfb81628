"""Quotas: what each listed member, with all who act for it, may have in the set (rules Q1 to Q3).

What is charged stands in the order (issued_at, id); each that still fits all limits counts, and one that does not is
passed over. Retracts and revokes have a count of their own and are decided before anything else: revokes first, since
an agent gone bad must not use up the count with retracts and so keep its principal from ending the delegation.

    live bytes     every charged thing: its encoded size, and the content attached to it
    live items     what expires: share, propose, ack
    durable items  what stays: publish, anchor
    cuts           retract, revoke

What the head lists is in the set outside the quota and is not in an account. Evidence is charged to nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final, TypeAlias

from p2pmem_protocol.names import Address
from p2pmem_protocol.records import FOREVER, Record, RetractRecord, RevokeRecord, State
from p2pmem_protocol.roster import Quotas

Entry: TypeAlias = "tuple[int, bytes, Record]"

OVER_KEPT_MAX: Final = 1_000
"""So many things of one principal that were pushed out of its quota are kept aside; beyond, the latest go."""


class Account:
    """One principal's charged things, in order. `totals` are of those in the set."""

    __slots__ = ("by_agent", "charged", "cuts", "durable_items", "live_bytes", "live_items", "over", "principal")

    def __init__(self, principal: Address) -> None:
        self.principal = principal
        self.charged: list[Entry] = []
        self.cuts: dict[bytes, RetractRecord | RevokeRecord] = {}
        self.by_agent: dict[Address, set[Record]] = {}
        self.over = 0
        self.live_bytes = 0
        self.live_items = 0
        self.durable_items = 0

    @property
    def is_empty(self) -> bool:
        return not self.charged and not self.cuts and not self.by_agent

    def fits(self, record: Record, quotas: Quotas) -> bool:
        """Whether there is room for `record` beside everything that is in the set."""
        durable = record.ends_at_ms == FOREVER
        return (
            self.live_bytes + record.charge_bytes <= quotas.live_bytes
            and self.live_items + (not durable) <= quotas.live_items
            and self.durable_items + durable <= quotas.durable_items
        )

    def is_last(self, record: Record) -> bool:
        return not self.charged or record.order > self.charged[-1][:2]

    def insert(self, record: Record) -> None:
        insort(self.charged, (record.issued_at_ms, record.id, record))

    def remove(self, record: Record) -> None:
        entry = (record.issued_at_ms, record.id, record)
        position = bisect_left(self.charged, entry[:2], key=lambda other: other[:2])
        assert self.charged[position][2] is record
        del self.charged[position]

    def remove_gone(self) -> None:
        """Remove all that is gone or cut in one pass; for when it is much."""
        self.charged = [entry for entry in self.charged if entry[2].state in (State.IN, State.OVER)]

    def count(self, record: Record, sign: int) -> None:
        """Add `record` to the totals, or take it off."""
        durable = record.ends_at_ms == FOREVER
        self.live_bytes += sign * record.charge_bytes
        self.live_items += sign * (not durable)
        self.durable_items += sign * durable


def passed_over(entries: Iterable[Entry], quotas: Quotas, t_ms: int) -> set[bytes]:
    """The ids of those that do not fit at `t_ms`, among entries in order. What has ended by then takes no room."""
    room_bytes, room_live, room_durable = quotas.live_bytes, quotas.live_items, quotas.durable_items
    over: set[bytes] = set()
    for _, entry_id, record in entries:
        ends_at_ms = record.ends_at_ms
        if ends_at_ms <= t_ms:
            continue
        charge = record.charge_bytes
        if charge > room_bytes:
            over.add(entry_id)
        elif ends_at_ms == FOREVER:
            if room_durable:
                room_durable -= 1
                room_bytes -= charge
            else:
                over.add(entry_id)
        elif room_live:
            room_live -= 1
            room_bytes -= charge
        else:
            over.add(entry_id)
    return over


def first_in_order(records: Iterable[Record], room: int) -> set[bytes]:
    """The ids of those among `records` that count when only `room` do."""
    return {record.id for record in sorted(records, key=lambda record: record.order)[: max(room, 0)]}
