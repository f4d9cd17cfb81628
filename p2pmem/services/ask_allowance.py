"""How often somebody may ask to be let in, and how many such asks a member passes on to an owner.

Each ask costs signatures to check, here and at the owner's node. Pure: time is an argument. Whether a graph is known
here makes no difference to what an asker may, so running dry tells him nothing.
"""

from __future__ import annotations

from p2pmem.net.allowance import Allowance
from p2pmem.net.limits import AskLimits


class AskAllowances:
    """All of them, of one node."""

    def __init__(self, limits: AskLimits) -> None:
        self._peers = Allowance(limits.per_peer_per_minute, limits.accounts_max)
        self._addresses = Allowance(limits.per_address_per_minute, limits.accounts_max)
        self._passed_on = Allowance(limits.passed_on_per_minute)
        self._members = Allowance(limits.passed_on_per_minute, limits.accounts_max)
        self._askers = Allowance(limits.per_peer_per_minute, limits.accounts_max)
        self._relayed = Allowance(limits.relayed_per_minute)

    def may_ask(self, peer: str, where: str, now_s: float) -> bool:
        """Whether this ask of a peer at that address is looked at."""
        return self._peers.take(now_s, peer) and self._addresses.take(now_s, where)

    def may_pass_on(self, now_s: float) -> bool:
        """Whether one more goes to an owner."""
        return self._passed_on.take(now_s)

    def may_relay(self, member: str, asker: str, now_s: float) -> bool:
        """Whether this ask, which a member says he heard from that asker, is looked at. What one member says of him
        uses up nothing of what others may say."""
        if not self._members.take(now_s, member):
            return False
        return self._askers.take(now_s, f"{member} {asker}") and self._relayed.take(now_s)
