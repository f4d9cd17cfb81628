"""What is audited beside the ledger's own changes: who was given what.

An answer waits until its line is on disk. A disk that refuses it keeps nobody from reading: then the line waits in
memory, in bounds, and is written once there is room; what finds no room in memory is counted, and so is in the audit.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from p2pmem_jobs import ClosedError, DiskError

from p2pmem.face import RecallAnswer
from p2pmem.ledger import audit
from p2pmem.ledger.ledger import Ledger

log = logging.getLogger(__name__)

WAITING_LINES_MAX: Final = 1_000
WAITING_BYTES_MAX: Final = 1024 * 1024
RECALL: Final = "recall"


@dataclass(slots=True)
class _Waiting:
    """Lines with their times that the disk has refused so far, and how many more there was no room for."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    size_bytes: int = 0
    missed: int = 0

    def add(self, at_ms: int, payload: str) -> None:
        size_bytes = len(payload.encode())
        if len(self.lines) < WAITING_LINES_MAX and self.size_bytes + size_bytes <= WAITING_BYTES_MAX:
            self.lines.append((at_ms, payload))
            self.size_bytes += size_bytes
        else:
            self.missed += 1

    def drop(self, lines: Sequence[tuple[int, str]], missed: int) -> None:
        """Forget the first of them, which are written."""
        del self.lines[: len(lines)]
        self.size_bytes -= sum(len(payload.encode()) for _, payload in lines)
        self.missed -= missed

    def __len__(self) -> int:
        return len(self.lines) + self.missed


class Auditing:
    """Writes audit lines that belong to no other change. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting = _Waiting()
        self._come = trio.Event()

    @property
    def waiting(self) -> int:
        """How many answers were given whose lines are not on disk."""
        return len(self._waiting)

    async def recalled(self, question: str, answer: RecallAnswer) -> None:
        """A question was answered; the line joins the next group commit, or waits where the disk refuses."""
        given = [hit.version.reference if hit.version is not None else "draft" for hit in answer.hits]
        payload = f"{question}\n" + "\n".join(given)
        now_ms = self._ledger.clock.now_ms()
        if not self.waiting:
            try:
                await self._ledger.database.write(lambda connection: self._append(connection, now_ms, RECALL, payload))
                return
            except DiskError as error:
                log.warning("audit.waits", extra={"error": str(error)})
        self._waiting.add(now_ms, payload)
        self._come.set()

    async def run(self) -> None:
        """Write what waits as soon as the disk takes it, until cancelled."""
        while True:
            await self._come.wait()
            self._come = trio.Event()
            while self.waiting:
                await self._write_waiting()

    async def _write_waiting(self) -> None:
        lines, missed = tuple(self._waiting.lines), self._waiting.missed
        now_ms = self._ledger.clock.now_ms()

        def write(connection: sqlite3.Connection) -> None:
            for at_ms, payload in lines:
                self._append(connection, at_ms, RECALL, payload)
            if missed:
                self._append(connection, now_ms, RECALL, f"{missed} more were answered, of which nothing is known")

        try:
            await self._ledger.database.write(write, owed=True)
        except (DiskError, ClosedError) as error:  # the node ends before there was room
            log.error("audit.lost", extra={"lines": len(lines) + missed, "error": str(error)})
        else:
            log.info("audit.written", extra={"lines": len(lines), "missed": missed})
        self._waiting.drop(lines, missed)

    def _append(self, connection: sqlite3.Connection, at_ms: int, what: str, payload: str) -> None:
        audit.append(connection, at_ms, what, payload, self._ledger.random_bytes)
