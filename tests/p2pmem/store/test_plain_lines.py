"""Statements that go into the store as the text that they are: the same as those that were read first."""

import pyoxigraph as ox
import pytest
from hypothesis import given, strategies as st

from p2pmem.store.content import Term, asset_triples, held_lines, meta_triples, plain_lines, triples_of
from p2pmem.store.held import Held
from p2pmem.store.opening import stamp
from p2pmem.store.placement import MetaChange, Placement
from p2pmem.store.plan import plan_change
from p2pmem.store.transaction import compile_plan

XSD = "http://www.w3.org/2001/XMLSchema#"
OBJECTS = st.one_of(
    st.builds(ox.Literal, st.text(max_size=30)),
    st.builds(lambda text: ox.Literal(text, language="en-gb"), st.text(max_size=10)),
    st.builds(ox.Literal, st.integers(-(2**70), 2**70)),
    st.builds(ox.Literal, st.booleans()),
    st.sampled_from(
        [
            ox.NamedNode("http://a.example/thing"),
            ox.Literal("01", datatype=ox.NamedNode(XSD + "integer")),
            ox.Literal("2026-11-30T13:00:00.120Z", datatype=ox.NamedNode(XSD + "dateTime")),
            ox.Literal("2026-02-31T13:00:00Z", datatype=ox.NamedNode(XSD + "dateTime")),
            ox.Literal("1.50", datatype=ox.NamedNode(XSD + "decimal")),
        ]
    ),
)
SUBJECT, LINK = ox.NamedNode("http://a.example/s"), ox.NamedNode("http://a.example/p")


def lines_of(objects: list[Term]) -> bytes:
    return "".join(sorted(f"{ox.Triple(SUBJECT, LINK, it)} .\n" for it in set(objects))).encode()


@given(st.lists(OBJECTS, min_size=1, max_size=6))
def test_plain_statements_are_held_as_those_that_were_read(objects: list[Term]) -> None:
    content = lines_of(objects)
    lines = held_lines(content)
    if lines is not None:
        assert set(triples_of(lines)) == asset_triples("http://a.example/graph", content)
    lines = plain_lines(content)
    if lines is not None:
        held = {f"{it}" for it in meta_triples("http://a.example/meta", "".join(f"{it} .\n" for it in lines).encode())}
        assert held == {f"{it}" for it in meta_triples("http://a.example/meta", content)}


@given(st.lists(OBJECTS, min_size=1, max_size=6))
def test_the_store_holds_the_same_whichever_way_statements_came(objects: list[Term]) -> None:
    content = lines_of(objects)
    put = [Placement("http://a.example/graph", "http://a.example/all", content)]
    meta = [MetaChange("http://a.example/meta", add=content)]
    store = ox.Store()
    stamp(store)
    compile_plan(plan_change(Held(store), put, (), meta)).run(store)
    held = asset_triples("http://a.example/graph", content)
    assert Held(store).content_of(ox.NamedNode("http://a.example/graph")) == content
    for graph in ("http://a.example/all", "http://a.example/meta"):
        assert {quad.triple for quad in store.quads_for_pattern(None, None, None, ox.NamedNode(graph))} == held


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<http://a.example/s> <http://a.example/p> <http://a.example/o> .",
        b"<http://a.example/s> <http://a.example/p> <http://a.example/o> .\n} ; DROP ALL ; INSERT DATA {\n",
        b'<http://a.example/s> <http://a.example/p> "a" } ; DROP ALL ; INSERT DATA { "b" .\n',
        b'<http://a.example/s> <http://a.example/p> "\\u0022" .\n',
        b'<http://a.example/s> <http://a.example/p> "\\\\u0022" .\n',
        b"<s> <http://a.example/p> <http://a.example/o> .\n",
        b"_:a <http://a.example/p> <http://a.example/o> .\n",
        b"<http://a.example/s> <http://a.example/p> <<( <a:s> <a:p> <a:o> )>> .\n",
        b'<http://a.example/s> <http://a.example/p> "half\xff" .\n',
        b"<http://a.example/s> <http://a.example/p> <http://a.example/o> <http://a.example/g> .\n",
    ],
)
def test_what_is_not_plainly_a_statement_is_looked_at_closer(content: bytes) -> None:
    assert held_lines(content) is None
    assert plain_lines(content) is None
