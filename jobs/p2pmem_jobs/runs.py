"""One run of a job: from the moment it is claimed until what came of it is on disk."""

from __future__ import annotations

import logging
import math
import sqlite3
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Protocol

import trio

from . import codec, tables
from .clock import Clock
from .context import Context
from .database import CrashPoint, Database
from .errors import ClosedError, NotSerialisableError, OutcomeUnknownError, OutsideError, StaleAttemptError
from .handlers import ErrorClass, Handler
from .job import Submission
from .places import Places
from .records import Claimed, Ended, Progress
from .states import State
from .texts import describe, told

log = logging.getLogger("p2pmem_jobs")

_STORE_AGAIN_AFTER_S = (0.1, 1.0, 5.0, 30.0)


@unique
class Stop(Enum):
    """Why a run is stopped from outside."""

    CANCELLED = "cancelled"
    LATE = "its deadline passed"
    DRAINED = "stopped with the queue, to run again"


@dataclass(frozen=True, slots=True)
class End:
    """What came of a run. To `queued`: it runs again after `delay_ms`; `failed` says whether it counts as a failure."""

    to: State
    reason: str = ""
    result: str | None = None
    delay_ms: int = 0
    failed: bool = False


class Host(Protocol):
    """What a run needs of the queue."""

    database: Database
    clock: Clock
    places: Places
    crash_point: CrashPoint
    look_every_s: float

    stopping: trio.Event
    prepare: Callable[..., Submission]

    def fraction(self) -> float:
        """A random number from 0 to 1."""

    def moved(self, claimed: Claimed, state: State) -> None:
        """Called after the commit of a change between running and waiting."""

    def ended(self, claimed: Claimed, ended: Ended) -> None:
        """Called after the commit of its end."""

    def queued_again(self, claimed: Claimed, run_at_ms: int, *, ready: bool) -> None:
        """Called after the commit that lets it run again."""

    def progressed(self, claimed: Claimed) -> None: ...


