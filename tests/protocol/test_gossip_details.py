"""Gossip to the last detail: what is counted, who is woken, and what an id changes that comes again."""

from __future__ import annotations

from math import inf

import pytest
from p2pmem_protocol import gossip as module
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.frames import LIST_MEMBERS_MAX, ListChange
from p2pmem_protocol.gossip import Compare, Gossip, GossipLimits, Reconcile, Wake, member_hash
from p2pmem_protocol.outbox import OutboxLimits, Outgoing

from tests.protocol.test_gossip import GRAPH, ITEM, OTHER_GRAPH, SHORT, SIZE, Bench, item


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_everything_is_counted_each_time() -> None:
    bench = Bench(Gossip("me", GossipLimits(outbox=OutboxLimits(queued_ids=2))))
    bench.join("a", "b")
    bench.lists("a", "b")
    bench.lists("b", "a")
    for number in (0, 1):
        bench.gossip.published(GRAPH, item(number), SIZE, bench.now_ms)
    bench.flush()
    for number in (2, 3):
        bench.gossip.refused("a", GRAPH, item(number), Reason.NOT_LISTED, bench.now_ms)
    for number in (4, 5, 6, 7):
        bench.admit(None, item(number))
    bench.hears("b", asked=(item(4)[:8], item(5)[:8]))
    bench.hears("a", announced=(item(8)[:8], item(9)[:8]))
    counted = bench.gossip.statistics()
    assert (counted.published, counted.pushed, counted.refused, counted.admitted) == (2, 4, 2, 4)
    assert (counted.announced, counted.flagged, counted.given, counted.asked) == (4, 4, 2, 2)
    assert (counted.remembered, counted.promises, counted.asking, counted.given_up) == (6, 0, 2, 0)
    bench.flush()
    for _ in range(6):
        bench.now_ms += 1_000
        bench.gossip.tick(bench.now_ms)
    counted = bench.gossip.statistics()
    assert (counted.given_up, counted.asking, counted.asked) == (2, 0, 12)


def test_who_has_something_to_be_written_is_woken(bench: Bench) -> None:
    assert set(bench.gossip.peer_joined("a", [GRAPH], bench.now_ms)) == {Wake("a")}
    assert set(bench.gossip.peer_joined("b", [GRAPH], bench.now_ms)) == {Wake("a"), Wake("b")}
    bench.seqs |= {"a": 0, "b": 0}
    bench.flush()
    assert set(bench.gossip.published(GRAPH, ITEM, SIZE, bench.now_ms)) == {Wake("a"), Wake("b")}
    assert set(bench.hears("a", announced=(item(1)[:8],))) == {Wake("a")}
    assert set(bench.hears("b", announced=(item(1)[:8],))) == {Wake("b")}
    assert set(bench.gossip.peer_left("a", bench.now_ms)) == {Wake("b")}
    assert bench.said("b").asked == (item(1)[:8],)


def test_what_is_to_be_said_has_a_time(bench: Bench) -> None:
    bench.join("a", graphs=())
    assert bench.gossip.due_ms("a") == inf
    bench.gossip.graph_shared("a", GRAPH, bench.now_ms)
    assert bench.gossip.due_ms("a") == bench.now_ms + 100
    bench.gossip.graph_shared("stranger", GRAPH, bench.now_ms)
    assert bench.gossip.due_ms("stranger") == inf


def test_how_many_members_a_peer_tells_of_is_known(bench: Bench) -> None:
    bench.join("a")
    assert bench.gossip.list_length("a", GRAPH) == 0
    bench.lists("a", "b", "c")
    assert bench.gossip.list_length("a", GRAPH) == 3
    assert bench.gossip.list_length("a", OTHER_GRAPH) == 0
    assert bench.gossip.list_length("stranger", GRAPH) == 0
    assert bench.gossip.outbox_statistics("stranger") is None


def test_who_shares_a_graph_no_more_is_told_nothing_of_it_that_was_queued(bench: Bench) -> None:
    bench.join("a", graphs=(GRAPH, OTHER_GRAPH))
    for peer in ("b", "c"):
        bench.gossip.peer_joined(peer, [GRAPH, OTHER_GRAPH], bench.now_ms)
    bench.gossip.graph_unshared("a", GRAPH, bench.now_ms)
    assert {change.graph for change in bench.said("a").lists} == {OTHER_GRAPH}


