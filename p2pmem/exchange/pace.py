"""When to compare with whom next. Numbers and events only: who compares asks here.

Among few members everybody compares with everybody every minute. Among many that would be work that grows with the
square of their number, and tell each the same twenty times: whoever lacks something finds out from any member that has
it. So from `ASKED_A_MINUTE` members on a node compares with about that many in a minute, and with each in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio
from p2pmem_protocol.names import GraphId

PERIOD_S: Final = 60.0
QUIET_PERIOD_S_MAX: Final = 15 * 60.0
ASKED_A_MINUTE: Final = 4
SPREAD_MAX: Final = 1.2
"""Periods have a jitter of so much, so that peers spread out."""
NEVER_S: Final = float("-inf")


def period_s(members: int) -> float:
    """How long from one comparison with a member to the next, when this many are connected."""
    return min(PERIOD_S * max(1.0, members / ASKED_A_MINUTE), QUIET_PERIOD_S_MAX)


@dataclass(slots=True)
class Comparer:
    """When to compare with one peer next."""

    graphs: set[GraphId] | None = None
    """Which graphs; None stands for all."""
    wanted: trio.Event = field(default_factory=trio.Event)
    meets: bool = True
    """Whether to ask whom else the peer is connected to."""
    quiet: int = 0
    """How many comparisons since the last news found both equal."""
    due_s: float = 0.0
    equal_s: float = NEVER_S
    """When both were last found equal."""
    sooner: trio.Event = field(default_factory=trio.Event)
    """`due_s` was brought forward, or something is wanted."""

    def want(self, graph: GraphId | None) -> None:
        if graph is None:
            self.graphs = None
        elif self.graphs is not None:
            self.graphs.add(graph)
        self.wanted.set()
        self.sooner.set()

    def take(self) -> set[GraphId] | None:
        """What to compare now. Nobody asked for anything: it is time, for all."""
        graphs, self.graphs, self.wanted = self.graphs, set(), trio.Event()
        return graphs

    def rest(self, period_s: float, spread: float, *, equal: bool) -> None:
        """A comparison was made. Equal: the next one but one may wait twice as long."""
        now_s = trio.current_time()
        self.due_s = now_s + min(period_s * 2**self.quiet, QUIET_PERIOD_S_MAX) * spread
        if equal:
            self.quiet, self.equal_s = min(self.quiet + 1, 10), now_s
        else:
            self.quiet = 0

    def news(self, period_s: float, spread: Callable[[], float]) -> None:
        """Our set has changed: the next comparison is due in a period at most. `spread` draws a number about 1."""
        self.quiet = 0
        now_s = trio.current_time()
        if self.due_s > now_s + period_s * SPREAD_MAX:
            self.due_s = now_s + period_s * spread()
            self.sooner.set()
