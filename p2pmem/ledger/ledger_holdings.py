"""The ledger as the exchange sees it: `exchange.holdings.Holdings` over the real thing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any

from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.frames import GraphState
from p2pmem_protocol.kinds import CONTENT, CUTS, EVIDENCE, Kind
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.roster import SignedHeader
from p2pmem_protocol.snapshot import View

from p2pmem.exchange.holdings import Admitted, How, Offered, Source
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.rosters import Rosters
from p2pmem.net.seam import PeerId

_IDS_PER_SELECT = 500


class LedgerHoldings:
    """Reads and admissions for peers. `blame` is told what is held against a source."""

    def __init__(
        self, ledger: Ledger, admission: Admission, rosters: Rosters, blame: Callable[[PeerId, RefusedError], None]
    ) -> None:
        self._ledger = ledger
        self._admission = admission
        self._rosters = rosters
        self._blame = blame

    def state(self, graph: GraphId, at_ms: int) -> GraphState:
        found = self._ledger.graphs.get(graph)
        if found is None:
            return GraphState(graph)
        summary = found.view(at_ms, self._ledger.clock.now_ms()).summary()
        return GraphState(graph, found.stand, summary.count, summary.fingerprint, self._admission.is_partial)

    def view(self, graph: GraphId, agreed_ms: int) -> View:
        return self._ledger.graph(graph).view(agreed_ms, self._ledger.clock.now_ms())

    def view_of(self, graph: GraphId, kinds: Collection[int], agreed_ms: int) -> View | None:
        found = self._ledger.graphs.get(graph)
        return found.view_of(kinds, agreed_ms, self._ledger.clock.now_ms()) if found is not None else None

    def sizes(self, graph: GraphId, ids: Sequence[bytes]) -> list[tuple[bytes, int]]:
        return [(item_id, size_bytes) for item_id, size_bytes in self._items(graph, ids, "id, length(data)")]

    def raw(self, graph: GraphId, ids: Sequence[bytes]) -> list[bytes]:
        return [data for (data,) in self._items(graph, ids, "data")]

    def _items(self, graph: GraphId, ids: Sequence[bytes], columns: str) -> list[tuple[Any, ...]]:
        def read(connection: sqlite3.Connection) -> list[tuple[int, Any]]:
            rows: list[tuple[int, Any]] = []
            for at in range(0, len(ids), _IDS_PER_SELECT):
                some = ids[at : at + _IDS_PER_SELECT]
                marks = ",".join("?" * len(some))
                sql = f"SELECT kind, {columns} FROM item WHERE graph = ? AND place = 'in' AND id IN ({marks})"  # noqa: S608
                rows += connection.execute(sql, (graph, *some)).fetchall()
            return rows

        rows = self._ledger.database.read(read)
        return [tuple(row[1:]) for row in sorted(rows, key=lambda row: _rank(Kind(row[0])))]

    def attachment_piece(
        self, graph: GraphId, content_hash: bytes, offset: int, bytes_max: int
    ) -> tuple[int, bytes] | None:
        found = self._ledger.graphs.get(graph)
        if found is None or not found.set.holders(content_hash):
            return None
        return self._ledger.piece(found, content_hash, offset, bytes_max)

    def roster_part(self, graph: GraphId, part_hash: bytes) -> bytes | None:
        found = self._ledger.graphs.get(graph)
        if found is None or found.head is None or part_hash not in found.head.header.part_hashes:
            return None
        return found.parts.get(part_hash)

    def headers(self, graph: GraphId, ids: Collection[bytes]) -> list[bytes]:
        wanted = frozenset(ids)
        return [it.encode() for it in self._ledger.graph(graph).headers.headers() if it.id in wanted]

    def roster_version(self, graph: GraphId) -> int:
        found = self._ledger.graphs.get(graph)
        return found.head.header.version if found is not None and found.head is not None else 0

    def member_count(self, graph: GraphId) -> int:
        found = self._ledger.graphs.get(graph)
        return len(found.head.body.members) if found is not None and found.head is not None else 0

    def lacks_headers(self, graph: GraphId) -> bool:
        found = self._ledger.graph(graph)
        return found.head is not None and found.headers.lacks_ancestors(found.head.id)

    def header_ids(self, graph: GraphId) -> tuple[bytes, ...]:
        return tuple(it.id for it in self._ledger.graph(graph).headers.headers())

    async def add_headers(self, graph: GraphId, headers: Sequence[SignedHeader]) -> None:
        await self._rosters.add_headers(graph, headers)

    def missing_parts(self, graph: GraphId) -> tuple[bytes, ...]:
        return self._ledger.graph(graph).missing_parts()

    async def add_parts(self, graph: GraphId, parts: Sequence[bytes]) -> None:
        await self._rosters.add_parts(graph, parts)

    async def admit(self, items: Sequence[Offered], source: Source) -> list[Admitted]:
        outcomes, blamed = await self._admission.admit(items, source)
        if source.how is not How.TOPIC:
            for refused in blamed:
                self._blame(PeerId(source.peer), refused)
        return outcomes

    def wanted_attachments(self, graph: GraphId) -> tuple[tuple[bytes, int], ...]:
        found = self._ledger.graphs.get(graph)
        # What was admitted may be told after its graph was left: then nothing of it is wanted any more.
        return found.missing_attachments() if found is not None else ()

    async def keep_attachment(self, graph: GraphId, content_hash: bytes, data: bytes) -> bool:
        return await self._admission.keep_attachment(graph, data, content_hash)


def _rank(kind: Kind) -> int:
    """The order in which items are handed over: what cuts, what carries content, the rest, evidence."""
    if kind in CUTS:
        return 0
    if kind in CONTENT:
        return 1
    return 3 if kind in EVIDENCE else 2
