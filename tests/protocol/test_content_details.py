"""Content at the exact ends of its limits, and the line that a refusal names."""

from __future__ import annotations

import pyoxigraph as ox
import pytest
from p2pmem_protocol import content as module
from p2pmem_protocol.content import IRI_BYTES_MAX, check_canonical, content_of_lines, make_content
from p2pmem_protocol.errors import Reason, RefusedError

from tests.protocol.test_content import XSD, P, S, refusal, statement

THREE = [statement(f'"{letter}"') for letter in "abc"]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param('"b"^^<' + XSD + "string>", id="a datatype that is not written"),
        pytest.param('"b"@abcdefghijk', id="a language tag that the parser does not know"),
        pytest.param('"b"^^<http://[>', id="an IRI that the parser does not know"),
        pytest.param("b", id="no term"),
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_a_refusal_names_the_line(bad: str, place: int) -> None:
    lines = [statement('"1"'), statement('"2"'), statement('"3"')]
    subject = "<http://example.org/s>" if place else "<http://example.org/a>"
    lines[place] = statement(bad, subject=subject)
    if place == 1:
        lines = [lines[0], statement(bad, subject=S), statement('"z"', subject="<http://example.org/z>")]
    caught = refusal(b"".join(lines))
    assert caught.reason is Reason.CONTENT_NOT_CANONICAL
    assert f"line {place + 1} " in str(caught)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (statement('"a"@en--ltr'), "has a base direction"),
        (statement('"a"@EN'), "has a language tag in upper case"),
        (statement('"a\\u0000b"'), "holds a NUL character"),
        (statement(f'"a" {S}'), "is in a named graph"),
        (statement(f'<<( {S} {P} "a" )>>'), "has a triple term"),
    ],
)
def test_a_refusal_says_what_is_wrong_with_a_line_where_that_can_be_told(line: bytes, says: str) -> None:
    assert says in str(refusal(line))


@pytest.mark.parametrize("inside", ["x", "\\n", "\\\\", 'x\\"x'])
def test_a_literal_may_be_longer_than_an_iri_whatever_is_escaped_in_it(inside: str) -> None:
    text = inside * (IRI_BYTES_MAX // len(inside) + 1)
    assert check_canonical(statement(f'"{text}"')).line_count == 1


@pytest.mark.parametrize("place", [1, 2])
def test_a_line_out_of_order_is_named(place: int) -> None:
    lines = [*THREE[:place], statement('"a"'), *THREE[place:]]
    assert f"line {place + 1} is not above" in str(refusal(b"".join(lines)))


def test_as_many_bytes_and_statements_as_the_limits_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(THREE)
    monkeypatch.setattr(module, "CONTENT_BYTES_MAX", len(data))
    monkeypatch.setattr(module, "STATEMENTS_MAX", 3)
    assert check_canonical(data).line_count == 3
    monkeypatch.setattr(module, "STATEMENTS_MAX", 2)
    assert refusal(data).reason is Reason.OVERSIZE
    monkeypatch.setattr(module, "STATEMENTS_MAX", 3)
    monkeypatch.setattr(module, "CONTENT_BYTES_MAX", len(data) - 1)
    assert refusal(data).reason is Reason.OVERSIZE


@pytest.mark.parametrize("letter", ["x", "X", "é"])
def test_an_iri_is_measured_in_bytes_whatever_its_letters(letter: str) -> None:
    bare = "http://example.org/"
    most = (IRI_BYTES_MAX - len(bare)) // len(letter.encode())
    fits = f"<{bare}{letter * most}>"
    assert check_canonical(statement(fits)).line_count == 1
    longer = f"<{bare}{letter * (most + 1)}>"
    for data in (statement(longer), statement('"a"', subject=longer)):
        assert refusal(data).reason is Reason.OVERSIZE


def test_statements_come_back_as_triples_and_quads_of_the_default_graph_are_triples() -> None:
    subject, predicate = ox.NamedNode(S[1:-1]), ox.NamedNode(P[1:-1])
    triple = ox.Triple(subject, predicate, ox.Literal("a"))
    quad = ox.Quad(subject, predicate, ox.Literal("b"))
    content = make_content([triple, quad])
    assert list(content.triples()) == [triple, quad.triple]
    assert all(isinstance(each, ox.Triple) for each in content.triples())


def test_an_author_whose_statements_have_blank_nodes_sees_the_one_that_breaks_a_rule() -> None:
    for lines in ([f'_:a {P} "b" .', f"_:a {P} b ."], [f"_:a {P} <{'x' * 9_000}> ."], [f"_:a {P} <u:{'x' * 9_000}> ."]):
        with pytest.raises(RefusedError, match="the statement"):
            content_of_lines(lines)
