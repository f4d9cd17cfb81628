"""When to compare with whom next. Numbers and events only: who compares asks here.

Among few members everybody compares with everybody every minute. Among many that would be work that grows with the
square of their number, and tell each the same twenty times: whoever lacks something finds out from any member that has
it. So from `ASKED_A_MINUTE` members on a node compares with about that many in a minute, and with each in turn.

A pair that is equal again and again waits twice as long each time, and where something is said all the time four
periods at most. That is enough, since some ten seconds after anything new each member asks the next one `around` the
ring of all, so that everybody is asked by somebody. The ring is dealt anew every few minutes: nobody stands before
another for long who keeps something from him, or has no connection with him. A difference that a comparison finds says
that gossip loses something: it brings all pairs back to one period.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import trio
from p2pmem_protocol.limits import MINUTE_MS
from p2pmem_protocol.names import GraphId

from p2pmem.net.seam import PeerId

PERIOD_S: Final = 60.0
QUIET_PERIOD_S_MAX: Final = 15 * 60.0
ASKED_A_MINUTE: Final = 4
SPREAD_MAX: Final = 1.2
"""Periods have a jitter of so much, so that peers spread out."""
DIFFERS_PAUSE_S: Final = 1.0
NO_PROGRESS_PAUSE_S: Final = 5.0
NEVER_S: Final = float("-inf")
RING_MS: Final = 5 * MINUTE_MS
"""So long a ring is the same. Around its end clocks may disagree, and somebody may be asked by two or by nobody."""
QUIET_WITH_NEWS_MAX: Final = 2
"""How often a pair's wait is doubled where there is news."""


def period_s(members: int) -> float:
    """How long from one comparison with a member to the next, when this many are connected."""
    return min(PERIOD_S * max(1.0, members / ASKED_A_MINUTE), QUIET_PERIOD_S_MAX)


def around(me: PeerId, others: Iterable[PeerId], now_ms: int) -> Iterator[PeerId]:
    """The others in the order of a ring of all peers, from the next one on. Where everybody is connected with
    everybody, and each asks the first, everybody is asked by exactly one. Whoever's clocks agree on the minutes has the
    same ring; nobody chooses a place in it with his name."""
    turn = now_ms // RING_MS

    def place(peer: PeerId) -> tuple[bytes, PeerId]:
        return sha256(f"{turn} {peer}".encode()).digest(), peer

    ring = sorted(others, key=place)
    at = bisect(ring, place(me), key=place)
    yield from ring[at:]
    yield from ring[:at]


@dataclass(slots=True)
class Comparer:
    """When to compare with one peer next."""

    graphs: set[GraphId] | None = None
    """Which graphs; None stands for all."""
    wanted: trio.Event = field(default_factory=trio.Event)
    meets: bool = True
    """Whether to ask whom else the peer is connected to."""
    quiet: int = 0
    """How many comparisons in a row found both equal; counted on from `QUIET_WITH_NEWS_MAX` after news."""
    due_s: float = 0.0
    equal_s: float = NEVER_S
    """When both were last found equal."""
    stuck: int = 0
    """How many comparisons in a row found a difference and could not mend it, or failed."""
    rested_s: float = NEVER_S
    """When the pause after the last comparison is over: before that there is none, even if one is wanted."""
    rested_soon_s: float = NEVER_S
    """When it would be over after one that made progress."""
    heads: dict[GraphId, bytes] = field(default_factory=dict)
    """The peer's heads of which it has told when ours were others."""
    sooner: trio.Event = field(default_factory=trio.Event)
    """`due_s` or `rested_s` was brought forward, or something is wanted."""

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
        self.due_s = now_s + _wait_s(period_s, self.quiet) * spread
        if equal:
            self.quiet, self.equal_s = min(self.quiet + 1, 10), now_s
        else:
            self.quiet = 0

    def pause_s(self, *, progress: bool) -> float:
        """How long to let be after a comparison, even if another is wanted: what is under way may arrive. What could
        not be mended now, as the words of somebody whose clock is ahead, is tried less and less often."""
        if progress:
            self.stuck = 0
            return DIFFERS_PAUSE_S
        self.stuck += 1
        return min(NO_PROGRESS_PAUSE_S * 2.0 ** min(self.stuck - 1, 10), PERIOD_S)

    def pause(self, spread: Callable[[], float], *, progress: bool) -> None:
        """A comparison was made: let be for as long as `pause_s` says. `spread` draws a number about 1."""
        now_s, drawn = trio.current_time(), spread()
        self.rested_soon_s = now_s + DIFFERS_PAUSE_S * drawn
        self.rested_s = now_s + self.pause_s(progress=progress) * drawn

    def new_head(self) -> None:
        """One of both has a head that is new to the other. Only a comparison tells of it, and it may be mended whatever
        could not be mended before: the pause is the short one."""
        self.stuck = 0
        self.rested_s = min(self.rested_s, self.rested_soon_s)
        self.sooner.set()

    def told_head(self, graph: GraphId, head: bytes) -> None:
        """The peer told of a head that is not ours. Told of the same one again, nothing is new."""
        if self.heads.get(graph) != head:
            self.heads[graph] = head
            self.new_head()

    def news(self, period_s: float, spread: Callable[[], float]) -> None:
        """Our set has changed: the next comparison is not too far. `spread` draws a number about 1."""
        self.stuck = 0
        self._rest_less(QUIET_WITH_NEWS_MAX, period_s, spread)

    def differed(self, period_s: float, spread: Callable[[], float]) -> None:
        """With somebody there was a difference, which gossip should not have left: the next is due in a period."""
        self._rest_less(0, period_s, spread)

    def _rest_less(self, quiet_max: int, period_s: float, spread: Callable[[], float]) -> None:
        if self.quiet <= quiet_max:
            return
        self.quiet = quiet_max
        now_s, wait_s = trio.current_time(), _wait_s(period_s, quiet_max)
        if self.due_s > now_s + wait_s * SPREAD_MAX:
            self.due_s = now_s + wait_s * spread()
            self.sooner.set()


def _wait_s(period_s: float, quiet: int) -> float:
    return min(period_s * 2.0**quiet, QUIET_PERIOD_S_MAX)
