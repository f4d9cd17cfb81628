"""A job seen from outside: on its way, its result, and its changes as they come."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from . import codec, reading, tables, work
from .errors import ClosedError, JobCancelledError, JobFailedError, JobOutcomeUnknownError, JobWithoutResultError
from .records import Ended, Event, JobRecord, NewJob, Progress
from .signals import Listener
from .states import FINAL, State

if TYPE_CHECKING:
    from .queue import Queue

R = TypeVar("R")


class Job(Generic[R]):
    """A job that was submitted."""

    def __init__(self, queue: Queue, job_id: str, returns: Any, *, must_look: bool = True) -> None:
        self.id = job_id
        self.ended: Ended | None = None  # told by the queue, to the handle that its submission made
        self.must_look = must_look  # whether something may have come of it that was not told
        self._queue = queue
        self._returns = returns

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def record(self) -> JobRecord:
        """The job as it is now. Errors: `NotFoundError` once it is forgotten."""
        return self._queue.get(self.id)

    async def result(self) -> R:
        """Waits until the job has ended, and returns its result.

        Errors: `JobFailedError`, `JobCancelledError`, `JobOutcomeUnknownError`, each with the reason;
        `JobWithoutResultError` when a person said that it succeeded; `NotFoundError`; `ClosedError` when the queue was
        drained or left before the job had ended, which it does when a queue is run on the file again.

        Cancellation: at any time; the job goes on.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._queue._ends.listen(self.id) as listener:
            while True:
                ended = self._look() if self.must_look else self.ended
                if ended is not None:
                    return self._result_of(ended)
                if self._queue.has_stopped:
                    raise ClosedError(
                        f"the queue has stopped; job {self.id} has not ended, and goes on with the next one"
                    )
                await listener.wait()

    def _look(self) -> Ended | None:
        job = self.record()
        if job.state not in FINAL and job.state is not State.OUTCOME_UNKNOWN:
            return None
        return Ended(job.state, job.error or job.detail or job.state.value, job.result)

    def _result_of(self, ended: Ended) -> R:
        if ended.state is State.SUCCEEDED:
            if ended.result is None:
                raise JobWithoutResultError(self.id, f"it succeeded without a result: {ended.reason}")
            result: R = codec.decode(ended.result, self._returns)
            return result
        raise _BAD_ENDS[ended.state](self.id, ended.reason)


_BAD_ENDS = {
    State.FAILED: JobFailedError,
    State.CANCELLED: JobCancelledError,
    State.OUTCOME_UNKNOWN: JobOutcomeUnknownError,
}


class Submission:
    """A job on its way. `insert` it in a write of your own, so that it and your rows are committed together, and give
    `announce` as the write's `after`."""

    def __init__(self, queue: Queue, new: NewJob, returns: Any, reason: str, work_of: str | None) -> None:
        self._queue = queue
        self._new = new
        self._returns = returns
        self._reason = reason
        self._work_of = work_of
        self._id = new.id
        self.job: Job[Any]  # once it is announced

    def insert(self, connection: sqlite3.Connection) -> str:
        """Returns the id: of the new job, or of the one that stands for it already. Errors: Conflict, Full."""
        if self._work_of is not None:
            self._id = tables.last_retry(connection, self._work_of).id
            if self._id != self._work_of:
                return self._id  # somebody else retried it meanwhile
        self._id = tables.insert_job(connection, self._new, self._queue._limits.live_jobs, self._reason)
        if self._work_of is not None and self._id == self._new.id:
            work.copy_work(connection, self._work_of, self._id)
        return self._id

    def insert_done(self, connection: sqlite3.Connection, result: object) -> JobRecord:
        """Instead of `insert`, for work that this very write does: the job is stored as run once and succeeded.

        Its rows and those of the work are committed together, so nothing of it can be left half done and there is
        nothing to run. Returns the record. Give `announce_done` as the write's `after`. A dedupe key is not looked at.
        """
        text = codec.encode(result, self._returns)
        return tables.insert_done(connection, self._new, text, self._reason)

    def announce_done(self, record: JobRecord) -> None:
        """Tells who watches, after the commit of `insert_done`."""
        self._queue._submitted_done(record)

    def announce(self, _: object = None) -> None:
        """Tells the dispatcher, after the commit. Unannounced, the job waits until something else wakes it."""
        is_new = self._id == self._new.id
        self.job = Job(self._queue, self._id, self._returns, must_look=not is_new)
        if is_new:
            self._queue._handles[self._id] = self.job
            self._queue._submitted(self._new)


class Watch:
    """The changes of jobs, one after the other, none left out. For `async for`; made by `Queue.watch`."""

    def __init__(self, queue: Queue, job_id: str | None, kind: str | None, after: int) -> None:
        self._queue = queue
        self._job_id = job_id
        self._kind = kind
        self._after = after
        self._page: list[Event] = []
        self._told: Progress | None = None
        self._waits_for: str | None = ""  # as far as it is told; None when it does not wait
        self._ended = False

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        """Errors: `NotFoundError` when the job was forgotten before its end was told; `ClosedError` when the queue was
        drained or left, once all is told that has happened: the next one goes on after the number of the last event.

        Cancellation: at any time; the next one comes next time.
        """
        await trio.lowlevel.checkpoint()
        if self._ended:
            raise StopAsyncIteration
        queue = self._queue
        listening = Listener((queue._changed,)) if self._job_id is None else queue._signals.listen(self._job_id)
        with listening as listener:
            while True:
                event = self._next()
                if event is not None:
                    return event
                if self._ended:  # and its end was known before
                    raise StopAsyncIteration
                if queue.has_stopped:
                    raise ClosedError(f"the queue has stopped; {self._watched} goes on with the next one")
                await listener.wait()

    @property
    def _watched(self) -> str:
        return f"job {self._job_id} has not ended, and" if self._job_id is not None else "what it does"

    def _next(self) -> Event | None:
        if not self._page:
            self._page = self._queue._database.read(self._read)
        if self._page:
            event = self._page.pop()
            self._after = event.number
            self._waits_for = event.reason if event.state is State.WAITING else None
            self._ended = self._job_id is not None and event.state in FINAL
            return event
        return self._next_of_run()

    def _read(self, connection: sqlite3.Connection) -> list[Event]:
        """The next page, the first event last."""
        page = reading.events_after(connection, self._after, self._job_id, self._kind)
        if not page:
            if self._job_id is not None:
                self._ended = reading.get_job(connection, self._job_id).ended
            # events of others lie behind: they are not looked through again
            self._after = max(self._after, reading.last_event_number(connection))
        return page[::-1]

    def _next_of_run(self) -> Event | None:
        """What a run tells between two changes: what it waits for by now, or how far it is."""
        run = self._queue._run_of(self._job_id)
        if run is None:
            return None
        job = run.claimed
        now_ms = self._queue.clock.now_ms()
        if self._waits_for is not None and run.detail and run.detail != self._waits_for:
            self._waits_for = run.detail
            return Event(self._after, job.id, job.kind, now_ms, job.attempt, State.WAITING, run.detail)
        if run.progress is None or run.progress == self._told:
            return None
        self._told = run.progress
        return Event(self._after, job.id, job.kind, now_ms, job.attempt, State.RUNNING, "", run.progress)
