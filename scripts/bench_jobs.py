"""Measures the job queue, as rates and as ratios to raw SQLite in the same run, on the same disk.

    python scripts/bench_jobs.py                 all, in a minute or two
    python scripts/bench_jobs.py cycles          one part: cycles, backlog, interrupted, memory
    python scripts/bench_jobs.py memory --jobs 1000000

A cycle is: submit a job durably, run it, and have its result, durably. The raw cycle is the three transactions that it
cannot do without (insert, claim, complete) on one table with one index, alone or in groups of as many as there are
producers. Everything is `synchronous=FULL`.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
from p2pmem_jobs import (
    Context,
    Database,
    Queue,
    QueueLimits,
    Retention,
    Signal,
    Submission,
    ThreadBlocking,
    open_database,
    tables,
)

BACKLOG = 100_000
ROUNDS = 4  # of which the best counts: a shared machine is slowed by others, and hurried by nobody
INTERRUPTED = 10_000


@dataclass(frozen=True)
class Add:
    a: int
    b: int


@contextmanager
def timed() -> Iterator[list[float]]:
    taken: list[float] = []
    start = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - start)


def make_queue(database: Database, retention: Retention | None = None) -> Queue:
    queue = Queue(database, limits=QueueLimits(live_jobs=1_000_000), retention=retention)

    @queue.handler("add", version=1, concurrency=64)
    async def add(context: Context, args: Add) -> int:
        return args.a + args.b

    return queue


async def produce(queue: Queue, producers: int, jobs: int) -> float:
    """Cycles per second of so many producers, each of which waits for its result before the next job."""

    async def producer() -> None:
        for number in range(jobs // producers):
            assert await (await queue.submit("add", Add(number, 1))).result() == number + 1

    with timed() as taken:
        async with trio.open_nursery() as nursery:
            for _ in range(producers):
                nursery.start_soon(producer)
    return jobs / taken[0]


def raw_cycles(path: Path, group: int, cycles: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE job(id INTEGER PRIMARY KEY, state TEXT, args TEXT, result TEXT)")
    connection.execute("CREATE INDEX queued ON job(id) WHERE state = 'queued'")
    with timed() as taken:
        for start in range(1, cycles + 1, group):
            numbers = [(number,) for number in range(start, start + group)]
            for sql in (
                "INSERT INTO job VALUES (?, 'queued', '{}', NULL)",
                "UPDATE job SET state = 'running' WHERE id = ?",
                "UPDATE job SET state = 'done', result = '1' WHERE id = ?",
            ):
                connection.execute("BEGIN IMMEDIATE")
                for number in numbers:
                    connection.execute(sql, number)
                connection.execute("COMMIT")
    connection.close()
    return cycles / taken[0]


async def bench_cycles(folder: Path) -> None:
    async with open_database(folder / "cycles.db", blocking=ThreadBlocking()) as database:
        queue = make_queue(database)
        async with queue.run():
            await produce(queue, 64, 640)  # warm up
            for producers, jobs, target in ((1, 300, 100), (64, 6_400, 5_000)):
                rates, raws, cpus, commits = [], [], [], database.statistics().commits
                for turn in range(ROUNDS):
                    raws.append(raw_cycles(folder / f"raw {producers} {turn}.db", producers, jobs))
                    cpu = time.process_time()
                    rates.append(await produce(queue, producers, jobs))
                    cpus.append(1e6 * (time.process_time() - cpu) / jobs)
                group = ROUNDS * jobs / (database.statistics().commits - commits)
                print(
                    f"cycles      {producers:3} producers: {max(rates):8,.0f}/s (target {target:,}); "
                    f"raw SQLite {max(raws):8,.0f}/s, ratio {max(rates) / max(raws):.2f}; "
                    f"{group:.1f} jobs a commit; {min(cpus):.0f} us CPU a job"
                )


def _insert_all(submissions: list[Submission], connection: sqlite3.Connection) -> None:
    for submission in submissions:
        submission.insert(connection)


async def fill(queue: Queue, database: Database, kind: str, count: int) -> None:
    for start in range(0, count, 1_000):
        submissions = [queue.prepare(kind, Add(number, 1)) for number in range(start, start + 1_000)]
        await database.write(partial(_insert_all, submissions))


def claim_many(connection: sqlite3.Connection) -> float:
    with timed() as taken:
        for _ in range(900):
            assert len(tables.claim(connection, 2**47, {"add": 1}, 1).jobs) == 1
    return 900 / taken[0]


async def bench_backlog(folder: Path) -> None:
    """The claim itself, one job at a time, with few jobs behind it and with many."""
    best = []
    for count in (4_000, BACKLOG):
        async with open_database(folder / f"backlog {count}.db", blocking=ThreadBlocking()) as database:
            queue = make_queue(database)
            async with queue.run():
                await queue.pause("add")
                with timed() as filled:
                    await fill(queue, database, "add", count)
                best.append(max([await database.write(claim_many) for _ in range(ROUNDS)]))
            print(f"backlog     {count:7,} jobs (submitted at {count / filled[0]:,.0f}/s): {best[-1]:8,.0f} claims/s")
    print(f"backlog     claims are {best[1] / best[0]:.2f} times as fast with it (target: at least 0.80)")


async def bench_interrupted(folder: Path) -> None:
    """Jobs that were waiting when the process was killed: the files are copied while all of them are."""
    signal, entered = Signal(), 0

    def make(database: Database) -> Queue:
        queue = Queue(database, limits=QueueLimits(running_jobs=INTERRUPTED, tasks=2 * INTERRUPTED))

        @queue.handler("wait", version=1, concurrency=INTERRUPTED)
        async def wait(context: Context, args: Add) -> int:
            nonlocal entered
            entered += 1
            if entered == INTERRUPTED:
                signal.notify()
            return await context.wait_until("the end", lambda: 0, on=Signal())

        return queue

    copy = folder / "killed.db"
    async with open_database(folder / "interrupted.db", blocking=ThreadBlocking()) as database:
        queue = make(database)
        async with queue.run(drain_s=0):
            await fill(queue, database, "wait", INTERRUPTED)
            await queue.submit("wait", Add(0, 0))
            while queue.statistics().waiting_here < INTERRUPTED:
                await trio.sleep(0.05)
            await database.checkpoint()
            for suffix in ("", "-wal", ".lock"):
                shutil.copyfile(folder / f"interrupted.db{suffix}", copy.with_name(copy.name + suffix))
    entered = 0
    with timed() as taken:
        async with open_database(copy, blocking=ThreadBlocking()) as database:
            queue = make(database)
            async with queue.run(drain_s=0):
                while entered < INTERRUPTED:
                    await trio.sleep(0.01)
                taken.append(0)
                reached = time.perf_counter()
    total = taken.pop()
    stopped = time.perf_counter() - reached
    print(f"interrupted {INTERRUPTED:,} jobs are running again after {total - stopped:.2f} s (target 5 s)")


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def bench_memory(folder: Path, jobs: int) -> None:
    retention = Retention(ended_jobs=5_000, sweep_every_s=1)
    async with open_database(folder / "memory.db", blocking=ThreadBlocking()) as database:
        queue = make_queue(database, retention)
        async with queue.run():
            await produce(queue, 64, 6_400)
            for part in range(10):
                rate = await produce(queue, 64, jobs // 10)
                size_mb = (folder / "memory.db").stat().st_size / 1e6
                print(
                    f"memory      {(part + 1) * jobs // 10:9,} jobs: {resident_mb():6.1f} MB resident, "
                    f"{size_mb:.1f} MB file, {rate:,.0f}/s"
                )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = ("cycles", "backlog", "interrupted", "memory")
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("--jobs", type=int, default=64_000, help="of the memory part; the target is a million")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: where temporary files go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for part in parts:
            if options.part in (None, part):
                if part == "cycles":
                    await bench_cycles(folder)
                elif part == "backlog":
                    await bench_backlog(folder)
                elif part == "interrupted":
                    await bench_interrupted(folder)
                else:
                    await bench_memory(folder, options.jobs)


if __name__ == "__main__":
    trio.run(main)
