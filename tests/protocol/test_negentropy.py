"""Reconciliation finds every difference, byte for byte as the protocol says, within bounds whatever is asked."""

from __future__ import annotations

import json
import os
import random
import subprocess
from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import negentropy as module
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.negentropy import MESSAGE_BYTES_MIN, Initiator, Limits, Responder, Step, respond
from p2pmem_protocol.snapshot import ORDER_NEVER, Snapshot, varint

from tests.node_tools import NodeTools
from tests.protocol import naive_negentropy as naive

Pair = tuple[int, bytes]
DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
SMALL = Limits(message_bytes=MESSAGE_BYTES_MIN, messages=2_000)


def some_pairs(rnd: random.Random, count: int, spread_ms: int = 30 * DAY_MS) -> list[Pair]:
    """Half of them shares that end within the spread, half published for ever."""
    return [(NOW_MS + rnd.randrange(spread_ms) if n % 2 else ORDER_NEVER, rnd.randbytes(32)) for n in range(count)]


class Round:
    """A whole round between two sets: what was learnt, and what it cost."""

    def __init__(self, mine: list[Pair], theirs: list[Pair], limits: Limits | None = None) -> None:
        limits = limits or Limits()
        initiator = Initiator(Snapshot.build(mine).view(), limits)
        view, responder = Snapshot.build(theirs).view(), Responder(limits)
        self.have: list[bytes] = []
        self.need: list[bytes] = []
        self.messages = [initiator.start()]
        while True:
            self.messages.append(responder.receive(view, self.messages[-1]))
            step = initiator.receive(self.messages[-1])
            self.have += step.have
            self.need += step.need
            if step.reply is None:
                break
            self.messages.append(step.reply)
        assert initiator.is_over

    @property
    def total_bytes(self) -> int:
        return sum(map(len, self.messages))

    @property
    def round_trips(self) -> int:
        return len(self.messages) // 2


def assert_found(one: Round, mine: list[Pair], theirs: list[Pair]) -> None:
    ours, others = {i for _, i in mine}, {i for _, i in theirs}
    assert sorted(one.have) == sorted(ours - others)
    assert sorted(one.need) == sorted(others - ours)


ids = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.builds(lambda a, b: b"\7" * 30 + bytes([a, b]), st.integers(0, 9), st.integers(0, 255)),
)
sets = st.lists(
    st.tuples(st.one_of(st.integers(0, 5), st.just(ORDER_NEVER), st.integers(0, 2**50)), ids),
    max_size=150,
    unique_by=lambda p: p[1],
)


@given(sets, sets, sets)
def test_every_difference_is_found_once_and_the_bytes_equal_a_naive_implementation(
    both: list[Pair], mine: list[Pair], theirs: list[Pair]
) -> None:
    common = {i for _, i in both}
    mine = both + [p for p in mine if p[1] not in common]
    theirs = both + [p for p in theirs if p[1] not in common]
    one = Round(mine, theirs)
    spoken = [naive.start(mine)]
    have: set[bytes] = set()
    need: set[bytes] = set()
    while spoken[-1] is not None:
        spoken.append(naive.answer(theirs, spoken[-1], initiator=False)[0])
        reply, more_have, more_need = naive.answer(mine, spoken[-1], initiator=True)
        have |= more_have
        need |= more_need
        spoken.append(reply)
    assert one.messages == spoken[:-1]
    assert set(one.have) == have
    assert set(one.need) == need


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limits", [Limits(), SMALL])
def test_random_sets_are_reconciled_within_the_frame_limit(seed: int, limits: Limits) -> None:
    rnd = random.Random(seed)
    both = some_pairs(rnd, rnd.choice([0, 40, 3_000]), rnd.choice([1, 1_000, DAY_MS]))
    mine = both + some_pairs(rnd, rnd.choice([0, 1, 900]), DAY_MS)
    theirs = both + some_pairs(rnd, rnd.choice([1, 50, 2_000]), DAY_MS)
    one = Round(mine, theirs, limits)
    assert_found(one, mine, theirs)
    assert max(map(len, one.messages)) <= limits.message_bytes


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_that_differ_by_ten_take_two_round_trips_and_eight_and_a_half_kilobytes(seed: int) -> None:
    rnd = random.Random(seed)
    both = some_pairs(rnd, 9_995)
    mine, theirs = both + some_pairs(rnd, 5), both + some_pairs(rnd, 5)
    one = Round(mine, theirs)
    assert_found(one, mine, theirs)
    assert one.round_trips <= 2
    assert one.total_bytes <= 8_500


