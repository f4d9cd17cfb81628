"""Server-sent events, in whatever pieces they come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import OutsideError

from p2pmem.api.events import EVENT_BYTES_MAX, KEEP_ALIVE, EventReader, ServerEvent

LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"))
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8)
EVENTS = st.lists(st.builds(ServerEvent, data=LINES, event=WORDS, id=WORDS), max_size=5)


@given(EVENTS, st.lists(st.integers(0, 400), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_come_whole_from_any_pieces(events: list[ServerEvent], cuts: list[int], ending: bytes) -> None:
    data = KEEP_ALIVE.join(event.encode() for event in events).replace(b"\n", ending)
    places = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    reader = EventReader()
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert [event for piece in pieces for event in reader.feed(piece)] == events


def test_data_in_several_lines_is_one_text() -> None:
    assert list(EventReader().feed(b"data: one\ndata:two\nretry: 5\n\n")) == [ServerEvent("one\ntwo")]


def test_an_event_without_end_is_cut_off() -> None:
    reader, lines = EventReader(), b"data: x\n" * (EVENT_BYTES_MAX // 8)
    assert list(reader.feed(lines[: len(lines) // 2])) == []
    with pytest.raises(OutsideError):
        list(reader.feed(lines + lines))
    with pytest.raises(OutsideError):
        list(EventReader().feed(b"x" * (EVENT_BYTES_MAX + 1)))
