"""The yamux session, two of them wired together or one under attack."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from p2pmem.net.yamux import (
    CONTROL_OUTPUT_MAX_BYTES,
    FRAME_BODY_MAX_BYTES,
    INITIAL_WINDOW_BYTES,
    DataReceived,
    Event,
    GoneAway,
    StreamEnded,
    StreamOpened,
    StreamRefused,
    StreamReset,
    WindowOpened,
    YamuxError,
    YamuxSession,
)

DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


def frame(kind: int, flags: int, stream_id: int, length: int, body: bytes = b"", version: int = 0) -> bytes:
    return struct.pack("!BBHII", version, kind, flags, stream_id, length) + body


def session(*, client: bool = False, window_bytes: int = INITIAL_WINDOW_BYTES, streams: int = 4) -> YamuxSession:
    return YamuxSession(client=client, window_bytes=window_bytes, inbound_streams_max=streams)


def output(of: YamuxSession) -> bytes:
    return of.take_output(2**30)


def listener_with_stream() -> YamuxSession:
    one = session()
    assert one.receive_data(frame(WINDOW, SYN, 1, 0)) == [StreamOpened(1)]
    assert output(one) == frame(WINDOW, ACK, 1, 0)
    return one


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "send", "end", "reset", "close", "read", "carry"]), st.integers(0, 2**16)),
        max_size=60,
    ),
    window_bytes=st.sampled_from([INITIAL_WINDOW_BYTES, 2 * INITIAL_WINDOW_BYTES]),
)
def test_whatever_one_side_sends_the_other_hears_in_order(steps: list[tuple[str, int]], window_bytes: int) -> None:
    ours, theirs = session(client=True, window_bytes=window_bytes), session(window_bytes=window_bytes)
    sent: dict[int, bytearray] = {}
    heard: dict[int, bytearray] = {}
    gone: set[int] = set()
    ended: set[int] = set()
    wire = bytearray()

    def carry(size: int) -> None:
        wire.extend(output(ours))
        data = bytes(wire[:size])
        del wire[:size]
        for event in theirs.receive_data(data):
            match event:
                case StreamOpened(stream_id):
                    heard[stream_id] = bytearray()
                case DataReceived(stream_id, content):
                    heard[stream_id] += content
                case StreamReset(stream_id) | StreamRefused(stream_id):
                    gone.add(stream_id)
                case StreamEnded(stream_id):
                    ended.add(stream_id)
        ours.receive_data(output(theirs))

    for step, number in steps:
        ids = sorted(sent)
        stream_id = ids[number % len(ids)] if ids else 0
        match step:
            case "open" if len(ids) < 4:
                sent[ours.open_stream()] = bytearray()
            case "send" if ids:
                size = min(number, ours.sendable_bytes(stream_id))
                if size:
                    content = bytes([number % 251]) * size
                    ours.send_data(stream_id, content)
                    sent[stream_id] += content
            case "end":
                ours.end_stream(stream_id)
            case "close":
                ours.close_stream(stream_id)
            case "reset":
                ours.reset_stream(stream_id)
            case "read" if stream_id in heard:
                theirs.release(stream_id, len(heard[stream_id]) // 2)
            case "carry":
                carry(number)
    carry(2**30)
    for stream_id, whole in sent.items():
        assert whole.startswith(heard.get(stream_id, b""))
        if stream_id in ended and stream_id not in gone:
            assert heard[stream_id] == whole


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_any_bytes_give_events_or_one_error_however_they_are_cut(data: bytes, cut: int) -> None:
    def events_of(pieces: list[bytes]) -> tuple[list[Event], bool]:
        one, events = session(), []
        try:
            for piece in pieces:
                events += one.receive_data(piece)
        except YamuxError:
            return [], True
        merged: list[Event] = []
        for event in events:
            last = merged[-1] if merged else None
            if isinstance(event, DataReceived) and isinstance(last, DataReceived) and last.stream_id == event.stream_id:
                merged[-1] = DataReceived(event.stream_id, last.data + event.data)
            else:
                merged.append(event)
        return merged, False

    assert events_of([data]) == events_of([data[:cut], data[cut:]])


@pytest.mark.parametrize(
    "breach",
    [
        frame(WINDOW, SYN, 1, 0, version=1),
        frame(7, 0, 1, 0),
        frame(DATA, 0, 0, 4, b"abcd"),
        frame(WINDOW, SYN, 2, 0),
        frame(WINDOW, SYN, 1, 0) * 2,
        frame(WINDOW, SYN, 1, 0) + frame(DATA, 0, 1, INITIAL_WINDOW_BYTES + 1),
        frame(DATA, SYN, 1, INITIAL_WINDOW_BYTES + 1),
        frame(DATA, 0, 1, INITIAL_WINDOW_BYTES + 1),
        frame(WINDOW, SYN | FIN, 1, 0) + frame(DATA, 0, 1, 1, b"x"),
        frame(WINDOW, SYN, 1, 0) + frame(WINDOW, 0, 1, 2**32 - 1),
    ],
)
def test_a_breach_of_the_protocol_is_an_error(breach: bytes) -> None:
    with pytest.raises(YamuxError):
        session().receive_data(breach)


def test_the_window_holds_to_the_byte() -> None:
    one = listener_with_stream()
    assert len(one.receive_data(frame(DATA, 0, 1, INITIAL_WINDOW_BYTES, bytes(INITIAL_WINDOW_BYTES)))) == 1
    with pytest.raises(YamuxError):
        one.receive_data(frame(DATA, 0, 1, 1))


def test_content_that_was_read_opens_the_window_by_halves() -> None:
    one = listener_with_stream()
    one.receive_data(frame(DATA, 0, 1, INITIAL_WINDOW_BYTES, bytes(INITIAL_WINDOW_BYTES)))
    one.release(1, INITIAL_WINDOW_BYTES // 2 - 1)
    assert output(one) == b""
    one.release(1, 1)
    assert output(one) == frame(WINDOW, 0, 1, INITIAL_WINDOW_BYTES // 2)
    one.receive_data(frame(DATA, 0, 1, INITIAL_WINDOW_BYTES // 2, bytes(INITIAL_WINDOW_BYTES // 2)))


def test_a_larger_window_is_told_with_the_first_frame() -> None:
    one = session(client=True, window_bytes=2 * INITIAL_WINDOW_BYTES)
    stream_id = one.open_stream()
    assert output(one) == frame(WINDOW, SYN, stream_id, INITIAL_WINDOW_BYTES)


def test_our_own_content_stops_at_the_window_of_the_peer() -> None:
    one = session(client=True)
    stream_id, sent = one.open_stream(), 0
    while size := one.sendable_bytes(stream_id):
        assert size <= FRAME_BODY_MAX_BYTES
        one.send_data(stream_id, bytes(size))
        sent += size
    assert sent == INITIAL_WINDOW_BYTES
    assert one.receive_data(frame(WINDOW, 0, stream_id, 5)) == [WindowOpened(stream_id)]
    assert one.sendable_bytes(stream_id) == 5


def test_one_stream_more_than_allowed_is_reset_and_its_content_dropped() -> None:
    one = session(streams=2)
    opened = one.receive_data(frame(WINDOW, SYN, 1, 0) + frame(WINDOW, SYN, 3, 0))
    assert opened == [StreamOpened(1), StreamOpened(3)]
    assert one.receive_data(frame(DATA, SYN, 5, 3, b"abc")) == [StreamRefused(5)]
    assert output(one).endswith(frame(WINDOW, RST, 5, 0) * 2)
    assert one.inbound_streams == 2
    one.close_stream(1)
    assert one.receive_data(frame(WINDOW, SYN, 7, 0)) == [StreamOpened(7)]


def test_content_for_a_stream_we_closed_is_answered_with_a_reset() -> None:
    one = listener_with_stream()
    one.close_stream(1)
    assert output(one) == frame(WINDOW, FIN, 1, 0)
    assert one.receive_data(frame(WINDOW, 0, 1, 100)) == []
    assert output(one) == b""
    assert one.receive_data(frame(DATA, 0, 1, 3, b"abc")) == []
    assert output(one) == frame(WINDOW, RST, 1, 0)
    assert one.receive_data(frame(WINDOW, RST, 1, 0)) == []
    assert output(one) == b""


def test_pings_are_answered_and_the_answers_counted() -> None:
    one = session()
    one.receive_data(frame(PING, SYN, 0, 42))
    assert one.control_output_bytes == 12
    assert output(one) == frame(PING, ACK, 0, 42)
    assert one.control_output_bytes == 0
    one.receive_data(frame(PING, ACK, 0, 42))
    assert output(one) == b""


def test_ten_thousand_openings_cannot_be_queued_unnoticed() -> None:
    one = session()
    one.receive_data(b"".join(frame(WINDOW, SYN, 2 * index + 1, 0) for index in range(10_000)))
    assert one.control_output_bytes > CONTROL_OUTPUT_MAX_BYTES
    assert one.inbound_streams == 4


def test_a_goodbye_is_heard() -> None:
    assert session().receive_data(frame(GO_AWAY, 0, 0, 1)) == [GoneAway(1)]


def test_output_is_taken_in_whole_frames() -> None:
    one = session(client=True)
    stream_id = one.open_stream()
    one.send_data(stream_id, bytes(1000))
    one.send_data(stream_id, bytes(1000))
    assert [len(one.take_output(1500)) for _ in range(3)] == [12 + 1012, 1012, 0]
    assert one.output_bytes == 0
