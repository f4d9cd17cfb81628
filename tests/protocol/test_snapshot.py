"""A snapshot is a sorted set whose ranges have fingerprints at a small, constant cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import snapshot as module
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.limits import RECONCILE_LEAD_MS
from p2pmem_protocol.snapshot import (
    ORDER_NEVER,
    Item,
    Snapshot,
    Summary,
    fingerprint_of,
    order_of,
    varint,
)

from tests.protocol import naive_negentropy as naive

ids = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.sampled_from([b"\xff" * 32, b"\0" * 32, b"\xff" * 31 + b"\0", b"\0" * 31 + b"\1"]),
)
orders = st.one_of(st.integers(0, 3), st.integers(0, ORDER_NEVER), st.just(ORDER_NEVER))
pairs = st.lists(st.tuples(orders, ids), max_size=400, unique=True)


def sum_of(some: list[tuple[int, bytes]]) -> int:
    return sum(int.from_bytes(item_id, "little") for _, item_id in some) % 2**256


@given(pairs, st.data())
def test_every_range_has_the_sum_of_its_ids(some: list[tuple[int, bytes]], data: st.DataObject) -> None:
    snapshot = Snapshot.build(some)
    in_order = sorted(some)
    assert list(snapshot) == in_order
    low = data.draw(st.integers(0, len(some)))
    high = data.draw(st.integers(low, len(some)))
    assert snapshot.view().fingerprint(low, high) == naive.fingerprint(in_order[low:high])
    assert snapshot.sum_before(high) == sum_of(in_order[:high])


def test_ids_of_all_ones_carry_over_without_spoiling_their_neighbours() -> None:
    some = [(ORDER_NEVER, b"\xff" * 30 + n.to_bytes(2, "big")) for n in range(5_000)]
    assert Snapshot.build(some).sum_before(5_000) == sum_of(some)


@given(pairs, pairs, st.data())
def test_a_changed_snapshot_equals_one_built_anew(
    held: list[tuple[int, bytes]], new: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    gone = data.draw(st.lists(st.sampled_from(held + new), max_size=50)) if held + new else []
    before = Snapshot.build(held)
    after = before.changed(add=new, remove=gone)
    rebuilt = Snapshot.build((set(held) | set(new)) - set(gone))
    assert list(after) == list(rebuilt)
    assert [after.sum_before(i) for i in range(after.count + 1)] == [
        rebuilt.sum_before(i) for i in range(after.count + 1)
    ]
    assert list(before) == sorted(held), "a snapshot never changes"


@pytest.mark.parametrize("seed", range(8))
def test_a_large_set_changed_anywhere_keeps_its_sums(seed: int) -> None:
    rnd = random.Random(seed)
    held = [(rnd.randrange(10_000), rnd.randbytes(32)) for _ in range(1_000)]
    new = [(rnd.randrange(5_000, 10_000), rnd.randbytes(32)) for _ in range(rnd.randrange(3))]
    gone = rnd.sample(held, rnd.randrange(1, 3))
    after = Snapshot.build(held).changed(add=new, remove=gone)
    in_order = sorted((set(held) | set(new)) - set(gone))
    assert list(after) == in_order
    for index in range(0, after.count, 13):
        assert after.sum_before(index) == sum_of(in_order[:index])


@given(pairs, st.data())
def test_without_leaves_out_ids_wherever_they_stand(some: list[tuple[int, bytes]], data: st.DataObject) -> None:
    gone = set(data.draw(st.lists(st.sampled_from([i for _, i in some])))) if some else set()
    kept = Snapshot.build(some).without(gone)
    assert list(kept) == sorted(p for p in some if p[1] not in gone)
    assert kept.sum_before(kept.count) == sum_of(list(kept))


def test_a_view_leaves_out_what_ends_within_a_minute_of_the_agreed_time_and_keeps_what_never_ends() -> None:
    agreed = 1_700_000_000_000
    ends = [agreed - 1, agreed + RECONCILE_LEAD_MS, agreed + RECONCILE_LEAD_MS + 1, 0]
    some = [(order_of(end), bytes([n]) * 32) for n, end in enumerate(ends)]
    view = Snapshot.build(some).view(agreed)
    assert view.ids(view.first, view.last) == [bytes([2]) * 32, bytes([3]) * 32]
    assert view.count == 2
    assert Snapshot.build(some).view(2**62).ids(3, 4) == [bytes([3]) * 32], "a clock gone mad hides nothing published"


@given(pairs, st.integers(0, 10), pairs)
def test_a_summary_leaves_out_what_is_under_way(
    some: list[tuple[int, bytes]], count: int, strangers: list[tuple[int, bytes]]
) -> None:
    recent = some[:count]
    others = [p for p in strangers if p not in some]
    settled = Snapshot.build(some[count:])
    assert Snapshot.build(some).view().summary(leaving_out=recent + others + recent) == settled.view().summary()


def test_a_summary_does_not_subtract_what_lies_before_the_cut() -> None:
    ended, live = Item(5, b"\1" * 32), Item(ORDER_NEVER, b"\2" * 32)
    view = Snapshot.build([ended, live]).view(10)
    assert view.summary(leaving_out=[ended]) == view.summary() == Summary(1, fingerprint_of(sum_of([live]), 1))


def test_a_summary_is_that_of_its_own_view_whatever_was_asked_for_before() -> None:
    ended, live = Item(5, b"\1" * 32), Item(ORDER_NEVER, b"\2" * 32)
    snapshot = Snapshot.build([ended, live])
    for agreed, items in ((None, [ended, live]), (10, [live]), (None, [ended, live])):
        view = snapshot.view() if agreed is None else snapshot.view(agreed)
        assert view.summary() == Summary(len(items), fingerprint_of(sum_of(items), len(items)))


def test_a_summary_of_nothing_leaves_out_nothing() -> None:
    ended = Item(5, b"\1" * 32)
    assert Snapshot.build([ended]).view(10).summary(leaving_out=[ended]) == Summary(0, fingerprint_of(0, 0))


def test_a_fingerprint_adds_up_fewer_than_two_strides_of_ids_however_large_the_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rnd = random.Random(7)
    view = Snapshot.build([(rnd.randrange(2**40), rnd.randbytes(32)) for _ in range(20_000)]).view()
    added = []
    plain = module._sum_of_ids
    monkeypatch.setattr(module, "_sum_of_ids", lambda keys, count: added.append(count) or plain(keys, count))
    for _ in range(100):
        low = rnd.randrange(20_000)
        view.fingerprint(low, rnd.randrange(low, 20_000))
    assert sum(added) < 100 * 2 * 64


@pytest.mark.parametrize(
    "some",
    [
        [(1, b"short")],
        [(1, b"x" * 31), (2, b"y" * 33)],
        [(-1, b"x" * 32)],
        [(2**53, b"x" * 32)],
        [(2**64, b"x" * 32)],
        [(1, b"x" * 32), (1, b"x" * 32)],
        [(1, "text")],
    ],
)
def test_what_is_no_item_is_refused(some: list[tuple[int, bytes]]) -> None:
    with pytest.raises(MisuseError):
        Snapshot.build(some)


@pytest.mark.parametrize(
    "added",
    [
        [(1, b"x" * 31), (2, b"y" * 32)],
        [(1, b"x" * 32), (2**53, b"y" * 32)],
        [(2**53, b"x" * 32), (1, b"y" * 32)],
        [(1, b"x" * 33)],
    ],
)
def test_what_is_no_item_is_not_added(added: list[tuple[int, bytes]]) -> None:
    with pytest.raises(MisuseError):
        Snapshot.build([(5, b"z" * 32)]).changed(add=added)


def test_what_would_stand_after_the_last_is_not_in_it() -> None:
    snapshot = Snapshot.build([(5, b"z" * 32)])
    assert (6, b"z" * 32) not in snapshot
    assert (5, b"z" * 32) in snapshot
    assert snapshot.changed(remove=[(6, b"z" * 32)]) is snapshot
    assert snapshot.without([b"z" * 32]).count == snapshot.without({b"z" * 32}).count == 0
    assert snapshot.lower_bound(0, b"", 1) == 1
    first = Snapshot.build([(0, b"a" * 32), (1, b"b" * 32)])
    assert first.view(-RECONCILE_LEAD_MS - 5).count == 2
    assert Snapshot.build([]).view().summary(leaving_out=[(0, b"a" * 32)]) == Summary(0, fingerprint_of(0, 0))


@pytest.mark.parametrize("expires_at_ms", [-1, 2**53 - 1, 2**63])
def test_an_end_that_is_no_time_has_no_place(expires_at_ms: int) -> None:
    with pytest.raises(MisuseError):
        order_of(expires_at_ms)


@given(st.integers(0, 2**70))
def test_varints_agree(n: int) -> None:
    assert varint(n) == naive.number(n)
