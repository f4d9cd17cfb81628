"""Whether the wall clock may be acted on: what ends by it is gone for good.

    certain -- it jumps by more than five minutes against the steady clock -->   doubted
    start ---- it is more than 90 days after this node last ran -->              doubted
    doubted -- it jumps back; or members or the operator confirm it -->          certain

While it is doubted nothing is let go for having ended, and no ended job is forgotten: a clock that is set to 2036 by
mistake must not erase a memory. And the node signs nothing that bears a time (`may_sign`): what is signed in 2036
stands for what is due before.

Members confirm a clock that was wrong and has been set right. What each of them told in hello *before* the jump is
carried on by this node's steady clock, and has to be within 30 s of the wall clock now. Nothing that is told after the
jump counts: where one source of time misleads a whole site, all who jumped with us would agree with us. It takes two
members at least, and in each context graph in which anybody is connected more than half of those who are: so neither
one member nor the members of one graph, who may all be keys of its owner, decide for the others. Strangers have no say.

A doubt outlives a restart, once it is noted: it is over where the clock says less than all of the jump. Else, at a
start there is no steady clock to compare with, but the ledger has the time at which the clock was last certain. A clock
that is years ahead is doubted by that, as is one that is right after as long a time; the operator knows which.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final

import trio
from p2pmem_jobs import Signal
from p2pmem_protocol.limits import DAY_MS, MINUTE_MS
from p2pmem_protocol.names import Address, GraphId

from p2pmem.face import ClockView
from p2pmem.ledger import audit
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.sessions import Session, Sessions

log = logging.getLogger(__name__)

JUMP_MS_MAX: Final = 5 * MINUTE_MS
AGREES_WITHIN_MS: Final = 30_000
MEMBERS_MIN: Final = 2
AWAY_MS_MAX: Final = 90 * DAY_MS
REMEMBERED_EVERY_MS: Final = 60 * MINUTE_MS
_CERTAIN_SETTING: Final = "clock-certain-ms"
_DOUBT_SETTING: Final = "clock-doubt-ms"
"""What the clock would have said had it not jumped, and by how much it had; empty without a doubt."""


def since_boot_ms() -> int:
    """Time since the machine was started, where the system tells it with the time that it slept."""
    return round(time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) * 1000)


def virtual_ms() -> int:
    """The event loop's own time, for simulations."""
    return round(trio.current_time() * 1000)


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """For what is done every so often: a wall clock that was in 2036 for a minute would put the next time there."""

    steady_ms: Callable[[], int]

    def now_ms(self) -> int:
        return self.steady_ms()


@dataclass(slots=True)
class Word:
    """What the connected nodes of one member say of our clock together: they agree only if all do."""

    graphs: frozenset[GraphId]
    agrees: bool


def is_confirmed(words: Collection[Word]) -> bool:
    """Whether what connected members say is enough: two at least, and most of those in each context graph."""
    if sum(word.agrees for word in words) < MEMBERS_MIN:
        return False
    for graph in frozenset[GraphId]().union(*(word.graphs for word in words)):
        said = [word.agrees for word in words if graph in word.graphs]
        if 2 * sum(said) <= len(said):
            return False
    return True


