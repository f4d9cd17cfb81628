"""What is remembered of comparisons is the last of each peer and graph, of so many."""

from __future__ import annotations

from p2pmem_protocol.names import GraphId

from p2pmem.exchange.comparisons import Comparisons
from p2pmem.exchange.sync_client import Comparison, Refused
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


def test_what_was_refused_while_the_clock_was_years_ahead_is_asked_for_again() -> None:
    refused, now_ms = Refused(), 1_800_000_000_000
    refused.note(b"id", now_ms)
    assert refused.wanted([b"id", b"other"], now_ms + 60_000) == [b"other"]
    assert refused.wanted([b"id"], now_ms + 120_000) == [b"id"]
    refused.note(b"id", now_ms + 10 * 365 * 86_400_000)
    assert refused.wanted([b"id"], now_ms) == [b"id"]
