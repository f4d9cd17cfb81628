"""Which peers are nodes of members: those that said hello as such, some few for each member.

A member makes as many peers as it likes, each with a credential of the same agent. What members have ahead of strangers
(a place that is kept, a ban that is not forgotten) is for the member, so only its newest peers have it.
"""

from __future__ import annotations

from typing import Final

from p2pmem_protocol.names import Address

from p2pmem.net.seam import PeerId

PEERS_OF_ONE_MAX: Final = 8
MEMBERS_MAX: Final = 10_000


class KnownPeers:
    """Peers by member. Of one more peer of a member, and of one more member, the one noted longest ago is forgotten."""

    def __init__(self) -> None:
        self._peers: dict[Address, dict[PeerId, None]] = {}
        self._member: dict[PeerId, Address] = {}

    def note(self, peer: PeerId, member: Address) -> None:
        """This peer speaks for that member. For one at a time, the last that it said hello for."""
        self._forget(peer)
        peers = self._peers.pop(member, {})
        self._peers[member] = peers
        peers[peer], self._member[peer] = None, member
        if len(peers) > PEERS_OF_ONE_MAX:
            self._forget(next(iter(peers)))
        if len(self._peers) > MEMBERS_MAX:
            for gone in self._peers.pop(next(iter(self._peers))):
                del self._member[gone]

    def member_of(self, peer: PeerId) -> Address | None:
        """Whom the peer speaks for, as far as is remembered."""
        return self._member.get(peer)

    def _forget(self, peer: PeerId) -> None:
        member = self._member.pop(peer, None)
        if member is not None:
            del self._peers[member][peer]
            if not self._peers[member]:
                del self._peers[member]