class ClockWatch:
    """The wall clock of one node beside its steady one."""

    def __init__(self, ledger: Ledger, sessions: Sessions, steady_ms: Callable[[], int]) -> None:
        """`steady_ms` goes on evenly whatever is done to the wall clock, and while the machine sleeps."""
        self._ledger = ledger
        self._sessions = sessions
        self.steady_ms = steady_ms
        self._offset_ms = self._offset_now_ms()
        """The wall clock less the steady one, when it was last certain."""
        self._ahead_ms_max = JUMP_MS_MAX
        """So far ahead of that it may be: after a start that is doubted as far as the node may have been off."""
        certain_ms = ledger.get_setting(_CERTAIN_SETTING)
        if certain_ms is not None and ledger.clock.now_ms() - int(certain_ms) > AWAY_MS_MAX:
            self._offset_ms = int(certain_ms) - steady_ms()
            self._ahead_ms_max = AWAY_MS_MAX
        self._note = ledger.get_setting(_DOUBT_SETTING) or ""
        """As the ledger has it."""
        if self._note:
            expected_ms, jumped_ms = map(int, self._note.split())
            self._offset_ms = expected_ms - steady_ms()
            # Nobody knows how long the node was off: a clock that is still wrong says all of the jump and that time.
            self._ahead_ms_max = max(jumped_ms - JUMP_MS_MAX, JUMP_MS_MAX) if jumped_ms > 0 else AWAY_MS_MAX
        self._latest_ms = int(certain_ms or 0)
        """The latest certain time that the ledger has."""
        self._remembered_ms: float = -inf
        self.is_doubted = False
        self.turned = Signal()
        """A doubt has begun or ended, whoever looked: it is to be noted (`remember_now_and_then`)."""

    def look(self) -> bool:
        """Whether the clock is in doubt now: it has moved by itself since it was certain, by more than a drift
        explains. What it did in less than five minutes is taken as it is."""
        jumped_ms = self.jumped_ms()
        is_doubted = not -JUMP_MS_MAX <= jumped_ms <= self._ahead_ms_max
        if is_doubted and not self.is_doubted:
            log.warning("clock.doubted", extra={"jumped_ms": jumped_ms})
        if not is_doubted:
            if self.is_doubted:
                log.info("clock.is_back", extra={"jumped_ms": jumped_ms})
                self._ledger.wake()  # what waits to be signed
            self._offset_ms, self._ahead_ms_max = self._offset_now_ms(), JUMP_MS_MAX
        if is_doubted != self.is_doubted:
            self.turned.notify()
        self.is_doubted = is_doubted
        return is_doubted

    def jumped_ms(self) -> int:
        """By how much it has moved by itself since it was certain."""
        return self._offset_now_ms() - self._offset_ms

    def certain_ms(self) -> int:
        """The wall clock; while it is in doubt no later than it would be had it not jumped. For what is kept of the
        view, and would not be made again when the clock is back."""
        now_ms = self._ledger.clock.now_ms()
        return min(now_ms, self.steady_ms() + self._offset_ms) if self.look() else now_ms

    async def remember_now_and_then(self) -> None:
        """Keep the time for the next start, at once and then every hour, unless it is in doubt. Errors: the disk's.

        A doubt is noted at once, and so is its end. The time never goes back: many a machine starts in 1970, and is
        told the time a moment later.
        """
        steady_ms, now_ms = self.steady_ms(), self._ledger.clock.now_ms()
        if self.look() != bool(self._note):
            note = f"{steady_ms + self._offset_ms} {self.jumped_ms()}" if self.is_doubted else ""
            await self._ledger.set_setting(_DOUBT_SETTING, note)
            self._note = note
        is_due = steady_ms - self._remembered_ms >= REMEMBERED_EVERY_MS
        if is_due and now_ms > self._latest_ms and not self.look():
            self._remembered_ms = steady_ms  # where the disk refuses it, too: it is no matter of an hour
            await self._ledger.set_setting(_CERTAIN_SETTING, str(now_ms))
            self._latest_ms = now_ms

    async def ask_members(self) -> None:
        """End the doubt where members confirm the clock. Errors: as `confirm`."""
        if self.look() and is_confirmed(self._words().values()):
            await self.confirm("members")

    async def confirm(self, by: str) -> None:
        """The clock is right as it is: it is certain from now on, once that is in the audit. No doubt: nothing.

        Errors: those of the disk; then the doubt stays.
        """
        if not self.look():
            return
        offset_ms, jumped_ms, now_ms = self._offset_now_ms(), self.jumped_ms(), self._ledger.clock.now_ms()
        payload = f"confirmed by {by}, {jumped_ms:+} ms"

        def write(connection: sqlite3.Connection) -> None:
            audit.append(connection, now_ms, "clock", payload, self._ledger.random_bytes)
            self._ledger.write_setting(connection, _CERTAIN_SETTING, str(now_ms))
            self._ledger.write_setting(connection, _DOUBT_SETTING, "")

        await self._ledger.database.write(write, shield=True)
        self._latest_ms, self._note = now_ms, ""
        self._offset_ms = offset_ms  # as it was confirmed: it may have jumped on meanwhile
        log.warning("clock.confirmed", extra={"by": by, "jumped_ms": jumped_ms})
        self.look()

    def view(self) -> ClockView:
        if not self.look():
            return ClockView()
        words = self._words()
        agreeing = sum(word.agrees for word in words.values())
        return ClockView(True, self.jumped_ms(), len(words), agreeing)

    def _words(self) -> dict[Address, Word]:
        words: dict[Address, Word] = {}
        for session in self._sessions.all():
            member = self._sessions.member_of(session)
            if member is None:
                continue
            word = words.setdefault(member, Word(frozenset(), agrees=True))
            word.graphs |= self._sessions.graphs_of(session)
            word.agrees &= self._agrees(session)
        return words

    def _agrees(self, session: Session) -> bool:
        was_certain = abs(session.opened_ms - session.steady_ms - self._offset_ms) <= JUMP_MS_MAX
        return was_certain and abs(self._sessions.apart_ms(session)) <= AGREES_WITHIN_MS

    def _offset_now_ms(self) -> int:
        return self._ledger.clock.now_ms() - self.steady_ms()
