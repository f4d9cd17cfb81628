"""The queue: submit jobs, run them, watch them, and speak for those that cannot tell what came of them."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload
from weakref import WeakValueDictionary

import trio

from . import codec, reading, recovery, tables
from .bounds import QueueLimits, Retention, check_names, check_numbers
from .clock import Clock, SystemClock
from .context import Context
from .database import CrashPoint, Database
from .dispatch import Dispatcher
from .errors import (
    ClosedError,
    EndedError,
    MisuseError,
    UnknownKindError,
)
from .forgetting import Forgetting
from .handlers import ErrorClass, Handler, RetryPolicy, classify, make_handler
from .ids import new_id
from .job import Job, Submission, Watch
from .plain_nursery import open_plain_nursery
from .records import Ended, JobRecord, NewJob, QueueStatistics, Story
from .runs import Run
from .signals import Signal, Signals
from .states import LIVE, State
from .texts import told

log = logging.getLogger("p2pmem_jobs")

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

NO_RESULT: object = object()  # what is given where a person knows that a job succeeded, and nothing more
STOP_S = 5.0  # how long what was told to stop may take to do so
_MAY_BE_RETRIED = frozenset({State.FAILED, State.CANCELLED})


class Queue:
    """Durable jobs in a database. Register handlers, then `async with queue.run()`.

    `random_bytes` makes ids and jitter. `crash_point(name)` is called at every boundary of a job, by default that of
    the database. While `clock_is_right()` is false the queue forgets no ended job by itself: what the clock makes old
    may be of today.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        limits: QueueLimits | None = None,
        retention: Retention | None = None,
        crash_point: CrashPoint | None = None,
        clock_is_right: Callable[[], bool] = lambda: True,
    ) -> None:
        self.clock = clock or SystemClock()
        self._database = database
        self._random_bytes = random_bytes
        self._limits = limits or QueueLimits()
        self._crash_point = crash_point or database.crash_point
        self._handlers: dict[str, Handler[Any, Any]] = {}
        self._dispatcher: Dispatcher | None = None
        self._is_open = False
        self.has_stopped = False  # drained, or no longer run: no job of it ends any more
        self._changed = Signal()
        self._signals = Signals()  # of every change of a job
        self._ends = Signals()  # of those after which it may have ended
        self._forgetting = Forgetting(
            database,
            lambda: self.clock.now_ms(),
            retention or Retention(),
            clock_is_right,
            self._ended_here,
            self._signals.notify_all,  # who still watches one of them is told that it is gone
        )
        self._handles: WeakValueDictionary[str, Job[Any]] = WeakValueDictionary()
        self._submitted_count = 0

    # Handlers

    def handler(
        self,
        kind: str,
        *,
        version: int,
        accepts: Collection[int] = (),
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008, a frozen value
        classify: Callable[[BaseException], ErrorClass] = classify,
        concurrency: int = 16,
    ) -> Callable[[Callable[[Context, A], Awaitable[R]]], Handler[A, R]]:
        """Registers an async function of (context, arguments) for a kind of job.

        The arguments are a dataclass, by annotation; so is the type of the result. A job is run only by its own version
        or by one that `accepts` it: raise the version when stored steps mean something else now. At most `concurrency`
        of them run at once.
        """

        def register(fn: Callable[[Context, A], Awaitable[R]]) -> Handler[A, R]:
            if self._dispatcher is not None:
                raise MisuseError(f"{kind}: handlers are registered before the queue is run")
            if kind in self._handlers:
                raise MisuseError(f"{kind} has a handler already")
            made = make_handler(fn, kind, version, accepts, retry, classify, concurrency)
            self._handlers[kind] = made
            return made

        return register

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that have a handler."""
        return frozenset(self._handlers)

    # Running

    @asynccontextmanager
    async def run(self, *, drain_s: float = 10.0, stop_s: float = STOP_S) -> AsyncIterator[Queue]:
        """Opens the queue, and runs its jobs until the block ends.

        First every job that was interrupted is queued again. When the block ends, the queue is drained: what runs may
        end within `drain_s`, then it is stopped, and queued again for the next time. When the block raises or is
        cancelled, everything is stopped at once. A handler that swallows its cancellation holds the block up, since no
        task can be abandoned: after `stop_s` the log names its job, for somebody to end the process. Nothing is lost.
        So does one that owes a write which the disk does not take, until `Database.let_go`.

        Errors: `NewerSchemaError`; `MisuseError` when it is run already.
        """
        if self._dispatcher is not None:
            raise MisuseError("a queue is run once; make a new one")
        self._dispatcher = dispatcher = self._make_dispatcher()
        await self._recover()
        async with open_plain_nursery() as nursery:
            dispatcher.pause(self._database.read(recovery.paused_kinds))
            self._is_open = True
            drained = False
            try:
                nursery.start_soon(dispatcher.dispatch, nursery)
                nursery.start_soon(self._forgetting.sweep_now_and_then)
                yield self
                await dispatcher.drain(drain_s, stop_s)
                drained = True
            finally:
                self._is_open = False
                dispatcher.stop_claiming()
                nursery.cancel_scope.cancel()
                if not drained:
                    with trio.CancelScope(shield=True):
                        await dispatcher.stop_all(stop_s)
                self._stopped()

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self._database,
            self.clock,
            self._handlers,
            self._limits.running_jobs,
            self._limits.tasks,
            self._limits.look_every_s,
            lambda: int.from_bytes(self._random_bytes(4), "big") / (2**32 - 1),
            self.prepare,
            self._tell,
            self._tell_unseen,
            self._tell_progress,
            self._crash_point,
        )

    async def _recover(self) -> None:
        await self._database.migrate(tables.COMPONENT, tables.MIGRATIONS)
        accepted = {kind: handler.accepts for kind, handler in self._handlers.items()}
        interrupted = await self._database.write(
            lambda c: recovery.recover(c, self.clock.now_ms(), accepted, self._database.restores, self._limits.deaths)
        )
        if interrupted:
            log.info("queue.recovered", extra={"interrupted": interrupted})

    async def drain(self, within_s: float, *, stop_s: float = STOP_S) -> tuple[str, ...]:
        """Claims nothing more; what runs may end within the time, then it is stopped. For a signal to end; then leave
        the block of `run`.

        Returns within `within_s + stop_s` the ids of the jobs that did not stop, because their handlers swallow
        cancellation. Mostly there are none; where there are, `run` cannot end before them. The log names them; they run
        again after the next start.
        """
        left = await self._running().drain(within_s, stop_s)
        self._stopped()
        return left

    def _stopped(self) -> None:
        self.has_stopped = True
        # Who waits for a job that did not end, or watches one, is told that it will not, here.
        self._ends.notify_all()
        self._signals.notify_all()
        self._changed.notify()

    def _running(self) -> Dispatcher:
        if self._dispatcher is None or not self._is_open:
            raise ClosedError("the queue is not running; use it inside `async with queue.run()`")
        return self._dispatcher

    # Submitting

    @overload
    async def submit(
        self,
        kind: Handler[A, R],
        args: A,
        *,
        dedupe_key: str | None = None,
        run_at_ms: int | None = None,
        priority: int = 0,
        deadline_ms: int | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> Job[R]: ...

    @overload
    async def submit(
        self,
        kind: str,
        args: object,
        *,
        dedupe_key: str | None = None,
        run_at_ms: int | None = None,
        priority: int = 0,
        deadline_ms: int | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> Job[Any]: ...

    async def submit(self, kind: Any, args: Any, **options: Any) -> Job[Any]:
        """Stores a job and returns once it is on disk.

        dedupe_key: while a job of this kind and key is live or has succeeded, that one is returned; with other
        arguments it is a conflict. run_at_ms: not before. priority: higher first. deadline_ms: the job fails unless it
        ended by then. parent: the job on whose behalf. owner: whose it is, for lists.

        Errors: `UnknownKindError`, `NotSerialisableError`, `ConflictError`, `FullError`; `MisuseError` for a deadline
        that has passed; those of `Database.write`. Then there is no such job.

        Cancellation: there is no such job; or its commit had begun, then it is returned all the same.
        """
        submission = self.prepare(kind, args, **options)
        await self._database.write(submission.insert, submission.announce)
        return submission.job

    def prepare(
        self,
        kind: Handler[A, R] | str,
        args: A,
        *,
        dedupe_key: str | None = None,
        run_at_ms: int | None = None,
        priority: int = 0,
        deadline_ms: int | None = None,
        parent: str | None = None,
        owner: str | None = None,
    ) -> Submission:
        """Checks a job, for `Submission.insert` in a write of your own. Errors: as `submit`."""
        self._running()
        handler = self._find(kind)
        if type(args) is not handler.args_type:
            raise MisuseError(f"{handler.kind} takes {handler.args_type.__name__}, and was given {type(args).__name__}")
        now_ms = self.clock.now_ms()
        check_names(dedupe_key, parent, owner)
        check_numbers(priority, run_at_ms, deadline_ms)
        if deadline_ms is not None and deadline_ms <= now_ms:
            raise MisuseError(f"the deadline of this {handler.kind} passed {now_ms - deadline_ms} ms ago")
        new = NewJob(
            new_id(now_ms, self._random_bytes),
            handler.kind,
            handler.version,
            codec.encode(args, handler.args_type),
            priority,
            now_ms if run_at_ms is None else run_at_ms,
            deadline_ms,
            dedupe_key,
            owner,
            parent,
            None,
            now_ms,
        )
        return Submission(self, new, handler.returns, "submitted", None)

    def _find(self, kind: Handler[Any, Any] | str) -> Handler[Any, Any]:
        name = kind.kind if isinstance(kind, Handler) else kind
        if name not in self._handlers:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise UnknownKindError(f"no handler is registered for {name!r}; there are: {known}")
        return self._handlers[name]

    def job(self, job_id: str) -> Job[Any]:
        """The job of an id, to wait for its result. Errors: `NotFoundError`."""
        record = self.get(job_id)
        handler = self._handlers.get(record.kind)
        return Job(self, job_id, codec.UNDECLARED if handler is None else handler.returns)

    # Speaking for a job

    async def cancel(self, job_id: str, reason: str = "cancelled") -> State:
        """Cancels a job, and returns its state: one that has a task still has to end, soon. Nothing is deleted.

        Errors: `NotFoundError`; `EndedError` when it has ended. A job in the middle of an effect ends as
        `outcome_unknown`.
        """
        dispatcher = self._running()

        def after(_: State) -> None:
            dispatcher.cancel(job_id)
            self._tell_unseen(job_id)

        why = told(reason)
        return await self._database.write(lambda c: tables.ask_to_cancel(c, job_id, self.clock.now_ms(), why), after)

    async def retry(self, job_id: str) -> Job[Any]:
        """Submits a job that failed or was cancelled again, as a new job that has the steps and effects of the old one.

        What was retried already is not done a second time beside it: a retry that is live or has succeeded is
        returned, and of one that failed too, the last one is retried, which knows what all have done.

        Errors: `NotFoundError`; `EndedError` when it did not fail; `UnknownKindError`; `ConflictError`, `FullError`.
        """
        self._running()
        old = self.get(job_id)
        if old.state in _MAY_BE_RETRIED:
            old = self._database.read(lambda c: tables.last_retry(c, job_id))
            if old.id != job_id and old.state not in _MAY_BE_RETRIED:
                return self.job(old.id)
        if old.state not in _MAY_BE_RETRIED:
            raise EndedError(f"job {job_id} is {old.state.value}; only one that failed or was cancelled is retried")
        handler = self._find(old.kind)
        if old.version not in handler.accepts:
            raise UnknownKindError(f"job {job_id} is of version {old.version} of {old.kind!r}, which is not accepted")
        now_ms = self.clock.now_ms()
        new = NewJob.again(old, new_id(now_ms, self._random_bytes), now_ms)
        submission = Submission(self, new, handler.returns, f"retry of {old.id}", old.id)
        await self._database.write(submission.insert, submission.announce)
        return submission.job

    async def resolve(
        self, job_id: str, to: State, *, reason: str = "resolved by hand", result: object = NO_RESULT
    ) -> None:
        """A person's word on a job whose outcome is unknown: `succeeded` (with its result), `failed`, or `queued`.

        Succeeded without a result, where the handler's type asks for one, the job has none: who waits for it is told
        so by a `JobWithoutResultError`.

        Queued, it runs again; effects under way are looked up once more, and tried again unless they are found.
        Errors: `NotFoundError`; `EndedError` when its outcome is not unknown; `NotSerialisableError`.
        """
        dispatcher = self._running()
        if to not in (State.SUCCEEDED, State.FAILED, State.QUEUED):
            raise MisuseError(f"a job is resolved as succeeded, failed or queued, not as {to.value}")
        old = self.get(job_id)
        if old.state is not State.OUTCOME_UNKNOWN:
            raise EndedError(f"job {job_id} is {old.state.value}; only a job whose outcome is unknown is resolved")
        text = self._result_by_word(old.kind, result) if to is State.SUCCEEDED else None
        now_ms = self.clock.now_ms()

        def after(state: State) -> None:
            if state is State.QUEUED:
                dispatcher.submitted(old.kind, now_ms, old.deadline_ms, ready=True)
            self._tell_unseen(job_id)

        await self._database.write(lambda c: tables.resolve(c, job_id, to, now_ms, told(reason), text), after)

    def _result_by_word(self, kind: str, result: object) -> str | None:
        handler = self._handlers.get(kind)
        returns = codec.UNDECLARED if handler is None else handler.returns
        if result is not NO_RESULT:
            return codec.encode(result, returns)
        return codec.encode(None, returns) if codec.may_be_none(returns) else None

    async def pause(self, kind: str) -> None:
        """No job of this kind begins any more, also after a restart; what runs goes on."""
        await self._change_paused(lambda c: recovery.pause(c, kind, self.clock.now_ms()))

    async def resume(self, kind: str) -> None:
        """Jobs of this kind begin again."""
        await self._change_paused(lambda c: recovery.resume(c, kind))

    async def _change_paused(self, change: Callable[[sqlite3.Connection], None]) -> None:
        dispatcher = self._running()

        def write(connection: sqlite3.Connection) -> frozenset[str]:
            change(connection)
            return recovery.paused_kinds(connection)

        await self._database.write(write, dispatcher.pause)

    def paused(self) -> frozenset[str]:
        """The kinds that are paused."""
        return self._running().paused

    # Looking

    def _read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        self._has_tables()
        return self._database.read(fn)

    def _has_tables(self) -> None:
        if self._dispatcher is None:
            raise ClosedError("the queue was not run yet; use it inside `async with queue.run()`")

    def get(self, job_id: str) -> JobRecord:
        """Errors: `NotFoundError`."""
        return self._read(lambda c: reading.get_job(c, job_id))

    async def list(
        self,
        *,
        kind: str | None = None,
        states: Collection[State] = tuple(State),
        owner: str | None = None,
        parent: str | None = None,
        before_seq: int | None = None,
        limit: int = 100,
    ) -> list[JobRecord]:
        """Jobs, newest first; for the next page give the `seq` of the last one as `before_seq`. At most 1,000."""
        wanted = {"kind": kind, "owner": owner, "parent": parent}
        conditions = {name: value for name, value in wanted.items() if value is not None}
        before = 2**63 - 1 if before_seq is None else before_seq
        self._has_tables()
        return await self._database.read_slowly(
            lambda c: reading.list_jobs(c, frozenset(states), conditions, before, max(1, min(limit, 1_000)))
        )

    def live_of(self, owner: str, kind: str) -> Sequence[JobRecord]:
        """The jobs of an owner that have not ended, newest first, at most 100. Read here and now, by its index."""
        conditions = {"kind": kind, "owner": owner}
        return self._read(lambda c: reading.list_jobs(c, LIVE, conditions, 2**63 - 1, 100))

    def story(self, job_id: str) -> Story:
        """All that is known of a job; of its changes the last 1,000. Errors: `NotFoundError`."""

        def read(connection: sqlite3.Connection) -> Story:
            job = reading.get_job(connection, job_id)
            return Story(
                job,
                tuple(reading.last_events_of(connection, job_id, limit=1_000)),
                reading.steps_of(connection, job.seq),
                reading.effects_of(connection, job.seq),
                reading.children_of(connection, job_id),
                run.progress if (run := self._run_of(job_id)) is not None else None,
            )

        return self._read(read)

    def position(self, job_id: str) -> int:
        """The number of the job's last change. Errors: `NotFoundError`."""
        return self._read(lambda c: reading.last_event_of(c, job_id))

    def watch(self, job_id: str | None = None, *, kind: str | None = None, after: int | None = None) -> Watch:
        """The changes of one job from its beginning, until it has ended; or of all, from now on and until the queue is
        drained or left, which is a `ClosedError`.

        `after` is the number of the last event that is known: what came since follows, none left out. Progress, and
        what a job waits for by now, come between them, only for a single job, and only the latest.
        """
        if job_id is not None:
            self.get(job_id)
        last = self._read(reading.last_event_number)
        if after is None:
            after = 0 if job_id is not None else last
        # a number that is still to come is of a file that was put back since
        return Watch(self, job_id, kind, min(after, last))

    def statistics(self) -> QueueStatistics:
        dispatcher = self._running()
        waiting = sum(run.waits > 0 for run in dispatcher.runs.values())
        return QueueStatistics(
            self._read(lambda c: reading.fact(c, "live")),
            self._read(lambda c: reading.fact(c, "ended")),
            len(dispatcher.runs) - waiting,
            waiting,
            self._submitted_count,
            dispatcher.claimed,
            dispatcher.ended_count,
        )

    # Retention

    async def sweep(self) -> int:
        """Forgets ended jobs by the retention; returns how many. The queue does it by itself now and then."""
        return await self._forgetting.sweep()

    def _ended_here(self) -> int:
        """How many jobs have ended since the start."""
        return self._dispatcher.ended_count if self._dispatcher is not None else 0

    # Telling

    def _submitted(self, new: NewJob) -> None:
        self._submitted_count += 1
        if self._dispatcher is not None:
            ready = new.run_at_ms <= new.submitted_ms
            self._dispatcher.submitted(new.kind, new.run_at_ms, new.deadline_ms, ready=ready)
        self._tell(new.id, None)

    def _submitted_done(self, record: JobRecord) -> None:
        self._submitted_count += 1
        if self._dispatcher is not None:
            self._dispatcher.ended_count += 1
        self._changed.notify()
        self._signals.notify(record.id)

    def _tell(self, job_id: str, ended: Ended | None) -> None:
        """After the commit of a change, with the end if it is one."""
        if ended is not None:
            if (handle := self._handles.get(job_id)) is not None:
                handle.ended = ended
            self._ends.notify(job_id)
        self._changed.notify()
        self._signals.notify(job_id)

    def _tell_unseen(self, job_id: str) -> None:
        """After the commit of a change by others than its run: who waits for it has to look."""
        if (handle := self._handles.get(job_id)) is not None:
            handle.must_look = True
        self._ends.notify(job_id)
        self._tell(job_id, None)

    def _tell_progress(self, job_id: str) -> None:
        self._signals.notify(job_id)

    def _run_of(self, job_id: str | None) -> Run | None:
        if job_id is None or self._dispatcher is None:
            return None
        return self._dispatcher.runs.get(job_id)
