"""Bans in the ledger: `net.penalties.Bans`."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from p2pmem_jobs import Database

from p2pmem.net.penalties import Ban
from p2pmem.net.seam import PeerId


class LedgerBans:
    """Keeps bans beyond a restart."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self) -> Mapping[PeerId, Ban]:
        """All, those punished longest ago first."""

        def read(connection: sqlite3.Connection) -> dict[PeerId, Ban]:
            rows = connection.execute("SELECT peer, until_ms, reason, times, last_ms FROM ban ORDER BY last_ms, peer")
            return {PeerId(row[0]): Ban(*row[1:]) for row in rows}

        return self._database.read(read)

    async def keep(self, peer: PeerId, ban: Ban | None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            if ban is None:
                connection.execute("DELETE FROM ban WHERE peer = ?", (peer,))
            else:
                row = (peer, ban.until_ms, ban.reason, ban.times, ban.last_ms)
                connection.execute("INSERT OR REPLACE INTO ban VALUES (?, ?, ?, ?, ?)", row)

        await self._database.write(write, owed=True)
