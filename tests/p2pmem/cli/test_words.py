"""Durations, times, and text that a terminal must not obey."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest
from hypothesis import given, strategies as st

from p2pmem.cli.output import block, table
from p2pmem.cli.words import clean, duration_ms, show_duration, show_time


@pytest.mark.parametrize(
    ("text", "wanted_ms"),
    [("250ms", 250), ("30s", 30_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1h30m", 5_400_000)],
)
def test_a_duration_is_read_and_shown(text: str, wanted_ms: int) -> None:
    assert duration_ms(text) == wanted_ms
    assert duration_ms(show_duration(wanted_ms).replace(" ", "")) == wanted_ms


@pytest.mark.parametrize("text", ["", "7", "d", "-1s", "1.5h", "1 h", "0s", "٣s", "1y", "999999999999w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no duration"):
        duration_ms(text)


@given(st.integers(-(10**12), 10**12))
def test_a_shown_duration_never_says_more_than_there_is(ms: int) -> None:
    shown = show_duration(ms)
    assert shown.startswith("-") == (ms < 0)
    if ms:
        read = duration_ms(shown.removeprefix("-").replace(" ", ""))
        assert read <= abs(ms) < read * 2


def test_a_time_is_shown_in_utc_and_none_as_a_dash() -> None:
    assert show_time(1_800_000_000_000) == "2027-01-15 08:00:00Z"
    assert show_time(253_402_300_799_999).startswith("9999-12-31")
    assert show_time(0) == "-"


@given(st.text())
def test_clean_text_is_one_line_that_a_terminal_only_prints(text: str) -> None:
    assert clean(text).isprintable()
    assert len(clean(text)) == len(text)
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\u202egnirts", "\x9b31m", "a\rb", "\ud800"])
def test_marks_that_change_what_is_read_are_taken_out(text: str) -> None:
    assert not set(clean(text, lines=True)) & set("\x1b\x07\u202e\x9b\r\ud800")


def test_columns_stand_under_their_names() -> None:
    assert table(("A", "LONG"), [["xx", "y"]], "nothing") == "A   LONG\nxx  y"
    assert table(("A",), [], "nothing") == "nothing"
    assert block("title", [("a", "1"), ("none", ""), ("long", "2")]) == "title\n  a     1\n  long  2"
