"""Content is canonical N-Quads by the rules of the module, whoever made it."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pyoxigraph as ox
import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import merkle
from p2pmem_protocol.content import (
    IRI_BYTES_MAX,
    LITERAL_BYTES_MAX,
    RESERVED_PREDICATES,
    canonical,
    check_canonical,
    content_of_lines,
    make_content,
    union,
)
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.limits import CONTENT_BYTES_MAX, STATEMENTS_MAX

from tests.node_tools import NodeTools

S, P = "<http://example.org/s>", "<http://example.org/p>"
XSD = "http://www.w3.org/2001/XMLSchema#"


def refusal(data: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        check_canonical(data)
    return caught.value


def statement(object_: str, subject: str = S, predicate: str = P) -> bytes:
    return f"{subject} {predicate} {object_} .\n".encode()


@pytest.mark.parametrize(
    "object_",
    [
        pytest.param('"01"^^<' + XSD + "integer>", id="a lexical form that stores rewrite"),
        pytest.param('"1.00"^^<' + XSD + "decimal>", id="another"),
        pytest.param('"x"@en-us', id="a language"),
        pytest.param('"x"@de-1996-x-our', id="a language with variant and private use"),
        pytest.param('""', id="an empty literal"),
        pytest.param('"a\\b\\t\\n\\f\\r\\"\\\\b"', id="escapes with a letter"),
        pytest.param('"\\u0001\\u000B\\u001F\\u007F\\uFFFE\\uFFFF"', id="escapes with a number"),
        pytest.param('"\ufdd0\U0001fffe\U0010ffff"', id="non-characters"),
        pytest.param('"\x80\x85\u2028\u202e"', id="C1 controls, line separators, directions: each for itself"),
        pytest.param('"é e\u0301 ﬁ"', id="text that is not normalised"),
        pytest.param("<http://example.org/é/e\u0301>", id="an IRI that is not normalised"),
        pytest.param("<HTTP://EXAMPLE.org:80/../a/./%7e>", id="an IRI that could be normalised"),
        pytest.param("<urn:x>", id="a URN"),
        pytest.param("_:c14n0", id="a blank node"),
        pytest.param('"' + "x" * LITERAL_BYTES_MAX + '"', id="a literal of 1 MiB"),
        pytest.param("<urn:" + "x" * (IRI_BYTES_MAX - 4) + ">", id="an IRI of 8,192 bytes"),
        pytest.param('" <<( _:b \\"@EN--ltr . "', id="a literal that looks like what is refused"),
    ],
)
def test_what_the_rules_allow_passes_and_keeps_its_bytes(object_: str) -> None:
    data = statement(object_)
    content = check_canonical(data)
    assert content.data == data
    assert make_content(ox.parse(data, ox.RdfFormat.N_QUADS)) == content


NOT_CANONICAL = Reason.CONTENT_NOT_CANONICAL


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", Reason.CONTENT_EMPTY, id="nothing"),
        pytest.param(b"\n", NOT_CANONICAL, id="a blank line"),
        pytest.param(b"# words\n", NOT_CANONICAL, id="a comment"),
        pytest.param(statement('"x"')[:-1], NOT_CANONICAL, id="no line feed at the end"),
        pytest.param(statement('"x"')[:-1] + b"\r\n", NOT_CANONICAL, id="CR LF"),
        pytest.param(statement('"x"') * 2, NOT_CANONICAL, id="a line twice"),
        pytest.param(statement('"y"') + statement('"x"'), NOT_CANONICAL, id="unsorted"),
        pytest.param(b"\xef\xbb\xbf" + statement('"x"'), NOT_CANONICAL, id="a byte-order mark"),
        pytest.param(statement('"x"').decode().encode("utf-16"), NOT_CANONICAL, id="UTF-16"),
        pytest.param(b'<a:s> <a:p> "\xff" .\n', NOT_CANONICAL, id="not UTF-8"),
        pytest.param(b'<a:s> <a:p> "\xc0\x80" .\n', NOT_CANONICAL, id="an overlong form"),
        pytest.param(b'<a:s> <a:p> "\xed\xa0\x80" .\n', NOT_CANONICAL, id="a surrogate as bytes"),
        pytest.param(statement('"\\uD800"'), NOT_CANONICAL, id="a surrogate as an escape"),
        pytest.param(statement('"\\uD83D\\uDE00"'), NOT_CANONICAL, id="a pair of surrogates as escapes"),
        pytest.param(statement('"\\u0000"'), NOT_CANONICAL, id="NUL as an escape"),
        pytest.param(statement('"\0"'), NOT_CANONICAL, id="NUL"),
        pytest.param(statement('"\t"'), NOT_CANONICAL, id="a tab that is not escaped"),
        pytest.param(statement('"\x7f"'), NOT_CANONICAL, id="DEL that is not escaped"),
        pytest.param(statement('"\uffff"'), NOT_CANONICAL, id="U+FFFF that is not escaped"),
        pytest.param(statement('"\\u0041"'), NOT_CANONICAL, id="an escape without need"),
        pytest.param(statement('"\\u000a"'), NOT_CANONICAL, id="an escape in lower case"),
        pytest.param(statement('"\\u000A"'), NOT_CANONICAL, id="a number where there is a letter"),
        pytest.param(statement('"\\\'"'), NOT_CANONICAL, id="an escaped apostrophe"),
        pytest.param(statement('"x"@EN'), NOT_CANONICAL, id="a language in upper case"),
        pytest.param(statement('"x"@abcdefghi'), NOT_CANONICAL, id="a language tag that is none"),
        pytest.param(statement('"x"@en--ltr'), NOT_CANONICAL, id="a base direction"),
        pytest.param(statement(f'"x"^^<{XSD}string>'), NOT_CANONICAL, id="xsd:string"),
        pytest.param(
            statement('"x"^^<http://www.w3.org/1999/02/22-rdf-syntax-ns#langString>'), NOT_CANONICAL, id="langString"
        ),
        pytest.param(statement('"x"^^<integer>'), NOT_CANONICAL, id="a relative datatype"),
        pytest.param(statement("<foo>"), NOT_CANONICAL, id="a relative IRI"),
        pytest.param(statement("<//example.org/>"), NOT_CANONICAL, id="an IRI without a scheme"),
        pytest.param(statement("<http://example.org/a b>"), NOT_CANONICAL, id="an IRI with a space"),
        pytest.param(statement("<http://example.org/a\\u0020b>"), NOT_CANONICAL, id="an IRI with an escape"),
        pytest.param(statement("<http://example.org/%zz>"), NOT_CANONICAL, id="an IRI with a bad percent"),
        pytest.param(statement("<http://example.org/\ufdd0>"), NOT_CANONICAL, id="an IRI with a non-character"),
        pytest.param(statement("<urn:" + "x" * (IRI_BYTES_MAX - 3) + ">"), Reason.OVERSIZE, id="an IRI too long"),
        pytest.param(statement("<urn:" + "é" * 32_000 + ">"), Reason.OVERSIZE, id="an IRI of 64 kB"),
        pytest.param(statement('"x"^^<urn:' + "x" * 9_000 + ">"), Reason.OVERSIZE, id="a datatype too long"),
        pytest.param(statement('"' + "é" * (LITERAL_BYTES_MAX // 2) + 'x"'), Reason.OVERSIZE, id="a literal too long"),
        pytest.param(statement('"x" <http://example.org/g>'), NOT_CANONICAL, id="a named graph"),
        pytest.param(statement('"x" _:c14n0'), NOT_CANONICAL, id="a graph named by a blank node"),
        pytest.param(statement("<<( <a:s> <a:p> <a:o> )>>"), Reason.CONTENT_TOO_DEEP, id="a triple term"),
        pytest.param(statement(S, subject="<< <a:s> <a:p> <a:o> >>"), Reason.CONTENT_TOO_DEEP, id="RDF-star"),
        pytest.param(statement('"x"', subject='"s"'), NOT_CANONICAL, id="a literal as subject"),
        pytest.param(statement('"x"', predicate="_:c14n0"), NOT_CANONICAL, id="a blank node as predicate"),
        pytest.param(statement("_:b0"), NOT_CANONICAL, id="a label that is not canonical"),
        pytest.param(statement("_:c14n1"), NOT_CANONICAL, id="a label out of turn"),
        pytest.param(b" " + statement('"x"'), NOT_CANONICAL, id="a space before"),
        pytest.param(statement(' "x"'), NOT_CANONICAL, id="two spaces"),
        pytest.param(statement('"x"')[:-3] + b".\n", NOT_CANONICAL, id="no space before the dot"),
        pytest.param(statement('"x"')[:-1] + b" # words\n", NOT_CANONICAL, id="a comment behind"),
        pytest.param(b"x" * (CONTENT_BYTES_MAX + 1), Reason.OVERSIZE, id="too many bytes"),
        pytest.param(b"\n" * (STATEMENTS_MAX + 1), Reason.OVERSIZE, id="too many lines"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_reason(data: bytes, reason: Reason) -> None:
    refused = refusal(data)
    assert refused.reason is reason
    assert len(str(refused)) < 400


@pytest.mark.parametrize("levels", [1, 100, 20_000])
def test_nesting_is_refused_before_a_parser_sees_it(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """18,000 levels end the process of the parser."""

    def parser_sees_it(*_: object, **__: object) -> None:
        raise AssertionError("the parser was called")

    data = statement("<<( <a:s> <a:p> " * levels + "<a:o>" + " )>>" * levels)
    monkeypatch.setattr(ox, "parse", parser_sees_it)
    assert refusal(data).reason is Reason.CONTENT_TOO_DEEP


def test_what_is_refused_is_named_by_its_line_and_not_repeated() -> None:
    refused = refusal(statement('"a"') + statement('"secret"@EN'))
    assert "line 2" in str(refused)
    assert "secret" not in str(refused)


@pytest.mark.parametrize("iri", sorted(RESERVED_PREDICATES))
def test_a_predicate_that_the_protocol_writes_is_refused_from_peer_and_author_alike(iri: str) -> None:
    data = statement('"4"', predicate=f"<{iri}>")
    refused = refusal(data)
    assert refused.reason is Reason.CONTENT_RESERVED_PREDICATE
    assert iri in str(refused)
    with pytest.raises(RefusedError) as caught:
        make_content(ox.parse(data, ox.RdfFormat.N_QUADS))
    assert caught.value.reason is Reason.CONTENT_RESERVED_PREDICATE


def test_a_reserved_iri_may_be_spoken_about() -> None:
    iri = min(RESERVED_PREDICATES)
    check_canonical(statement(f"<{iri}>", subject=f"<{iri}>"))


def test_trust_is_among_the_reserved_predicates() -> None:
    assert "http://dkg.io/ontology/trustLevel" in RESERVED_PREDICATES


def test_poison_from_a_peer_is_refused_over_the_budget() -> None:
    lines = sorted(f"_:c14n{a} {P} _:c14n{b} .\n" for a in range(10) for b in range(10) if a != b)
    assert refusal("".join(lines).encode()).reason is Reason.CONTENT_OVER_BUDGET


def test_an_author_gets_lower_case_languages_sorted_lines_and_each_once() -> None:
    subject, predicate = ox.NamedNode("http://example.org/s"), ox.NamedNode("http://example.org/p")
    b = ox.Triple(subject, predicate, ox.Literal("b", language="EN-us"))
    a = ox.Triple(subject, predicate, ox.Literal("a", datatype=ox.NamedNode(XSD + "string")))
    assert canonical([b, a, b]) == statement('"a"') + statement('"b"@en-us')


def test_an_author_sees_the_statement_that_breaks_a_rule() -> None:
    with pytest.raises(RefusedError) as caught:
        make_content(ox.parse(statement('"x\\u0000"'), ox.RdfFormat.N_QUADS))
    assert "example.org/s" in str(caught.value)
    assert "NUL" in str(caught.value)


def test_an_author_cannot_seal_a_named_graph_or_a_triple_term() -> None:
    for line, reason in (
        (statement('"x" <http://example.org/g>'), NOT_CANONICAL),
        (statement("<<( <a:s> <a:p> <a:o> )>>"), Reason.CONTENT_TOO_DEEP),
        (statement('"x"@en--rtl'), NOT_CANONICAL),
    ):
        with pytest.raises(RefusedError) as caught:
            make_content(ox.parse(line, ox.RdfFormat.N_QUADS))
        assert caught.value.reason is reason


def test_an_iri_that_a_lenient_parser_let_through_is_refused() -> None:
    quads = list(ox.parse(statement("<http://example.org/%zz>"), ox.RdfFormat.N_QUADS, lenient=True))
    with pytest.raises(RefusedError):
        make_content(quads)


def test_lines_ascend_by_code_point_and_not_by_utf_16_unit() -> None:
    """U+10000 begins with the unit D800, below U+E000, but is above it."""
    data = statement('"\ue000"') + statement('"\U00010000"')
    assert canonical(ox.parse(data, ox.RdfFormat.N_QUADS)) == data
    assert check_canonical(data).line_count == 2


def test_content_knows_its_count_hash_root_and_statements() -> None:
    content = check_canonical(statement('"01"^^<' + XSD + "integer>") + statement('"x"@en'))
    assert content.line_count == 2
    assert content.hash == keccak256(content.data)
    assert content.root == merkle.root(content.data.splitlines(keepends=True))
    assert canonical(content.triples()) == content.data
    for index, line in enumerate(content.lines()):
        merkle.verify(content.root, content.line_count, line, content.tree().prove(index))


def test_content_without_blank_nodes_does_not_pay_for_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    def labelling(*_: object) -> None:
        raise AssertionError("labels were computed")

    monkeypatch.setattr("p2pmem_protocol.content.canonicalize", labelling)
    check_canonical(statement('"_: x"'))
    content_of_lines([statement('"x"').decode()[:-1]])


@pytest.mark.parametrize("name", ["prov.ttl", "dcat3.ttl", "shacl.ttl"])
def test_real_vocabularies_are_canonical_whatever_their_labels_and_order(shared_data: Path, name: str) -> None:
    data = (shared_data / "rdf" / name).read_bytes()
    parsed = list(ox.parse(data, ox.RdfFormat.TURTLE, base_iri="https://example.org/", rename_blank_nodes=True))
    content = make_content(parsed)
    random.Random(7).shuffle(parsed)
    assert make_content(parsed) == content == check_canonical(content.data)


@pytest.mark.parametrize("count", [2, 11, 30])
def test_blank_nodes_that_could_be_exchanged_pass_whatever_their_order(count: int) -> None:
    """Labelling anew may exchange them. That gives other labels and the same lines."""
    alike = "".join(f"<a:s> <a:p> _:x{n} . _:x{n} <a:p> '1' .\n" for n in range(count))
    ring = "".join(f"_:r{n} <a:q> _:r{(n + 1) % count} .\n" for n in range(count))
    content = make_content(ox.parse((alike + ring).encode(), ox.RdfFormat.TURTLE))
    assert check_canonical(content.data) == content


def test_a_union_keeps_blank_nodes_of_different_contents_apart_and_shared_statements_once() -> None:
    one = make_content(ox.parse(b"<a:s> <a:p> _:x . _:x <a:p> '1' . <a:s> <a:p> <a:o> .", ox.RdfFormat.TURTLE))
    other = make_content(ox.parse(b"<a:s> <a:p> _:x . _:x <a:p> '2' . <a:s> <a:p> <a:o> .", ox.RdfFormat.TURTLE))
    both = union([one, other])
    assert both.line_count == 5
    assert both == union([other, one]) == check_canonical(both.data)
    assert union([one]) == one
    with pytest.raises(RefusedError) as caught:
        union([])
    assert caught.value.reason is Reason.CONTENT_EMPTY


JAVASCRIPT = """
const { canonize } = require("rdf-canonize");
require("stream/consumers").json(process.stdin).then(cases => Promise.all(cases.map(input => canonize(input, {
  algorithm: "RDFC-1.0", inputFormat: "application/n-quads", maxWorkFactor: Infinity,
})))).then(out => process.stdout.write(JSON.stringify(out)));
"""


@pytest.mark.node
def test_the_form_is_that_of_the_npm_package(shared_data: Path, node_tools: NodeTools) -> None:
    cases = []
    for name in ("prov.ttl", "dcat3.ttl", "shacl.ttl"):
        data = (shared_data / "rdf" / name).read_bytes()
        written = ox.serialize(
            ox.parse(data, ox.RdfFormat.TURTLE, base_iri="https://example.org/"), format=ox.RdfFormat.N_QUADS
        )
        assert written is not None
        cases.append(written.decode())
    command = [node_tools.program, "-e", JAVASCRIPT]
    run = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, cwd=node_tools.folder)
    assert run.stderr == ""
    for case, theirs in zip(cases, json.loads(run.stdout), strict=True):
        # It sorts by UTF-16 unit; all of these texts lie in the plane where that is the same.
        assert content_of_lines(case.split("\n")[:-1]).data.decode() == theirs


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
IRIS = st.sampled_from(["http://example.org/a", "http://example.org/é", "urn:x:y", "did:dkg:agent:0x00"])
LITERALS = st.one_of(
    TEXT.map(ox.Literal),
    st.tuples(TEXT, st.sampled_from(["en", "EN-us", "de-x-y"])).map(lambda made: ox.Literal(made[0], language=made[1])),
    st.tuples(TEXT, IRIS).map(lambda made: ox.Literal(made[0], datatype=ox.NamedNode(made[1]))),
)
NODES = st.one_of(IRIS.map(ox.NamedNode), st.sampled_from("abcd").map(ox.BlankNode))
TRIPLES = st.lists(
    st.builds(ox.Triple, NODES, IRIS.map(ox.NamedNode), st.one_of(NODES, LITERALS)), min_size=1, max_size=12
)


@given(triples=TRIPLES)
def test_whatever_an_author_makes_passes_the_check_of_every_peer(triples: list[ox.Triple]) -> None:
    content = make_content(triples)
    assert check_canonical(content.data) == content
    assert canonical(content.triples()) == content.data


@given(triples=TRIPLES)
def test_the_form_is_that_of_another_implementation(triples: list[ox.Triple]) -> None:
    dataset = ox.Dataset(ox.Quad(*triple) for triple in triples)
    dataset.canonicalize(ox.CanonicalizationAlgorithm.RDFC_1_0)
    theirs = ox.serialize(dataset, format=ox.RdfFormat.N_QUADS)
    assert theirs is not None
    assert canonical(triples).decode().split("\n")[:-1] == sorted(theirs.decode().split("\n")[:-1])


@given(triples=TRIPLES, data=st.data())
def test_changed_bytes_are_refused_or_are_the_canonical_form_of_something_else(
    triples: list[ox.Triple], data: st.DataObject
) -> None:
    changed = bytearray(canonical(triples))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from(b'<>"\\_:. \n@^-aA0\xc3\xa9\xff\x00u'))
    try:
        content = check_canonical(bytes(changed))
    except RefusedError:
        return
    assert canonical(ox.parse(bytes(changed), ox.RdfFormat.N_QUADS)) == content.data == bytes(changed)


@given(data=st.binary(max_size=80))
def test_only_a_refusal_leaves_whatever_the_bytes(data: bytes) -> None:
    with pytest.raises(RefusedError):
        check_canonical(data)
