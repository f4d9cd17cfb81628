"""Invites in the owner's ledger."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from p2pmem_jobs import InlineBlocking, open_database

from p2pmem.ledger.schema import COMPONENT, MIGRATIONS


async def test_invites_of_the_schema_before_are_gone_and_new_ones_are_kept(tmp_path: Path) -> None:
    """Of those only a hash of the token is left, and what is asked with them now is signed with another secret."""
    path = tmp_path / "ledger.sqlite"
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate(COMPONENT, MIGRATIONS[:4])
        old = (b"h" * 32, b"g" * 32, 1, 1, 1, 0)
        await database.write(lambda it: it.execute("INSERT INTO invite VALUES (?, ?, ?, ?, ?, ?)", old))
    new = (b"k" * 20, b"g" * 32, 1, 1, 1, 0)
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate(COMPONENT, MIGRATIONS)
        await database.write(lambda it: it.execute("INSERT INTO invite VALUES (?, ?, ?, ?, ?, ?)", new))

        def invites(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
            return connection.execute("SELECT key, graph, roles, uses, expires_ms, asks FROM invite").fetchall()

        assert database.read(invites) == [new]
