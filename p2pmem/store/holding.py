"""A lock that costs a turn of the event loop only when somebody else has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def hold(lock: trio.Lock) -> AsyncIterator[None]:
    """Hold `lock` in the block. Cancelled while it waits, it does not. Not a checkpoint when the lock is free."""
    try:
        lock.acquire_nowait()
    except trio.WouldBlock:
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()
