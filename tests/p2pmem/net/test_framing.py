"""Frames: whatever is written comes back however it is cut, and a length over the limit is refused at once."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError

from p2pmem.net.framing import FrameDecoder, FrameReader, encode_frames, encode_length
from p2pmem.net.seam import Stream


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


@pytest.mark.parametrize("follows", [0, 1, 5])
def test_a_large_frame_that_was_given_out_is_not_held_any_more_whatever_follows(follows: int) -> None:
    decoder = FrameDecoder(frame_max_bytes=100_000)
    whole, after = encode_frames([bytes(100_000)]), encode_frames([b"next"])
    decoder.feed(whole + after[:follows])
    assert decoder.next_frame() == bytes(100_000)
    assert len(decoder._buffer) == decoder.buffered_bytes == follows
    decoder.feed(after[follows:])
    assert decoder.next_frame() == b"next"


class Saying:
    """A stream whose peer says so much, and then no more."""

    def __init__(self, said: bytes) -> None:
        self._said = io.BytesIO(said)

    def keep(self, size_bytes: int) -> None: ...

    async def receive_some(self, max_bytes: int) -> bytes:
        return self._said.read(max_bytes) or await trio.sleep_forever()


async def test_nothing_of_a_frame_is_held_while_the_next_is_waited_for() -> None:
    sizes_bytes: list[int] = []

    async def take(frame: bytes) -> bool:
        sizes_bytes.append(len(frame))
        return True

    tracemalloc.start()
    reader = FrameReader(cast("Stream", Saying(encode_frames([bytes(2_000_000)]))), frame_max_bytes=2_000_000)
    async with trio.open_nursery() as nursery:
        before_bytes, _ = tracemalloc.get_traced_memory()
        nursery.start_soon(reader.each, take)
        await trio.testing.wait_all_tasks_blocked()
        held_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
        nursery.cancel_scope.cancel()
    tracemalloc.stop()
    assert sizes_bytes == [2_000_000]
    assert held_bytes < 200_000


async def test_no_further_frame_is_handed_on_once_one_was_answered_with_no() -> None:
    taken: list[bytes] = []

    async def take(frame: bytes) -> bool:
        taken.append(frame)
        return frame != b"stop"

    said = Saying(encode_frames([b"a", b"stop", b"b"]))
    await FrameReader(cast("Stream", said), frame_max_bytes=10).each(take)
    assert taken == [b"a", b"stop"]
