"""From the ledger to `_meta`: what is said about assets follows their content, many at a time.

Content has to be found at once; its history and trust are asked for by queries that name their graph. They are two
thirds of what the store holds of an asset, and a quarter of what a share costs. So descriptions follow the ledger's
events at their own pace, by a position that the store keeps: at once when somebody asks (`reached`), else when the node
has had a quiet while. Nothing is remembered of what is not described yet but that position.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import trio
from p2pmem_protocol.names import Address, AssetKey, GraphId, GraphName
from p2pmem_protocol.trust import TrustReport
from p2pmem_protocol.view import asset_view

from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import LifecycleStep, Transition, asset_statements, event_statements, subject_of
from p2pmem.services.placing import best_report
from p2pmem.store.placement import MetaChange
from p2pmem.store.projection import OxigraphProjection

GATHERED_S: Final = 300.0
"""Descriptions wait for so long of a quiet while, in which there are fewer than BUSY events."""
BUSY: Final = 5_000
FEW_WAIT: Final = 6
"""Where fewer are due than are described together, for so many such whiles: a few at a time cost more each."""
EVENTS_AT_ONCE: Final = 1_000
"""So many are described together: some 0.4 s in a worker thread. More would cost less each, and tens of megabytes."""


ASSETS_AT_ONCE: Final = 25
"""So many are looked at before other tasks have their turn."""
SAYS_MAX: Final = 5_000
"""Assets of which it is remembered what `_meta` says: what would say the same again is not written."""

Asset: TypeAlias = tuple[GraphId, AssetKey]
_Says: TypeAlias = tuple[int, str, int, int, bytes]
"""How many steps of an asset's history, and its trust as it is written."""
_Told: TypeAlias = tuple[list[LifecycleStep], TrustReport | None, int]
"""A history, the trust, and how many steps of the history `_meta` says already."""


