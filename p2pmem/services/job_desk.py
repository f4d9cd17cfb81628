"""Jobs as users see them: submit, watch, and speak for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import trio
from p2pmem_jobs import (
    Handler,
    Job,
    JobRecord,
    MisuseError as QueueMisuseError,
    NotFoundError as NoSuchJobError,
    Queue,
    State,
)
from p2pmem_protocol.errors import MisuseError

from p2pmem.face import JobEffectView, JobEventView, JobStepView, JobStory, JobView, NotFoundError
from p2pmem.services.showing import Showing

WAIT_MS_MAX: Final = 10 * 60 * 1000
QUICK_S: Final = 0.5
"""A submit waits so long for the end of its job: what has nothing to wait for answers at once."""
_ON_ITS_WAY: Final = frozenset((State.QUEUED, State.RUNNING))
_OUTCOMES: Final = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "retry": State.QUEUED}


class JobDesk:
    """The part of the face that is about jobs."""

    def __init__(self, queue: Queue, showing: Showing) -> None:
        self._queue = queue
        self._showing = showing

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
        if wait_ms and not self._record(job).ended:
            with trio.move_on_after(wait_ms / 1000):
                async for shown in self.watch(job):
                    view = shown
            view = self._view(job)
        return view

    async def jobs(self, state: str | None, limit: int, before: str | None) -> tuple[JobView, ...]:
        try:
            states = [State(state)] if state else list(State)
        except ValueError:
            known = ", ".join(each.value for each in State)
            raise MisuseError(f"{state!r} is no state of a job; they are {known}") from None
        before_seq = self._record(before).seq if before else None
        records = await self._queue.list(states=states, limit=limit, before_seq=before_seq)
        return tuple(self._showing.job(record) for record in records)

    def story(self, job: str) -> JobStory:
        self._record(job)
        story = self._queue.story(job)
        return JobStory(
            job=self._showing.job(story.job),
            events=tuple(JobEventView(it.at_ms, it.attempt, it.state.value, it.reason) for it in story.events),
            steps=tuple(JobStepView(it.name, it.attempt, it.ended_ms) for it in story.steps),
            effects=tuple(
                JobEffectView(it.key, it.note, it.state, it.intended_ms, it.done_ms or 0) for it in story.effects
            ),
            children=story.children,
        )

    async def watch(self, job: str) -> AsyncIterator[JobView]:
        """The job as it is now and after each change, until it has ended."""
        self._record(job)
        async for event in self._queue.watch(job):
            shown = self._view(job)
            if event.progress is not None:
                shown = replace(shown, progress=event.progress.text)
            yield shown

    async def cancel(self, job: str) -> JobView:
        self._record(job)
        with _misuse():
            await self._queue.cancel(job)
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
        try:
            return self._queue.get(job)
        except NoSuchJobError as error:
            raise NotFoundError(str(error)) from None

    def _view(self, job: str) -> JobView:
        return self._showing.job(self._record(job))


@contextmanager
def _misuse() -> Iterator[None]:
    """What the queue calls misuse is misuse of the node too."""
    try:
        yield
    except QueueMisuseError as error:
        raise MisuseError(str(error)) from error
