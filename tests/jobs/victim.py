"""A process that works on jobs and is killed for it. Run by test_kill.py: victim.py DATABASE WORLD MODE...

The world outside is a file of lines, appended to and synced: one line per effect. What is acknowledged is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import trio
from p2pmem_jobs import Context, Happened, Looked, Queue, ThreadBlocking, open_database


@dataclass(frozen=True)
class Send:
    number: int


class World:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def do(self, line: str) -> str:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)
        return f"did {line}"

    async def look(self, line: str) -> Happened[str] | Looked:
        done = self._path.read_text().splitlines() if self._path.exists() else []
        return Happened(f"did {line}") if line in done else Looked.NOT_HAPPENED


def register(queue: Queue, world: World) -> None:
    @queue.handler("send", version=1, concurrency=8)
    async def send(context: Context, args: Send) -> str:
        line = str(args.number)
        await context.step("sign", lambda: f"signed {line}")
        await context.step_rows("book", lambda c: c.execute("INSERT INTO book VALUES (?)", (args.number,)).rowcount)
        await context.sleep("nap", 0.001)
        return await context.effect("send", lambda: world.do(line), lambda: world.look(line))


async def main(database_path: str, world_path: str, mode: str, *rest: str) -> None:
    left = int(rest[1]) if mode == "die-at" else 0

    def crash_point(name: str) -> None:
        nonlocal left
        if mode == "die-at" and name == rest[0]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    async with open_database(database_path, blocking=ThreadBlocking(), crash_point=crash_point) as database:
        await database.migrate("book", ["CREATE TABLE book(number INTEGER) STRICT"])
        queue = Queue(database, crash_point=crash_point)
        register(queue, World(Path(world_path)))
        async with queue.run(drain_s=0):
            if mode == "load":
                await load(queue, int(rest[0]))
            elif mode == "die-at":
                await one_by_one(queue, 3)
            await finish(queue)


async def load(queue: Queue, first: int) -> None:
    """Submits without end, and says which jobs were acknowledged."""
    number = first

    async def producer() -> None:
        nonlocal number
        while True:
            number += 1
            mine = number
            job = await queue.submit("send", Send(mine), dedupe_key=str(mine))
            os.write(1, f"{mine}\n".encode())
            await job.result()

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(producer)


async def one_by_one(queue: Queue, count: int) -> None:
    for number in range(count):
        job = await queue.submit("send", Send(number), dedupe_key=str(number))
        os.write(1, f"{number}\n".encode())
        await job.result()


async def finish(queue: Queue) -> None:
    """Waits until every job that is in the file has ended."""
    before: int | None = None
    while page := await queue.list(limit=1_000, before_seq=before):
        for record in page:
            await queue.job(record.id).result()
        before = page[-1].seq


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
