"""Random conversations on many streams at once: what is read is a prefix of what was sent, and at an end all of it.

The same seeds run on both networks, and in memory also over bad links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
import trio
from trio.testing import MockClock

from p2pmem.net.memory import MemoryFabric
from p2pmem.net.memory_wire import Link
from p2pmem.net.seam import Network, NotSpokenError, PeerId, PeerUnreachableError, Stream, StreamClosedError

from .conftest import Networks

STREAMS = 12


@dataclass
class Side:
    """What one end of a conversation sent and read, and how it ended."""

    sent: bytearray = field(default_factory=bytearray)
    read: bytearray = field(default_factory=bytearray)
    sent_all: bool = False
    saw_end: bool = False


async def talk(stream: Stream, side: Side, random: Random) -> None:
    """Send and read as chance has it, and end well, badly, or in the middle of a write."""

    async def write() -> None:
        for _ in range(random.randint(0, 8)):
            piece = random.randbytes(random.choice((1, 100, 5_000, 70_000)))
            # Noted before, because a write that fails has sent a part of it.
            side.sent += piece
            if random.random() < 0.05:
                with trio.move_on_after(0):
                    await stream.send_all(piece)
            else:
                await stream.send_all(piece)
        if random.random() < 0.1:
            await stream.reset()
            return
        await stream.close_write()
        side.sent_all = True

    async def read() -> None:
        while data := await stream.receive_some(random.choice((1, 1000, 65_536))):
            side.read += data
        side.saw_end = True

    async def guarded(task: object) -> None:
        try:
            await task()  # type: ignore[operator]
        except StreamClosedError:
            side.sent_all = side.sent_all and task is not write

    async with trio.open_nursery() as nursery:
        nursery.start_soon(guarded, write)
        nursery.start_soon(guarded, read)
    await stream.aclose()


async def converse(alice: Network, bob: Network, seed: int, *, may_fail: bool) -> list[tuple[Side, Side]]:
    """Many conversations at once; the first byte of each tells the listener which one it is."""
    sides = [(Side(), Side()) for _ in range(STREAMS)]

    async def serve(stream: Stream) -> None:
        index = (await stream.receive_some(1))[0]
        await talk(stream, sides[index][1], Random(f"{seed}/{index}/bob"))

    bob.set_handler("/talk/1", serve)
    address = bob.addresses()[0]

    async def one(index: int) -> None:
        try:
            stream = await alice.open_stream(await alice.connect(address, expected=None), "/talk/1")
            await stream.send_all(bytes([index]))
            await talk(stream, sides[index][0], Random(f"{seed}/{index}/alice"))
        except (PeerUnreachableError, NotSpokenError, StreamClosedError):
            if not may_fail:
                raise

    async with trio.open_nursery() as nursery:
        for index in range(STREAMS):
            nursery.start_soon(one, index)
    return sides


def assert_honest(sides: list[tuple[Side, Side]]) -> None:
    for ours, theirs in sides:
        for sender, reader in ((ours, theirs), (theirs, ours)):
            assert sender.sent.startswith(reader.read)
            if reader.saw_end:
                assert sender.sent_all
                assert reader.read == sender.sent


@pytest.mark.parametrize("seed", range(6))
async def test_random_conversations_are_heard_as_they_were_said(networks: Networks, seed: int) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        sides = await converse(alice, bob, seed, may_fail=False)
        assert_honest(sides)
        assert any(reader.saw_end for pair in sides for reader in pair)


@pytest.mark.parametrize("seed", range(20))
async def test_random_conversations_over_bad_links_are_never_garbled(autojump_clock: MockClock, seed: int) -> None:
    random = Random(seed)
    link = Link(delay_s=0.05, jitter_s=0.1, bytes_per_s=200_000, mean_life_s=random.choice((1.0, 5.0, 1e9)))
    fabric = MemoryFabric(seed=seed, link=link, partition_notice_s=3)
    async with fabric.network("alice") as alice, fabric.network("bob") as bob, trio.open_nursery() as nursery:

        async def trouble() -> None:
            for _ in range(5):
                await trio.sleep(random.uniform(0, 2))
                if random.random() < 0.3:
                    fabric.cut("alice", "bob")
                else:
                    fabric.partition({"alice"}, {"bob"}, both_ways=random.random() < 0.5)
                    await trio.sleep(random.uniform(0, 4))
                    fabric.heal()

        nursery.start_soon(trouble)
        assert_honest(await converse(alice, bob, seed, may_fail=True))
        await alice.disconnect(PeerId(bob.peer_id), "done")
        nursery.cancel_scope.cancel()
