"""The table of what the projections hold: it forgets how graphs stand, never that they are there."""

from __future__ import annotations

from hypothesis import given, strategies as st
from p2pmem_protocol.names import Address, AssetKey, GraphName

from p2pmem.face import Layer
from p2pmem.services.placed import Graphs, PlacedGraphs, Stands

NAMES = tuple(GraphName(Address(bytes([number]) * 20), slug) for number, slug in ((1, "trials"), (2, "trials")))
# One author is the creator of a graph too, so that his address stands twice in an IRI.
KEYS = tuple(AssetKey(Address(bytes([author]) * 20), name) for author in (1, 3) for name in ("cell", "cell.2"))
SUFFIXES = ("", "@2", "@3-0123456789abcdef", "@m0-2")
SUBGRAPHS = ("", "lab", "lab/cold")


def stands(version: int) -> Stands:
    return Stands("urn:aggregate", bytes(32), version, bytes(32), Layer.SHARED, 1, 0)


@st.composite
def iris(draw: st.DrawFn, name: GraphName, key: AssetKey) -> str:
    subgraph, suffix = draw(st.sampled_from(SUBGRAPHS)), draw(st.sampled_from(SUFFIXES))
    form = draw(st.sampled_from((name.draft_iri, name.shared_iri, name.published_iri)))
    return form(key.author, key.name, subgraph) + suffix


@st.composite
def changes(draw: st.DrawFn) -> tuple[GraphName, AssetKey, Graphs]:
    name, key = draw(st.sampled_from(NAMES)), draw(st.sampled_from(KEYS))
    return name, key, {iri: stands(draw(st.integers(1, 3))) for iri in draw(st.sets(iris(name, key), max_size=3))}


@given(st.lists(changes(), max_size=30), st.integers(0, 3))
def test_every_named_graph_is_known_for_ever_and_how_it_stands_only_for_a_while(
    told: list[tuple[GraphName, AssetKey, Graphs]], stands_max: int
) -> None:
    table, model = PlacedGraphs(stands_max), {}
    for name, key, graphs in told:
        table.put(name, key, graphs)
        model[name, key] = graphs
        for (some_name, some_key), wanted in model.items():
            found = table.get(some_name.id, some_key)
            assert found.keys() == wanted.keys()
            assert all(found[iri] in (None, wanted[iri]) for iri in found)
        assert len(table) == sum(map(bool, model.values()))
    newest = list(dict.fromkeys((name, key) for name, key, _ in reversed(told)))[:stands_max]
    assert all(table.get(name.id, key) == model[name, key] for name, key in newest)


@given(st.lists(changes(), max_size=10))
def test_what_was_placed_before_a_start_is_known_by_its_iris_alone(
    told: list[tuple[GraphName, AssetKey, Graphs]],
) -> None:
    table, model = PlacedGraphs(), {(name, key): graphs for name, key, graphs in told}
    for (name, key), graphs in model.items():
        for iri in graphs:
            table.add(name, key, iri)
    for (name, key), graphs in model.items():
        assert table.get(name.id, key) == dict.fromkeys(graphs)
        table.drop_asset(name.id, key)
        assert table.get(name.id, key) == {}
    assert len(table) == 0


def test_where_nearly_all_assets_stand_is_one_object() -> None:
    table, (name, _) = PlacedGraphs(stands_max=0), NAMES
    keys = [AssetKey(KEYS[0].author, f"asset-{number}") for number in range(50)]
    for key in keys:
        table.put(name, key, {name.shared_iri(key.author, key.name): stands(1)})
    assert len({id(place) for place in table._graphs[name.id].places.values()}) == 1
