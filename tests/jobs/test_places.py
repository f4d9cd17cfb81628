"""Places for running jobs, alone."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from p2pmem_jobs.places import Places


def make(total: int = 3) -> tuple[Places, list[int]]:
    freed: list[int] = []
    return Places(total, {"a": 2, "b": 5}, lambda: freed.append(1)), freed


async def test_a_kind_and_all_kinds_together_have_their_limits() -> None:
    places, freed = make()
    places.take("a")
    places.take("a")
    assert (places.free("a"), places.free("b"), places.free_in_all()) == (0, 1, 1)
    places.take("b")
    assert places.free("b") == 0
    with pytest.raises(AssertionError):
        places.take("b")
    places.give_back("a")
    assert freed == [1]
    assert places.free("a") == 1


async def test_who_returns_comes_in_its_turn_and_not_during_a_claim() -> None:
    places, _ = make(total=2)
    order: list[str] = []

    async def come_back(kind: str, name: str) -> None:
        await places.take_again(kind)
        order.append(name)

    places.take("a")
    places.take("b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_back, "b", "first")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(come_back, "a", "second")
        await trio.testing.wait_all_tasks_blocked()
        places.begin_claim()
        places.give_back("b")
        await trio.testing.wait_all_tasks_blocked()
        assert order == []
        assert places.free("b") == 1
        places.end_claim()
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["first"]
        places.give_back("a")
    assert order == ["first", "second"]
    assert places.free_in_all() == 0


async def test_who_is_cancelled_while_it_comes_back_takes_no_place() -> None:
    places, _ = make(total=1)
    places.take("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.take_again, "a")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    places.give_back("a")
    assert places.free_in_all() == 1