@pytest.mark.parametrize("count", [0, 1, 32, 1_000, 10_000])
def test_equal_sets_take_one_round_trip_and_at_most_350_bytes(count: int) -> None:
    same = some_pairs(random.Random(count), count, 8 * 3_600_000)
    one = Round(same, same)
    assert one.round_trips == 1
    assert one.total_bytes <= 350


def test_ends_spread_over_weeks_in_milliseconds_cost_equal_sets_one_byte_more_a_bound() -> None:
    rnd = random.Random(3)
    same = [(NOW_MS + rnd.randrange(30 * DAY_MS), rnd.randbytes(32)) for _ in range(10_000)]
    assert Round(same, same).total_bytes == 353


def test_five_bytes_that_ask_for_everything_get_one_bounded_answer() -> None:
    view = Snapshot.build(some_pairs(random.Random(1), 20_000)).view()
    for limits in (Limits(), SMALL):
        answer = respond(view, bytes.fromhex("6100000200"), limits)
        assert len(answer) <= limits.message_bytes
        assert len(answer) > limits.message_bytes - 200, "the room is used"


def test_a_message_of_nothing_but_questions_gets_an_answer_within_the_limit() -> None:
    view = Snapshot.build([(n, n.to_bytes(32, "big")) for n in range(20_000)]).view()
    asked = b"\x61" + b"".join(b"\x09\x00\x02\x00" for _ in range(1_000))
    answer = respond(view, asked, SMALL)
    assert len(answer) <= SMALL.message_bytes


def fingerprints_hold(message: bytes, pairs: list[Pair]) -> bool:
    """Whether each fingerprint in `message` is that of the sender's items between its two bounds."""
    in_order = sorted(pairs)
    low = 0
    for upper, mode, payload in naive.read(message):
        high = bisect_left(in_order, upper)
        if mode == 1 and payload != naive.fingerprint(in_order[low:high]):
            return False
        low = high
    return True


@pytest.mark.parametrize("seed", range(6))
def test_every_fingerprint_is_that_of_the_range_it_stands_for_also_where_a_message_was_cut_off(seed: int) -> None:
    # Who lacks just what did not fit would hear that all is well from a fingerprint of less than the whole rest.
    rnd = random.Random(seed)
    both = some_pairs(rnd, 1_500)
    mine, theirs = both + some_pairs(rnd, 100), both + some_pairs(rnd, 600)
    one = Round(mine, theirs, SMALL)
    assert_found(one, mine, theirs)
    assert one.round_trips > 5, "messages were cut off"
    for number, message in enumerate(one.messages):
        assert fingerprints_hold(message, theirs if number % 2 else mine)


def test_an_answer_cut_off_behind_a_skip_speaks_for_what_follows_the_skip() -> None:
    pairs = [(order, order.to_bytes(32, "big")) for order in range(2_000)]
    # Equal up to 1,000, then all is asked for.
    equal = naive.number(1_001) + b"\0\1" + naive.fingerprint(pairs[:1_000])
    answer = respond(Snapshot.build(pairs).view(), b"\x61" + equal + bytes.fromhex("00000200"), SMALL)
    assert [mode for _, mode, _ in naive.read(answer)] == [0, 2, 1]
    assert fingerprints_hold(answer, pairs)
    # And where not even one id fits behind what was said before, the rest is one fingerprint.
    many = b"".join(naive.number(2) + b"\0\2\0" for _ in range(300)) + bytes.fromhex("00000200")
    answer = respond(Snapshot.build(pairs).view(), b"\x61" + many, SMALL)
    assert naive.read(answer)[-1][:2] == (naive.INFINITY, 1)
    assert fingerprints_hold(answer, pairs)


def test_the_budget_of_messages_ends_a_session_on_both_sides() -> None:
    theirs = some_pairs(random.Random(5), 2_000)
    limits = Limits(message_bytes=MESSAGE_BYTES_MIN, messages=3)
    one = Round([], theirs, limits)
    assert one.round_trips == 3
    assert 0 < len(one.need) < 2_000, "what was learnt stays good"
    view, responder = Snapshot.build(theirs).view(), Responder(limits)
    for _ in range(3):
        responder.receive(view, one.messages[0])
    with pytest.raises(RefusedError) as refused:
        responder.receive(view, one.messages[0])
    assert refused.value.reason is Reason.TOO_MANY


def test_a_round_whose_other_side_grows_meanwhile_ends_and_learns_all_that_was_there_at_first() -> None:
    rnd = random.Random(11)
    theirs = some_pairs(rnd, 3_000)
    mine = rnd.sample(theirs, 2_500)
    held = Snapshot.build(theirs)
    initiator, responder = Initiator(Snapshot.build(mine).view()), Responder()
    message: bytes | None = initiator.start()
    learnt: set[bytes] = set()
    while message is not None:
        step = initiator.receive(responder.receive(held.view(), message))
        learnt.update(step.need)
        message = step.reply
        held = held.changed(add=some_pairs(rnd, 50))
    assert learnt >= {item_id for _, item_id in theirs} - {item_id for _, item_id in mine}


