"""How each graph stood with each peer when they last compared: for `status`, and for who asks what is missing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.names import GraphId

from p2pmem.exchange.sync_client import Comparison
from p2pmem.net.seam import PeerId

KEPT_MAX: Final = 10_000
"""Of more, the one that was made longest ago goes: one member can come as ever new peers."""


@dataclass(frozen=True, slots=True)
class LastComparison:
    """How a graph stood with a peer when they last compared."""

    comparison: Comparison
    at_ms: int


class Comparisons:
    """The last comparison of each peer and graph."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._last: OrderedDict[tuple[PeerId, GraphId], LastComparison] = OrderedDict()

    def note(self, peer: PeerId, found: Iterable[Comparison], now_ms: int) -> None:
        for comparison in found:
            key = (peer, comparison.graph)
            self._last[key] = LastComparison(comparison, now_ms)
            self._last.move_to_end(key)
        while len(self._last) > self._kept_max:
            self._last.popitem(last=False)

    def last(self) -> dict[tuple[PeerId, GraphId], LastComparison]:
        return dict(self._last)
