"""Frames: whatever is written comes back however it is cut, and a length over the limit is refused at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError

from p2pmem.net.framing import FrameDecoder, encode_frames, encode_length


def drain(decoder: FrameDecoder) -> list[bytes]:
    return list(iter(decoder.next_frame, None))


@given(frames=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_back_whole_however_the_bytes_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    data, decoder, got = encode_frames(frames), FrameDecoder(frame_max_bytes=300), []
    sizes = itertools.cycle(cuts)
    while data:
        size = next(sizes)
        decoder.feed(data[:size])
        data = data[size:]
        expects = decoder.has_frame()
        now = drain(decoder)
        assert bool(now) == expects
        got += now
    decoder.check_end()
    assert got == frames


@given(data=st.binary(max_size=400))
def test_any_bytes_give_frames_within_the_limit_or_one_lasting_refusal(data: bytes) -> None:
    decoder = FrameDecoder(frame_max_bytes=20)
    decoder.feed(data)
    frames: list[bytes] = []
    refusal: RefusedError | None = None
    try:
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    except RefusedError as error:
        refusal = error
    if refusal is not None:
        assert refusal.reason in (Reason.OVERSIZE, Reason.BAD_FRAME)
        decoder.feed(encode_frames([b"fine"]))
        assert decoder.has_frame()
        with pytest.raises(RefusedError):
            decoder.next_frame()
    assert all(len(frame) <= 20 for frame in frames)
    assert data.startswith(encode_frames(frames))


@pytest.mark.parametrize(("size", "accepted"), [(1000, True), (1001, False)])
def test_the_limit_is_tested_on_the_length_before_any_byte_of_the_body(size: int, accepted: bool) -> None:
    decoder = FrameDecoder(frame_max_bytes=1000)
    decoder.feed(encode_length(size))
    if accepted:
        assert decoder.next_frame() is None
        return
    with pytest.raises(RefusedError) as caught:
        decoder.next_frame()
    assert caught.value.reason is Reason.OVERSIZE


@pytest.mark.parametrize("padded", [b"\x80\x00", b"\x81\x00", b"\xff\x80\x00", b"\x80\x80\x80\x80\x80\x00"])
def test_a_length_that_is_not_in_its_shortest_form_is_refused(padded: bytes) -> None:
    decoder = FrameDecoder(frame_max_bytes=1000)
    decoder.feed(padded)
    with pytest.raises(RefusedError) as caught:
        decoder.next_frame()
    assert caught.value.reason is Reason.BAD_FRAME


@pytest.mark.parametrize("cut", [b"\x05abc", b"\x80", b"\x05"])
def test_an_end_inside_a_frame_is_refused(cut: bytes) -> None:
    decoder = FrameDecoder(frame_max_bytes=1000)
    decoder.feed(cut)
    assert decoder.next_frame() is None
    with pytest.raises(RefusedError) as caught:
        decoder.check_end()
    assert caught.value.reason is Reason.BAD_FRAME


def test_a_hundred_thousand_tiny_frames_leave_nothing_behind() -> None:
    decoder = FrameDecoder(frame_max_bytes=10)
    decoder.feed(encode_frames([b"x"] * 100_000))
    assert len(drain(decoder)) == 100_000
    assert decoder.buffered_bytes == 0


def test_a_frame_too_large_to_announce_is_our_own_mistake() -> None:
    with pytest.raises(MisuseError):
        encode_length(2**31)
    with pytest.raises(MisuseError):
        FrameDecoder(frame_max_bytes=0)


def test_a_frame_that_was_given_out_is_not_held_any_more() -> None:
    decoder = FrameDecoder(frame_max_bytes=100_000)
    decoder.feed(encode_frames([bytes(100_000)]))
    assert decoder.next_frame() == bytes(100_000)
    assert decoder._buffer == b""
