"""Runs users' SPARQL in worker processes, over snapshots of the store that nobody writes.

A query may loop, eat memory or crash the native engine; here it takes a worker with it and nothing else. The wall has
four parts: the dataset is set by the call (the text cannot widen it), the snapshot is read-only, the process has no
sockets (`p2pmem.store.confine`), and it is killed at the deadline.

A worker keeps its snapshot and its warmth from query to query. A snapshot is renewed when the store has moved and
`min_interval_ms` has passed, or at once when the caller asks for a position it has not reached. A worker that nobody
asked for `idle_ms` ends, and with the last one goes the snapshot: what was dropped since then is in no file of theirs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn, Protocol

import trio
from p2pmem_jobs.blocking import Blocking
from p2pmem_protocol.errors import BugError, MisuseError, OutsideError

from p2pmem.store.projection import OxigraphProjection
from p2pmem.store.query import (
    AnswerKind,
    QueryAnswer,
    QueryBusy,
    QueryLimits,
    QueryRefused,
    QuerySyntax,
    QueryTimeout,
    QueryTooLarge,
    StoreBehind,
    screen,
)
from p2pmem.store.query_process import MAX_FRAME_BYTES, Reply, Request, frame_length, pack

log = logging.getLogger(__name__)

_HEAD_BYTES = 4
_CHUNK_BYTES = 256 * 1024
_START_S = 30


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """What the workers have done since they were opened."""

    answered: int
    refused: int
    """By syntax, by what they asked for, or by size."""
    timed_out: int
    crashed: int
    """Workers that died by themselves: out of memory, or an engine that could not bear the query."""
    snapshots: int
    waiting: int
    idle: int = 0
    """Workers that are kept for the next query."""


class Queries(Protocol):
    """Who answers users' queries: worker processes, or, for stores in memory, this process."""

    async def query(
        self,
        sparql: str,
        *,
        default_graphs: Sequence[str],
        named_graphs: Sequence[str] | None = None,
        at_least: int | None = None,
        limits: QueryLimits | None = None,
    ) -> QueryAnswer: ...

    async def forget(self) -> None: ...

    def statistics(self) -> QueryStatistics: ...


class _Counters:
    def __init__(self) -> None:
        self.answered = self.refused = self.timed_out = self.crashed = self.snapshots = self.waiting = 0

    def show(self) -> QueryStatistics:
        return QueryStatistics(self.answered, self.refused, self.timed_out, self.crashed, self.snapshots, self.waiting)


class _Snapshot:
    """A copy of the store in a directory of its own, removed when it is old and no worker has it open."""

    def __init__(self, path: Path, emptied: int, position: int, described: int, taken_at: float) -> None:
        self.path = path
        self.emptied = emptied
        self.position = position
        self.described = described
        self.taken_at = taken_at
        self.users = 0


class _Snapshots:
    """Makes snapshots and removes them."""

    def __init__(
        self, projection: OxigraphProjection, directory: Path, blocking: Blocking, min_interval_ms: int
    ) -> None:
        self._projection = projection
        self._directory = directory
        self._blocking = blocking
        self._min_interval_s = min_interval_ms / 1_000
        self._lock = trio.Lock()
        self._current: _Snapshot | None = None
        self.taken = 0

    async def acquire(self, at_least: int) -> _Snapshot:
        """A snapshot at this position or beyond, to be given back by `release`. The store must have reached it."""
        async with self._lock:
            current = self._current
            if current is None or self._is_stale(current, at_least):
                current = await self._renew(current)
            current.users += 1
            return current

    async def release(self, snapshot: _Snapshot) -> None:
        """Done with it. Cancellation waits until it is removed, if it was the last use of an old one."""
        assert snapshot.users > 0
        snapshot.users -= 1
        if snapshot.users == 0 and snapshot is not self._current:
            await self._remove(snapshot)

    async def forget_unused(self) -> None:
        """Remove the current snapshot too if no worker has it open; the next query takes a new one."""
        async with self._lock:
            current = self._current
            if current is not None and current.users == 0:
                self._current = None
                await self._remove(current)

    def _is_stale(self, snapshot: _Snapshot, at_least: int) -> bool:
        position = self._projection.position
        if snapshot.position < at_least or snapshot.emptied != self._projection.emptied:
            return True
        if snapshot.described < min(at_least, self._projection.described):
            return True
        return snapshot.position < position and trio.current_time() - snapshot.taken_at >= self._min_interval_s

    async def _renew(self, old: _Snapshot | None) -> _Snapshot:
        path = self._directory / f"snapshot-{self.taken}"
        self.taken += 1
        taken_at = trio.current_time()
        with trio.CancelScope(shield=True):
            emptied, described = self._projection.emptied, self._projection.described
            position = await self._projection.backup(path)
            fresh = self._current = _Snapshot(path, emptied, position, described, taken_at)
            if old is not None and old.users == 0:
                await self._remove(old)
        return fresh

    async def _remove(self, snapshot: _Snapshot) -> None:
        with trio.CancelScope(shield=True):
            await self._blocking.run(_remove_folder, snapshot.path)


