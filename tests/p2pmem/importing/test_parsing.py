"""What a user's bytes become, and what is said of those that become nothing. In this process: small inputs only."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.content import RESERVED_PREDICATES, check_canonical
from p2pmem_protocol.errors import Reason

from p2pmem.importing.errors import (
    BadBaseError,
    EmptyInputError,
    EncodingError,
    ImportingError,
    InputRefusedError,
    InputSyntaxError,
    InputTooLargeError,
    NamedGraphError,
    NoSuchFormatError,
    RemoteContextError,
    UnrecognisedError,
    XmlEntityError,
)
from p2pmem.importing.formats import Format, recognise
from p2pmem.importing.parsing import Imported, Request, import_bytes

ONE = b'<http://example.org/s> <http://example.org/p> "x"@en .\n'
RDF = b'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://example.org/"'
SAME = {
    Format.TURTLE: b'@prefix e: <http://example.org/> . e:s e:p "x"@en .',
    Format.N_TRIPLES: ONE,
    Format.N_QUADS: ONE,
    Format.TRIG: b'PREFIX e: <http://example.org/> { e:s e:p "x"@en }',
    Format.JSON_LD: b'{"@id": "http://example.org/s", "http://example.org/p": {"@value": "x", "@language": "EN"}}',
    Format.RDF_XML: b'<rdf:RDF %s><rdf:Description rdf:about="http://example.org/s"><e:p xml:lang="en">x</e:p>'
    b"</rdf:Description></rdf:RDF>" % RDF,
}


def imported(
    data: bytes,
    name: str = "file.ttl",
    form: Format | None = None,
    base: str | None = None,
    merge: bool = False,
    fallback_base: str | None = None,
) -> Imported:
    return import_bytes(data, Request(name, form, base, merge, fallback_base))


@pytest.mark.parametrize("form", list(Format))
def test_every_format_says_the_same(form: Format) -> None:
    said = imported(SAME[form], form=form)
    assert said.content.data == ONE
    assert said.content == check_canonical(ONE)
    assert said.format is form
    assert said.warnings == ()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.ttl", Format.TURTLE),
        ("a.nt", Format.N_TRIPLES),
        ("a.NQ", Format.N_QUADS),
        ("a.trig", Format.TRIG),
        ("a.jsonld", Format.JSON_LD),
        ("a.json", Format.JSON_LD),
        ("a.rdf", Format.RDF_XML),
        ("dir.ttl/a.xml", Format.RDF_XML),
    ],
)
def test_the_extension_says_the_format(name: str, form: Format) -> None:
    assert imported(SAME[form], name).format is form


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("name", ["a", "a.txt", "a.owl", "the input"])
def test_without_an_extension_the_first_words_say_the_format(name: str, form: Format) -> None:
    assert imported(b"\n  " + SAME[form], name).content.data == ONE


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b'<a:s> <a:p> "x" <a:g> .', Format.N_QUADS),
        (b"# words\n_:s <a:p> _:o _:g .", Format.N_QUADS),
        (b"<a:s> <a:p> <a:o> .", Format.TRIG),
        (b"[ <a:p> <a:o> ] .", Format.TRIG),
        (b'["a"]', Format.JSON_LD),
        (b"<!-- words --><rdf:RDF/>", Format.RDF_XML),
        (b'<?xml version="1.0"?><x/>', Format.RDF_XML),
        (b"<!DOCTYPE html><html>", None),
        (b"Dear reader, this is a letter", None),
        (b"a,b,c\n1,2,3", None),
    ],
)
def test_first_words(data: bytes, form: Format | None) -> None:
    assert recognise(data) is form
    if form is None:
        with pytest.raises(UnrecognisedError, match="--format: one of Turtle, N-Triples"):
            imported(data, "file")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Turtle", Format.TURTLE),
        ("ttl", Format.TURTLE),
        (".TTL", Format.TURTLE),
        ("text/turtle; charset=utf-8", Format.TURTLE),
        ("n-quads", Format.N_QUADS),
        ("N_QUADS", Format.N_QUADS),
        ("JSON-LD", Format.JSON_LD),
        ("application/json", Format.JSON_LD),
        ("rdf/xml", Format.RDF_XML),
    ],
)
def test_a_format_has_many_names(text: str, form: Format) -> None:
    assert Format.parse(text) is form


@pytest.mark.parametrize("text", ["", "n3", "csv", "text/html"])
def test_an_unknown_format_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(NoSuchFormatError, match="RDF/XML"):
        Format.parse(text)


def test_a_byte_order_mark_is_taken_off() -> None:
    assert imported(b"\xef\xbb\xbf" + ONE).content.data == ONE


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (ONE.decode().encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        (ONE.decode().encode("utf-16-le"), "UTF-16LE"),
        (ONE.decode().encode("utf-16-be"), "UTF-16BE"),
        (ONE.decode().encode("utf-32"), "UTF-32"),
        (gzip.compress(ONE, mtime=0), "gunzip"),
        (bz2.compress(ONE), "bunzip2"),
        (lzma.compress(ONE), "unxz"),
        (b"PK\x03\x04rest", "unzip"),
        (ONE + 'é "é'.encode("latin-1"), "line 2, byte 1"),
    ],
)
def test_what_is_not_utf_8_is_refused_with_its_remedy(data: bytes, said: str) -> None:
    with pytest.raises(EncodingError) as caught:
        imported(data)
    assert said in str(caught.value)
    assert str(caught.value).startswith("file.ttl: ")


def test_what_is_no_text_at_all_is_not_told_to_be_converted() -> None:
    for seed in range(50):
        with pytest.raises(ImportingError) as caught:
            imported(random.Random(seed).randbytes(500))
        assert "iconv" not in str(caught.value)
        assert "not text" in str(caught.value)


def test_xml_declared_in_another_encoding_is_refused_with_its_remedy() -> None:
    with pytest.raises(EncodingError, match="iconv -f ISO-8859-1"):
        imported(b'<?xml version="1.0" encoding="ISO-8859-1"?>' + SAME[Format.RDF_XML], "a.rdf")


@pytest.mark.parametrize("data", [b"", b" \n\t", b"\xef\xbb\xbf", b"# only words\n", b"@prefix e: <http://e/> ."])
def test_what_says_nothing_is_refused(data: bytes) -> None:
    with pytest.raises(EmptyInputError):
        imported(data)


def test_json_without_a_context_is_told_why_it_says_nothing() -> None:
    with pytest.raises(EmptyInputError, match="@context"):
        imported(b'{"name": "x"}', "a.json")


@pytest.mark.parametrize(
    ("form", "data", "line", "column"),
    [
        (Format.TURTLE, b'@prefix e: <http://e/> .\ne:s e:p "x" .\ne:s e:p nonsense .\n', 3, 9),
        (Format.TURTLE, ONE * 3 + b"<http://e/s> <http://e/p> ", 4, 27),
        (Format.N_TRIPLES, ONE + b'<s> <http://e/p> "x" .\n', 2, 1),
        (Format.N_QUADS, ONE + b'<http://e/a b> <http://e/p> "x" .\n', 2, 1),
        (Format.TRIG, b"<http://e/g> {\n <http://e/s> <http://e/p> }", 2, None),
        (Format.JSON_LD, b'{"@id": "http://e/s",\n "http://e/p": }', 2, 16),
        (Format.RDF_XML, b"<rdf:RDF %s>\n<rdf:Description></rdf:RDF>" % RDF, 2, 20),
    ],
)
def test_what_does_not_parse_is_refused_with_line_and_column(
    form: Format, data: bytes, line: int, column: int | None
) -> None:
    with pytest.raises(InputSyntaxError) as caught:
        imported(data, "file", form)
    assert caught.value.line == line
    assert column is None or caught.value.column == column
    assert f"file: line {line}, column {caught.value.column}: not valid {form.title}: " in str(caught.value)


def test_xml_that_is_well_formed_and_no_rdf_is_refused_in_one_line() -> None:
    with pytest.raises(InputSyntaxError) as caught:
        imported(b"<rdf:RDF %s><rdf:Description rdf:about='http://[' /></rdf:RDF>" % RDF, "a.rdf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "form"), [("a.ttl", Format.JSON_LD), ("a.ttl", Format.RDF_XML)])
def test_a_file_with_a_wrong_extension_is_told_what_it_looks_like(name: str, form: Format) -> None:
    with pytest.raises(InputSyntaxError, match=f"looks like {form.title}"):
        imported(SAME[form], name)


def test_messages_carry_no_control_characters_of_the_file() -> None:
    with pytest.raises(InputSyntaxError) as caught:
        imported(b"<http://e/s> <http://e/p> \x1b[31mred .")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (b'{"@context": "http://schema.org/", "name": "x"}', "'http://schema.org/'"),
        (b'{"@context": "file:///etc/passwd", "name": "x"}', "'file:///etc/passwd'"),
        (b'{"@context": ["ctx.jsonld", {"a": "http://a/"}], "a": "x"}', "'ctx.jsonld'"),
        (b'{"@context": {"@import": "http://a/c", "@version": 1.1}, "a": "x"}', "'http://a/c'"),
        (
            b'{"@context": {"a": {"@id": "http://a/a", "@context": "http://x/y"}}, "a": {"@id": "http://c/"}}',
            "'http://x/y'",
        ),
    ],
)
def test_a_context_from_elsewhere_is_not_fetched_and_what_to_do_is_said(data: bytes, address: str) -> None:
    with pytest.raises(RemoteContextError) as caught:
        imported(data, "a.jsonld")
    assert address in str(caught.value)
    assert "put the context itself into the file" in str(caught.value)


def test_relative_iris_are_resolved_against_the_base_that_is_given() -> None:
    base = "did:dkg:context-graph:0x00/slug/assertion/0x01/name"
    said = imported(b'<#me> <p> "x" .', base=base)
    assert said.content.data == (
        b"<did:dkg:context-graph:0x00/slug/assertion/0x01/name#me> "
        b'<did:dkg:context-graph:0x00/slug/assertion/0x01/p> "x" .\n'
    )
    assert said.base == base
    assert said.warnings == ()


def test_without_a_base_relative_iris_are_of_this_file_alone_and_a_warning_says_so() -> None:
    one, other = imported(b'<#me> <p> "x" .'), imported(b'<#me> <p> "y" .')
    assert one.base.startswith("https://p2pmem.invalid/")
    assert one.base != other.base
    assert b"<" + one.base.encode() + b"#me>" in one.content.data
    (warning,) = one.warnings
    assert f"<{one.base}" in warning
    assert "--base" in warning


def test_a_fallback_base_is_warned_of_as_well_and_only_where_something_is_relative_to_it() -> None:
    fallback = "https://p2pmem.invalid/0x00/slug/0x01/name"
    said = imported(b"<a> <b> <https://p2pmem.invalid/0x00/slug/0x01/c> .", fallback_base=fallback)
    (warning,) = said.warnings
    assert "<https://p2pmem.invalid/0x00/slug/0x01/a>" in warning
    whole = said.content.data
    assert imported(whole, fallback_base=fallback).warnings == ()  # all of it is written out there
    assert imported(b"<a> <b> <c> .", base="https://p2pmem.invalid/x/", fallback_base=fallback).warnings == ()


def test_the_base_of_the_file_itself_comes_first() -> None:
    said = imported(b'@base <http://example.org/> . <s> <p> "x"@en .', base="http://elsewhere.org/")
    assert said.content.data == ONE


@pytest.mark.parametrize("base", ["", "relative", "http://a b/", "//example.org/"])
def test_a_base_that_is_no_absolute_iri_is_refused(base: str) -> None:
    with pytest.raises(BadBaseError):
        imported(ONE, base=base)


GRAPHS = b'<a:g> { <a:s> <a:p> "x", "y" } { <a:s> <a:p> "y" } _:g { <a:s> <a:p> "z" }'


def test_named_graphs_are_refused_unless_it_is_asked_to_merge_them() -> None:
    with pytest.raises(NamedGraphError, match=r"<a:g>.*--merge-graphs"):
        imported(b'<a:g> { <a:s> <a:p> "x" }', "a.trig")
    said = imported(GRAPHS, "a.trig", merge=True)
    assert said.content.data == b'<a:s> <a:p> "x" .\n<a:s> <a:p> "y" .\n<a:s> <a:p> "z" .\n'
    (warning,) = said.warnings
    assert "2 named graphs were merged" in warning
    (warning,) = imported(b'<a:g> { <a:s> <a:p> "x" }', "a.trig", merge=True).warnings
    assert "1 named graph was merged" in warning


def test_blank_nodes_are_labelled_canonically() -> None:
    said = imported(b"[ <a:p> [ <a:p> 01 ] ] .")
    assert said.content == check_canonical(said.content.data)
    assert b'"01"^^' in said.content.data


def test_statements_that_break_a_rule_of_content_are_refused_with_its_reason() -> None:
    with pytest.raises(InputRefusedError) as caught:
        imported(f'<a:s> <{min(RESERVED_PREDICATES)}> "4" .'.encode())
    assert caught.value.reason is Reason.CONTENT_RESERVED_PREDICATE
    with pytest.raises(InputRefusedError) as caught:
        imported(b"<a:s> <a:p> <<( <a:s> <a:p> <a:o> )>> .")
    assert caught.value.reason is Reason.CONTENT_TOO_DEEP


def test_blank_nodes_over_the_budget_are_refused() -> None:
    clique = "".join(f"_:a{a} <a:p> _:a{b} .\n" for a in range(9) for b in range(9) if a != b)
    with pytest.raises(InputRefusedError) as caught:
        imported(clique.encode())
    assert caught.value.reason is Reason.CONTENT_OVER_BUDGET


def test_too_many_statements_are_refused_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pmem.importing.parsing.STATEMENTS_MAX", 10)
    with pytest.raises(InputTooLargeError, match="split"):
        imported(b"".join(b'<a:s> <a:p> "%d" .\n' % n for n in range(11)))
    monkeypatch.setattr("p2pmem.importing.parsing.CONTENT_BYTES_MAX", 20)
    with pytest.raises(InputTooLargeError, match="split"):
        imported(ONE)


def xml_with(entities: bytes, text: bytes) -> bytes:
    head = b"<!DOCTYPE rdf:RDF [\n%s]>\n<rdf:RDF %s>" % (entities, RDF)
    return head + b"<rdf:Description rdf:about='http://e/s'><e:p>%s</e:p></rdf:Description></rdf:RDF>" % text


def test_entities_as_ontology_editors_write_them_are_read() -> None:
    said = imported(xml_with(b'<!ENTITY xsd "http://www.w3.org/2001/XMLSchema#" >', b"&xsd;a&amp;b"), "a.rdf")
    assert b'"http://www.w3.org/2001/XMLSchema#a&b"' in said.content.data


@pytest.mark.parametrize(
    "entities",
    [
        pytest.param(b'<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">', id="an entity within an entity"),
        pytest.param(b'<!ENTITY a "' + b"a" * 4_097 + b'">', id="a long one"),
        pytest.param(b'<!ENTITY a SYSTEM "file:///etc/passwd">', id="a file"),
        pytest.param(b'<!ENTITY a PUBLIC "x" "http://example.org/">', id="an address"),
        pytest.param(b'<!ENTITY % a "x">', id="a parameter entity"),
    ],
)
def test_entities_that_grow_or_point_outside_are_refused(entities: bytes) -> None:
    with pytest.raises(XmlEntityError, match="line 2"):
        imported(xml_with(entities, b"&a;"), "a.rdf")


@pytest.mark.parametrize(
    ("name", "count"),
    [("prov.ttl", 1664), ("dcat3.ttl", 1695), ("shacl.ttl", 1128), ("dcat3.jsonld", 1695), ("org.rdf", 748)],
)
def test_real_vocabularies_are_read(shared_data: Path, name: str, count: int) -> None:
    said = imported((shared_data / "rdf" / name).read_bytes(), name)
    assert said.content.line_count == count
    assert said.content == check_canonical(said.content.data)
    assert len(said.warnings) == (name == "prov.ttl")


def test_one_vocabulary_in_two_formats_is_one_content(shared_data: Path) -> None:
    folder = shared_data / "rdf"
    turtle = imported((folder / "dcat3.ttl").read_bytes(), "dcat3.ttl")
    json_ld = imported((folder / "dcat3.jsonld").read_bytes(), "dcat3.jsonld")
    assert turtle.content.root == json_ld.content.root


PIECES = st.sampled_from(
    [*SAME.values(), b"<", b">", b"{", b"}", b'"', b"\\", b"\0", b"\xff", b"@", b"&a;", b"<!ENTITY"]
)


@given(pieces=st.lists(PIECES, max_size=5), form=st.sampled_from([None, *Format]), cut=st.integers(0, 300))
def test_whatever_the_bytes_one_line_is_said_or_the_content_is_canonical(
    pieces: list[bytes], form: Format | None, cut: int
) -> None:
    data = b" ".join(pieces)[cut:]
    said = content_or_error(data, form)
    if isinstance(said, ImportingError):
        assert "\n" not in str(said)
        assert str(said).startswith("file: ")
    else:
        assert said.content == check_canonical(said.content.data)


def content_or_error(data: bytes, form: Format | None) -> Imported | ImportingError:
    try:
        return imported(data, "file", form)
    except ImportingError as error:
        return error
