"""Places for running jobs: so many in all, and so many of a kind.

A job that waits gives its place back, and takes one again to go on; those come before jobs that are only claimed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

import trio


class Places:
    """Counts who runs. Belongs to the event loop's thread. `on_free` is called when a place was given back."""

    def __init__(self, total: int, of_kind: Mapping[str, int], on_free: Callable[[], None]) -> None:
        self._total = total
        self._of_kind = of_kind
        self._on_free = on_free
        self._taken: Counter[str] = Counter()
        self._returning: deque[tuple[str, trio.Event]] = deque()
        self._claiming = False

    def free(self, kind: str) -> int:
        """How many jobs of the kind could begin now."""
        return max(0, min(self.free_in_all(), self._of_kind[kind] - self._taken[kind]))

    def free_in_all(self) -> int:
        return max(0, self._total - self._taken.total())

    def begin_claim(self) -> None:
        """Until `end_claim` nobody returns: the places that were counted stay free for what is claimed."""
        assert not self._claiming
        self._claiming = True

    def end_claim(self) -> None:
        assert self._claiming
        self._claiming = False
        self._let_in()

    def take(self, kind: str) -> None:
        assert self.free(kind) > 0
        self._taken[kind] += 1

    async def take_again(self, kind: str) -> None:
        """Waits for a place. Cancelled, it has none."""
        turn = trio.Event()
        self._returning.append((kind, turn))
        self._let_in()
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.give_back(kind)
            else:
                self._returning.remove((kind, turn))
            raise

    def give_back(self, kind: str) -> None:
        assert self._taken[kind] > 0
        self._taken[kind] -= 1
        self._let_in()
        self._on_free()

    def _let_in(self) -> None:
        if self._claiming:
            return
        still: deque[tuple[str, trio.Event]] = deque()
        for kind, turn in self._returning:
            if self.free(kind) > 0:
                self.take(kind)
                turn.set()
            else:
                still.append((kind, turn))
        self._returning = still
