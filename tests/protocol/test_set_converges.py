"""Two peers with clocks apart and a source that holds everything: whatever the order, they come to agree."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest
from p2pmem_protocol import accounts
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.errors import Penalty, RefusedError
from p2pmem_protocol.evidence import Decision, Endorse, Evidence
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import AssetKey, VersionKey
from p2pmem_protocol.records import SealedRecord
from p2pmem_protocol.snapshot import RECONCILE_LEAD_MS
from p2pmem_protocol.trust import Trust, TrustReport
from p2pmem_protocol.view import VersionView, asset_view

from tests.protocol import histories
from tests.protocol.world import GRAPH, HOUR, MINUTE, NETWORK, SECOND, T0, size_of

HISTORIES = int(os.environ.get("P2PMEM_HISTORIES", "100"))
FIRST_SEED = int(os.environ.get("P2PMEM_FIRST_SEED", "0"))
REFUSED_FOR_MS = 2 * MINUTE
ROUNDS_MAX = 30


class Node:
    """One peer: a set, a clock that is off, and the memory of what it refused."""

    def __init__(self, history: histories.History, skew_ms: int) -> None:
        self.history = history
        self.skew_ms = skew_ms
        self.set = GraphSet(GRAPH, NETWORK)
        self.place = -1
        self.refused: dict[bytes, int] = {}
        self.trusted: dict[VersionKey, TrustReport] = {}

    def clock(self, t_ms: int) -> int:
        return t_ms + self.skew_ms

    def adopt(self, place: int, t_ms: int) -> None:
        """A later head; heads never go back but for forks, which the history has in its order."""
        if place > self.place:
            self.place = place
            head, forked = self.history.heads[place]
            self.set.set_head(head, t_ms, forked=forked, named=self.history.quorums)
            self.refused.clear()
            self.trusted = self.reports(t_ms)

    def sweep(self, t_ms: int) -> None:
        self.set.sweep(self.clock(t_ms))
        self.trusted = self.reports(self.clock(t_ms))

    def offer(self, item: Item, t_ms: int) -> bool:
        try:
            changes = self.set.admit(item, size_of(item), t_ms, checked=True)
        except RefusedError as refused:
            if refused.penalty is not Penalty.NONE:
                raise
            self.refused[item.id] = t_ms
            return False
        self._check_trust(item, changes, t_ms)
        return True

    def wants(self, item_id: bytes, t_ms: int) -> bool:
        return self.set.state_of(item_id) is None and self.refused.get(item_id, 0) + REFUSED_FOR_MS <= t_ms

    def reports(self, t_ms: int) -> dict[VersionKey, TrustReport]:
        return {
            version.key: version.trust
            for asset in list(self.set.assets())
            for version in asset_view(self.set, asset, t_ms).versions
        }

    def _check_trust(self, item: Item, changes: Changes, t_ms: int) -> None:
        """Trust falls only by a rejection, a withdrawal, or a share or publish by another principal; or where a
        principal rejected what its own agent said for it, which did not count, and then revokes those words."""
        now = dict(self.trusted)
        for asset in changes.assets:
            reports = {version.key: version.trust for version in asset_view(self.set, asset, t_ms).versions}
            now = {key: report for key, report in now.items() if key.asset != asset} | reports
            for key, report in reports.items():
                before = self.trusted.get(key, report)
                assert report.level >= before.level or _may_lower(item, before, report), (item, key, before, report)
        self.trusted = now


def _may_lower(item: Item, before: TrustReport, now: TrustReport) -> bool:
    if isinstance(item, Evidence):
        decided = item.statement.decision in (Endorse.WITHDRAW, Decision.REJECT)
        return item.subject == now.subject and decided
    if item.kind is Kind.REVOKE:
        is_heard_now = item.author in before.barred and item.author not in now.barred
        return is_heard_now and now.level is Trust.REJECTED and item.author in {line.signer for line in now.rejections}
    # Another, not one more: what named somebody before may have gone meanwhile.
    is_said_by_another = bool(set(now.barred) - set(before.barred))
    return item.kind in (Kind.SHARE, Kind.PUBLISH) and item.delegation is not None and is_said_by_another


def meet(a: Node, b: Node, t_ms: int) -> set[bytes]:
    """One round; returns what it moved. Heads first: with different heads nothing is reconciled."""
    place = max(a.place, b.place)
    for node in (a, b):
        node.adopt(place, node.clock(t_ms))
    at_ms = max(a.clock(t_ms), b.clock(t_ms))
    of_a, of_b = ({item_id for _, item_id in node.set.reconciled(at_ms)} for node in (a, b))
    return _send(a, b, of_a - of_b, at_ms) | _send(b, a, of_b - of_a, at_ms)


def _send(giver: Node, taker: Node, ids: Iterable[bytes], at_ms: int) -> set[bytes]:
    pool = {item.id: item for item in giver.history.pool}
    wanted = [pool[item_id] for item_id in ids if taker.wants(item_id, at_ms)]
    in_order = sorted(wanted, key=lambda it: (histories.round_rank(it.kind), it.id))
    return {item.id for item in in_order if taker.offer(item, at_ms)}


def settle(nodes: tuple[Node, Node], source: list[Item], t_ms: int) -> None:
    """Rounds, and everything from the source, until nothing moves."""
    for _ in range(ROUNDS_MAX):
        moved = len(meet(*nodes, t_ms))
        for node in nodes:
            moved += sum(node.offer(item, node.clock(t_ms)) for item in source)
        if not moved:
            return
    raise AssertionError(f"still moving after {ROUNDS_MAX} rounds")


def shown(node: Node, asset: AssetKey, t_ms: int) -> list[VersionView]:
    return [version for version in asset_view(node.set, asset, t_ms).versions if version.is_visible]


def run(seed: int, *, with_source: bool) -> None:
    history = histories.make(seed)
    rng = random.Random(seed + 2)
    nodes = (Node(history, rng.randint(-20, 20) * SECOND), Node(history, rng.randint(-20, 20) * SECOND))
    t_ms = T0 + 10 * MINUTE
    for node in nodes:
        node.adopt(0, node.clock(t_ms))
    for _ in range(rng.randint(40, 140)):
        if rng.random() < 0.3:
            t_ms += rng.choice((1, SECOND, MINUTE, 30 * MINUTE))
        node = rng.choice(nodes)
        which = rng.random()
        if which < 0.06:
            node.adopt(min(node.place + 1, len(history.heads) - 1), node.clock(t_ms))
        elif which < 0.15:
            node.sweep(t_ms)
        elif which < 0.2:
            for each in nodes:
                each.sweep(t_ms)
            meet(*nodes, t_ms)
        else:
            node.offer(rng.choice(history.pool), node.clock(t_ms))
    _agree(history, nodes, t_ms, with_source)


def _agree(history: histories.History, nodes: tuple[Node, Node], t_ms: int, with_source: bool) -> None:
    a, b = nodes
    for node in nodes:
        node.adopt(len(history.heads) - 1, node.clock(t_ms))
    # Refusals are remembered for two minutes, and R(t) looks one minute ahead: let both pass between two settlings.
    for _ in range(3):
        for node in nodes:
            node.sweep(t_ms)
        settle(nodes, history.pool if with_source else [], t_ms)
        t_ms += 3 * MINUTE
    apart = _kept_apart_by_an_end(nodes, t_ms - 3 * MINUTE) or set()
    at_ms = max(a.clock(t_ms), b.clock(t_ms))
    # Only what found room meanwhile, where something ended, may be news to the other peer; and what an end, between
    # the clocks of the two when they settled last, had kept from one of them.
    came_back = {item_id for node in nodes for item_id in node.set.sweep(at_ms).entered}
    assert meet(a, b, t_ms) <= came_back | apart
    settle(nodes, [], t_ms)
    assert not meet(a, b, t_ms)
    at_ms = _settle_over_an_end(nodes, t_ms)
    if a.set.head is None:
        return
    for asset in history.assets:
        view = shown(a, asset, at_ms)
        assert view == shown(b, asset, at_ms)
        assert all(version.published or (version.shared_until_ms or 0) > at_ms for version in view)
    _check_new_words(history, a)


def _settle_over_an_end(nodes: tuple[Node, Node], t_ms: int) -> int:
    """When both hold the same, as the later clock has it: here a minute is one of rounds."""
    a, b = nodes
    if _kept_apart_by_an_end(nodes, t_ms) is None:
        return max(a.clock(t_ms), b.clock(t_ms))
    for _ in range(5):
        t_ms += MINUTE
        for node in nodes:
            node.sweep(t_ms)
        settle(nodes, [], t_ms)
    return _settle_over_an_end(nodes, t_ms)


def _kept_apart_by_an_end(nodes: tuple[Node, Node], t_ms: int) -> set[bytes] | None:
    """What only one of them holds, or None when they are equal in that and in what they give.

    R(t) looks a minute ahead. What ends within that minute is not given any more, and who still holds it has no room
    for what the other holds already, refuses it, and remembers that for two minutes. The same between the clocks of
    the two: what has ended by one is there by the other. So an end that is near, and nothing else, may keep peers
    apart, for minutes.
    """
    a, b = nodes
    from_ms, at_ms = sorted((a.clock(t_ms), b.clock(t_ms)))
    held_by_a, held_by_b = ({record.id for record in node.set.records()} for node in nodes)
    apart = held_by_a ^ held_by_b
    is_equal = not apart and a.set.reconciled(at_ms) == b.set.reconciled(at_ms)
    assert is_equal or any(
        from_ms < it.ends_at_ms <= at_ms + RECONCILE_LEAD_MS for node in nodes for it in node.set.records()
    )
    return None if is_equal else apart


def _check_new_words(history: histories.History, node: Node) -> None:
    """Nothing of who is not listed is in the set, but what the head lists."""
    head = node.set.head
    assert head is not None
    listed = head.body.kept_ids
    for record in node.set.records():
        if isinstance(record, SealedRecord) and record.id not in listed:
            assert "writer" in head.body.roles_of(record.principal).words


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a line of a few things already has several blocks."""
    monkeypatch.setattr(accounts, "_BLOCK_RECORDS_MAX", 3)


