"""Admission: the one pipeline for everything that is to come into a set, whoever brings it. Cheapest check first.

    size, decode, kind, network     decode_item
    graph                           is it one that we take part in
    time, role or list, quota       GraphSet.test
    signature                       item.check
    content                         canonical, its root and count as sealed, nothing reserved in it

What passes enters the set in memory and is noted in a batch; what does not is a `RefusedError` that says who is to
blame. Nothing is parked: what cannot be decided yet comes again in a round.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_jobs import Blocking
from p2pmem_protocol import record_bytes
from p2pmem_protocol.bodies import RetractMode, Sealed
from p2pmem_protocol.content import Content, check_canonical
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.kinds import CONTENT, Kind
from p2pmem_protocol.limits import CONTENT_INLINE_BYTES_MAX, MINUTE_MS
from p2pmem_protocol.names import Address, AssetKey, GraphId
from p2pmem_protocol.records import SealedRecord, State

from p2pmem.exchange.holdings import SELF, Admitted, Offered, Source
from p2pmem.ledger.batch import Batch, NewItem
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger, Stands
from p2pmem.ledger.lifecycle import Transition

log = logging.getLogger(__name__)

EXPIRED_KEPT_MS: Final = 10 * MINUTE_MS
ADMITTED_AT_ONCE: Final = 32
"""Items in one transaction: some 20 ms of the event loop."""
SWEPT_AT_ONCE: Final = 1_000
"""Items of one graph that a sweep lets go in one transaction."""

_WORDS = {
    Kind.SHARE: "shared",
    Kind.PUBLISH: "published",
    Kind.RETRACT: "retracted",
    Kind.ENDORSE: "endorsed",
    Kind.PROPOSE: "proposed",
    Kind.VERDICT: "verdict",
    Kind.ACK: "acknowledged",
    Kind.ANCHOR: "anchored",
    Kind.REVOKE: "revoked",
}
_TRANSITIONS = {Kind.SHARE: Transition.PROMOTE, Kind.PUBLISH: Transition.PUBLISH}


class Admission:
    """Decides what comes into the sets of the ledger's graphs."""

    def __init__(self, ledger: Ledger, blocking: Blocking) -> None:
        self._ledger = ledger
        self._blocking = blocking
        self.refusals: Counter[Reason] = Counter()
        self.is_partial = False
        """The disk is nearly full: others' content is not admitted (rule J3)."""

    async def admit(self, items: Sequence[Offered], source: Source) -> tuple[list[Admitted], list[RefusedError]]:
        """Test and keep. Returns what became of each, and the refusals that are held against who sent them.

        When it returns, what is new is on disk. It goes piece by piece, so that a large answer of a peer holds up
        nobody else; cancelled between two pieces, those that were done stay.
        """
        outcomes: list[Admitted] = []
        blamed: list[RefusedError] = []
        for at in range(0, len(items), ADMITTED_AT_ONCE):
            batch = self.new_batch(source)
            outcomes += [self._tested(offered, batch, blamed) for offered in items[at : at + ADMITTED_AT_ONCE]]
            if batch:
                await self._ledger.commit(batch)
            else:
                await trio.lowlevel.checkpoint()
        return outcomes, blamed

    def _tested(self, offered: Offered, batch: Batch, blamed: list[RefusedError]) -> Admitted:
        item_id: bytes | None = None
        try:
            item = offered.item
            item_id = item.id
            self.take(item, offered.data, batch)
        except RefusedError as refused:
            if refused.reason is Reason.DUPLICATE and self._is_in_set(item_id):
                return Admitted(item_id, is_new=False, reason=None)
            self.refusals[refused.reason] += 1
            if refused.reason < Reason.UNKNOWN_KIND:
                blamed.append(refused)
            return Admitted(item_id, is_new=False, reason=refused.reason)
        return Admitted(item_id, is_new=True, reason=None)

    def new_batch(self, source: Source) -> Batch:
        return Batch(self._ledger.clock.now_ms(), source)

    def take(self, item: Item, data: bytes, batch: Batch, own: Content | None = None, *, is_own: bool = False) -> None:
        """Admit one item into the set in memory and note the rows in `batch`, which the caller writes.

        `is_own` says that this node has just signed it, `own` that it did so over that content: neither signatures nor
        content are looked at again then. Raises `RefusedError`; nothing changed.
        """
        graph = self._ledger.graphs.get(item.graph)
        if graph is None:
            raise RefusedError(Reason.UNKNOWN_GRAPH, "for a context graph that is not known here")
        size = len(data)
        content = own.data if own is not None else None

        def check_rest() -> None:
            """What costs most comes last: signatures, then content."""
            nonlocal content
            if not is_own:
                if self.is_partial and item.kind in CONTENT:
                    raise RefusedError(Reason.PARTIAL, "there is too little room on this node's disk")
                item.check()
            if own is None:
                content = _content_of(item)

        changes = graph.set.admit(item, size, batch.at_ms, check_rest=check_rest)
        record = graph.set.record(item.id)
        assert record is not None
        batch.items.append((graph.id, NewItem(item.id, item.kind, data, record_bytes.to_bytes(record))))
        if isinstance(record, SealedRecord):
            if content is not None:
                self._hold(graph, record.content_hash, content, (record.key.root, record.leaves), batch)
            elif not self._ledger.judge_content(graph, record):
                graph.want(record)
            batch.sealed_step(graph.id, record.key, _TRANSITIONS[item.kind])
        self.note(graph, changes, batch, word=_WORDS[item.kind], new=item.id)

    def _hold(self, graph: LedgerGraph, content_hash: bytes, data: bytes, stands: Stands, batch: Batch) -> None:
        batch.contents[content_hash] = (data, *stands)
        if len(data) > CONTENT_INLINE_BYTES_MAX:
            batch.attached.append((graph.id, content_hash))
        self._ledger.hold(graph, content_hash, data, stands)

    def note(self, graph: LedgerGraph, changes: Changes, batch: Batch, *, word: str, new: bytes | None = None) -> None:
        """Put what the set says has changed into the batch."""
        if not changes:
            return
        graph.changed(changes)
        self._hold_again(graph, changes.entered, batch)
        batch.returned += [(graph.id, item_id) for item_id in changes.entered if item_id != new]
        batch.moved += [(graph.id, it.id, it.state) for it in (*changes.left, *changes.aside)]
        for departure in changes.left:
            if departure.state is State.ERASED:
                batch.erased.add(graph.id)
        assets: list[AssetKey | None] = [*sorted(changes.assets)]
        batch.event(graph.id, word, assets or [None])

    def _hold_again(self, graph: LedgerGraph, entered: Sequence[bytes], batch: Batch) -> None:
        """What was over a quota for long is without its content when it finds room again.

        All members may have let it go meanwhile: what came beside an item is taken from that.
        """
        for record in map(graph.set.record, entered):
            if not isinstance(record, SealedRecord) or record.content_is_other:
                continue
            if self._ledger.judge_content(graph, record):
                continue
            content = self._ledger.beside(record) if record.is_inline else None
            if content is not None:
                self._hold(graph, record.content_hash, content, (record.key.root, record.leaves), batch)
            else:
                graph.want(record)

    def _is_in_set(self, item_id: bytes | None) -> bool:
        return item_id is not None and any(item_id in graph.set for graph in self._ledger.graphs.values())

    async def keep_attachment(self, graph_id: GraphId, data: bytes, content_hash: bytes) -> bool:
        """Keep fetched content when something in the set that names it was sealed over it.

        Where nothing was, it is not asked for again; who gave it gave what was asked for.
        """
        if self.is_partial:
            return False
        graph = self._ledger.graph(graph_id)
        if not graph.wanting(content_hash):
            return False
        stands = await self._blocking.run(_stands_of, data)
        naming = graph.wanting(content_hash)
        if stands is None or not any((record.key.root, record.leaves) == stands for record in naming):
            for record in naming:
                record.content_is_other = True
            graph.wanted.pop(content_hash, None)
            log.info("content.of_no_seal", extra={"graph": str(graph.name)})
            return False
        batch = self.new_batch(SELF)
        self._hold(graph, content_hash, data, stands, batch)
        batch.event(graph.id, "content", sorted({record.key.asset for record in naming}))
        await self._ledger.commit(batch)
        return True

    async def sweep(self) -> int:
        """Let go what has ended in every graph; one event an asset, one audit line a sweep. Returns how many went.

        Piece by piece, each in a transaction of its own. Stopped half way, the next sweep goes on.
        """
        at_ms = self._ledger.clock.now_ms()
        gone = 0
        more = True
        while more:
            batch = Batch(at_ms, SELF)
            more = False
            for graph in self._ledger.graphs.values():
                changes = graph.set.sweep(at_ms, SWEPT_AT_ONCE)
                gone += sum(departure.state is State.EXPIRED for departure in changes.left)
                self.note(graph, changes, batch, word="expired")
                next_ms = graph.set.next_end_ms()
                more = more or (next_ms is not None and next_ms <= at_ms)
            if gone and not more:
                batch.audits.append(("sweep", f"{gone} ended"))
            if batch:
                await self._ledger.commit(batch)
        return gone

    async def purge(self) -> int:
        """Delete what ended ten minutes ago, and content that nothing names any more. Returns how much content went.

        An author's own sealed versions stay, whatever became of what was shared, unless they were erased. In memory it
        is forgotten at once and no later purge would find it, so the disk is asked until it takes that.
        """
        ledger = self._ledger
        before_ms = ledger.clock.now_ms() - EXPIRED_KEPT_MS
        rows, acting = await ledger.database.read_slowly(_own_versions)
        assets = {(row.graph, row.key) for row in rows}
        gone = {it: self._erased_versions(*it, acting.get(it[1].author, ())) for it in assets}
        erased: list[_Own] = []
        own: dict[GraphId, set[bytes]] = {}
        for row in rows:
            if row.version in gone[row.graph, row.key]:
                erased.append(row)
            else:
                own.setdefault(row.graph, set()).add(row.content_hash)
        parted = [(of, it) for of, graph in ledger.graphs.items() for it in graph.forget_unnamed(own.get(of, ()))]
        kept = set[bytes]().union(*own.values(), *(graph.held for graph in ledger.graphs.values()))
        unnamed = [content_hash for content_hash in ledger.held if content_hash not in kept]
        for content_hash in unnamed:
            ledger.held.pop(content_hash, None)

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM item WHERE place = 'expired' AND aside_ms <= ?", (before_ms,))
            connection.executemany("DELETE FROM content WHERE hash = ?", [(it,) for it in unnamed])
            connection.executemany("DELETE FROM attached WHERE graph = ? AND hash = ?", parted)
            connection.executemany(
                "DELETE FROM own WHERE graph = ? AND agent = ? AND name = ? AND version = ?",
                [(row.graph, row.key.author, row.key.name, row.version) for row in erased],
            )

        await ledger.database.write(delete, owed=True)
        return len(unnamed)

    def _erased_versions(self, graph_id: GraphId, key: AssetKey, principals: Collection[Address]) -> set[int]:
        """The versions of an asset sealed here that were retracted with erase.

        Anybody may give a delegation to anybody, and show it in a retract: a principal's takes back what was said for
        it, so it erases nothing of an author that did not take its delegation, and no version of which more remains.
        """
        graph = self._ledger.graphs.get(graph_id)
        if graph is None:
            return set()
        erasers = [it for it in graph.set.retracts(key) if it.mode is RetractMode.ERASE]
        erased = {it.version for it in erasers if not it.as_principal}
        asked = {it.version for it in erasers if it.as_principal and it.author in principals} - erased
        asset = graph.set.asset(key) if asked else None
        remaining = {it.key.version for it in asset.versions if it.present} if asset is not None else set()
        return erased | (asked - remaining)


