"""What the seam promises, held against both networks."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import pytest
import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.net.seam import (
    LimitReachedError,
    Network,
    NetworkLimits,
    NotSpokenError,
    PeerEventKind,
    PeerId,
    PeerUnreachableError,
    Stream,
    StreamClosedError,
    WrongPeerError,
)

from .conftest import Networks
from .helpers import ask, echo, read_to_end, until, until_gone

FEW = NetworkLimits(inbound_streams_per_peer_max=3, connections_max=2, open_stream_timeout_s=5)


def keep(box: list[Stream], done: trio.Event) -> Callable[[Stream], Awaitable[None]]:
    """A handler that hands its stream to the test and holds it open until told."""

    async def handler(stream: Stream) -> None:
        box.append(stream)
        await done.wait()

    return handler


async def test_a_question_on_a_stream_comes_back(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        assert peer == bob.peer_id == networks.peer_id_of("bob")
        assert await ask(alice, peer, b"hello") == b"hello"


async def test_streams_go_both_ways_on_a_connection_that_one_side_dialled(networks: Networks) -> None:
    async with networks.network("alice", listen=False) as alice, networks.network("bob") as bob:
        assert alice.addresses() == ()
        alice.set_handler("/echo/1", echo)
        events = bob.peer_events()
        await alice.connect(bob.addresses()[0], expected=bob.peer_id)
        event = await events.receive()
        assert (event.peer, event.kind, event.inbound) == (alice.peer_id, PeerEventKind.CONNECTED, True)
        assert await ask(bob, alice.peer_id, b"from the one that was dialled") == b"from the one that was dialled"


async def test_megabytes_arrive_whole_and_in_order(networks: Networks) -> None:
    content = os.urandom(3_000_000)
    async with networks.network("alice") as alice, networks.network("bob") as bob:

        async def serve(stream: Stream) -> None:
            await stream.send_all(content)

        bob.set_handler("/get/1", serve)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        assert await ask(alice, peer, b"", protocol="/get/1") == content


async def test_where_a_connected_peer_was_seen_can_be_asked(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        assert alice.address_of(networks.peer_id_of("bob")) == ""
        peer = await alice.connect(bob.addresses()[0], expected=None)
        assert alice.address_of(peer) == bob.addresses()[0].rpartition("/p2p/")[0]
        await alice.disconnect(peer, "enough")
        assert alice.address_of(peer) == ""


async def test_connecting_again_uses_the_connection_that_stands(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        events = bob.peer_events()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: alice.connect(bob.addresses()[0], expected=None))
        await events.receive()
        assert alice.statistics().connections == 1
        assert bob.connected() == {alice.peer_id}


async def test_two_that_dial_each_other_at_once_end_up_with_one_peer_each(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        for network in (alice, bob):
            network.set_handler("/echo/1", echo)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: alice.connect(bob.addresses()[0], expected=None))
            nursery.start_soon(lambda: bob.connect(alice.addresses()[0], expected=None))
        assert alice.connected() == {bob.peer_id}
        assert bob.connected() == {alice.peer_id}
        assert await ask(alice, bob.peer_id, b"a") == b"a"
        assert await ask(bob, alice.peer_id, b"b") == b"b"
        await alice.disconnect(bob.peer_id, "enough")
        await until_gone(bob, alice.peer_id)


async def test_nobody_at_an_address_is_unreachable_and_forgotten_at_once(networks: Networks) -> None:
    async with networks.network("alice") as alice:
        for _ in range(3):
            with pytest.raises(PeerUnreachableError):
                await alice.connect(networks.dead_address("bob"), expected=None)
        async with networks.network("bob") as bob:
            assert await alice.connect(bob.addresses()[0], expected=None) == bob.peer_id


async def test_somebody_else_at_an_address_is_the_wrong_peer(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        where = bob.addresses()[0].rpartition("/p2p/")[0]
        with pytest.raises(WrongPeerError):
            await alice.connect(where, expected=networks.peer_id_of("carol"))
        assert alice.connected() == frozenset()


async def test_addresses_that_make_no_sense_are_our_own_mistake(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        where = bob.addresses()[0].rpartition("/p2p/")[0]
        for address, expected in (
            (where, None),
            (bob.addresses()[0], networks.peer_id_of("carol")),
            (alice.addresses()[0], None),
            ("somewhere", None),
        ):
            with pytest.raises(MisuseError):
                await alice.connect(address, expected=expected)


async def test_a_protocol_nobody_serves_is_not_spoken(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        with pytest.raises(NotSpokenError):
            await alice.open_stream(peer, "/other/1")
        bob.remove_handler("/echo/1")
        with pytest.raises(NotSpokenError):
            await alice.open_stream(peer, "/echo/1")
        bob.set_handler("/echo/1", echo)
        assert await ask(alice, peer, b"still here") == b"still here"


@pytest.mark.parametrize("name", ["echo", "/a b", "/ä", "/" + "x" * 128])
async def test_names_of_protocols_are_checked(networks: Networks, name: str) -> None:
    async with networks.network("alice") as alice:
        with pytest.raises(MisuseError):
            alice.set_handler(name, echo)


async def test_a_stream_to_a_stranger_needs_a_connection_first(networks: Networks) -> None:
    async with networks.network("alice") as alice:
        with pytest.raises(PeerUnreachableError):
            await alice.open_stream(networks.peer_id_of("bob"), "/echo/1")


async def test_after_our_side_has_ended_the_other_may_go_on(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:

        async def answer_after_the_end(stream: Stream) -> None:
            question = await read_to_end(stream)
            await stream.send_all(question.upper())

        bob.set_handler("/upper/1", answer_after_the_end)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        assert await ask(alice, peer, b"quiet", "/upper/1") == b"QUIET"


async def test_writing_after_the_end_is_refused(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        stream = await alice.open_stream(peer, "/echo/1")
        await stream.close_write()
        await stream.close_write()
        with pytest.raises(StreamClosedError):
            await stream.send_all(b"more")
        assert await stream.receive_some() == b""
        assert await stream.receive_some() == b""
        await stream.aclose()
        with pytest.raises(StreamClosedError):
            await stream.receive_some()


async def test_a_reset_reaches_reader_and_writer_at_the_other_end(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        theirs: list[Stream] = []
        done = trio.Event()
        bob.set_handler("/keep/1", keep(theirs, done))
        peer = await alice.connect(bob.addresses()[0], expected=None)
        ours = await alice.open_stream(peer, "/keep/1")
        await ours.send_all(b"x")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await ours.reset()
        with pytest.raises(StreamClosedError):
            await read_to_end(theirs[0])
        with pytest.raises(StreamClosedError):
            await theirs[0].send_all(b"y")
        with pytest.raises(StreamClosedError):
            await ours.send_all(b"y")
        done.set()


async def test_a_handler_that_raises_harms_only_its_stream(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:

        async def fail(stream: Stream) -> None:
            raise RuntimeError("a fault in a handler")

        bob.set_handler("/fail/1", fail)
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        for _ in range(5):
            stream = await alice.open_stream(peer, "/fail/1")
            with pytest.raises(StreamClosedError):
                await stream.receive_some()
        assert await ask(alice, peer, b"alive") == b"alive"


async def test_a_writer_waits_for_a_reader_who_does_not_read(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        theirs: list[Stream] = []
        done = trio.Event()
        bob.set_handler("/keep/1", keep(theirs, done))
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        stream = await alice.open_stream(peer, "/keep/1")
        sent = 0
        with trio.move_on_after(0.3):
            while True:
                await stream.send_all(bytes(32 * 1024))
                sent += 32 * 1024
        assert 128 * 1024 <= sent <= 512 * 1024
        # The write that was given up has spoilt its own stream and nothing else.
        with pytest.raises(StreamClosedError):
            await stream.send_all(b"x")
        assert await ask(alice, peer, b"other streams go on") == b"other streams go on"
        done.set()


async def test_a_reader_that_is_cancelled_loses_nothing(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        stream = await alice.open_stream(peer, "/echo/1")
        for index in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await stream.receive_some()
            with trio.move_on_after(0.001):
                await stream.receive_some()
            message = f"message {index}".encode()
            await stream.send_all(message)
            assert await stream.receive_some() == message


async def test_two_tasks_that_read_the_same_stream_are_told_so(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        stream = await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/echo/1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive_some()
            await stream.send_all(b"done")


async def test_disconnecting_ends_streams_on_both_sides(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        theirs: list[Stream] = []
        done = trio.Event()
        bob.set_handler("/keep/1", keep(theirs, done))
        peer = await alice.connect(bob.addresses()[0], expected=None)
        ours = await alice.open_stream(peer, "/keep/1")
        await ours.send_all(b"x")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await alice.disconnect(peer, "test")
        assert peer not in alice.connected()
        await until_gone(bob, alice.peer_id)
        for stream in (ours, theirs[0]):
            with pytest.raises(StreamClosedError):
                await read_to_end(stream)
            with pytest.raises(StreamClosedError):
                await stream.send_all(b"y")
        with pytest.raises(PeerUnreachableError):
            await alice.open_stream(peer, "/keep/1")
        await alice.disconnect(peer, "again is nothing")
        done.set()


async def test_events_begin_with_who_is_there_and_tell_each_change_once(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        early = alice.peer_events()
        await alice.connect(bob.addresses()[0], expected=None)
        late = alice.peer_events()
        await alice.disconnect(bob.peer_id, "test")
        await until_gone(bob, alice.peer_id)
        await alice.connect(bob.addresses()[0], expected=None)
        kinds = [PeerEventKind.CONNECTED, PeerEventKind.DISCONNECTED, PeerEventKind.CONNECTED]
        assert [(await early.receive()).kind for _ in kinds] == kinds
        assert [(await late.receive()).kind for _ in kinds] == kinds
        for events in (early, late):
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()


async def test_leaving_the_network_tells_the_others_and_ends_the_events(networks: Networks) -> None:
    async with networks.network("alice") as alice:
        async with networks.network("bob") as bob:
            ours = bob.peer_events()
            await alice.connect(bob.addresses()[0], expected=None)
            assert (await ours.receive()).kind is PeerEventKind.CONNECTED
        assert [event.kind async for event in ours] == [PeerEventKind.DISCONNECTED]
        await until_gone(alice, networks.peer_id_of("bob"))


async def test_a_network_can_be_entered_again_under_the_same_name(networks: Networks) -> None:
    async with networks.network("alice") as alice:
        for _ in range(3):
            async with networks.network("bob") as bob:
                bob.set_handler("/echo/1", echo)
                peer = await alice.connect(bob.addresses()[0], expected=None)
                assert await ask(alice, peer, b"again") == b"again"
            await until_gone(alice, peer)


async def test_the_gate_keeps_out_both_who_dials_and_who_is_dialled(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_gate(lambda peer, origin: False)
        bob.set_handler("/echo/1", echo)
        with pytest.raises((PeerUnreachableError, NotSpokenError)):
            # A dialler may see the connection stand for a moment before the other side closes it.
            await ask(alice, await alice.connect(bob.addresses()[0], expected=None), b"let me in")
        with pytest.raises(PeerUnreachableError):
            await bob.connect(alice.addresses()[0], expected=None)
        await until_gone(alice, bob.peer_id)
        assert bob.connected() == frozenset()
        assert bob.statistics().refused["gate"] >= 1
        bob.set_gate(lambda peer, origin: peer == alice.peer_id)
        assert await ask(alice, await alice.connect(bob.addresses()[0], expected=None), b"in") == b"in"


async def test_a_gate_that_raises_lets_nobody_in(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_gate(lambda peer, origin: {}["a fault"])  # type: ignore[index]
        with pytest.raises(PeerUnreachableError):
            await bob.connect(alice.addresses()[0], expected=None)
        with pytest.raises((PeerUnreachableError, NotSpokenError)):
            await ask(alice, await alice.connect(bob.addresses()[0], expected=None), b"let me in")
        assert bob.connected() == frozenset()
        bob.set_gate(lambda peer, origin: True)
        bob.set_handler("/echo/1", echo)
        await until_gone(alice, bob.peer_id)
        assert await ask(alice, await alice.connect(bob.addresses()[0], expected=None), b"in") == b"in"


async def test_a_dial_that_is_cancelled_leaves_no_connection_and_the_next_one_works(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        for index in range(20):
            with trio.move_on_after(index / 5000) as scope:
                await alice.connect(bob.addresses()[0], expected=None)
            if scope.cancelled_caught:
                assert alice.connected() == frozenset()
            else:
                await alice.disconnect(bob.peer_id, "next")
        peer = await alice.connect(bob.addresses()[0], expected=None)
        assert await ask(alice, peer, b"after all") == b"after all"
        await until(lambda: bob.statistics().connections == 1)


async def test_an_opening_that_is_cancelled_leaves_no_stream(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob", limits=FEW) as bob:
        theirs: list[Stream] = []
        done = trio.Event()
        done.set()
        bob.set_handler("/keep/1", keep(theirs, done))
        peer = await alice.connect(bob.addresses()[0], expected=None)
        for _ in range(10):
            with trio.CancelScope() as scope:
                scope.cancel()
                await alice.open_stream(peer, "/keep/1")
            with trio.move_on_after(0.0005):
                await alice.open_stream(peer, "/keep/1")
            await until(lambda: bob.statistics().peers[alice.peer_id].inbound_streams == 0)
        assert alice.connected() == {peer}


async def test_handlers_end_when_the_network_is_left(networks: Networks) -> None:
    ended: list[str] = []

    async def forever(stream: Stream) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(stream.protocol)

    async with networks.network("alice") as alice:
        async with networks.network("bob") as bob:
            bob.set_handler("/keep/1", forever)
            await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/keep/1")
            await until(lambda: bob.statistics().peers[alice.peer_id].inbound_streams == 1)
        assert ended == ["/keep/1"]


HASTY = NetworkLimits(gone_stream_timeout_s=0.2)


async def reset(stream: Stream, network: Network) -> None:
    await stream.reset()


async def disconnect(stream: Stream, network: Network) -> None:
    await network.disconnect(stream.peer, "enough")


@pytest.mark.parametrize("end", [reset, disconnect])
async def test_a_handler_that_sleeps_ends_some_time_after_its_stream(
    networks: Networks, end: Callable[[Stream, Network], Awaitable[None]]
) -> None:
    ended: list[float] = []

    async def sleep(stream: Stream) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())

    async with networks.network("alice") as alice, networks.network("bob", limits=HASTY) as bob:
        bob.set_handler("/sleep/1", sleep)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        stream = await alice.open_stream(peer, "/sleep/1")
        await until(lambda: bob.statistics().peers[alice.peer_id].inbound_streams == 1)
        ended_s = trio.current_time()
        await end(stream, alice)
        await until(lambda: bool(ended))
        assert ended[0] - ended_s >= HASTY.gone_stream_timeout_s
        assert bob.statistics().refused["gone-stream"] == 1


@pytest.mark.parametrize("peer_first", [True, False])
@pytest.mark.parametrize("reads", [True, False])
async def test_a_handler_that_sleeps_ends_some_time_after_both_sides_have_said_all(
    networks: Networks, peer_first: bool, reads: bool
) -> None:
    may_close, closed, ended = trio.Event(), trio.Event(), trio.Event()

    async def sleep(stream: Stream) -> None:
        try:
            await may_close.wait()
            if reads:
                assert await stream.receive_some() == b"all"
            await stream.close_write()
            closed.set()
            await trio.sleep_forever()
        finally:
            ended.set()

    async with networks.network("alice") as alice, networks.network("bob", limits=HASTY) as bob:
        bob.set_handler("/sleep/1", sleep)
        stream = await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/sleep/1")
        await stream.send_all(b"all")
        if peer_first:
            await stream.close_write()
        may_close.set()
        await closed.wait()
        if not peer_first:
            with trio.move_on_after(2 * HASTY.gone_stream_timeout_s):
                await ended.wait()
            assert not ended.is_set(), "the peer may still say something"
            await stream.close_write()
        with trio.fail_after(10):
            await ended.wait()
            await until(lambda: bob.statistics().refused["gone-stream"] == 1)
        assert bob.connected()


async def test_a_handler_that_closes_its_stream_has_the_same_time_to_end(networks: Networks) -> None:
    done = trio.Event()

    async def close(stream: Stream) -> None:
        await stream.aclose()
        try:
            await trio.sleep_forever()
        finally:
            done.set()

    async with networks.network("alice") as alice, networks.network("bob", limits=HASTY) as bob:
        bob.set_handler("/close/1", close)
        await alice.open_stream(await alice.connect(bob.addresses()[0], expected=None), "/close/1")
        with trio.fail_after(20):
            await done.wait()


async def test_what_arrived_before_its_connection_ended_is_read_and_worked_on(networks: Networks) -> None:
    read: list[bytes] = []
    may_read, has_read = trio.Event(), trio.Event()

    async def slow(stream: Stream) -> None:
        await may_read.wait()
        read.append(await stream.receive_some())
        with pytest.raises(StreamClosedError):
            await stream.receive_some()
        has_read.set()

    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/slow/1", slow)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        stream = await alice.open_stream(peer, "/slow/1")
        await stream.send_all(b"said before")
        await alice.disconnect(peer, "enough")
        await until_gone(bob, alice.peer_id)
        may_read.set()
        await has_read.wait()
    assert read == [b"said before"]


async def test_leaving_the_network_while_cancelled_still_closes_it(networks: Networks) -> None:
    async with networks.network("alice") as alice:
        with trio.CancelScope() as scope:
            async with networks.network("bob") as bob:
                await alice.connect(bob.addresses()[0], expected=None)
                scope.cancel()
        await until_gone(alice, networks.peer_id_of("bob"))
        with pytest.raises(PeerUnreachableError):
            await alice.connect(bob.addresses()[0], expected=None)


async def test_our_own_limit_of_connections_is_said_before_dialling(networks: Networks) -> None:
    async with (
        networks.network("alice", limits=FEW) as alice,
        networks.network("b1") as b1,
        networks.network("b2") as b2,
        networks.network("b3") as b3,
    ):
        await alice.connect(b1.addresses()[0], expected=None)
        await alice.connect(b2.addresses()[0], expected=None)
        with pytest.raises(LimitReachedError):
            await alice.connect(b3.addresses()[0], expected=None)
        await alice.disconnect(b1.peer_id, "room")
        await alice.connect(b3.addresses()[0], expected=None)


async def test_a_peer_has_as_many_streams_as_the_limit_and_not_one_more(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob", limits=FEW) as bob:
        theirs: list[Stream] = []
        done = trio.Event()
        bob.set_handler("/keep/1", keep(theirs, done))
        peer = await alice.connect(bob.addresses()[0], expected=None)
        streams = [await alice.open_stream(peer, "/keep/1") for _ in range(3)]
        with pytest.raises((NotSpokenError, StreamClosedError)):
            await (await alice.open_stream(peer, "/keep/1")).receive_some()
        assert bob.statistics().peers[alice.peer_id].inbound_streams == 3
        done.set()
        for stream in streams:
            assert await stream.receive_some() == b""
            await stream.aclose()
        stream = await alice.open_stream(peer, "/keep/1")
        assert await stream.receive_some() == b""


async def test_counters_tell_what_went_to_whom(networks: Networks) -> None:
    async with networks.network("alice") as alice, networks.network("bob") as bob:
        bob.set_handler("/echo/1", echo)
        peer = await alice.connect(bob.addresses()[0], expected=None)
        await ask(alice, peer, bytes(10_000))
        counted = alice.statistics().peers[PeerId(peer)]
        assert counted.stream_sent_bytes == counted.stream_received_bytes == 10_000
        assert counted.wire_sent_bytes > 10_000
        assert counted.wire_received_bytes > 10_000
        assert bob.statistics().peers[alice.peer_id].stream_received_bytes == 10_000


async def test_an_error_in_the_body_comes_out_as_it_is(networks: Networks) -> None:
    with pytest.raises(KeyError):
        async with networks.network("alice"):
            raise KeyError("mine")
