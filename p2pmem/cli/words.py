"""Durations, times, and the text of others made harmless for a terminal."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Final

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_PART: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
_DURATION_MS_MAX: Final = 2**53 - 1


def duration_ms(text: str) -> int:
    """Milliseconds of `30s`, `2h`, `7d`, `1h30m`. ArgumentTypeError for anything else."""
    parts = _PART.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise ArgumentTypeError(f"{text!r} is no duration: a number and one of ms s m h d w, such as 30s, 2h or 7d")
    total_ms = sum(int(number) * _UNITS_MS[unit] for number, unit in parts)
    if not 0 < total_ms <= _DURATION_MS_MAX:
        raise ArgumentTypeError(f"{text!r} is no duration above 0 that a clock can count")
    return total_ms


def show_duration(duration_ms: int) -> str:
    """The two largest units: `6d 23h`, `1m 30s`, `250ms`."""
    if duration_ms < 0:
        return f"-{show_duration(-duration_ms)}"
    if duration_ms < 1_000:
        return f"{duration_ms}ms"
    shown: list[str] = []
    rest = duration_ms
    for unit in ("d", "h", "m", "s"):
        number, rest = divmod(rest, _UNITS_MS[unit])
        if number:
            shown.append(f"{number}{unit}")
        elif shown:
            break
    return " ".join(shown[:2])


def show_time(time_ms: int) -> str:
    """A time in UTC, to the second: `2027-01-15 08:00:00Z`. A dash for 0, which stands for none."""
    if not time_ms:
        return "-"
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def clean(text: str, *, lines: bool = False) -> str:
    """Text of others without what a terminal would obey: control characters, and marks that turn a line around.

    With `lines`, line feeds and tabs stay.
    """
    return "".join(it if it.isprintable() or (lines and it in "\n\t") else "\N{REPLACEMENT CHARACTER}" for it in text)


def short(identifier: str, characters: int = 10) -> str:
    """The first characters of an id, enough to tell it from its neighbours."""
    return identifier if len(identifier) <= characters else identifier[:characters] + "..."


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
