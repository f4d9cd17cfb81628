"""When who is compared with: soon after something new, and less and less often where nothing happens."""

from __future__ import annotations

from collections import Counter

import trio
from p2pmem_devnet.cluster import Cluster
from trio.testing import MockClock

from p2pmem.exchange.exchange import AFTER_NEWS_S
from p2pmem.exchange.pace import (
    ASKED_A_MINUTE,
    PERIOD_S,
    QUIET_PERIOD_S_MAX,
    RING_MS,
    SPREAD_MAX,
    Comparer,
    around,
    period_s,
)
from p2pmem.net.seam import PeerId


def in_virtual_time(main: object) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def test_few_members_compare_every_minute_and_many_in_turn() -> None:
    assert [period_s(members) for members in range(1, ASKED_A_MINUTE + 1)] == [PERIOD_S] * ASKED_A_MINUTE
    assert period_s(19) == 19 / ASKED_A_MINUTE * PERIOD_S
    assert period_s(10_000) == QUIET_PERIOD_S_MAX


def test_a_pair_that_is_equal_again_and_again_waits_twice_as_long_until_there_is_news() -> None:
    async def main() -> None:
        comparer, waits = Comparer(), []
        for _ in range(6):
            comparer.rest(60, 1.0, equal=True)
            waits.append(comparer.due_s - trio.current_time())
        assert waits == [60, 120, 240, 480, 900, 900]
        comparer.news(60, lambda: 1.0)
        assert comparer.sooner.is_set()
        assert comparer.due_s == trio.current_time() + 240
        comparer.rest(60, 1.0, equal=True)
        comparer.news(60, lambda: 1.0)
        assert comparer.due_s == trio.current_time() + 240, "where something is said all the time it is no longer"
        comparer.differed(60, lambda: 1.0)
        assert comparer.due_s == trio.current_time() + 60, "gossip has lost something"
        comparer.rest(60, 1.0, equal=False)
        assert comparer.due_s == trio.current_time() + 60

    in_virtual_time(main)


def test_what_cannot_be_mended_now_is_tried_less_and_less_often_until_there_is_news() -> None:
    async def main() -> None:
        comparer = Comparer()
        assert [comparer.pause_s(progress=False) for _ in range(6)] == [5, 10, 20, 40, 60, 60]
        comparer.news(60, lambda: 1.0)
        assert comparer.pause_s(progress=False) == 5
        assert comparer.pause_s(progress=True) == 1
        assert comparer.pause_s(progress=False) == 5

    in_virtual_time(main)


def test_around_the_ring_everybody_is_the_first_of_exactly_one() -> None:
    peers = [PeerId(name) for name in ("c", "a", "e", "b", "d")]
    for now_ms in range(0, 10 * RING_MS, RING_MS):
        ring = [PeerId("c"), *around(PeerId("c"), {*peers} - {"c"}, now_ms)]
        assert sorted(ring) == sorted(peers)
        firsts = [next(around(me, {*peers} - {me}, now_ms + RING_MS - 1)) for me in ring]
        assert firsts == [*ring[1:], ring[0]]


def test_nobody_stands_before_another_in_the_ring_for_long() -> None:
    peers = {PeerId(str(number)) for number in range(25)}
    me, turns = PeerId("7"), range(0, 100 * RING_MS, RING_MS)
    first = {(peer, at): next(around(peer, peers - {peer}, at)) for peer in peers for at in turns}
    before = Counter(peer for (peer, _), it in first.items() if it == me)
    assert before.total() == len(turns)
    assert max(before.values()) < 15
    assert len(before) > 20


def test_news_does_not_put_off_what_is_due_soon() -> None:
    async def main() -> None:
        comparer = Comparer()
        comparer.rest(60, 1.0, equal=True)
        due_s = comparer.due_s
        await trio.sleep(30)
        comparer.news(60, lambda: 1.0)
        assert comparer.due_s == due_s

    in_virtual_time(main)


def test_after_something_new_each_asks_one_and_everybody_is_asked() -> None:
    async def main() -> None:
        async with Cluster(12, seed=4, quorum=1) as cluster:
            await cluster.settled()
            await cluster.advance(hours=1)
            began_ms = cluster.nodes[0].clock.now_ms()
            await cluster.nodes[0].share("ex:a ex:b ex:c .")
            await cluster.advance(seconds=AFTER_NEWS_S * SPREAD_MAX + 1)
            found = [
                (node.inside.network.peer_id, peer)
                for node in cluster.nodes
                for (peer, _), it in node.inside.exchange.last_comparisons().items()
                if it.at_ms > began_ms
            ]
            pairs = {frozenset(pair) for pair in found}
            assert len(pairs) < 12 + 6, "twelve after the news, and few because it is time"
            first, *others = (node.inside.network.peer_id for node in cluster.nodes)
            ring = [first, *around(first, others, cluster.nodes[0].clock.now_ms())]
            assert all(frozenset((ring[at - 1], ring[at])) in pairs for at in range(12))

    in_virtual_time(main)


def test_among_many_each_compares_with_a_few_a_minute_and_with_everybody_in_turn() -> None:
    async def main() -> None:
        async with Cluster(12, seed=4, quorum=1) as cluster:
            ada = cluster.nodes[0]
            await ada.share("ex:a ex:b ex:c .")
            await cluster.settled()
            await cluster.advance(minutes=2)
            began_ms = ada.clock.now_ms()
            await cluster.advance(minutes=1)
            latest = [it.at_ms for it in ada.inside.exchange.last_comparisons().values()]
            assert len(latest) == 11
            assert sum(at_ms > began_ms for at_ms in latest) <= 2 * ASKED_A_MINUTE
            await cluster.advance(seconds=QUIET_PERIOD_S_MAX * SPREAD_MAX)
            assert all(it.at_ms > began_ms for it in ada.inside.exchange.last_comparisons().values())

    in_virtual_time(main)


def test_what_gossip_lost_at_one_of_many_is_found_by_any_other() -> None:
    """One member misses every frame of a minute; who has the thing is not the first that it compares with."""

    async def main() -> None:
        async with Cluster(12, seed=4, quorum=1) as cluster:
            ada, *_, last = cluster.nodes
            await cluster.advance(minutes=5)
            with cluster.partition([last], [node for node in cluster.nodes if node is not last]):
                asset = await ada.share("ex:a ex:b ex:c .")
                await cluster.advance(seconds=20)
            await cluster.advance(minutes=1)
            assert last.sees(asset)

    in_virtual_time(main)
