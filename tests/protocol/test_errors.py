"""The words of messages."""

from __future__ import annotations

import pytest
from p2pmem_protocol.errors import MisuseError, counted, lasting
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.roster import Access, Limits, Quorum


def test_one_of_something_is_not_many() -> None:
    assert [counted(number, "verifier") for number in (0, 1, 2)] == ["0 verifiers", "1 verifier", "2 verifiers"]


@pytest.mark.parametrize(
    ("duration_ms", "says"),
    [(0, "0 ms"), (250, "250 ms"), (999, "999 ms"), (1_000, "1 s"), (30_000, "30 s"), (60_000, "1 minute"),
     (3_600_000, "1 hour"), (5_400_000, "1.5 hours"), (86_400_000, "1 day"), (3_456_000_000, "40 days")],
)  # fmt: skip
def test_a_duration_is_said_in_its_largest_unit(duration_ms: int, says: str) -> None:
    assert lasting(duration_ms) == says


def test_a_life_that_cannot_be_is_said_in_days() -> None:
    with pytest.raises(MisuseError, match=r"a default life of 40 days and a longest of 30 days: .* 30 days at most"):
        Limits(Access.GATED, Quorum(GraphId(bytes(32)), 0, 0, ()), ttl_default_ms=40 * 86_400_000)
