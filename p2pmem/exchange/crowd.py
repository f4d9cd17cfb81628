"""With which members to be connected, where a context graph has more than everybody can be connected with.

In a small graph everybody meets everybody. In a large one each node dials some by lot, and a node that more members
come to than it has room for leaves one that needs it least: the one that says it is connected with most others. Nobody
is left who has no other, so members behind NAT stay connected by way of the few that can be dialled. (With a fixed
number instead, 56 of 100 members were cut off in a simulation where 80 % were behind NAT.)

Pure: time and lists are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A connected member. `reaches`: with how many members it says it is connected, us among them, in that graph of
    those we share where these are fewest; an unknown list counts as empty, and so does any list in a small graph.
    `since_s`: when it came."""

    peer: PeerId
    reaches: int
    since_s: float


def room_for(limits: PeerLimits, *, reachable: bool) -> int:
    """With how many members a node stays connected; `reachable` when others can dial it."""
    return limits.members_connected_reachable_max if reachable else limits.members_connected_max


def whom_to_leave(neighbours: Sequence[Neighbour], room: int, limits: PeerLimits, now_s: float) -> PeerId | None:
    """The member to part with, or None while there is room or nobody can be left.

    Who has just come is not judged, but for the very last: it may be the one that needs us least.
    """
    if len(neighbours) <= room:
        return None
    newest = max(neighbours, key=lambda it: (it.since_s, it.peer))
    judged = [it for it in neighbours if it is newest or now_s - it.since_s >= limits.member_hold_off_s]
    longest = max(judged, key=lambda it: (it.reaches, it.since_s, it.peer))
    return longest.peer if longest.reaches > 1 else None


def how_many_to_dial(limits: PeerLimits, members: int, connected: int) -> int:
    """How many more members to dial in a graph of so many, when so many are connected."""
    enough = limits.members_all_max - 1 if members <= limits.members_all_max else limits.members_dialled
    return max(0, enough - connected)


def is_short(limits: PeerLimits, members: int, connected: int) -> bool:
    """Whether to ask again who else is there, in a graph of so many. In a small one everybody is dialled on anyway."""
    return members > limits.members_all_max and connected < limits.members_few