def test_rounds_over_views_cut_at_one_time_say_nothing_of_what_ends_before_it() -> None:
    rnd = random.Random(9)
    ending = [(NOW_MS + rnd.randrange(60_000), rnd.randbytes(32)) for _ in range(1_000)]
    both = some_pairs(rnd, 1_000)
    both = [p for p in both if p[0] > NOW_MS + 60_000]
    initiator = Initiator(Snapshot.build(both + ending).view(NOW_MS))
    answer = respond(Snapshot.build(both).view(NOW_MS), initiator.start())
    assert answer == b"\x61"
    assert initiator.receive(answer).reply is None


def test_another_version_is_answered_with_ours_and_refused_as_an_answer() -> None:
    view = Snapshot.build().view()
    for version in (b"\x60", b"\x62", b"\x6f"):
        assert respond(view, version + b"anything") == b"\x61"
    for other in (b"\x5f", b"\x70"):
        with pytest.raises(RefusedError):
            respond(view, other + b"anything")
    initiator = Initiator(view)
    initiator.start()
    with pytest.raises(RefusedError):
        initiator.receive(b"\x62")


def test_an_id_that_a_liar_repeats_is_needed_once() -> None:
    initiator = Initiator(Snapshot.build().view())
    initiator.start()
    step = initiator.receive(b"\x61" + b"\x02\x00\x02\x02" + b"a" * 64 + b"\0\0\x02\x01" + b"a" * 32)
    assert step.need == (b"a" * 32,)


@pytest.mark.parametrize(
    "message",
    {
        "nothing": "",
        "no version of ours": "10",
        "bound without mode": "610000",
        "unknown mode": "61000003",
        "cut fingerprint": "61000001ffff",
        "cut ids": "610000020100",
        "a count of 2^63": "61000002" + "8180808080808080808000",
        "leading zero": "6180000000",
        "number above 2^64": "61" + "ff" * 9 + "7f0000",
        "order above the highest": "61" + "81ffffffffffffffff7f" + "0000" + "0500" + "00",
        "prefix of 33 bytes": "610121" + "00" * 33 + "00",
        "after infinity": "61000000" + "000000",
        "falling prefix": "61" + "0101ff00" + "0101fe00",
        "falling prefix that begins with a zero": "61" + "01010100" + "0102000200",
    }.items(),
    ids=lambda case: case[0],
)
def test_garbage_is_refused_by_both_sides(message: tuple[str, str]) -> None:
    view = Snapshot.build(some_pairs(random.Random(2), 100)).view()
    initiator = Initiator(view)
    initiator.start()
    for receive in (lambda m: respond(view, m), initiator.receive):
        with pytest.raises(RefusedError) as refused:
            receive(bytes.fromhex(message[1]))
        assert refused.value.reason is Reason.BAD_RECONCILIATION


def test_a_message_above_the_limit_is_refused_unread() -> None:
    skips = (SMALL.message_bytes - 1) // 3
    view = Snapshot.build().view()
    assert respond(view, b"\x61" + b"\x01\0\0" * skips, SMALL) == b"\x61"
    with pytest.raises(RefusedError) as refused:
        respond(view, b"\x61" + b"\x01\0\0" * (skips + 1), SMALL)
    assert refused.value.reason is Reason.BAD_RECONCILIATION


_VIEW = Snapshot.build(some_pairs(random.Random(4), 300)).view()
_REAL = Initiator(_VIEW).start()
_garbage = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda tail: b"\x61" + tail),
    st.tuples(st.integers(0, len(_REAL) - 1), st.integers(0, 255)).map(
        lambda flip: _REAL[: flip[0]] + bytes([flip[1]]) + _REAL[flip[0] + 1 :]
    ),
    st.integers(0, len(_REAL)).map(lambda length: _REAL[:length]),
)


def said_or_refused(receive: Callable[[bytes], bytes | Step], message: bytes) -> bytes | Reason | None:
    try:
        answer = receive(message)
    except RefusedError as refused:
        return refused.reason
    return answer.reply if isinstance(answer, Step) else answer