class _Worker:
    """One process. It is used by one query at a time and never after it failed."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._buffer = bytearray()
        self.idle_since_s = 0.0
        self.snapshot: _Snapshot | None = None

    @staticmethod
    async def start() -> _Worker:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-s", "-m", "p2pmem.store.query_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=worker_environment(),
            cwd="/",
        )
        worker = _Worker(process)
        try:
            with trio.fail_after(_START_S):
                await worker._frame()
        except (EOFError, trio.TooSlowError) as error:
            await worker.kill()
            raise OutsideError(f"a query worker did not start within {_START_S} s; free some memory") from error
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, request: Request) -> tuple[Reply, bytes]:
        """`trio.BrokenResourceError` or `EOFError` if the process dies. Cancelled half way it must be `kill`ed."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(pack(json.dumps(asdict(request)).encode()))
        reply = Reply(**json.loads(await self._frame()))
        return reply, b"" if reply.error else await self._frame()

    async def kill(self) -> int:
        """Stop it, whatever it does; its return code."""
        with trio.CancelScope(shield=True):
            self._process.kill()
            await self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                await stream.aclose()
        code = self._process.returncode
        assert code is not None
        return code

    async def ended(self) -> int:
        """The return code of a process that closed its pipe by itself."""
        with trio.move_on_after(1):
            await self._process.wait()
        return await self.kill()

    async def _frame(self) -> bytes:
        length = frame_length(await self._exactly(_HEAD_BYTES))
        if length > MAX_FRAME_BYTES:
            raise BugError(f"a worker announced a frame of {length} bytes, at most {MAX_FRAME_BYTES}")
        return await self._exactly(length)

    async def _exactly(self, count: int) -> bytes:
        assert self._process.stdout is not None
        while len(self._buffer) < count:
            chunk = await self._process.stdout.receive_some(_CHUNK_BYTES)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


