"""Addresses, words, events and counters: the small parts of the network."""

from __future__ import annotations

import contextlib

import pytest
import trio
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError
from trio.testing import MockClock

from p2pmem.net.counters import PEERS_COUNTED_MAX, Counters
from p2pmem.net.events import EVENTS_HELD_MAX, PeerEvents
from p2pmem.net.memory import MemoryFabric
from p2pmem.net.multiaddr import format_tcp, parse_tcp
from p2pmem.net.multistream import NegotiationError, answer, encode_token, propose
from p2pmem.net.seam import NetworkLimits, PeerEvent, PeerEventKind, PeerId, Stream


class Script:
    """A channel that reads what it is given and keeps what is written."""

    def __init__(self, incoming: bytes) -> None:
        self.incoming, self.written = bytearray(incoming), bytearray()

    async def read_exactly(self, size_bytes: int) -> bytes:
        if len(self.incoming) < size_bytes:
            raise EOFError
        data = bytes(self.incoming[:size_bytes])
        del self.incoming[:size_bytes]
        return data

    async def write(self, data: bytes) -> None:
        self.written += data


HELLO = encode_token("/multistream/1.0.0")


async def test_proposals_are_refused_until_one_is_spoken() -> None:
    script = Script(HELLO + encode_token("/a") + encode_token("ls") + encode_token("/b"))
    assert await answer(script, lambda word: word == "/b") == "/b"
    assert bytes(script.written) == HELLO + encode_token("na") * 2 + encode_token("/b")


async def test_nothing_is_said_before_the_other_side_has_said_what_it_is() -> None:
    script = Script(b"\x47ET / HTTP/1.1")
    with pytest.raises(NegotiationError):
        await answer(script, lambda word: True)
    assert script.written == b""


@pytest.mark.parametrize(("count", "error"), [(7, EOFError), (8, NegotiationError)])
async def test_eight_proposals_and_not_one_more(count: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        await answer(Script(HELLO + encode_token("/x") * count), lambda word: False)


@pytest.mark.parametrize(("reply", "spoken"), [("/a", True), ("na", False)])
async def test_a_proposal_is_answered_yes_or_no(reply: str, spoken: bool) -> None:
    script = Script(HELLO + encode_token(reply))
    assert await propose(script, "/a") is spoken
    assert bytes(script.written) == HELLO + encode_token("/a")


@given(data=st.binary(max_size=100))
def test_any_bytes_are_an_answer_a_refusal_or_an_end(data: bytes) -> None:
    async def main() -> None:
        with contextlib.suppress(NegotiationError, EOFError):
            assert await answer(Script(HELLO + data), lambda word: word == "/a") == "/a"

    trio.run(main)


@pytest.mark.parametrize(
    "address",
    ["/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/0", "/dns/example.org/tcp/65535"],
)
def test_addresses_come_back(address: str) -> None:
    assert format_tcp(*parse_tcp(address)) == address


@pytest.mark.parametrize(
    "address",
    ["", "/", "/ip4/1.2.3/tcp/1", "/ip6/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/65536", "/ip4/127.0.0.1/tcp/-1",
     "/ip4/127.0.0.1/udp/1", "/ip4/127.0.0.1/tcp/1/ws", "/dns//tcp/1", "ip4/127.0.0.1/tcp/1",
     "/ip4/127.0.0.1/tcp/\u0661"],
)  # fmt: skip
def test_other_addresses_are_our_own_mistake(address: str) -> None:
    with pytest.raises(MisuseError):
        parse_tcp(address)


async def test_a_reader_of_events_who_falls_behind_is_told_so_and_begins_again() -> None:
    events = PeerEvents()
    event = PeerEvent(PeerId("a"), PeerEventKind.CONNECTED, "/memory/a", inbound=False)
    slow, quick = events.subscribe(()), events.subscribe(())
    for _ in range(EVENTS_HELD_MAX):
        events.publish(event)
        assert await quick.receive() == event
    events.publish(event)
    assert await quick.receive() == event
    assert [one async for one in slow] == [event] * EVENTS_HELD_MAX
    assert await events.subscribe([event]).receive() == event
    events.close()
    assert [one async for one in quick] == []


def test_those_longest_gone_are_forgotten_and_those_present_never() -> None:
    counters = Counters()
    counters.of(PeerId("stays")).wire_sent_bytes = 7
    for index in range(PEERS_COUNTED_MAX + 1):
        counters.of(PeerId(str(index)))
        counters.gone(PeerId(str(index)))
    peers = counters.snapshot(connections={}, inbound_streams={}, inbound_connections=0, half_open=0).peers
    assert len(peers) == PEERS_COUNTED_MAX + 1
    assert peers[PeerId("stays")].wire_sent_bytes == 7
    assert PeerId("0") not in peers
    assert PeerId("1") in peers


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(MisuseError):
        NetworkLimits(connections_max=0)
    with pytest.raises(MisuseError):
        NetworkLimits(window_bytes=1000)


async def test_the_handler_of_a_stream_that_went_before_it_began_has_the_same_time(autojump_clock: MockClock) -> None:
    async def rest(stream: Stream) -> None:
        await trio.sleep_forever()

    fabric = MemoryFabric(seed=1)
    async with fabric.network("ada") as ada, fabric.network("ben") as ben:
        ben.set_handler("/a/1", rest)
        await ada.open_stream(await ada.connect(ben.addresses()[0], expected=None), "/a/1")
        (connection,) = ben.all_connections()
        (stream,) = connection.streams
        stream.reset_now()
        began_s = trio.current_time()
        with trio.fail_after(60), trio.CancelScope() as scope:
            await trio.sleep(5)
            stream.served_in(scope, 30)
            await trio.sleep_forever()
        assert trio.current_time() - began_s == pytest.approx(30)