class Run:
    """A claimed job and its task. It holds a place, except while it waits."""

    def __init__(self, host: Host, claimed: Claimed, handler: Handler[Any, Any]) -> None:
        self.claimed = claimed
        self.progress: Progress | None = None
        self.detail = ""  # what it waits for, when that has become another than when it began to wait
        self.waits = 0
        self.has_stopped = False  # its handler has; what came of it may still be on its way to the disk
        self._host = host
        self._handler = handler
        self._scope = trio.CancelScope()
        self._stop: Stop | None = None
        self._has_place = True
        self._is_waiting = False  # as the file has it
        self._place_lock: trio.Lock | None = None  # most runs never wait

    def stop(self, why: Stop) -> None:
        """Cancels the handler. What then comes of the job depends on `why`, and on what the handler still does."""
        if self._stop is None:
            self._stop = why
        self._scope.cancel()

    async def work(self) -> None:
        """Runs the handler and stores what came of it. Cancelled from outside, the job is queued again first.

        A handler that ends the program, say by `sys.exit`, is one of which the process died: the next start counts it.
        """
        try:
            try:
                end = await self._run_handler()
                self.has_stopped = True
            except BaseException:
                self.has_stopped = True
                if _is_cancelled():
                    await self._store(End(State.QUEUED, Stop.DRAINED.value))
                raise
            await self._store(end)
        finally:
            if self._has_place:
                self._host.places.give_back(self.claimed.kind)

    async def _run_handler(self) -> End:
        try:
            with self._scope:
                return await self._call_handler()
        except Exception as error:  # outside of the scope: it may have been in a group with a cancellation
            if not self._scope.cancel_called and not _is_cancelled():
                return self._after_error(error)
        if self._stop is Stop.LATE:
            return End(State.FAILED, self._stop.value)
        # or cancelled, if somebody wishes so; nobody stopped it when the whole queue is
        return End(State.QUEUED, (self._stop or Stop.DRAINED).value)

    async def _call_handler(self) -> End:
        host = self._host
        args = codec.decode(self.claimed.args, self._handler.args_type, "the arguments")
        context = Context(self, host.database, host.clock, host.look_every_s, host.crash_point, host.prepare)
        value = await self._handler.fn(context, args)
        await self.ensure_place()
        return End(State.SUCCEEDED, result=codec.encode(value, self._handler.returns))

    def _after_error(self, error: Exception) -> End:
        error = _alone(error)
        if isinstance(error, StaleAttemptError):
            return End(State.QUEUED, str(error))
        if isinstance(error, OutcomeUnknownError):
            return End(State.OUTCOME_UNKNOWN, told(str(error)))
        failures = self.claimed.failures + 1
        error_class = self._classify(error)
        reason = describe(error)
        policy = self._handler.retry
        if error_class is ErrorClass.UNKNOWN:
            # its text may hold what is private to the job: that is for the job's own history
            where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ is not None else None
            place = "" if where is None else f"{where.filename}:{where.lineno}"
            extra = {"job": self.claimed.id, "kind": self.claimed.kind, "error": type(error).__name__, "place": place}
            log.warning("job.error", extra=extra)
        if failures < policy.runs(error_class):
            delay_ms = policy.delay_ms(failures, self._host.fraction())
            return End(State.QUEUED, f"{reason} ({error_class.value}; run {failures})", None, delay_ms, failed=True)
        return End(State.FAILED, f"{reason} ({error_class.value}; run {failures}, the last)")

    def _classify(self, error: Exception) -> ErrorClass:
        if isinstance(error, NotSerialisableError):
            return ErrorClass.PERMANENT
        try:
            return self._handler.classify(error)
        except Exception:
            log.error("job.classify_failed", extra={"job": self.claimed.id, "kind": self.claimed.kind})
            return ErrorClass.UNKNOWN

    async def _store(self, end: End) -> None:
        """Stores the end of the run, however often the disk refuses, but for the queue's own end."""
        self._host.crash_point(f"{self.claimed.kind}/end/before")
        tries = 0
        while True:
            try:
                await self._store_once(end)
            except StaleAttemptError as error:
                log.warning("job.stale", extra={"job": self.claimed.id, "error": str(error)})
                return
            except ClosedError:
                return  # the next start finds it running, and queues it
            except OutsideError as error:
                pause_s = _STORE_AGAIN_AFTER_S[min(tries, len(_STORE_AGAIN_AFTER_S) - 1)]
                tries += 1
                log.error("job.end_not_stored", extra={"job": self.claimed.id, "error": str(error)})
                if self._host.stopping.is_set():
                    return  # the next start finds it running, and queues it
                with trio.move_on_after(pause_s, shield=True):
                    await self._host.stopping.wait()
            else:
                self._host.crash_point(f"{self.claimed.kind}/end/after")
                return

    async def _store_once(self, end: End) -> None:
        now_ms = self._host.clock.now_ms()
        run_at_ms = now_ms + end.delay_ms

        def store(connection: Any) -> Ended | None:
            if end.to is State.QUEUED:
                return tables.requeue(connection, self.claimed, run_at_ms, now_ms, end.reason, end.failed)
            return tables.end_run(connection, self.claimed, end.to, now_ms, end.reason, end.result)

        def after(ended: Ended | None) -> None:
            if ended is None:
                self._host.queued_again(self.claimed, run_at_ms, ready=run_at_ms <= now_ms)
            else:
                self._host.ended(self.claimed, ended)

        await self._host.database.write(store, after, shield=True)

    # What its context asks for

    def report(self, progress: Progress) -> None:
        self.progress = progress
        self._host.progressed(self.claimed)

    @asynccontextmanager
    async def waiting(
        self, detail: str, also: Callable[[sqlite3.Connection], object] | None = None
    ) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
        """The job is `waiting` inside, as long as anything of it waits, and holds no place. `also` is written with it.

        After an error or a cancellation it has none either: `ensure_place` gets one, should the handler go on.
        """
        self.waits += 1
        try:
            if self.waits == 1 and not self._is_waiting:
                await self._move(State.WAITING, detail, also)
                self._is_waiting = True
                self._has_place = False
                self._host.places.give_back(self.claimed.kind)
            elif also is not None:
                await self._host.database.write(also)
            yield self._tell
        finally:
            self.waits -= 1
        await self.ensure_place()

    async def ensure_place(self) -> None:
        """Makes the job `running` again, once there is a place and nothing of it waits any more."""
        if not self._lacks_place():
            return
        if self._place_lock is None:
            self._place_lock = trio.Lock()
        async with self._place_lock:
            if not self._lacks_place():
                return
            if not self._has_place:
                await self._host.places.take_again(self.claimed.kind)
                self._has_place = True
            await self._move(State.RUNNING, "")
            self._is_waiting = False

    def _lacks_place(self) -> bool:
        return self._is_waiting and not self.waits

    async def _tell(self, detail: str) -> None:
        def told(_: object) -> None:
            self.detail = detail
            self._host.progressed(self.claimed)

        await self._host.database.write(lambda c: tables.set_detail(c, self.claimed, detail), told)

    async def _move(self, to: State, reason: str, also: Callable[[sqlite3.Connection], object] | None = None) -> None:
        claimed = self.claimed

        def write(connection: sqlite3.Connection) -> None:
            if also is not None:
                also(connection)
            tables.move(connection, claimed.seq, claimed.attempt, to, self._host.clock.now_ms(), reason)

        def moved(_: object) -> None:
            self.detail = ""
            self._host.moved(claimed, to)

        await self._host.database.write(write, moved)


def _is_cancelled() -> bool:
    """Whether what is around a run is being cancelled. What a handler then raises says nothing of the job."""
    return trio.current_effective_deadline() == -math.inf


def _alone(error: Exception) -> Exception:
    """The error inside a group that holds only it; otherwise the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
