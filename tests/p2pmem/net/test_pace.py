"""What is too much waits, and whoever says much in one go keeps nobody from all else."""

from __future__ import annotations

import pytest
import trio
import trio.testing
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


def graph_pace(graphs: dict[str, set[bytes]]) -> Pace:
    return Pace(lambda peer: "x", 60, 100, graphs_of=lambda peer: graphs.get(peer, set()), graph_per_minute=120)


async def test_all_of_one_graph_have_one_account_however_many_keys_it_lists(autojump_clock: MockClock) -> None:
    pace, began = (
        graph_pace({f"key{number}": {b"theirs"} for number in range(100)} | {"ben": {b"ours"}}),
        trio.current_time(),
    )
    for number in range(120):
        await pace.turn(f"{number % 100}", PeerId(f"key{number % 100}"))
    assert trio.current_time() == began
    await pace.turn("key0", PeerId("key0"))
    assert trio.current_time() - began == pytest.approx(0.5)
    for _ in range(60):
        await pace.turn("ben", PeerId("ben"))
    await pace.turn("stranger", PeerId("stranger"))
    assert trio.current_time() - began == pytest.approx(0.5), "nobody else waits for it"


async def test_who_is_in_a_graph_that_has_some_left_does_not_wait_for_one_that_has_none(
    autojump_clock: MockClock,
) -> None:
    pace = graph_pace({"mal": {b"theirs"}, "ben": {b"theirs", b"ours"}})
    began = trio.current_time()
    for number in range(120):
        await pace.turn(f"mal{number // 50}", PeerId("mal"))
    for _ in range(60):
        await pace.turn("ben", PeerId("ben"))
    assert trio.current_time() == began
    for number in range(60):
        await pace.turn(f"ben{number}", PeerId("ben"))
    assert trio.current_time() == began
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(pace.turn, f"mal{number + 10}", PeerId("mal"))
        await trio.testing.wait_all_tasks_blocked()
        await pace.turn("ben1", PeerId("ben"))
        assert trio.current_time() - began == pytest.approx(0.5), "it waits for the one that has most left"
