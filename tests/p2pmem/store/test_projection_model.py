"""Any history of puts, moves, drops and meta changes, beside a model that only knows what stands where."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pyoxigraph as ox
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from p2pmem.store.content import asset_triples, meta_triples
from p2pmem.store.held import Held
from p2pmem.store.opening import open_store
from p2pmem.store.placement import MetaChange, Placement
from p2pmem.store.plan import INTERNAL, Plan, derived_tally, plan_change, tally_graph
from p2pmem.store.transaction import compile_plan

XSD = "http://www.w3.org/2001/XMLSchema#"
LINES = [
    b"<urn:a> <urn:p> <urn:b> .",
    b'<urn:a> <urn:p> "x" .',
    b'<urn:a> <urn:p> "x"@en .',
    b'<urn:a> <urn:p> "x"@ar--rtl .',
    b'<urn:a> <urn:n> "01"^^<http://www.w3.org/2001/XMLSchema#integer> .',
    b'<urn:a> <urn:n> "1"^^<http://www.w3.org/2001/XMLSchema#integer> .',
    b'<urn:a> <urn:n> "+1"^^<http://www.w3.org/2001/XMLSchema#integer> .',
    b'<urn:a> <urn:n> "1"^^<http://www.w3.org/2001/XMLSchema#boolean> .',
    b'<urn:a> <urn:n> "1.0"^^<http://www.w3.org/2001/XMLSchema#decimal> .',
    b'<urn:a> <urn:n> "2020-01-01T00:00:00+00:00"^^<http://www.w3.org/2001/XMLSchema#dateTime> .',
    b'<urn:a> <urn:q> "quote \\" brace } newline \\n tab \\t" .',
    b"<urn:a> <urn:r> <<( <urn:a> <urn:p> <urn:b> )>> .",
    b'<urn:a> <urn:r> <<( <urn:a> <urn:n> "01"^^<http://www.w3.org/2001/XMLSchema#integer> )>> .',
    b"<urn:a> <urn:p> _:c14n0 .",
    b"_:c14n0 <urn:p> _:c14n1 .",
    b"_:c14n0 <urn:p> _:c14n0 .",
    b'_:c14n1 <urn:p> "x" .',
    b"<urn:a> <urn:r> <<( _:c14n0 <urn:p> _:c14n1 )>> .",
]
GRAPHS = [f"urn:asset:{name}" for name in "abcde"]
AGGREGATES = ["urn:aggregate:1", "urn:aggregate:2"]
METAS = ["urn:meta:1", "urn:meta:2"]
META_LINES = [
    b'<urn:x> <urn:state> "created" .',
    b'<urn:x> <urn:state> "promoted" .',
    b'<urn:y> <urn:count> "01"^^<http://www.w3.org/2001/XMLSchema#integer> .',
    b'<urn:y> <urn:count> "1"^^<http://www.w3.org/2001/XMLSchema#integer> .',
]


def lines(of: list[bytes], least: int = 1) -> st.SearchStrategy[bytes]:
    chosen = st.lists(st.sampled_from(of), min_size=least, unique=True)
    return chosen.map(lambda some: b"".join(line + b"\n" for line in sorted(some)))


placements = st.builds(Placement, st.sampled_from(GRAPHS), st.sampled_from(AGGREGATES), lines(LINES))
meta_changes = st.builds(
    MetaChange,
    st.sampled_from(METAS),
    add=lines(META_LINES, 0),
    remove=lines(META_LINES, 0),
    reset_subjects=st.lists(st.sampled_from(["urn:x", "urn:y"]), max_size=1).map(tuple),
    clear=st.booleans(),
)


@dataclass
class Model:
    """Where each asset stands and what each meta graph says. Nothing else is remembered."""

    assets: dict[str, Placement] = field(default_factory=dict)
    metas: dict[str, set[ox.Triple]] = field(default_factory=dict)

    def tell(self, put: list[Placement], drop: list[str], meta: list[MetaChange]) -> None:
        for iri in drop:
            self.assets.pop(iri, None)
        for placement in put:
            self.assets[placement.graph_iri] = placement
        for change in meta:
            said = self.metas.setdefault(change.graph_iri, set())
            if change.clear:
                said.clear()
            said -= {triple for triple in said if str(triple.subject)[1:-1] in change.reset_subjects}
            said -= as_held(change.graph_iri, change.remove)
            said |= as_held(change.graph_iri, change.add)

    def quads(self) -> set[ox.Quad]:
        """All that must be in the graphs that are not the store's own, by way of a store that only ever inserts."""
        store = ox.Store()
        for placement in self.assets.values():
            for triple in asset_triples(placement.graph_iri, placement.content):
                store.add(ox.Quad(*triple, ox.NamedNode(placement.aggregate_iri)))
        for iri, said in self.metas.items():
            store.extend(ox.Quad(t.subject, t.predicate, t.object, ox.NamedNode(iri)) for t in said)
        return set(store)


