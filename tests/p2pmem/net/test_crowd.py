"""With whom to stay connected in a large graph: who is left, and who never is."""

from __future__ import annotations

from hypothesis import given, strategies as st

from p2pmem.exchange.crowd import Neighbour, how_many_to_dial, is_short, room_for, whom_to_leave
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId

LIMITS = PeerLimits(
    members_all_max=5,
    members_few=2,
    members_dialled=3,
    members_connected_max=3,
    members_connected_reachable_max=4,
    member_hold_off_s=60,
)
NOW_S = 1_000.0


def neighbours(*reaches: int, since_s: float = 0.0) -> list[Neighbour]:
    """Some who came one second after the other, long ago unless said otherwise."""
    return [Neighbour(PeerId(f"peer {at}"), reach, since_s + at) for at, reach in enumerate(reaches)]


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
    left = neighbours(*reaches, since_s=since_s - 100)
    while (peer := whom_to_leave(left, 3, LIMITS, NOW_S)) is not None:
        (gone,) = [it for it in left if it.peer == peer]
        assert gone.reaches > 1
        left.remove(gone)
    settled = [it for it in left if NOW_S - it.since_s >= LIMITS.member_hold_off_s]
    assert len(left) <= 3 or all(it.reaches <= 1 for it in settled)


def test_in_a_small_graph_all_are_dialled_and_in_a_large_one_some() -> None:
    assert [how_many_to_dial(LIMITS, 5, connected) for connected in (0, 3, 4, 9)] == [4, 1, 0, 0]
    assert [how_many_to_dial(LIMITS, 6, connected) for connected in (0, 2, 3, 9)] == [3, 1, 0, 0]


def test_only_in_a_large_graph_and_with_few_others_more_are_asked_for() -> None:
    assert not is_short(LIMITS, 5, 0)
    assert is_short(LIMITS, 6, 1)
    assert not is_short(LIMITS, 6, 2)
