"""From the ledger to what answers questions: the triple store and the full-text index follow the numbered events.

An event names an asset; what is placed is not what the event says but how the asset stands now. So events may be taken
together, in any number, and told again after a crash.

**Floors.** At a floor, the current version of an asset is the highest that reaches it. A version is so current at a
range of floors, from one above the best newer version up to its own level. There is one aggregate graph for each
context graph, layer and range, and a floor is the few aggregates whose range holds it: never a list of assets.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Final

import trio
from p2pmem_protocol.names import Address, AssetKey, GraphId, GraphName
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.face import Layer
from p2pmem.keyring import Keyring
from p2pmem.ledger.drafts import Draft, read_draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import LifecycleStep, Transition, asset_statements, event_statements, subject_of
from p2pmem.recall.passages import extract_passages
from p2pmem.recall.text_index import TextChange, TextEntry, TextIndex
from p2pmem.store.placement import MetaChange, Placement, StoreChange
from p2pmem.store.projection import OxigraphProjection

log = logging.getLogger(__name__)

ASSETS_PER_APPLY: Final = 200
EVENTS_PER_APPLY: Final = 400
ASSETS_AT_ONCE: Final = 25
"""So many are looked at before other tasks have their turn: some five milliseconds."""
FLOORS: Final = tuple(level for level in Trust if level is not Trust.REJECTED)


@dataclass(frozen=True, slots=True)
class Placed:
    """One version where it is to stand: its named graph, and the range of floors at which it is current."""

    view: VersionView
    layer: Layer
    graph_iri: str
    low: Trust
    high: Trust


@dataclass(frozen=True, slots=True)
class _Text:
    """An asset for the text index, before its content is read."""

    entry: TextEntry
    content: bytes

    def read(self) -> TextEntry:
        return replace(self.entry, passages=extract_passages(self.content).passages)


@dataclass(frozen=True, slots=True)
class _Meta:
    """What `_meta` is to say of an asset: its history, and the trust that it has now."""

    graph_iri: str
    steps: list[LifecycleStep]
    trust: str | None

    def read(self) -> MetaChange:
        last = self.steps[-1]
        lines = [event_statements(step, before) for before, step in zip([None, *self.steps], self.steps, strict=False)]
        lines.append(asset_statements(last, self.trust))
        return MetaChange(self.graph_iri, add=b"".join(lines), reset_subjects=(subject_of(last),))


@dataclass(frozen=True, slots=True)
class _Change:
    """What follows from some events, decided in the event loop; what is long is made of it in a worker thread."""

    puts: list[Placement]
    drops: list[str]
    metas: list[_Meta]
    texts: list[_Text]

    def for_store(self) -> StoreChange:
        return StoreChange(tuple(self.puts), tuple(self.drops), tuple(meta.read() for meta in self.metas))

    def for_text(self) -> TextChange:
        return TextChange(tuple(text.read() for text in self.texts), tuple(self.drops))


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the ledger's tables say of one asset."""

    steps: list[LifecycleStep]
    draft: Draft | None


