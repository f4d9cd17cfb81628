"""Which peers are nodes of members: those that said hello as such, some few for each member.

A member makes as many peers as it likes, each with a credential of the same agent. What members have ahead of strangers
(a place that is kept, a ban that is not forgotten) is for the member, so only its newest peers have it: as many as a
node without room stays connected with (`PeerLimits.peers_of_member_max`). All the peers that the 25 members of a small
graph may have are then 100, which is less than there are places for members.
"""

from __future__ import annotations

from collections.abc import Callable

from p2pmem_protocol.names import Address

from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId


class KnownPeers:
    """Peers by member. Of one more peer of a member the one noted longest ago is forgotten; of one more member that of
    whom nobody is here, so that whoever owns a graph and lists key after key in it puts nobody who is here among the
    strangers."""

    def __init__(self, limits: PeerLimits, is_here: Callable[[PeerId], bool] = lambda peer: False) -> None:
        self._limits = limits
        self._is_here = is_here
        self._peers: dict[Address, dict[PeerId, None]] = {}
        self._member: dict[PeerId, Address] = {}

    def note(self, peer: PeerId, member: Address) -> None:
        """This peer speaks for that member. For one at a time, the last that it said hello for."""
        self._forget(peer)
        peers = self._peers.pop(member, {})
        self._peers[member] = peers
        peers[peer], self._member[peer] = None, member
        if len(peers) > self._limits.peers_of_member_max:
            self._forget(next(iter(peers)))
        if len(self._peers) > self._limits.known_members_max:
            for gone in self._peers.pop(self._first_to_forget()):
                del self._member[gone]

    def _first_to_forget(self) -> Address:
        """Not a long way: of so many only some can be here."""
        away = (member for member, peers in self._peers.items() if not any(map(self._is_here, peers)))
        return next(away, next(iter(self._peers)))

    def member_of(self, peer: PeerId) -> Address | None:
        """Whom the peer speaks for, as far as is remembered."""
        return self._member.get(peer)

    def _forget(self, peer: PeerId) -> None:
        member = self._member.pop(peer, None)
        if member is not None:
            del self._peers[member][peer]
            if not self._peers[member]:
                del self._peers[member]
