"""A few rows of the table of attacks, and the table that the documentation shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .attacks import ATTACKS
from .soak import LOOKS, Report, soak
from .table import HEADS, KINDS, Held, Outcome, lines, try_attack

README = Path(__file__).resolve().parents[2] / "p2pmem" / "net" / "README.md"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [
        ("garbage instead of a protobuf", "stock", "dies"),
        ("garbage instead of a protobuf", "ours", "survives"),
        ("plaintext, with somebody else's public key", "stock", "fooled"),
        ("plaintext, with somebody else's public key", "ours", "survives"),
        ("a validator that raises", "ours", "survives"),
        ("large writes that are given up half way", "ours", "survives"),
    ],
)
async def test_what_py_libp2p_as_it_comes_suffers_our_host_survives(name: str, kind: str, word: str) -> None:
    assert (await try_attack(name, kind)).word == word


def test_the_table_of_the_documentation_has_every_attack_and_our_host_survives_each() -> None:
    text = README.read_text().partition("\n## Attacks\n")[2]
    head, _, *rows = [line for line in text.splitlines() if line.startswith("| ")][: 2 + len(ATTACKS)]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in (head, *rows)]
    assert cells[0] == ["attack", *(HEADS[kind] for kind in KINDS)]
    assert [row[0] for row in cells[1:]] == list(ATTACKS)
    assert {row[2] for row in cells[1:]} == {"survives"}


def test_a_table_is_aligned_and_says_what_was_seen() -> None:
    rows = [("one", {"stock": Outcome("dies", "DecodeError"), "ours": Outcome("survives")})]
    assert lines(rows, KINDS) == [
        "| attack | py-libp2p 0.8.1 as it comes | here     |",
        "| ------ | --------------------------- | -------- |",
        "| one    | dies: DecodeError           | survives |",
    ]


@pytest.mark.slow
@pytest.mark.processes
async def test_what_the_host_holds_is_flat_over_some_hundred_connections_and_it_is_said() -> None:
    """`scripts/bench soak` takes ten thousand, and then an hour of everything."""
    report = await soak(200, 0, 12)
    assert (len(report.in_turn), report.done["connections in turn, refused"]) == (LOOKS, 0)
    assert list(report.troubles()) == []


def test_a_soak_says_what_grew_and_one_large_look_is_no_growth() -> None:
    held = [Held(100_000_000 + 20_000_000 * (number == 9), 10, 5) for number in range(10)]
    assert list(Report(held[0], everything=held).troubles()) == []
    grown = [Held(100_000_000 + 3_000_000 * number, 10 + 2 * number, 5 + number) for number in range(10)]
    assert list(Report(grown[0], everything=grown, unserved=1).troubles()) == [
        "15.0 MB more in the later half than in the first",
        "18 tasks more than at first",
        "9 descriptors more than at first",
        "somebody honest was not served, 1 times",
    ]
