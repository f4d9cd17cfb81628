"""Following the newest block by polling, and noticing when blocks that were seen are no longer on the chain.

Marks are the heads seen so far, newest last, a bounded number. On a new head the marks are asked for again from the
newest down until one still stands: everything above that one may have changed. Blocks between two marks are not
marked, so the answer errs to the safe side: it names the first block that *may* be another than before.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

import trio

from p2pmem.chain.seam import Head, HeadSource

log = logging.getLogger(__name__)

MARKS_MAX = 128


@dataclass(frozen=True, slots=True)
class HeadChange:
    """A new head. If `changed_from` is set, blocks from that number on may not be those seen before: look up again
    whatever was found mined there."""

    head: Head
    changed_from: int | None = None


class HeadWatch:
    """One follower of one chain. Not to be polled by two tasks at once."""

    def __init__(self, source: HeadSource, marks_max: int = MARKS_MAX) -> None:
        assert marks_max >= 1
        self._source = source
        self._marks: deque[Head] = deque(maxlen=marks_max)

    async def poll(self) -> HeadChange | None:
        """Ask once; None if the head is the same. Cancelled or failed, nothing is forgotten: ask again."""
        head = await self._source.head()
        if self._marks and self._marks[-1] == head:
            return None
        fallen = 0
        for mark in reversed(self._marks):
            if mark.number <= head.number and await self._source.block_hash(mark.number) == mark.hash:
                break
            fallen += 1
        # No await from here on: the marks change all at once or not at all.
        oldest = self._marks[0].number if self._marks else 0
        for _ in range(fallen):
            self._marks.pop()
        changed_from: int | None = None
        if fallen:
            changed_from = self._marks[-1].number + 1 if self._marks else 0
            if not self._marks:
                log.warning("chain.reorganised.beyond_memory", extra={"oldest_mark": oldest, "head": head.number})
            else:
                log.warning("chain.reorganised", extra={"changed_from": changed_from, "head": head.number})
        if not self._marks or self._marks[-1] != head:
            self._marks.append(head)
        return HeadChange(head, changed_from)

    async def next_change(self, poll_seconds: float) -> HeadChange:
        """Wait until the head is another than at the last answer. The first call answers at once. Cancellable."""
        while True:
            change = await self.poll()
            if change is not None:
                return change
            await trio.sleep(poll_seconds)
