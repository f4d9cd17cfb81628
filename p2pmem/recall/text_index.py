"""Full text: an index of passages in a SQLite file of its own, a projection of the ledger like the triple store.

The rules are those of `p2pmem.store.projection`: one transaction moves passages and position together, a position
already reached changes nothing, position 0 means that it must be rebuilt, and what the disk refuses is tried again. The
file may be deleted while no node runs.

Words are found by BM25 over stemmed words (FTS5). Who may see what is part of every search: the context graphs, the
instant (nothing that has expired is returned, swept or not), the least trust.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVarTuple

import trio
from p2pmem_jobs.blocking import Blocking
from p2pmem_jobs.errors import DiskError
from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.home import made_anew
from p2pmem.recall.passages import MAX_PASSAGES, Passage
from p2pmem.recall.words import index_text, match_expression, question_phrases
from p2pmem.store.holding import hold
from p2pmem.store.refusal import Refusal

log = logging.getLogger(__name__)

FORMAT = 2
"""How text is cut and kept. An index of another format empties itself and is rebuilt."""
MAX_HITS = 1_000
_SCAN_PER_HIT = 50
_MANY_PASSAGES = 1_000
"""Below so many passages every word of a question is searched for."""
_COMMON = 0.2
"""A word that is in more than this part of all passages tells little."""

_REFUSALS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }
)
"""What SQLite says when it cannot now what it may do later; everything else that goes wrong is damage."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_SCHEMA = """
CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID, STRICT;
CREATE TABLE asset (
    id INTEGER PRIMARY KEY,
    graph_iri TEXT NOT NULL UNIQUE,
    context_graph TEXT NOT NULL,
    asset TEXT NOT NULL,
    version INTEGER NOT NULL,
    seal BLOB NOT NULL,
    author TEXT NOT NULL,
    layer TEXT NOT NULL,
    level INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE passage (
    id INTEGER PRIMARY KEY,
    asset_id INTEGER NOT NULL REFERENCES asset (id),
    subject TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX passage_of_asset ON passage (asset_id);
CREATE VIRTUAL TABLE words USING fts5 (text, content='', tokenize='porter unicode61 remove_diacritics 2');
"""
_TABLES = ("words", "passage", "asset", "state")

Ts = TypeVarTuple("Ts")


class TextIndexUnusable(OutsideError):
    """The index's file cannot be opened or read: damaged or in use. Delete it; the ledger has lost nothing."""


@dataclass(frozen=True, slots=True)
class TextEntry:
    """An asset as the index shall know it. `expires_at_ms` is 0 for what never expires."""

    graph_iri: str
    context_graph: str
    asset: str
    version: int
    seal: bytes
    author: str
    layer: str
    level: int
    expires_at_ms: int
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class TextMark:
    """A change of what stands about an asset, not of its text: its trust level, or a later expiry."""

    graph_iri: str
    level: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class TextChange:
    """Everything that one transaction of the index does: drop first, then put, then mark."""

    put: tuple[TextEntry, ...] = ()
    drop: tuple[str, ...] = ()
    marks: tuple[TextMark, ...] = ()


@dataclass(frozen=True, slots=True)
class TextFilter:
    """What a search may return. None is "any".

    `now_ms` is the instant of the asking: what expires at or before it is not returned. `per_author` caps the hits of
    each author, so that one who writes much does not fill the answer.
    """

    context_graphs: tuple[str, ...]
    now_ms: int
    layers: tuple[str, ...] | None = None
    least_level: int | None = None
    authors: tuple[str, ...] | None = None
    per_author: int | None = None


@dataclass(frozen=True, slots=True)
class TextHit:
    """A passage that was found. A higher `score` is better; scores of different searches do not compare."""

    graph_iri: str
    context_graph: str
    asset: str
    version: int
    seal: bytes
    author: str
    layer: str
    level: int
    expires_at_ms: int
    subject: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class TextStatistics:
    """What the index holds, and what it has done since it was opened."""

    position: int
    assets: int
    passages: int
    transactions: int
    searches: int


class TextIndex:
    """The index. Made by `open_text_index`."""

    def __init__(self, connections: _Connections, blocking: Blocking) -> None:
        self._connections = connections
        self._blocking = blocking
        self._writer = trio.Lock()
        self.refusal = Refusal("text_index")
        self._position = connections.position()
        self._transactions = 0
        self._searches = 0

    @property
    def position(self) -> int:
        """Up to which position of the ledger the index is true; 0 means that it must be rebuilt."""
        return self._position

    async def apply(
        self,
        position: int,
        put: Sequence[TextEntry] = (),
        drop: Sequence[str] = (),
        marks: Sequence[TextMark] = (),
    ) -> bool:
        """Drop these graphs, put those, mark these, and move to `position`, in one transaction.

        An entry replaces what is held for its graph. A drop or mark of what is not held is no error. Returns False, and
        changes nothing, if `position` is reached already. Cancelled before it begins, or while the disk refuses,
        nothing happens; once begun, it is done.
        """
        change = TextChange(tuple(put), tuple(drop), tuple(marks))
        return await self.apply_made(position, lambda: change)

    async def apply_made(self, position: int, make: Callable[[], TextChange]) -> bool:
        """The same, with a change that `make` makes where the writing is done, out of the event loop."""
        if position < 1:
            raise MisuseError(f"position {position}: positions of the ledger begin at 1")
        async with hold(self._writer):
            if position <= self._position:
                return False
            await self._write(position, make)
            return True

    async def fill(self, put: Sequence[TextEntry]) -> None:
        """Add to an index that is being rebuilt; the position stays 0 until `apply` sets it."""
        change = TextChange(tuple(put))
        await self.fill_made(lambda: change)

    async def fill_made(self, make: Callable[[], TextChange]) -> None:
        """The same, with a change that `make` makes where the writing is done."""
        async with self._writer:
            if self._position != 0:
                raise MisuseError(f"the index is at position {self._position}; clear it before it is filled")
            await self._write(0, make)

    async def clear(self) -> None:
        """Empty the index: position 0."""
        async with self._writer:
            await self._change(self._connections.clear)
            self._position = 0

    async def compact(self) -> None:
        """Make the index again from the passages held and rewrite the file, so that nothing dropped is left in it.

        `DiskError` where there is no room for that; then it stays as it was.
        """
        async with self._writer:
            await self._blocking.run(self._connections.compact)

    async def search(self, question: str, limit: int, filter_: TextFilter) -> tuple[TextHit, ...]:
        """The passages that answer best to any word of `question`, best first, at most `limit`.

        The question is never syntax. Without a word in it there is no hit.
        """
        if not 1 <= limit <= MAX_HITS:
            raise MisuseError(f"limit {limit}: between 1 and {MAX_HITS}")
        self._searches += 1
        phrases = question_phrases(question)
        if not phrases or not filter_.context_graphs:
            return ()
        return await self._blocking.run(self._connections.search, phrases, limit, filter_)

    def placed(self) -> list[str]:
        """The named graphs of all assets. Reads the index, in the event loop: for starting, not for serving."""
        return self._connections.placed()

    async def statistics(self) -> TextStatistics:
        """What it holds, counted, and counters since it was opened."""
        assets, passages = await self._blocking.run(self._connections.count)
        return TextStatistics(self._position, assets, passages, self._transactions, self._searches)

    async def _write(self, position: int, make: Callable[[], TextChange]) -> None:
        await self._change(self._connections.write, position, make)
        self._position = position
        self._transactions += 1

    async def _change(self, fn: Callable[[*Ts], None], *args: *Ts) -> None:
        """Run what writes, until the disk takes it."""
        await self.refusal.outlast(lambda: self._blocking.run(fn, *args))


@asynccontextmanager
async def open_text_index(path: Path | None, blocking: Blocking) -> AsyncIterator[TextIndex]:
    """Open the index in the file `path`, made if need be (0600), or in memory when `path` is None.

    `TextIndexUnusable` if the file is damaged; the error says how it is made anew.
    """
    connections = await blocking.run(_Connections, path)
    try:
        yield TextIndex(connections, blocking)
    finally:
        with trio.CancelScope(shield=True):
            await blocking.run(connections.close)


class _Connections:
    """One connection that writes and one that reads, each used by one thread at a time. Everything here blocks."""

    def __init__(self, path: Path | None) -> None:
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock() if path is not None else self._write_lock
        with _errors_of(path):
            self._writer = _connect(path)
            self._reader = _connect(path) if path is not None else self._writer
            self._prepare()
        self._path = path

    def position(self) -> int:
        return self._state("position")

    def write(self, position: int, make: Callable[[], TextChange]) -> None:
        change = make()
        for entry in change.put:
            if len(entry.passages) > MAX_PASSAGES:
                raise MisuseError(f"{len(entry.passages)} passages of <{entry.graph_iri}>, at most {MAX_PASSAGES}")
        with self._write_lock, _errors_of(self._path), _transaction(self._writer):
            for graph_iri in change.drop:
                self._drop(graph_iri)
            for entry in change.put:
                self._drop(entry.graph_iri)
                self._put(entry)
            self._writer.executemany(
                "UPDATE asset SET level = ?, expires_at_ms = ? WHERE graph_iri = ?",
                [(mark.level, mark.expires_at_ms, mark.graph_iri) for mark in change.marks],
            )
            self._writer.execute("UPDATE state SET value = ? WHERE name = 'position'", (position,))

    def search(self, phrases: Sequence[str], limit: int, filter_: TextFilter) -> tuple[TextHit, ...]:
        where, values = _conditions(filter_)
        scanned = limit if filter_.per_author is None else limit * _SCAN_PER_HIT
        sql = f"""
            SELECT graph_iri, context_graph, asset, version, seal, author, layer, level, expires_at_ms,
                   passage.subject, passage.text, -words.rank
            FROM words JOIN passage ON passage.id = words.rowid JOIN asset ON asset.id = passage.asset_id
            WHERE words MATCH ? AND {where}
            ORDER BY words.rank, passage.id LIMIT ?
        """  # noqa: S608 - the conditions are constants of this module; values are bound
        hits: list[TextHit] = []
        authors: Counter[str] = Counter()
        with self._read_lock, _errors_of(self._path):
            expression = match_expression(self._telling(phrases))
            cursor = self._reader.execute(sql, (expression, *values, scanned))
            for row in cursor:
                hit = TextHit(*row)
                authors[hit.author] += 1
                if filter_.per_author is None or authors[hit.author] <= filter_.per_author:
                    hits.append(hit)
                    if len(hits) == limit:
                        break
            cursor.close()
        return tuple(hits)

    def _telling(self, phrases: Sequence[str]) -> Sequence[str]:
        """Without the phrases that are in a good part of all passages, such as the names of common predicates.

        To score every passage that holds one is nearly all the work of a search, and BM25 gives such a word next to no
        weight. They stay when nothing else of the question is in the index.
        """
        (newest,) = self._reader.execute("SELECT coalesce(max(id), 0) FROM passage").fetchone()
        if newest < _MANY_PASSAGES or len(phrases) == 1:
            return phrases
        holders = {phrase: self._holders(phrase) for phrase in phrases}
        telling = [phrase for phrase in phrases if 0 < holders[phrase] <= newest * _COMMON]
        return telling or phrases

    def _holders(self, phrase: str) -> int:
        query = "SELECT count(*) FROM words WHERE words MATCH ?"
        return int(self._reader.execute(query, (match_expression([phrase]),)).fetchone()[0])

    def placed(self) -> list[str]:
        with self._read_lock, _errors_of(self._path):
            return [graph_iri for (graph_iri,) in self._reader.execute("SELECT graph_iri FROM asset")]

    def count(self) -> tuple[int, int]:
        with self._read_lock, _errors_of(self._path):
            (assets,) = self._reader.execute("SELECT count(*) FROM asset").fetchone()
            (passages,) = self._reader.execute("SELECT count(*) FROM passage").fetchone()
        return assets, passages

    def clear(self) -> None:
        with self._write_lock, _errors_of(self._path), _transaction(self._writer):
            self._make_anew()

    def compact(self) -> None:
        with self._write_lock, self._read_lock_too(), _errors_of(self._path):
            with _transaction(self._writer):
                self._writer.execute("INSERT INTO words (words) VALUES ('delete-all')")
                with closing(self._writer.execute("SELECT id, text FROM passage")) as rows:
                    self._writer.executemany(
                        "INSERT INTO words (rowid, text) VALUES (?, ?)", ((id_, index_text(text)) for id_, text in rows)
                    )
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        with self._write_lock, self._read_lock_too():
            self._reader.close()
            self._writer.close()

    @contextmanager
    def _read_lock_too(self) -> Iterator[None]:
        if self._read_lock is self._write_lock:
            yield
        else:
            with self._read_lock:
                yield

    def _prepare(self) -> None:
        tables = {name for (name,) in self._writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if "state" in tables and self._state("format") == FORMAT:
            return
        with _transaction(self._writer):
            self._make_anew()
        log.info("text_index.made")

    def _make_anew(self) -> None:
        for table in _TABLES:
            self._writer.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in _SCHEMA.split(";\n"):
            self._writer.execute(statement)
        self._writer.execute("INSERT INTO state (name, value) VALUES ('format', ?), ('position', 0)", (FORMAT,))

    def _state(self, name: str) -> int:
        row = self._writer.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return 0 if row is None else int(row[0])

    def _put(self, entry: TextEntry) -> None:
        cursor = self._writer.execute(
            "INSERT INTO asset (graph_iri, context_graph, asset, version, seal, author, layer, level, expires_at_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.graph_iri,
                entry.context_graph,
                entry.asset,
                entry.version,
                entry.seal,
                entry.author,
                entry.layer,
                entry.level,
                entry.expires_at_ms,
            ),
        )
        asset_id = cursor.lastrowid
        for passage in entry.passages:
            cursor.execute(
                "INSERT INTO passage (asset_id, subject, text) VALUES (?, ?, ?)",
                (asset_id, passage.subject, passage.text),
            )
            cursor.execute(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", (cursor.lastrowid, index_text(passage.text))
            )

    def _drop(self, graph_iri: str) -> None:
        row = self._writer.execute("SELECT id FROM asset WHERE graph_iri = ?", (graph_iri,)).fetchone()
        if row is None:
            return
        # A contentless index forgets a row only when it is told again what it had been told.
        passages = self._writer.execute("SELECT id, text FROM passage WHERE asset_id = ?", row).fetchall()
        self._writer.executemany(
            "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)",
            [(id_, index_text(text)) for id_, text in passages],
        )
        self._writer.execute("DELETE FROM passage WHERE asset_id = ?", row)
        self._writer.execute("DELETE FROM asset WHERE id = ?", row)


def _conditions(filter_: TextFilter) -> tuple[str, list[str | int]]:
    conditions = ["(expires_at_ms = 0 OR expires_at_ms > ?)"]
    values: list[str | int] = [filter_.now_ms]
    if filter_.least_level is not None:
        conditions.append("level >= ?")
        values.append(filter_.least_level)
    choices = (("context_graph", filter_.context_graphs), ("layer", filter_.layers), ("author", filter_.authors))
    for column, chosen in choices:
        if chosen is not None:
            conditions.append(f"{column} IN ({', '.join('?' * len(chosen))})")
            values += chosen
    return " AND ".join(conditions), values


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "busy_timeout = 5000"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # for a disk that is full SQLite takes back the whole transaction itself
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _errors_of(path: Path | None) -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, OSError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _REFUSALS or getattr(error, "errno", 0) in _NO_ROOM:
            raise DiskError(
                f"the text index {path} could not be read or written: {error}. Nothing is lost; free some space, or "
                "check the disk"
            ) from error
        files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm")] if path is not None else []
        raise TextIndexUnusable(f"the text index {path} cannot be used: {error}; {made_anew(*files)}") from error
