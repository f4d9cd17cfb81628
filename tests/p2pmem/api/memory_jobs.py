"""The part of `MemoryFace` that is about jobs, which end when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.face import (
    JobEffectView,
    JobEventView,
    JobStepView,
    JobStory,
    JobView,
    NotFoundError,
)

from .memory_values import ENDED, NOW_MS

if TYPE_CHECKING:
    from .memory_face import MemoryFace


class MemoryJobs:
    """Mixed into `MemoryFace`, which holds the jobs."""

    def _job(self: MemoryFace, job: str) -> JobView:
        if job not in self._jobs:
            raise NotFoundError(f"there is no job {job}")
        return self._jobs[job]

    async def job(self: MemoryFace, job: str, *, wait_ms: int = 0) -> JobView:
        self._note("job", job=job, wait_ms=wait_ms)
        self._job(job)
        with trio.move_on_after(wait_ms / 1000):
            async with self._moved:
                while self._jobs[job].state not in ENDED:
                    await self._moved.wait()
        return self._jobs[job]

    async def jobs(
        self: MemoryFace, *, state: str | None, limit: int, before: str | None = None, kind: str | None = None
    ) -> tuple[JobView, ...]:
        self._note("jobs", state=state, limit=limit, before=before, kind=kind)
        if not 1 <= limit <= 1_000:
            raise MisuseError("a page has 1 to 1000 jobs")
        newest = [it for it in reversed(self._jobs.values()) if state in (None, it.state) and kind in (None, it.kind)]
        start = 0 if before is None else [it.id for it in newest].index(before) + 1
        return tuple(newest[start : start + limit])

    async def job_story(self: MemoryFace, job: str) -> JobStory:
        self._note("job_story", job=job)
        return JobStory(
            self._job(job),
            (JobEventView(NOW_MS, 0, "queued", "submitted"), JobEventView(NOW_MS, 1, "running", "")),
            (JobStepView("admit", 1, NOW_MS),),
            (JobEffectView("transaction", "0x77", "intended", NOW_MS, 0),),
            ("job-child",),
        )

    async def watch_job(self: MemoryFace, job: str, *, since: int = 0) -> AsyncIterator[JobView]:
        self._note("watch_job", job=job, since=since)
        shown = None
        while True:
            now = self._job(job)
            if now != shown:
                if now.position > since:
                    yield now
                shown = now
                if now.state in ENDED:
                    return
            async with self._moved:
                if self._jobs[job] == shown:
                    await self._moved.wait()

    async def cancel_job(self: MemoryFace, job: str) -> JobView:
        self._note("cancel_job", job=job)
        if self._job(job).state in ENDED:
            raise MisuseError(f"job {job} has ended")
        return await self._set(replace(self._job(job), state="cancelled"))

    async def retry_job(self: MemoryFace, job: str) -> JobView:
        self._note("retry_job", job=job)
        old = self._job(job)
        return await self._start(old.kind, old.graph, old.reference)

    async def resolve_job(self: MemoryFace, job: str, *, outcome: str) -> JobView:
        self._note("resolve_job", job=job, outcome=outcome)
        return await self._set(replace(self._job(job), state={"retry": "queued"}.get(outcome, outcome)))
