"""What the queue tells about its jobs: values, read from the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .states import FINAL, State


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, in units of its own: `done` of `total` (0 = not known), and a text for people."""

    done: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is now.

    seq: its place in the order of submission, and the cursor of lists. args, result: texts of `codec`. attempt: number
    of the present or last run, 0 before the first. failures: runs that ended in an error. parked: why no handler may
    run it, if none may. detail: what it waits for, or why it is where it is. deadline_ms: when it fails unless ended.
    """

    seq: int
    id: str
    kind: str
    version: int
    args: str
    state: State
    priority: int
    run_at_ms: int
    deadline_ms: int | None
    dedupe_key: str | None
    owner: str | None
    parent: str | None
    retry_of: str | None
    attempt: int
    failures: int
    parked: str | None
    detail: str
    submitted_ms: int
    ended_ms: int | None
    result: str | None
    error: str | None

    @property
    def ended(self) -> bool:
        return self.state in FINAL


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a job's state, of what it waits for, or of its progress. `number` counts all changes of a state in a
    file; what is told between two of them has the number of the one before."""

    number: int
    job_id: str
    kind: str
    at_ms: int
    attempt: int
    state: State
    reason: str
    progress: Progress | None = None


STEP, WAIT, SLEEP = "step", "wait", "sleep"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that is done, or a wait or a sleep that was begun: `what` says which.

    result: a text of `codec`; of a wait or a sleep, the time when it ends. ended_ms: when it was stored.
    """

    name: str
    attempt: int
    ended_ms: int
    result: str
    what: str


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """An effect outside: intended, and done once that is known. `note` says what to look for outside."""

    key: str
    note: str
    state: str
    intended_ms: int
    done_ms: int | None


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known of a job: itself, its last 1,000 changes, steps and effects, and the jobs it submitted."""

    job: JobRecord
    events: tuple[Event, ...]
    steps: tuple[StepRecord, ...]
    effects: tuple[EffectRecord, ...]
    children: tuple[str, ...]
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts of jobs: in the file, with a task in this process, and since the queue was started.

    live: not ended. running_here, waiting_here: with a task. submitted, claimed, ended_here: since the start.
    """

    live: int
    ended: int
    running_here: int
    waiting_here: int
    submitted: int
    claimed: int
    ended_here: int


# Between the queue and its tables


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that is to be submitted."""

    id: str
    kind: str
    version: int
    args: str
    priority: int
    run_at_ms: int
    deadline_ms: int | None
    dedupe_key: str | None
    owner: str | None
    parent: str | None
    retry_of: str | None
    submitted_ms: int

    @classmethod
    def again(cls, old: JobRecord, new_id: str, now_ms: int) -> NewJob:
        """The same job once more, from now on and without a deadline."""
        return cls(
            id=new_id,
            kind=old.kind,
            version=old.version,
            args=old.args,
            priority=old.priority,
            run_at_ms=now_ms,
            deadline_ms=None,
            dedupe_key=old.dedupe_key,
            owner=old.owner,
            parent=old.parent,
            retry_of=old.id,
            submitted_ms=now_ms,
        )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that is now running.

    args, done: as the file has them, to be decoded by its run. Where they are damaged that run fails, and no other.
    """

    seq: int
    id: str
    kind: str
    version: int
    args: bytes
    attempt: int
    failures: int
    deadline_ms: int | None
    owner: str | None
    look_first: bool
    has_work: bool  # there may be steps and effects of earlier runs
    done: Mapping[str, bytes]  # results of their steps, by name


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim found: jobs to run, ids that ended because their deadline came, ids that ended because their rows
    are damaged, and kinds that became due.

    look_again_ms: when the next job becomes due or reaches its deadline; None when none will.
    """

    jobs: tuple[Claimed, ...]
    expired: tuple[str, ...]
    damaged: tuple[str, ...]
    due: frozenset[str]
    look_again_ms: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended a job: succeeded with a result, or not, with the reason."""

    state: State
    reason: str
    result: str | None
