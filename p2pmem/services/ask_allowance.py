"""How often somebody may ask to be let in, and how many such asks a member passes on to an owner.

Each ask costs signatures to check, here and at the owner's node. Pure: time is an argument. Whether a graph is known
here makes no difference to what an asker may, so running dry tells him nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pmem_protocol.errors import MisuseError

from p2pmem.net.allowance import Allowance


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLimits:
    """Asks to be let in. Who waits to be let in asks again every other second."""

    per_peer_at_once: int = 4
    """Join streams of one peer, in any state, and answers that one peer has not taken in yet."""
    per_peer_per_minute: int = 60
    per_address_per_minute: int = 240
    """The same from one IP address (one /48 in IPv6, which is what anybody gets for nothing)."""
    passed_on_per_minute: int = 960
    """What a member passes on to owners in all, and what an owner hears from one member."""
    relayed_per_minute: int = 1_920
    """What an owner hears from all members."""
    relayed_at_once: int = 64
    """Asks that members pass on, heard at once by an owner: in all,"""
    relayed_per_member_at_once: int = 32
    """and of one member."""
    accounts_max: int = 1_024
    """For how many peers, and for how many addresses, it is remembered what they asked; of more, the one that asked
    nothing for longest is forgotten."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise MisuseError(f"ask limit {name} must be positive, not {getattr(self, name)}")


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