class Describer:
    """Keeps `_meta` up to date. `run` it in the node's nursery; the projector tells it how far it is."""

    def __init__(self, ledger: Ledger, store: OxigraphProjection, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._now_ms = now_ms
        self._store = store
        self._says: dict[Asset, _Says] = {}
        # Everything up to `_settled` is described, what follows up to `_noted` is due.
        self._noted = self._settled = 0
        self._asked = False
        self._look = trio.Event()
        self._moved = trio.Event()
        self.busy = trio.Lock()
        """Held while descriptions are written: whoever empties the store holds it too."""

    @property
    def position(self) -> int:
        """Up to which position of the ledger `_meta` says what happened."""
        return self._settled

    def begin(self, position: int) -> None:
        """After a start: what happened up to `position` and is not described yet is due. After a crash the store may
        say more than the text index has: what happened since then is placed again, and described again."""
        self._settled = min(self._store.described, position)
        self._noted = position

    def forget(self) -> None:
        """The store was emptied: everything is due anew, once it is noted."""
        self._says.clear()
        self._noted = self._settled = 0

    def note(self, position: int) -> None:
        """What happened up to `position` is placed, and may be described."""
        had_none = self._settled >= self._noted
        self._noted = position
        if had_none or self._asked:
            self._look.set()

    async def reached(self, position: int) -> None:
        """Return once everything up to `position` is described: soon after the projector has noted it. Cancel it with
        a scope."""
        await trio.lowlevel.checkpoint()
        while self._settled < position:
            self._asked = True
            self._look.set()
            await self._moved.wait()

    async def run(self) -> None:
        """Write what is due, when it is time to, until cancelled."""
        while True:
            while self._settled >= self._noted:
                await self._until_told()
            before = await self._gather()
            if self._asked:
                before = self._noted  # it goes on to the end, though who asked may have gone: he asks again
            while self._settled < self._noted and (self._asked or self._noted - before < BUSY):
                await self._write_some()

    async def _gather(self) -> int:
        """Wait until it is time to describe, or somebody asks. What was noted when the last while began."""
        for _ in range(FEW_WAIT):
            before = self._noted
            with trio.move_on_after(GATHERED_S):
                while not self._asked:
                    await self._until_told()
            if self._asked or self._noted - self._settled >= EVENTS_AT_ONCE:
                break
        return before

    async def write(self) -> None:
        """Write all that is due."""
        while self._settled < self._noted:
            await self._write_some()

    async def _until_told(self) -> None:
        self._look = trio.Event()
        await self._look.wait()

    async def _write_some(self) -> None:
        """Write what is due of the next events, as many as make one change of the store."""
        async with self.busy:
            self._asked = False  # who waits for more asks again
            since, until = self._settled, self._noted
            position, assets = await self._ledger.database.read_slowly(partial(_changed, since, until))
            if assets:
                await self._describe(position, assets)
            self._settled = position
            moved, self._moved = self._moved, trio.Event()
            moved.set()

    async def _describe(self, position: int, assets: Sequence[Asset]) -> None:
        names = {graph_id: graph.name for graph_id, graph in self._ledger.graphs.items()}
        histories = await self._ledger.database.read_slowly(partial(_histories, names, assets))
        changed: list[_Told] = []
        says: dict[Asset, _Says] = {}
        for number, (asset, history) in enumerate(histories):
            if number % ASSETS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            report = self._report(asset)
            said = _said(history, report)
            before = self._says.get(asset)
            if before != said:
                says[asset] = said
                changed.append((history, report, before[0] if before is not None else 0))
        await self._store.describe(position, partial(_changes, changed))
        for asset, said in says.items():
            self._says.pop(asset, None)  # so that it is the newest
            self._says[asset] = said
        while len(self._says) > SAYS_MAX:
            del self._says[next(iter(self._says))]

    def _report(self, asset: Asset) -> TrustReport | None:
        graph = self._ledger.graphs.get(asset[0])
        return best_report(asset_view(graph.set, asset[1], self._now_ms())) if graph else None


def read_lifecycle(connection: sqlite3.Connection, graph: GraphName, key: AssetKey) -> list[LifecycleStep]:
    """Every transition of an asset, in order."""
    rows = connection.execute(
        "SELECT step, version, transition, agent, root, seal, at_ms FROM lifecycle "
        "WHERE graph = ? AND author = ? AND name = ? ORDER BY step",
        (graph.id, key.author, key.name),
    )
    return [
        LifecycleStep(
            step, graph, key.author, key.name, version, Transition(transition), Address(agent), root, seal, at_ms
        )
        for step, version, transition, agent, root, seal, at_ms in rows
    ]


def _histories(
    names: Mapping[GraphId, GraphName], assets: Sequence[Asset], connection: sqlite3.Connection
) -> list[tuple[Asset, list[LifecycleStep]]]:
    """The history of each asset that has one, in graphs that this node still takes part in."""
    found = [((graph, key), read_lifecycle(connection, names[graph], key)) for graph, key in assets if graph in names]
    return [(asset, steps) for asset, steps in found if steps]


def _changed(since: int, until: int, connection: sqlite3.Connection) -> tuple[int, list[Asset]]:
    """The assets of the next events, and the position of the last of these."""
    rows = connection.execute(
        "SELECT position, graph, author, name FROM event WHERE position > ? AND position <= ? "
        "ORDER BY position LIMIT ?",
        (since, until, EVENTS_AT_ONCE),
    ).fetchall()
    position = rows[-1][0] if len(rows) == EVENTS_AT_ONCE else until
    assets = {(GraphId(row[1]), AssetKey(Address(row[2]), row[3])): None for row in rows if row[2] is not None}
    return position, list(assets)


def _said(steps: list[LifecycleStep], report: TrustReport | None) -> _Says:
    if report is None:
        return (len(steps), "", 0, 0, b"")
    return (len(steps), report.shown, len(report.approvals), report.m, report.subject.seal)


def _changes(told: Sequence[_Told]) -> list[MetaChange]:
    return [_change(steps, report, said) for steps, report, said in told]


def _change(steps: list[LifecycleStep], report: TrustReport | None, said: int) -> MetaChange:
    """What `_meta` is to say of an asset: its history, but for the `said` first steps, and the trust that it has."""
    last = steps[-1]
    lines = [event_statements(step, before) for before, step in list(zip([None, *steps], steps, strict=False))[said:]]
    lines.append(asset_statements(last, report))
    return MetaChange(last.graph.meta_iri, add=b"".join(lines), reset_subjects=(subject_of(last),))