class QueryWorkers:
    """The pool. Made by `open_query_workers`."""

    def __init__(
        self, projection: OxigraphProjection, snapshots: _Snapshots, workers: int, max_waiting: int, idle_ms: int
    ) -> None:
        self._projection = projection
        self._snapshots = snapshots
        self._idle_s = idle_ms / 1_000
        self._idle: list[_Worker] = []
        """The one that was used last is last, and the first to be used again."""
        self._one_is_idle = trio.Event()
        self._free = trio.Semaphore(workers)
        self._max_waiting = max_waiting
        self._counters = _Counters()

    async def query(
        self,
        sparql: str,
        *,
        default_graphs: Sequence[str],
        named_graphs: Sequence[str] | None = None,
        at_least: int | None = None,
        limits: QueryLimits | None = None,
    ) -> QueryAnswer:
        """Answer a user's query over exactly these graphs.

        `default_graphs` are what a pattern outside GRAPH sees, merged; `named_graphs` are what GRAPH can see, by
        default none. The caller decides by rights; a dataset clause in the text is refused. `at_least` is a ledger
        position that the answer must have seen; without it the answer may be `min_interval_ms` old, and
        `answer.position` says what it saw.

        Errors: `QuerySyntax`, `QueryRefused`, `QueryTooLarge`, `QueryTimeout`; `QueryBusy` and `StoreBehind` when
        asking again may help; `DiskError` while the disk refuses what is asked for. Cancellation: the worker is stopped
        if it has begun.
        """
        used = limits or QueryLimits()
        self._screen(sparql)
        await _reach(self._projection, at_least, used)
        await self._wait_for_a_worker(used)
        try:
            return await self._run(_request(sparql, default_graphs, named_graphs or (), used), at_least or 0)
        finally:
            self._free.release()

    async def forget(self) -> None:
        """End the workers that wait, and remove their snapshot. One that is busy takes a new one for its next query if
        the store was emptied, or ends when it has been idle."""
        while self._idle:
            await self._retire(self._idle.pop())
        await self._snapshots.forget_unused()

    async def retire_idle(self) -> None:
        """End workers that nobody asked for `idle_ms`. Runs until cancelled, which waits for one that is ending."""
        while True:
            while self._idle:
                due_s = self._idle[0].idle_since_s + self._idle_s
                if due_s > trio.current_time():
                    await trio.sleep_until(due_s)
                else:
                    await self._retire(self._idle.pop(0))
            await self._snapshots.forget_unused()
            if not self._idle:
                self._one_is_idle = trio.Event()
                await self._one_is_idle.wait()

    def statistics(self) -> QueryStatistics:
        """Counters since the workers were opened, and how many are idle now."""
        self._counters.snapshots = self._snapshots.taken
        self._counters.waiting = self._free.statistics().tasks_waiting
        return replace(self._counters.show(), idle=len(self._idle))

    def _screen(self, sparql: str) -> None:
        try:
            screen(sparql)
        except QueryRefused:
            self._counters.refused += 1
            raise

    async def _wait_for_a_worker(self, limits: QueryLimits) -> None:
        if self._free.statistics().tasks_waiting >= self._max_waiting:
            raise QueryBusy(f"{self._max_waiting} queries wait for a worker already; ask again later")
        with trio.move_on_after(limits.wait_ms / 1_000):
            await self._free.acquire()
            return
        raise QueryBusy(f"no worker was free within {limits.wait_ms} ms; ask again later")

    async def _run(self, request: Request, at_least: int) -> QueryAnswer:
        worker = await self._check_out(at_least)
        assert worker.snapshot is not None
        healthy = False
        try:
            reply, body = await self._ask(worker, replace(request, snapshot=str(worker.snapshot.path)))
            healthy = True
        finally:
            if healthy:
                worker.idle_since_s = trio.current_time()
                self._idle.append(worker)
                self._one_is_idle.set()
            else:
                await self._retire(worker)
        if reply.error:
            self._counters.refused += 1
            _raise(reply)
        self._counters.answered += 1
        return QueryAnswer(AnswerKind(reply.kind), reply.position, reply.truncated, reply.row_count, body)

    async def _check_out(self, at_least: int) -> _Worker:
        """A worker with a snapshot that is new enough. It is the caller's to give back or to retire."""
        worker = await self._idle_worker() or await _Worker.start()
        try:
            snapshot = await self._snapshots.acquire(at_least)
        except BaseException:
            await self._retire(worker)
            raise
        old, worker.snapshot = worker.snapshot, snapshot
        if old is not None:
            await self._snapshots.release(old)
        return worker

    async def _idle_worker(self) -> _Worker | None:
        """A worker that waits for work; those that ended while they waited are put away."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            log.warning("query.worker_gone")
            await self._retire(worker)
        return None

    async def _retire(self, worker: _Worker) -> None:
        with trio.CancelScope(shield=True):
            await worker.kill()
            if worker.snapshot is not None:
                await self._snapshots.release(worker.snapshot)

    async def _ask(self, worker: _Worker, request: Request) -> tuple[Reply, bytes]:
        try:
            with trio.move_on_after(request.time_ms / 1_000):
                return await worker.ask(request)
        except (EOFError, trio.BrokenResourceError):
            code = await worker.ended()
            self._counters.crashed += 1
            log.warning("query.crashed", extra={"code": code})
            raise _crash(code, request) from None
        self._counters.timed_out += 1
        log.info("query.timed_out", extra={"time_ms": request.time_ms})
        raise QueryTimeout(f"the query did not end within {request.time_ms} ms and was stopped; ask for less")

    async def _close(self) -> None:
        for worker in self._idle:
            await self._retire(worker)
        self._idle.clear()


class InlineQueries:
    """The same for a store in memory, in this process: for tests and virtual time.

    Same checks, same dataset, same cuts by rows and bytes; no time and no memory limit, and a query that crashes the
    engine crashes the process. Never for text of others.
    """

    def __init__(self, projection: OxigraphProjection) -> None:
        self._projection = projection
        self._counters = _Counters()

    async def query(
        self,
        sparql: str,
        *,
        default_graphs: Sequence[str],
        named_graphs: Sequence[str] | None = None,
        at_least: int | None = None,
        limits: QueryLimits | None = None,
    ) -> QueryAnswer:
        """As `QueryWorkers.query`."""
        used = limits or QueryLimits()
        try:
            screen(sparql)
            await _reach(self._projection, at_least, used)
            found = await self._projection.query(sparql, default_graphs, named_graphs or (), limits=used)
        except MisuseError:
            self._counters.refused += 1
            raise
        self._counters.answered += 1
        return found

    async def forget(self) -> None:
        """There is no snapshot."""

    def statistics(self) -> QueryStatistics:
        """Counters since it was made."""
        return self._counters.show()


@asynccontextmanager
async def open_query_workers(
    projection: OxigraphProjection,
    directory: Path,
    blocking: Blocking,
    *,
    workers: int = 2,
    max_waiting: int = 64,
    min_interval_ms: int = 200,
    idle_ms: int = 60_000,
) -> AsyncIterator[QueryWorkers]:
    """Workers over `projection`, which is on disk; `directory`, on the same file system, is theirs and is emptied.

    They start when they are first needed and end with the block; run `retire_idle` to end them when they are not used.
    """
    if not projection.is_on_disk:
        raise MisuseError("a store in memory cannot be copied for workers; use InlineQueries")
    await blocking.run(_empty, directory)
    snapshots = _Snapshots(projection, directory, blocking, min_interval_ms)
    pool = QueryWorkers(projection, snapshots, workers, max_waiting, idle_ms)
    try:
        yield pool
    finally:
        with trio.CancelScope(shield=True):
            await pool._close()
            await blocking.run(_empty, directory)


def _remove_folder(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        # It only takes up room, and goes when workers are opened next.
        log.warning("query.snapshot_left", extra={"path": str(path), "error": str(error)})


def _empty(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700, parents=True)


async def _reach(projection: OxigraphProjection, at_least: int | None, limits: QueryLimits) -> None:
    if at_least is None:
        return
    if projection.position < at_least:
        projection.refusal.check_takes()  # nobody knows when there will be room
    with trio.move_on_after(limits.wait_ms / 1_000):
        await projection.reached(at_least)
        return
    projection.refusal.check_takes()
    raise StoreBehind(at_least, projection.position)


def _request(sparql: str, default_graphs: Sequence[str], named_graphs: Sequence[str], limits: QueryLimits) -> Request:
    return Request(
        snapshot="",
        sparql=sparql,
        default_graphs=list(default_graphs),
        named_graphs=list(named_graphs),
        max_rows=limits.max_rows,
        max_bytes=limits.max_bytes,
        time_ms=limits.time_ms,
        memory_bytes=limits.memory_bytes,
    )


def _raise(reply: Reply) -> NoReturn:
    match reply.error:
        case "QuerySyntax":
            raise QuerySyntax(reply.text, reply.line, reply.column)
        case "QueryTooLarge":
            raise QueryTooLarge(reply.text)
        case "OutsideError":
            raise OutsideError(reply.text)
        case _:
            raise QueryRefused(reply.text)


def worker_environment() -> dict[str, str]:
    """All that a worker gets of our environment: where modules lie, and no secret for /proc/<pid>/environ.

    glibc gives each thread an arena of 64 MiB of addresses, which nothing fills and the limit on memory counts: with
    enough of them a worker of 36 MB would be told that it has used up a gigabyte.
    """
    modules = os.pathsep.join(map(os.path.abspath, sys.path))
    return {"PYTHONPATH": modules, "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}


def _crash(code: int, request: Request) -> QueryTooLarge | QueryTimeout:
    """What the death of a worker means, as far as its signal tells."""
    if code == -signal.SIGXCPU:
        return QueryTimeout(f"the query used up its processor time of some {request.time_ms} ms; ask for less")
    name = signal.Signals(-code).name if code < 0 else f"exit {code}"
    if code == -signal.SIGSEGV:
        return QueryTooLarge(f"the query nests too deep to be planned ({name}); write it flatter")
    return QueryTooLarge(f"the query needs more than {request.memory_bytes} bytes of memory ({name}); ask for less")
