"""The line of charged things: the short walk decides what a whole count would."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from p2pmem_protocol import accounts
from p2pmem_protocol.accounts import ASIDE_KEPT_MAX, Account, in_order, passed_over
from p2pmem_protocol.credential import Right
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.records import FOREVER, Record, State
from p2pmem_protocol.roster import Quotas

from tests.protocol.world import (
    DAY,
    GRAPH,
    HOUR,
    MINUTE,
    NETWORK,
    T0,
    W,
    act_for,
    address,
    retract,
    revoke,
    roster,
    share,
    size_of,
)


def record(rng: random.Random, number: int) -> Record:
    durable = rng.random() < 0.3
    return Record(
        id=number.to_bytes(32),
        kind=Kind.PUBLISH if durable else Kind.SHARE,
        author=address("alice"),
        principal=address("alice"),
        serial=0,
        rights=Right(0),
        issued_at_ms=rng.randrange(40),
        ends_at_ms=FOREVER if durable else 100 + rng.randrange(50),
        charge_bytes=rng.choice((1, 1, 2, 3, 7)),
        state=State.NEW,
        since_ms=0,
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_short_walk_decides_what_a_whole_count_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_BLOCK_RECORDS_MAX", 4)
    rng = random.Random(seed)
    quotas = Quotas(live_bytes=rng.randrange(5, 60), live_items=rng.randrange(1, 15), durable_items=rng.randrange(8))
    account = Account(address("alice"))
    line: list[Record] = []
    for number in range(80):
        if line and rng.random() < 0.15:
            gone = line.pop(rng.randrange(len(line)))
            if gone.state is State.IN:
                account.count(gone, -1)
            else:
                account.over -= 1
            account.remove(gone)
            left = list(account.charged())
            over = passed_over(left, quotas, 0)
            for other in left:
                other.state = State.OVER if other.id in over else State.IN
            account.rebuild(left)
        new = record(rng, number)
        expected_over = passed_over(in_order([*line, new]), quotas, 0)
        assert account.has_room(new, quotas) == (new.id not in expected_over)
        if new.id in expected_over:
            continue
        account.insert(new)
        line.append(new)
        for changed, state in account.settle_from(new, quotas):
            account.count(changed, 1 if state is State.IN else -1)
            account.over += -1 if changed.state is State.OVER else state is State.OVER
            changed.state = state
        assert list(account.charged()) == in_order(line)
        assert {item.id for item in line if item.state is State.OVER} == expected_over
        assert account.over == len(expected_over)
        counting = [item for item in line if item.state is State.IN]
        assert account.usage.live_bytes == sum(item.charge_bytes for item in counting)
        assert account.usage.durable_items == sum(item.ends_at_ms == FOREVER for item in counting)
        assert account.has_ended(120) == any(item.ends_at_ms <= 120 for item in line)
        assert account.latest_over(2) == [item for item in in_order(line)[::-1] if item.state is State.OVER][:2]


def test_whether_something_has_ended_follows_what_comes_and_goes() -> None:
    account = Account(address("alice"))
    ends = [150, 120, 130]
    line = [replace(record(random.Random(number), number), ends_at_ms=end) for number, end in enumerate(ends)]
    assert not account.has_ended(FOREVER)
    for each in line:
        account.insert(each)
        assert account.has_ended(each.ends_at_ms)
    assert not account.has_ended(119)
    account.remove(line[1])
    assert [account.has_ended(t_ms) for t_ms in (120, 129, 130)] == [False, False, True]
    account.remove(line[0])
    assert [account.has_ended(t_ms) for t_ms in (129, 130)] == [False, True]
    account.insert(line[1])
    assert [account.has_ended(t_ms) for t_ms in (119, 120)] == [False, True]


def test_a_long_line_is_kept_in_short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "_BLOCK_RECORDS_MAX", 4)
    account = Account(address("alice"))
    line = in_order(record(random.Random(number), number) for number in range(40))
    for each in line:
        account.insert(each)
        assert all(len(block.records) <= 4 for block in account._blocks)
    assert list(account.charged()) == line
    account.rebuild(line)
    assert [len(block.records) for block in account._blocks] == [2] * 20


def test_so_many_that_were_pushed_out_are_kept_aside_and_the_latest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ASIDE_KEPT_MAX >= 100
    for module in ("graphset", "deciding"):
        monkeypatch.setattr(f"p2pmem_protocol.{module}.ASIDE_KEPT_MAX", 3)
    graph_set = GraphSet(GRAPH, NETWORK)
    graph_set.set_head(roster({"alice": W}, 0, quotas=Quotas(live_items=2)), T0)
    shares = [share("alice", number, issued=T0 - number * MINUTE, life=DAY) for number in range(1, 10)]
    for item in shares:
        graph_set.admit(item, size_of(item), T0, checked=True)
    assert len(graph_set) == 2
    aside = {item.id for item in graph_set.known()} - {item.id for item in graph_set.records()}
    assert aside == {item.id for item in shares[4:7]}
    graph_set.sweep(T0 + DAY - 8 * MINUTE)
    assert {item.id for item in graph_set.records()} == {item.id for item in shares[5:7]}


def test_much_that_ends_at_once_leaves_the_sums_right() -> None:
    graph_set = GraphSet(GRAPH, NETWORK)
    graph_set.set_head(roster({"alice": W}, 0, quotas=Quotas(live_items=200)), T0)
    for number in range(1, 201):
        item = share("alice", number, life=HOUR if number % 4 else DAY)
        graph_set.admit(item, size_of(item), T0, checked=True)
    graph_set.sweep(T0 + HOUR)
    assert len(graph_set) == 50
    for number in range(201, 351):
        item = share("alice", number, life=DAY)
        graph_set.admit(item, size_of(item), T0 + HOUR, checked=True)
    assert len(graph_set) == 200


def test_what_a_principal_puts_aside_by_its_own_doing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("graphset", "deciding"):
        monkeypatch.setattr(f"p2pmem_protocol.{module}.ASIDE_KEPT_MAX", 3)
    graph_set = GraphSet(GRAPH, NETWORK)
    graph_set.set_head(roster({"alice": W}, 0, quotas=Quotas(cuts=4)), T0)
    for number in range(1, 20):
        item = retract("alice", version=number, issued=T0 - number)
        graph_set.admit(item, size_of(item), T0, checked=True)
    assert graph_set.statistics().in_set == 4
    assert graph_set.statistics().aside == 3
    for serial in (1, 2, 3):
        act = act_for("alice", "helper", serial)
        for number in range(1, 10):
            item = share("helper", number, life=DAY + serial, act=act)
            graph_set.admit(item, size_of(item), T0, checked=True)
        ended = revoke("alice", "helper", serial, issued=T0 - HOUR - serial)
        graph_set.admit(ended, size_of(ended), T0, checked=True)
    assert graph_set.statistics().in_set == 4
    assert graph_set.statistics().aside == 3 + 3