def test_so_many_changes_of_lists_are_queued_and_then_the_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUEUED_LISTS_MAX", 3)
    bench = Bench()
    bench.join("a")
    for number in range(3):
        bench.gossip.peer_joined(f"b{number}", [GRAPH], bench.now_ms)
    bench.gossip.peer_joined("c", [GRAPH], bench.now_ms)
    assert bench.gossip.due_ms("a") == bench.now_ms + 100
    (change,) = bench.said("a").lists
    assert change.is_whole
    assert set(change.added) == {member_hash(GRAPH, peer) for peer in ("a", "b0", "b1", "b2", "c")}


def test_a_list_may_be_as_long_as_can_be_told_and_no_longer(bench: Bench) -> None:
    bench.join("a")
    whole = tuple(number.to_bytes(8, "big") for number in range(LIST_MEMBERS_MAX))
    bench.hears("a", lists=(ListChange(GRAPH, is_whole=True, added=whole),))
    assert bench.gossip.list_length("a", GRAPH) == LIST_MEMBERS_MAX
    with pytest.raises(RefusedError):
        bench.hears("a", lists=(ListChange(GRAPH, added=(b"\xff" * 8,)),))


def test_a_whole_list_that_also_takes_back_drops_both(bench: Bench) -> None:
    bench.join("giver", "other", "b")
    bench.lists("b", "giver", "other")
    bench.admit("giver", item(1))
    bench.admit("other", item(2))
    assert bench.said("b").announced == ()
    whole = (member_hash(GRAPH, "me"),)
    bench.hears("b", lists=(ListChange(GRAPH, is_whole=True, added=whole, removed=(member_hash(GRAPH, "giver"),)),))
    assert set(bench.said("b").announced) == {item(1)[:8], item(2)[:8]}


# Ids that come again


def test_a_duplicate_leaves_what_is_known_and_who_brought_it_is_not_told(bench: Bench) -> None:
    bench.join("a", "b", "c")
    for peer, other in (("a", "b"), ("b", "a"), ("c", "a")):
        bench.lists(peer, other)
    bench.admit(None)
    assert bench.gossip.refused("b", GRAPH, ITEM, Reason.DUPLICATE, bench.now_ms) == []
    assert bench.said("b").announced == ()
    assert bench.said("c").announced == (SHORT,)
    bench.hears("a", asked=(SHORT,))
    assert bench.said("a").envelopes == (ITEM,)
    assert bench.gossip.statistics().remembered == 1


def test_a_duplicate_that_gossip_does_not_know_is_asked_for_no_more(bench: Bench) -> None:
    bench.join("a", "b")
    bench.hears("a", announced=(SHORT,))
    bench.gossip.refused("b", GRAPH, ITEM, Reason.DUPLICATE, bench.now_ms)
    assert bench.said("a").asked == ()
    assert bench.gossip.statistics().asking == 0


def test_what_we_publish_or_a_large_round_brings_is_asked_of_nobody() -> None:
    for how in ("published", "reconciled"):
        bench = Bench()
        bench.join("a")
        bench.hears("a", announced=(SHORT,))
        if how == "published":
            bench.gossip.published(GRAPH, ITEM, SIZE, bench.now_ms)
        else:
            batch = [(ITEM, SIZE), *((item(number), SIZE) for number in range(module.RECONCILED_AT_ONCE_MAX))]
            assert bench.gossip.reconciled(GRAPH, batch, bench.now_ms) == [Compare(GRAPH)]
            assert bench.gossip.reconciled(GRAPH, batch[1:-1], bench.now_ms) == []
            assert bench.gossip.statistics().admitted == len(batch)
        assert bench.said("a").asked == ()
        assert bench.gossip.statistics().asking == 0


def test_a_round_of_just_so_many_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECONCILED_AT_ONCE_MAX", 3)
    bench = Bench()
    bench.join("a", "b")
    bench.lists("a", "b")
    three = [(item(number), SIZE) for number in range(3)]
    assert Compare(GRAPH) not in bench.gossip.reconciled(GRAPH, three, bench.now_ms)
    assert len(bench.said("a").announced) == 3
    four = [(item(number), SIZE) for number in range(10, 14)]
    assert bench.gossip.reconciled(GRAPH, four, bench.now_ms) == [Compare(GRAPH)]
    assert bench.gossip.reconciled(GRAPH, [(item(99 + n), SIZE) for n in range(4)], bench.now_ms) == [Compare(GRAPH)]
    assert bench.gossip.statistics().admitted == 11


