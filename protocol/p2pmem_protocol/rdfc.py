"""RDF Dataset Canonicalization 1.0 with a budget, so that every peer comes to the same end in bounded time.

RDFC-1.0 gives blank nodes labels that depend on nothing but the dataset. Its last resort, Hash N-Degree Quads, tries
orders of blank nodes that look alike; a few kilobytes can make that take for ever. Here its work is counted, and more
work than the budget allows is refused. What is counted is part of the protocol, and no clock is: two peers that hold
the same quads under the same labels count the same.

What is counted, each against its own limit in `Budget`:

* **calls**: each time Hash N-Degree Quads (4.8) is entered;
* **permutations**: each permutation begun in step 5.4 of it;
* **visits**: each blank node looked at inside of it, that is each Hash Related Blank Node (4.7) and each element of a
  permutation (5.4.4) that is reached;
* **depth**: calls of Hash N-Degree Quads within each other. Nothing here recurses, so Python's stack does not matter.

Rules that fix the count where the text of the standard leaves an order open. They cannot change the result:

* quads are taken in ascending order of (subject, predicate, object, graph), terms compared by code point as N-Quads
  writes them, each quad once;
* within a quad: subject, object, graph; permutations in lexicographic order of positions, the first is the list as
  gathered; a permutation ends where the standard lets it be skipped (5.4.4.3, 5.4.5.5).

The count still depends on the labels that came in, because they order the quads. Whoever makes content therefore runs
the algorithm again over its own result: what that second run accepts, every peer accepts.

What the standard does not promise: Hash Related Blank Node reads no graph name, so in a dataset with *named graphs* two
blank nodes that differ only in which graph a quad is in can be told apart by nothing but the order in which they came,
and equal datasets get different forms. (`a p c` in g and `a p d`, `b p d` in g and `b p c` is enough.) In one graph
each quad shows all that it says of two blank nodes, and this does not happen. Content has one graph.

A quad is four strings here, each as N-Quads writes the term, blank nodes as `_:label`, the default graph as the empty
string. `quad_of` makes one from pyoxigraph's terms.

Source: W3C Recommendation "RDF Dataset Canonicalization", 21 May 2024, section 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import permutations
from typing import Final, TypeAlias

import pyoxigraph as ox

from p2pmem_protocol.errors import Reason, RefusedError

Quad: TypeAlias = tuple[str, str, str, str]
"""Subject, predicate, object and graph as N-Quads writes them; "" is the default graph."""


class HashAlgorithm(Enum):
    """The hash inside of the algorithm. Content of this protocol uses SHA-256, the default of the standard."""

    SHA256 = "sha256"
    SHA384 = "sha384"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much work Hash N-Degree Quads may do for one dataset; the module says what is counted."""

    calls: int
    permutations: int
    visits: int
    depth: int


# Part of the protocol. A list of 100 equal literals needs half of it, a real vocabulary less than a hundredth.
PROTOCOL_BUDGET: Final = Budget(calls=20_000, permutations=40_000, visits=120_000, depth=256)


@dataclass(slots=True)
class Work:
    """What one run has used of its budget."""

    calls: int = 0
    permutations: int = 0
    visits: int = 0
    deepest: int = 0


@dataclass(frozen=True, slots=True)
class Canonical:
    """A dataset in canonical form: its lines in code point order, each with its line feed, and how it was reached.

    `labels` maps each blank node of the input (`_:b`) to its canonical one (`_:c14n0`), in order of issue.
    """

    lines: list[str]
    labels: dict[str, str]
    work: Work = field(compare=False)


def quad_of(quad: ox.Quad | ox.Triple) -> Quad:
    """The four strings of a pyoxigraph quad or triple. Lexical forms stay as they are."""
    graph = "" if isinstance(quad, ox.Triple) or isinstance(quad.graph_name, ox.DefaultGraph) else str(quad.graph_name)
    return str(quad.subject), str(quad.predicate), str(quad.object), graph


def line_of(quad: Quad) -> str:
    """The quad as a canonical N-Quads line with its line feed."""
    subject, predicate, object_, graph = quad
    if graph:
        return f"{subject} {predicate} {object_} {graph} .\n"
    return f"{subject} {predicate} {object_} .\n"


def is_blank(term: str) -> bool:
    """Whether this term, as N-Quads writes it, is a blank node."""
    return term.startswith("_:")


def canonicalize(
    quads: Iterable[Quad],
    budget: Budget = PROTOCOL_BUDGET,
    algorithm: HashAlgorithm = HashAlgorithm.SHA256,
) -> Canonical:
    """The canonical form of a dataset (RDFC-1.0, 4.4.3). A quad that comes twice counts once.

    Raises RefusedError CONTENT_OVER_BUDGET where the blank nodes need more work than the budget has.
    """
    run = _Run(sorted(set(quads)), budget, algorithm)
    labels = run.canonical_labels()
    lines = sorted(line_of(_relabelled(quad, labels)) for quad in run.quads)
    return Canonical(lines, labels, run.work)