@given(st.lists(_garbage, min_size=1, max_size=4))
def test_whatever_bytes_come_the_answer_is_bounded_or_a_refusal(messages: list[bytes]) -> None:
    initiator = Initiator(_VIEW, SMALL)
    initiator.start()
    for message in messages:
        for receive in (lambda m: respond(_VIEW, m, SMALL), initiator.receive):
            if receive == initiator.receive and initiator.is_over:
                continue
            said = said_or_refused(receive, message)
            assert said is Reason.BAD_RECONCILIATION or said is None or len(said) <= SMALL.message_bytes


def test_a_round_is_spoken_in_order() -> None:
    initiator = Initiator(Snapshot.build().view())
    with pytest.raises(MisuseError):
        initiator.receive(b"\x61")
    initiator.start()
    with pytest.raises(MisuseError):
        initiator.start()
    initiator.receive(b"\x61")
    with pytest.raises(MisuseError):
        initiator.receive(b"\x61")
    with pytest.raises(MisuseError):
        Limits(message_bytes=MESSAGE_BYTES_MIN - 1)


VECTORS = [
    # (mine, theirs, the messages of the round), worked out by hand from the protocol text
    ([], [], ["6100000200", "6100000200"]),
    (
        [(1, b"\x01" * 32)],
        [(1, b"\x01" * 32), (ORDER_NEVER, b"\x02" * 32)],
        ["6100000201" + "01" * 32, "6100000202" + "01" * 32 + "02" * 32],
    ),
]


@pytest.mark.parametrize(("mine", "theirs", "messages"), VECTORS)
def test_small_rounds_worked_out_by_hand(mine: list[Pair], theirs: list[Pair], messages: list[str]) -> None:
    assert [m.hex() for m in Round(mine, theirs).messages] == messages


ORACLE = """
import readline from 'node:readline';
const { Negentropy, NegentropyStorageVector } = await import(process.env.ORACLE);
let asker = null, found = null;
for await (const line of readline.createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  let reply;
  if (order.items) {
    const storage = new NegentropyStorageVector();
    for (const [at, id] of order.items) storage.insert(at, id);
    storage.seal();
    asker = new Negentropy(storage, 1e9);
    found = { have: [], need: [] };
    reply = asker.initiate();
  } else {
    reply = asker.reconcile(order.message, (id) => found.have.push(id), (id) => found.need.push(id));
  }
  console.log(JSON.stringify({ reply, ...found }));
}
"""


@pytest.mark.node
def test_an_implementation_by_others_speaks_the_same_bytes(node_tools: NodeTools) -> None:
    """nostr-tools 2.25 carries a Negentropy client; its varints end at 2^31, so the orders here are small."""
    oracle = node_tools.modules / "nostr-tools" / "lib" / "esm" / "nip77.js"
    rnd = random.Random(11)
    limits = Limits(message_bytes=10_000_000)
    with subprocess.Popen(
        [node_tools.program, "--input-type=module", "-e", ORACLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ORACLE": oracle.as_uri()},
    ) as process:

        def ask(**order: object) -> dict[str, object]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        for size, spread in [(0, 1), (1, 1), (31, 5), (33, 5), (500, 3), (3_000, 2**30), (3_000, 1)]:
            both = [(rnd.randrange(spread), rnd.randbytes(32)) for _ in range(size)]
            mine = both + [(rnd.randrange(spread), rnd.randbytes(32)) for _ in range(rnd.randrange(40))]
            theirs = both + [(rnd.randrange(spread), rnd.randbytes(32)) for _ in range(rnd.randrange(40))]
            initiator = Initiator(Snapshot.build(mine).view(), limits)
            view = Snapshot.build(theirs).view()
            told = ask(items=[[order, item_id.hex()] for order, item_id in mine])
            message: bytes | None = initiator.start()
            while message is not None:
                assert message.hex() == told["reply"]
                answer = respond(view, message, limits)
                told = ask(message=answer.hex())
                message = initiator.receive(answer).reply
            assert told["reply"] is None
            ours, others = {i.hex() for _, i in mine}, {i.hex() for _, i in theirs}
            assert set(told["have"]) == ours - others
            assert set(told["need"]) == others - ours


def test_a_bound_may_stand_where_what_never_ends_stands_and_no_higher() -> None:
    view = Snapshot.build([(5, b"a" * 32)]).view()
    for order, good in ((ORDER_NEVER, True), (2**64 - 2, True), (2**64 - 1, False)):
        message = bytes([module.VERSION]) + varint(order + 1) + b"\0" + varint(module.Mode.SKIP)
        if good:
            assert respond(view, message) == bytes([module.VERSION])
        else:
            with pytest.raises(RefusedError):
                respond(view, message)


def test_a_round_has_at_least_one_message() -> None:
    assert Limits(messages=1).messages == 1
    with pytest.raises(MisuseError):
        Limits(messages=0)
