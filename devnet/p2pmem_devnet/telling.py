"""How a run is told: one line at a time, each with its time since the beginning."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

WIDTH: Final = 110
_INDENT: Final = " " * 10


@dataclass(frozen=True, slots=True)
class Told:
    at_s: float
    text: str


@dataclass(slots=True)
class Teller:
    """Prints, and remembers what it printed. `begun_s` is of trio's clock."""

    begun_s: float = field(default_factory=trio.current_time)
    out: Callable[[str], None] = lambda line: print(line, flush=True)
    told: list[Told] = field(default_factory=list)

    def now_s(self) -> float:
        return trio.current_time() - self.begun_s

    def say(self, text: str) -> None:
        """One paragraph of the story."""
        at_s = self.now_s()
        self.told.append(Told(round(at_s, 3), text))
        lines = textwrap.wrap(text, WIDTH - len(_INDENT), break_long_words=False, break_on_hyphens=False)
        self.out(f"{at_s:7.2f} s " + ("\n" + _INDENT).join(lines))

    def show(self, text: str) -> None:
        """Something that stands by itself, such as a table."""
        self.out(text)


def silent(_: str) -> None:
    """For --json: the story is told in the document."""


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def and_list(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def seconds(value: float) -> str:
    """A duration as people say it: 38 ms, 4.2 s."""
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.1f} s"


def count(number: int, one: str, many: str = "") -> str:
    """`1 peer`, `3 peers`, `1,234 bytes`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


_WORDS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def word(number: int) -> str:
    """Small numbers as words."""
    return _WORDS[number] if number < len(_WORDS) else f"{number:,}"


def all_of(number: int) -> str:
    """`both`, `all five`."""
    return "both" if number == 2 else f"all {word(number)}"


def short(identifier: str, keep: int = 8) -> str:
    """The beginning of a long hexadecimal id."""
    return identifier if len(identifier) <= keep + 3 else identifier[: keep + 2] + "…"