def test_what_is_arriving_from_a_peer_is_not_asked_of_others_and_a_stranger_brings_nothing(bench: Bench) -> None:
    bench.join("a", "b")
    bench.hears("a", announced=(SHORT,))
    bench.hears("b", announced=(SHORT,))
    bench.flush()
    bench.gossip.arriving("stranger", ITEM, bench.now_ms)
    bench.gossip.arriving("a", ITEM, bench.now_ms)
    bench.now_ms += 1_000
    bench.gossip.tick(bench.now_ms)
    assert bench.said("b").asked == ()
    assert bench.gossip.next_ms() > bench.now_ms
    bench.gossip.admitted(GRAPH, ITEM, SIZE, "a", bench.now_ms)


def test_nothing_is_promised_where_nobody_was_passed_over(bench: Bench) -> None:
    bench.join("giver", "b")
    bench.lists("b", "c")
    bench.admit("giver")
    assert bench.gossip.statistics().promises == 0
    assert bench.said("b").announced == (SHORT,)


# Limits


def test_rows_are_bounded_in_all_and_a_row_that_is_there_has_room_for_all() -> None:
    bench = Bench(Gossip("me", GossipLimits(asking=1)))
    bench.join("a", "b")
    bench.hears("a", announced=(SHORT,))
    assert Reconcile("b", None) not in bench.hears("b", announced=(SHORT,))
    assert Reconcile("b", None) in bench.hears("b", announced=(item(1)[:8],))
    bench.gossip.peer_left("a", bench.now_ms)
    assert bench.said("b").asked == (SHORT,)


def test_the_flag_names_the_graph_whatever_found_no_room() -> None:
    limits = GossipLimits(outbox=OutboxLimits(queued_envelopes=0, queued_ids=0))
    flagged = Outgoing(reconcile=(GRAPH,))
    bench = Bench(Gossip("me", limits))
    bench.join("giver", "b", "c")
    bench.lists("b", "c")
    bench.lists("c")
    bench.admit(None)
    assert (bench.said("b"), bench.said("c")) == (flagged, flagged)
    bench.lists("b", "giver")
    bench.admit("giver", item(2))
    assert bench.said("b") == Outgoing()
    bench.gossip.peer_left("giver", bench.now_ms)
    assert bench.said("b").reconcile == (GRAPH,)
    bench.admit("giver", item(3))
    assert bench.said("b").reconcile == (GRAPH,)
    assert bench.gossip.statistics().flagged == 7


def test_one_of_two_does_not_hold_up_the_other() -> None:
    bench = Bench(Gossip("me", GossipLimits(outbox=OutboxLimits(queued_envelopes=10))))
    bench.join("a", "b")
    for number in range(6):
        bench.gossip.published(GRAPH, item(number), SIZE, bench.now_ms)
    assert bench.gossip.is_pressed(GRAPH)
    bench.flush("a")
    assert not bench.gossip.is_pressed(GRAPH)


def test_what_is_asked_anew_has_a_time_and_wakes_who_is_asked(bench: Bench) -> None:
    bench.join("a", "b")
    for peer in ("a", "b"):
        bench.hears(peer, announced=(SHORT,))
    bench.flush()
    bench.now_ms += 1_000
    assert bench.gossip.tick(bench.now_ms) == [Wake("b")]
    bench.flush()
    bench.gossip.peer_left("b", bench.now_ms)
    assert bench.gossip.due_ms("a") <= bench.now_ms + 20
    assert bench.said("a").asked == (SHORT,)


def test_a_whole_list_that_adds_what_it_takes_back_ends_the_promise(bench: Bench) -> None:
    bench.join("giver", "b")
    bench.lists("b", "giver")
    bench.admit("giver")
    giver = member_hash(GRAPH, "giver")
    bench.hears("b", lists=(ListChange(GRAPH, is_whole=True, added=(giver,), removed=(giver,)),))
    assert bench.said("b").announced == (SHORT,)
