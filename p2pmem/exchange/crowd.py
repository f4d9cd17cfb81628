"""With which members to be connected, where a context graph has more than everybody can be connected with.

In a small graph everybody meets everybody. In a large one each node dials some by lot, and a node that more members
come to than it has room for leaves one that needs it least: the one that says it is connected with most others. Nobody
is left who has no other, so members behind NAT stay connected by way of the few that can be dialled. (With a fixed
number instead, 56 of 100 members were cut off in a simulation where 80 % were behind NAT.)

What a peer says of its others cannot be checked, and a member can run any number of peers. So that no member decides
for a node with whom it is connected:

* a member's further peers go before anybody's only one, those of the member with most of them first, whatever they
  say; in a small graph each member may have some;
* who says it has no other is believed once for each member, so it takes one entry in the roster to stay for that;
* a quarter of the room is for those who have been here longest, and a quarter for those this node dialled itself,
  drawn by lot, though they have others: all who come later together do not cut it off from these;
* room is divided by graph (`net/shares.py`): but for further peers, nobody is left in a graph that has not more than
  its share, and who is left is of the graph that is over it most. The owner of a graph lists any number of keys, and
  says for each that it has no other or that the graph is small, so beyond seven eighths of all connections of the
  node that protects nobody whose graphs are over their share.

Pure: time and lists are arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.names import GraphId

from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId
from p2pmem.net.shares import first_of_each, over_share, share_of

KEPT_PART: Final = 4
"""One part of so many of a graph's room is for the longest here, and one for those that were dialled."""
SPARE_PART: Final = 8
"""One connection of so many is for others than those who say that they have none."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A connected peer of a member. `member`: any one name for whoever answers for it. `graphs`: those that we share
    with it. `reaches`: with how many members
    it says it is connected, us among them, in that graph of those we share where these are fewest; an unknown list
    counts as empty. `in_small`: it shares a graph in which everybody is connected with everybody. `since_s`: when it
    came."""

    peer: PeerId
    member: str
    reaches: int
    since_s: float
    graphs: frozenset[GraphId] = frozenset()
    dialled: bool = False
    in_small: bool = False

    @property
    def has_others(self) -> bool:
        return self.reaches > 1 and not self.in_small


def room_for(limits: PeerLimits, *, reachable: bool) -> int:
    """With how many members a node stays connected; `reachable` when others can dial it."""
    return limits.members_connected_reachable_max if reachable else limits.members_connected_max


def whom_to_leave(neighbours: Sequence[Neighbour], room: int, limits: PeerLimits, now_s: float) -> PeerId | None:
    """The peer to part with, or None while there is room or nobody can be left.

    Who has just come is not judged by his list, but for the very last: it may be the one that needs us least.
    """
    if len(neighbours) <= room:
        return None
    if further := further_peers(neighbours, limits):
        return further[0]
    over = over_share([it.graphs for it in neighbours], room)
    crowded = [(by, it) for by, it in zip(over, neighbours, strict=True) if by > 0]
    newest = _by_age(neighbours)[-1]
    kept = _kept(neighbours, room)
    judged = [
        (by, it.reaches, it.since_s, it.peer)
        for by, it in crowded
        if it.has_others and it.peer not in kept and (it is newest or now_s - it.since_s >= limits.member_hold_off_s)
    ]
    all_places = limits.network.connections_max
    if not judged and len(neighbours) > all_places - all_places // SPARE_PART:
        judged = [(by, it.reaches, it.since_s, it.peer) for by, it in crowded]
    return max(judged)[-1] if judged else None


def further_peers(neighbours: Iterable[Neighbour], limits: PeerLimits) -> list[PeerId]:
    """Peers of members of whom others have been here for longer; those that need us least first."""
    peers_of: dict[str, list[Neighbour]] = defaultdict(list)
    for it in _by_age(neighbours):
        peers_of[it.member].append(it)
    further = [
        it
        for peers in peers_of.values()
        for place, it in enumerate(peers)
        if place >= (limits.peers_of_member_max if it.in_small else 1)
    ]
    further.sort(key=lambda it: (len(peers_of[it.member]), it.reaches, it.since_s, it.peer), reverse=True)
    return [it.peer for it in further]


def _by_age(neighbours: Iterable[Neighbour]) -> list[Neighbour]:
    """Those who have been here longest first."""
    return sorted(neighbours, key=lambda it: (it.since_s, it.peer))


def _kept(neighbours: Sequence[Neighbour], room: int) -> set[PeerId]:
    """Who stays though he has others: in each graph so many that were here first, and so many that we dialled."""
    others = _by_age(it for it in neighbours if it.has_others)
    dialled = [it for it in others if it.dialled]
    part = share_of([it.graphs for it in neighbours], room) // KEPT_PART
    return {
        it.peer
        for some in (others, dialled)
        for it, is_first in zip(some, first_of_each([it.graphs for it in some], part), strict=True)
        if is_first
    }


def is_small(limits: PeerLimits, members: int) -> bool:
    """Whether everybody is connected with everybody in a graph of so many."""
    return members <= limits.members_all_max


def how_many_to_dial(limits: PeerLimits, members: int, connected: int) -> int:
    """How many more members to dial in a graph of so many, when so many are connected."""
    enough = limits.members_all_max - 1 if is_small(limits, members) else limits.members_dialled
    return max(0, enough - connected)


def is_short(limits: PeerLimits, members: int, connected: int) -> bool:
    """Whether to ask again who else is there, in a graph of so many. In a small one everybody is dialled on anyway."""
    return not is_small(limits, members) and connected < limits.members_few
