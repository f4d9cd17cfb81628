"""One ask takes one use of an invite, however often it is said, and by whom.

Whoever passes an ask on to the owner has it, signed, and could say it again as long as its clock is near enough: while
it is being answered, to use up the invite; or after a person has refused it, to ask that person for ever. To say it
again is answered as an ask without a good entry is.

Pure: time is an argument. Only what took a use, or is about to, is remembered, so the uses of invites are a bound.
"""

from __future__ import annotations

from p2pmem_protocol.hello import clocks_agree
from p2pmem_protocol.names import Address


class Once:
    """Which asks took a use of late."""

    def __init__(self) -> None:
        self._taken: dict[tuple[Address, Address, int], None] = {}

    def take(self, invite: Address, agent: Address, asked_ms: int, now_ms: int) -> bool:
        """The ask of this agent and moment is to take a use of the invite with that key. False when it has."""
        ask = (invite, agent, asked_ms)
        if ask in self._taken:
            return False
        # What nobody could say again is forgotten.
        self._taken = {it: None for it in self._taken if clocks_agree(now_ms, it[2])}
        self._taken[ask] = None
        return True

    def give_back(self, invite: Address, agent: Address, asked_ms: int) -> None:
        """There was no use to take."""
        self._taken.pop((invite, agent, asked_ms), None)
