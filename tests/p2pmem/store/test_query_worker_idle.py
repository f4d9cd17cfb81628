"""Workers that nobody asks end, and what they had open goes with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing
from p2pmem_jobs.blocking import Blocking

from p2pmem.store.placement import Placement
from p2pmem.store.projection import OxigraphProjection
from p2pmem.store.query_worker import QueryWorkers, open_query_workers

GRAPH = "urn:cg:open"
ASK = "SELECT ?o { <urn:a> <urn:p> ?o }"


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
async def workers(
    disk_projection: OxigraphProjection, inline: Blocking, snapshots: Path
) -> AsyncIterator[QueryWorkers]:
    await disk_projection.apply(1, [Placement("urn:open:1", GRAPH, b'<urn:a> <urn:p> "public" .\n')])
    async with (
        open_query_workers(disk_projection, snapshots, inline, idle_ms=60_000) as opened,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(opened.retire_idle)
        yield opened
        nursery.cancel_scope.cancel()


def names_in(folder: Path) -> set[str]:
    return {it.name for it in folder.iterdir()}


def is_empty(folder: Path) -> bool:
    return not names_in(folder)


async def emptied(folder: Path) -> None:
    for _ in range(10_000):
        if is_empty(folder):
            return
        await trio.testing.wait_all_tasks_blocked(0.001)
    raise AssertionError(f"{folder} still has a snapshot")


async def test_an_idle_worker_ends_after_its_time_and_takes_the_snapshot_along(
    workers: QueryWorkers, snapshots: Path, mock_clock: trio.testing.MockClock
) -> None:
    await workers.query(ASK, default_graphs=[GRAPH])
    mock_clock.jump(59.9)
    await trio.testing.wait_all_tasks_blocked()
    assert workers.statistics().idle == 1
    mock_clock.jump(0.2)
    await emptied(snapshots)
    assert workers.statistics().idle == 0


async def test_a_worker_that_is_asked_in_time_stays(
    workers: QueryWorkers, snapshots: Path, mock_clock: trio.testing.MockClock
) -> None:
    for _ in range(3):
        await workers.query(ASK, default_graphs=[GRAPH])
        mock_clock.jump(40)
        await trio.testing.wait_all_tasks_blocked()
    assert workers.statistics().idle == 1
    assert workers.statistics().snapshots == 1


async def test_after_all_have_ended_the_next_query_is_answered_by_a_new_one(
    workers: QueryWorkers, snapshots: Path, mock_clock: trio.testing.MockClock
) -> None:
    for _ in range(2):
        answer = await workers.query(ASK, default_graphs=[GRAPH])
        assert b"public" in answer.body
        mock_clock.jump(61)
        await emptied(snapshots)
    assert workers.statistics().snapshots == 2


async def test_of_a_store_made_anew_at_the_same_position_no_worker_keeps_the_old_files(
    workers: QueryWorkers, disk_projection: OxigraphProjection, snapshots: Path
) -> None:
    async def renew() -> None:
        await disk_projection.renew()
        await disk_projection.fill([Placement("urn:open:1", GRAPH, b'<urn:a> <urn:p> "public" .\n')])
        await disk_projection.apply(1)

    await workers.query(ASK, default_graphs=[GRAPH], at_least=1)
    (old,) = names_in(snapshots)
    await renew()
    await workers.query(ASK, default_graphs=[GRAPH], at_least=1)
    assert old not in names_in(snapshots), "asked again and again it would keep them for good"
    await renew()
    await workers.forget()
    assert is_empty(snapshots)
    assert workers.statistics().idle == 0
