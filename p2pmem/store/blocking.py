"""The shape of the seam for blocking calls, as `p2pmem_jobs.blocking` fills it: in threads, or inline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Blocking(Protocol):
    """Runs a blocking function and returns what it returns.

    On cancellation: a function that has not begun never begins; one that has begun is waited for, and its result is
    returned.
    """

    async def run(self, fn: Callable[[*Ts], T], *args: *Ts) -> T: ...
