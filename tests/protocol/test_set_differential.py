"""The set and its views against the naive reading of the rules, over random histories."""

from __future__ import annotations

import os
import random

import pytest
from p2pmem_protocol import accounts
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.records import State
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import asset_view, copies

from tests.protocol import histories
from tests.protocol.naive_view import NaivePeer, NaiveVersion, current
from tests.protocol.world import GRAPH, HOUR, MINUTE, NETWORK, T0, root_of, size_of

HISTORIES = int(os.environ.get("P2PMEM_HISTORIES", "100"))
FIRST_SEED = int(os.environ.get("P2PMEM_FIRST_SEED", "0"))


def seen(graph_set: GraphSet, asset: histories.AssetKey, t_ms: int) -> list[NaiveVersion]:
    """The view in the words of the naive one."""
    return [
        NaiveVersion(
            key=version.key,
            shared_until=version.shared_until_ms,
            published=version.published,
            hidden=version.hidden_by is not None,
            conflict=version.conflict,
            level=version.trust.level.word,
            m=version.trust.m,
            n=version.trust.n,
            approvals=tuple(sorted((line.signer, int(line.method or 0)) for line in version.trust.approvals)),
            rejections=tuple(sorted(line.signer for line in version.trust.rejections)),
            endorsements=tuple(sorted(line.signer for line in version.trust.endorsements)),
        )
        for version in asset_view(graph_set, asset, t_ms).versions
    ]


class Twins:
    """The fast set and the naive peer, fed alike and compared after each step."""

    def __init__(self, history: histories.History) -> None:
        self.history = history
        self.rng = random.Random(history.seed)
        self.headers = random.Random(history.seed)
        self.named: frozenset[bytes] = frozenset()
        self.fast = GraphSet(GRAPH, NETWORK)
        self.naive = NaivePeer()
        self.ids: set[bytes] = set()
        self.aside: set[bytes] = set()

    def set_head(self, place: int, t_ms: int) -> None:
        head, forked = self.history.heads[place]
        # Headers of an earlier term may come after the head, and with them what they name.
        self.named = frozenset(it for it in sorted(self.history.quorums) if self.headers.random() < 0.8)
        self._note(self.fast.set_head(head, t_ms, forked=forked, named=self.named))
        self.naive.set_head(head, t_ms, forked, self.named)

    def admit(self, item: Item, t_ms: int) -> None:
        try:
            self._note(self.fast.admit(item, size_of(item), t_ms, checked=True))
            admitted = True
        except RefusedError:
            admitted = False
        assert admitted == self.naive.admit(item, size_of(item), t_ms), (item, admitted)

    def sweep(self, t_ms: int) -> None:
        """In one go, or piece by piece as a node does when much ends together."""
        at_most = self.rng.choice((None, 1, 2))
        self._note(self.fast.sweep(t_ms, at_most))
        while (next_ms := self.fast.next_end_ms()) is not None and next_ms <= t_ms:
            self._note(self.fast.sweep(t_ms, at_most))
        self.naive.tidy(t_ms)

    def restart(self, t_ms: int) -> None:
        """As a node does: what is known comes back from the ledger as it stood, and nothing changes by that."""
        items = {item.id: item for item in self.history.pool}
        again = GraphSet(GRAPH, NETWORK)
        for record in self.fast.known():
            again.restore(items[record.id], size_of(items[record.id]), record.state, record.since_ms)
        changes = again.set_head(self.fast.head, t_ms, forked=self.fast.is_forked, named=self.named, lets_go=False)
        assert (changes.entered, changes.left, changes.aside) == ((), (), ())
        self.fast = again

    def _note(self, changes: Changes) -> None:
        """Follow the changes as a ledger does."""
        self.ids.update(changes.entered)
        self.aside.difference_update(changes.entered)
        for departure in changes.left:
            self.ids.remove(departure.id)
        for departure in (*changes.left, *changes.aside):
            (self.aside.add if departure.state.aside else self.aside.discard)(departure.id)

    def compare(self, t_ms: int) -> None:
        expected = self.naive.ids(t_ms)
        actual = {record.id for record in self.fast.records()}
        assert actual == expected
        assert actual == self.ids
        assert len(self.fast) == len(actual)
        known = {record.id for record in self.fast.known()}
        assert known == set(self.naive.known)
        assert known - actual == self.aside
        assert all(record.state is State.IN or record.state.aside for record in self.fast.known())
        if self.naive.head is None:
            return
        assert self.fast.reconciled(t_ms) == self.naive.reconciled(t_ms)
        for asset in self.history.assets:
            expected_view = self.naive.view(asset, t_ms)
            assert seen(self.fast, asset, t_ms) == expected_view
            for level in list(Trust)[1:]:
                shown = {version.key for version in asset_view(self.fast, asset, t_ms).current(Floor(level))}
                assert shown == current(expected_view, level.word)
        self._compare_between_sweeps(t_ms)
        for root in "ab":
            assert copies(self.fast, root_of(root), t_ms) == self.naive.copies(root_of(root), t_ms)

    def _compare_between_sweeps(self, t_ms: int) -> None:
        """A view is right at any later instant too, while nothing waits for room that an end would give it."""
        waits = any(record.state is State.OVER for record in self.fast.known())
        for later_ms in (t_ms + 45 * MINUTE, t_ms + 4 * HOUR):
            for asset in self.history.assets:
                view = seen(self.fast, asset, later_ms)
                assert all(it.published or (it.shared_until or later_ms + 1) > later_ms for it in view)
                assert waits or view == self.naive.view(asset, later_ms)


