"""Rosters in the ledger: headers come in, parts follow, and when all are held the head changes and everything is judged
anew under it (rules H1 to H5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.names import GraphId, GraphName
from p2pmem_protocol.roster import Parts, Roster, SignedHeader

from p2pmem.exchange.holdings import SELF
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class Rosters:
    """Takes rosters into the ledger."""

    def __init__(self, ledger: Ledger, admission: Admission, lets_go: Callable[[], bool]) -> None:
        """While `lets_go` says no, as the clock is in doubt, a new head lets nothing go for its age."""
        self._lets_go = lets_go
        self._ledger = ledger
        self._admission = admission

    async def add_headers(self, graph_id: GraphId, headers: Sequence[SignedHeader]) -> None:
        """Take in headers that follow from those held. Raises `RefusedError` for one that is wrong for everybody."""
        graph = self._ledger.graph(graph_id)
        batch = self._admission.new_batch(SELF)
        self._note_headers(graph, headers, batch)
        self._adopt_if_whole(graph, batch)
        if batch:
            await self._ledger.commit(batch)

    async def add_parts(self, graph_id: GraphId, parts: Sequence[bytes]) -> None:
        """Keep parts of the head; others are ignored. When none is missing any more the head is adopted."""
        graph = self._ledger.graph(graph_id)
        batch = self._admission.new_batch(SELF)
        self._note_parts(graph, parts, batch)
        self._adopt_if_whole(graph, batch)
        if batch:
            await self._ledger.commit(batch)

    async def adopt(self, name: GraphName, headers: Sequence[SignedHeader], parts: Parts) -> bool:
        """Take in a chain with the parts of its last roster. Returns whether that one is the head now."""
        batch = self._admission.new_batch(SELF)
        graph = self.prepare(name, headers, parts, batch)
        await self._ledger.commit(batch, lambda connection: self._ledger.join_rows(connection, graph))
        return graph.head is not None and bool(headers) and graph.head.id == headers[-1].id

    def prepare(self, name: GraphName, headers: Sequence[SignedHeader], parts: Parts, batch: Batch) -> LedgerGraph:
        """The same in memory, with the rows in a batch that the caller commits together with `Ledger.join_rows`."""
        graph = self._ledger.track(name, batch.at_ms)
        self._note_headers(graph, headers, batch)
        self._note_parts(graph, parts.all, batch)
        self._adopt_if_whole(graph, batch)
        return graph

    def _note_headers(self, graph: LedgerGraph, headers: Sequence[SignedHeader], batch: Batch) -> None:
        for signed in graph.headers.add_all(headers):
            batch.headers.append((graph.id, signed.id, signed.encode()))

    def _note_parts(self, graph: LedgerGraph, parts: Sequence[bytes], batch: Batch) -> None:
        wanted = set(graph.missing_parts())
        for part in parts:
            part_hash = keccak256(part)
            if part_hash in wanted:
                graph.parts[part_hash] = part
                batch.parts.append((graph.id, part_hash, part))

    def _adopt_if_whole(self, graph: LedgerGraph, batch: Batch) -> None:
        try:
            head = graph.next_head()
        except RefusedError:
            log.warning("roster.broken", extra={"graph": str(graph.name)})
            return
        if head is None and graph.is_judged_otherwise():
            # The head of a fork is the parent: who has just heard of the branches keeps it, and judges as forked. And
            # a header of an earlier term may name the quorum of a certificate that the head keeps.
            head = graph.head
        if head is not None:
            self._adopt(graph, head, batch)

    def _adopt(self, graph: LedgerGraph, head: Roster, batch: Batch) -> None:
        forked = graph.headers.head().forked
        graph.head = head
        named = graph.headers.quorums_of(head.id)
        changes = graph.set.set_head(head, batch.at_ms, forked=forked, named=named, lets_go=self._lets_go())
        batch.heads.add(graph.id)
        batch.event(graph.id, "head", [None])
        self._admission.note(graph, changes, batch, word="judged")
        batch.audits.append(("head", f"{graph.name} version {head.header.version} term {head.header.term}"))
        log.info("head.adopted", extra={"graph": str(graph.name), "version": head.header.version, "forked": forked})
