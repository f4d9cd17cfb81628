"""What gossip remembers, and for how long; whose promises it leant on, and who is owed something when they end."""

from __future__ import annotations

from p2pmem_protocol.relays import MEMORY_MS, PROMISE_MS, Owed, Promise, Relayed, Relays

GRAPH, OTHER = b"g" * 32, b"o" * 32
X, Y, Z = b"xxxxxxxx", b"yyyyyyyy", b"zzzzzzzz"
ANN, BOB = b"ann", b"bob"


def known(at_ms: int, *, graph: bytes = GRAPH, item_id: bytes | None = b"i" * 32) -> Relayed:
    return Relayed(graph, item_id, 100, at_ms)


def promise(short_id: bytes, giver: bytes, at_ms: int, *passed_over: str, spoke: tuple[str, ...] = ()) -> Promise:
    return Promise(short_id, giver, at_ms, set(spoke), set(passed_over))


def test_what_is_dealt_with_again_is_remembered_anew() -> None:
    relays = Relays()
    for short_id, at_ms in ((X, 0), (Y, 1), (X, 2)):
        relays.remember(short_id, known(at_ms))
    relays.forget(MEMORY_MS)
    assert relays.remembered == 2
    relays.forget(1 + MEMORY_MS)
    assert relays.get(Y) is None
    assert relays.get(X) == known(2)
    relays.forget(2 + MEMORY_MS)
    assert relays.remembered == 0


def test_the_oldest_goes_when_there_is_too_much_or_time_passes() -> None:
    relays = Relays(memory=2, promises=2)
    for number, short_id in enumerate((X, Y, Z)):
        relays.remember(short_id, known(number))
        relays.lean_on(promise(short_id, ANN, number, "carl"))
    assert (relays.get(X), relays.remembered, relays.promises) == (None, 2, 2)
    assert [owed.short_id for owed in relays.ended(ANN, ["carl"], 3)] == [Y, Z]
    relays.remember(X, known(2 + PROMISE_MS))
    relays.lean_on(promise(X, ANN, 2 + PROMISE_MS))
    assert relays.promises == 1


def test_refusals_of_one_graph_are_forgotten_alone() -> None:
    relays = Relays()
    relays.remember(X, known(0, item_id=None))
    relays.remember(Y, known(0, item_id=None, graph=OTHER))
    relays.remember(Z, known(0))
    relays.forget_refusals(GRAPH)
    assert relays.get(X) is None
    assert relays.remembered == 2


def test_who_was_passed_over_and_has_not_spoken_is_owed_it_once() -> None:
    relays = Relays()
    relays.remember(X, known(0))
    relays.lean_on(promise(X, ANN, 0, "f", "e", "d", "c", "b", "a", spoke=("e",)))
    relays.heard(X, "c")
    relays.heard(Z, "c")
    assert relays.ended(ANN, ["a", "c", "d", "e", "f", "g"], 1) == [Owed(peer, GRAPH, X) for peer in "adf"]
    assert relays.ended(ANN, ["a", "b", "c", "d", "e", "f"], 1) == [Owed("b", GRAPH, X)]
    assert relays.ended(BOB, ["a"], 1) == []


def test_a_later_promise_stands_in_for_the_one_before() -> None:
    relays = Relays()
    relays.remember(X, known(0))
    relays.lean_on(promise(X, ANN, 0, "carl"))
    relays.lean_on(promise(X, BOB, 1, "carl"))
    assert relays.promises == 1
    assert relays.ended(ANN, ["carl"], 2) == []
    assert relays.ended(BOB, ["carl"], 2) == [Owed("carl", GRAPH, X)]
    relays.forget(1 + PROMISE_MS)
    assert relays.promises == 0
    assert relays.ended(BOB, ["carl"], 2) == []


def test_memory_is_bounded_also_without_promises() -> None:
    relays = Relays(memory=2)
    for number, short_id in enumerate((X, Y, Z)):
        relays.remember(short_id, known(number))
    assert relays.remembered == 2
    relays.remember(X, known(2 + MEMORY_MS))
    assert relays.remembered == 1
