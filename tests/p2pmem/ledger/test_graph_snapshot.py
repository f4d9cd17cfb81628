"""The snapshot that grows with the set, against one that is built anew, over random histories."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import pytest
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.kinds import EVIDENCE, Kind
from p2pmem_protocol.names import Address, GraphName
from p2pmem_protocol.snapshot import Snapshot

from p2pmem.ledger import graph as ledger_graph
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.narrowed import BUILD_PAUSE_MS, NARROWED_MAX, REUSED_MS
from tests.protocol import histories
from tests.protocol.world import GRAPH, HOUR, MINUTE, NETWORK, T0, W, roster, share, size_of

HISTORIES = int(os.environ.get("P2PMEM_HISTORIES", "150"))


def make_graph() -> LedgerGraph:
    name = GraphName(Address(b"\1" * 20), "any")
    return replace(LedgerGraph.new(name, NETWORK, T0), set=GraphSet(GRAPH, NETWORK))


def check(graph: LedgerGraph, t_ms: int) -> None:
    anew = Snapshot.build(graph.set.reconciled(t_ms)).view(t_ms)
    held = graph.snapshot(t_ms, t_ms).view(t_ms)
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
    monkeypatch.setattr(ledger_graph, "SNAPSHOT_REUSED_MS", 0)
    each = max(1, HISTORIES // 5)
    for seed in range(block * each, (block + 1) * each):
        try:
            run(seed)
        except BaseException:
            print(f"history of seed {seed}")
            raise


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one with each snapshot that is built."""
    built: list[int] = []
    whole = Snapshot.build

    def build(items: Iterable[tuple[int, bytes]] = ()) -> Snapshot:
        built.append(1)
        return whole(items)

    monkeypatch.setattr(Snapshot, "build", build)
    return built


def test_a_set_that_grows_is_not_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    graph.set.set_head(roster({"ada": W}), T0)
    built = count_builds(monkeypatch)
    for number in range(1, 40):
        item = share("ada", number, life=HOUR)
        graph.changed(graph.set.admit(item, size_of(item), T0, checked=True))
        assert graph.snapshot(T0, T0).count == number
    assert len(built) == 1


def test_peers_that_know_the_same_part_of_the_kinds_share_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    graph.set.set_head(roster({"ada": W}), T0)
    item = share("ada", 1, life=HOUR)
    graph.set.admit(item, size_of(item), T0, checked=True)
    built = count_builds(monkeypatch)
    views = [graph.view_of((Kind.SHARE, Kind.RETRACT, 77), T0 + agreed, T0) for agreed in range(60)]
    views += [graph.view_of((Kind.RETRACT, Kind.SHARE), T0, T0 + 1)]
    assert len(built) == 1
    assert [view.count for view in views if view is not None] == [1] * 61
    later = graph.view_of((Kind.RETRACT, Kind.SHARE), T0, T0 + REUSED_MS)
    assert later is not None
    assert len(built) == 2, "it is not older than some seconds"


