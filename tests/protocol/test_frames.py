"""Messages have one encoding, limits on every count, and room for later releases."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import cbor, frames
from p2pmem_protocol.errors import MisuseError, Penalty, Reason, RefusedError
from p2pmem_protocol.frames import (
    AskHeaders,
    Envelopes,
    Fetch,
    FetchPart,
    Frame,
    GraphState,
    Headers,
    Heads,
    ListChange,
    Message,
    NotGiven,
    Part,
    Peers,
    RoundMessage,
    RoundOpen,
    Skipped,
    decode,
    encode,
)

GRAPH = b"\7" * 32


def exactly(count: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=count, max_size=count)


def several(item: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[bytes, ...]]:
    return st.lists(item, max_size=4).map(tuple)


hashes, shorts, blobs = exactly(32), exactly(8), st.binary(min_size=1, max_size=40)
numbers, times = st.integers(0, 2**64 - 1), st.integers(0, 253_402_300_799_999)
small = st.integers(0, 2**32 - 1)
lists = st.builds(ListChange, hashes, st.booleans(), several(shorts), several(shorts))
states = st.builds(GraphState, hashes, st.one_of(st.just(b""), hashes), small, exactly(16), st.booleans())
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Frame,
        numbers,
        numbers,
        several(blobs),
        several(shorts),
        several(shorts),
        st.lists(lists, max_size=3).map(tuple),
        several(hashes),
    ),
    st.builds(Heads, times, st.lists(states, max_size=3).map(tuple)),
    st.builds(RoundOpen, hashes, hashes, times, st.lists(small, max_size=4).map(tuple), blobs),
    st.builds(RoundMessage, blobs),
    st.builds(Fetch, hashes, several(hashes)),
    st.builds(Envelopes, several(blobs), st.booleans()),
    st.builds(FetchPart, hashes, hashes, st.integers(0, 2**24), st.booleans()),
    st.builds(Part, st.integers(0, 2**24), st.integers(0, 2**24), st.binary(max_size=40)),
    st.builds(AskHeaders, hashes, several(hashes)),
    st.builds(Headers, hashes, several(blobs), st.booleans()),
    st.builds(NotGiven, small),
    st.builds(Peers, hashes, st.lists(st.text("/abc.019é", min_size=1, max_size=40), max_size=3).map(tuple)),
)


@given(messages)
def test_what_is_written_is_read_again(message: Message) -> None:
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_whatever_bytes_come_only_a_refusal_leaves(message: Message, data: st.DataObject) -> None:
    good = encode(message)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(
        st.one_of(
            st.binary(max_size=60), exactly(1).map(lambda one: good[:at] + one + good[at + 1 :]), st.just(good[:at])
        )
    )
    try:
        read = decode(bad)
    except RefusedError as refused:
        assert refused.penalty is Penalty.CLOSE  # noqa: PT017
    else:
        assert isinstance(read, Skipped) or encode(read) == bad


@given(st.integers(21, 2**32 - 1), st.dictionaries(st.integers(1, 30), st.binary(max_size=4)))
def test_a_message_of_a_later_release_is_skipped_not_bad(number: int, content: dict[int, bytes]) -> None:
    assert decode(cbor.encode({0: number, **content})) == Skipped(number)


@pytest.mark.parametrize(
    "wire",
    {
        "no map": [],
        "no number": {1: 5},
        "unknown field": {0: 1, 40: b""},
        "empty field written": {0: 1, 3: []},
        "false written": {0: 14, 2: False},
        "text for bytes": {0: 12, 1: "text"},
        "empty envelope": {0: 1, 3: [b""]},
        "ids cut short": {0: 1, 4: b"1234567"},
        "too many ids": {0: 1, 4: bytes(8 * (frames.FRAME_IDS_MAX + 1))},
        "too many envelopes": {0: 1, 3: [b"x"] * (frames.FRAME_ENVELOPES_MAX + 1)},
        "too many lists": {0: 1, 6: [{1: GRAPH}] * (frames.FRAME_LISTS_MAX + 1)},
        "a list without a graph": {0: 1, 6: [{2: True}]},
        "a head of 31 bytes": {0: 10, 1: 5, 2: [{1: GRAPH, 2: b"x" * 31, 4: bytes(16)}]},
        "true as a number": {0: 19, 1: True},
        "a year past 9999": {0: 10, 1: 2**60},
    }.items(),
    ids=lambda case: case[0],
)
def test_what_no_sender_writes_is_refused(wire: tuple[str, cbor.Value]) -> None:
    with pytest.raises(RefusedError) as refused:
        decode(cbor.encode(wire[1]))
    assert refused.value.penalty is Penalty.CLOSE


@pytest.mark.parametrize(
    "message",
    [
        Frame(announced=(b"12345678",) * (frames.FRAME_IDS_MAX + 1)),
        Frame(announced=(b"1234567",)),
        Frame(envelopes=(b"",)),
        Frame(seq=2**64),
        Frame(envelopes=(b"x" * 60_000,) * 5),
        Fetch(b"short", ()),
        RoundMessage(b""),
        Skipped(99),
    ],
)
def test_what_exceeds_a_limit_is_not_written(message: Message) -> None:
    with pytest.raises(MisuseError):
        encode(message)


def test_a_message_above_the_limit_is_refused_unread() -> None:
    with pytest.raises(RefusedError):
        decode(bytes(frames.MESSAGE_BYTES_MAX + 1))


def test_a_thousand_announcements_cost_eight_bytes_each() -> None:
    announced = tuple(n.to_bytes(8, "big") for n in range(1_000))
    assert len(encode(Frame(seq=1, announced=announced))) == 8_000 + 9


def test_the_state_of_an_idle_graph_fits_a_hundred_bytes() -> None:
    state = GraphState(GRAPH, b"\1" * 32, 5_000, b"\2" * 16)
    assert len(encode(Heads(1_800_000_000_000, (state,)))) <= 110


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (Frame(), {0: 1}),
        (Frame(lists=(ListChange(GRAPH),)), {0: 1, 6: [{1: GRAPH}]}),
        (Heads(0), {0: 10, 1: 0}),
        (Heads(1, (GraphState(GRAPH),)), {0: 10, 1: 1, 2: [{1: GRAPH, 4: bytes(16)}]}),
        (Envelopes(), {0: 14}),
        (FetchPart(GRAPH, GRAPH), {0: 15, 1: GRAPH, 2: GRAPH}),
        (Part(0), {0: 16, 1: 0}),
        (AskHeaders(GRAPH), {0: 17, 1: GRAPH}),
        (Headers(GRAPH), {0: 18, 1: GRAPH}),
        (NotGiven(0), {0: 19, 1: 0}),
        (Peers(GRAPH), {0: 20, 1: GRAPH}),
    ],
)
def test_what_is_not_said_is_not_written_but_a_number_that_is_always_there_is(
    message: Message, wire: dict[int, cbor.Value]
) -> None:
    assert cbor.decode(encode(message)) == wire
    assert decode(encode(message)) == message


def as_long(count: int) -> Heads:
    return Heads(1, tuple(GraphState(number.to_bytes(32)) for number in range(count)))


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        (Frame(seq=2**64 - 1, ack=2**64 - 1), Frame(ack=2**64)),
        (Frame(envelopes=(b"x",) * frames.FRAME_ENVELOPES_MAX), Frame(envelopes=(b"x",) * 257)),
        (Frame(announced=(b"12345678",) * frames.FRAME_IDS_MAX), Frame(asked=(b"12345678",) * 2_049)),
        (Frame(announced=(b"12345678",)), Frame(announced=(b"12345678", b"1234567"))),
        (
            Frame(lists=(ListChange(GRAPH, added=(b"12345678",) * frames.LIST_MEMBERS_MAX),)),
            Frame(lists=(ListChange(GRAPH, removed=(b"12345678",) * 513),)),
        ),
        (Frame(lists=(ListChange(GRAPH),) * frames.FRAME_LISTS_MAX), Frame(lists=(ListChange(GRAPH),) * 65)),
        (Frame(reconcile=(GRAPH,) * frames.GRAPHS_MAX), Frame(reconcile=(GRAPH,) * 1_025)),
        (as_long(frames.GRAPHS_MAX), as_long(frames.GRAPHS_MAX + 1)),
        (Heads(1, (GraphState(GRAPH, b""),)), Heads(1, (GraphState(GRAPH, b"x" * 31),))),
        (Heads(1, (GraphState(GRAPH, count=2**32 - 1),)), Heads(1, (GraphState(GRAPH, count=2**32),))),
        (Heads(0), Heads(-1)),
        (RoundOpen(GRAPH, GRAPH, 0, (1,) * frames.KINDS_MAX, b"m"), RoundOpen(GRAPH, GRAPH, 0, (1,) * 257, b"m")),
        (RoundMessage(b"m" * 128 * 1024), RoundMessage(b"m" * (128 * 1024 + 1))),
        (Fetch(GRAPH, (GRAPH,) * frames.FETCH_IDS_MAX), Fetch(GRAPH, (GRAPH,) * 1_025)),
        (Envelopes((b"x",), more=True), Envelopes((b"",))),
        (FetchPart(GRAPH, GRAPH, frames.PART_LENGTH_MAX), FetchPart(GRAPH, GRAPH, frames.PART_LENGTH_MAX + 1)),
        (Part(frames.PART_LENGTH_MAX, 0, bytes(frames.PART_BYTES_MAX)), Part(1, 0, bytes(frames.PART_BYTES_MAX + 1))),
        (AskHeaders(GRAPH, (GRAPH,) * frames.KNOWN_HEADERS_MAX), AskHeaders(GRAPH, (GRAPH,) * 4_097)),
        (Headers(GRAPH, (b"h",) * frames.HEADERS_MAX), Headers(GRAPH, (b"h",) * 257)),
        (Headers(GRAPH, (b"h" * 1_024,)), Headers(GRAPH, (b"h" * 1_025,))),
        (Peers(GRAPH, ("a" * frames.ADDRESS_CHARS_MAX,)), Peers(GRAPH, ("a" * 257,))),
        (Peers(GRAPH, ("a",) * frames.ADDRESSES_MAX), Peers(GRAPH, ("a",) * 257)),
        (Peers(GRAPH, ("a",)), Peers(GRAPH, ("",))),
        (NotGiven(2**32 - 1), NotGiven(2**32)),
    ],
)
def test_every_field_is_written_and_read_up_to_its_end(fits: Message, does_not: Message) -> None:
    assert decode(encode(fits)) == fits
    with pytest.raises(MisuseError):
        encode(does_not)


@pytest.mark.parametrize(
    "wire",
    [
        {0: 1, 1: 0},
        {0: 1, 1: 2**63, 2: b"x"},
        {0: 1, 4: b""},
        {0: 1, 4: "12345678"},
        {0: 1, 4: bytes(frames.FRAME_IDS_MAX * 8 + 8)},
        {0: 1, 6: {}},
        {0: 1, 6: [{1: GRAPH, 2: 1}]},
        {0: 1, 6: [[GRAPH]]},
        {0: 10, 1: 1, 2: [{1: GRAPH, 2: b"", 4: bytes(16)}]},
        {0: 10, 1: -1},
        {0: 13, 1: GRAPH, 2: bytes(33)},
        {0: 16, 1: 1, 3: b""},
        {0: 18, 1: GRAPH, 2: [b"h" * 2_049]},
        {0: 20, 1: GRAPH, 2: [b"a"]},
        {0: 20, 1: GRAPH, 2: [""]},
        {0: 20, 1: GRAPH, 2: ["a" * 257]},
        {0: 20, 1: GRAPH, 2: ["a"] * 257},
        {0: 19, 1: 2**32},
        {0: 19, 1: b"x"},
        {0: 14, 2: 1},
    ],
)
def test_what_is_past_the_end_of_a_field_is_not_read(wire: dict[int, cbor.Value]) -> None:
    with pytest.raises(RefusedError) as refused:
        decode(cbor.encode(wire))
    assert refused.value.reason in (Reason.BAD_FIELD, Reason.BAD_SHAPE)


def test_a_message_may_be_as_long_as_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Frame(seq=1, envelopes=(b"x" * 1_000,))
    monkeypatch.setattr(frames, "MESSAGE_BYTES_MAX", len(encode(message)))
    assert decode(encode(message)) == message
    monkeypatch.setattr(frames, "MESSAGE_BYTES_MAX", len(encode(message)) - 1)
    with pytest.raises(MisuseError):
        encode(message)
