"""The ledger: what this node knows, in memory for deciding and on disk for keeping.

Every change goes the same way: decide in memory, note what follows in a `Batch`, write it in a group commit, and only
then tell listeners and callers. The memory may so be ahead of the disk by one commit, never by an acknowledgement; when
a commit fails the node stops, and what it starts again with is the disk.

    prepare (decide)  ->  batch.write (one transaction, possibly with rows of a job)  ->  tell (listeners, waiters)
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from p2pmem_jobs import Clock, Database, Listener, Signal, component_version
from p2pmem_protocol.bodies import Sealed
from p2pmem_protocol.envelope import Envelope, decode_item
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hello import Speaker
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, GraphId, GraphName, NetworkId
from p2pmem_protocol.record_bytes import RecordReader
from p2pmem_protocol.records import Record, SealedRecord, record_of
from p2pmem_protocol.roster import Access, SignedHeader

from p2pmem.face import NotFoundError
from p2pmem.ledger import audit
from p2pmem.ledger.batch import STATE_OF_WORD, Batch, Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.schema import BEFORE, COMPONENT, MIGRATIONS
from p2pmem.net.seam import PeerId

log = logging.getLogger(__name__)

Hears = Callable[[Delta], None]

Stands: TypeAlias = tuple[bytes, int]
"""The root and the number of statements of some content."""

UNKNOWN_GRAPH_TEXT: Final = "is not a context graph that this node takes part in"
"""One text for unknown graphs and for graphs of others."""


@dataclass(frozen=True, slots=True)
class ChainFact:
    """What this node saw of an anchored batch: claimed, confirmed or reverted."""

    batch_root: bytes
    chain: int
    state: str
    transaction: bytes
    block: int


class RecentContents:
    """The last contents that came, so that who follows the ledger does not read the disk. Bounded; the oldest go."""

    def __init__(self, bytes_max: int = 2 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._data: dict[bytes, bytes] = {}

    def add(self, content_hash: bytes, data: bytes) -> None:
        if content_hash in self._data or len(data) > self._bytes_max // 8:
            return
        self._data[content_hash] = data
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            oldest = next(iter(self._data))
            self._bytes -= len(self._data.pop(oldest))

    def get(self, content_hash: bytes) -> bytes | None:
        return self._data.get(content_hash)


class Ledger:
    """All graphs of one node. Made by `Ledger.open`; used from one trio task tree."""

    def __init__(
        self, database: Database, clock: Clock, network: NetworkId, random_bytes: Callable[[int], bytes]
    ) -> None:
        self.database = database
        self.clock = clock
        self.network = network
        self.random_bytes = random_bytes
        self.graphs: dict[GraphId, LedgerGraph] = {}
        self.position = 0
        self.held: dict[bytes, Stands] = {}
        """Content by its hash: its root, and how many statements it has. Of which graphs it is, each of them says."""
        self._recent = RecentContents()
        self.chain_facts: dict[bytes, ChainFact] = {}
        self._listeners: list[Hears] = []
        self.changed = Signal()
        """Something that a wait may depend on has changed: deltas, chain facts, sessions."""

    @classmethod
    async def open(
        cls, database: Database, clock: Clock, network: NetworkId, random_bytes: Callable[[int], bytes]
    ) -> Ledger:
        """Bring the tables up to date and read what decisions need into memory."""
        if database.read(lambda connection: component_version(connection, BEFORE)):
            raise MisuseError(
                f"{database.path} was written under version 1 of the protocol, whose verdicts and endorsements count "
                "no more and whose peers do not talk with this one. Move the file away, and keep key and settings: the "
                "node then starts without a graph, to found or join them and share anew. The program that wrote the "
                "file still shows what is in it"
            )
        await database.migrate(COMPONENT, MIGRATIONS)
        ledger = cls(database, clock, network, random_bytes)
        stored = ledger.get_setting("network")
        if stored is None:
            await ledger.set_setting("network", network.hex())
        elif stored != network.hex():
            raise MisuseError(
                f"{database.path} belongs to another network than the configuration names: "
                "change `network` back, or start with an empty directory"
            )
        of_nothing = database.read(ledger._load)
        if of_nothing:
            delete = "DELETE FROM attached WHERE graph = ? AND hash = ?"
            await database.write(lambda connection: connection.executemany(delete, of_nothing))
        now_ms = clock.now_ms()
        for graph in ledger.graphs.values():
            head = graph.newest_whole()
            if head is not None:
                graph.head = head
                forked, named = graph.headers.head().forked, graph.headers.quorums_of(head.id)
                # What has ended meanwhile is for the first sweep: it writes what changes by that.
                graph.set.set_head(head, now_ms, forked=forked, named=named, lets_go=False)
            graph.next_head()
        return ledger

    # Graphs

    def graph(self, graph: GraphId) -> LedgerGraph:
        """Raises `NotFoundError` with one text for a graph that is unknown and one that is not ours."""
        try:
            return self.graphs[graph]
        except KeyError:
            raise NotFoundError(f"0x{graph.hex()[:16]} {UNKNOWN_GRAPH_TEXT}") from None

    def named(self, text: str) -> LedgerGraph:
        """A graph by `<creator>/<slug>` or its IRI."""
        name = GraphName.parse(text)
        found = self.graphs.get(name.id)
        if found is None:
            raise NotFoundError(f"{name} {UNKNOWN_GRAPH_TEXT}; `p2pmem graph list` shows those that it does")
        return found

    def track(self, name: GraphName, now_ms: int) -> LedgerGraph:
        """Take part in a graph from now on, in memory; `join_rows` writes it."""
        return self.graphs.setdefault(name.id, LedgerGraph.new(name, self.network, now_ms))

    def join_rows(self, connection: sqlite3.Connection, graph: LedgerGraph) -> None:
        """Write that we take part, for the first time or again."""
        connection.execute(
            "INSERT INTO graph(id, creator, slug, joined_ms) VALUES (?, ?, ?, ?) "
            "ON CONFLICT(id) DO UPDATE SET left_ms = NULL",
            (graph.id, graph.name.creator, graph.name.slug, graph.joined_ms),
        )

    # What sessions ask (net.sessions.Membership)

    def stand(self) -> Hashable:
        """Takes some 8 us for a hundred graphs, where to ask who may do what takes milliseconds."""
        graphs = self.graphs.values()
        return tuple([graph.head for graph in graphs]), tuple([graph.set.revocations_changed for graph in graphs])

    def graphs_with_head(self) -> Iterable[GraphId]:
        return (graph.id for graph in self.graphs.values() if graph.head is not None)

    def is_member(self, graph: GraphId, agent: Address) -> bool:
        found = self.graphs.get(graph)
        return found is not None and found.is_member(agent)

    def is_open(self, graph: GraphId) -> bool:
        found = self.graphs.get(graph)
        return found is not None and found.head is not None and found.head.body.limits.access is Access.OPEN

    def is_revoked(self, speaker: Speaker, peer: PeerId) -> bool:
        for graph in self.graphs.values():
            revoked = graph.set.revocations_changed and graph.set.revoked_peer_serial(speaker.agent, peer)
            if revoked >= speaker.serial:
                return True
        return False

    def is_delegation_revoked(self, principal: Address, agent: Address, serial: int) -> bool:
        return any(
            graph.set.revoked_agent_serial(principal, agent) >= serial
            for graph in self.graphs.values()
            if graph.set.revocations_changed
        )

    # Writing

    async def commit(
        self, batch: Batch, also: Callable[[sqlite3.Connection], object] | None = None, *, owed: bool = True
    ) -> None:
        """Write a batch, with `also` in the same transaction, and tell. Returns when it is on disk.

        The set in memory has changed already, so a cancellation waits, and a disk that refuses is asked until it takes
        it: what is in the set and not on disk would be relayed to nobody and lost with the next start. Where nothing
        has changed yet it is not `owed`: then it raises what the disk says.
        """

        def write(connection: sqlite3.Connection) -> int:
            if also is not None:
                also(connection)
            return self.write_rows(connection, batch)

        await self.database.write(write, lambda position: self.tell(batch, position), shield=True, owed=owed)

    def write_rows(self, connection: sqlite3.Connection, batch: Batch) -> int:
        """Write a batch inside somebody's transaction; `tell` is due after its commit."""
        for what, payload in batch.audits:
            audit.append(connection, batch.at_ms, what, payload, self.random_bytes)
        return batch.write(connection)

    def tell(self, batch: Batch, position: int) -> None:
        """A batch is on disk: move the position and call the listeners, in order of commits."""
        if position:
            assert position > self.position
            self.position = position
        for delta in batch.deltas(position or self.position):
            for listener in self._listeners:
                listener(delta)
        self.wake()

    def listen(self, listener: Hears) -> Callable[[], None]:
        """Call `listener` for every delta from now on, in order. It must not block. Returns how to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def wake(self) -> None:
        """Let everybody who waits test again: something that is not a delta may have changed too."""
        self.changed.notify()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Return once `predicate` is true: tested now, and again after every change. Cancel it with a scope."""
        with Listener((self.changed,)) as listener:
            while not predicate():
                await listener.wait()

    # Reading

    def hold(self, graph: LedgerGraph, content_hash: bytes, data: bytes, of: Stands) -> None:
        """Content has come through a graph and is about to be written. `of` is what it is."""
        self.held[content_hash] = of
        self._recent.add(content_hash, data)
        graph.held.add(content_hash)
        if content_hash in graph.wanted:
            for record in graph.wanting(content_hash):
                self.judge_content(graph, record)
            del graph.wanted[content_hash]

    def judge_content(self, graph: LedgerGraph, record: SealedRecord) -> bool:
        """Whether its graph holds the content that this names; and if so, note whether it is what was sealed."""
        if record.content_hash not in graph.held:
            return False
        stands = self.held.pop(record.content_hash)
        sealed = (record.key.root, record.leaves)
        record.content_is_other = stands != sealed
        # There is a line for each content: with the hashes of the record, not with equal ones of its own.
        self.held[record.content_hash] = stands if record.content_is_other else sealed
        return True

    def content(self, graph: LedgerGraph, content_hash: bytes) -> bytes | None:
        """Sealed bytes by their hash, when they came through this graph."""
        return self.sealed_here(content_hash) if content_hash in graph.held else None

    def piece(self, graph: LedgerGraph, content_hash: bytes, offset: int, bytes_max: int) -> tuple[int, bytes] | None:
        """How long such content is, and some of it from `offset` on. It reads no more than that: who fetches 16 MiB in
        128 pieces would make it read 2 GiB."""
        if content_hash not in graph.held or content_hash not in self.held:
            return None
        recent = self._recent.get(content_hash)
        if recent is not None:
            return len(recent), recent[offset : offset + bytes_max]

        def read(connection: sqlite3.Connection) -> tuple[int, bytes] | None:
            row = connection.execute("SELECT rowid FROM content WHERE hash = ?", (content_hash,)).fetchone()
            if row is None:
                return None
            with connection.blobopen("content", "data", row[0], readonly=True) as blob:
                blob.seek(min(offset, len(blob)))
                return len(blob), blob.read(bytes_max)

        return self.database.read(read)

    def sealed_here(self, content_hash: bytes) -> bytes | None:
        """Sealed bytes by their hash, whichever way they came: for an agent's own versions alone."""
        if content_hash not in self.held:
            return None
        recent = self._recent.get(content_hash)
        if recent is not None:
            return recent
        return self._read_blob("SELECT data FROM content WHERE hash = ?", content_hash)

    def beside(self, record: SealedRecord) -> bytes | None:
        """The content that came beside a share or publish, wherever that stands; None where there was none."""
        data = self._read_blob("SELECT data FROM item WHERE id = ?", record.id)
        item = decode_item(data) if data is not None else None
        return item.body.content.inline if isinstance(item, Envelope) and isinstance(item.body, Sealed) else None

    def raw(self, item_id: bytes) -> bytes | None:
        """An item as it came, when it is in the set and on disk."""
        return self._read_blob("SELECT data FROM item WHERE id = ? AND place = 'in'", item_id)

    def _read_blob(self, sql: str, key: bytes) -> bytes | None:
        def read(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute(sql, (key,)).fetchone()
            return bytes(row[0]) if row else None

        return self.database.read(read)

    def get_setting(self, key: str) -> str | None:
        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute("SELECT value FROM setting WHERE key = ?", (key,)).fetchone()
            return str(row[0]) if row else None

        return self.database.read(read)

    async def set_setting(self, key: str, value: str) -> None:
        """Remember a value for good."""
        await self.database.write(lambda connection: self.write_setting(connection, key, value))

    def write_setting(self, connection: sqlite3.Connection, key: str, value: str) -> None:
        """The same inside somebody's transaction."""
        connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (key, value))

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            graphs=len(self.graphs),
            items=sum(len(graph.set) for graph in self.graphs.values()),
            contents=len(self.held),
            position=self.position,
        )

    # Loading

    def _load(self, connection: sqlite3.Connection) -> list[tuple[GraphId, bytes]]:
        """Returns attached content that is written down for a graph in which nothing names it: it is not of that graph.

        That is so of graphs that were left. Whoever names it from now on gets nothing for it.
        """
        for creator, slug, joined_ms in connection.execute(
            "SELECT creator, slug, joined_ms FROM graph WHERE left_ms IS NULL"
        ):
            graph = LedgerGraph.new(GraphName(Address(creator), slug), self.network, joined_ms)
            self.graphs[graph.id] = graph
        headers: dict[GraphId, list[SignedHeader]] = {}
        for graph_id, data in connection.execute("SELECT graph, data FROM header"):
            headers.setdefault(GraphId(graph_id), []).append(SignedHeader.decode(data))
        for graph_id, signed in headers.items():
            if graph_id in self.graphs:
                self.graphs[graph_id].headers.add_all(signed, checked=True)
        for graph_id, part_hash, data in connection.execute("SELECT graph, hash, data FROM part"):
            if graph_id in self.graphs:
                self.graphs[GraphId(graph_id)].parts[part_hash] = data
        for content_hash, root, leaves in connection.execute("SELECT hash, root, leaves FROM content"):
            self.held[content_hash] = (root, leaves)
        attached = {(GraphId(graph), it) for graph, it in connection.execute("SELECT graph, hash FROM attached")}
        named = self._load_items(connection, attached)
        sealed_here = {(GraphId(graph), it) for graph, it in connection.execute("SELECT graph, content_hash FROM own")}
        for graph_id, content_hash in attached & sealed_here:
            if graph_id in self.graphs and content_hash in self.held:
                self.graphs[graph_id].held.add(content_hash)
        for row in connection.execute("SELECT batch_root, chain, state, transaction_hash, block FROM chain_fact"):
            self.chain_facts[row[0]] = ChainFact(*row)
        self.position = connection.execute("SELECT coalesce(max(position), 0) FROM event").fetchone()[0]
        return [*(attached - sealed_here - named)]

    def _load_items(
        self, connection: sqlite3.Connection, attached: set[tuple[GraphId, bytes]]
    ) -> set[tuple[GraphId, bytes]]:
        """Returns the content that is named and did not come beside what names it, by graph."""
        reader = RecordReader()
        apart: list[tuple[LedgerGraph, SealedRecord]] = []
        rows = connection.execute(
            "SELECT arrival, id, graph, kind, place, aside_ms, short FROM item "
            "WHERE place != 'expired' ORDER BY arrival"
        )
        for arrival, item_id, graph_id, kind, place, aside_ms, short in rows:
            graph = self.graphs.get(graph_id)
            if graph is None:
                continue
            if short is not None:
                record: Record = reader.from_bytes(short, item_id, _KINDS[kind])
            else:
                (data,) = connection.execute("SELECT data FROM item WHERE arrival = ?", (arrival,)).fetchone()
                record = record_of(decode_item(data), len(data))
            graph.set.restore_record(record, STATE_OF_WORD[place], aside_ms or 0)
            if isinstance(record, SealedRecord):
                if record.is_inline and record.content_hash in self.held:
                    graph.held.add(record.content_hash)
                    self.judge_content(graph, record)
                else:
                    apart.append((graph, record))
        for graph, record in apart:
            if (graph.id, record.content_hash) in attached and record.content_hash in self.held:
                graph.held.add(record.content_hash)
            if not self.judge_content(graph, record):
                graph.want(record)
        return {(graph.id, record.content_hash) for graph, record in apart}


_KINDS: Final = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """Counts: graphs taken part in, items in their sets, contents held, and the position of the last event."""

    graphs: int
    items: int
    contents: int
    position: int
