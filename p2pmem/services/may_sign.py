"""When this node signs nothing for the moment: one place to ask, for jobs, services and people.

    in a graph that was not compared since a restore    nothing at all: the next number may have been used (`restored`)
    while the wall clock is in doubt                    nothing that bears a time: it would stand for what is due before

What a person asks for is refused at once, in words that say what to do. Jobs wait, and say the same words.
"""

from __future__ import annotations

from typing import Final

from p2pmem_protocol.errors import OutsideError

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.services.clock_watch import ClockWatch
from p2pmem.services.restored import Restored

NAMED_MAX: Final = 5


class SigningWaitsError(OutsideError):
    """Nothing is signed for the moment; asked again later, it may be. Nothing was changed."""


class MaySign:
    """Whether the node signs in a graph now."""

    def __init__(self, restored: Restored, watch: ClockWatch) -> None:
        self._restored = restored
        self._watch = watch

    def why_not(self, graph: LedgerGraph, *, dated: bool = True) -> str:
        """Why nothing is signed in a graph now, and what to do; empty when it is. `dated`: what bears a time."""
        if self._restored.waits(graph.id):
            return (
                f"this node was restored from a copy and has not compared {graph.name} with {self._who(graph)} yet: "
                "what it signs now may contradict what it said before. It goes on once it has met all; if nothing was "
                "said since the copy was made, or they come no more, say so: "
                f"`p2pmem restore confirm --graph {graph.name}`"
            )
        if dated and self._watch.look():
            return (
                "the wall clock of this node is in doubt, and what is signed bears its time: set the clock right; or, "
                "if it is right, say so: `p2pmem clock confirm`"
            )
        return ""

    def _who(self, graph: LedgerGraph) -> str:
        missing = self._restored.not_met(graph)
        more = len(missing) - NAMED_MAX
        return ", ".join((*missing[:NAMED_MAX], *([f"{more} more members"] if more > 0 else []))) or "its members"

    def check(self, graph: LedgerGraph, *, dated: bool = True) -> None:
        """Raises `SigningWaitsError` while nothing is signed in a graph."""
        if why := self.why_not(graph, dated=dated):
            raise SigningWaitsError(why)
