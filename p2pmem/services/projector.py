"""From the ledger to what answers questions: the triple store and the full-text index follow the numbered events.

An event names an asset; what is placed is not what the event says but how the asset stands now. So events may be taken
together, in any number, and told again after a crash.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

import trio
from p2pmem_jobs import Signal
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, AssetKey, GraphId, GraphName
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import asset_view

from p2pmem.face import Layer
from p2pmem.keyring import Keyring
from p2pmem.ledger.batch import Delta
from p2pmem.ledger.drafts import Draft, read_draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.recall.passages import extract_passages
from p2pmem.recall.text_index import TextChange, TextEntry, TextIndex, TextMark
from p2pmem.services.describing import Describer
from p2pmem.services.placed import Graphs, PlacedGraphs, Stands
from p2pmem.services.placing import (
    Placed,
    aggregate_iri,
    asset_of,
    placements,
    working_iri,
)
from p2pmem.store.holding import hold
from p2pmem.store.placement import Placement, StoreChange
from p2pmem.store.projection import OxigraphProjection
from p2pmem.store.refusal import Refusal

log = logging.getLogger(__name__)

ASSETS_PER_APPLY: Final = 200
EVENTS_PER_APPLY: Final = 400
GATHERED_S: Final = 0.05
"""So long what only bears on trust waits for more of it, unless somebody waits for it."""
_BEARS_ON_TRUST: Final = frozenset({Kind.PROPOSE, Kind.VERDICT, Kind.ENDORSE, Kind.ACK})
ASSETS_AT_ONCE: Final = 25
"""So many are looked at before other tasks have their turn: some five milliseconds."""


@dataclass(frozen=True, slots=True)
class _Text:
    """An asset for the text index, before its content is read."""

    entry: TextEntry
    content: bytes

    def read(self) -> TextEntry:
        return replace(self.entry, passages=extract_passages(self.content).passages)


@dataclass(frozen=True, slots=True)
class _Change:
    """What follows from some events, decided in the event loop; what is long is made of it in a worker thread."""

    puts: list[Placement] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    texts: list[_Text] = field(default_factory=list)
    marks: list[TextMark] = field(default_factory=list)
    names: dict[GraphId, GraphName] = field(default_factory=dict)
    """Of the graphs in which this node took part when it was decided."""
    stands: dict[tuple[GraphId, AssetKey], Graphs] = field(default_factory=dict)
    """How each asset stands once this is applied."""

    def for_store(self) -> StoreChange:
        return StoreChange(tuple(self.puts), tuple(self.drops))

    def for_text(self) -> TextChange:
        texts = tuple(text.read() for text in self.texts)
        return TextChange(texts, tuple(self.drops), tuple(self.marks))


class Projector:
    """Keeps the projections up to date. `run` it in the node's nursery."""

    def __init__(
        self,
        ledger: Ledger,
        store: OxigraphProjection,
        text: TextIndex,
        own_agents: Keyring,
        *,
        now_ms: Callable[[], int],
        gathers_s: float = 0.0,
    ) -> None:
        """`own_agents` are those who may have drafts here; `now_ms` is the time by which something has ended;
        `gathers_s`: so long everything waits for more of it, unless somebody waits for it."""
        self._ledger = ledger
        self._now_ms = now_ms
        self._store = store
        self._text = text
        self._own_agents = own_agents
        self._gathers_s = gathers_s
        self._placed = PlacedGraphs()
        self._pressing = trio.Event()
        self._pressed_at = 0
        """The position of the last change that is to be projected at once."""
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._number = 0
        self._busy = trio.Lock()
        self._is_half_made = False  # a rebuild has begun, and not ended
        self.moved = Signal()
        """One of the projections has moved on."""
        self.describer = Describer(ledger, store, now_ms)

    @property
    def position(self) -> int:
        """Up to which position both projections are true."""
        return min(self._store.position, self._text.position)

    def refusals(self) -> tuple[str, ...]:
        """What the disk says, while it refuses what is to be written of a projection."""
        return tuple(said for refusal in self._refusals if (said := refusal.said) is not None)

    def check_takes(self) -> None:
        """`DiskError` while the disk refuses one of the projections."""
        for refusal in self._refusals:
            refusal.check_takes()

    @property
    def _refusals(self) -> tuple[Refusal, Refusal]:
        return self._store.refusal, self._text.refusal

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Rebuild if need be, then follow until cancelled. It has started when it follows, or when a rebuild has to
        wait for a disk that refuses: the node then serves what needs no projection."""
        has_begun = trio.Event()
        for refusal in self._refusals:
            refusal.on_begin = has_begun.set
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_all, has_begun)
            await has_begun.wait()
            task_status.started()

    async def _follow_all(self, has_begun: trio.Event) -> None:
        async with self._busy:
            if self._must_rebuild():
                await self.rebuild()
            else:
                self._remember_placed()
                self.describer.begin(self.position)
        has_begun.set()
        self._pressed_at = self._ledger.position
        self._ledger.listen(self._heard)
        while True:
            await self._ledger.until(lambda: self._is_half_made or self._ledger.position > self.position)
            await self._gather()
            async with hold(self._busy):
                if self._is_half_made:
                    await self.rebuild()
                else:
                    await self._follow()

    def _heard(self, delta: Delta) -> None:
        """What only bears on trust may wait for more of it; everything else is taken at once."""
        if not delta.entered or delta.left or any(item.kind not in _BEARS_ON_TRUST for item in delta.entered):
            self._pressed_at = delta.position
            if not self._gathers_s:
                self._pressing.set()

    def hurry(self) -> None:
        """Somebody waits: take at once what there is."""
        self._pressing.set()

    async def _gather(self) -> None:
        """Verdicts on one version come from many in a moment: it is placed once for some of them."""
        wait_s = max(self._gathers_s, GATHERED_S if self._pressed_at <= self.position else 0.0)
        if wait_s and not self._waiting:
            self._pressing = trio.Event()
            with trio.move_on_after(wait_s):
                await self._pressing.wait()

    async def reached(self, position: int) -> None:
        """Return once both projections are at `position` or beyond. Cancel it with a scope.

        Each waits for its own position: hundreds of callers are not all woken for each step.
        """
        if self.position >= position:
            await trio.lowlevel.checkpoint()
            return
        self._number += 1
        event = trio.Event()
        heappush(self._waiting, (position, self._number, event))
        self._pressing.set()
        await event.wait()

    async def described(self, position: int) -> None:
        """Return once the store also says in `_meta` what happened up to `position`. Cancel it with a scope."""
        await self.reached(position)
        await self.describer.reached(position)

    def _tell(self) -> None:
        """The projections have moved."""
        position = self.position
        while self._waiting and self._waiting[0][0] <= position:
            heappop(self._waiting)[2].set()
        self.moved.notify()

    def _must_rebuild(self) -> bool:
        if self._ledger.position == 0:
            return max(self._store.position, self._text.position) > 0
        positions = (self._store.position, self._text.position)
        return min(positions) == 0 or max(positions) > self._ledger.position

    async def renew(self) -> None:
        """Make both anew in files of their own, so that nothing that was dropped is left in any."""
        try:
            async with self._busy:
                async with self.describer.busy:
                    self._is_half_made = True
                    await self._store.renew()
                    self.describer.forget()
                await self.rebuild()
                await self._text.compact()
        finally:
            self._ledger.wake()  # so that what was stopped half way is begun anew

    async def rebuild(self) -> None:
        """Make both projections anew from the ledger. Descriptions follow."""
        self._is_half_made = True
        position = self._ledger.position
        log.info("projection.rebuild", extra={"position": position})
        async with self.describer.busy:
            await self._store.clear()
            self.describer.forget()
        await self._text.clear()
        self._placed.clear()
        keys = [(graph.id, key) for graph in self._ledger.graphs.values() for key in self._all_assets(graph)]
        for at in range(0, len(keys), ASSETS_PER_APPLY):
            change = await self._change(keys[at : at + ASSETS_PER_APPLY])
            await self._store.fill_made(change.for_store)
            await self._text.fill_made(change.for_text)
            self._keep(change)
        if position:
            await self._store.apply(position)
            await self._text.apply(position)
        self._is_half_made = False
        self.describer.note(position)
        self._tell()

    def _all_assets(self, graph: LedgerGraph) -> Iterable[AssetKey]:
        def read(connection: sqlite3.Connection) -> set[AssetKey]:
            rows = connection.execute("SELECT DISTINCT author, name FROM lifecycle WHERE graph = ?", (graph.id,))
            return {AssetKey(Address(author), name) for author, name in rows}

        return sorted({*graph.set.assets(), *self._ledger.database.read(read)})

    def _remember_placed(self) -> None:
        """Which named graphs are held for each asset, from the text index's own list.

        The store holds the same ones at the same position, and its list is read only where that is another: with each
        IRI it would keep two kilobytes of its files in memory, for good. After a crash either may hold what has gone
        from the other one already, and it has to go from both.
        """
        prefixes = {name.iri: name for name in self._ledger.database.read(_all_names)}
        held = set(self._text.placed())
        if self._text.position != self._store.position:
            held.update(self._store.placed())
        for graph_iri in held:
            found = asset_of(graph_iri, prefixes)
            if found is not None:
                name, key = found
                self._placed.add(name, self._shared(name.id, key), graph_iri)

    async def _follow(self) -> None:
        """Take the next events, as many as make one transaction, and move to the position of the last of them."""
        since = self.position
        events = self._ledger.database.read(lambda connection: _events_after(connection, since))
        keys = {event.subject for event in events if event.subject is not None}
        change = await self._change(sorted(keys))
        position = events[-1].position
        is_stored = await self._store.apply_made(position, change.for_store)
        self.moved.notify()
        is_indexed = await self._text.apply_made(position, change.for_text)
        if is_stored and is_indexed:
            self._keep(change)
        else:
            self._keep_also(change)
        self.describer.note(position)
        self._tell()

    async def _change(self, keys: list[tuple[GraphId, AssetKey]]) -> _Change:
        change = _Change()
        for at in range(0, len(keys), ASSETS_AT_ONCE):
            if at:
                # Others have their turn now and then: a group may hold hundreds of assets.
                await trio.lowlevel.checkpoint()
            some = keys[at : at + ASSETS_AT_ONCE]
            known = [(graph, key) for graph_id, key in some if (graph := self._ledger.graphs.get(graph_id))]
            for graph_id, key in some:
                if graph_id not in self._ledger.graphs:
                    change.drops.extend(sorted(self._placed.get(graph_id, key)))
                    change.stands[graph_id, key] = {}
            now_ms = self._now_ms()
            for (graph, key), draft in zip(known, self._drafts(known), strict=True):
                self._asset_change(graph, key, draft, now_ms, change)
        return change

    def _keep(self, change: _Change) -> None:
        """Remember what was applied."""
        for (graph_id, key), stands in change.stands.items():
            name = change.names.get(graph_id)
            if name is not None:
                self._placed.put(name, self._shared(graph_id, key), stands)
            else:
                self._placed.drop_asset(graph_id, key)

    def _keep_also(self, change: _Change) -> None:
        """One of the two was ahead and took no part, as after a crash: what was to go has not gone from it, and is
        remembered, so that it goes when the asset changes next."""
        for (graph_id, key), stands in change.stands.items():
            name = change.names.get(graph_id)
            if name is None:
                continue
            held = self._placed.get(graph_id, key)
            for graph_iri in stands:
                if graph_iri not in held:
                    self._placed.add(name, self._shared(graph_id, key), graph_iri)

    def _shared(self, graph_id: GraphId, key: AssetKey) -> AssetKey:
        """The same key, as the object that the set keeps anyway."""
        graph = self._ledger.graphs.get(graph_id)
        asset = graph.set.asset(key) if graph is not None else None
        return asset.key if asset is not None else key

    def _drafts(self, keys: list[tuple[LedgerGraph, AssetKey]]) -> list[Draft | None]:
        """What is drafted of each of these assets here."""
        if not any(key.author in self._own_agents for _, key in keys):
            return [None] * len(keys)

        def read(connection: sqlite3.Connection) -> list[Draft | None]:
            return [
                read_draft(connection, self._ledger.network, graph.id, key) if key.author in self._own_agents else None
                for graph, key in keys
            ]

        return self._ledger.database.read(read)

    def _asset_change(
        self, graph: LedgerGraph, key: AssetKey, draft: Draft | None, now_ms: int, change: _Change
    ) -> None:
        view = asset_view(graph.set, key, now_ms)
        before = self._placed.get(graph.id, key)
        stands: dict[str, Stands | None] = {}
        for placed in placements(graph, view):
            now = _stands(graph.name, placed)
            content = self._content(graph, now, before.get(placed.graph_iri))
            if content is None:
                continue
            stands[placed.graph_iri] = now
            _note(_text_entry(graph.name, placed), now, before.get(placed.graph_iri), content, change)
        if draft is not None:
            entry, now = _draft_stands(graph, draft)
            stands[entry.graph_iri] = now
            _note(entry, now, before.get(entry.graph_iri), draft.content, change)
        change.drops.extend(sorted(before.keys() - stands.keys()))
        change.names[graph.id] = graph.name
        change.stands[graph.id, key] = stands

    def _content(self, graph: LedgerGraph, now: Stands, was: Stands | None) -> bytes | None:
        """The content to place; empty when nothing of it is to be written, None when it is not held."""
        if now.is_stored_as(was) and now.reads_as(was):
            return b"" if now.content_hash in graph.held else None
        return self._ledger.content(graph, now.content_hash)


def _note(entry: TextEntry, now: Stands, was: Stands | None, content: bytes, change: _Change) -> None:
    """What is to be written for one named graph, from how it stands and how it stood."""
    if not now.is_stored_as(was):
        change.puts.append(Placement(entry.graph_iri, now.aggregate, content))
    if not now.reads_as(was):
        change.texts.append(_Text(entry, content))
    elif now != was:
        change.marks.append(TextMark(entry.graph_iri, now.level, now.expires_at_ms))


def _stands(name: GraphName, placed: Placed) -> Stands:
    view = placed.view
    return Stands(
        aggregate_iri(name, placed.layer, placed.low, placed.high, placed.m_range),
        view.content_hash,
        view.key.version,
        view.key.seal,
        placed.layer,
        int(view.trust.level),
        view.lives_until_ms or 0,
    )


def _draft_stands(graph: LedgerGraph, draft: Draft) -> tuple[TextEntry, Stands]:
    """A draft stands in its own named graph and in no floor."""
    level = int(Trust.SELF_ATTESTED)
    entry = TextEntry(
        graph_iri=graph.name.draft_iri(draft.agent, draft.name, draft.subgraph),
        context_graph=graph.name.iri,
        asset=str(draft.key),
        version=0,
        seal=b"",
        author=str(draft.agent),
        layer=Layer.WORKING.value,
        level=level,
        expires_at_ms=0,
        passages=(),
    )
    return entry, Stands(working_iri(graph.name), keccak256(draft.content), 0, b"", Layer.WORKING, level, 0)


def _text_entry(name: GraphName, placed: Placed) -> TextEntry:
    view = placed.view
    return TextEntry(
        graph_iri=placed.graph_iri,
        context_graph=name.iri,
        asset=str(view.key.asset),
        version=view.key.version,
        seal=view.key.seal,
        author=str(view.key.author),
        layer=placed.layer.value,
        level=int(view.trust.level),
        expires_at_ms=view.lives_until_ms or 0,
        passages=(),
    )


@dataclass(frozen=True, slots=True)
class _Event:
    position: int
    subject: tuple[GraphId, AssetKey] | None


def _events_after(connection: sqlite3.Connection, since: int) -> list[_Event]:
    rows = connection.execute(
        "SELECT position, graph, author, name FROM event WHERE position > ? ORDER BY position LIMIT ?",
        (since, EVENTS_PER_APPLY),
    )
    return [
        _Event(position, (GraphId(graph), AssetKey(Address(author), name)) if author is not None else None)
        for position, graph, author, name in rows
    ]


def _all_names(connection: sqlite3.Connection) -> list[GraphName]:
    """Graphs that this node takes part in, and those that it left: something of them may still have to go."""
    return [
        GraphName(Address(creator), slug) for creator, slug in connection.execute("SELECT creator, slug FROM graph")
    ]
