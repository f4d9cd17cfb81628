"""Values of the face that are about jobs. Import them from `p2pmem.face`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENDED_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "outcome_unknown"})
"""In which a job runs no more, unless a person says so."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job: `state` is queued, running, waiting, succeeded, failed, cancelled or outcome_unknown.

    `result` is a JSON value when it succeeded; `waiting_for` says in words what is missing. `agent` is whose job it is.
    `updated_ms`: when it ended; of one that has not, the moment at which this was so.
    `next_try_ms`: a queued job begins no sooner; 0: as soon as it can. `position`: the last change that this shows, in
    what `watch_job` tells, and 0 elsewhere. `warnings` say what to know of data that were just handed in with it; they
    are not kept.
    """

    id: str
    kind: str
    state: str
    reference: str
    graph: str
    created_ms: int
    updated_ms: int
    attempts: int
    progress: str
    waiting_for: str
    error: str
    result: object
    agent: str = ""
    next_try_ms: int = 0
    position: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEventView:
    """A change of a job's state, or of its progress. `reason` says in words why."""

    at_ms: int
    attempt: int
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobStepView:
    """A step that is done and will not be done again."""

    name: str
    attempt: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class JobEffectView:
    """Something that the job does outside of this node. `note` says what to look for there; `done_ms` 0: not known."""

    key: str
    note: str
    state: str
    intended_ms: int
    done_ms: int


@dataclass(frozen=True, slots=True)
class JobWaitView:
    """A wait or a sleep that was begun, and when it ends at the latest, over restarts too."""

    name: str
    begun_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class AbsentView:
    """Somebody whom a job waits for. `last_seen_ms` 0: not since this node was started."""

    agent: str
    label: str
    online: bool
    last_seen_ms: int


@dataclass(frozen=True, slots=True)
class JobStory:
    """All that is known of a job, oldest first.

    `children` are the ids of jobs that it submitted, `parent` is the one that submitted it, `retry_of` the one that it
    tries again. `absent` are those whom it waits for, and `open_until_ms` says how long; 0: without an end.
    """

    job: JobView
    events: tuple[JobEventView, ...]
    steps: tuple[JobStepView, ...]
    effects: tuple[JobEffectView, ...]
    children: tuple[str, ...]
    waits: tuple[JobWaitView, ...] = ()
    absent: tuple[AbsentView, ...] = ()
    open_until_ms: int = 0
    parent: str = ""
    retry_of: str = ""
