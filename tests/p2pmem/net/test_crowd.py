"""With whom to stay connected in a large graph: who is left, and who never is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, strategies as st
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.crowd import Neighbour, how_many_to_dial, is_short, room_for, whom_to_leave
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId
from p2pmem.net.shares import over_share

LIMITS = PeerLimits(
    members_all_max=5,
    members_few=2,
    members_dialled=3,
    members_connected_max=3,
    members_connected_reachable_max=4,
    peers_of_member_max=2,
    member_hold_off_s=60,
)
NOW_S = 1_000.0
GRAPH, OTHER = frozenset({GraphId(b"g" * 32)}), frozenset({GraphId(b"h" * 32)})


def neighbours(*reaches: int, since_s: float = 0.0) -> list[Neighbour]:
    """Some who came one second after the other, long ago unless said otherwise."""
    return [
        Neighbour(PeerId(f"peer {at}"), f"member {at}", reach, since_s + at, GRAPH) for at, reach in enumerate(reaches)
    ]


def test_a_node_has_room_for_some_and_one_that_others_can_dial_for_more() -> None:
    assert (room_for(LIMITS, reachable=False), room_for(LIMITS, reachable=True)) == (3, 4)
    assert whom_to_leave(neighbours(9, 9, 9), 3, LIMITS, NOW_S) is None
    assert whom_to_leave(neighbours(9, 9, 9, 8), 3, LIMITS, NOW_S) is not None
    assert whom_to_leave(neighbours(9, 9, 9, 8), 4, LIMITS, NOW_S) is None


def test_the_one_with_most_others_is_left_for_a_newcomer_with_fewer() -> None:
    assert whom_to_leave(neighbours(3, 7, 5, 2), 3, LIMITS, NOW_S) == "peer 1"


def test_a_newcomer_that_has_most_others_is_left_itself() -> None:
    assert whom_to_leave(neighbours(3, 7, 5, 8), 3, LIMITS, NOW_S) == "peer 3"


def test_who_has_no_other_is_never_left_however_full_it_is() -> None:
    assert whom_to_leave(neighbours(1, 1, 0, 1, 1, 0), 3, LIMITS, NOW_S) is None
    assert whom_to_leave(neighbours(1, 1, 2, 1, 1, 0), 3, LIMITS, NOW_S) == "peer 2"


def test_who_came_less_than_the_hold_off_ago_is_not_left_for_somebody_newer() -> None:
    recent = neighbours(9, 9, 9, 2, since_s=NOW_S - 62)
    assert recent[2].since_s == NOW_S - 60
    assert whom_to_leave(recent, 3, LIMITS, NOW_S) == "peer 2"
    assert whom_to_leave(neighbours(9, 9, 9, 2, since_s=NOW_S - 59.9), 3, LIMITS, NOW_S) == "peer 3"
    assert whom_to_leave(neighbours(9, 9, 9, 1, since_s=NOW_S - 59.9), 3, LIMITS, NOW_S) is None


@given(reaches=st.lists(st.integers(0, 5), max_size=10), since_s=st.floats(0, NOW_S))
def test_one_after_the_other_leaves_no_more_than_there_is_room_for_or_who_has_no_other(
    reaches: list[int], since_s: float
) -> None:
    here = neighbours(*reaches, since_s=since_s - 100)
    stay = left(here, 3)
    assert all(it.reaches > 1 for it in set(here) - set(stay))
    settled = [it for it in stay if NOW_S - it.since_s >= LIMITS.member_hold_off_s]
    assert len(stay) <= 3 or all(it.reaches <= 1 for it in settled)


def peers_of(member: str, count: int, *, since_s: float, reaches: int = 0, in_small: bool = False) -> list[Neighbour]:
    return [
        Neighbour(PeerId(f"{member} {at}"), member, reaches, since_s + at, GRAPH, in_small=in_small)
        for at in range(count)
    ]


def left(here: list[Neighbour], room: int) -> list[Neighbour]:
    """Who is still here once nobody is to be left any more."""
    here = list(here)
    while (peer := whom_to_leave(here, room, LIMITS, NOW_S)) is not None:
        here = [it for it in here if it.peer != peer]
    return here


def test_peers_of_one_member_that_say_they_have_no_other_push_out_nobody() -> None:
    honest = neighbours(*[9] * 24)
    for since_s in (0.0, NOW_S - 1):  # long ago, and just now
        assert set(left([*honest, *peers_of("mallory", 100, since_s=since_s)], 25)) >= set(honest)
    # As many members as the attacker has peers do push out some: they are in the roster.
    assert len(set(left([*honest, *neighbours(*[0] * 10, since_s=50)], 24)) & set(honest)) < 24


def test_of_the_further_peers_of_members_those_of_the_member_with_most_go_first() -> None:
    here = [*peers_of("few", 2, since_s=0, reaches=9), *peers_of("many", 3, since_s=0), *neighbours(9, 9)]
    assert [it.peer for it in left(here, 6)].count(PeerId("many 2")) == 0
    assert {it.member for it in left(here, 4)} == {"few", "many", "member 0", "member 1"}


def test_in_a_small_graph_a_member_keeps_some_peers_and_no_more_where_there_is_no_room() -> None:
    few = LIMITS.peers_of_member_max
    here = [*peers_of("mallory", few + 3, since_s=0, in_small=True), *peers_of("bo", 2, since_s=0, in_small=True)]
    kept = left(here, 3)
    assert [it.member for it in kept].count("mallory") == few
    assert [it.member for it in kept].count("bo") == 2
    assert left(here, len(here)) == here


def test_those_here_longest_and_those_dialled_stay_whatever_others_say() -> None:
    room = 16
    longest = neighbours(*[99] * 4)
    dialled = [
        replace(it, peer=PeerId(f"dialled {it.peer}"), member=f"d {it.member}", dialled=True)
        for it in neighbours(*[99] * 6, since_s=100)
    ]
    others = [replace(it, peer=PeerId(f"other {it.peer}"), member=f"o {it.member}") for it in neighbours(*[9] * 6)]
    others = [replace(it, since_s=50 + it.since_s) for it in others]
    claim = [Neighbour(PeerId(f"alone {at}"), f"m {at}", 0, 200 + at, GRAPH) for at in range(40)]
    kept = left([*longest, *dialled, *others, *claim], room)
    assert {*longest, *dialled[:4], *claim} == set(kept)


# Room is divided by graph


def keys_of_the_owner(count: int, reaches: int, *, also: frozenset[GraphId] = frozenset()) -> list[Neighbour]:
    return [Neighbour(PeerId(f"key {at}"), f"key {at}", reaches, 100.0 + at, OTHER | also) for at in range(count)]


def test_the_owner_of_one_graph_with_hundreds_of_keys_pushes_out_nobody_of_another() -> None:
    for keys in (100, 200):
        for says in (0, 1, 2, 99):
            honest = neighbours(*[12] * 60, since_s=500)
            kept = left([*honest, *keys_of_the_owner(keys, says)], 128)
            assert set(kept) >= set(honest)
            assert len(kept) == (128 if says > 1 else min(60 + keys, 224))


def test_to_list_the_members_of_another_graph_in_ones_own_takes_nothing_from_them() -> None:
    honest = [replace(it, graphs=GRAPH | OTHER) for it in neighbours(*[12] * 60, since_s=500)]
    assert set(left([*honest, *keys_of_the_owner(200, 2)], 128)) >= set(honest)


def test_beyond_seven_eighths_of_all_connections_a_graph_over_its_share_loses_also_who_says_it_has_no_other() -> None:
    honest = neighbours(*[12] * 60, since_s=500)
    kept = left([*honest, *keys_of_the_owner(250, 0)], 128)
    assert set(kept) >= set(honest)
    assert len(kept) == LIMITS.network.connections_max * 7 // 8
    assert len(left(neighbours(*[0] * 224), 128)) == 224


def test_where_both_graphs_are_over_their_share_both_come_down_to_it() -> None:
    kept = left([*neighbours(*[12] * 100, since_s=500), *keys_of_the_owner(150, 2)], 128)
    assert sum(it.graphs == GRAPH for it in kept) == sum(it.graphs == OTHER for it in kept) == 64


def test_those_here_longest_of_a_graph_stay_though_another_graph_was_here_before_them() -> None:
    honest = neighbours(*[99] * 8, since_s=500)
    alone = [Neighbour(PeerId(f"alone {at}"), f"m {at}", 0, 600 + at, GRAPH) for at in range(40)]
    kept = left([*keys_of_the_owner(40, 2), *honest, *alone], 32)
    assert set(kept) >= {*honest[:4], *alone}


SOME_GRAPHS = st.frozensets(st.sampled_from([GraphId(bytes([it]) * 32) for it in range(3)]), max_size=3)


@given(st.lists(SOME_GRAPHS, max_size=30), st.integers(1, 12))
def test_whoever_is_over_is_in_no_graph_that_is_not_and_where_places_are_not_enough_somebody_is(
    graphs_of: list[frozenset[GraphId]], places: int
) -> None:
    over = over_share(graphs_of, places)
    held = Counter(it for graphs in graphs_of for it in graphs)
    for by, graphs in zip(over, graphs_of, strict=True):
        assert (by > 0) == all(held[it] > places // len(held) for it in graphs)
    assert len(graphs_of) <= places or max(over) > 0


@given(st.lists(SOME_GRAPHS, max_size=30), st.integers(1, 12), st.lists(st.integers(0, 5), min_size=30, max_size=30))
def test_a_graph_below_its_share_loses_nobody(
    graphs_of: list[frozenset[GraphId]], room: int, reaches: list[int]
) -> None:
    here = [replace(it, graphs=graphs) for it, graphs in zip(neighbours(*reaches), graphs_of, strict=False)]
    while (gone := whom_to_leave(here, room, LIMITS, NOW_S)) is not None:
        graphs = next(it for it in here if it.peer == gone).graphs
        held = Counter(one for it in here for one in it.graphs)
        assert all(held[it] > room // len(held) for it in graphs)
        here = [it for it in here if it.peer != gone]


def test_in_a_small_graph_all_are_dialled_and_in_a_large_one_some() -> None:
    assert [how_many_to_dial(LIMITS, 5, connected) for connected in (0, 3, 4, 9)] == [4, 1, 0, 0]
    assert [how_many_to_dial(LIMITS, 6, connected) for connected in (0, 2, 3, 9)] == [3, 1, 0, 0]


def test_only_in_a_large_graph_and_with_few_others_more_are_asked_for() -> None:
    assert not is_short(LIMITS, 5, 0)
    assert is_short(LIMITS, 6, 1)
    assert not is_short(LIMITS, 6, 2)
