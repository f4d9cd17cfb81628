"""Making the files hold nothing that is gone.

What was erased, or has ended, is not readable through the node from that moment; but pages of a file that are free, and
tables that a store has not merged yet, still hold its bytes. To compact is to write all files anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import trio
from p2pmem_jobs import Blocking

from p2pmem.face import CompactView
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.keeper import Keeper
from p2pmem.services.projector import Projector
from p2pmem.store.query_worker import Queries

log = logging.getLogger(__name__)


class Compacting:
    """Compacts a running node. It goes on serving; what it finds is little until the projections are filled again."""

    def __init__(
        self,
        ledger: Ledger,
        keeper: Keeper,
        projector: Projector,
        queries: Queries,
        blocking: Blocking,
        places: Sequence[Path],
    ) -> None:
        """`places` are the files and directories that are measured."""
        self._ledger = ledger
        self._keeper = keeper
        self._projector = projector
        self._queries = queries
        self._blocking = blocking
        self._places = tuple(places)
        self._lock = trio.Lock()

    async def compact(self) -> CompactView:
        """Purge, unless the clock is in doubt, make the projections anew in new files, and rewrite the ledger.

        One at a time.

        Needs as much free disk as the ledger takes: `DiskError` where there is less, and at once while the disk refuses
        what others owe. Stopped half way, nothing is lost: the projections are made again, at the latest at the next
        start.
        """
        async with self._lock:
            self._ledger.database.check_takes()
            self._projector.check_takes()
            before = await self._blocking.run(self._bytes)
            await self._keeper.purge()
            await self._projector.renew()
            await self._queries.forget()  # their snapshot has the old files
            await self._ledger.database.compact()
            after = await self._blocking.run(self._bytes)
        log.info("compact.done", extra={"before_bytes": before, "after_bytes": after})
        return CompactView(before, after)

    def _bytes(self) -> int:
        return sum(_size(place) for place in self._places)


def _size(place: Path) -> int:
    if place.is_dir():
        return sum(file.stat().st_size for file in place.iterdir() if file.is_file())
    beside = (place, place.with_name(place.name + "-wal"), place.with_name(place.name + "-shm"))
    return sum(os.stat(file).st_size for file in beside if file.exists())
