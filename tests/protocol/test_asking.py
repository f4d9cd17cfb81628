"""Each lacking envelope is asked of one member at a time, in turn, and not for ever."""

from __future__ import annotations

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from p2pmem_protocol.asking import ARRIVING_MS, ASK_AGAIN_MS, ASKS_MAX, Asking, GivenUp, Question

X, Y = b"xxxxxxxx", b"yyyyyyyy"


def test_the_first_announcer_is_asked_at_once_and_the_next_after_a_second() -> None:
    asking = Asking()
    assert asking.announced(X, "a", 0) == Question("a", X)
    assert asking.announced(X, "b", 10) is None
    assert asking.announced(X, "a", 20) is None
    assert asking.due(ASK_AGAIN_MS - 1) == []
    assert asking.due(ASK_AGAIN_MS) == [Question("b", X)]
    assert asking.due(2 * ASK_AGAIN_MS) == [Question("a", X)], "and then from the beginning"
    assert asking.settled(X) == ("a", "b")
    assert asking.due(99_000) == []


def test_after_six_questions_it_is_given_up() -> None:
    asking = Asking()
    asking.announced(X, "a", 0)
    asked = [asking.due(n * ASK_AGAIN_MS) for n in range(1, ASKS_MAX + 2)]
    assert asked == [[Question("a", X)]] * (ASKS_MAX - 1) + [[GivenUp("a", X)], []]
    assert len(asking) == 0
    assert asking.has_room(X, "a")


def test_when_the_one_asked_leaves_the_next_is_asked_at_once() -> None:
    asking = Asking()
    asking.announced(X, "a", 0)
    asking.announced(X, "b", 0)
    asking.announced(Y, "b", 0)
    assert asking.left("a", 100) == [Question("b", X)]
    assert asking.left("b", 200) == []
    assert len(asking) == 0


def test_bad_bytes_are_asked_of_the_next_and_not_of_the_same_again() -> None:
    asking = Asking()
    asking.announced(X, "a", 0)
    asking.announced(X, "b", 0)
    assert asking.failed(X, "c", 50) is None, "somebody who was not asked"
    assert asking.failed(X, "a", 100) == Question("b", X)
    assert asking.due(100 + ASK_AGAIN_MS) == [Question("b", X)]


def test_what_has_come_is_not_asked_for_while_it_is_looked_at() -> None:
    asking = Asking()
    asking.announced(X, "a", 0)
    asking.announced(X, "b", 0)
    asking.arriving(X, "a", 500)
    assert asking.due(ASK_AGAIN_MS) == []
    asking.arriving(X, "a", 900)
    assert asking.due(500 + ARRIVING_MS) == [Question("b", X)], "coming again does not put it off again"


def test_one_member_cannot_fill_the_table() -> None:
    asking = Asking(rows=10, rows_of_one=4)
    for number in range(4):
        asking.announced(bytes([number]) * 8, "liar", 0)
    assert not asking.has_room(X, "liar")
    assert asking.has_room(bytes(8), "liar"), "of what is asked for already he may speak"
    assert asking.has_room(X, "honest")
    asking.left("liar", 0)
    assert asking.has_room(X, "liar")
    for number in range(10):
        asking.announced(bytes([number]) * 8, f"peer {number}", 0)
    assert not asking.has_room(X, "late")


