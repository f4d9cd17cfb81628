"""One SQLite file, one owner, one writer that commits in groups.

A write is a function of the connection. It runs inside the next transaction, as if in a savepoint of its own, and its
caller goes on when that transaction is on disk. While one transaction is being synced, the next group gathers: the more
callers, the cheaper each write (a durable commit costs milliseconds, a write in a group some ten microseconds).

What a write may count on:

* it is alone: no other write runs at the same time, and it sees all earlier ones, also those of its own group;
* an exception takes back its own part, reaches its own caller, and nobody else notices;
* when `write` returns, the rows are durable (WAL, `synchronous=FULL`); when it raises, none of them exist;
* a caller that is cancelled while its write waits has not written; one whose write has begun waits for the commit.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType
from typing import Any, Final, TypeVar

import trio

from .blocking import Blocking
from .errors import BugError, ClosedError, DiskError, MisuseError, OutsideError
from .files import MEMORY, Files, map_sqlite_error, map_sqlite_errors, open_files
from .operations import Operation, Operations, Write
from .plain_nursery import open_plain_nursery
from .schema import Migration, apply_migrations
from .signals import Signal

log = logging.getLogger(__name__)

TRIED_AGAIN_S: Final = 1.0
"""How long what the disk refused waits for the next try."""
_TOLD_EVERY = 60  # of the tries of one write, so many pass before the log says again that the disk refuses it

T = TypeVar("T")
CrashPoint = Callable[[str], None]

# SQLite asks the authoriser when it compiles a statement, and Python keeps compiled statements by their text. The mark
# keeps ours apart from the same words in a write, which must be refused.
_BEGIN = "BEGIN IMMEDIATE /* group */"
_COMMIT = "COMMIT /* group */"
_ROLLBACK = "ROLLBACK /* group */"
_SAVEPOINT = "SAVEPOINT operation /* group */"
_RELEASE = "RELEASE operation /* group */"
_ROLLBACK_TO = "ROLLBACK TO operation /* group */"

# An fsync that failed may have thrown the pages away: what the disk holds is unknown until the file is opened again.
_SYNC_FAILURES = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})


def _failed_to_sync(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) in _SYNC_FAILURES


def no_crash(_: str) -> None:
    """The crash point of programs that are not being tested: does nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a database.

    operations_per_commit: the largest group. Larger groups are not much cheaper, and hold up whoever waits behind them.
    slow_readers: reads that run in worker threads at once.
    wal_bytes: the size to which the write-ahead log is cut back after a checkpoint.
    """

    operations_per_commit: int = 256
    slow_readers: int = 2
    wal_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        if min(self.operations_per_commit, self.slow_readers, self.wal_bytes) < 1:
            raise MisuseError("every limit of a database is at least 1")


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """Counts since the file was opened.

    operations: writes that were committed. failed: writes that raised, and took back their part.
    commits: transactions. failed_commits: transactions that the disk refused.
    largest_group: operations in the largest transaction. waiting: writes that wait now.
    reads, slow_reads: inline and in worker threads.
    """

    operations: int
    failed: int
    commits: int
    failed_commits: int
    largest_group: int
    waiting: int
    reads: int
    slow_reads: int


class Database:
    """An open file. Made by `open_database`."""

    def __init__(self, files: Files, blocking: Blocking, limits: Limits, crash_point: CrashPoint) -> None:
        self._files = files
        self._blocking = blocking
        self._limits = limits
        self.crash_point = crash_point
        self._operations = Operations(limits.operations_per_commit)
        self._closing = False  # no new writes
        self._has_let_go = trio.Event()
        self._lost: str | None = None  # why something that was owed will not be stored any more
        self._refusals = 0  # in a row
        self.refused = Signal()
        """The disk refuses what is owed: `refusal` says what it says. Notified at each try."""
        self._refusal: str | None = None  # what the disk said of the last of them, while nothing was taken since
        self._closed = False  # no new reads either
        self._broken: str | None = None
        self._slow = trio.Semaphore(limits.slow_readers)
        self._writing_thread: int | None = None
        self._counts = dict.fromkeys(
            ("operations", "failed", "commits", "failed_commits", "largest_group", "reads", "slow_reads"), 0
        )

    @property
    def path(self) -> Path | None:
        """The file, or None in memory."""
        return self._files.path

    @property
    def restores(self) -> int:
        """How often this file was put back from a backup, or moved. Kept in the file.

        Effects outside that a restored file does not know of may have happened. A component keeps the count that it
        has dealt with, in the transaction in which it did.
        """
        return self._files.restores

    @property
    def is_idle(self) -> bool:
        """Whether every write that was asked for is on disk, and told."""
        return self._operations.writer_is_idle and not self._operations

    def statistics(self) -> DatabaseStatistics:
        return DatabaseStatistics(waiting=len(self._operations), **self._counts)

    # Writing

    async def write(
        self, fn: Write[T], after: Callable[[T], object] | None = None, *, shield: bool = False, owed: bool = False
    ) -> T:
        """Runs `fn(connection)` in the next transaction; returns its result once that is durable.

        `fn` runs in the writer's thread: it uses the connection and its own values, nothing else. It does not commit,
        roll back, or run scripts, and leaves no deferred constraint broken, which would fail its whole group.
        `after(result)` is called in the event loop after the commit, before any caller goes
        on, in the order of the writes; it must not raise, and is not called when `fn` raised.

        Errors: whatever `fn` raises, with nothing written; `DiskError` when the disk is full or refuses, and
        `OutsideError` when another program holds the file locked, with nothing written; `ClosedError`.

        Cancellation: a write that waits is withdrawn. One that has begun is waited for, and its result is returned.
        With `shield` it is never withdrawn: for what has to be stored in any case.

        With `owed`, too; and where the disk refuses it waits, and is tried again until it is stored: for what the
        caller has changed in memory already. So `fn` may run more than once: what it wrote before is taken back first.
        Writes stay in their order meanwhile; those that are not owed are told at each try. It ends with the error where
        trying again does not help (`DamagedError`, or whatever `fn` itself raises), after `let_go`, and when the
        database closes.
        """
        return await self._submit(Operation(fn, after, owed=owed, shield=shield))

    @property
    def refusal(self) -> str | None:
        """What the disk says while it refuses what others owe; None while it takes what is written."""
        return self._refusal

    def check_takes(self) -> None:
        """Errors: `DiskError` while the disk refuses what others owe. For who is about to change something in memory,
        and would come to wait behind them: it can still be left undone, and said so at once."""
        if self._refusal is not None:
            raise DiskError(self._refusal)

    def let_go(self) -> None:
        """From now on nothing is tried again: whoever owes a write is told what the disk says, and of what is owed none
        is stored after one that was not. For the end of a process whose memory is not needed any more."""
        self._has_let_go.set()

    async def _submit(self, operation: Operation[T]) -> T:
        if not operation.shield:
            await trio.lowlevel.checkpoint_if_cancelled()
        self._refuse_if_closed()
        return await self._operations.perform(operation)

    def _refuse_if_closed(self) -> None:
        if self._broken is not None:
            raise DiskError(self._broken)
        if self._closing:
            raise ClosedError(f"{self._files.name} is closing; nothing more is written to it")

    def _refuse_if_closed_whole(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._files.name} is closed")

    async def _write_loop(self) -> None:
        """Commits group after group until the database is closed and nothing waits.

        Shielded: clean-up code inside a cancelled scope still writes. It ends because `open_database` always closes.
        """
        with trio.CancelScope(shield=True):
            try:
                while self._operations or not self._closing:
                    if not self._operations:
                        await self._operations.wait()
                    elif await self._commit_group(self._operations.take_group()):
                        with trio.move_on_after(TRIED_AGAIN_S):
                            await self._has_let_go.wait()
            finally:
                self._closing = True
                self._operations.turn_away(
                    lambda: ClosedError(f"{self._files.name} was closed before this write began")
                )

    async def _commit_group(self, group: list[Operation[Any]]) -> bool:
        """Returns whether the disk refused what is owed, so that it waits now to be tried again."""
        to_run = [operation for operation in group if not self._is_lost(operation)]
        try:
            if to_run:
                await self._blocking.run(self._run_group, to_run)
        except Exception as error:
            for operation in to_run:
                operation.error = OutsideError(f"{self._files.name}: the writer could not run: {error!r}")
        refused = [operation for operation in group if operation.is_refused and self._broken is None]
        if refused and self._has_let_go.is_set():
            self._lost = self._lost or str(refused[0].error)
            refused = []
        if not group[0].alone:
            self._note_refusal(refused)
        if refused:
            self._operations.put_back(refused)
        self._operations.end(group)
        if self._broken is not None:
            raise DiskError(self._broken)
        return bool(refused)

    def _is_lost(self, operation: Operation[Any]) -> bool:
        """Whether it is owed after something that was lost: it may say more of that, and is lost with it."""
        if self._lost is None or not operation.owed:
            return False
        operation.error = DiskError(self._lost)
        return True

    def _note_refusal(self, refused: list[Operation[Any]]) -> None:
        if refused:
            if self._refusals % _TOLD_EVERY == 0:  # the log may lie on the very disk that is full
                log.warning("database.refused", extra={"owed": len(refused), "error": str(refused[0].error)})
            self._refusals += 1
            self._refusal = str(refused[0].error)
            self.refused.notify()
        elif self._refusals:
            log.info("database.refuses_no_more", extra={"tries": self._refusals})
            self._refusals, self._refusal = 0, None

    # In the writer's thread

    def _run_group(self, group: list[Operation[Any]]) -> None:
        with self._files.writer_lock:
            self._writing_thread = threading.get_ident()
            try:
                if group[0].alone:
                    self._run_alone(group[0])
                else:
                    self._run_transaction(group)
            finally:
                self._writing_thread = None

    def _run_transaction(self, group: list[Operation[Any]]) -> None:
        connection = self._files.writer
        self._counts["largest_group"] = max(self._counts["largest_group"], len(group))
        try:
            connection.execute(_BEGIN)
            if not self._run_plainly(connection, group):
                for operation in group:
                    self._run_operation(connection, operation)
            self.crash_point("database.before_commit")
            connection.execute(_COMMIT)
        except BaseException as error:
            self._take_back(connection, group, error)
            return
        self.crash_point("database.after_commit")
        failed = sum(operation.error is not None for operation in group)
        self._counts["commits"] += 1
        self._counts["failed"] += failed
        self._counts["operations"] += len(group) - failed

    def _run_plainly(self, connection: sqlite3.Connection, group: list[Operation[Any]]) -> bool:
        """Without savepoints, where all are owed and so may be run again. They hardly ever fail; when one does,
        everything is taken back and False is returned: then each runs in a savepoint of its own."""
        if not all(operation.owed for operation in group):
            return False
        try:
            for operation in group:
                self._call(connection, operation)
        except BaseException as error:
            if _failed_to_sync(error):
                raise  # it would not be said a second time
        else:
            return True
        if connection.in_transaction:
            connection.execute(_ROLLBACK)
        connection.execute(_BEGIN)
        return False

    def _run_operation(self, connection: sqlite3.Connection, operation: Operation[Any]) -> None:
        connection.execute(_SAVEPOINT)
        try:
            self._call(connection, operation)
        except BaseException as error:
            if not connection.in_transaction:
                raise  # the disk is full, and SQLite has taken back the whole transaction
            operation.error = map_sqlite_error(error, self._files.name)
            if operation.is_refused:
                raise  # nothing that comes after it may be stored before it
            connection.execute(_ROLLBACK_TO)
        connection.execute(_RELEASE)

    def _call(self, connection: sqlite3.Connection, operation: Operation[Any]) -> None:
        operation.result = self._files.lend(operation.fn)
        if type(operation.result) is CoroutineType:
            operation.result.close()
            raise MisuseError(f"{operation.fn!r} is async; a write is a plain function of the connection")
        if not connection.in_transaction:  # what comes after it would be stored by itself
            raise BugError(f"{operation.fn!r} ended the transaction of its group")

    def _take_back(self, connection: sqlite3.Connection, group: list[Operation[Any]], error: BaseException) -> None:
        """The whole transaction failed: nothing of it is stored, and everybody in it is told so."""
        self._counts["failed_commits"] += 1
        if connection.in_transaction:
            connection.execute(_ROLLBACK)
        if _failed_to_sync(error):
            self._broken = (
                f"{self._files.name}: the disk failed to sync ({error}); what it holds is unknown. "
                "Check the disk, then open the file again"
            )
        for operation in group:
            if operation.error is None:
                # one object per caller: a traceback grows with every raise
                operation.error = self._explain(error)
                operation.error.__cause__ = error

    def _explain(self, error: BaseException) -> BaseException:
        if self._broken is not None:
            return DiskError(self._broken)
        mapped = map_sqlite_error(error, self._files.name)
        if mapped is not error:
            return mapped
        return BugError(f"{self._files.name}: a group of writes failed and was taken back whole: {error!r}")

    def _run_alone(self, operation: Operation[Any]) -> None:
        try:
            operation.result = operation.fn(self._files.writer)
        except Exception as error:
            operation.error = map_sqlite_error(error, self._files.name)

    # Reading

    def read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `fn(connection)` here and now, over one snapshot that holds every committed write.

        For look-ups by key, from the event loop's thread: the loop stands still meanwhile. It cannot write. It is no
        checkpoint.
        """
        self._refuse_if_closed_whole()
        if self._writing_thread == threading.get_ident():
            raise MisuseError("a write reads through the connection that it is given")
        self._counts["reads"] += 1
        with map_sqlite_errors(self._files.name):
            return self._files.read(fn)

    async def read_slowly(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Like `read`, in a worker thread: for scans.

        Cancellation: the statement that runs is interrupted, and the thread is waited for.
        """
        return await self._read_apart(lambda reader, cancelled: self._files.read_with(reader, fn, cancelled))

    async def _read_apart(self, work: Callable[[sqlite3.Connection, Callable[[], bool]], T]) -> T:
        async with self._slow:
            self._refuse_if_closed_whole()
            self._counts["slow_reads"] += 1
            reader = self._files.take_slow_reader()
            try:
                with map_sqlite_errors(self._files.name):
                    return await self._run_interruptibly(reader, work)
            finally:
                self._files.give_back(reader)

    async def _run_interruptibly(
        self, reader: sqlite3.Connection, work: Callable[[sqlite3.Connection, Callable[[], bool]], T]
    ) -> T:
        cancelled = False

        async def notice_cancellation() -> None:
            nonlocal cancelled
            try:
                await trio.sleep_forever()
            finally:
                cancelled = True

        result: T
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notice_cancellation)
            try:
                result = await self._blocking.run(work, reader, lambda: cancelled)
            except Exception as error:
                failure = error
            nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint_if_cancelled()
        if failure is not None:
            raise failure
        return result

    # The file as a whole

    async def migrate(self, component: str, migrations: Sequence[Migration]) -> int:
        """Brings the tables of `component` to the newest schema, in one transaction; returns the version found.

        Version n is the schema after the first n migrations. Several components share a file, each with its own count.
        Errors: `NewerSchemaError` when the file is ahead of `migrations`; what a migration raises. Nothing is changed.
        """
        return await self.write(lambda connection: apply_migrations(connection, component, migrations))

    async def checkpoint(self) -> None:
        """Copies the write-ahead log into the file and empties it, so that deleted text is in neither.

        Errors: `OutsideError` when a slow read still needs the log after some seconds; then it holds all that it held.
        """
        await self._submit(Operation(self._files.checkpoint, alone=True))

    async def compact(self) -> None:
        """Rewrites the file without its free pages. Writes wait meanwhile; needs as much free disk as the file has.

        Errors: as `checkpoint`; then the file is rewritten, and the log holds what it held.
        """
        await self._submit(Operation(self._files.compact, alone=True))

    async def back_up(self, to: Path) -> None:
        """Writes a whole copy to a new file, marked as a backup: once opened, it counts one of `restores` more.

        It is the file as it is now, read in a worker thread, in steps: writes go on meanwhile.

        Errors: `MisuseError` when `to` exists, also by then, or has a name that SQLite keeps for itself (`-journal`,
        `-wal`, `-shm`); `DiskError`. Then nothing of it is left.
        Cancellation: between two steps; nothing of it is left.
        """
        await self._read_apart(lambda connection, cancelled: self._files.back_up(connection, to, cancelled))

    def _close_to_writes(self) -> None:
        self._closing = True
        self.let_go()
        self._operations.wake_writer()


@asynccontextmanager
async def open_database(
    path: Path | str,
    *,
    blocking: Blocking,
    limits: Limits | None = None,
    crash_point: CrashPoint = no_crash,
) -> AsyncIterator[Database]:
    """Opens or creates the file at `path` (or ":memory:") and owns it until the block ends.

    A lock file beside it names the owner; it stays when the file is closed. A file that was not closed in order is
    checked first. On leaving, what was accepted is still written; then the log is emptied and the file closed, also on
    cancellation. `blocking` runs the commits: when it is shared with long work, writes wait for that.
    `crash_point(name)` is called at the points where a test may want to kill the process.

    Errors: `OwnedError`, `DamagedError`, `NewerSchemaError`, `OpenError`, `DiskError`. When the disk fails to sync,
    nobody knows what it holds: the block is cancelled and `DiskError` raised, for the file to be opened again.
    """
    limits = limits or Limits()
    target = None if str(path) == MEMORY else Path(path)
    files = await blocking.run(open_files, target, limits.slow_readers, limits.wal_bytes)
    try:
        database = Database(files, blocking, limits, crash_point)
        try:
            async with open_plain_nursery() as nursery:
                nursery.start_soon(database._write_loop, name=f"writer of {files.name}")
                try:
                    yield database
                finally:
                    database._close_to_writes()
        finally:
            database._closed = True
    finally:
        with trio.CancelScope(shield=True):
            await blocking.run(files.close)
