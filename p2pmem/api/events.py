"""Server-sent events: values to bytes and bytes to values. No IO.

Of the format (WHATWG HTML, section 9.2) this writes `id`, `event`, one `data` line, and comments that keep a connection
alive; it reads all of it but `retry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.errors import OutsideError

KEEP_ALIVE: Final = b": still here\n\n"
PROBLEM_EVENT: Final = "problem"
EVENT_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `id` is where to go on from; `data` is JSON text, in one line."""

    data: str
    event: str = ""
    id: str = ""

    def encode(self) -> bytes:
        assert not any(mark in text for text in (self.data, self.event, self.id) for mark in "\r\n\0")
        lines = [f"id: {self.id}"] if self.id else []
        lines += [f"event: {self.event}"] if self.event else []
        return "\n".join([*lines, f"data: {self.data}", "", ""]).encode()


class EventReader:
    """Takes bytes as they come and gives whole events. Raises `OutsideError` for an event over the limit."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._fields: dict[str, list[str]] = {}
        self._after_return = False
        self._size_bytes = 0

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        for line in self._lines(data):
            self._size_bytes += len(line)
            if self._size_bytes > EVENT_BYTES_MAX:
                raise OutsideError(f"the node sent an event of more than {EVENT_BYTES_MAX} bytes")
            if line:
                self._take(line)
            else:
                event = self._finish()
                if event is not None:
                    yield event

    def _lines(self, data: bytes) -> Iterator[str]:
        """Lines end in CR, LF, or both, which may come in two pieces."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        if data:
            self._after_return = data.endswith(b"\r")
        self._waiting += data
        if len(self._waiting) > EVENT_BYTES_MAX:
            raise OutsideError(f"the node sent an event of more than {EVENT_BYTES_MAX} bytes")
        *whole, rest = self._waiting.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._waiting = bytearray(rest)
        for line in whole:
            yield line.decode("utf-8", "replace")

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name in ("data", "event", "id"):
            self._fields.setdefault(name, []).append(value.removeprefix(" "))

    def _finish(self) -> ServerEvent | None:
        fields, self._fields, self._size_bytes = self._fields, {}, 0
        if "data" not in fields:
            return None
        return ServerEvent("\n".join(fields["data"]), fields.get("event", [""])[-1], fields.get("id", [""])[-1])