def test_whoever_names_another_part_of_the_kinds_each_time_makes_few_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    graph.set.set_head(roster({"ada": W}), T0)
    built = count_builds(monkeypatch)
    parts = [part for size in (1, 2, 3) for part in combinations(Kind, size)]
    given = [graph.view_of(part, T0 - at, T0) for at, part in enumerate(parts)]
    assert (len(built), given[0] is not None, any(given[1:])) == (1, True, False)
    for at, part in enumerate(parts):
        graph.view_of(part, T0, T0 + at * BUILD_PAUSE_MS // 10)
    assert len(built) == 1 + (len(parts) - 1) // 10
    assert len(graph._narrowed) == NARROWED_MAX


def test_each_part_of_the_kinds_that_there_is_room_for_is_renewed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()
    graph.set.set_head(roster({"ada": W}), T0)
    parts = [(kind,) for kind in list(Kind)[:NARROWED_MAX]]
    for at, part in enumerate(parts):
        graph.view_of(part, T0, T0 + at * BUILD_PAUSE_MS)
    built = count_builds(monkeypatch)
    for ms in range(NARROWED_MAX * BUILD_PAUSE_MS, 3 * REUSED_MS, 100):
        assert all(graph.view_of(part, T0, T0 + ms) for part in parts)
    assert len(built) == 2 * NARROWED_MAX


def graph_of_shares(*lives_ms: int) -> LedgerGraph:
    graph = make_graph()
    graph.set.set_head(roster({"ada": W}), T0)
    for number, life_ms in enumerate(lives_ms, 1):
        item = share("ada", number, life=life_ms)
        graph.changed(graph.set.admit(item, size_of(item), T0, checked=True))
    return graph


KINDS_OF_PEERS = [tuple(Kind), (Kind.SHARE,)]


@pytest.mark.parametrize("kinds", KINDS_OF_PEERS)
@pytest.mark.parametrize("apart_ms", [-5 * MINUTE, -MINUTE, MINUTE, 5 * MINUTE])
def test_what_is_built_for_a_peer_whose_clock_is_minutes_away_is_right_for_all_others(
    kinds: tuple[Kind, ...], apart_ms: int
) -> None:
    graph = graph_of_shares(3 * MINUTE, HOUR)
    assert graph.view_of(kinds, T0 + apart_ms, T0) is not None
    for t_ms, count in ((T0, 2), (T0 + MINUTE, 2), (T0 + 2 * MINUTE, 1), (T0 + 5 * MINUTE, 1)):
        view = graph.view_of(kinds, t_ms, T0)
        assert view is not None
        assert view.count == count
        anew = Snapshot.build(graph.set.reconciled(t_ms, frozenset(kinds))).view(t_ms)
        assert view.summary() == anew.summary()


def test_times_that_peers_agree_upon_make_no_more_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of_shares(HOUR)
    built = count_builds(monkeypatch)
    for at in range(100):
        graph.view(T0 + (-1) ** at * at * 3_000, T0 + at * 100)
    assert len(built) == 1


@pytest.mark.parametrize("always_new", [0, 10**9])
def test_times_that_peers_agree_upon_make_no_more_snapshots_of_a_crowded_set(
    monkeypatch: pytest.MonkeyPatch, always_new: int
) -> None:
    monkeypatch.setattr(ledger_graph, "SNAPSHOT_ALWAYS_NEW", always_new)
    graph = graph_of_shares(*[HOUR] * 10)
    monkeypatch.setattr(GraphSet, "is_crowded", property(lambda _: True))
    built = count_builds(monkeypatch)
    pause_ms = ledger_graph.SNAPSHOT_REUSED_MS
    for at in range(10):
        graph.view(T0 + (-1) ** at * pause_ms, T0 + at)
        graph.view(T0 + MINUTE + (-1) ** at * MINUTE // 2, T0 + at)
    assert len(built) == 2, "one for now, and one for all other times"
    # What a peer asked that is minutes away is for such peers alone.
    assert graph.snapshot(T0, T0 + 9) is not graph.snapshot(T0 + MINUTE, T0 + 9)
    graph.view(T0 + MINUTE, T0 + pause_ms - 1)
    graph.view(T0 + MINUTE, T0 + pause_ms)
    assert len(built) == 3
    # Of what has not changed there is a new one after a millisecond for each item, and a large one after two seconds.
    graph.view(T0 + pause_ms, T0 + pause_ms)
    graph.view(T0 + pause_ms, T0 + pause_ms + 9)
    assert len(built) == 4
    graph.view(T0 + pause_ms, T0 + pause_ms + 10)
    assert len(built) == 5


def test_what_changes_in_a_crowded_set_shows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of_shares(*[HOUR] * 10)
    monkeypatch.setattr(GraphSet, "is_crowded", property(lambda _: True))
    assert graph.view(T0, T0).count == 10
    item = share("ada", 11, life=HOUR)
    graph.changed(graph.set.admit(item, size_of(item), T0, checked=True))
    assert graph.view(T0, T0).count == 11
