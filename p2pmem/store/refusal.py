"""Outlasting a disk that refuses: what it will not take now is tried again until it does.

A projection is a cache of the ledger, so nothing is lost while it stands still, and nobody is to end for it. The ledger
does the same with writes that are owed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio
from p2pmem_jobs.errors import DiskError

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 10.0
"""A try is cheap, and who freed some disk looks whether it helped."""

T = TypeVar("T")


class Refusal:
    """Whether the disk refuses the writes of one projection, and what it says."""

    def __init__(self, of: str) -> None:
        """`of` is the name of the projection, as the log shows it."""
        self._of = of
        self._said: str | None = None
        self._tries = 0
        self.on_begin: Callable[[], object] = lambda: None
        """Called when the disk begins to refuse."""

    @property
    def said(self) -> str | None:
        """What the disk said last; None while it takes what is written."""
        return self._said

    def check_takes(self) -> None:
        """`DiskError` while the disk refuses: for who would only come to wait, and can still leave it undone."""
        if self._said is not None:
            raise DiskError(self._said)

    async def outlast(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make the attempt, again and again while it ends with `DiskError`, with pauses of one second to ten.

        Other errors pass. Cancellation: in a pause at any time, and then it is as after a failed attempt; in an attempt
        as that does it.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                result = await attempt()
            except DiskError as error:
                self._note_refused(str(error))
                # Only the text is kept: the frames of an error hold the very handles that have to be let go.
            else:
                self._note_taken()
                return result
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _note_refused(self, what: str) -> None:
        if self._said is None:
            log.warning("%s.refused", self._of, extra={"error": what})
            self.on_begin()
        self._said = what
        self._tries += 1

    def _note_taken(self) -> None:
        if self._said is not None:
            log.info("%s.refuses_no_more", self._of, extra={"tries": self._tries})
        self._said, self._tries = None, 0
