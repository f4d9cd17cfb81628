"""From the ledger to what answers questions: the triple store and the full-text index follow the numbered events.

An event names an asset; what is placed is not what the event says but how the asset stands now. So events may be taken
together, in any number, and told again after a crash.

**Floors.** At a floor, the current version of an asset is the highest that reaches it. A version is so current at a
range of floors, from one above the best newer version up to its own level. There is one aggregate graph for each
context graph, layer and range, and a floor is the few aggregates whose range holds it: never a list of assets.

A floor may also ask for a least M. Nearly every version stands under the head's quorum, so that asks for all of them or
none. Where an asset has a version that the head keeps as verified under an earlier quorum with another M, its versions
stand once for each range of M in which they are current, in aggregates that name it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import trio
from p2pmem_jobs import Blocking
from p2pmem_protocol.names import Address, AssetKey, GraphId, GraphName, VersionKey
from p2pmem_protocol.trust import Floor, Trust, TrustReport
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.face import Layer
from p2pmem.ledger.drafts import Draft, read_draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import LifecycleStep, Transition, asset_statements, event_statements, subject_of
from p2pmem.recall.passages import extract_passages
from p2pmem.recall.text_index import TextEntry, TextIndex
from p2pmem.store.placement import MetaChange, Placement
from p2pmem.store.projection import OxigraphProjection

log = logging.getLogger(__name__)

ASSETS_PER_APPLY: Final = 200
EVENTS_PER_APPLY: Final = 200
FLOORS: Final = tuple(level for level in Trust if level is not Trust.REJECTED)


@dataclass(frozen=True, slots=True)
class Placed:
    """One version where it is to stand: its named graph, and the range of floors at which it is current."""

    view: VersionView
    layer: Layer
    graph_iri: str
    low: Trust
    high: Trust
    m_range: tuple[int, int] | None = None
    """The least M from which and up to which it is current so; None: whatever the head's quorum has."""


@dataclass(frozen=True, slots=True)
class _Change:
    puts: list[Placement]
    drops: list[str]
    metas: list[MetaChange]
    texts: list[TextEntry]


class Projector:
    """Keeps the projections up to date. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger, store: OxigraphProjection, text: TextIndex, blocking: Blocking) -> None:
        self._ledger = ledger
        self._store = store
        self._text = text
        self._blocking = blocking
        self._placed: dict[tuple[GraphId, AssetKey], frozenset[str]] = {}

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
        """Return once both projections are at `position` or beyond. Cancel it with a scope."""
        await self._ledger.until(lambda: self.position >= position)

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
            await self._store.fill(change.puts, change.metas)
            await self._text.fill(change.texts)
        if position:
            await self._store.apply(position)
            await self._text.apply(position)
        self._ledger.wake()

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
        await self._store.apply(position, change.puts, tuple(change.drops), change.metas)
        await self._text.apply(position, change.texts, tuple(change.drops))
        self._ledger.wake()

    async def _change(self, keys: list[tuple[GraphId, AssetKey]]) -> _Change:
        change = _Change([], [], [], [])
        now_ms = self._ledger.clock.now_ms()
        for graph_id, key in keys:
            graph = self._ledger.graphs.get(graph_id)
            if graph is not None:
                self._asset_change(graph, key, now_ms, change)
        return change

    def _asset_change(self, graph: LedgerGraph, key: AssetKey, now_ms: int, change: _Change) -> None:
        view = asset_view(graph.set, key, now_ms)
        stands: set[str] = set()
        told: set[VersionKey] = set()
        for placed in placements(graph.name, view, head_m(graph)):
            content = self._ledger.content(placed.view.content_hash)
            if content is None:
                continue
            stands.add(placed.graph_iri)
            aggregate = aggregate_iri(graph.name, placed.layer, placed.low, placed.high, placed.m_range)
            change.puts.append(Placement(placed.graph_iri, aggregate, content))
            if placed.view.key not in told:
                told.add(placed.view.key)
                change.texts.append(_text_entry(graph.name, placed, content))
        draft = self._ledger.database.read(
            lambda connection: read_draft(connection, self._ledger.network, graph.id, key)
        )
        if draft is not None:
            self._draft_change(graph, draft, stands, change)
        change.drops.extend(sorted(self._placed.get((graph.id, key), frozenset()) - stands))
        if stands:
            self._placed[graph.id, key] = frozenset(stands)
        else:
            self._placed.pop((graph.id, key), None)
        meta = self._meta_change(graph, key, view)
        if meta is not None:
            change.metas.append(meta)

    def _draft_change(self, graph: LedgerGraph, draft: Draft, stands: set[str], change: _Change) -> None:
        """A draft stands in its own named graph and in no floor."""
        iri = graph.name.draft_iri(draft.agent, draft.name, draft.subgraph)
        stands.add(iri)
        change.puts.append(Placement(iri, working_iri(graph.name), draft.content))
        change.texts.append(
            TextEntry(
                graph_iri=iri,
                context_graph=graph.name.iri,
                asset=str(draft.key),
                version=0,
                root=b"",
                author=str(draft.agent),
                layer=Layer.WORKING.value,
                level=int(Trust.SELF_ATTESTED),
                expires_at_ms=0,
                passages=extract_passages(draft.content).passages,
            )
        )

    def _meta_change(self, graph: LedgerGraph, key: AssetKey, view: AssetView) -> MetaChange | None:
        steps = self._ledger.database.read(lambda connection: read_lifecycle(connection, graph.name, key))
        if not steps:
            return None
        best = max((version.trust for version in view.visible()), key=_rank, default=None)
        lines = [event_statements(step, previous) for previous, step in zip([None, *steps], steps, strict=False)]
        lines.append(asset_statements(steps[-1], best))
        return MetaChange(graph.name.meta_iri, add=b"".join(lines), reset_subjects=(subject_of(steps[-1]),))


def placements(name: GraphName, view: AssetView, head_m: int) -> Iterator[Placed]:
    """Where the versions of an asset that are current at some floor stand. `head_m` is M of the head's quorum."""
    values = sorted({version.trust.m for version in view.visible()})
    if values in ([], [head_m]):
        yield from _placements(name, view, None)
        return
    low = 0
    for value in values:
        reaching = tuple(version for version in view.versions if version.trust.m >= value)
        yield from _placements(name, replace(view, versions=reaching), (low, value))
        low = value + 1


