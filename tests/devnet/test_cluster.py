"""What a cluster promises to whoever tests with it."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from p2pmem_devnet.cluster import Cluster, NotSettledError, days, minutes
from p2pmem_devnet.cluster_node import NodeDownError
from p2pmem_devnet.virtual_time import virtual_clock
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.ledger.admission import Admission
from p2pmem.net.memory_alarms import Alarms


async def test_what_my_agents_need(cluster: Cluster) -> None:
    ada, bo, cy, *_ = cluster.nodes
    asset = await ada.share("ex:trial ex:lowers ex:ldl .", ttl=days(2))
    await cluster.settled()
    with cluster.partition([ada, bo], [cy]):
        await bo.endorse(asset)
    await cluster.settled()
    assert cy.trust(asset) is Trust.ENDORSED
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.settled()
    assert bo.trust(asset) is Trust.ENDORSED


@pytest.mark.cluster(n=2)
async def test_what_has_not_settled_is_a_table_with_reasons(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    cluster.skew(bo, minutes(20))
    await cluster.restart(bo)
    await bo.share("ex:from ex:the ex:future .")
    with pytest.raises(NotSettledError) as caught:
        await cluster.settled(within=minutes(3))
    text = str(caught.value)
    assert "ada" in text
    assert "share" in text
    assert "the clock of bo is +1200 s away" in text
    assert ada.sees(asset)


@pytest.mark.cluster(n=2)
async def test_a_node_that_is_down_answers_nothing(cluster: Cluster) -> None:
    _, bo = cluster.nodes
    await cluster.crash(bo)
    with pytest.raises(NodeDownError):
        await bo.share("ex:a ex:b ex:c .")


@pytest.mark.slow
@pytest.mark.cluster(n=50, quorum=3, audit=False)
async def test_fifty_nodes_are_ready_at_once_and_come_to_hold_the_same(cluster: Cluster) -> None:
    assert all(node.inside.ledger.graphs for node in cluster.nodes)
    assert trio.current_time() < 1, "nobody is told to come again later"
    asset = await cluster.nodes[7].share("ex:a ex:b ex:c .")
    await cluster.until_seen(asset)


@pytest.mark.cluster(n=2)
async def test_a_node_on_which_nothing_happens_does_not_search_its_disk_for_what_may_go(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo = cluster.nodes
    purges: list[Admission] = []
    purge = Admission.purge

    async def counted(self: Admission) -> int:
        purges.append(self)
        return await purge(self)

    def expired() -> int:
        sql = "SELECT count(*) FROM item WHERE place = 'expired'"
        return int(bo.inside.ledger.database.read(lambda connection: connection.execute(sql).fetchone()[0]))

    monkeypatch.setattr(Admission, "purge", counted)
    await ada.share("ex:a ex:b ex:c .", ttl=minutes(10))
    await cluster.advance(minutes=10.1)
    assert expired() == 1
    await cluster.advance(minutes=19)
    assert expired() == 0
    purges.clear()
    await cluster.advance(hours=3)
    assert len(purges) <= 2 * 3


def test_virtual_time_goes_as_under_the_clock_of_trio() -> None:
    async def nap(name: int, seen: list[tuple[float, int]]) -> None:
        for pause_s in (0.25, 3.5 + name, 86_400.0):
            await trio.sleep(pause_s)
            seen.append((trio.current_time(), name))
        with trio.move_on_after(7):
            await trio.sleep_forever()
        seen.append((trio.current_time(), name))

    async def main() -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []
        async with trio.open_nursery() as nursery:
            for name in range(3):
                nursery.start_soon(nap, name, seen)
            await trio.testing.wait_all_tasks_blocked()
            assert await trio.to_thread.run_sync(lambda: 7) == 7
        return sorted(seen)

    assert trio.run(main, clock=virtual_clock()) == trio.run(main, clock=MockClock(autojump_threshold=0))


def test_calls_at_a_time_come_under_virtual_time_as_under_the_clock_of_trio() -> None:
    async def main() -> list[tuple[str, float]]:
        alarms, heard = Alarms(), list[tuple[str, float]]()

        def ask(name: str, after_s: float) -> None:
            alarms.at(trio.current_time() + after_s, lambda: heard.append((name, trio.current_time())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarms.run)
            ask("late", 80_000)
            ask("first of two", 2)
            ask("second of two", 2)
            await trio.sleep(1)
            ask("sooner than all", 0.5)
            await trio.sleep(85_000)
            nursery.cancel_scope.cancel()
        return heard

    heard = trio.run(main, clock=virtual_clock())
    assert heard == [("sooner than all", 1.5), ("first of two", 2), ("second of two", 2), ("late", 80_000)]
    assert heard == trio.run(main, clock=MockClock(autojump_threshold=0))
