"""The files of a database: who owns them, whether they are whole, and the connections to them.

Beside `name` lie SQLite's `name-wal` and `name-shm`, and `name.lock`. The lock file is locked by its owner as long as
it runs, whatever kills it; it says who that is, and how often the file was opened. It is never removed: a lock on a
file that somebody else just removed guards nothing.

The file itself is locked too, because a file that is moved while it is open has another name, and beside that no lock.
One with a second hard link is refused: under its other name it has another log, and what is in the first would be lost.

A file that is older than its lock file says was put back from a backup. `restores` counts that, in the file, so that
every component can tell whether it has dealt with it. SQLite would write the log of the file that was there before into
the one that was put back: each opening begins with an empty log, so that a log beside a file that knows nothing of the
last opening is known to be another one's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from .errors import DamagedError, DiskError, MisuseError, NewerSchemaError, OpenError, OutsideError, OwnedError
from .schema import CREATE_VERSIONS

T = TypeVar("T")

MEMORY = ":memory:"
FORMAT = 1
APPLICATION_ID = 0x70326A62  # "p2jb": tells our files from those of others

_LOG_BEGUN = "log_begun"  # the fact that says with which generation the log was empty
_GENERATION_MAX = 2**53  # nobody opens a file that often: a lock file that says more is damaged
_BESIDE = ("-journal", "-wal", "-shm")  # how SQLite calls what it keeps beside a database
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_BUSY_MS = 5_000
_PAGES_A_STEP = 1_024  # of 4 KiB: some milliseconds
_INSTRUCTIONS_BETWEEN_LOOKS = 20_000  # of SQLite's machine; about a millisecond
_UNDECODABLE = "Could not decode to UTF-8"  # Python's words for a text that is none; they have no code
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_DISK = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}
)


def map_sqlite_error(error: BaseException, name: str) -> BaseException:
    """The typed error for what SQLite says of the disk; every other error as it is."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        if isinstance(error, sqlite3.OperationalError) and str(error).startswith(_UNDECODABLE):
            # the text itself may be private
            return DamagedError(_damaged(name, str(error).partition(" with text ")[0]))
        return error
    if code & 0xFF in _DISK:
        return DiskError(f"{name}: {error}. Nothing of this write is stored; free some space, or check the disk")
    if code & 0xFF in _DAMAGED:
        return DamagedError(_damaged(name, str(error)))
    if code & 0xFF in _LOCKED:
        return OutsideError(f"{name}: another program holds it locked ({error}); close that program, and try again")
    if code & 0xFF == sqlite3.SQLITE_AUTH:
        return MisuseError(f"{name}: a write may not end its transaction, change settings or attach files: {error}")
    return error


