"""The disk is watched before it is full: a node that has little room left says so, and takes no more from others.

    roomy   -- less than the watermark is free -->       partial
    partial -- a fifth more than it is free again -->    roomy

A partial node (rule J3) goes on serving, forgetting and taking in what is small: rosters, retracts, evidence. Its own
agents may still share. It refuses others' content, its rounds only send, and its members see that it is partial. With
room again it compares with all of them, and gets what it lacks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from p2pmem.ledger.admission import Admission
from p2pmem.ledger.ledger import Ledger

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
ENOUGH: Final = 1.2


def free_bytes_of(directory: Path) -> int:
    """What this process may still write there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class DiskWatch:
    """Looks now and then. `run` it in the node's nursery."""

    def __init__(
        self,
        ledger: Ledger,
        admission: Admission,
        free_bytes: Callable[[], int],
        watermark_bytes: int,
        on_room: Callable[[], None],
    ) -> None:
        """`on_room` is called when there is room again."""
        self._ledger = ledger
        self._admission = admission
        self.free_bytes = free_bytes
        self.watermark_bytes = watermark_bytes
        self._on_room = on_room

    @property
    def is_partial(self) -> bool:
        return self._admission.is_partial

    async def run(self) -> None:
        while True:
            self.look()
            await trio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Compare what is free with the watermark, and act on it."""
        try:
            free = self.free_bytes()
        except OSError as error:
            log.warning("disk.unknown", extra={"error": str(error)})
            return
        if not self.is_partial and free < self.watermark_bytes:
            self._admission.is_partial = True
            log.warning("disk.low", extra={"free_bytes": free, "watermark_bytes": self.watermark_bytes})
            self._ledger.wake()
        elif self.is_partial and free >= self.watermark_bytes * ENOUGH:
            self._admission.is_partial = False
            log.info("disk.has_room", extra={"free_bytes": free})
            self._ledger.wake()
            self._on_room()
