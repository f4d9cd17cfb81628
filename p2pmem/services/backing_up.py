"""A copy of the ledger while the node runs: of one instant, whole or not there, readable by its owner alone."""

from __future__ import annotations

import logging
from pathlib import Path

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.face import BackupView
from p2pmem.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class BackingUp:
    """Makes copies, one at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = trio.Lock()

    async def back_up(self, to: str) -> BackupView:
        """Copy the ledger to a new file. Raises `MisuseError` for a relative path, one that no file can have, and a
        file that exists, `DiskError` where it finds no room; then nothing of it is left. The node goes on meanwhile,
        and its log grows by what is written in that time. Cancelled, nothing is left.
        """
        if "\0" in to:
            raise MisuseError(f"the path of a backup has no null character in it, as {to!r} has")
        path = Path(to)
        if not path.is_absolute():
            raise MisuseError(f"the path of a backup is an absolute one, not {to!r}")
        async with self._lock:
            await self._ledger.database.back_up(path)
            size_bytes = (await trio.Path(path).stat()).st_size
        made = BackupView(str(path), size_bytes)
        log.info("backup.done", extra={"bytes": made.bytes})
        return made
