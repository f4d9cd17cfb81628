"""A plan as one SPARQL update: the only call of Oxigraph's that both removes and adds in one transaction.

Plain quads go as text, which is fastest. Blank nodes cannot: in an update a label means a new node, and DELETE DATA
allows none. So quads with blank nodes, and those with triple terms, go *bound*: the text says "row i", and functions
that live for this one call hand over row i's terms. What is bound is never text, so nothing of it is ever parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyoxigraph as ox
from p2pmem_protocol.errors import MisuseError

from p2pmem.store.content import Term
from p2pmem.store.plan import Plan

Bound = Callable[..., Term | None]

_BOUND = "urn:p2pmem:store:bound:"
_PARTS = ("subject", "predicate", "object", "graph_name")


@dataclass(frozen=True, slots=True)
class Transaction:
    """The text of an update, and the functions it calls."""

    text: str
    functions: dict[ox.NamedNode, Bound]

    def run(self, store: ox.Store) -> None:
        """All of it or nothing. `OSError` when the disk fails, `MisuseError` for an IRI that is none."""
        if not self.text:
            return
        try:
            store.update(self.text, custom_functions=self.functions)
        except SyntaxError as error:
            raise MisuseError(f"something to be placed is not N-Quads: {error}") from None


def compile_plan(plan: Plan) -> Transaction:
    """Delete, then insert, in one transaction."""
    operations: list[str] = []
    functions: dict[ox.NamedNode, Bound] = {}
    for verb, quads in (("DELETE", plan.delete), ("INSERT", plan.insert)):
        plain = [quad for quad in quads if _is_plain(quad)]
        texts = plan.texts if verb == "INSERT" else {}
        if plain or texts:
            operations.append(f"{verb} DATA {{ {_text_of(plain, texts)} }}")
        if len(plain) < len(quads):
            bound = [quad for quad in quads if not _is_plain(quad)]
            operations.append(_bind(verb, bound, functions))
    return Transaction(" ;\n".join(operations), functions)


def _is_plain(quad: ox.Quad) -> bool:
    return isinstance(quad.subject, ox.NamedNode) and isinstance(quad.object, ox.NamedNode | ox.Literal)


def _text_of(quads: Iterable[ox.Quad], texts: Mapping[ox.NamedNode, Sequence[str]]) -> str:
    by_graph = {str(graph): list(lines) for graph, lines in texts.items()}
    for quad in quads:
        by_graph.setdefault(str(quad.graph_name), []).append(str(quad.triple))
    return " ".join(f"GRAPH {graph} {{ {' . '.join(lines)} }}" for graph, lines in by_graph.items())


def _bind(verb: str, rows: list[ox.Quad], functions: dict[ox.NamedNode, Bound]) -> str:
    binds = []
    for part in _PARTS:
        function = ox.NamedNode(f"{_BOUND}{verb}:{part}")
        functions[function] = _part_of(rows, part)
        binds.append(f"BIND({function}(?row) AS ?{part})")
    numbers = " ".join(map(str, range(len(rows))))
    template = "GRAPH ?graph_name { ?subject ?predicate ?object }"
    return f"{verb} {{ {template} }} WHERE {{ VALUES ?row {{ {numbers} }} {' '.join(binds)} }}"


def _part_of(rows: list[ox.Quad], part: str) -> Bound:
    def part_of_row(row: ox.Literal) -> Term:
        term: Term = getattr(rows[int(row.value)], part)
        return term

    return part_of_row
