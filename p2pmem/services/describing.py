"""From the ledger to `_meta`: what is said about assets follows their content, many at a time.

Content has to be found at once; its history and trust are asked for by queries that name their graph. So descriptions
gather for some minutes, or until they are many, or until somebody asks: `reached` lets nobody wait for company. How far
they are is kept in the store; what is missing after a start is read from the ledger's events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
GATHERED: Final = 500
"""So many are written together: some 80 ms in a worker thread. More would cost less each, and tens of megabytes."""

SAYS_MAX: Final = 5_000
"""Assets of which it is remembered what `_meta` says: what would say the same again is not written."""

Asset: TypeAlias = tuple[GraphId, AssetKey]
_Says: TypeAlias = tuple[int, str, int, int, bytes]
"""How many steps of an asset's history, and its trust as it is written."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The trust that an asset had when its content was placed; `report` is None when no version of it is visible."""

    report: TrustReport | None


class Describer:
    """Keeps `_meta` up to date. `run` it in the node's nursery; the projector tells it what changed."""

    def __init__(self, ledger: Ledger, store: OxigraphProjection) -> None:
        self._ledger = ledger
        self._store = store
        self._due: dict[Asset, _Known | None] = {}
        self._says: dict[Asset, _Says] = {}
        # Everything up to `_noted` is described or due, everything up to `_settled` is described.
        self._noted = self._settled = 0
        self._asked = False
        self._look = trio.Event()
        self._moved = trio.Event()
        self.busy = trio.Lock()
        """Held while descriptions are written: whoever empties the store holds it too."""

    def begin(self, position: int) -> None:
        """After a start: what happened up to `position` and is not described yet is due."""
        since = self._store.described if self._store.described <= position else 0
        self._due.update(dict.fromkeys(self._ledger.database.read(partial(_changed, since, position))))
        self._noted = position
        self._settled = since if self._due else position

    def forget(self) -> None:
        """The store was emptied: everything will be noted anew."""
        self._due.clear()
        self._says.clear()
        self._noted = self._settled = 0

    def note(self, position: int, reports: Mapping[Asset, TrustReport | None]) -> None:
        """These assets have changed up to `position`, with the best trust that each has now."""
        had_none = not self._due
        self._due.update({asset: _Known(report) for asset, report in reports.items()})
        self._noted = position
        if self._due:
            if had_none or self._asked or len(self._due) >= GATHERED:
                self._look.set()
        elif not self.busy.locked():
            self._settle(position)

    async def reached(self, position: int) -> None:
        """Return once everything up to `position` is described: soon after the projector has noted it. Cancel it with
        a scope."""
        await trio.lowlevel.checkpoint()
        while self._settled < position:
            self._asked = True
            self._look.set()
            await self._moved.wait()

    async def run(self) -> None:
        """Write what is due, once it has gathered, until cancelled."""
        while True:
            while not self._due:
                await self._until_told()
            with trio.move_on_after(GATHERED_S):
                while len(self._due) < GATHERED and not self._asked:
                    await self._until_told()
            await self.write()

    async def write(self) -> None:
        """Write what is due now."""
        async with self.busy:
            self._asked = False
            due, self._due = self._due, {}
            position = self._noted
            assets = list(due)
            for at in range(0, len(assets), GATHERED):
                some = assets[at : at + GATHERED]
                is_last = at + GATHERED >= len(assets)
                await self._write(position if is_last else self._store.described, {key: due[key] for key in some})
            self._settle(position if self._due else self._noted)

    async def _until_told(self) -> None:
        self._look = trio.Event()
        await self._look.wait()

    def _settle(self, position: int) -> None:
        self._settled = position
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def _write(self, position: int, due: Mapping[Asset, _Known | None]) -> None:
        names = {graph_id: graph.name for graph_id, graph in self._ledger.graphs.items()}
        histories = await self._ledger.database.read_slowly(partial(_histories, names, tuple(due)))
        changed: list[tuple[list[LifecycleStep], TrustReport | None]] = []
        says: dict[Asset, _Says] = {}
        for asset, history in histories:
            report = await self._report(asset, due[asset])
            said = _said(history, report)
            if self._says.get(asset) != said:
                says[asset] = said
                changed.append((history, report))
        await self._store.describe(position, partial(_changes, changed))
        for asset, said in says.items():
            self._says.pop(asset, None)  # so that it is the newest
            self._says[asset] = said
        while len(self._says) > SAYS_MAX:
            del self._says[next(iter(self._says))]

    async def _report(self, asset: Asset, known: _Known | None) -> TrustReport | None:
        if known is not None:
            return known.report
        # After a start there may be many, and a view takes its time.
        await trio.lowlevel.checkpoint()
        graph = self._ledger.graphs.get(asset[0])
        return best_report(asset_view(graph.set, asset[1], self._ledger.clock.now_ms())) if graph else None


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


def _changed(since: int, position: int, connection: sqlite3.Connection) -> list[Asset]:
    rows = connection.execute(
        "SELECT DISTINCT graph, author, name FROM event WHERE position > ? AND position <= ? AND author IS NOT NULL",
        (since, position),
    )
    return [(GraphId(graph), AssetKey(Address(author), name)) for graph, author, name in rows]


def _said(steps: list[LifecycleStep], report: TrustReport | None) -> _Says:
    if report is None:
        return (len(steps), "", 0, 0, b"")
    return (len(steps), report.shown, len(report.approvals), report.m, report.subject.seal)


def _changes(told: Sequence[tuple[list[LifecycleStep], TrustReport | None]]) -> list[MetaChange]:
    return [_change(steps, report) for steps, report in told]


def _change(steps: list[LifecycleStep], report: TrustReport | None) -> MetaChange:
    """What `_meta` is to say of an asset: its history, and the trust that it has now."""
    last = steps[-1]
    lines = [event_statements(step, before) for before, step in zip([None, *steps], steps, strict=False)]
    lines.append(asset_statements(last, report))
    return MetaChange(last.graph.meta_iri, add=b"".join(lines), reset_subjects=(subject_of(last),))
