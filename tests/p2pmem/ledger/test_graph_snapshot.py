"""The snapshot that grows with the set, against one that is built anew, over random histories."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.kinds import EVIDENCE
from p2pmem_protocol.names import Address, GraphName
from p2pmem_protocol.snapshot import Snapshot

from p2pmem.ledger import graph as ledger_graph
from p2pmem.ledger.graph import LedgerGraph
from tests.protocol import histories
from tests.protocol.world import GRAPH, HOUR, MINUTE, NETWORK, T0, W, roster, share, size_of

HISTORIES = int(os.environ.get("P2PMEM_HISTORIES", "150"))


def make_graph() -> LedgerGraph:
    from p2pmem_protocol.graphset import GraphSet

    name = GraphName(Address(b"\1" * 20), "any")
    return replace(LedgerGraph.new(name, NETWORK, T0), set=GraphSet(GRAPH, NETWORK))


def check(graph: LedgerGraph, t_ms: int) -> None:
    anew = Snapshot.build(graph.set.reconciled(t_ms)).view(t_ms)
    held = graph.snapshot(t_ms).view(t_ms)
    assert held.summary() == anew.summary()
    assert held.ids(held.first, held.last) == anew.ids(anew.first, anew.last)


def run(seed: int) -> None:
    history = histories.make(seed)
    rng = random.Random(seed + 1)
    graph = make_graph()
    t_ms = T0 + 10 * MINUTE

    def note(changes: Changes) -> None:
        graph.changed(changes)

    def set_head(place: int) -> None:
        head, forked = history.heads[place]
        note(graph.set.set_head(head, t_ms, forked=forked, named=history.quorums))

    set_head(0)
    waiting = sorted(history.pool, key=lambda item: -int(item.kind in EVIDENCE) - rng.random())
    while waiting:
        if rng.random() < 0.3:
            t_ms += rng.choice((1, MINUTE, 30 * MINUTE))
        if rng.random() < 0.5:
            note(graph.set.sweep(t_ms))
        if rng.random() < 0.03:
            set_head(rng.randrange(len(history.heads)))
        item = waiting.pop()
        try:
            note(graph.set.admit(item, size_of(item), t_ms, checked=True))
        except RefusedError:
            continue
        if rng.random() < 0.5:
            note(graph.set.sweep(t_ms))
            check(graph, t_ms)


@pytest.mark.parametrize("block", range(5))
def test_a_snapshot_that_grew_is_one_that_was_built_anew(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_graph, "SNAPSHOT_ALWAYS_NEW", 10**9)
    each = max(1, HISTORIES // 5)
    for seed in range(block * each, (block + 1) * each):
        try:
            run(seed)
        except BaseException:
            print(f"history of seed {seed}")
            raise


def test_a_set_that_grows_is_not_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    graph.set.set_head(roster({"ada": W}), T0)
    built: list[int] = []
    whole = Snapshot.build

    def build(items: Iterable[tuple[int, bytes]] = ()) -> Snapshot:
        built.append(1)
        return whole(items)

    monkeypatch.setattr(Snapshot, "build", build)
    for number in range(1, 40):
        item = share("ada", number, life=HOUR)
        graph.changed(graph.set.admit(item, size_of(item), T0, checked=True))
        assert graph.snapshot(T0).count == number
    assert len(built) == 1
