"""What is remembered of comparisons is the last of each peer and graph, of so many."""

from __future__ import annotations

from p2pmem_protocol.names import GraphId

from p2pmem.exchange.comparisons import Comparisons
from p2pmem.exchange.sync_client import Comparison
from p2pmem.net.seam import PeerId


def found(graph: int, *, count: int = 0) -> Comparison:
    return Comparison(GraphId(bytes([graph]) * 32), True, count, count, 0)


def test_of_more_comparisons_than_are_kept_those_made_longest_ago_go() -> None:
    compared = Comparisons(kept_max=3)
    compared.note(PeerId("ada"), [found(1), found(2)], 1)
    compared.note(PeerId("bo"), [found(1)], 2)
    compared.note(PeerId("ada"), [found(1, count=7)], 3)
    compared.note(PeerId("cy"), [found(1)], 4)
    last = compared.last()
    assert [(peer, it.at_ms, it.comparison.ours) for (peer, _), it in last.items()] == [
        ("bo", 2, 0),
        ("ada", 3, 7),
        ("cy", 4, 0),
    ]