def _relabelled(quad: Quad, labels: dict[str, str]) -> Quad:
    subject, predicate, object_, graph = quad
    return labels.get(subject, subject), predicate, labels.get(object_, object_), labels.get(graph, graph)


class _Issuer:
    """Gives out labels in order and remembers them (4.5).

    The standard copies an issuer for each permutation. Here labels are taken back instead, and given out again in the
    same order where a permutation turns out best: a copy would cost as much as all that was ever issued.
    """

    __slots__ = ("_prefix", "labels")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.labels: dict[str, str] = {}

    def issue(self, node: str) -> str:
        label = self.labels.get(node)
        if label is None:
            label = self.labels[node] = f"{self._prefix}{len(self.labels)}"
        return label

    def take_back(self, count: int) -> list[str]:
        """Forget all but the first so many labels, and say whose they were, in order of issue."""
        taken = [self.labels.popitem()[0] for _ in range(len(self.labels) - count)]
        taken.reverse()
        return taken


class _Path:
    """A path that grows (5.4) and is compared as it grows with the best one so far, so that each piece is read once."""

    __slots__ = ("_best", "_length", "_order", "_pieces")

    def __init__(self, best: str) -> None:
        self._best = best
        self._pieces: list[str] = []
        self._length = 0
        self._order = 0

    def add(self, piece: str) -> None:
        end = self._length + len(piece)
        if self._order == 0 and self._best:
            other = self._best[self._length : end]
            if piece != other:
                self._order = 1 if piece > other else -1
        self._pieces.append(piece)
        self._length = end

    @property
    def is_hopeless(self) -> bool:
        """Not shorter than the best one, and greater: nothing that follows can make it the best."""
        return self._order > 0 and self._length >= len(self._best)

    @property
    def is_better(self) -> bool:
        return not self._best or self._order < 0 or (self._order == 0 and self._length < len(self._best))

    def text(self) -> str:
        return "".join(self._pieces)


@dataclass(frozen=True, slots=True)
class _Link:
    """That a blank node stands in a quad with another one.

    `begun` is the hash of position and predicate, with which Hash Related Blank Node (4.7) begins. It is copied for
    each look, so that a predicate of 8 kB costs no more than a short one.
    """

    begun: hashlib._Hash
    other: str


_Call: TypeAlias = Generator[str, str, str]


