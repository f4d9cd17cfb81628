"""The in-memory network goes wrong as it is told to, on a virtual clock, and the same way for the same seed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
from p2pmem_protocol.errors import MisuseError
from trio.testing import MockClock

from p2pmem.net.memory import MemoryFabric
from p2pmem.net.memory_wire import Link
from p2pmem.net.seam import PeerEventKind, PeerUnreachableError, Stream, StreamClosedError

from .helpers import ask, echo, read_to_end, until_gone


async def test_a_round_trip_takes_twice_the_delay(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1, link=Link(delay_s=0.5))
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        assert trio.current_time() == pytest.approx(3.0)
        stream = await alice.open_stream(peer, "/echo/1")
        assert trio.current_time() == pytest.approx(4.0)
        await stream.send_all(b"ping")
        assert await stream.receive_some() == b"ping"
        assert trio.current_time() == pytest.approx(5.0)


async def test_a_slow_link_takes_the_time_of_its_bytes(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1)
    fabric.set_link("bob", "alice", Link(bytes_per_s=100_000), both_ways=False)
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:

        async def serve(stream: Stream) -> None:
            await stream.send_all(bytes(1_000_000))

        bob.set_handler("/get/1", serve)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        begin = trio.current_time()
        assert len(await ask(alice, peer, b"", "/get/1")) == 1_000_000
        assert 10.0 <= trio.current_time() - begin <= 10.1


async def test_bytes_in_a_partition_arrive_when_it_heals(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1, link=Link(delay_s=0.1))
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        stream = await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/echo/1")
        fabric.partition({"alice"}, {"bob"})
        await stream.send_all(b"held")
        with trio.move_on_after(20):
            await stream.receive_some()
            pytest.fail("bytes passed a partition")
        fabric.heal()
        assert await stream.receive_some() == b"held"


async def test_a_long_partition_ends_connections_on_both_sides_and_lets_nobody_dial(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1, partition_notice_s=30)
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:
        peer = await alice.connect(bob.addresses()[0], expected=None)
        fabric.partition({"alice"}, {"bob", "carol"})
        begin = trio.current_time()
        await until_gone(alice, peer)
        await until_gone(bob, alice.peer_id)
        assert trio.current_time() - begin == pytest.approx(30)
        with pytest.raises(PeerUnreachableError):
            await alice.connect(bob.addresses()[0], expected=None)
        fabric.heal()
        await alice.connect(bob.addresses()[0], expected=None)


@pytest.mark.parametrize("source", ["alice", "bob"])
async def test_a_partition_one_way_stops_that_way_only(autojump_clock: MockClock, source: str) -> None:
    fabric = MemoryFabric(seed=1)
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:
        got: list[bytes] = []

        async def collect(stream: Stream) -> None:
            await stream.send_all(b"from bob")
            got.append(await stream.receive_some())

        bob.set_handler("/collect/1", collect)
        stream = await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/collect/1")
        target = "bob" if source == "alice" else "alice"
        await trio.testing.wait_all_tasks_blocked()
        fabric.partition({source}, {target}, both_ways=False)
        await stream.send_all(b"from alice")
        with trio.move_on_after(10):
            await read_to_end(stream)
        assert got == ([] if source == "alice" else [b"from alice"])


async def test_a_killed_node_is_noticed_at_once_and_one_without_power_later(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1, link=Link(delay_s=0.05), partition_notice_s=30)
    async with fabric.network("alice") as alice:
        for silent, seconds in ((False, 0.05), (True, 30.0)):
            async with fabric.network("bob") as bob:
                bob.set_handler("/echo/1", echo)
                peer = await alice.connect(bob.addresses()[0], expected=None)
                stream = await alice.open_stream(peer, "/echo/1")
                fabric.crash("bob", silent=silent)
                begin = trio.current_time()
                with pytest.raises(PeerUnreachableError):
                    await bob.connect(alice.addresses()[0], expected=None)
                await until_gone(alice, peer)
                assert trio.current_time() - begin == pytest.approx(seconds)
                with pytest.raises(StreamClosedError):
                    await stream.receive_some()
                with pytest.raises(MisuseError):
                    fabric.crash("bob")


async def test_a_crash_ends_the_handlers_and_not_the_body(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1)
    ended: list[str] = []

    async def forever(stream: Stream) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("handler")

    async with fabric.network("alice") as alice:
        async with fabric.network("bob") as bob:
            bob.set_handler("/keep/1", forever)
            await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/keep/1")
            await trio.testing.wait_all_tasks_blocked()
            fabric.crash("bob")
            await trio.sleep(1)
            ended.append("body")
        assert ended == ["handler", "body"]


async def test_what_arrived_before_a_cut_can_still_be_read(autojump_clock: MockClock) -> None:
    fabric = MemoryFabric(seed=1, link=Link(delay_s=1.0))
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:

        async def serve(stream: Stream) -> None:
            await stream.send_all(b"early")
            await trio.sleep(2)
            await stream.send_all(b"late")
            await trio.sleep_forever()

        bob.set_handler("/get/1", serve)
        stream = await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/get/1")
        await trio.sleep(1.5)
        fabric.cut("alice", "bob")
        assert await stream.receive_some() == b"early"
        with pytest.raises(StreamClosedError):
            await stream.receive_some()


async def connections_lost(seed: int) -> list[float]:
    fabric = MemoryFabric(seed=seed, link=Link(delay_s=0.01, jitter_s=0.02, mean_life_s=60))
    lost: list[float] = []
    async with fabric.network("alice") as alice, fabric.network("bob") as bob:
        events = alice.peer_events()
        while len(lost) < 5:
            await alice.connect(bob.addresses()[0], expected=None)
            async for event in events:
                if event.kind is PeerEventKind.DISCONNECTED:
                    lost.append(trio.current_time())
                    break
    return lost


def test_the_same_seed_loses_connections_at_the_same_times() -> None:
    runs = [trio.run(connections_lost, seed, clock=MockClock(autojump_threshold=0)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


async def order_of_two(seed: int) -> bytes:
    fabric = MemoryFabric(seed=seed, link=Link(delay_s=0.01, jitter_s=0.5))
    heard: list[tuple[float, str, bytes]] = []

    async def note(stream: Stream) -> None:
        while data := await stream.receive_some():
            heard.append((trio.current_time(), stream.peer, data))

    async with fabric.network("alice") as alice, fabric.network("bob") as bob, fabric.network("carol") as carol:
        carol.set_handler("/note/1", note)
        streams = []
        for network in (alice, bob):
            peer = await network.connect(carol.addresses()[0], expected=None)
            streams.append(await network.open_stream(peer, "/note/1"))
        for letters in zip(b"abcdefgh", b"ABCDEFGH", strict=True):
            for stream, letter in zip(streams, letters, strict=True):
                await stream.send_all(bytes([letter]))
            await trio.sleep(0.1)
        for stream in streams:
            await stream.close_write()
        await trio.sleep(2)
    # Of what comes at the same instant it is by chance which task goes first.
    return b"".join(data for _, _, data in sorted(heard))


def test_what_two_peers_say_arrives_in_an_order_that_depends_on_the_seed_and_of_each_in_its_own() -> None:
    runs = [trio.run(order_of_two, seed, clock=MockClock(autojump_threshold=0)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    for run in runs:
        assert bytes(it for it in run if it >= 97) == b"abcdefgh"
        assert bytes(it for it in run if it < 97) == b"ABCDEFGH"


def test_the_seam_and_the_memory_network_come_without_libp2p() -> None:
    code = (
        "import sys, p2pmem.net.memory, p2pmem.net.framing; print([m for m in sys.modules if m.startswith('libp2p')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert found.stdout.strip() == "[]"
