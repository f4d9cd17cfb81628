"""Taking in what peers say at a pace: so much a minute, and what is too much later. Nothing is refused, so a peer that
honestly has much to say is slower and no more.

Who owns a context graph lists a thousand keys of his own, each with an account as a member. So a graph has an account,
too, and everybody in it uses that up together. Who shares several graphs with us uses one that has enough: nothing that
is done in one of them keeps waiting who is in another (`shares.py` does the same with places)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Final

import trio

from p2pmem.net.allowance import Allowance
from p2pmem.net.seam import PeerId, StreamClosedError

TURNS_AT_ONCE: Final = 64
"""After so many there is a moment for all else: they take some 3 ms."""


class Pace:
    """One account for each key, full at first: an address, or a member by its name. And one for each graph."""

    def __init__(
        self,
        address_of: Callable[[PeerId], str],
        per_minute: int,
        accounts_max: int,
        *,
        graphs_of: Callable[[PeerId], Collection[Hashable]] = lambda peer: (),
        graph_per_minute: int = 1,
    ) -> None:
        """`address_of` is where a peer is connected from, empty when it is not; `graphs_of` are the graphs that we
        share with it. Accounts of graphs are as many as this node takes part in."""
        self._address_of, self._graphs_of = address_of, graphs_of
        self._account = Allowance(per_minute, accounts_max)
        self._graphs = Allowance(graph_per_minute, accounts_max)
        self._turns = 0

    async def turn(self, key: str, peer: PeerId, count: int = 1) -> None:
        """Wait until one more word of this peer may be taken in, which counts as so many. Now and then a checkpoint:
        many may come in one read.

        Raises `StreamClosedError` when it has to wait and the peer is gone by then: what it left behind would keep a
        task for as long as it said.
        """
        later_s = self.owe(key, peer, count)
        self._turns += count
        if later_s or self._turns >= TURNS_AT_ONCE:
            self._turns = 0
            await trio.sleep(later_s)
        if later_s and not self._address_of(peer):
            raise StreamClosedError(f"{peer} is gone: what it left behind is not looked at")

    def owe(self, key: str, peer: PeerId, count: int) -> float:
        """Count so many more, which are taken in already: the next turn waits for them. In how many seconds they have
        grown back."""
        now_s = trio.current_time()
        later_s = self._account.take_later(now_s, key, count)
        if graphs := self._graphs_of(peer):
            later_s = max(later_s, self._graphs.take_of_one_later(now_s, graphs, count))
        return later_s
