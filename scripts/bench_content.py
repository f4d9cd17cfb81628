#!/usr/bin/env python3
"""How fast content is made, checked and refused, beside the raw hashes in the same run.

    python scripts/bench_content.py [--json]

Each figure is the best of several rounds, in milliseconds of this process's time on the processor, so that a busy
machine disturbs it little. Exits 1 where a figure is over its aim.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

REPO = Path(__file__).parents[1]
sys.path[:0] = [str(REPO / "protocol")]

import pyoxigraph as ox  # noqa: E402
import sha3  # noqa: E402
from p2pmem_protocol import merkle  # noqa: E402
from p2pmem_protocol.content import Content, check_canonical, make_content  # noqa: E402
from p2pmem_protocol.errors import RefusedError  # noqa: E402
from p2pmem_protocol.rdfc import Quad, canonicalize  # noqa: E402

STATEMENTS = 10_000
ROUNDS = 5
P = "<http://example.org/p>"


@dataclass(frozen=True, slots=True)
class Figure:
    """`aim_ms` is the most it may take, None where nothing was promised."""

    name: str
    ms: float
    aim_ms: float | None = None

    @property
    def is_met(self) -> bool:
        return self.aim_ms is None or self.ms <= self.aim_ms


def best_ms(work: Callable[[], object]) -> float:
    """The least processor time of a few rounds, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        times.append((time.process_time() - begin) * 1000)
    return round(min(times), 2)


def ground() -> list[ox.Triple]:
    return [
        ox.Triple(
            ox.NamedNode(f"http://example.org/finding/{number // 5}"),
            ox.NamedNode(f"http://example.org/vocabulary#p{number % 5}"),
            ox.Literal(f"value number {number} of a finding", language="en"),
        )
        for number in range(STATEMENTS)
    ]


def with_blank_nodes(nodes: int = 2_000) -> list[ox.Triple]:
    def value(number: int) -> ox.BlankNode | ox.Literal:
        return ox.BlankNode(f"x{number * 7 % nodes}") if number % 5 > 2 else ox.Literal(f"value {number}")

    return [
        ox.Triple(ox.BlankNode(f"x{number // 5}"), ox.NamedNode(f"http://example.org/p{number % 5}"), value(number))
        for number in range(STATEMENTS)
    ]


def poison() -> dict[str, list[Quad]]:
    first, rest = (f"<http://www.w3.org/1999/02/22-rdf-syntax-ns#{word}>" for word in ("first", "rest"))
    cases: dict[str, list[Quad]] = {
        f"complete graph of {size}": [(f"_:n{a}", P, f"_:n{b}", "") for a in range(size) for b in range(size) if a != b]
        for size in (6, 8, 10, 12)
    }
    cells: list[Quad] = [(f"_:n{at}", first, '"0"', "") for at in range(1_000)]
    cases["list of 1,000 equal literals"] = cells + [
        (f"_:n{at}", rest, f"_:n{at + 1}" if at < 999 else "<urn:nil>", "") for at in range(1_000)
    ]
    cases["list of 250 equal literals"] = cells[:250] + [
        (f"_:n{at}", rest, f"_:n{at + 1}" if at < 249 else "<urn:nil>", "") for at in range(250)
    ]
    cases["ring of 1,000"] = [(f"_:n{at}", P, f"_:n{(at + 1) % 1_000}", "") for at in range(1_000)]
    cases["ring of 250"] = [(f"_:n{at}", P, f"_:n{(at + 1) % 250}", "") for at in range(250)]
    cases["two hubs with 5,000 leaves"] = [(f"_:h{hub}", P, f"_:n{leaf}", "") for hub in "ab" for leaf in range(5_000)]
    return cases


def answered_or_refused(quads: list[Quad]) -> bool:
    try:
        canonicalize(quads)
    except RefusedError:
        return False
    return True


def verify_often(content: Content, lines: list[bytes], proof: merkle.Proof) -> None:
    for _ in range(1_000):
        merkle.verify(content.root, content.line_count, lines[1], proof)


def measure() -> list[Figure]:
    triples, blank = ground(), with_blank_nodes()
    content, blank_content = make_content(triples), make_content(blank)
    lines = content.lines()

    def seal() -> bytes:
        return make_content(triples).root

    figures = [
        Figure("sha256 of each line, raw", best_ms(lambda: [hashlib.sha256(line).digest() for line in lines])),
        Figure("keccak of each line, raw", best_ms(lambda: [sha3.keccak_256(line).digest() for line in lines])),
        Figure("sha256 of the whole, raw", best_ms(lambda: hashlib.sha256(content.data).digest())),
        Figure("canonical form", best_ms(lambda: make_content(triples))),
        Figure("check of a peer's bytes", best_ms(lambda: check_canonical(content.data))),
        Figure("Merkle root", best_ms(lambda: merkle.root(lines)), 60),
        Figure("seal path: canonical form and root", best_ms(seal), 150),
        Figure("canonical form, 2,000 blank nodes", best_ms(lambda: make_content(blank)), 1_000),
        Figure("check, 2,000 blank nodes", best_ms(lambda: check_canonical(blank_content.data)), 1_000),
    ]
    for name, quads in poison().items():
        verb = "answered" if answered_or_refused(quads) else "refused"
        figures.append(Figure(f"{name}: {verb}", best_ms(partial(answered_or_refused, quads)), 500))
    return [
        *figures,
        Figure("1,000 proofs verified", best_ms(partial(verify_often, content, lines, merkle.prove(lines, 1)))),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object for each figure")
    as_json = parser.parse_args().json
    figures = measure()
    raw = next(figure.ms for figure in figures if figure.name.startswith("keccak"))
    if not as_json:
        print(f"{STATEMENTS} statements; the ratio is to the raw keccak of each line")
    for figure in figures:
        if as_json:
            print(json.dumps({**asdict(figure), "ratio": round(figure.ms / raw, 2)}))
        else:
            aim = "" if figure.aim_ms is None else f"   aim {figure.aim_ms:g} ms{'' if figure.is_met else ': MISSED'}"
            print(f"{figure.name:48}{figure.ms:9.2f} ms{figure.ms / raw:8.2f}{aim}")
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
