"""Reading goes on while the disk of the ledger is full: what reading would write waits, and is counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, hours
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_jobs import DiskError

from p2pmem.ledger import audit
from p2pmem.services import auditing

pytestmark = pytest.mark.cluster(n=1)
QUERY = "SELECT ?s { ?s ?p ?o }"


class FullDisk:
    """Refuses audit lines of these kinds, and with them the transactions that they are in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: set[str] = set()
        self._append = audit.append
        monkeypatch.setattr(audit, "append", self.append)

    def append(
        self, connection: sqlite3.Connection, at_ms: int, what: str, payload: str, random: Callable[[int], bytes]
    ) -> int:
        if what in self.refused:
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full
        return self._append(connection, at_ms, what, payload, random)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


async def recalled(node: ClusterNode, question: str = "word") -> int:
    answer = await node.inside.face.recall(question, graph=None, min_trust=None, min_m=0, limit=10)
    return len(answer.hits)


async def asked(node: ClusterNode) -> int:
    return len((await node.query(QUERY)).rows)


def audited(node: ClusterNode) -> list[str]:
    database = node.inside.ledger.database
    assert database.read(audit.broken_at) is None
    entries = database.read(lambda connection: audit.read(connection, 0, 1_000))
    return [(entry.payload or "").split("\n")[0] for entry in entries if entry.what == "recall"]


async def warnings_of_audit(node: ClusterNode) -> list[str]:
    return [it for it in (await node.face.status()).warnings if "audit" in it]


async def test_recall_answers_while_the_disk_is_full_and_its_lines_are_written_once_there_is_room(
    cluster: Cluster, full_disk: FullDisk
) -> None:
    (ada,) = cluster.nodes
    await ada.share('ex:a ex:says "word" .')
    await cluster.settled()
    full_disk.refused = {"recall"}
    with trio.fail_after(0.5):
        assert [await recalled(ada, f"word {number}") for number in range(3)] == [1, 1, 1]
        assert await asked(ada) == 1
    await cluster.advance(minutes=2)
    (warning,) = await warnings_of_audit(ada)
    assert "3 answers of recall not in the audit yet" in warning
    assert audited(ada) == []
    full_disk.refused = set()
    await cluster.advance(seconds=5)
    assert audited(ada) == ["word 0", "word 1", "word 2"]
    assert await warnings_of_audit(ada) == []
    assert await recalled(ada, "word at once") == 1
    assert audited(ada)[-1] == "word at once"


async def test_answers_whose_lines_found_no_room_in_memory_either_are_counted_in_the_audit(
    cluster: Cluster, full_disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada,) = cluster.nodes
    monkeypatch.setattr(auditing, "WAITING_LINES_MAX", 2)
    full_disk.refused = {"recall"}
    for number in range(5):
        await recalled(ada, f"word {number}")
    (warning,) = await warnings_of_audit(ada)
    assert "5 answers" in warning
    full_disk.refused = set()
    await cluster.advance(seconds=5)
    assert audited(ada) == ["word 0", "word 1", "3 more were answered, of which nothing is known"]
    assert await warnings_of_audit(ada) == []


async def test_lines_that_find_no_room_before_the_node_ends_are_counted_in_its_log(
    cluster: Cluster, full_disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    (ada,) = cluster.nodes
    full_disk.refused = {"recall"}
    await recalled(ada)
    await recalled(ada)
    await cluster.restart(ada)
    assert sum(it.__dict__["lines"] for it in caplog.records if it.getMessage() == "audit.lost") == 2


async def test_a_query_says_at_once_that_what_has_ended_cannot_be_let_go_and_recall_leaves_it_out(
    cluster: Cluster, full_disk: FullDisk
) -> None:
    (ada,) = cluster.nodes
    await ada.share('ex:a ex:says "word" .', ttl=hours(1))
    await ada.share('ex:b ex:says "word" .')
    await cluster.settled()
    full_disk.refused = {"sweep"}
    await cluster.advance(minutes=59)
    assert (await asked(ada), await recalled(ada)) == (2, 2)
    await cluster.advance(minutes=2)
    with trio.fail_after(0.5), pytest.raises(DiskError, match="disk is full"):
        await asked(ada)
    assert await recalled(ada) == 1
    assert len(await ada.versions()) == 1
    full_disk.refused = set()
    await cluster.advance(seconds=5)
    assert (await asked(ada), await recalled(ada)) == (1, 1)


async def test_a_query_that_waits_for_a_sweep_is_told_when_the_disk_refuses_it(
    cluster: Cluster, full_disk: FullDisk
) -> None:
    (ada,) = cluster.nodes
    await ada.share('ex:a ex:says "word" .', ttl=hours(1))
    await cluster.settled()
    full_disk.refused = {"sweep"}
    keeper = ada.inside.services.keeper
    due_ms = keeper.due_ms()
    assert due_ms is not None
    await trio.sleep((due_ms - ada.clock.now_ms()) / 1000)
    assert ada.inside.ledger.database.refusal is None
    with trio.fail_after(0.5), pytest.raises(DiskError):
        await keeper.swept()
    full_disk.refused = set()
    await cluster.advance(seconds=5)
    await keeper.swept()
