"""Where a test may have this process killed: `P2PMEM_CRASH_AT`, which is unset everywhere else.

It names points of the code, one behind the other with `>` between them; when the last is reached, after the others in
their order, the process is gone as by `kill -9`. `review/admit/before>database.after_commit` so means: a verdict is
signed and on disk, and nobody was told. Points are those of jobs (`<kind>/<step>/before`, `/after` and more, see
`p2pmem_jobs.context`), of the database (`database.before_commit`, `database.after_commit`) and `roster/before`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Final

from p2pmem_jobs import CrashPoint
from p2pmem_jobs.database import no_crash

VARIABLE: Final = "P2PMEM_CRASH_AT"


def from_environment(environment: Mapping[str, str] = os.environ, die: Callable[[], None] | None = None) -> CrashPoint:
    """The crash point that the environment asks for; without one, a function that does nothing."""
    asked = environment.get(VARIABLE, "")
    return _Sequence(asked.split(">"), die or _die) if asked else no_crash


class _Sequence:
    """Waits for points in their order. Points are reached in the event loop and in the writer's thread, one by one."""

    def __init__(self, points: list[str], die: Callable[[], None]) -> None:
        self._points = points
        self._die = die

    def __call__(self, name: str) -> None:
        if self._points and name == self._points[0]:
            del self._points[0]
            if not self._points:
                self._die()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
