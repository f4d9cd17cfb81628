"""What the scenarios rest on: the instrument that makes two orders, and the table by which a reader finds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from p2pmem_devnet.cluster_node import ClusterNode
from trio.testing import MockClock

from tests.p2pmem.trust.scene import Order, scene

HERE = Path(__file__).parent


async def test_sides_that_heard_nothing_of_their_own_are_no_two_orders(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        await it.proposed()
        of_bo, of_cy = it.sides()
        assert (it.ada in of_bo) is not order.is_other
        with pytest.RaisesGroup(
            pytest.RaisesExc(AssertionError, match="heard nothing before"), allow_unwrapped=True, flatten_subgroups=True
        ):
            async with it.apart(of_bo, of_cy):
                await it.bo.decide(approve=True)


async def test_what_happens_apart_is_heard_in_two_orders(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        async with it.apart(*it.sides()):
            for node in (it.bo, it.cy):
                await node.decide(approve=True)
        (by_bo,), (by_cy,) = it.said_by(it.bo, asset), it.said_by(it.cy, asset)
        rows = {node: _arrivals(node) for node in (it.ada, it.dan)}
        first = {node: rows[node].index(by_bo) < rows[node].index(by_cy) for node in rows}
        assert first == {it.ada: not order.is_other, it.dan: order.is_other}


def _arrivals(node: ClusterNode) -> list[bytes]:
    """What a node took, by id, in the order in which it came."""
    return [
        bytes(row[0])
        for row in node.inside.ledger.database.read(
            lambda connection: connection.execute("SELECT id FROM item ORDER BY arrival").fetchall()
        )
    ]


def test_the_table_names_tests_that_there_are() -> None:
    named = set(re.findall(r"`(test_\w+)`", (HERE / "README.md").read_text()))
    there = {
        name for file in HERE.glob("test_*.py") for name in re.findall(r"^async def (test_\w+)", file.read_text(), re.M)
    }
    assert named
    assert named <= there
