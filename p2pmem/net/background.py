"""A nursery for what a network does by itself, beside the body of its `async with`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks can be cancelled without the body, and whose body raises as if there were no nursery.

    Cancelling the nursery's scope ends its tasks and lets the body go on. Leaving the body cancels the tasks and waits
    for them. An error of the body comes out as it is, not in a group; one of a task cancels the body and comes out in
    a group.
    """
    body_error: BaseException | None = None
    try:
        async with trio.open_nursery() as outer:
            ready = trio.Event()
            held: list[trio.Nursery] = []
            outer.start_soon(_hold, held, ready)
            await ready.wait()
            nursery = held[0]
            try:
                yield nursery
            except BaseException as error:
                body_error = error
                raise
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if body_error is not None and group.exceptions == (body_error,):
            raise body_error from body_error.__cause__
        raise


async def _hold(held: list[trio.Nursery], ready: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        held.append(nursery)
        ready.set()
        await trio.sleep_forever()
