"""What has ended is let go, and who asks for that comes back when it is on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_jobs import ThreadBlocking, database
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from trio.testing import wait_all_tasks_blocked

from p2pmem.face import LimitsChange, MemberChange, NewGraph
from p2pmem.ledger.admission import EXPIRED_KEPT_MS, Admission
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.ledger import Ledger
from p2pmem.node import Node
from tests.p2pmem.ledger.test_placed import Clock, open_at, share

MINUTE_MS = 60_000


async def test_who_asks_while_a_sweep_is_under_way_waits_until_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, began, goes_on = Clock(), trio.Event(), trio.Event()
    commit = Ledger.commit

    async def commit_later(ledger: Ledger, batch: Batch) -> None:
        began.set()
        await goes_on.wait()
        await commit(ledger, batch)

    async with open_at(tmp_path, clock) as node:
        keeper = node.services.keeper
        graph = (await node.face.found(NewGraph("swept"))).graph
        await share(node, graph, "ends", ttl_ms=MINUTE_MS)
        positions: list[int] = []

        async def sweep() -> None:
            await keeper.sweep()
            positions.append(node.ledger.position)

        monkeypatch.setattr(Ledger, "commit", commit_later)
        at = node.ledger.position
        clock.ahead_ms = 2 * MINUTE_MS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sweep)
            await began.wait()
            nursery.start_soon(sweep)
            await wait_all_tasks_blocked()
            assert positions == []
            goes_on.set()
        assert positions == [at + 1, at + 1]
        assert keeper.statistics().sweeps == 1


async def test_a_purge_that_failed_is_made_when_the_next_one_may_be_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    purge, tried = Admission.purge, list[int]()

    async def purge_on_a_full_disk(admission: Admission) -> int:
        tried.append(1)
        if len(tried) == 1:
            raise OutsideError("no room")
        return await purge(admission)

    async with open_at(tmp_path, Clock()) as node:
        keeper, watch = node.services.keeper, node.services.clock_watch
        steady_ms = watch.steady_ms() + 2 * EXPIRED_KEPT_MS
        monkeypatch.setattr(watch, "steady_ms", lambda: steady_ms)
        await keeper.confirm_clock()
        monkeypatch.setattr(Admission, "purge", purge_on_a_full_disk)
        with pytest.raises(OutsideError):
            await keeper.purge_now_and_then()
        await keeper.purge_now_and_then()
        await keeper.purge_now_and_then()
    assert len(tried) == 2, "tried again, and once it was made there is nothing to do"


async def test_an_erasure_that_the_disk_refuses_waits_for_room_and_ends_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TRIED_AGAIN_S", 0.001)
    purge, refusals, is_refused = Admission.purge, [OSError("no room")] * 2, trio.Event()

    class Refusing(ThreadBlocking):
        async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
            if fn == node.ledger.database._run_group and refusals:
                is_refused.set()
                raise refusals.pop()
            return await super().run(fn, *args)

    async def purge_on_a_full_disk(admission: Admission) -> int:
        monkeypatch.setattr(node.ledger.database, "_blocking", Refusing())
        return await purge(admission)

    async with open_at(tmp_path, Clock()) as node:
        graph = (await node.face.found(NewGraph("erased"))).graph
        await share(node, graph, "secret")
        monkeypatch.setattr(Admission, "purge", purge_on_a_full_disk)
        await node.face.retract(graph, "secret", reason="", successor=None, erase=True)
        await is_refused.wait()
        count = "SELECT count(*) FROM content"
        left = await node.ledger.database.write(lambda connection: connection.execute(count).fetchone()[0], owed=True)
    assert (left, refusals) == (0, [])


async def test_what_was_aside_for_a_day_while_the_node_was_stopped_goes_from_the_disk(tmp_path: Path) -> None:
    clock = Clock()
    async with open_at(tmp_path, clock) as node:
        graph = (await node.face.found(NewGraph("cut"))).graph
        await share(node, graph, "cut", ttl_ms=20 * DAY_MS)
        limits = LimitsChange(ttl_default_ms=DAY_MS, ttl_max_ms=DAY_MS)
        await node.face.change_members(graph, MemberChange(limits=limits))
        assert _standing(node) == ["cut"]
    clock.ahead_ms = 2 * DAY_MS
    async with open_at(tmp_path, clock) as node:
        await node.services.keeper.sweep()
        assert _standing(node) == []


async def test_what_found_room_while_the_node_was_stopped_is_in_the_set_on_the_disk_too(tmp_path: Path) -> None:
    clock = Clock()
    async with open_at(tmp_path, clock) as node:
        graph = (await node.face.found(NewGraph("crowded"))).graph
        await share(node, graph, "ends", ttl_ms=MINUTE_MS)
        await share(node, graph, "waits", ttl_ms=DAY_MS)
        await node.face.change_members(graph, MemberChange(limits=LimitsChange(live_items=1)))
        assert _standing(node) == ["in", "over"]
    clock.ahead_ms = 2 * MINUTE_MS
    async with open_at(tmp_path, clock) as node:
        await node.services.keeper.sweep()
        assert _standing(node) == ["expired", "in"]


def _standing(node: Node) -> list[str]:
    """Where the shares stand on the disk."""
    sql = "SELECT place FROM item WHERE kind = ? ORDER BY place"
    return node.ledger.database.read(lambda it: [place for (place,) in it.execute(sql, (int(Kind.SHARE),))])
