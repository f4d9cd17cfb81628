"""Jobs as users see them: submit, watch, and speak for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import trio
from p2pmem_jobs import (
    ClosedError,
    EndedError,
    Handler,
    Job,
    JobRecord,
    MisuseError as QueueMisuseError,
    NotFoundError as NoSuchJobError,
    Queue,
    State,
    Story,
)
from p2pmem_jobs.records import STEP, WAIT
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address

from p2pmem.face import JobEffectView, JobEventView, JobStepView, JobStory, JobView, JobWaitView, NotFoundError
from p2pmem.services.absent import Absent
from p2pmem.services.showing import Showing, agent_of, in_words

WAIT_MS_MAX: Final = 10 * 60 * 1000
JOBS_MAX: Final = 1_000
QUICK_S: Final = 0.5
"""A submit waits so long for the end of its job: what has nothing to wait for answers at once."""
_ON_ITS_WAY: Final = frozenset((State.QUEUED, State.RUNNING))
_OUTCOMES: Final = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "retry": State.QUEUED}


class JobEndedError(MisuseError):
    """The job has ended, or is in no state for this."""


class JobDesk:
    """The part of the face that is about jobs. With `only`, it knows of no jobs but those of that agent."""

    def __init__(self, queue: Queue, showing: Showing, absent: Absent, only: Address | None = None) -> None:
        self._queue = queue
        self._showing = showing
        self._absent = absent
        self._only = only

    def of_agent(self, agent: Address) -> JobDesk:
        """The same, for one agent: the jobs of others are not there."""
        return JobDesk(self._queue, self._showing, self._absent, agent)

    async def submit(self, handler: Handler[Any, Any], args: Any) -> JobView:
        """Submit, and wait a moment for what has nothing to wait for."""
        return await self.settle(await self._queue.submit(handler, args))

    async def settle(self, job: Job[Any]) -> JobView:
        """The job as it is when it ends or begins to wait, or after a moment."""
        with trio.move_on_after(QUICK_S):
            async for event in self._queue.watch(job.id):
                if event.state not in _ON_ITS_WAY:
                    break
        return self._showing.job(job.record())

    async def job(self, job: str, wait_ms: int) -> JobView:
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise MisuseError(f"wait_ms is 0 to {WAIT_MS_MAX}, not {wait_ms}")
        view = self._view(job)
        if wait_ms:
            with trio.move_on_after(wait_ms / 1000):
                async for _ in self.watch(job):
                    pass
            view = self._view(job)
        return view

    async def jobs(self, state: str | None, limit: int, before: str | None, kind: str | None) -> tuple[JobView, ...]:
        try:
            states = [State(state)] if state else list(State)
        except ValueError:
            known = ", ".join(each.value for each in State)
            raise MisuseError(f"{state!r} is no state of a job; they are {known}") from None
        if not 1 <= limit <= JOBS_MAX:
            raise MisuseError(f"a page has 1 to {JOBS_MAX} jobs, not {limit}")
        before_seq = self._record(before).seq if before else None
        found: list[JobRecord] = []
        while len(found) < limit:
            want = limit if self._only is None else JOBS_MAX
            page = await self._queue.list(states=states, kind=kind, limit=want, before_seq=before_seq)
            found += [record for record in page if self._may_see(record)]
            if len(page) < want:
                break
            before_seq = page[-1].seq
        return tuple(self._showing.job(record) for record in found[:limit])

    def story(self, job: str) -> JobStory:
        self._record(job)
        story = self._queue.story(job)
        waits = [it for it in story.steps if it.what != STEP]
        shown = self._showing.job(story.job)
        if story.progress is not None:
            shown = replace(shown, progress=story.progress.text)
        return JobStory(
            job=shown,
            events=tuple(
                JobEventView(it.at_ms, it.attempt, it.state.value, in_words(it.reason)) for it in story.events
            ),
            steps=tuple(JobStepView(it.name, it.attempt, it.ended_ms) for it in story.steps if it.what == STEP),
            effects=tuple(
                JobEffectView(it.key, it.note, it.state, it.intended_ms, it.done_ms or 0) for it in story.effects
            ),
            children=story.children,
            waits=tuple(JobWaitView(it.name, it.ended_ms, int(it.result)) for it in waits),
            absent=self._absent.of(story.job),
            open_until_ms=_open_until_ms(story),
            parent=story.job.parent or "",
            retry_of=story.job.retry_of or "",
        )

    async def watch(self, job: str, since: int = 0) -> AsyncIterator[JobView]:
        """The job as it is now and after each change, until it has ended or only a person can say how."""
        record = self._record(job)
        if record.state is State.OUTCOME_UNKNOWN and self._queue.position(job) <= since:
            return
        async for event in self._queue.watch(job, after=since):
            view = self._view(job)
            position = self._queue.position(job)
            if event.number < position:
                continue  # more has happened since, and the view shows that
            shown = replace(view, position=position)
            if event.progress is not None:
                shown = replace(shown, progress=event.progress.text)
            yield shown
            if event.state is State.OUTCOME_UNKNOWN:
                return

    async def cancel(self, job: str) -> JobView:
        """Cancel, and wait a moment for its end: the answer says what came of it, and not what it did before."""
        self._record(job)
        with _misuse():
            await self._queue.cancel(job)
        with trio.move_on_after(QUICK_S):
            async for _ in self.watch(job):
                pass
        return self._view(job)

    async def retry(self, job: str) -> JobView:
        self._record(job)
        with _misuse():
            again = await self._queue.retry(job)
        return await self.settle(again)

    async def resolve(self, job: str, outcome: str) -> JobView:
        self._record(job)
        if outcome not in _OUTCOMES:
            raise MisuseError(f"a job is resolved as succeeded, failed or retry, not as {outcome!r}")
        with _misuse():
            await self._queue.resolve(job, _OUTCOMES[outcome])
        return self._view(job)

    def _record(self, job: str) -> JobRecord:
        """Errors: `NotFoundError`, the same for a job that is not there and for one of somebody else."""
        try:
            record = self._queue.get(job)
        except NoSuchJobError:
            record = None
        if record is None or not self._may_see(record):
            raise NotFoundError(
                f"there is no job {job[:80]!r}; it never was, or it ended longer ago than jobs are kept"
            )
        return record

    def _may_see(self, record: JobRecord) -> bool:
        return self._only is None or agent_of(record) == self._only

    def _view(self, job: str) -> JobView:
        return self._showing.job(self._record(job))


def _open_until_ms(story: Story) -> int:
    """When the wait that a waiting job is in ends; 0 when it is in none, or one without an end."""
    if story.job.state is not State.WAITING:
        return 0
    last = max((it for it in story.steps if it.what == WAIT), key=lambda it: it.ended_ms, default=None)
    return int(last.result) if last is not None else 0


@contextmanager
def _misuse() -> Iterator[None]:
    """What the queue calls misuse is misuse of the node too. That it is closing is nobody's fault."""
    try:
        yield
    except ClosedError:
        raise
    except EndedError as error:
        raise JobEndedError(str(error)) from error
    except QueueMisuseError as error:
        raise MisuseError(str(error)) from error
