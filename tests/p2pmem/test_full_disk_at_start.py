"""A node whose disk is full ends when it is told to, at any time: also while it starts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import OutsideError

from p2pmem import node
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import NodeSettings, open_node
from tests.p2pmem.ledger.victim_node import KEY, places, surroundings


def full(_: sqlite3.Connection) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


@pytest.mark.parametrize("where", ["start", "start_after_queue"])
async def test_a_start_that_fails_does_not_wait_for_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def start(built: node._Built, nursery: trio.Nursery) -> None:
        nursery.start_soon(lambda: built._ledger.database.write(write, owed=True))
        await trio.sleep(0.1)
        raise ValueError("mine")

    tries = 0

    def write(connection: sqlite3.Connection) -> None:
        nonlocal tries
        tries += 1
        if tries < 6:  # there is room at last, so that the test ends where the node waits for that
            full(connection)

    monkeypatch.setattr(node._Built, where, start)
    network = MemoryFabric(seed=1).network("ada")
    with pytest.raises(BaseExceptionGroup) as raised:
        async with open_node(NodeSettings("full"), Keyring.of(KEY), network, places(tmp_path), surroundings()):
            pass
    assert raised.group_contains(ValueError)
    assert raised.group_contains(OutsideError)
    assert tries < 6
