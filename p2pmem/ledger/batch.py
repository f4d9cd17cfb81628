"""What one act changes: rows to write in one transaction, and what to tell once they are on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, AssetKey, GraphId, VersionKey
from p2pmem_protocol.records import State

from p2pmem.exchange.holdings import Source
from p2pmem.ledger.lifecycle import Transition

SET_WORDS: Final = {State.IN: "in", State.CUT: "cut", State.OVER: "over", State.LONE: "lone", State.EXPIRED: "expired"}
STATE_OF_WORD: Final = {word: state for state, word in SET_WORDS.items()}


@dataclass(frozen=True, slots=True)
class NewItem:
    """An envelope or a piece of evidence that came into the set, as it came. `short` is its record, if that is kept."""

    id: bytes
    kind: Kind
    data: bytes
    short: bytes | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed in one graph, told after it is on disk. `source` tells how it came."""

    graph: GraphId
    entered: tuple[NewItem, ...]
    left: tuple[bytes, ...]
    assets: frozenset[AssetKey]
    head_changed: bool
    erased: bool
    source: Source
    position: int


@dataclass(frozen=True, slots=True)
class _Step:
    graph: GraphId
    author: Address
    name: str
    version: int
    transition: Transition
    agent: Address
    root: bytes | None
    seal: bytes | None


@dataclass(slots=True)
class Batch:
    """Rows of one transaction. Filled by the code that decides, written inside a group commit."""

    at_ms: int
    source: Source
    items: list[tuple[GraphId, NewItem]] = field(default_factory=list)
    returned: list[tuple[GraphId, bytes]] = field(default_factory=list)
    """Items that were aside and are in the set again."""
    moved: list[tuple[GraphId, bytes, State]] = field(default_factory=list)
    contents: dict[bytes, tuple[bytes, bytes, int]] = field(default_factory=dict)
    """By their hash: bytes, root, number of statements."""
    attached: list[tuple[GraphId, bytes]] = field(default_factory=list)
    """Content that is not beside an item, by the graph through which it came."""
    steps: list[_Step] = field(default_factory=list)
    events: list[tuple[GraphId, str, AssetKey | None]] = field(default_factory=list)
    headers: list[tuple[GraphId, bytes, bytes]] = field(default_factory=list)
    parts: list[tuple[GraphId, bytes, bytes]] = field(default_factory=list)
    heads: set[GraphId] = field(default_factory=set)
    erased: set[GraphId] = field(default_factory=set)
    """Graphs in which something was erased: its bytes are to go at once."""
    audits: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.items
            or self.returned
            or self.moved
            or self.contents
            or self.steps
            or self.events
            or self.headers
            or self.parts
            or self.audits
        )

    def step(
        self,
        graph: GraphId,
        key: AssetKey,
        version: int,
        transition: Transition,
    ) -> None:
        """Note a lifecycle transition of what is not sealed, by its author. The same one again is kept once."""
        self.steps.append(_Step(graph, key.author, key.name, version, transition, key.author, None, None))

    def sealed_step(self, graph: GraphId, key: VersionKey, transition: Transition) -> None:
        """Note a lifecycle transition of a version, by its author. The same one again is kept once."""
        self.steps.append(_Step(graph, key.author, key.name, key.version, transition, key.author, key.root, key.seal))

    def event(self, graph: GraphId, what: str, assets: Iterable[AssetKey | None]) -> None:
        for key in assets:
            self.events.append((graph, what, key))

    def write(self, connection: sqlite3.Connection) -> int:
        """Write everything; returns the position of the last event, or 0 when there is none."""
        if self.items:
            self._write_items(connection)
        if self.contents:
            # content is named by its hash: the same again is the same
            rows = [(content_hash, *content) for content_hash, content in self.contents.items()]
            connection.executemany("INSERT OR IGNORE INTO content(hash, data, root, leaves) VALUES (?, ?, ?, ?)", rows)
        if self.attached:
            connection.executemany("INSERT OR IGNORE INTO attached(graph, hash) VALUES (?, ?)", self.attached)
        if self.returned or self.moved:
            self._write_places(connection)
        if self.steps:
            connection.executemany(
                "INSERT OR IGNORE INTO lifecycle(graph, author, name, version, transition, agent, root, seal, at_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        it.graph,
                        it.author,
                        it.name,
                        it.version,
                        it.transition.value,
                        it.agent,
                        it.root,
                        it.seal,
                        self.at_ms,
                    )
                    for it in self.steps
                ],
            )
        if self.headers or self.parts:
            self._write_rosters(connection)
        return self._write_events(connection)

    def _write_items(self, connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO item(id, graph, kind, place, aside_ms, received_ms, short, data) "
            "VALUES (?, ?, ?, 'in', NULL, ?, ?, ?)",
            [(item.id, graph, int(item.kind), self.at_ms, item.short, item.data) for graph, item in self.items],
        )

    def _write_places(self, connection: sqlite3.Connection) -> None:
        connection.executemany(
            "UPDATE item SET place = 'in', aside_ms = NULL WHERE id = ?", [(item_id,) for _, item_id in self.returned]
        )
        kept = [(SET_WORDS[state], self.at_ms, item_id) for _, item_id, state in self.moved if state in SET_WORDS]
        gone = [(item_id,) for _, item_id, state in self.moved if state not in SET_WORDS]
        connection.executemany("UPDATE item SET place = ?, aside_ms = ? WHERE id = ?", kept)
        connection.executemany("DELETE FROM item WHERE id = ?", gone)

    def _write_rosters(self, connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT OR IGNORE INTO header(id, graph, data) VALUES (?, ?, ?)",
            [(header_id, graph, data) for graph, header_id, data in self.headers],
        )
        connection.executemany("INSERT OR IGNORE INTO part(graph, hash, data) VALUES (?, ?, ?)", self.parts)

    def _write_events(self, connection: sqlite3.Connection) -> int:
        if not self.events:
            return 0
        connection.executemany(
            "INSERT INTO event(at_ms, graph, what, author, name) VALUES (?, ?, ?, ?, ?)",
            [
                (self.at_ms, graph, what, key.author if key else None, key.name if key else None)
                for graph, what, key in self.events
            ],
        )
        return int(connection.execute("SELECT last_insert_rowid()").fetchone()[0])

    def deltas(self, position: int) -> list[Delta]:
        """What to tell listeners, a graph at a time."""
        graphs = {graph for graph, _ in self.items}
        graphs |= {graph for graph, _ in self.returned} | {graph for graph, _, _ in self.moved}
        graphs |= {graph for graph, _, _ in self.events} | self.heads
        return [
            Delta(
                graph,
                tuple(item for owner, item in self.items if owner == graph),
                tuple(item_id for owner, item_id, _ in self.moved if owner == graph),
                frozenset(key for owner, _, key in self.events if owner == graph and key is not None),
                graph in self.heads,
                graph in self.erased,
                self.source,
                position,
            )
            for graph in sorted(graphs)
        ]
