"""RDF terms as plain frozen values, and their form in SPARQL 1.2 JSON results."""

from __future__ import annotations

from dataclasses import dataclass

import pyoxigraph as ox

_XSD_STRING = "http://www.w3.org/2001/XMLSchema#string"

Json = dict[str, "str | Json"]


@dataclass(frozen=True, slots=True)
class Iri:
    """An absolute IRI."""

    value: str


@dataclass(frozen=True, slots=True)
class Blank:
    """A blank node; its label means something within one answer only."""

    label: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal as the store holds it: numbers, dates and booleans in the store's own spelling, not the author's."""

    value: str
    datatype: str = _XSD_STRING
    language: str | None = None
    direction: str | None = None


@dataclass(frozen=True, slots=True)
class TripleTerm:
    """A statement that is spoken about (RDF 1.2)."""

    subject: Iri | Blank
    predicate: Iri
    object: Iri | Blank | Literal | TripleTerm


Term = Iri | Blank | Literal | TripleTerm


@dataclass(frozen=True, slots=True)
class Statement:
    """A triple and the graph it was found in."""

    subject: Term
    predicate: Iri
    object: Term
    graph_iri: str


def from_oxigraph(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple) -> Term:
    """The term as a value of ours."""
    if isinstance(term, ox.NamedNode):
        return Iri(term.value)
    if isinstance(term, ox.BlankNode):
        return Blank(term.value)
    if isinstance(term, ox.Literal):
        direction = None if term.direction is None else term.direction.value
        return Literal(term.value, term.datatype.value, term.language, direction)
    subject, predicate = from_oxigraph(term.subject), from_oxigraph(term.predicate)
    assert isinstance(subject, Iri | Blank)
    assert isinstance(predicate, Iri)
    return TripleTerm(subject, predicate, from_oxigraph(term.object))


def to_oxigraph(term: Term) -> ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple:
    """The term as Oxigraph's. `ValueError` if it is not well-formed."""
    if isinstance(term, Iri):
        return ox.NamedNode(term.value)
    if isinstance(term, Blank):
        return ox.BlankNode(term.label)
    if isinstance(term, Literal):
        if term.language is None:
            return ox.Literal(term.value, datatype=ox.NamedNode(term.datatype))
        direction = None if term.direction is None else ox.BaseDirection(term.direction)
        return ox.Literal(term.value, language=term.language, direction=direction)
    subject, predicate = to_oxigraph(term.subject), to_oxigraph(term.predicate)
    assert isinstance(subject, ox.NamedNode | ox.BlankNode)
    assert isinstance(predicate, ox.NamedNode)
    return ox.Triple(subject, predicate, to_oxigraph(term.object))


def to_json(term: ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple) -> Json:
    """The term as it stands in SPARQL 1.2 JSON results."""
    if isinstance(term, ox.NamedNode):
        return {"type": "uri", "value": term.value}
    if isinstance(term, ox.BlankNode):
        return {"type": "bnode", "value": term.value}
    if isinstance(term, ox.Literal):
        shown: Json = {"type": "literal", "value": term.value}
        if term.language is not None:
            shown["xml:lang"] = term.language
            if term.direction is not None:
                shown["its:dir"] = term.direction.value
        elif term.datatype.value != _XSD_STRING:
            shown["datatype"] = term.datatype.value
        return shown
    parts: Json = {
        "subject": to_json(term.subject),
        "predicate": to_json(term.predicate),
        "object": to_json(term.object),
    }
    return {"type": "triple", "value": parts}


def from_json(shown: Json) -> Term:
    """A term out of SPARQL 1.2 JSON results that `to_json` made."""
    kind, value = shown["type"], shown["value"]
    if isinstance(value, dict):
        assert kind == "triple"
        parts = {name: from_json(part) for name, part in value.items() if isinstance(part, dict)}
        subject, predicate = parts["subject"], parts["predicate"]
        assert isinstance(subject, Iri | Blank)
        assert isinstance(predicate, Iri)
        return TripleTerm(subject, predicate, parts["object"])
    if kind == "uri":
        return Iri(value)
    if kind == "bnode":
        return Blank(value)
    return _literal_from_json(shown, value)


def _literal_from_json(shown: Json, value: str) -> Literal:
    language, direction, datatype = shown.get("xml:lang"), shown.get("its:dir"), shown.get("datatype")
    if isinstance(language, str):
        rdf = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
        if isinstance(direction, str):
            return Literal(value, rdf + "dirLangString", language, direction)
        return Literal(value, rdf + "langString", language)
    return Literal(value, datatype if isinstance(datatype, str) else _XSD_STRING)
