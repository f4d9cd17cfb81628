"""Keeping time: what has ended goes, at its instant and in bulk.

The sweep pauses while the wall clock is in doubt (`clock_watch`). Reads filter by the ledger in any case, so nothing
expired is returned meanwhile; a query, which cannot, is refused (`owes`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf
from typing import Final

import trio
from p2pmem_jobs import Listener, OutsideError, Signal
from p2pmem_protocol.limits import MINUTE_MS

from p2pmem.ledger.admission import EXPIRED_KEPT_MS, Admission
from p2pmem.ledger.batch import Delta
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.clock_watch import ClockWatch

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
PAUSED_S: Final = 5.0
PURGED_AT_LEAST_EVERY_MS: Final = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class KeeperStatistics:
    """Sweeps made, items that ended in them, contents purged, and whether the clock made the keeper pause."""

    sweeps: int
    ended: int
    purged: int
    paused: bool


class Keeper:
    """Sweeps and purges. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger, admission: Admission, watch: ClockWatch) -> None:
        self._ledger = ledger
        self._watch = watch
        self._admission = admission
        self._lock = trio.Lock()
        """Held while something is let go or deleted."""
        self._sweeping = trio.Lock()
        """Held by a sweep until it is on disk. A purge takes longer, and nobody who asks waits for one for nothing."""
        self._erased = trio.Event()
        self._sweeps = self._ended = self._purged = 0
        self._changed_ms: float = watch.steady_ms()
        self._purged_ms: float = -inf
        self._sooner = Signal()
        self._swept = Signal()
        self._awaited_ms = -inf
        """When the next sweep is due, as far as it is known to who waits for it."""

    def heard(self, delta: Delta) -> None:
        """A change is on disk: what was erased goes at once, and what ends sooner is waited for."""
        self._changed_ms = self._watch.steady_ms()
        if delta.erased:
            self._erased.set()
        due_ms = self.due_ms()
        if due_ms is not None and due_ms < self._awaited_ms:
            self._sooner.notify()

    async def run(self) -> None:
        """Sweep at each instant at which something ends, and erase what is to be erased, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_sweeps)
            nursery.start_soon(self._run_erasures)

    def due_ms(self) -> int | None:
        """When something ends next."""
        ends = [end for graph in self._ledger.graphs.values() if (end := graph.set.next_end_ms()) is not None]
        return min(ends, default=None)

    async def sweep(self) -> None:
        """Let go what has ended by now, and return when that is on disk. Nothing has ended: at once.

        What a sweep under way took is in no set any more, and not on disk yet: it is waited for, whoever began it.
        """
        ended = 0
        async with self._sweeping:
            if self._is_due() and not self._watch.look():
                async with self._lock:
                    ended = await self._admission.sweep()
        self._swept.notify()
        if ended:
            self._sweeps += 1
            self._ended += ended
            log.info("sweep.done", extra={"ended": ended})

    async def swept(self) -> None:
        """Return once what has ended by now is let go and that is on disk; for who reads, so at once while the clock is
        in doubt. Errors: `DiskError` while the disk refuses it, since nobody knows when there will be room."""
        database = self._ledger.database
        with Listener((self._swept, database.refused)) as listener:
            while self._sweeping.locked() or (self.owes() and not self._watch.look()):
                database.check_takes()
                self._sooner.notify()
                await listener.wait()

    def owes(self) -> bool:
        """Whether something that may be read has ended by the wall clock and was not let go. After a sweep it means
        that the clock is in doubt."""
        now_ms = self._ledger.clock.now_ms()
        ends = (graph.set.next_expiry_ms() for graph in self._ledger.graphs.values())
        return any(end_ms is not None and end_ms <= now_ms for end_ms in ends)

    def _is_due(self) -> bool:
        due_ms = self.due_ms()
        return due_ms is not None and due_ms <= self._ledger.clock.now_ms()

    async def _run_sweeps(self) -> None:
        with Listener((self._sooner, self._watch.turned)) as listener:
            while True:
                await self._look_after_clock()
                await self.sweep()
                due_ms = self.due_ms()
                self._awaited_ms = inf if due_ms is None else due_ms
                wait_s = LOOK_EVERY_S if due_ms is None else (due_ms - self._ledger.clock.now_ms()) / 1000
                # The wall clock may step while we sleep, and something may come that ends sooner.
                at_least_s = PAUSED_S if self.paused else 0.001
                with trio.move_on_after(min(max(wait_s, at_least_s), LOOK_EVERY_S)):
                    await listener.wait()

    async def _run_erasures(self) -> None:
        while True:
            await self._erased.wait()
            self._erased = trio.Event()
            await self.purge()

    async def purge_now_and_then(self) -> None:
        """Purge, unless the last one took all and nothing has changed since: a quiet node need not read its disk."""
        since_ms = self._watch.steady_ms() - self._purged_ms
        if self._purged_ms - self._changed_ms <= EXPIRED_KEPT_MS or since_ms >= PURGED_AT_LEAST_EVERY_MS:
            await self.purge()

    async def purge(self) -> None:
        """Delete what ended a while ago, and content that nothing names. Not while the clock is in doubt."""
        if not self._watch.look():
            began_ms = self._watch.steady_ms()
            async with self._lock:
                self._purged += await self._admission.purge()
            self._purged_ms = began_ms  # where it failed it is due as before

    @property
    def paused(self) -> bool:
        """Whether nothing is let go, because the clock is in doubt."""
        return self._watch.is_doubted

    async def _look_after_clock(self) -> None:
        try:
            await self._watch.ask_members()
            await self._watch.remember_now_and_then()
        except OutsideError as error:  # what cannot be in the audit is not done; asked again with the next look
            log.warning("clock.not_written", extra={"error": str(error)})

    async def confirm_clock(self) -> None:
        """The operator says that the clock is right. What has ended by it is let go from now on. Errors: the disk's."""
        await self._watch.confirm("the operator")
        self._sooner.notify()

    def statistics(self) -> KeeperStatistics:
        return KeeperStatistics(self._sweeps, self._ended, self._purged, self.paused)