class AskingMachine(RuleBasedStateMachine):
    """Any order of events: one question in flight per id, only announcers are asked, the counts stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = Asking(rows=6, rows_of_one=3)
        self.now = 0
        self.announcers: dict[bytes, set[str]] = {}
        self.asked: dict[bytes, int] = {}

    peers = st.sampled_from("abcd")
    ids = st.sampled_from([bytes([n]) * 8 for n in range(8)])

    def note(self, *questions: Question | GivenUp | None) -> None:
        for one in questions:
            if isinstance(one, Question):
                assert one.peer in self.announcers[one.short_id]
                self.asked[one.short_id] = self.asked.get(one.short_id, 0) + 1
                assert self.asked[one.short_id] <= ASKS_MAX
            elif isinstance(one, GivenUp):
                self.forget(one.short_id)

    def forget(self, short_id: bytes) -> None:
        self.announcers.pop(short_id, None)
        self.asked.pop(short_id, None)

    def forget_deserted(self) -> None:
        for short_id in [it for it, who in self.announcers.items() if not who]:
            self.forget(short_id)

    @rule(short_id=ids, peer=peers)
    def announce(self, short_id: bytes, peer: str) -> None:
        if self.asking.has_room(short_id, peer):
            self.announcers.setdefault(short_id, set()).add(peer)
            self.note(self.asking.announced(short_id, peer, self.now))

    @rule(short_id=ids, peer=peers)
    def arrive(self, short_id: bytes, peer: str) -> None:
        self.asking.arriving(short_id, peer, self.now)
        if short_id in self.announcers:
            self.announcers[short_id].add(peer)

    @rule(short_id=ids)
    def settle(self, short_id: bytes) -> None:
        assert set(self.asking.settled(short_id)) == self.announcers.get(short_id, set())
        self.forget(short_id)

    @rule(short_id=ids, peer=peers)
    def fail(self, short_id: bytes, peer: str) -> None:
        if short_id in self.announcers:
            self.announcers[short_id].discard(peer)
        self.note(self.asking.failed(short_id, peer, self.now))
        self.forget_deserted()

    @rule(peer=peers)
    def leave(self, peer: str) -> None:
        for who in self.announcers.values():
            who.discard(peer)
        self.note(*self.asking.left(peer, self.now))
        self.forget_deserted()

    @rule(pause=st.sampled_from([1, 400, 1_000, 20_000]))
    def wait(self, pause: int) -> None:
        self.now += pause
        self.note(*self.asking.due(self.now))

    @precondition(lambda self: not self.announcers)
    @rule()
    def all_is_free_again(self) -> None:
        assert all(self.asking.has_room(bytes([9]) * 8, peer) for peer in "abcd")

    @invariant()
    def the_table_is_what_was_announced(self) -> None:
        assert len(self.asking) == len(self.announcers) <= 6
        if self.announcers:
            assert self.asking.next_ms() < inf, "nothing waits for ever"


TestAskingMachine = AskingMachine.TestCase


def test_a_row_is_counted_to_who_opened_it_until_it_is_closed_or_he_leaves() -> None:
    def fresh() -> Asking:
        asking = Asking(rows_of_one=1)
        assert asking.has_room(b"x", "alice")
        asking.announced(b"x", "alice", 0)
        assert not asking.has_room(b"y", "alice")
        assert asking.has_room(b"x", "alice"), "a row that is there has room for all"
        assert asking.has_room(b"y", "bob")
        return asking

    settled = fresh()
    assert b"x" in settled
    assert settled.settled(b"x") == ("alice",)
    assert b"x" not in settled
    assert settled.has_room(b"y", "alice")
    failed = fresh()
    failed.failed(b"x", "alice", 0)
    assert failed.has_room(b"y", "alice")
    gone = fresh()
    gone.announced(b"x", "bob", 0)
    gone.left("alice", 0)
    assert b"x" in gone
    assert gone.has_room(b"y", "alice")
    given_up = fresh()
    now = 0
    while b"x" in given_up:
        now += ASK_AGAIN_MS
        given_up.due(now)
    assert given_up.has_room(b"y", "alice")


def test_who_brought_it_unasked_is_known_to_have_it() -> None:
    asking = Asking()
    asking.announced(b"x", "alice", 0)
    asking.arriving(b"x", "bob", 10)
    asking.arriving(b"x", "bob", 20)
    assert asking.failed(b"x", "alice", 30) is not None
    assert asking.settled(b"x") == ("bob",)


def test_so_many_rows_of_one_member_are_counted_as_they_come_and_go() -> None:
    asking = Asking(rows_of_one=2)
    for short_id in (b"v", b"w"):
        asking.announced(short_id, "a", 0)
    asking.settled(b"v")
    assert asking.has_room(X, "a")
    asking.announced(X, "a", 0)
    assert not asking.has_room(Y, "a")


def asked_of(question: Question | GivenUp | None) -> str:
    assert isinstance(question, Question)
    return question.peer


def test_the_turn_goes_on_where_it_was_when_an_announcer_drops_out() -> None:
    for rounds, gone, following in ((1, "a", "c"), (2, "a", "d"), (0, "b", "c"), (0, "c", "b"), (2, "b", "d")):
        asking = Asking()
        for peer in "abcd":
            asking.announced(X, peer, 0)
        now = 0
        for _ in range(rounds):
            now += ASK_AGAIN_MS
            asking.due(now)
        assert asking.failed(X, gone, now) is None
        (question,) = asking.due(now + ASK_AGAIN_MS)
        assert asked_of(question) == following


def test_who_was_too_slow_to_bring_it_is_not_waited_for_when_he_leaves() -> None:
    asking = Asking()
    asking.announced(X, "a", 0)
    asking.announced(X, "b", 0)
    asking.arriving(X, "a", 500)
    assert asking.due(500 + ARRIVING_MS) == [Question("b", X)]
    assert asking.failed(X, "a", 500 + ARRIVING_MS) is None
    assert asking.failed(X, "b", 500 + ARRIVING_MS) is None


def test_when_the_last_one_asked_leaves_it_is_given_up_at_once() -> None:
    asking = Asking()
    asking.announced(X, "a", 0)
    asking.announced(X, "b", 0)
    for turn in range(1, ASKS_MAX):
        (question,) = asking.due(turn * ASK_AGAIN_MS)
    last = asked_of(question)
    other = "a" if last == "b" else "b"
    now = (ASKS_MAX - 1) * ASK_AGAIN_MS + 1
    assert asking.left(last, now) == []
    assert asking.due(now) == [GivenUp(other, X)]
