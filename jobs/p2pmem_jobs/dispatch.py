"""The dispatcher: claims due jobs while there is room, starts their runs, and stops them."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import trio

from . import tables
from .clock import Clock
from .database import CrashPoint, Database
from .errors import OutsideError
from .handlers import Handler
from .job import Submission
from .places import Places
from .records import Claim, Claimed, Ended
from .runs import Run, Stop
from .signals import Listener, Signal
from .states import State

log = logging.getLogger("p2pmem_jobs")

CLAIMED_AT_ONCE_MAX = 256
_LOOK_AT_THE_CLOCK_EVERY_S = 60.0  # the wall clock may step while we sleep
_AFTER_DISK_ERROR_S = 1.0
_TOLD_EVERY = 60  # of claims that fail one after the other, so many pass before the log says so again
_NAMED_MAX = 16  # jobs that one line of the log names


class Dispatcher:
    """Runs the jobs of one queue. Belongs to the event loop's thread, but for what is in a write."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        handlers: Mapping[str, Handler[Any, Any]],
        running_max: int,
        tasks_max: int,
        look_every_s: float,
        fraction: Callable[[], float],
        prepare: Callable[..., Submission],
        tell: Callable[[str, Ended | None], None],
        tell_unseen: Callable[[str], None],
        tell_progress: Callable[[str], None],
        crash_point: CrashPoint,
    ) -> None:
        self.database = database
        self.clock = clock
        self._wake = Signal()
        of_kind = {kind: handler.concurrency for kind, handler in handlers.items()}
        self.places = Places(running_max, of_kind, self._wake.notify)
        self.crash_point = crash_point
        self.look_every_s = look_every_s
        self.fraction = fraction
        self.prepare = prepare
        self.paused: frozenset[str] = frozenset()
        self.runs: dict[str, Run] = {}
        self.claimed = 0
        self.ended_count = 0
        self._handlers = handlers
        self._tasks_max = tasks_max
        self._tell = tell
        self._tell_unseen = tell_unseen
        self._tell_progress = tell_progress
        self._ready = set(handlers)  # kinds of which a claim may find something
        self._look_again_ms: int | None = 0
        self._deadlines: list[tuple[int, str]] = []  # a heap: when runs have to be stopped, and of which job
        self.stopping = trio.Event()
        self._claims_no_more = trio.Event()
        self._failed_claims = 0  # in a row
        self._run_ended = Signal()

    # The loop

    async def dispatch(self, nursery: trio.Nursery) -> None:
        """Claims and starts jobs until it is cancelled or the queue drains."""
        try:
            with Listener((self._wake,)) as listener:
                while not self.stopping.is_set():
                    self._stop_late()
                    room = self._room()
                    if room or self._is_time():
                        await self._claim(room, nursery)
                        continue
                    with trio.move_on_after(self._pause_s()):
                        await listener.wait()
        finally:
            self._claims_no_more.set()

    def _stop_late(self) -> None:
        """Stops the runs whose deadline has come, by the wall clock: it may have stepped since they began."""
        now_ms = self.clock.now_ms()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, job_id = heapq.heappop(self._deadlines)
            run = self.runs.get(job_id)
            if run is not None and run.claimed.deadline_ms is not None and run.claimed.deadline_ms <= now_ms:
                run.stop(Stop.LATE)

    def _room(self) -> dict[str, int]:
        tasks_left = self._tasks_max - len(self.runs)
        free = {kind: min(tasks_left, self.places.free(kind)) for kind in self._ready if kind not in self.paused}
        return {kind: count for kind, count in free.items() if count > 0}

    def _is_time(self) -> bool:
        return self._look_again_ms is not None and self.clock.now_ms() >= self._look_again_ms

    def _pause_s(self) -> float:
        times_ms = [time_ms for time_ms, _ in self._deadlines[:1]]
        if self._look_again_ms is not None:
            times_ms.append(self._look_again_ms)
        if not times_ms:
            return inf
        return min(_LOOK_AT_THE_CLOCK_EVERY_S, max(1, min(times_ms) - self.clock.now_ms()) / 1000)

    async def _claim(self, room: dict[str, int], nursery: trio.Nursery) -> None:
        total = min(CLAIMED_AT_ONCE_MAX, self.places.free_in_all(), self._tasks_max - len(self.runs))
        self.places.begin_claim()
        try:
            await self.database.write(
                lambda c: tables.claim(c, self.clock.now_ms(), room, total),
                lambda claim: self._start(claim, room, total, nursery),
            )
        except OutsideError as error:
            if self._failed_claims % _TOLD_EVERY == 0:  # the log may lie on the very disk that is full
                log.error("queue.claim_failed", extra={"error": str(error)})
            self._failed_claims += 1
            with trio.move_on_after(_AFTER_DISK_ERROR_S):
                await self.stopping.wait()
        finally:
            self.places.end_claim()

    def _start(self, claim: Claim, room: dict[str, int], total: int, nursery: trio.Nursery) -> None:
        """Begins the runs that were claimed, in the callback of the commit: a cancellation that follows finds them."""
        self._look_again_ms = claim.look_again_ms
        self._failed_claims = 0
        found = dict.fromkeys(room, 0)
        for claimed in claim.jobs:
            found[claimed.kind] += 1
            self.places.take(claimed.kind)
            run = Run(self, claimed, self._handlers[claimed.kind])
            self.runs[claimed.id] = run
            self._note_deadline(claimed)
            nursery.start_soon(self._run, run, name=f"{claimed.kind} {claimed.id}")
            self._tell(claimed.id, None)
        for job_id in claim.damaged:
            log.error("job.damaged", extra={"job": job_id})
        for job_id in (*claim.expired, *claim.damaged):
            self._tell_unseen(job_id)
        self.claimed += len(claim.jobs)
        # A kind of which the claim found less than there was room for has nothing more that is ready.
        if len(claim.jobs) < total:
            self._ready -= {kind for kind, count in found.items() if count < room[kind]}
        self._ready |= claim.due & self._handlers.keys() - room.keys()

    def _note_deadline(self, claimed: Claimed) -> None:
        if claimed.deadline_ms is None:
            return
        heapq.heappush(self._deadlines, (claimed.deadline_ms, claimed.id))
        if len(self._deadlines) > 2 * len(self.runs) + 64:  # most are of jobs that have ended
            known = [(run.claimed.deadline_ms, run.claimed.id) for run in self.runs.values()]
            self._deadlines = sorted((time_ms, job_id) for time_ms, job_id in known if time_ms is not None)

    async def _run(self, run: Run) -> None:
        try:
            await run.work()
        finally:
            if self.runs.get(run.claimed.id) is run:
                del self.runs[run.claimed.id]
            self._run_ended.notify()
            self._wake.notify()

    # What others tell it

    def submitted(self, kind: str, run_at_ms: int, deadline_ms: int | None, *, ready: bool) -> None:
        """A job was committed, as ready or for later: the clock, asked again here, may say another thing meanwhile."""
        if ready and kind in self._handlers:
            self._ready.add(kind)
        else:
            self._look_at(run_at_ms)
        if deadline_ms is not None:
            self._look_at(deadline_ms)
        self._wake.notify()

    def _look_at(self, time_ms: int) -> None:
        self._look_again_ms = time_ms if self._look_again_ms is None else min(self._look_again_ms, time_ms)

    def pause(self, paused: frozenset[str]) -> None:
        """These kinds are not claimed; what runs goes on."""
        self._ready |= (self.paused - paused) & self._handlers.keys()
        self.paused = paused
        self._wake.notify()

    def cancel(self, job_id: str) -> None:
        """Stops the run of a job that is to be cancelled, if it has one."""
        if job_id in self.runs:
            self.runs[job_id].stop(Stop.CANCELLED)

    def moved(self, claimed: Claimed, state: State) -> None:
        if state is State.WAITING and self.stopping.is_set():
            self.runs[claimed.id].stop(Stop.DRAINED)
        self._tell(claimed.id, None)

    def ended(self, claimed: Claimed, ended: Ended) -> None:
        self.ended_count += 1
        self._tell(claimed.id, ended)

    def queued_again(self, claimed: Claimed, run_at_ms: int, *, ready: bool) -> None:
        self.submitted(claimed.kind, run_at_ms, claimed.deadline_ms, ready=ready)
        self._tell(claimed.id, None)

    def progressed(self, claimed: Claimed) -> None:
        self._tell_progress(claimed.id)

    def stop_claiming(self) -> None:
        """Nothing more is begun, and what cannot be stored is left to the next start."""
        self.stopping.set()
        self._wake.notify()

    async def drain(self, within_s: float, stop_s: float) -> tuple[str, ...]:
        """Claims nothing more; lets what runs end within the time; then stops it, and returns what did not stop.

        What waits is stopped at once, because it would wait on. What is stopped is queued again, not failed.
        """
        self.stop_claiming()
        with Listener((self._run_ended,)) as listener, trio.move_on_after(within_s):
            await self._claims_no_more.wait()  # what a claim that is under way finds, begins
            for run in list(self.runs.values()):
                if run.waits:
                    run.stop(Stop.DRAINED)
            while self.runs:
                await listener.wait()
        return await self.stop_all(stop_s)

    async def stop_all(self, within_s: float) -> tuple[str, ...]:
        """Stops all that runs. Returns the jobs whose handlers have not stopped in the time, and logs which they are.

        Where only the disk is slow to take what came of them, it returns none.
        """
        with Listener((self._run_ended,)) as listener, trio.move_on_after(within_s):
            await self._claims_no_more.wait()
            for run in self.runs.values():
                run.stop(Stop.DRAINED)
            while self.runs:
                await listener.wait()
        left = tuple(sorted(job_id for job_id, run in self.runs.items() if not run.has_stopped))
        if left:
            named = ", ".join(f"{self.runs[job_id].claimed.kind} {job_id}" for job_id in left[:_NAMED_MAX])
            log.error("queue.not_stopped", extra={"count": len(left), "jobs": named})
        return left
