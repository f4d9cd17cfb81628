"""What is too much waits, and whoever says much in one go keeps nobody from all else."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from p2pmem.net.pace import TURNS_AT_ONCE, Pace
from p2pmem.net.seam import PeerId, StreamClosedError

PEER = PeerId("you")


async def test_so_many_words_are_taken_in_at_once_and_the_others_as_the_account_grows_back(
    autojump_clock: MockClock,
) -> None:
    pace, began = Pace(lambda peer: "somewhere", 60, 2), trio.current_time()
    for _ in range(60):
        await pace.turn("a", PEER)
    assert trio.current_time() == began
    for seconds in (1, 2, 3):
        await pace.turn("a", PEER)
        assert trio.current_time() - began == pytest.approx(seconds)
    await pace.turn("b", PEER)
    assert trio.current_time() - began == pytest.approx(3), "another has an account of its own"


async def test_of_who_is_gone_nothing_more_is_taken_in_once_it_has_to_wait(autojump_clock: MockClock) -> None:
    where = {PEER: "somewhere"}
    pace = Pace(lambda peer: where.get(peer, ""), 2, 2)
    await pace.turn("a", PEER)
    where.clear()
    await pace.turn("a", PEER)
    with pytest.raises(StreamClosedError):
        await pace.turn("a", PEER)


async def test_there_is_a_moment_for_others_after_so_many_words() -> None:
    pace, others = Pace(lambda peer: "somewhere", 1_000_000, 2), 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        before = others
        for _ in range(10 * TURNS_AT_ONCE):
            await pace.turn("a", PEER)
        assert others - before >= 9
        nursery.cancel_scope.cancel()