@pytest.mark.parametrize("seed", [30_029_045])
def test_a_principal_that_rejected_what_it_now_revokes_is_heard(seed: int) -> None:
    run(seed, with_source=True)


@pytest.mark.parametrize("seed", [60_041_531])
def test_trust_falls_by_another_principal_though_one_is_named_no_more(seed: int) -> None:
    run(seed, with_source=True)


@pytest.mark.parametrize(("seed", "with_source"), [(2_003_159, False), (2_042_665, False), (10_048_947, True)])
def test_peers_that_an_end_within_the_minute_ahead_keeps_apart_are_equal_soon_after(
    seed: int, with_source: bool
) -> None:
    run(seed, with_source=with_source)


@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize("block", range(5))
def test_settled_peers_agree_and_idle_rounds_move_nothing(block: int, with_source: bool) -> None:
    each = max(1, HISTORIES // 5)
    for seed in range(FIRST_SEED + block * each, FIRST_SEED + (block + 1) * each):
        try:
            run(seed, with_source=with_source)
        except BaseException:
            print(f"history of seed {seed}")
            raise


def test_what_comes_again_is_refused_without_blame() -> None:
    history = histories.make(1)
    node = Node(history, 0)
    node.adopt(0, T0 + HOUR)
    first = [item for item in history.pool if isinstance(item, Envelope) and node.offer(item, T0 + HOUR)]
    assert first
    assert not any(node.offer(item, T0 + HOUR) for item in first)
