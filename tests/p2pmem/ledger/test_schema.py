"""Ledgers of other times: one of an earlier protocol and one of a newer program are refused, and left as they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from p2pmem_jobs import InlineBlocking, NewerSchemaError, SystemClock, open_database
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import network_id

from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.schema import BEFORE, COMPONENT, MIGRATIONS

NETWORK = network_id("test")


async def _opened(path: Path) -> Ledger:
    async with open_database(path, blocking=InlineBlocking()) as database:
        return await Ledger.open(database, SystemClock(), NETWORK, bytes)


def _tables(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            *connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name"),
            *connection.execute("SELECT * FROM component_versions"),
        ]


async def test_a_ledger_of_the_protocol_before_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate(BEFORE, ["CREATE TABLE graph(id BLOB PRIMARY KEY) STRICT"])
    before = _tables(path)
    with pytest.raises(MisuseError, match="written under version 1 of the protocol") as refused:
        await _opened(path)
    assert str(path) in str(refused.value)
    assert "Move the file away, and keep key and settings" in str(refused.value)
    assert _tables(path) == before
    path.rename(tmp_path / "ledger.before")
    assert (await _opened(path)).graphs == {}


async def test_a_ledger_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    await _opened(path)
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate(COMPONENT, [*MIGRATIONS, "CREATE TABLE later(id INTEGER) STRICT"])
    before = _tables(path)
    with pytest.raises(NewerSchemaError, match=f"schema {len(MIGRATIONS) + 1}, .* knows up to {len(MIGRATIONS)}"):
        await _opened(path)
    assert _tables(path) == before
