"""One machine among members that the test plays: each rule of gossip, each limit, each refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.frames import LIST_MEMBERS_MAX, Frame, ListChange
from p2pmem_protocol.gossip import Close, Command, Compare, Gossip, GossipLimits, Reconcile, Wake, member_hash
from p2pmem_protocol.outbox import OutboxLimits, Outgoing
from p2pmem_protocol.relays import MEMORY_MS, PROMISE_MS

GRAPH, OTHER_GRAPH = b"\x01" * 32, b"\x02" * 32
ITEM = b"\xaa" * 32
SHORT = ITEM[:8]
SIZE = 500


def item(number: int) -> bytes:
    return number.to_bytes(8, "big") + b"\xbb" * 24


@dataclass
class Bench:
    """A machine called "me", the time, and the members that the test plays."""

    gossip: Gossip = field(default_factory=lambda: Gossip("me"))
    now_ms: int = 1_000_000
    seqs: dict[str, int] = field(default_factory=dict)

    def join(self, *peers: str, graphs: tuple[bytes, ...] = (GRAPH,)) -> None:
        for peer in peers:
            self.gossip.peer_joined(peer, graphs, self.now_ms)
            self.seqs[peer] = 0
        self.flush(*peers)

    def lists(self, peer: str, *others: str, graph: bytes = GRAPH) -> list[Command]:
        """`peer` tells its list, whole."""
        added = tuple(member_hash(graph, it) for it in ("me", *others))
        return self.hears(peer, lists=(ListChange(graph, is_whole=True, added=added),))

    def hears(self, peer: str, **fields: object) -> list[Command]:
        self.seqs[peer] += 1
        frame = Frame(seq=self.seqs[peer], **fields)  # type: ignore[arg-type]
        return self.gossip.frame_received(peer, frame, is_last=False, now_ms=self.now_ms)

    def said(self, peer: str) -> Outgoing:
        """All that `peer` is sent within a second, acknowledged."""
        envelopes: tuple[bytes, ...] = ()
        announced: tuple[bytes, ...] = ()
        asked: tuple[bytes, ...] = ()
        lists: tuple[ListChange, ...] = ()
        reconcile: tuple[bytes, ...] = ()
        while (one := self.gossip.take(peer, self.now_ms + 1_000)) is not None:
            self.gossip.frame_received(peer, Frame(ack=one.seq), is_last=False, now_ms=self.now_ms)
            envelopes += one.envelopes
            announced += one.announced
            asked += one.asked
            lists += one.lists
            reconcile += one.reconcile
        return Outgoing(envelopes=envelopes, announced=announced, asked=asked, lists=lists, reconcile=reconcile)

    def flush(self, *peers: str) -> None:
        for peer in peers or tuple(self.seqs):
            self.said(peer)

    def admit(self, giver: str | None, item_id: bytes = ITEM) -> list[Command]:
        return self.gossip.admitted(GRAPH, item_id, SIZE, giver, self.now_ms)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Lists


def test_a_new_member_gets_the_whole_list_and_the_others_the_change(bench: Bench) -> None:
    bench.join("a")
    bench.gossip.peer_joined("b", [GRAPH], bench.now_ms)
    assert bench.said("a").lists == (ListChange(GRAPH, added=(member_hash(GRAPH, "b"),)),)
    whole = (member_hash(GRAPH, "a"), member_hash(GRAPH, "b"))
    assert bench.said("b").lists == (ListChange(GRAPH, is_whole=True, added=whole),)
    bench.gossip.peer_left("b", bench.now_ms)
    assert bench.said("a").lists == (ListChange(GRAPH, removed=(member_hash(GRAPH, "b"),)),)
    assert bench.gossip.members(GRAPH) == ("a",)


def test_lists_of_one_graph_say_nothing_of_another(bench: Bench) -> None:
    bench.join("a", graphs=(OTHER_GRAPH,))
    bench.join("b")
    assert bench.said("a").lists == ()
    assert member_hash(GRAPH, "b") != member_hash(OTHER_GRAPH, "b")


def test_a_peer_may_come_to_share_a_graph_and_cease_to(bench: Bench) -> None:
    bench.join("a", graphs=())
    assert bench.gossip.graph_unshared("a", GRAPH, bench.now_ms) == []
    bench.gossip.graph_shared("a", GRAPH, bench.now_ms)
    assert bench.gossip.graph_shared("a", GRAPH, bench.now_ms) == []
    bench.gossip.published(GRAPH, ITEM, SIZE, bench.now_ms)
    assert bench.said("a").envelopes == (ITEM,)
    bench.gossip.graph_unshared("a", GRAPH, bench.now_ms)
    bench.gossip.published(GRAPH, item(2), SIZE, bench.now_ms)
    bench.hears("a", asked=(SHORT,))
    assert bench.said("a") == Outgoing(), "not even what it had before"


def test_a_peer_joins_once(bench: Bench) -> None:
    bench.join("a")
    with pytest.raises(MisuseError):
        bench.gossip.peer_joined("a", [GRAPH], bench.now_ms)
    assert bench.gossip.peer_left("stranger", bench.now_ms) == []


def test_a_member_that_reads_no_lists_gets_them_whole_when_it_does() -> None:
    bench = Bench()
    bench.join("a")
    for number in range(400):
        bench.gossip.peer_joined(f"b{number}", [GRAPH], bench.now_ms)
        bench.gossip.peer_left(f"b{number}", bench.now_ms)
    told = bench.said("a").lists
    assert len(told) < 260, "what is queued is bounded"
    heard: set[bytes] = set()
    for change in told:
        heard = (set() if change.is_whole else heard) - set(change.removed) | set(change.added)
    assert heard == {member_hash(GRAPH, "a")}, "and ends with what is so"


# Push and announce


def test_our_own_envelope_goes_whole_to_every_member_of_its_graph(bench: Bench) -> None:
    bench.join("a", "b")
    bench.join("c", graphs=(OTHER_GRAPH,))
    bench.lists("a", "b")
    commands = bench.gossip.published(GRAPH, ITEM, SIZE, bench.now_ms)
    assert commands == [Wake("a"), Wake("b")]
    assert bench.said("a").envelopes == bench.said("b").envelopes == (ITEM,)
    assert bench.said("c") == Outgoing()


def test_what_came_from_a_member_is_announced_to_those_who_do_not_hear_him(bench: Bench) -> None:
    bench.join("giver", "hears", "deaf", "silent", "leaf")
    bench.lists("hears", "giver", "x")
    bench.lists("deaf", "x")
    bench.lists("leaf")
    bench.admit("giver")
    assert bench.said("giver") == Outgoing()
    assert bench.said("hears") == Outgoing()
    assert bench.said("deaf").announced == (SHORT,)
    assert bench.said("silent").announced == (SHORT,), "an unknown list counts as empty"
    assert bench.said("leaf").envelopes == (ITEM,), "there is nobody else to give it"


def test_the_word_of_the_giver_about_himself_is_not_asked(bench: Bench) -> None:
    bench.join("liar", "deaf")
    bench.lists("liar", "deaf", "everybody")
    bench.lists("deaf", "x")
    bench.admit("liar")
    assert bench.said("deaf").announced == (SHORT,)


def test_whoever_announced_it_is_not_told_of_it(bench: Bench) -> None:
    bench.join("giver", "b", "c")
    bench.hears("b", announced=(SHORT,))
    assert bench.said("b").asked == (SHORT,)
    bench.admit("giver")
    bench.hears("c", announced=(SHORT,))
    assert bench.said("b").announced == ()
    assert bench.said("c") == Outgoing(), "not even of what was queued"


def test_a_question_that_has_not_gone_is_withdrawn_when_the_answer_comes_otherwise(bench: Bench) -> None:
    bench.join("giver", "b")
    bench.hears("b", announced=(SHORT,))
    bench.admit("giver")
    assert bench.said("b").asked == ()


def test_an_id_is_relayed_once(bench: Bench) -> None:
    bench.join("giver", "b")
    bench.admit("giver")
    bench.flush()
    bench.admit("giver")
    bench.admit(None)
    bench.gossip.published(GRAPH, item(1), SIZE, bench.now_ms)
    bench.flush()
    bench.admit("giver", item(1))
    assert bench.said("b") == Outgoing()
    assert bench.gossip.statistics().admitted == 1


def test_what_reconciliation_brings_is_announced_even_to_those_who_hear_the_other(bench: Bench) -> None:
    bench.join("other", "b")
    bench.lists("b", "other")
    bench.gossip.reconciled(GRAPH, [(ITEM, SIZE)], bench.now_ms)
    assert bench.said("b").announced == (SHORT,)


def test_more_than_a_thousand_at_once_are_not_announced_but_compared(bench: Bench) -> None:
    bench.join("a")
    many = [(item(number), SIZE) for number in range(1_001)]
    assert bench.gossip.reconciled(GRAPH, many, bench.now_ms) == [Compare(GRAPH)]
    assert bench.said("a").announced == ()
    bench.hears("a", asked=(item(7)[:8],))
    assert bench.said("a").envelopes == (item(7),), "they are given to who asks"


# Ask


def test_an_asker_gets_what_we_hold_in_a_graph_we_share_and_no_word_of_anything_else(bench: Bench) -> None:
    bench.join("a")
    bench.join("outsider", graphs=(OTHER_GRAPH,))
    bench.gossip.published(GRAPH, ITEM, SIZE, bench.now_ms)
    bench.flush()
    for peer in ("a", "outsider"):
        bench.hears(peer, asked=(SHORT, b"whatever"))
    assert bench.said("a").envelopes == (ITEM,)
    assert bench.said("outsider") == Outgoing()


def test_the_next_announcer_is_asked_after_a_second_and_reconciled_with_after_six(bench: Bench) -> None:
    bench.join("a", "b")
    bench.hears("a", announced=(SHORT,))
    bench.hears("b", announced=(SHORT,))
    asked = [(bench.said("a").asked, bench.said("b").asked)]
    for _ in range(5):
        bench.now_ms += 1_000
        assert bench.gossip.next_ms() == bench.now_ms
        bench.gossip.tick(bench.now_ms)
        asked.append((bench.said("a").asked, bench.said("b").asked))
    assert asked == [((SHORT,), ()), ((), (SHORT,))] * 3
    bench.now_ms += 1_000
    assert bench.gossip.tick(bench.now_ms) == [Reconcile("a", None)]


def test_what_was_asked_of_a_member_that_leaves_is_asked_of_the_next(bench: Bench) -> None:
    bench.join("a", "b")
    bench.hears("a", announced=(SHORT,))
    bench.hears("b", announced=(SHORT,))
    bench.flush()
    bench.gossip.peer_left("a", bench.now_ms)
    assert bench.said("b").asked == (SHORT,)


# Promises


def test_when_the_giver_leaves_those_passed_over_for_him_are_told(bench: Bench) -> None:
    bench.join("giver", "b", "c")
    bench.lists("b", "giver", "c")
    bench.lists("c", "giver", "b")
    bench.admit("giver")
    bench.hears("c", announced=(SHORT,))
    bench.flush()
    bench.now_ms += PROMISE_MS - 1
    bench.gossip.peer_left("giver", bench.now_ms)
    assert bench.said("b").announced == (SHORT,)
    assert bench.said("c").announced == (), "who has it is owed nothing"


def test_when_a_list_drops_the_giver_its_sender_is_told(bench: Bench) -> None:
    for whole in (True, False):
        bench = Bench()
        bench.join("giver", "b")
        bench.lists("b", "giver")
        bench.admit("giver")
        if whole:
            bench.lists("b", "x")
        else:
            bench.hears("b", lists=(ListChange(GRAPH, removed=(member_hash(GRAPH, "giver"),)),))
        assert bench.said("b").announced == (SHORT,)
        bench.lists("b", "giver")
        bench.lists("b", "x")
        assert bench.said("b").announced == (), "once"


def test_promises_last_a_minute(bench: Bench) -> None:
    bench.join("giver", "b")
    bench.lists("b", "giver", "x")
    bench.admit("giver")
    bench.now_ms += PROMISE_MS
    bench.gossip.peer_left("giver", bench.now_ms)
    assert bench.said("b").announced == ()
    assert bench.gossip.statistics().promises == 0


def test_a_giver_that_left_before_admission_has_promised_nothing(bench: Bench) -> None:
    bench.join("giver", "b")
    bench.lists("b", "giver", "x")
    bench.gossip.peer_left("giver", bench.now_ms)
    bench.admit("giver")
    assert bench.said("b").announced == (SHORT,)


# Refusals


def test_bad_bytes_do_not_hide_the_envelope_that_has_the_same_id(bench: Bench) -> None:
    bench.join("forger", "honest")
    bench.hears("forger", announced=(SHORT,))
    bench.hears("honest", announced=(SHORT,))
    bench.flush()
    bench.gossip.arriving("forger", ITEM, bench.now_ms)
    bench.gossip.refused("forger", GRAPH, ITEM, Reason.BAD_SIGNATURE, bench.now_ms)
    assert bench.said("honest").asked == (SHORT,)
    bench.admit("honest")
    assert bench.gossip.statistics().admitted == 1


@pytest.mark.parametrize("reason", [it for it in Reason if it >= 100])
def test_a_refusal_is_remembered_unless_it_may_end_any_moment(bench: Bench, reason: Reason) -> None:
    bench.join("a", "b")
    bench.hears("a", announced=(SHORT,))
    bench.flush()
    bench.gossip.refused("a", GRAPH, ITEM, reason, bench.now_ms)
    bench.hears("b", announced=(SHORT,))
    passing = {
        Reason.UNKNOWN_GRAPH, Reason.NO_HEAD, Reason.NOT_LISTED, Reason.FROM_THE_FUTURE, Reason.SUBJECT_NOT_HELD,
        Reason.WRONG_QUORUM, Reason.PARENT_NOT_HELD, Reason.CLOCK_APART, Reason.PARTIAL, Reason.NOT_DECIDABLE,
        Reason.TOO_MANY,
    }  # fmt: skip
    assert bench.said("b").asked == ((SHORT,) if reason in passing else ())
    bench.hears("b", asked=(SHORT,))
    assert bench.said("b").envelopes == (), "what was refused is not given on"


def test_refusals_end_with_the_head_or_after_ten_minutes_and_admission_overrides_them(bench: Bench) -> None:
    bench.join("a", "b")
    for number, how in enumerate(("head", "time", "round")):
        bench.gossip.refused("a", GRAPH, item(number), Reason.OVER_QUOTA, bench.now_ms)
        if how == "head":
            bench.gossip.head_changed(OTHER_GRAPH)
            assert bench.gossip.statistics().remembered == 1
            bench.gossip.head_changed(GRAPH)
        elif how == "time":
            bench.now_ms += MEMORY_MS
            bench.gossip.tick(bench.now_ms)
        else:
            bench.admit(None, item(number))
            assert bench.said("a").announced == (item(number)[:8],)
            continue
        bench.hears("a", announced=(item(number)[:8],))
        assert item(number)[:8] in bench.said("a").asked


# Limits


def test_a_full_outbox_gets_the_id_and_a_fuller_one_the_flag() -> None:
    limits = GossipLimits(outbox=OutboxLimits(queued_envelopes=1, queued_ids=1))
    bench = Bench(Gossip("me", limits))
    bench.join("a")
    for number in range(3):
        bench.gossip.published(GRAPH, item(number), SIZE, bench.now_ms)
    said = bench.said("a")
    assert said == Outgoing(envelopes=(item(0),), announced=(item(1)[:8],), reconcile=(GRAPH,))
    assert bench.gossip.statistics().flagged == 1


def test_the_flag_asks_for_a_round_in_graphs_that_are_shared(bench: Bench) -> None:
    bench.join("a")
    assert Reconcile("a", GRAPH) in bench.hears("a", reconcile=(GRAPH, OTHER_GRAPH))
    assert Reconcile("a", OTHER_GRAPH) not in bench.hears("a", reconcile=(GRAPH, OTHER_GRAPH))


def test_a_flood_of_announcements_ends_in_one_request_to_reconcile() -> None:
    bench = Bench(Gossip("me", GossipLimits(asking_of_one=10)))
    bench.join("liar", "honest")
    flood = bench.hears("liar", announced=tuple(item(number)[:8] for number in range(100)))
    assert flood.count(Reconcile("liar", None)) == 1
    assert bench.gossip.statistics().asking == 10
    bench.hears("honest", announced=(SHORT,))
    assert bench.said("honest").asked == (SHORT,)


def test_memory_and_promises_are_bounded() -> None:
    bench = Bench(Gossip("me", GossipLimits(memory=20, promises=10)))
    bench.join("giver", "b")
    bench.lists("b", "giver")
    for number in range(100):
        bench.admit("giver", item(number))
    assert bench.gossip.statistics().remembered == 20
    assert bench.gossip.statistics().promises == 10
    bench.admit("giver", item(3))
    bench.gossip.peer_left("giver", bench.now_ms)
    assert len(bench.said("b").announced) == 10


def test_who_acknowledges_nothing_is_closed_once_and_written_to_no_more(bench: Bench) -> None:
    bench.join("a")
    bench.now_ms += 2_000
    assert bench.gossip.tick(bench.now_ms) == [], "what was acknowledged is waited for no more"
    bench.gossip.published(GRAPH, ITEM, SIZE, bench.now_ms)
    assert bench.gossip.take("a", bench.now_ms + 5) is not None
    bench.now_ms += 10_005
    assert bench.gossip.next_ms() == bench.now_ms
    assert bench.gossip.tick(bench.now_ms) == [Close("a")]
    assert bench.gossip.tick(bench.now_ms + 1) == []
    bench.gossip.published(GRAPH, item(1), SIZE, bench.now_ms)
    assert bench.gossip.take("a", bench.now_ms + 1_000) is None
    bench.gossip.peer_left("a", bench.now_ms)
    assert bench.gossip.take("a", bench.now_ms) is None


def test_pressure_is_when_most_members_cannot_keep_up() -> None:
    bench = Bench(Gossip("me", GossipLimits(outbox=OutboxLimits(queued_envelopes=10))))
    bench.join("a", "b", "c")
    assert not bench.gossip.is_pressed(GRAPH)
    for number in range(6):
        bench.gossip.published(GRAPH, item(number), SIZE, bench.now_ms)
    assert bench.gossip.is_pressed(GRAPH)
    bench.flush("a", "b")
    assert not bench.gossip.is_pressed(GRAPH), "one of three does not hold up the rest"
    assert not bench.gossip.is_pressed(OTHER_GRAPH)


@pytest.mark.parametrize("behind", [Frame(ack=1), None], ids=["an acknowledgement alone", "a message of no known kind"])
def test_a_frame_is_acknowledged_though_something_that_counts_for_nothing_is_read_behind_it(
    bench: Bench, behind: Frame | None
) -> None:
    def read(*, is_last: bool) -> list[Command]:
        if behind is None:
            return bench.gossip.frame_skipped("a", is_last=is_last)
        return bench.gossip.frame_received("a", behind, is_last=is_last, now_ms=bench.now_ms)

    bench.join("a")
    bench.hears("a")
    read(is_last=False)
    assert bench.gossip.due_ms("a") == inf, "more waits to be read"
    assert Wake("a") in read(is_last=True)
    assert bench.gossip.take("a", bench.now_ms) == Outgoing(ack=1)
    assert bench.gossip.take("a", bench.now_ms) is None


@pytest.mark.parametrize(
    "frame",
    [
        Frame(seq=2),
        Frame(seq=0, announced=(SHORT,)),
        Frame(seq=1, ack=99),
        Frame(
            seq=1,
            lists=(
                ListChange(GRAPH, added=tuple(n.to_bytes(8, "big") for n in range(LIST_MEMBERS_MAX))),
                ListChange(GRAPH, added=(SHORT,)),
            ),
        ),
    ],
)
def test_frames_that_no_member_sends_are_refused(bench: Bench, frame: Frame) -> None:
    bench.join("a")
    with pytest.raises(RefusedError) as refused:
        bench.gossip.frame_received("a", frame, is_last=True, now_ms=bench.now_ms)
    assert refused.value.reason is Reason.BAD_FRAME


shorts = st.lists(st.integers(0, 30).map(lambda n: item(n)[:8]), max_size=40).map(tuple)
hostile = st.builds(
    Frame,
    seq=st.integers(0, 3),
    ack=st.integers(0, 3),
    announced=shorts,
    asked=shorts,
    lists=st.lists(
        st.builds(ListChange, st.sampled_from([GRAPH, OTHER_GRAPH]), st.booleans(), shorts, shorts), max_size=3
    ).map(tuple),
    reconcile=st.lists(st.sampled_from([GRAPH, OTHER_GRAPH]), max_size=2).map(tuple),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("frame"), st.sampled_from("abc"), hostile),
        st.tuples(st.just("join"), st.sampled_from("abc"), st.sampled_from([(), (GRAPH,), (GRAPH, OTHER_GRAPH)])),
        st.tuples(st.just("leave"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("admit"), st.sampled_from(["a", "b", "c", None]), st.integers(0, 30)),
        st.tuples(st.just("publish"), st.none(), st.integers(0, 30)),
        st.tuples(st.just("refuse"), st.sampled_from("abc"), st.sampled_from(list(Reason))),
        st.tuples(st.just("wait"), st.none(), st.sampled_from([1, 200, 1_500, 61_000])),
        st.tuples(st.just("unshare"), st.sampled_from("abc"), st.sampled_from([GRAPH, OTHER_GRAPH])),
        st.tuples(st.just("share"), st.sampled_from("abc"), st.sampled_from([GRAPH, OTHER_GRAPH])),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_happens_in_whatever_order_tables_stay_bounded_and_only_refusals_leave(
    history: list[tuple[str, str | None, object]],
) -> None:
    limits = GossipLimits(memory=8, promises=4, asking=10, asking_of_one=5, outbox=OutboxLimits(queued_envelopes=3))
    gossip, now_ms, connected = Gossip("me", limits), 0, set()
    for step in history:
        match step:
            case ("frame", str(peer), Frame() as frame):
                try:
                    gossip.frame_received(peer, frame, is_last=True, now_ms=now_ms)
                except RefusedError:
                    gossip.peer_left(peer, now_ms)
                    connected.discard(peer)
            case ("join", str(peer), tuple(graphs)) if peer not in connected:
                gossip.peer_joined(peer, graphs, now_ms)
                connected.add(peer)
            case ("leave", str(peer), None):
                gossip.peer_left(peer, now_ms)
                connected.discard(peer)
            case ("admit", giver, int(number)):
                gossip.admitted(GRAPH, item(number), SIZE, giver, now_ms)
            case ("publish", None, int(number)):
                gossip.published(GRAPH, item(number), SIZE, now_ms)
            case ("refuse", str(peer), Reason() as reason):
                gossip.arriving(peer, item(5), now_ms)
                gossip.refused(peer, GRAPH, item(5), reason, now_ms)
            case ("wait", None, int(pause)):
                now_ms += pause
                gossip.tick(now_ms)
                for peer in connected:
                    while gossip.take(peer, now_ms) is not None:
                        pass
            case ("unshare", str(peer), bytes(graph)):
                gossip.graph_unshared(peer, graph, now_ms)
            case ("share", str(peer), bytes(graph)):
                gossip.graph_shared(peer, graph, now_ms)
        full = gossip.statistics()
        assert full.remembered <= 8
        assert full.promises <= 4
        assert full.asking <= 10
        assert set(gossip.members(GRAPH)) <= connected