class _Run:
    """The canonicalization state (4.2) and the steps over it."""

    def __init__(self, quads: list[Quad], budget: Budget, algorithm: HashAlgorithm) -> None:
        self.quads = quads
        self.work = Work()
        self._budget = budget
        self._new_hash: Callable[[bytes], hashlib._Hash] = getattr(hashlib, algorithm.value)
        self._canonical = _Issuer("_:c14n")
        self._first_degree: dict[str, str] = {}
        self._quads_of: dict[str, list[Quad]] = self._quads_of_blank_nodes()
        self._links_of: dict[str, list[_Link]] = {}

    def canonical_labels(self) -> dict[str, str]:
        """4.4.3, steps 2 to 5."""
        by_hash: dict[str, list[str]] = {}
        for node, quads in self._quads_of.items():
            digest = self._first_degree[node] = self._hash_first_degree(node, quads)
            by_hash.setdefault(digest, []).append(node)
        for digest in sorted(by_hash):
            if len(by_hash[digest]) == 1:
                self._canonical.issue(by_hash[digest][0])
        for digest in sorted(by_hash):
            self._label_alike(by_hash[digest])
        return self._canonical.labels

    def _quads_of_blank_nodes(self) -> dict[str, list[Quad]]:
        found: dict[str, list[Quad]] = {}
        for quad in self.quads:
            subject, _, object_, graph = quad
            # A dict, not a set: the order of first sight is part of what is counted.
            for node in dict.fromkeys(term for term in (subject, object_, graph) if is_blank(term)):
                found.setdefault(node, []).append(quad)
        return found

    def _label_alike(self, nodes: list[str]) -> None:
        """4.4.3, step 5: blank nodes with one first-degree hash are told apart by their surroundings."""
        results: list[tuple[str, list[str]]] = []
        for node in nodes:
            if node not in self._canonical.labels:
                issuer = _Issuer("_:b")
                issuer.issue(node)
                digest = self._hash_n_degree(node, issuer)
                results.append((digest, list(issuer.labels)))
        for _, issued in sorted(results, key=lambda result: result[0]):
            for node in issued:
                self._canonical.issue(node)

    def _hash_first_degree(self, node: str, quads: list[Quad]) -> str:
        """4.6: the quads of a blank node, with itself as `_:a` and every other one as `_:z`."""

        def masked(term: str) -> str:
            if not is_blank(term):
                return term
            return "_:a" if term == node else "_:z"

        lines = sorted(line_of((masked(s), p, masked(o), masked(g))) for s, p, o, g in quads)
        return self._hash("".join(lines))

    def _hash_n_degree(self, node: str, issuer: _Issuer) -> str:
        """4.8, with the calls within each other on a list of ours instead of the interpreter's stack.

        Leaves in the issuer what the standard returns as the chosen issuer.
        """
        calls = [self._enter(node, issuer)]
        digest: str | None = None
        while calls:
            self.work.deepest = max(self.work.deepest, len(calls))
            if len(calls) > self._budget.depth:
                raise self._over("depth", self._budget.depth)
            try:
                wanted = next(calls[-1]) if digest is None else calls[-1].send(digest)
            except StopIteration as finished:
                calls.pop()
                digest = finished.value
            else:
                calls.append(self._enter(wanted, issuer))
                digest = None
        assert digest is not None
        return digest

    def _enter(self, node: str, issuer: _Issuer) -> _Call:
        self.work.calls += 1
        if self.work.calls > self._budget.calls:
            raise self._over("calls", self._budget.calls)
        return self._n_degree(node, issuer)

    def _n_degree(self, node: str, issuer: _Issuer) -> _Call:
        """One call of 4.8. Yields each blank node that it has to go into, gets its hash, and returns its own."""
        to_hash: list[str] = []
        related = self._related(node, issuer)
        for related_hash in sorted(related):
            before = len(issuer.labels)
            best, best_issued = "", list[str]()
            for order in permutations(related[related_hash]):
                path, unexplored = self._label_in_order(order, issuer, best)
                for other in unexplored:
                    if path.is_hopeless:
                        break
                    digest = yield other
                    path.add(f"{issuer.labels[other]}<{digest}>")
                if len(order) == 1:
                    # The only permutation is the best one: long chains are made of these.
                    best = path.text()
                else:
                    issued = issuer.take_back(before)
                    if path.is_better:
                        best, best_issued = path.text(), issued
            for other in best_issued:
                issuer.issue(other)
            to_hash += (related_hash, best)
        return self._hash("".join(to_hash))

    def _related(self, node: str, issuer: _Issuer) -> dict[str, list[str]]:
        """4.8, steps 1 to 3: the blank nodes next to this one, by the hash of how they stand to it (4.7)."""
        links = self._links_of.get(node)
        if links is None:
            links = self._links_of[node] = self._links(node)
        self._visit(len(links))
        found: dict[str, list[str]] = {}
        for link in links:
            other = link.other
            known = self._canonical.labels.get(other) or issuer.labels.get(other) or self._first_degree[other]
            hashing = link.begun.copy()
            hashing.update(known.encode())
            found.setdefault(hashing.hexdigest(), []).append(other)
        return found

    def _links(self, node: str) -> list[_Link]:
        """Where other blank nodes stand beside this one. 4.7 reads no predicate for a graph name."""
        found = []
        for subject, predicate, object_, graph in self._quads_of[node]:
            for position, term in (("s", subject), ("o", object_), ("g", graph)):
                if term != node and is_blank(term):
                    begin = position if position == "g" else position + predicate
                    found.append(_Link(self._new_hash(begin.encode()), term))
        return found

    def _label_in_order(self, order: tuple[str, ...], issuer: _Issuer, best: str) -> tuple[_Path, list[str]]:
        """4.8, steps 5.4.1 to 5.4.4: the path so far, and which blank nodes to go into."""
        self.work.permutations += 1
        if self.work.permutations > self._budget.permutations:
            raise self._over("permutations", self._budget.permutations)
        path, unexplored = _Path(best), []
        for other in order:
            self._visit(1)
            known = self._canonical.labels.get(other)
            if known is None:
                if other not in issuer.labels:
                    unexplored.append(other)
                known = issuer.issue(other)
            path.add(known)
            if path.is_hopeless:
                break
        return path, unexplored

    def _visit(self, count: int) -> None:
        self.work.visits += count
        if self.work.visits > self._budget.visits:
            raise self._over("visits", self._budget.visits)

    def _hash(self, text: str) -> str:
        return self._new_hash(text.encode()).hexdigest()

    def _over(self, what: str, limit: int) -> RefusedError:
        return RefusedError(
            Reason.CONTENT_OVER_BUDGET,
            f"its {len(self._first_degree)} blank nodes are too much alike to be told apart within {limit} {what}: "
            "give them IRIs, or split the content",
        )
