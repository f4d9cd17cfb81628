"""Snapshots of a part of the kinds, for peers that do not know all: few, shared by all peers, and seldom built.

Which kinds a peer knows is what it says, so whoever names another part each time must not make this node build, or
hold, a snapshot for each. Honest peers of one release name the same part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.snapshot import Snapshot

NARROWED_MAX: Final = 4
"""For so many parts of the kinds a snapshot is held; of more, the one built longest ago goes."""
BUILD_PAUSE_MS: Final = 2_000
"""Between two that are built, whatever is asked."""
REUSED_MS: Final = NARROWED_MAX * BUILD_PAUSE_MS
"""How long one serves before it is built anew, so that each of them gets its turn."""


class NarrowedSnapshots:
    """Those of one graph."""

    def __init__(self) -> None:
        self._held: OrderedDict[frozenset[Kind], tuple[Snapshot, int]] = OrderedDict()
        self._last_ms = -BUILD_PAUSE_MS

    def __len__(self) -> int:
        return len(self._held)

    def get(self, kinds: frozenset[Kind], now_ms: int, build: Callable[[], Snapshot]) -> Snapshot | None:
        """The one of these kinds, as it is now or was some seconds ago; None when none is held and another was built
        just before. `now_ms` is this node's own clock: what a peer says of the time decides nothing here."""
        snapshot, built_ms = self._held.get(kinds, (None, 0))
        if snapshot is not None and 0 <= now_ms - built_ms < REUSED_MS:
            return snapshot
        if 0 <= now_ms - self._last_ms < BUILD_PAUSE_MS:
            return snapshot
        snapshot = build()
        self._held[kinds] = snapshot, now_ms
        self._held.move_to_end(kinds)
        self._last_ms = now_ms
        if len(self._held) > NARROWED_MAX:
            self._held.popitem(last=False)
        return snapshot