class Projector:
    """Keeps the projections up to date. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger, store: OxigraphProjection, text: TextIndex, own_agents: Keyring) -> None:
        """`own_agents` are those who may have drafts here."""
        self._ledger = ledger
        self._store = store
        self._text = text
        self._own_agents = own_agents
        self._placed: dict[tuple[GraphId, AssetKey], frozenset[str]] = {}
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._number = 0

    @property
    def position(self) -> int:
        """Up to which position both projections are true."""
        return min(self._store.position, self._text.position)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Catch up or rebuild, then follow until cancelled."""
        if self._must_rebuild():
            await self.rebuild()
        else:
            self._remember_placed()
        task_status.started()
        while True:
            await self._ledger.until(lambda: self._ledger.position > self.position)
            await self._follow()

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
        await event.wait()

    def _tell(self) -> None:
        """The projections have moved."""
        position = self.position
        while self._waiting and self._waiting[0][0] <= position:
            heappop(self._waiting)[2].set()
        self._ledger.wake()

    def _must_rebuild(self) -> bool:
        if self._ledger.position == 0:
            return max(self._store.position, self._text.position) > 0
        positions = (self._store.position, self._text.position)
        return min(positions) == 0 or max(positions) > self._ledger.position

    async def rebuild(self) -> None:
        """Make both projections anew from the ledger."""
        position = self._ledger.position
        log.info("projection.rebuild", extra={"position": position})
        await self._store.clear()
        await self._text.clear()
        self._placed.clear()
        keys = [(graph.id, key) for graph in self._ledger.graphs.values() for key in self._all_assets(graph)]
        for at in range(0, len(keys), ASSETS_PER_APPLY):
            change = await self._change(keys[at : at + ASSETS_PER_APPLY])
            await self._store.fill_made(change.for_store)
            await self._text.fill_made(change.for_text)
        if position:
            await self._store.apply(position)
            await self._text.apply(position)
        self._tell()

    def _all_assets(self, graph: LedgerGraph) -> Iterable[AssetKey]:
        def read(connection: sqlite3.Connection) -> set[AssetKey]:
            rows = connection.execute("SELECT DISTINCT author, name FROM lifecycle WHERE graph = ?", (graph.id,))
            return {AssetKey(Address(author), name) for author, name in rows}

        return sorted({*graph.set.assets(), *self._ledger.database.read(read)})

    def _remember_placed(self) -> None:
        """Which named graphs the store holds for each asset, from its own list."""
        prefixes = {graph.name.iri: graph.name for graph in self._ledger.graphs.values()}
        for graph_iri in self._store.placed():
            found = asset_of(graph_iri, prefixes)
            if found is not None:
                name, key = found
                self._placed[name.id, key] = self._placed.get((name.id, key), frozenset()) | {graph_iri}

    async def _follow(self) -> None:
        """Take the next events, as many as make one transaction, and move to the position of the last of them."""
        since = self.position
        events = self._ledger.database.read(lambda connection: _events_after(connection, since))
        keys = {event.subject for event in events if event.subject is not None}
        change = await self._change(sorted(keys))
        position = events[-1].position
        await self._store.apply_made(position, change.for_store)
        self._ledger.wake()
        await self._text.apply_made(position, change.for_text)
        self._tell()

    async def _change(self, keys: list[tuple[GraphId, AssetKey]]) -> _Change:
        change = _Change([], [], [], [])
        for at in range(0, len(keys), ASSETS_AT_ONCE):
            # Others have their turn now and then: a group may hold hundreds of assets.
            await trio.lowlevel.checkpoint()
            some = [
                (graph, key) for id_, key in keys[at : at + ASSETS_AT_ONCE] if (graph := self._ledger.graphs.get(id_))
            ]
            rows = self._ledger.database.read(partial(self._rows, some))
            now_ms = self._ledger.clock.now_ms()
            for (graph, key), its in zip(some, rows, strict=True):
                self._asset_change(graph, key, its, now_ms, change)
        return change

    def _rows(self, keys: list[tuple[LedgerGraph, AssetKey]], connection: sqlite3.Connection) -> list[_Rows]:
        return [
            _Rows(
                read_lifecycle(connection, graph.name, key),
                read_draft(connection, self._ledger.network, graph.id, key) if key.author in self._own_agents else None,
            )
            for graph, key in keys
        ]

    def _asset_change(self, graph: LedgerGraph, key: AssetKey, rows: _Rows, now_ms: int, change: _Change) -> None:
        view = asset_view(graph.set, key, now_ms)
        stands: set[str] = set()
        for placed in placements(graph.name, view):
            content = self._ledger.content(placed.view.content_hash)
            if content is None:
                continue
            stands.add(placed.graph_iri)
            aggregate = aggregate_iri(graph.name, placed.layer, placed.low, placed.high)
            change.puts.append(Placement(placed.graph_iri, aggregate, content))
            change.texts.append(_Text(_text_entry(graph.name, placed), content))
        if rows.draft is not None:
            _draft_change(graph, rows.draft, stands, change)
        change.drops.extend(sorted(self._placed.get((graph.id, key), frozenset()) - stands))
        if stands:
            self._placed[graph.id, key] = frozenset(stands)
        else:
            self._placed.pop((graph.id, key), None)
        if rows.steps:
            best = max((version.trust.level for version in view.visible()), default=None)
            change.metas.append(_Meta(graph.name.meta_iri, rows.steps, best.word if best is not None else None))


