"""Following a chain that lies in memory and reorganises at will."""

from __future__ import annotations

import hashlib

import pytest
import trio
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import OutsideError

from p2pmem.chain import Head, HeadWatch


class MemoryChain:
    """Blocks whose hashes depend on all before them."""

    def __init__(self) -> None:
        self.blocks = [b"\0" * 32]
        self.away = False
        self.questions = 0
        self._salt = 0

    def grow(self, count: int) -> None:
        for _ in range(count):
            self._salt += 1
            self.blocks.append(hashlib.sha256(self.blocks[-1] + str(self._salt).encode()).digest())

    def cut(self, depth: int) -> None:
        del self.blocks[max(1, len(self.blocks) - depth) :]

    async def head(self) -> Head:
        await trio.lowlevel.checkpoint()
        self.questions += 1
        if self.away:
            raise OutsideError("away")
        return Head(len(self.blocks) - 1, self.blocks[-1])

    async def block_hash(self, block_number: int) -> bytes | None:
        await trio.lowlevel.checkpoint()
        self.questions += 1
        if self.away:
            raise OutsideError("away")
        return self.blocks[block_number] if block_number < len(self.blocks) else None


async def test_the_first_answer_comes_at_once_and_names_no_reorganisation() -> None:
    chain = MemoryChain()
    chain.grow(3)
    change = await HeadWatch(chain).next_change(1.0)
    assert (change.head.number, change.changed_from) == (3, None)


async def test_an_unchanged_head_is_no_change_and_costs_one_question() -> None:
    chain = MemoryChain()
    watch = HeadWatch(chain)
    await watch.poll()
    chain.questions = 0
    assert await watch.poll() is None
    assert chain.questions == 1


async def test_waiting_polls_until_there_is_a_block_and_not_longer(autojump_clock: trio.testing.MockClock) -> None:
    chain = MemoryChain()
    watch = HeadWatch(chain)
    await watch.poll()

    async def grow_later() -> None:
        await trio.sleep(10.5)
        chain.grow(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(grow_later)
        change = await watch.next_change(2.0)
    assert change.head.number == 1
    assert trio.current_time() == pytest.approx(12.0)


async def test_a_replaced_block_of_the_same_height_is_noticed() -> None:
    chain = MemoryChain()
    watch = HeadWatch(chain)
    for _ in range(4):
        chain.grow(1)
        await watch.poll()
    chain.cut(2)
    chain.grow(2)
    change = await watch.poll()
    assert change is not None
    assert (change.head.number, change.changed_from) == (4, 3)


async def test_a_chain_that_became_shorter_is_noticed() -> None:
    chain = MemoryChain()
    watch = HeadWatch(chain)
    for _ in range(4):
        chain.grow(1)
        await watch.poll()
    chain.cut(3)
    change = await watch.poll()
    assert change is not None
    assert (change.head.number, change.changed_from) == (1, 2)


async def test_a_reorganisation_deeper_than_memory_says_that_everything_may_have_changed() -> None:
    chain = MemoryChain()
    watch = HeadWatch(chain, marks_max=3)
    for _ in range(9):
        chain.grow(1)
        await watch.poll()
    chain.cut(5)
    chain.grow(9)
    change = await watch.poll()
    assert change is not None
    assert change.changed_from == 0


async def test_a_failed_poll_forgets_nothing() -> None:
    chain = MemoryChain()
    watch = HeadWatch(chain)
    for _ in range(2):
        chain.grow(1)
        await watch.poll()
    chain.cut(1)
    chain.grow(1)
    chain.away = True
    with pytest.raises(OutsideError):
        await watch.poll()
    chain.away = False
    change = await watch.poll()
    assert change is not None
    assert change.changed_from == 2


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.booleans()), max_size=25))
def test_every_block_seen_before_and_changed_lies_at_or_above_the_number_named(
    history: list[tuple[int, int, bool]],
) -> None:
    async def follow() -> None:
        chain, seen = MemoryChain(), list[bytes]()
        watch = HeadWatch(chain)
        for cut, grow, polled in history:
            chain.cut(cut)
            chain.grow(grow)
            if not polled:
                continue
            change = await watch.poll()
            assert change is not None
            common = 0
            while common < min(len(seen), len(chain.blocks)) and seen[common] == chain.blocks[common]:
                common += 1
            if common < len(seen):
                assert change.changed_from is not None
                assert change.changed_from <= common
            else:
                assert change.changed_from is None
            seen = list(chain.blocks)

    trio.run(follow)
