"""RDFC-1.0: the suite of the W3C, and an end within the budget whatever comes."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyoxigraph as ox
import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import rdfc
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.rdfc import (
    PROTOCOL_BUDGET,
    Budget,
    Canonical,
    HashAlgorithm,
    Quad,
    Work,
    canonicalize,
    line_of,
    quad_of,
)

from tests.suites import Suites

P = "<http://example.org/p>"
RDF = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#"


def quads_of(data: bytes) -> list[Quad]:
    return [quad_of(quad) for quad in ox.parse(data, ox.RdfFormat.N_QUADS)]


def clique(size: int) -> list[Quad]:
    return [(f"_:n{a}", P, f"_:n{b}", "") for a in range(size) for b in range(size) if a != b]


def ring(size: int) -> list[Quad]:
    return [(f"_:n{at}", P, f"_:n{(at + 1) % size}", "") for at in range(size)]


def list_of_equal_literals(size: int) -> list[Quad]:
    quads: list[Quad] = [("<http://example.org/s>", P, "_:n0", "")]
    for at in range(size):
        rest = f"_:n{at + 1}" if at + 1 < size else f"{RDF}nil>"
        quads += [(f"_:n{at}", f"{RDF}first>", '"0"', ""), (f"_:n{at}", f"{RDF}rest>", rest, "")]
    return quads


def star(leaves: int) -> list[Quad]:
    return [(f"_:hub{hub}", P, f"_:n{leaf}", "") for hub in range(2) for leaf in range(leaves)]


def grid(side: int) -> list[Quad]:
    across = [(f"_:n{a}x{b}", P, f"_:n{(a + 1) % side}x{b}", "") for a in range(side) for b in range(side)]
    down = [(f"_:n{a}x{b}", P, f"_:n{a}x{(b + 1) % side}", "") for a in range(side) for b in range(side)]
    return across + down


def relabelled_and_shuffled(quads: list[Quad], seed: int) -> list[Quad]:
    source = random.Random(seed)
    nodes = sorted({term for quad in quads for term in quad if term.startswith("_:")})
    others = [f"_:x{n}" for n in source.sample(range(len(nodes)), k=len(nodes))]
    names = dict(zip(nodes, others, strict=True))
    renamed = [tuple(names.get(term, term) for term in quad) for quad in quads]
    source.shuffle(renamed)
    return [(s, p, o, g) for s, p, o, g in renamed]


def within(work: Work, budget: Budget) -> bool:
    return (
        work.calls <= budget.calls
        and work.permutations <= budget.permutations
        and work.visits <= budget.visits
        and work.deepest <= budget.depth
    )


def test_the_suite_of_the_w3c_passes(shared_data: Path, suites: Suites) -> None:
    tests = shared_data / "rdf-canon" / "tests"
    passed = {"rdfc:RDFC10EvalTest": 0, "rdfc:RDFC10MapTest": 0, "rdfc:RDFC10NegativeEvalTest": 0}
    failed = [
        entry["id"]
        for entry in json.loads((tests / "manifest.jsonld").read_bytes())["entries"]
        if not suites("W3C RDF canonicalization, RDFC-1.0").case(passes(tests, entry, passed))
    ]
    assert failed == []
    assert list(passed.values()) == [64, 21, 1]


def passes(tests: Path, entry: dict[str, Any], passed: dict[str, int]) -> bool:
    quads = quads_of((tests / entry["action"]).read_bytes())
    algorithm = HashAlgorithm[entry.get("hashAlgorithm", "SHA256")]
    if entry["type"] == "rdfc:RDFC10NegativeEvalTest":
        with pytest.raises(RefusedError) as caught:
            canonicalize(quads, algorithm=algorithm)
        good = caught.value.reason is Reason.CONTENT_OVER_BUDGET
    else:
        canonical = canonicalize(quads, algorithm=algorithm)
        expected = (tests / entry["result"]).read_bytes()
        if entry["type"] == "rdfc:RDFC10MapTest":
            good = json.loads(expected) == {key[2:]: label[2:] for key, label in canonical.labels.items()}
        else:
            good = "".join(canonical.lines).encode() == expected
    passed[entry["type"]] += good
    return good


POISON = [
    *(pytest.param(clique(size), id=f"complete graph of {size}") for size in range(6, 13)),
    pytest.param(list_of_equal_literals(1000), id="list of 1,000 equal literals"),
    pytest.param(ring(1000), id="ring of 1,000"),
    pytest.param(ring(250), id="ring of 250"),
    pytest.param(star(5000), id="two hubs with 5,000 leaves"),
    pytest.param(grid(20), id="torus of 400"),
]


@pytest.mark.parametrize("quads", POISON)
def test_poison_ends_in_an_answer_or_a_refusal_within_the_budget(quads: list[Quad]) -> None:
    ended = answer_or_refusal(quads)
    if isinstance(ended, RefusedError):
        assert ended.reason is Reason.CONTENT_OVER_BUDGET
        assert len(str(ended)) < 300
    else:
        assert within(ended.work, PROTOCOL_BUDGET)
        assert len(ended.lines) == len(quads)


def answer_or_refusal(quads: list[Quad]) -> Canonical | RefusedError:
    try:
        return canonicalize(quads)
    except RefusedError as refusal:
        return refusal


@pytest.mark.parametrize("size", [3, 10, 100])
def test_a_list_of_equal_literals_of_usual_length_is_answered(size: int) -> None:
    quads = list_of_equal_literals(size)
    assert canonicalize(quads).lines == canonicalize(relabelled_and_shuffled(quads, size)).lines


def test_each_limit_of_the_budget_is_exact() -> None:
    quads = ring(9) + clique(4)
    work = canonicalize(quads).work
    exact = Budget(work.calls, work.permutations, work.visits, work.deepest)
    assert canonicalize(quads, exact).work == work
    for less in (
        Budget(work.calls - 1, work.permutations, work.visits, work.deepest),
        Budget(work.calls, work.permutations - 1, work.visits, work.deepest),
        Budget(work.calls, work.permutations, work.visits - 1, work.deepest),
        Budget(work.calls, work.permutations, work.visits, work.deepest - 1),
    ):
        with pytest.raises(RefusedError) as caught:
            canonicalize(quads, less)
        assert caught.value.reason is Reason.CONTENT_OVER_BUDGET


@pytest.mark.parametrize(
    ("quads", "work"),
    [
        pytest.param(clique(5), Work(485, 4_080, 8_680, 2), id="complete graph of 5"),
        pytest.param(clique(6), Work(3_606, 37_440, 79_260, 2), id="complete graph of 6"),
        pytest.param(ring(100), Work(10_000, 20_000, 40_000, 100), id="ring of 100"),
        pytest.param(list_of_equal_literals(50), Work(2_304, 4_608, 9_216, 48), id="list of 50"),
        pytest.param(star(5), Work(985, 2_230, 4_990, 3), id="two hubs with 5 leaves"),
        pytest.param(grid(4), Work(5_456, 21_824, 45_312, 12), id="torus of 16"),
    ],
)
def test_what_is_counted_is_part_of_the_protocol(quads: list[Quad], work: Work) -> None:
    assert canonicalize(quads).work == work


def test_blank_nodes_that_differ_at_once_use_no_budget() -> None:
    quads: list[Quad] = [(f"_:n{n}", P, f'"{n}"', "") for n in range(100)]
    assert canonicalize(quads, Budget(0, 0, 0, 0)).work == Work()


def test_the_depth_is_ours_and_not_that_of_the_interpreter() -> None:
    quads = list_of_equal_literals(90)
    here = frames_in_use()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(here + 40)
    try:
        work = canonicalize(quads).work
    finally:
        sys.setrecursionlimit(before)
    assert work.deepest > 40


def frames_in_use() -> int:
    frame: FrameType | None = sys._getframe()
    count = 0
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


def test_the_same_quads_use_the_same_work_in_whatever_order_they_come() -> None:
    quads = ring(12) + star(4)
    assert canonicalize(quads).work == canonicalize(quads[::-1] + quads).work


def test_with_named_graphs_the_standard_has_no_one_form_which_is_why_content_has_one_graph() -> None:
    graph = "<http://example.org/g>"

    def forms(graph: str) -> set[tuple[str, ...]]:
        quads: list[Quad] = [
            ("_:a", P, "_:c", graph),
            ("_:a", P, "_:d", ""),
            ("_:b", P, "_:d", graph),
            ("_:b", P, "_:c", ""),
        ]
        return {tuple(canonicalize(relabelled_and_shuffled(quads, seed)).lines) for seed in range(40)}

    assert len(forms(graph)) > 1
    assert len(forms("")) == 1


NODES = st.sampled_from(["_:a", "_:b", "_:c", "_:d", "_:e", "<http://example.org/i>"])
QUADS = st.lists(
    st.tuples(
        NODES,
        st.sampled_from([P, "<http://example.org/q>"]),
        st.one_of(NODES, st.sampled_from(['"x"', '"x"@en', '"01"^^<http://www.w3.org/2001/XMLSchema#integer>'])),
        # One graph: with named graphs the standard itself does not hold what these tests ask, see below.
        st.just(""),
    ),
    max_size=14,
)


@given(quads=QUADS, seed=st.integers(0, 2**16))
def test_labels_and_order_of_the_input_do_not_matter(quads: list[Quad], seed: int) -> None:
    assert canonicalize(quads).lines == canonicalize(relabelled_and_shuffled(quads, seed)).lines


@given(quads=QUADS)
def test_a_canonical_form_is_its_own_canonical_form(quads: list[Quad]) -> None:
    canonical = canonicalize(quads)
    again = canonicalize(quads_of("".join(canonical.lines).encode()))
    assert again.lines == canonical.lines


@given(quads=QUADS)
def test_another_implementation_comes_to_the_same_form(quads: list[Quad]) -> None:
    dataset = ox.Dataset(ox.parse("".join(map(line_of, quads)).encode(), ox.RdfFormat.N_QUADS))
    dataset.canonicalize(ox.CanonicalizationAlgorithm.RDFC_1_0)
    theirs = ox.serialize(dataset, format=ox.RdfFormat.N_QUADS)
    assert isinstance(theirs, bytes)
    assert canonicalize(quads).lines == sorted(theirs.decode().splitlines(keepends=True))


def test_the_work_is_counted_in_one_order_whatever_the_order_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two peers might disagree whether the same content is over the budget."""
    seen: list[list[rdfc.Quad]] = []

    class Spy(rdfc._Run):
        def __init__(self, quads: list[rdfc.Quad], budget: rdfc.Budget, algorithm: rdfc.HashAlgorithm) -> None:
            seen.append(quads)
            super().__init__(quads, budget, algorithm)

    monkeypatch.setattr(rdfc, "_Run", Spy)
    quads = [(f"_:b{number}", "<p>", f'"{number}"', "") for number in range(100)]
    rdfc.canonicalize([*quads, *quads[::-1]])
    assert seen == [sorted(quads)]