@contextmanager
def interruptible(connection: sqlite3.Connection, cancelled: Callable[[], bool] | None) -> Iterator[None]:
    """Stops the statement that runs once `cancelled`: asked in the thread itself, so that no other one is stopped."""
    if cancelled is None:
        yield
        return
    connection.set_progress_handler(cancelled, _INSTRUCTIONS_BETWEEN_LOOKS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


@contextmanager
def map_sqlite_errors(name: str) -> Iterator[None]:
    """Raises the typed error in place of SQLite's own."""
    try:
        yield
    except sqlite3.Error as error:
        mapped = map_sqlite_error(error, name)
        if mapped is error:
            raise
        raise mapped from error


def _damaged(name: str, what: str) -> str:
    return (
        f"{name} is damaged: {what}. Nothing was mended. Keep a copy of it, then restore a backup, "
        "or save what can be read with `sqlite3 FILE .recover`"
    )


class Files:
    """The open file: the writer's connection, the one for inline reads, those for slow reads, and the lock."""

    def __init__(self, path: Path | None, lock_fds: list[int], connections: list[sqlite3.Connection]) -> None:
        self.path = path
        self.name = MEMORY if path is None else str(path)
        self.restores = 0
        self.writer, *readers = connections
        # In memory there is one connection for everything, and the lock keeps readers out of an open transaction.
        self.writer_lock = threading.RLock()
        self._reader = readers[0] if readers else self.writer
        self._slow_readers = readers[1:]
        self._lock_fds = lock_fds
        self._lent = False
        self._reading = False
        self.writer.set_authorizer(self._authorise)

    # Writing

    def lend(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `fn` with the writer's connection, and refuses what would reach beyond its own rows."""
        self._lent = True
        try:
            return fn(self.writer)
        finally:
            self._lent = False

    def _authorise(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if self._lent and (
            action in (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
            or (action == sqlite3.SQLITE_SAVEPOINT and second == "operation")
            or (action == sqlite3.SQLITE_PRAGMA and second is not None and first not in ("table_info", "index_info"))
        ):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    # Reading

    def read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        return self.read_with(self._reader, fn)

    def read_with(
        self,
        connection: sqlite3.Connection,
        fn: Callable[[sqlite3.Connection], T],
        cancelled: Callable[[], bool] | None = None,
    ) -> T:
        """Runs `fn` over one snapshot, until `cancelled`. A read inside a read shares its snapshot."""
        if connection is self.writer:
            with self.writer_lock, interruptible(connection, cancelled):
                return self._read_in_memory(fn)
        if connection.in_transaction:
            return fn(connection)
        connection.execute("BEGIN")
        try:
            with interruptible(connection, cancelled):
                return fn(connection)
        finally:
            connection.rollback()

    def _read_in_memory(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        if self._reading:
            return fn(self.writer)
        self._reading = True
        self.writer.execute("PRAGMA query_only = ON")
        try:
            return fn(self.writer)
        finally:
            self.writer.execute("PRAGMA query_only = OFF")
            self._reading = False

    def take_slow_reader(self) -> sqlite3.Connection:
        return self._slow_readers.pop() if self._slow_readers else self.writer

    def give_back(self, reader: sqlite3.Connection) -> None:
        if reader is not self.writer:
            self._slow_readers.append(reader)

    # The file as a whole

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise OutsideError(
                f"{self.name}: its log was not emptied, because a read still needs it. Ask again when that has ended"
            )

    def compact(self, connection: sqlite3.Connection) -> None:
        connection.execute("VACUUM")
        self.checkpoint(connection)

    def back_up(self, connection: sqlite3.Connection, to: Path, cancelled: Callable[[], bool]) -> None:
        """Copies in steps, marks the copy, and syncs it; the copy appears whole or not at all. `cancelled` is asked
        between two steps, and ends it."""
        if os.path.lexists(to):  # a link that leads nowhere is somebody's too
            raise MisuseError(f"{to} exists already; a backup goes to a new file")
        if to.name.endswith(_BESIDE):
            raise MisuseError(f"SQLite would take {to} for a part of the database beside it; choose another name")
        part = to.with_name(f".{to.name}.{os.getpid()}.part")
        try:
            self.read_with(connection, lambda snapshot: self._copy(snapshot, part, cancelled))
            _name(part, to)
            folder = os.open(to.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileExistsError:
            raise MisuseError(f"{to} exists by now, and is not the backup, which went nowhere") from None
        except OSError as error:
            raise DiskError(f"the backup {to} was not written: {error}") from error
        except sqlite3.OperationalError as error:
            raise map_sqlite_error(error, f"the backup {to} was not written") from error
        finally:
            with suppress(OSError):  # half a copy takes up the room that was too little for a whole one
                for left in (part, part.with_name(part.name + "-journal")):
                    left.unlink(missing_ok=True)

    def _copy(self, connection: sqlite3.Connection, part: Path, cancelled: Callable[[], bool]) -> None:
        def look(*_: int) -> None:
            if cancelled():
                raise OutsideError("the backup was given up")

        connection.execute("SELECT count(*) FROM database_facts").fetchone()  # from here on it is one snapshot
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        copy = sqlite3.connect(part, isolation_level=None)
        try:
            connection.backup(copy, pages=_PAGES_A_STEP, progress=look)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("PRAGMA synchronous = FULL")
            copy.execute("UPDATE database_facts SET value = 1 WHERE name = 'is_backup'")
        finally:
            copy.close()

    def close(self) -> None:
        """Closes everything; SQLite empties and removes the write-ahead log with the last connection."""
        readers = [self._reader, *self._slow_readers] if self._reader is not self.writer else []
        for connection in (*readers, self.writer):
            connection.close()
        # After the connections: as long as they are open, closing any descriptor of the file would take SQLite's locks.
        while self._lock_fds:
            os.close(self._lock_fds.pop())


def _name(part: Path, to: Path) -> None:
    """Give a whole file its name, which nobody else has taken meanwhile: raises `FileExistsError`."""
    try:
        os.link(part, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Such a file system has no names to add. An empty file, made by nobody else, keeps the name for a moment.
        os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.rename(part, to)
    part.unlink(missing_ok=True)  # before the folder is synced: a file with two names is refused when it is opened


def open_files(path: Path | None, slow_readers: int, wal_bytes: int) -> Files:
    """Locks, checks and opens. Blocking. Errors: as `open_database`; then nothing is left open or locked."""
    if path is None:
        return _open_memory()
    # One file has one owner, by whichever of its names it is opened: the lock lies beside the file itself.
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise OpenError(f"the folder {path.parent} does not exist; make it first")
    if path.exists() and not path.is_file():
        raise OpenError(f"{path} is no file; choose another name")
    try:
        lock_fd = _lock(path)
    except OSError as error:
        raise _unopened(path, error) from error
    lock_fds = [lock_fd]
    connections: list[sqlite3.Connection] = []
    try:
        if not path.exists():
            _refuse_log_without_file(path)
            _sign_lock(lock_fd, generation=0)
        opened_before = _generation_beside(lock_fd)
        lock_fds.append(_lock_file_itself(path))
        _check(path, opened_before)
        for number in range(2 + slow_readers):
            connections.append(_connect(str(path)))
            if number == 0:
                _prepare_writer(connections[0], wal_bytes)
            else:
                connections[-1].execute("PRAGMA query_only = ON")
        files = Files(path, lock_fds, connections)
        generation, files.restores = _begin_generation(files.writer, opened_before)
        _sign_lock(lock_fd, generation)
    except BaseException as error:
        for connection in connections:
            connection.close()
        for fd in reversed(lock_fds):
            os.close(fd)
        if isinstance(error, OSError):
            raise _unopened(path, error) from error
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise OpenError(f"{path} may not be written ({error}); {_PERMISSIONS}") from error
        mapped = map_sqlite_error(error, str(path))
        if mapped is error:
            raise
        raise mapped from error
    return files


_PERMISSIONS = "its owner needs to read and write the file, and to make files in its folder"


def _unopened(path: Path, error: OSError) -> OutsideError:
    """What the operating system did not do when the file was to be opened."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OpenError(f"{path} may not be written ({error.strerror}); {_PERMISSIONS}")
    return DiskError(f"{path}: {error}. Free some space, or check the disk")


def _open_memory() -> Files:
    connection = _connect(MEMORY)
    connection.execute("PRAGMA foreign_keys = ON")
    _create(connection)
    return Files(None, [], [connection])


def _connect(where: str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(where, isolation_level=None, check_same_thread=False, cached_statements=256, uri=uri)
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return connection


def _check(path: Path, opened_before: int | None) -> None:
    """Refuses a damaged file, one of another program, and one of a newer version, without touching it."""
    if not path.exists() or path.stat().st_size == 0:
        _refuse_log_without_file(path)
        if opened_before:
            raise DamagedError(
                f"{path} is empty, and was not when it was last open. Nothing was touched. Put a backup in its place; "
                "or, to begin with nothing, remove it"
            )
        return
    log = _log_of(path)
    was_killed = _has_text(log)
    if was_killed:
        _refuse_foreign_log(path, log, opened_before)
    # A connection that only reads does not copy the log into the file when it is closed.
    connection = _connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != APPLICATION_ID:
            raise OpenError(f"{path} is a database of another program; choose another file")
        if version > FORMAT:
            raise NewerSchemaError(
                f"{path} has format {version}, and this program knows up to {FORMAT}: a newer version wrote it. "
                "Use that version, or restore a backup of before"
            )
        if was_killed:
            findings = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
            if findings != ["ok"]:
                raise DamagedError(_damaged(str(path), "; ".join(findings)))
    finally:
        connection.close()


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _has_text(log: Path) -> bool:
    return log.exists() and log.stat().st_size > 0


def _refuse_log_without_file(path: Path) -> None:
    """SQLite would remove the log beside a file that is empty, and with it what only the log holds."""
    log = _log_of(path)
    if _has_text(log):
        raise DamagedError(
            f"{path} is {'empty' if path.exists() else 'not there'}, and beside it lies its log {log.name}, which may "
            "hold what it lacks. Nothing was touched. Put the file back beside it; for a backup, or to begin with "
            f"nothing, move {log.name} and {path.name}-shm away first"
        )


def _refuse_foreign_log(path: Path, log: Path, opened_before: int | None) -> None:
    connection = _connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True
    )  # the file alone, without its log
    try:
        facts = dict(connection.execute("SELECT name, value FROM database_facts").fetchall())
    except sqlite3.DatabaseError:
        return  # killed while the log was copied into it: with the log it is whole, or the check that follows says so
    finally:
        connection.close()
    begun = facts.get(_LOG_BEGUN)
    if facts.get("is_backup") == 1 or (begun is not None and opened_before is not None and begun < opened_before):
        raise OpenError(
            f"{path} was put back, and beside it still lies the log of the file that was there before. Nothing was "
            f"touched. If it was copied without a log, as a backup is, move {log.name} and {path.name}-shm away, and "
            f"start again; if it was copied with its log, put back that log and {path.name}.lock too"
        )


def _prepare_writer(connection: sqlite3.Connection, wal_bytes: int) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise OpenError(f"this file system cannot hold a write-ahead log (SQLite chose {mode!r}); use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA journal_size_limit = {wal_bytes}")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        _create(connection)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute(CREATE_VERSIONS)
    connection.execute(
        "CREATE TABLE database_facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID"
    )
    connection.execute("INSERT INTO database_facts VALUES ('generation', 0), ('restores', 0), ('is_backup', 0)")
    connection.commit()


def _begin_generation(connection: sqlite3.Connection, opened_before: int | None) -> tuple[int, int]:
    """Counts this opening, and finds out whether the file was put back. Returns generation and restores.

    The file counts first and the lock file second: killed in between, the file is ahead, which means nothing.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    facts = dict(connection.execute("SELECT name, value FROM database_facts").fetchall())
    was_restored = facts["is_backup"] == 1 or opened_before is None or opened_before > facts["generation"]
    generation = max(facts["generation"], opened_before or 0) + 1
    restores = facts["restores"] + was_restored
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "UPDATE database_facts SET value = ? WHERE name = ?",
        [(generation, "generation"), (restores, "restores"), (0, "is_backup")],
    )
    connection.execute("INSERT OR REPLACE INTO database_facts VALUES (?, ?)", (_LOG_BEGUN, generation))
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return generation, restores


def _lock(path: Path) -> int:
    lock_path = path.with_name(path.name + ".lock")
    fd = os.open(lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(fd)
        os.close(fd)
        raise OwnedError(
            f"{path} is in use by {holder}; one process owns it. Ask that one, or stop it", holder
        ) from None
    return fd


def _lock_file_itself(path: Path) -> int:
    """Makes the file if there is none. Who has it under another name keeps it."""
    links = path.stat().st_nlink if path.exists() else 1
    if links > 1:
        raise OpenError(
            f"{path} has {links} names (hard links), and beside each of them would lie another log. Remove the other "
            f"names (`find -samefile {path.name}` lists them); for a copy, use one of the whole file"
        )
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        holder = "another process, which opened it under another name"
        raise OwnedError(
            f"{path} is in use by {holder}; one process owns it. Ask that one, or stop it", holder
        ) from None
    return fd


def _read_lock(fd: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(fd, 4096, 0))
    except (ValueError, RecursionError):
        return {}  # new, or killed while writing it, or damaged
    return found if isinstance(found, dict) else {}


def _holder(fd: int) -> str:
    found = _read_lock(fd)
    if "pid" not in found:
        return "another process"
    return f"process {found['pid']} ({found.get('program', '?')})"


def _generation_beside(fd: int) -> int | None:
    """The generation that the lock file says was opened last; None when it says none."""
    generation = _read_lock(fd).get("generation")
    return generation if type(generation) is int and 0 <= generation <= _GENERATION_MAX else None


def _sign_lock(fd: int, generation: int) -> None:
    text = json.dumps({"pid": os.getpid(), "program": Path(sys.argv[0]).name, "generation": generation})
    # padded, so that a shorter text leaves nothing of a longer one behind, and one write is enough
    os.pwrite(fd, text.ljust(512).encode(), 0)
    os.ftruncate(fd, 512)  # what else was in it was not ours, and would make it unreadable for ever
    os.fsync(fd)
