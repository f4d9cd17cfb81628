"""A copy of the ledger while the node runs: of one instant, whole or not there, readable by its owner alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.face import BackupView
from p2pmem.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class BackingUp:
    """Makes copies, one at a time."""

    def __init__(self, ledger: Ledger, places: Collection[Path]) -> None:
        """`places`: files and directories in which the node keeps things that come and go."""
        self._ledger = ledger
        self._places = places
        self._lock = trio.Lock()

    async def back_up(self, to: str) -> BackupView:
        """Copy the ledger to a new file. Raises `MisuseError` for a relative path, one that no file can have, one where
        the node or SQLite keeps things, and a file that exists, `DiskError` where it finds no room; then nothing of it
        is left. The node goes on meanwhile, and its log grows by what is written in that time. Cancelled, nothing is
        left.
        """
        if "\0" in to:
            raise MisuseError(f"the path of a backup has no null character in it, as {to!r} has")
        path = Path(to)
        if not path.is_absolute():
            raise MisuseError(f"the path of a backup is an absolute one, not {to!r}")
        self._check_is_elsewhere(path)
        async with self._lock:
            await self._ledger.database.back_up(path)
            size_bytes = (await trio.Path(path).stat()).st_size
        made = BackupView(str(path), size_bytes)
        log.info("backup.done", extra={"bytes": made.bytes})
        return made

    def _check_is_elsewhere(self, to: Path) -> None:
        """A triple store is removed and made anew with all that is in its directory."""
        where = Path(os.path.realpath(to.parent), to.name)
        for place in map(Path, map(os.path.realpath, self._places)):
            if place == where or place in where.parents:
                raise MisuseError(f"{to} is where this node keeps things that come and go; choose another place")
