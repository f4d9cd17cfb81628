"""A queue in virtual time, wholly deterministic: memory, inline IO, trio's clock, ids from a seed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
import trio
import trio.testing
from p2pmem_jobs import Context, Database, InlineBlocking, Queue, QueueLimits, Retention, TrioClock, open_database
from p2pmem_jobs.database import no_crash
from trio.testing import MockClock

START_MS = 1_800_000_000_000
Register = Callable[[Queue], None]


class Rig:
    """Makes queues, one after the other, on one file or in memory, as a process would that starts again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = TrioClock(START_MS)
        self.random = random.Random(7)
        self.database: Database

    @asynccontextmanager
    async def open(
        self,
        register: Register,
        *,
        memory: bool = False,
        limits: QueueLimits | None = None,
        retention: Retention | None = None,
        crash_point: Callable[[str], None] = no_crash,
        drain_s: float = 10.0,
        clock_is_right: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[Queue]:
        path = ":memory:" if memory else self.path
        async with open_database(path, blocking=InlineBlocking()) as self.database:
            queue = Queue(
                self.database,
                clock=self.clock,
                random_bytes=self.random.randbytes,
                limits=limits,
                retention=retention,
                crash_point=crash_point,
                clock_is_right=clock_is_right,
            )
            register(queue)
            async with queue.run(drain_s=drain_s):
                yield queue


@pytest.fixture
async def rig(autojump_clock: MockClock, tmp_path: Path) -> Rig:
    # pytest-trio takes the clock from the arguments of the test itself: each test names it too
    return Rig(tmp_path / "jobs.db")


Opened = AbstractAsyncContextManager[Queue]


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Add:
    a: int
    b: int


@dataclass(frozen=True)
class Sum:
    total: int
    colour: Colour = Colour.RED
    raw: bytes = b"\x00\xff"


@dataclass(frozen=True)
class Note:
    text: str


def adding(queue: Queue) -> None:
    @queue.handler("add", version=1)
    async def add(context: Context, args: Add) -> Sum:
        return Sum(args.a + args.b)


async def settle() -> None:
    """Lets everything happen that needs no time."""
    await trio.testing.wait_all_tasks_blocked()


async def raise_inside(opened: Opened) -> None:
    async with opened:
        await settle()
        raise ValueError("mine")
