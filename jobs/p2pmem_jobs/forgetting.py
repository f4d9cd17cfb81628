"""Forgetting ended jobs by the retention, with a look only where there may be something to forget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

import trio

from . import recovery
from .bounds import Retention
from .database import Database
from .errors import OutsideError

log = logging.getLogger("p2pmem_jobs")

_SWEEP_BATCH = 500
_LOOKED_AT_LEAST_EVERY_S = 3_600.0


class Forgetting:
    """What a queue forgets, and when it looks for it. `ended_here` says how many jobs have ended since the start;
    `forgotten` is called when jobs are gone."""

    def __init__(
        self,
        database: Database,
        now_ms: Callable[[], int],
        retention: Retention,
        clock_is_right: Callable[[], bool],
        ended_here: Callable[[], int],
        forgotten: Callable[[], None],
    ) -> None:
        self._database = database
        self._now_ms = now_ms
        self._retention = retention
        self._clock_is_right = clock_is_right
        self._ended_here = ended_here
        self._forgotten = forgotten
        self._look_from_ms = self._look_at_count = 0
        """There is nothing to forget before this time, as long as fewer jobs have ended than this."""
        self._looked_s = -inf
        """When that was found, by the event loop's time: the wall clock may be set back by years."""

    async def sweep(self) -> int:
        """Forgets ended jobs by the retention; returns how many."""
        keep = self._retention
        before_ms = keep.before_ms(self._now_ms())
        forgotten = 0
        # Mostly there is nothing to forget, and a look costs less than a transaction.
        if not self._database.read(lambda c: recovery.to_forget(c, before_ms, keep.ended_jobs, 1)):
            self._nothing_to_forget()
            await trio.lowlevel.checkpoint()
            return 0
        while True:
            gone = await self._database.write(lambda c: recovery.sweep(c, before_ms, keep.ended_jobs, _SWEEP_BATCH))
            forgotten += gone
            if gone < _SWEEP_BATCH:
                break
        if forgotten:
            self._forgotten()
        return forgotten

    def _nothing_to_forget(self) -> None:
        """A look has found nothing: note how long that stays so, if not many more jobs end."""
        oldest_ms, ended = self._database.read(recovery.oldest_ended)
        now_ms = self._now_ms()
        first_ms = now_ms if oldest_ms is None else min(oldest_ms, now_ms)
        kept_ms = now_ms - max(self._retention.before_ms(now_ms).values())
        self._look_from_ms = first_ms + kept_ms
        self._looked_s = trio.current_time()
        self._look_at_count = self._ended_here() + self._retention.ended_jobs - ended

    def _may_forget(self) -> bool:
        """Whether there may be something to forget by now."""
        return (
            self._now_ms() >= self._look_from_ms
            or self._ended_here() >= self._look_at_count
            or trio.current_time() - self._looked_s >= _LOOKED_AT_LEAST_EVERY_S
        )

    async def sweep_now_and_then(self) -> None:
        while True:
            await trio.sleep(self._retention.sweep_every_s)
            if not self._may_forget() or not self._clock_is_right():
                continue
            try:
                await self.sweep()
            except OutsideError as error:
                log.error("queue.sweep_failed", extra={"error": str(error)})
