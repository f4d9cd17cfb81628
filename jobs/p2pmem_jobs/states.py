"""The states of a job, and every way from one to another.

A job is *live* until it has ended. The rules:

* It is submitted `queued`, and runs when it is due, unpaused, accepted by a handler, and there is a place for it.
* `running` and `waiting` jobs have a task in this process. Waiting holds no place among the running ones. Their run has
  a number, the attempt; what is written for a run is refused when the job has another attempt, or ended, meanwhile.
* A run ends in `succeeded`; in `failed`; in `queued`, to be tried again, or because the process stopped; in `cancelled`
  when somebody asked for it. But when an effect outside was begun and is not known to have happened or not, it never
  ends in `failed` or `cancelled`: it is looked up by another run, and where no other run may be, or looking does not
  tell, the job is `outcome_unknown`.
* `outcome_unknown` is left only by a person: `succeeded`, `failed`, or `queued` again.
* After a start no job runs: all that were `running` or `waiting` are `queued` again, or `failed` when they were there
  each time that the process died, or `outcome_unknown` when the file was restored and an effect was under way.
* `succeeded`, `failed` and `cancelled` are final. Trying again is a new job.

Every change is one row of the job's history: number, time, attempt, state, reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, unique


@unique
class State(Enum):
    """What a job is doing. The values are stored."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    OUTCOME_UNKNOWN = "outcome_unknown"


CHANGES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED, State.OUTCOME_UNKNOWN}),
    State.RUNNING: frozenset(
        {State.QUEUED, State.WAITING, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.OUTCOME_UNKNOWN}
    ),
    State.WAITING: frozenset({State.QUEUED, State.RUNNING, State.FAILED, State.CANCELLED, State.OUTCOME_UNKNOWN}),
    State.OUTCOME_UNKNOWN: frozenset({State.QUEUED, State.SUCCEEDED, State.FAILED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}

FINAL = frozenset(state for state, to in CHANGES.items() if not to)
LIVE = frozenset(State) - FINAL
HAS_TASK = frozenset({State.RUNNING, State.WAITING})
# A dedupe key is taken while its job is in one of these: a job that failed or was cancelled may be submitted anew.
HOLDS_DEDUPE_KEY = frozenset(State) - {State.FAILED, State.CANCELLED}

assert set(CHANGES) == set(State)
assert frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED}) == FINAL


def in_states(states: Iterable[State]) -> str:
    """The states as SQL has them: constants, so that partial indexes are used."""
    return "(" + ", ".join(f"'{state.value}'" for state in sorted(states, key=lambda state: state.value)) + ")"
