"""What is in the set in memory is on disk, also when the disk refused it at first or its job was cancelled."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_jobs import DiskError, StaleAttemptError, work
from p2pmem_jobs.records import Claimed

from p2pmem.ledger.batch import Batch
from p2pmem.ledger.ledger import Ledger


def refuse(monkeypatch: pytest.MonkeyPatch, when: Callable[[Ledger], bool]) -> None:
    """The disk has no room for what a ledger takes into its set, as long as `when` says so."""
    write_rows = Ledger.write_rows

    def refuse(ledger: Ledger, connection: sqlite3.Connection, batch: Batch) -> int:
        if batch.items and when(ledger):
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        return write_rows(ledger, connection, batch)

    monkeypatch.setattr(Ledger, "write_rows", refuse)


def items_on_disk(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM item").fetchone()[0])


@pytest.mark.cluster(n=2)
@pytest.mark.parametrize("by", ["the disk", "its own end"])
async def test_a_statement_whose_write_was_refused_once_is_not_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    refused: list[str] = []

    def is_first(of: Ledger) -> bool:
        if of is not bo.inside.ledger or refused:
            return False
        refused.append(by)
        return True

    if by == "the disk":
        refuse(monkeypatch, is_first)
    else:
        require_current = work.require_current

        def is_over(connection: sqlite3.Connection, claimed: Claimed) -> None:
            if claimed.kind == "endorse" and is_first(bo.inside.ledger):
                raise StaleAttemptError("the job was cancelled meanwhile")
            require_current(connection, claimed)

        monkeypatch.setattr(work, "require_current", is_over)
    await bo.endorse(asset)
    await cluster.settled()
    assert refused
    assert bo.inside.ledger.database.read(items_on_disk) == 2
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.settled()
    for node in (ada, bo):
        view = node.view(asset)
        assert view is not None
        assert len(view.trust.endorsements) == 1


@pytest.mark.cluster(n=2)
async def test_a_disk_that_is_full_for_a_while_ends_no_node_and_keeps_memory_and_disk_equal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo = cluster.nodes
    is_full = True
    refuse(monkeypatch, lambda _: is_full)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ada.share, "ex:a ex:b ex:c .")
        await cluster.advance(minutes=1)
        assert [len(node.inside.ledger.named(cluster.graph).set) for node in cluster.nodes] == [1, 0]
        assert [node.inside.ledger.database.read(items_on_disk) for node in cluster.nodes] == [0, 0]
        is_full = False
    await cluster.settled()
    is_full = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bo.share, "ex:a ex:b ex:d .")
        await cluster.advance(minutes=1)
        is_full = False
    await cluster.settled()
    for node in cluster.nodes:
        assert node.is_up
        assert node.incarnation == 1
        assert node.inside.ledger.database.read(items_on_disk) == 2


@pytest.mark.cluster(n=2)
async def test_a_peers_words_wait_for_room_on_the_disk_and_the_node_lives_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo = cluster.nodes
    is_full = True
    refuse(monkeypatch, lambda ledger: is_full and ledger is bo.inside.ledger)
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.advance(minutes=5)
    assert bo.inside.ledger.database.read(items_on_disk) == 0
    is_full = False
    await cluster.settled()
    assert bo.sees(asset)
    assert bo.incarnation == 1
    assert bo.inside.ledger.database.read(items_on_disk) == 1


@pytest.mark.cluster(n=2)
async def test_who_says_something_while_the_disk_takes_nothing_is_told_so_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    is_full = True
    refuse(monkeypatch, lambda ledger: is_full and ledger is bo.inside.ledger)
    set_of_bo = bo.inside.ledger.named(cluster.graph).set

    async def make_room_later() -> None:
        nonlocal is_full
        await trio.sleep(120)
        is_full = False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_room_later)
        nursery.start_soon(bo.share, "ex:a ex:b ex:d .")  # the first is in the set before anybody knows
        await cluster.advance(seconds=30)
        assert len(set_of_bo) == 2
        for say in (
            lambda: share_data(bo, cluster.graph, "e"),
            lambda: share_data(bo, cluster.graph, "f"),
            lambda: bo.endorse(asset),
            lambda: bo.retract(asset),
        ):
            with pytest.raises(DiskError, match="full"):
                await say()
        assert len(set_of_bo) == 2
        assert is_full
    await share_data(bo, cluster.graph, "g")
    await cluster.settled()
    assert len(set_of_bo) == 3


async def share_data(node: ClusterNode, graph: str, name: str) -> None:
    text = f"<http://example.org/{name}> <http://example.org/p> <http://example.org/o> .".encode()
    await node.call(
        lambda: node.face.share_data(graph, name, text, format="turtle", base=None, subgraph="", ttl_ms=None)
    )
