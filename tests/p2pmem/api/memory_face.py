"""A `Face` in memory, the counterpart of server, client and command line in their tests. It stores, and signs nothing.

It keeps the promises of `p2pmem.face.Face` that the contract test asks for, with jobs that end when a test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import trio

from p2pmem.face import (
    AgentView,
    ChangeEvent,
    DraftView,
    GraphView,
    JobView,
    JoinRequestView,
    ReviewView,
    SignView,
    VersionView,
)
from p2pmem.face_peers import DelegationView, PeerDetail

from .memory_drafts import MemoryDrafts
from .memory_graphs import MemoryGraphs
from .memory_jobs import MemoryJobs
from .memory_reading import MemoryReading
from .memory_trust import MemoryTrust
from .memory_values import AGENT, NOW_MS, OTHER, ROOT, SEAL


class MemoryFace(MemoryGraphs, MemoryDrafts, MemoryJobs, MemoryReading, MemoryTrust):
    """One node with one agent. `hold` makes jobs wait until `finish`; `fail` is raised by the next call of a name."""

    def __init__(self) -> None:
        self.hold = False
        self.fail: dict[str, Exception] = {}
        self.calls: list[tuple[str, dict[str, object]]] = []
        self._graphs: dict[str, GraphView] = {}
        self._delegations: list[DelegationView] = []
        self._banned: dict[str, PeerDetail] = {}
        self._drafts: dict[tuple[str, str], tuple[DraftView, bytes]] = {}
        self._versions: dict[tuple[str, str], tuple[VersionView, bytes]] = {}
        self._jobs: dict[str, JobView] = {}
        self._requests = {"r1": JoinRequestView("r1", "", OTHER, "Bob", ("reader",), NOW_MS)}
        self._reviews = {
            "v1": ReviewView("v1", f"{AGENT}/findings", f"{OTHER}/x@1", ROOT, SEAL, AGENT, OTHER, NOW_MS, "manual")
        }
        self._events: list[ChangeEvent] = []
        self._agents = {AGENT: AgentView(AGENT, "me", False)}
        self._prepared: dict[str, SignView] = {}
        self._numbers = itertools.count(1)
        self._moved = trio.Condition()

    # What a test does to it

    async def finish(self, job: str, state: str = "succeeded", *, error: str = "", result: object = None) -> None:
        await self._set(replace(self._jobs[job], state=state, error=error, result=result, waiting_for=""))

    async def progress(self, job: str, text: str) -> None:
        await self._set(replace(self._jobs[job], state="waiting", waiting_for=text))

    def add_version(self, version: VersionView, content: bytes = b"") -> None:
        self._versions[version.graph, version.reference.partition("@")[0]] = (version, content)

    def add_events(self, events: Iterable[ChangeEvent]) -> None:
        self._events += events

    def _note(self, name: str, /, **arguments: object) -> None:
        self.calls.append((name, arguments))
        error = self.fail.pop(name, None)
        if error is not None:
            raise error

    async def _set(self, job: JobView) -> JobView:
        job = self._jobs[job.id] = replace(job, position=job.position + 1)
        async with self._moved:
            self._moved.notify_all()
        return job

    async def _changed(self, what: str, graph: str, reference: str = "") -> None:
        self._events.append(ChangeEvent(len(self._events) + 1, what, graph, reference, NOW_MS))
        async with self._moved:
            self._moved.notify_all()

    async def _start(self, kind: str, graph: str, reference: str, result: object = None) -> JobView:
        number = next(self._numbers)
        job = JobView(f"job-{number}", kind, "running", reference, graph, NOW_MS, NOW_MS, 1, "", "", "", None)
        if self.hold:
            return await self._set(job)
        return await self._set(replace(job, state="succeeded", result=result))