def edges(*pairs: tuple[int, int]) -> list[rdfc.Quad]:
    return [(f"_:b{one}", "<urn:p>", f"_:b{other}", "") for one, other in pairs]


@pytest.mark.parametrize(
    ("quads", "work"),
    [
        pytest.param(edges(*itertools.permutations(range(5), 2)), Work(485, 4_080, 8_680, 2), id="complete graph of 5"),
        pytest.param(edges(*((n, (n + 1) % 6) for n in range(6))), Work(36, 72, 144, 6), id="ring of 6"),
        pytest.param(
            edges(*((n, n // 3 * 3 + (n + 1) % 3) for n in range(6))), Work(18, 36, 72, 3), id="two rings of 3"
        ),
        pytest.param(
            edges(*((n, n ^ bit) for n in range(8) for bit in (1, 2, 4))), Work(536, 3_264, 6_864, 5), id="cube"
        ),
    ],
)
def test_work_is_counted_as_by_every_peer(quads: list[rdfc.Quad], work: Work) -> None:
    assert rdfc.canonicalize(quads).work == work


def test_a_blank_graph_name_is_hashed_without_the_predicate() -> None:
    """RDFC-1.0, 4.7: the predicate is read for subjects and objects only."""
    run = rdfc._Run([("_:s", "<urn:p>", "_:o", "_:g")], rdfc.PROTOCOL_BUDGET, rdfc.HashAlgorithm.SHA256)
    begun = {link.other: link.begun.hexdigest() for node in ("_:s", "_:g") for link in run._links(node)}
    expected = {"_:g": "g", "_:s": "s<urn:p>", "_:o": "o<urn:p>"}
    assert begun == {node: hashlib.sha256(text.encode()).hexdigest() for node, text in expected.items()}