def _placements(name: GraphName, view: AssetView, m_range: tuple[int, int] | None) -> Iterator[Placed]:
    best = Trust.REJECTED
    shown = view.current_at_any_floor()
    of_range = "" if m_range is None else f"@m{m_range[0]}-{m_range[1]}"
    for number in dict.fromkeys(version.key.version for version in shown):
        group = [version for version in shown if version.key.version == number]
        for version in group:
            layer = Layer.PUBLISHED if version.published else Layer.SHARED
            is_first = number == shown[0].key.version
            suffix = "" if is_first else f"@{number}"
            if len(group) > 1 and version is not group[0]:
                suffix = f"@{number}-{version.key.root.hex()[:16]}"
            iri = layer_iri(name, layer, version) + suffix + of_range
            yield Placed(version, layer, iri, Trust(best + 1), version.trust.level, m_range)
        best = max(best, *(version.trust.level for version in group))


def _rank(report: TrustReport) -> tuple[int, int, int]:
    return (report.level, report.m, len(report.approvals))


def layer_iri(name: GraphName, layer: Layer, version: VersionView) -> str:
    """The named graph of an asset in its layer."""
    key = version.key
    iri = name.published_iri if layer is Layer.PUBLISHED else name.shared_iri
    return iri(key.author, key.name, version.subgraph)


def aggregate_iri(
    name: GraphName, layer: Layer, low: Trust, high: Trust, m_range: tuple[int, int] | None = None
) -> str:
    plain = f"{name.iri}/_view/{layer.value}/{int(low)}-{int(high)}"
    return plain if m_range is None else f"{plain}/m{m_range[0]}-{m_range[1]}"


def head_m(graph: LedgerGraph) -> int:
    """M of the head's quorum, 0 without one."""
    return graph.head.quorum.m if graph.head is not None else 0


def m_ranges(graph: LedgerGraph, least_m: int) -> Iterator[tuple[int, int] | None]:
    """The ranges of M that hold `least_m`, of all that an asset of this graph may have."""
    if least_m <= head_m(graph):
        yield None
    kept = graph.head.body.certificates if graph.head is not None else ()
    values = sorted({head_m(graph), *(it.quorum.m for it in kept)})
    if len(values) > 1 or (kept and values != [head_m(graph)]):
        lows = (0, *(value + 1 for value in values))
        yield from ((low, high) for low in lows for high in values if low <= least_m <= high)


def working_iri(name: GraphName) -> str:
    """The aggregate of this node's own drafts."""
    return f"{name.iri}/_view/{Layer.WORKING.value}"


def floor_graphs(graph: LedgerGraph, layers: Iterable[Layer], floor: Floor) -> tuple[str, ...]:
    """The aggregates that together are the dataset of one floor."""
    ranges = tuple(m_ranges(graph, floor.least_m))
    return tuple(
        aggregate_iri(graph.name, layer, low, high, m_range)
        for layer in layers
        for low in FLOORS
        for high in FLOORS
        if low <= floor.level <= high
        for m_range in ranges
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


def _text_entry(name: GraphName, placed: Placed, content: bytes) -> TextEntry:
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
        passages=extract_passages(content).passages,
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