def run(seed: int) -> None:
    history = histories.make(seed)
    rng, starts = random.Random(seed + 1), random.Random(seed + 2)
    twins = Twins(history)
    t_ms = T0 + 10 * MINUTE
    twins.set_head(0, t_ms)
    waiting = sorted(history.pool, key=lambda item: -histories.round_rank(item.kind) - 2.5 * rng.random())
    place = 0
    while waiting or rng.random() < 0.8:
        if rng.random() < 0.3:
            t_ms += rng.choice((1, MINUTE, MINUTE, MINUTE, 30 * MINUTE))
        elif rng.random() < 0.02:
            t_ms += rng.choice((3 * HOUR, 25 * HOUR))
        if starts.random() < 0.05:  # what ended while it was stopped is not swept yet
            twins.restart(t_ms)
        twins.sweep(t_ms)
        if rng.random() < 0.07:
            place = min(place + 1, len(history.heads) - 1) if rng.random() < 0.7 else rng.randrange(len(history.heads))
            twins.set_head(place, t_ms)
        elif waiting and rng.random() < 0.9:
            twins.admit(waiting.pop(), t_ms)
        else:
            twins.admit(rng.choice(history.pool), t_ms)
        if rng.random() < 0.03:
            twins.restart(t_ms)
        if rng.random() < 0.15:
            twins.compare(t_ms)
    twins.compare(t_ms)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a line of a few things already has several blocks."""
    monkeypatch.setattr(accounts, "_BLOCK_RECORDS_MAX", 3)


@pytest.mark.parametrize("seed", [386, 590])
def test_what_is_verified_under_two_quorums_stands_under_that_of_the_greatest_m(seed: int) -> None:
    """Histories in which a kept certificate has a greater M than the head's quorum, and both are complete."""
    run(seed)


@pytest.mark.parametrize("block", range(10))
def test_the_set_and_its_views_are_what_the_rules_say(block: int) -> None:
    each = max(1, HISTORIES // 10)
    for seed in range(FIRST_SEED + block * each, FIRST_SEED + (block + 1) * each):
        try:
            run(seed)
        except BaseException:
            print(f"history of seed {seed}")
            raise