def as_held(graph_iri: str, content: bytes) -> set[ox.Triple]:
    """The lines as a store gives them back."""
    store = ox.Store()
    for triple in meta_triples(graph_iri, content):
        store.add(ox.Quad(triple.subject, triple.predicate, triple.object))
    return {quad.triple for quad in store}


class Histories(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.store = open_store(None)
        self.model = Model()

    @rule(
        put=st.lists(placements, max_size=4, unique_by=lambda placement: placement.graph_iri),
        drop=st.lists(st.sampled_from(GRAPHS), max_size=3, unique=True),
        meta=st.lists(meta_changes, max_size=3),
    )
    def change(self, put: list[Placement], drop: list[str], meta: list[MetaChange]) -> None:
        drop = [iri for iri in drop if iri not in {placement.graph_iri for placement in put}]
        self.run(plan_change(Held(self.store), put, drop, meta))
        self.model.tell(put, drop, meta)

    @rule()
    def tell_everything_again(self) -> None:
        plan = plan_change(Held(self.store), list(self.model.assets.values()), [], [])
        assert not plan.delete, "what stands already must not be touched"
        assert not plan.insert, "what stands already must not be touched"
        self.run(plan)

    @rule()
    def drop_everything(self) -> None:
        self.run(plan_change(Held(self.store), [], list(self.model.assets), []))
        self.model.assets.clear()

    def run(self, plan: Plan) -> None:
        compile_plan(plan).run(self.store)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        held = {quad for quad in self.store if not str(quad.graph_name).startswith(f"<{INTERNAL}")}
        assert held == self.model.quads()

    @invariant()
    def each_asset_has_its_content(self) -> None:
        held = Held(self.store)
        for iri in GRAPHS:
            placed = self.model.assets.get(iri)
            assert held.content_of(ox.NamedNode(iri)) == (placed.content if placed else None)

    @invariant()
    def tallies_are_what_the_assets_say(self) -> None:
        held = Held(self.store)
        for aggregate in AGGREGATES:
            members = [p for p in self.model.assets.values() if p.aggregate_iri == aggregate]
            derived = derived_tally(asset_triples(p.graph_iri, p.content) for p in members)
            counted = held.tally_of(ox.NamedNode(aggregate))
            assert counted == {triple: times for triple, times in derived.items() if times > 1}
            rows = list(self.store.quads_for_pattern(None, None, None, tally_graph(ox.NamedNode(aggregate))))
            assert len(rows) == len(counted), "one row for each triple"

    @invariant()
    def no_blank_node_is_shared(self) -> None:
        owners: dict[ox.BlankNode, str] = {}
        for iri, placed in self.model.assets.items():
            for triple in asset_triples(iri, placed.content):
                for blank in blanks(triple):
                    assert owners.setdefault(blank, iri) == iri

    @invariant()
    def a_rebuilt_store_is_the_same_store(self) -> None:
        rebuilt = open_store(None)
        meta = [
            MetaChange(iri, b"".join(f"{triple} .\n".encode() for triple in said))
            for iri, said in self.model.metas.items()
        ]
        compile_plan(plan_change(Held(rebuilt), list(self.model.assets.values()), [], meta)).run(rebuilt)
        assert set(rebuilt) == set(self.store)


def blanks(triple: ox.Triple) -> set[ox.BlankNode]:
    found: set[ox.BlankNode] = set()
    for term in (triple.subject, triple.object):
        if isinstance(term, ox.BlankNode):
            found.add(term)
        elif isinstance(term, ox.Triple):
            found |= blanks(term)
    return found


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=12)
