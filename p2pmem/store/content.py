"""From canonical N-Quads to triples as the store will hold them.

Oxigraph rewrites literals on insertion: `"01"^^xsd:integer` is held, and found, as `1`. Whoever counts which assets
hold a triple must count what is held, so each typed literal is first passed through a scratch store. The sealed bytes
themselves live in the ledger; nothing here is ever hashed or signed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import lru_cache

import pyoxigraph as ox
from p2pmem_protocol.errors import MisuseError

MAX_NESTING = 32
"""Triple terms inside triple terms. The native parser dies of some thousands."""

_XSD = "http://www.w3.org/2001/XMLSchema#"
_XSD_STRING = _XSD + "string"
_PROBE = ox.NamedNode("urn:p2pmem:probe")
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|<<\(|\)>>', re.DOTALL)

Subject = ox.NamedNode | ox.BlankNode
Term = ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple


def named(iri: str) -> ox.NamedNode:
    """The IRI as a node. `MisuseError` if it is not an absolute IRI."""
    try:
        return ox.NamedNode(iri)
    except ValueError as error:
        raise MisuseError(f"not an absolute IRI: {iri[:200]!r} ({error}); pass a whole IRI without brackets") from None


def asset_triples(graph_iri: str, content: bytes) -> set[ox.Triple]:
    """The content as held triples, its blank nodes renamed so that no other graph can share them.

    The new label is a function of the graph's IRI and the canonical label alone: a rebuilt store is the same store.
    `MisuseError` if the bytes are not N-Quads of one default graph, or nest deeper than `MAX_NESTING`.
    """
    if b"_:" not in content and b"^^" not in content:
        # Neither a blank node nor a literal that the store would rewrite: most of what agents say.
        return set(_parse(content, graph_iri))
    labels: dict[str, ox.BlankNode] = {}

    def rename(blank: ox.BlankNode) -> ox.BlankNode:
        known = labels.get(blank.value)
        if known is None:
            known = labels[blank.value] = blank_node(graph_iri, blank.value)
        return known

    return {_held_triple(triple, rename) for triple in _parse(content, graph_iri)}


def meta_triples(graph_iri: str, lines: bytes) -> set[ox.Triple]:
    """Lines of a graph that belongs to no asset, as held triples. `MisuseError` if there is a blank node in them."""

    def refuse(blank: ox.BlankNode) -> ox.BlankNode:
        raise MisuseError(f"blank node {blank.value!r} in a change of <{graph_iri}>; give it a name")

    return {_held_triple(triple, refuse) for triple in _parse(lines, graph_iri)}


def blank_node(graph_iri: str, label: str) -> ox.BlankNode:
    """The blank node that stands for `label` of that graph: 124 bits of a hash, in the form Oxigraph packs."""
    digest = hashlib.sha256(graph_iri.encode() + b"\0" + label.encode()).hexdigest()
    return ox.BlankNode("b" + digest[:31])


def check_nesting(content: bytes, where: str) -> None:
    """`MisuseError` if triple terms nest deeper than `MAX_NESTING`. Linear, and no parser has seen the bytes before."""
    if b"<<(" not in content:
        return
    depth = 0
    for token in _NESTING.finditer(content):
        if token[0] == b"<<(":
            depth += 1
            if depth > MAX_NESTING:
                raise MisuseError(f"triple terms nest deeper than {MAX_NESTING} in <{where}>; flatten them")
        elif token[0] == b")>>":
            depth -= 1


def _parse(content: bytes, where: str) -> list[ox.Triple]:
    check_nesting(content, where)
    try:
        quads = list(ox.parse(content, format=ox.RdfFormat.N_QUADS, without_named_graphs=True))
    except SyntaxError as error:
        raise MisuseError(f"content of <{where}> is not N-Quads of one default graph: {error}") from None
    return [quad.triple for quad in quads]


def _held_triple(triple: ox.Triple, rename: Callable[[ox.BlankNode], ox.BlankNode]) -> ox.Triple:
    subject, object_ = triple.subject, triple.object
    if isinstance(subject, ox.NamedNode):
        if isinstance(object_, ox.NamedNode):
            return triple
        if isinstance(object_, ox.Literal) and _held_term(object_, rename) is object_:
            return triple
    return ox.Triple(
        rename(subject) if isinstance(subject, ox.BlankNode) else subject,
        triple.predicate,
        _held_term(object_, rename),
    )


def _held_term(term: Term, rename: Callable[[ox.BlankNode], ox.BlankNode]) -> Term:
    if isinstance(term, ox.BlankNode):
        return rename(term)
    if isinstance(term, ox.Triple):
        return _held_triple(term, rename)
    if isinstance(term, ox.Literal):
        datatype = term.datatype.value
        if datatype == _XSD_STRING or term.language is not None:
            return term
        written = _AS_HELD.get(datatype)
        return term if written is not None and written.fullmatch(term.value) else _held_literal(term)
    return term


_WRITTEN_AS_HELD = {
    _XSD + "integer": "0|-?[1-9][0-9]{0,17}",
    _XSD + "boolean": "true|false",
    _XSD + "dateTime": (
        "[1-9][0-9]{3}-"
        "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
        r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{0,8}[1-9])?Z"
    ),
}
"""Literals of which it is known that the store holds them as they are. (To ask it costs some 50 us for each.)"""
_AS_HELD = {datatype: re.compile(pattern) for datatype, pattern in _WRITTEN_AS_HELD.items()}

# Statements that are the same text as N-Triples, as the store holds them, and inside an update. So no escapes by code
# point: SPARQL reads those before anything else.
_IRI = r"<[A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x20<>\"{}|^`\\\x7f]*>"
_WORDS = r"\"[^\"\\\x00-\x1f\x7f]*+(?:\\[tbnrf\"\\][^\"\\\x00-\x1f\x7f]*+)*+\""
_TYPED = "|".join(rf"\"(?:{pattern})\"\^\^<{re.escape(datatype)}>" for datatype, pattern in _WRITTEN_AS_HELD.items())
_TAG = r"@[a-z]+(?:-[a-z0-9]+)*"
_HELD_LINES = re.compile(rf"(?:{_IRI} {_IRI} (?:{_IRI}|{_WORDS}(?:{_TAG})?(?= )|{_TYPED}) \.\n)++")
_PLAIN_LINES = re.compile(rf"(?:{_IRI} {_IRI} (?:{_IRI}|{_WORDS}(?:{_TAG}|\^\^{_IRI})?) \.\n)++")


def held_lines(lines: bytes) -> list[str] | None:
    """The statements of N-Quads lines as they can be written into an update, when the store holds each as it stands.

    None when that needs a closer look: blank nodes, triple terms, literals that may be rewritten, odd escapes, or
    lines that are no N-Quads at all. Most of what agents say is plain, and to make objects of it costs more than this.
    """
    return _lines(lines, _HELD_LINES)


def plain_lines(lines: bytes) -> list[str] | None:
    """The same, whatever the store makes of the literals: for statements that nobody counts."""
    return _lines(lines, _PLAIN_LINES)


def _lines(lines: bytes, grammar: re.Pattern[str]) -> list[str] | None:
    try:
        text = lines.decode()
    except UnicodeDecodeError:
        return None
    if "\\u" in text or "\\U" in text or grammar.fullmatch(text) is None:
        return None
    return text[:-3].split(" .\n")


def triples_of(lines: list[str]) -> list[ox.Triple]:
    """Lines as `held_lines` gives them, or written by the native library, as triples."""
    return _parse("".join(f"{line} .\n" for line in lines).encode(), "content")


@lru_cache(maxsize=8_192)
def _held_literal(literal: ox.Literal) -> ox.Literal:
    """The literal as Oxigraph gives it back; equal results are one term in the store."""
    scratch = ox.Store()
    scratch.add(ox.Quad(_PROBE, _PROBE, literal))
    (quad,) = scratch
    assert isinstance(quad.object, ox.Literal)
    return quad.object
