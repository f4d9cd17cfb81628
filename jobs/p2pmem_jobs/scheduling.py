"""APScheduler 3.11 on trio: a scheduler and an executor on its own extension points.

    scheduler = TrioScheduler(clock=clock)
    scheduler.add_job(sweep, "interval", minutes=5)
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.serve)

Needs the package `apscheduler`; nothing else here imports it. Times are those of `clock`, so that a test has them
virtual. What is scheduled here is as durable as the job store of APScheduler; usually it submits a job to a `Queue`.

Three things differ from the schedulers that come with APScheduler. `serve` is the life of the scheduler: what it runs
lives in its nursery. A job may be an async function of trio, or a plain one, which runs in a thread. And a job that is
cancelled is cancelled, where those catch every exception there is.
"""

from __future__ import annotations

import inspect
import logging
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any

import trio
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
    JobExecutionEvent,
    JobSubmissionEvent,
)
from apscheduler.executors.base import BaseExecutor, MaxInstancesReachedError
from apscheduler.schedulers import SchedulerAlreadyRunningError, SchedulerNotRunningError
from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, BaseScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from .blocking import Blocking, ThreadBlocking
from .clock import Clock, SystemClock

RUNS_MADE_UP_MAX = 1_000  # of one job, at once
_LOOK_AT_THE_CLOCK_EVERY_S = 60.0  # the wall clock may step while we sleep


class TrioExecutor(BaseExecutor):  # type: ignore[misc]
    """Runs async jobs as tasks of the scheduler's nursery, and plain ones by `blocking`."""

    def __init__(self, blocking: Blocking | None = None) -> None:
        super().__init__()
        self._blocking = blocking or ThreadBlocking()
        self._scopes: set[trio.CancelScope] = set()

    def shutdown(self, wait: bool = True) -> None:
        """What runs may end, and `serve` waits for it; without `wait` it is cancelled."""
        if not wait:
            for scope in self._scopes:
                scope.cancel()

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self._scheduler.start_task(partial(self._run, job, run_times))

    async def _run(self, job: Any, run_times: list[datetime]) -> None:
        events: list[JobExecutionEvent] = []
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                for run_time in run_times:
                    events.append(await self._run_once(job, run_time))
            finally:
                self._scopes.discard(scope)
                self._run_job_success(job.id, events)

    async def _run_once(self, job: Any, run_time: datetime) -> JobExecutionEvent:
        event = partial(JobExecutionEvent, job_id=job.id, jobstore=job._jobstore_alias, scheduled_run_time=run_time)
        if job.misfire_grace_time is not None:
            late = self._scheduler.now() - run_time
            if late > timedelta(seconds=job.misfire_grace_time):
                self._logger.warning("the run of %s at %s was missed by %s", job, run_time, late)
                return event(EVENT_JOB_MISSED)
        call = partial(job.func, *job.args, **job.kwargs)
        try:
            value = await (call() if inspect.iscoroutinefunction(_inner(job.func)) else self._blocking.run(call))
        except Exception as error:
            self._logger.exception("%s raised an exception", job)
            return event(EVENT_JOB_ERROR, exception=error, traceback="".join(traceback.format_tb(error.__traceback__)))
        return event(EVENT_JOB_EXECUTED, retval=value)


