"""Places of those who ask: how many are served at once, and who loses his place when somebody else needs one.

A newcomer always gets a place. Where all are taken, the oldest goes of the address that holds most, and of the peers at
that address of the one that holds most: whoever opens stream after stream pushes out himself. One peer has so many, and
no more.

A place counts from the opening of the stream until a fixed time after the ask was heard, whatever was asked, whatever
becomes of it, and however soon the answer is there. So who else asks, and what, cannot be told from who loses a place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

import trio

from p2pmem.net.room import Origin, at_the_fullest
from p2pmem.net.seam import PeerId


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who asks: who, and from where."""

    peer: PeerId
    origin: Origin


@dataclass(eq=False, slots=True)
class Place:
    """One of the places. `scope` is cancelled when it is lost."""

    caller: Caller
    until_s: float = inf
    """Among all it counts until then, on the clock of trio."""
    kept: bool = False
    """Whether what is done for its holder is done to its end. It may be lost all the same, and he does not feel it."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def heard(self, for_s: float) -> float:
        """The ask is here: from now on the place counts for so long. Returns until when."""
        until_s = trio.current_time() + for_s
        if self.until_s == inf:  # otherwise it was lost
            self.until_s = until_s
        return until_s

    def release(self) -> None:
        """It need not be kept any more; if it was lost meanwhile, that is felt now."""
        self.kept = False
        if self.until_s == -inf:
            self.scope.cancel()

    def lose(self) -> None:
        """It counts no more among all."""
        self.until_s = -inf
        if not self.kept:
            self.scope.cancel()


class Places:
    """So many in all (`most`), and so many of one peer."""

    def __init__(self, *, most: float = inf, per_peer_most: int) -> None:
        self._most = most
        self._per_peer_most = per_peer_most
        self._places: list[Place] = []  # in the order of their opening

    @contextmanager
    def take(self, caller: Caller) -> Iterator[Place]:
        """A place for this caller. What is inside ends without a word when the place is lost, unless it is kept."""
        place = Place(caller)
        self._places.append(place)
        self._make_room(place)
        try:
            with place.scope:
                yield place
        finally:
            place.kept = False
            if place.until_s == inf:  # nothing was heard
                place.until_s = -inf
            self._forget_past()

    def _make_room(self, new: Place) -> None:
        self._forget_past()
        of_peer = [it for it in self._places if it.caller.peer == new.caller.peer]
        if len(of_peer) > self._per_peer_most:
            next(it for it in of_peer if not it.kept).lose()
        now_s = trio.current_time()
        counting = [it for it in self._places if it.until_s > now_s]
        if len(counting) > self._most:
            fullest = at_the_fullest(counting, lambda it: it.caller.origin)
            held_by = Counter(it.caller.peer for it in fullest)
            # `max` takes the first of several: the oldest.
            max(fullest, key=lambda it: held_by[it.caller.peer]).lose()
        self._forget_past()

    def _forget_past(self) -> None:
        now_s = trio.current_time()
        self._places = [it for it in self._places if it.until_s > now_s or it.kept]