def _content_of(item: Item) -> bytes | None:
    """The content that comes with an item, checked against its seal; None when there is none, or it is attached."""
    if not isinstance(item, Envelope) or not isinstance(item.body, Sealed):
        return None
    data = item.body.content.inline
    if data is not None:
        check_sealed(item.body, data)
    return data


def _stands_of(data: bytes) -> Stands | None:
    """What some content is, None for bytes that are none. For a worker thread, since 16 MiB take seconds."""
    try:
        content = check_canonical(data)
    except RefusedError:
        return None
    return (content.root, content.line_count)


def check_sealed(body: Sealed, data: bytes) -> None:
    """Raises `RefusedError` unless `data` is canonical and is what the seal in `body` was made over."""
    seal = body.seal.seal
    content = check_canonical(data)
    if content.line_count != seal.leaves:
        raise RefusedError(
            Reason.CONTENT_ROOT_MISMATCH, f"{content.line_count} statements where the seal says {seal.leaves}"
        )
    if content.root != seal.root:
        raise RefusedError(Reason.CONTENT_ROOT_MISMATCH, "content whose root is not the one that was sealed")


@dataclass(frozen=True, slots=True)
class _Own:
    """A version that this node's agent let go, and where its content is."""

    graph: GraphId
    key: AssetKey
    version: int
    content_hash: bytes


def _own_versions(connection: sqlite3.Connection) -> tuple[list[_Own], dict[Address, set[Address]]]:
    """What was sealed here, and for whom each agent acts."""
    rows = connection.execute("SELECT graph, agent, name, version, content_hash FROM own")
    own = [
        _Own(GraphId(graph), AssetKey(Address(agent), name), version, content_hash)
        for graph, agent, name, version, content_hash in rows
    ]
    acting: dict[Address, set[Address]] = {}
    for agent, principal in connection.execute("SELECT agent, principal FROM delegation"):
        acting.setdefault(Address(agent), set()).add(Address(principal))
    return own, acting
