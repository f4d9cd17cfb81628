"""The bounds of a queue, and of what may be asked of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import MisuseError
from .states import State
from .texts import check_name

KEY_CHARACTERS_MAX = 500
PRIORITY_MAX = 1_000_000
TIME_MS_MAX = 2**53  # far beyond any calendar; exact also as a float
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of a queue.

    live_jobs: jobs that have not ended; more are refused. running_jobs: that run at once; each kind has a limit too.
    tasks: running and waiting ones together, which have a task each. deaths: times that the process may die while a
    job runs, without a step done in between, before the job counts as the poison and fails.
    look_every_s: how often a wait looks without having been woken.
    """

    live_jobs: int = 250_000
    running_jobs: int = 64
    tasks: int = 20_000
    deaths: int = 5
    look_every_s: float = 60.0

    def __post_init__(self) -> None:
        counts = (self.live_jobs, self.running_jobs, self.tasks, self.deaths + 1)
        if any(type(count) is not int or count < 1 for count in counts) or not self.look_every_s > 0:
            raise MisuseError(f"{self}: limits are positive, and numbers of jobs whole")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs are kept, and how many at most; looked at every `sweep_every_s`.

    A dedupe key is free again when its job is forgotten. `math.inf` keeps for ever.
    """

    succeeded_s: float = 7 * _DAY_S
    failed_s: float = 30 * _DAY_S
    cancelled_s: float = 7 * _DAY_S
    ended_jobs: int = 100_000
    sweep_every_s: float = 60.0

    def __post_init__(self) -> None:
        if not all(kept_s >= 0 for kept_s in (self.succeeded_s, self.failed_s, self.cancelled_s)):
            raise MisuseError(f"{self}: no job is kept for less than no time")
        if type(self.ended_jobs) is not int or self.ended_jobs < 0 or not self.sweep_every_s > 0:
            raise MisuseError(f"{self}: ended_jobs is a whole number from 0, and sweep_every_s is positive")

    def before_ms(self, now_ms: int) -> dict[State, int]:
        """Of each final state, the time before which a job ended that is not kept any more."""
        kept_s = {State.SUCCEEDED: self.succeeded_s, State.FAILED: self.failed_s, State.CANCELLED: self.cancelled_s}
        return {state: now_ms - span_ms(seconds, "what is kept") for state, seconds in kept_s.items()}


def span_ms(seconds: float, what: str) -> int:
    """So many seconds in milliseconds; for ever is far beyond any calendar. Errors: `MisuseError`."""
    if math.isnan(seconds):
        raise MisuseError(f"{what} is a number of seconds, not {seconds!r}")
    return round(min(seconds * 1000, TIME_MS_MAX))


def check_names(dedupe_key: str | None, parent: str | None, owner: str | None) -> None:
    """Errors: `MisuseError`."""
    for what, text in (("a dedupe key", dedupe_key), ("a parent", parent), ("an owner", owner)):
        if text is not None:
            check_name(text, what, KEY_CHARACTERS_MAX)


def check_numbers(priority: int, run_at_ms: int | None, deadline_ms: int | None) -> None:
    """Errors: `MisuseError`. A bool and a float are no ints here: the file would keep them as others."""
    if type(priority) is not int or not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise MisuseError(f"a priority is an int within {PRIORITY_MAX} of 0, not {priority!r}")
    for what, time_ms in (("run_at_ms", run_at_ms), ("deadline_ms", deadline_ms)):
        if time_ms is not None and (type(time_ms) is not int or not -TIME_MS_MAX <= time_ms <= TIME_MS_MAX):
            raise MisuseError(f"{what} is a time in whole milliseconds since 1970, not {time_ms!r}")
