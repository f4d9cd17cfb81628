"""What a node does by the clock and not because something happened: chores, driven by APScheduler.

A chore that fails because the disk or a peer did is logged and comes again at its next time. Chores do not overlap
themselves, and those that a sleeping laptop missed run once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from p2pmem_jobs import Blocking, Clock, OutsideError as NotStoredError
from p2pmem_jobs.scheduling import TrioScheduler
from p2pmem_protocol.errors import OutsideError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chore:
    """Something to do every so often."""

    name: str
    every_s: int
    do: Callable[[], Awaitable[object]]


async def run_timetable(
    chores: tuple[Chore, ...],
    clock: Clock,
    blocking: Blocking,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Do chores until cancelled; a chore that is under way is cancelled with it. `clock` goes on evenly, so that what
    is done to the wall clock puts no chore off."""
    scheduler = TrioScheduler(clock=clock, blocking=blocking)
    for chore in chores:
        scheduler.add_job(
            _attempt,
            "interval",
            args=(chore,),
            seconds=chore.every_s,
            id=chore.name,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=None,
        )
    await scheduler.serve(task_status=task_status)


async def _attempt(chore: Chore) -> None:
    try:
        await chore.do()
    except (OutsideError, NotStoredError) as error:
        log.warning("chore.failed", extra={"chore": chore.name, "why": str(error)})