class TrioScheduler(BaseScheduler):  # type: ignore[misc]
    """A scheduler that runs on trio. Add jobs before or while `serve` runs, from any thread."""

    _logger = logging.getLogger("apscheduler.scheduler")

    def __init__(self, *, clock: Clock | None = None, blocking: Blocking | None = None, **options: Any) -> None:
        self._clock = clock or SystemClock()
        self._blocking = blocking
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread: int | None = None
        self._woken = trio.Event()
        super().__init__(**options)

    def now(self) -> datetime:
        """The time of the clock, in the time zone of the scheduler."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, self.timezone)

    async def serve(
        self, *, paused: bool = False, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs the scheduler until `shutdown`, and returns when the jobs that it started have ended.

        A job that raises is logged, and told to listeners; it disturbs nobody else. Cancellation: at any time; the jobs
        are cancelled too.
        """
        if self.running:
            raise SchedulerAlreadyRunningError
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._thread = threading.get_ident()
            super().start(paused)
            task_status.started()
            try:
                while self.running:
                    self._woken = trio.Event()
                    await self._until_due(self._process_jobs())
            finally:
                if self.running:
                    self.shutdown(wait=False)

    async def _until_due(self, wait_s: float | None) -> None:
        """Returns after so long by the wall clock, whatever that does meanwhile, or when there is another job."""
        due_ms = inf if wait_s is None else self._clock.now_ms() + 1000 * wait_s
        while not self._woken.is_set() and (left_ms := due_ms - self._clock.now_ms()) > 0:
            with trio.move_on_after(min(_LOOK_AT_THE_CLOCK_EVERY_S, left_ms / 1000)):
                await self._woken.wait()

    def start(self, paused: bool = False) -> None:
        """Not here: a trio task belongs to a nursery. Use `serve`."""
        raise RuntimeError("start a TrioScheduler with `await nursery.start(scheduler.serve)`")

    def shutdown(self, wait: bool = True) -> None:
        """Makes `serve` return: after the running jobs have ended, or, without `wait`, once they are cancelled."""
        super().shutdown(wait)
        self.wakeup()

    def start_task(self, task: Callable[[], Any]) -> None:
        """For executors: runs a task in the nursery of `serve`."""
        if self._nursery is None:
            raise SchedulerNotRunningError
        self._nursery.start_soon(task)

    def wakeup(self) -> None:
        if self._token is None:
            return
        if threading.get_ident() == self._thread:
            self._woken.set()
        else:
            self._token.run_sync_soon(lambda: self._woken.set())

    def _create_default_executor(self) -> TrioExecutor:
        return TrioExecutor(self._blocking)

    # APScheduler asks the operating system for the time, in the places below; here it is the clock.

    def _create_trigger(self, trigger: Any, trigger_args: dict[str, Any]) -> Any:
        made = super()._create_trigger(trigger, trigger_args)
        if isinstance(trigger, str) and isinstance(made, IntervalTrigger) and not trigger_args.get("start_date"):
            made.start_date = self.now() + made.interval
        if (
            isinstance(made, DateTrigger)
            and trigger_args.get("run_date") is None
            and not isinstance(trigger, DateTrigger)
        ):
            made.run_date = self.now()
        return made

    def _real_add_job(self, job: Any, jobstore_alias: str, replace_existing: bool) -> None:
        if not hasattr(job, "next_run_time"):
            job._modify(next_run_time=job.trigger.get_next_fire_time(None, self.now()))
        super()._real_add_job(job, jobstore_alias, replace_existing)

    def reschedule_job(self, job_id: str, jobstore: str | None = None, trigger: Any = None, **trigger_args: Any) -> Any:
        made = self._create_trigger(trigger, trigger_args)
        return self.modify_job(job_id, jobstore, trigger=made, next_run_time=made.get_next_fire_time(None, self.now()))

    def resume_job(self, job_id: str, jobstore: str | None = None) -> Any:
        job = self.get_job(job_id, jobstore)
        next_run_time = None if job is None else job.trigger.get_next_fire_time(None, self.now())
        if next_run_time is None:
            self.remove_job(job_id, jobstore)
            return None
        return self.modify_job(job_id, jobstore, next_run_time=next_run_time)

    def _process_jobs(self) -> float | None:
        """Submits what is due, and returns how many seconds to sleep; None when nothing is to come, or paused."""
        if self.state == STATE_PAUSED:
            return None
        now = self.now()
        events: list[JobSubmissionEvent] = []
        with self._jobstores_lock:
            for alias, store in self._jobstores.items():
                for job in store.get_due_jobs(now):
                    events += self._submit_due(job, alias, store, now)
            times = [store.get_next_run_time() for store in self._jobstores.values()]
        for event in events:
            self._dispatch_event(event)
        coming = [time for time in times if time is not None]
        if self.state != STATE_RUNNING or not coming:
            return None
        wait_s: float = (min(coming) - self.now()).total_seconds()
        return max(0.001, wait_s)

    def _submit_due(self, job: Any, alias: str, store: Any, now: datetime) -> list[JobSubmissionEvent]:
        events = []
        run_times, next_run_time = self._run_times(job, now)
        if job.coalesce:
            run_times = run_times[-1:]
        if run_times:
            try:
                self._lookup_executor(job.executor).submit_job(job, run_times)
                events.append(JobSubmissionEvent(EVENT_JOB_SUBMITTED, job.id, alias, run_times))
            except MaxInstancesReachedError:
                self._logger.warning("%s is skipped: %d of it still run", job, job.max_instances)
                events.append(JobSubmissionEvent(EVENT_JOB_MAX_INSTANCES, job.id, alias, run_times))
            except Exception:
                self._logger.exception("%s could not be submitted to its executor %r", job, job.executor)
        if next_run_time is None:
            self.remove_job(job.id, alias)
        else:
            job._modify(next_run_time=next_run_time)
            store.update_job(job)
        return events

    def _run_times(self, job: Any, now: datetime) -> tuple[list[datetime], datetime | None]:
        """When the job was to run until now, and when it is to run next.

        A clock that was years behind steps over more times than there is room for: those beyond the first so many are
        left out, and the log says so.
        """
        run_times: list[datetime] = []
        next_run_time = job.next_run_time
        while next_run_time is not None and next_run_time.astimezone(UTC) <= now.astimezone(UTC):
            if len(run_times) == RUNS_MADE_UP_MAX:
                self._logger.warning("%s was to run more than %d times until %s", job, len(run_times), now)
                return run_times, job.trigger.get_next_fire_time(None, now + timedelta.resolution)
            run_times.append(next_run_time)
            next_run_time = job.trigger.get_next_fire_time(next_run_time, now)
        return run_times, next_run_time


def _inner(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn
