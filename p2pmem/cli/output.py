"""What a command says: its answer on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from p2pmem.api.codec import dumps
from p2pmem.cli.words import clean


class Output:
    """Text for people, or with `--json` the JSON that HTTP has."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._in_progress = False
        self._last_progress = ""

    def answer(self, value: object, text: str) -> None:
        """The answer of a command: as JSON the value, otherwise the text."""
        self._end_progress()
        if self.json:
            text = dumps(value, indent=2)
        if text:
            print(text)

    def event(self, value: object, text: str) -> None:
        """One of many answers, as it comes: as JSON one line."""
        self._end_progress()
        print(dumps(value) if self.json else text, flush=True)

    def note(self, text: str) -> None:
        """Something that a person should know, and no program needs."""
        self._end_progress()
        print(text, file=sys.stderr)

    def warn(self, warnings: Iterable[str]) -> None:
        """What a person should look at; in JSON the answer has it."""
        if not self.json:
            for warning in warnings:
                self.note(f"warning: {clean(warning)}")

    def progress(self, text: str) -> None:
        """Where a wait stands. On a terminal one line that changes; otherwise a line for each change; none in JSON."""
        if self.json or text == self._last_progress:
            return
        self._last_progress = text
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._in_progress = True
        else:
            print(text, file=sys.stderr, flush=True)

    def _end_progress(self) -> None:
        if self._in_progress:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._in_progress = False


def table(head: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> str:
    """Columns under their names, or the text `nothing`."""
    if not rows:
        return nothing
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def block(title: str, pairs: Sequence[tuple[str, str]]) -> str:
    """A title and indented lines of name and value; values that are empty are left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [f"  {name.ljust(width)}  {value}" for name, value in shown]
    return "\n".join([title, *lines] if title else lines)
