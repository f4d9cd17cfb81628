"""A nursery for tasks that serve a block: an error of the block comes out as it is, not in a group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_plain_nursery() -> AsyncIterator[trio.Nursery]:
    """Like `trio.open_nursery`, for a block whose author did not write the tasks.

    An error of the block, or of a single task, is raised without a group around it. When a task fails the block is
    cancelled, and the error of the task is raised. Cancelled from outside, it is cancelled like any nursery.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                if nursery.cancel_scope.cancel_called:
                    raise  # a task failed; the nursery raises why
                failure = error
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
    if failure is not None:
        raise failure