def _draft_change(graph: LedgerGraph, draft: Draft, stands: set[str], change: _Change) -> None:
    """A draft stands in its own named graph and in no floor."""
    iri = graph.name.draft_iri(draft.agent, draft.name, draft.subgraph)
    stands.add(iri)
    change.puts.append(Placement(iri, working_iri(graph.name), draft.content))
    entry = TextEntry(
        graph_iri=iri,
        context_graph=graph.name.iri,
        asset=str(draft.key),
        version=0,
        root=b"",
        author=str(draft.agent),
        layer=Layer.WORKING.value,
        level=int(Trust.SELF_ATTESTED),
        expires_at_ms=0,
        passages=(),
    )
    change.texts.append(_Text(entry, draft.content))


def placements(name: GraphName, view: AssetView) -> Iterator[Placed]:
    """Where the versions of an asset that are current at some floor stand."""
    best = Trust.REJECTED
    shown = view.current_at_any_floor()
    for number in dict.fromkeys(version.key.version for version in shown):
        group = [version for version in shown if version.key.version == number]
        for version in group:
            layer = Layer.PUBLISHED if version.published else Layer.SHARED
            is_first = number == shown[0].key.version
            suffix = "" if is_first else f"@{number}"
            if len(group) > 1 and version is not group[0]:
                suffix = f"@{number}-{version.key.root.hex()[:16]}"
            iri = layer_iri(name, layer, version) + suffix
            yield Placed(version, layer, iri, Trust(best + 1), version.trust.level)
        best = max(best, *(version.trust.level for version in group))


def layer_iri(name: GraphName, layer: Layer, version: VersionView) -> str:
    """The named graph of an asset in its layer."""
    key = version.key
    iri = name.published_iri if layer is Layer.PUBLISHED else name.shared_iri
    return iri(key.author, key.name, version.subgraph)


def aggregate_iri(name: GraphName, layer: Layer, low: Trust, high: Trust) -> str:
    return f"{name.iri}/_view/{layer.value}/{int(low)}-{int(high)}"


def working_iri(name: GraphName) -> str:
    """The aggregate of this node's own drafts."""
    return f"{name.iri}/_view/{Layer.WORKING.value}"


def floor_graphs(name: GraphName, layers: Iterable[Layer], floor: Trust) -> tuple[str, ...]:
    """The aggregates that together are the dataset of one floor."""
    return tuple(
        aggregate_iri(name, layer, low, high)
        for layer in layers
        for low in FLOORS
        for high in FLOORS
        if low <= floor <= high
    )


def asset_of(graph_iri: str, graphs: dict[str, GraphName]) -> tuple[GraphName, AssetKey] | None:
    """Which asset a named graph of the store belongs to, when it is one of `graphs`."""
    for mark in ("/_shared_memory/", "/_verifiable_memory/", "/assertion/"):
        before, found, after = graph_iri.partition(mark)
        if not found:
            continue
        # The IRI of a graph is two path segments; what is between it and the mark is the sub-graph.
        creator, _, rest = before.partition("/")
        name = graphs.get(f"{creator}/{rest.partition('/')[0]}")
        author, _, asset = after.partition("/")
        if name is not None:
            return name, AssetKey(Address.parse(author), asset.partition("@")[0])
    return None


def _text_entry(name: GraphName, placed: Placed) -> TextEntry:
    view = placed.view
    return TextEntry(
        graph_iri=placed.graph_iri,
        context_graph=name.iri,
        asset=str(view.key.asset),
        version=view.key.version,
        root=view.key.root,
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


def read_lifecycle(connection: sqlite3.Connection, graph: GraphName, key: AssetKey) -> list[LifecycleStep]:
    """Every transition of an asset, in order."""
    rows = connection.execute(
        "SELECT step, version, transition, agent, root, at_ms FROM lifecycle "
        "WHERE graph = ? AND author = ? AND name = ? ORDER BY step",
        (graph.id, key.author, key.name),
    )
    return [
        LifecycleStep(step, graph, key.author, key.name, version, Transition(transition), Address(agent), root, at_ms)
        for step, version, transition, agent, root, at_ms in rows
    ]
