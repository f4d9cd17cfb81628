"""From an asset's canonical N-Quads to passages of text, one per subject, for the indexes of recall.

A passage begins with what its subject is called, then says each statement as "predicate value". Blank nodes are said
inside the passage of whoever points at them, for nobody asks for them by themselves. Long text is cut into several
passages that all begin with the name. Everything is bounded; what does not fit is left out, and the extract says so.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

import pyoxigraph as ox
from p2pmem_protocol.errors import MisuseError

from p2pmem.store.content import Term, check_nesting

MAX_PASSAGE_CHARACTERS = 1_500
MAX_PASSAGES_PER_SUBJECT = 64
MAX_PASSAGES = 1_024
MAX_NAME_CHARACTERS = 300
MAX_ASSET_CHARACTERS = 1_000_000
MAX_BLANK_DEPTH = 4
OPAQUE_CHARACTERS = 256
"""What is so long without a space is no word: a key, an image."""

_XSD = "http://www.w3.org/2001/XMLSchema#"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_TYPE = _RDF + "type"
_LABELS = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://schema.org/name",
    "https://schema.org/name",
    "http://xmlns.com/foaf/0.1/name",
    "http://purl.org/dc/terms/title",
    "http://purl.org/dc/elements/1.1/title",
)
_DATE = re.compile(r"^(-?\d{4,})-(\d\d)-(\d\d)(T|Z|[+-]|$)")
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_MARKUP = re.compile(r"<[^<>]{0,1000}>")
_OPAQUE = re.compile(f"[A-Za-z0-9+/=_-]{{{OPAQUE_CHARACTERS},}}")
_SPACE = re.compile(r"\s+")

Node = ox.NamedNode | ox.BlankNode


@dataclass(frozen=True, slots=True)
class Passage:
    """What is said about one subject: its IRI, or `_:label` for a blank node that nobody points at."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Extract:
    """The passages of an asset; `truncated` when there was more to say than the limits let through."""

    passages: tuple[Passage, ...]
    truncated: bool


def extract_passages(content: bytes) -> Extract:
    """The passages of canonical N-Quads. The same for the same bytes. `MisuseError` if they are no N-Quads."""
    check_nesting(content, "content")
    try:
        triples = [quad.triple for quad in ox.parse(content, format=ox.RdfFormat.N_QUADS)]
    except SyntaxError as error:
        raise MisuseError(f"content is not N-Quads: {error}") from None
    asset = _Asset(triples)
    passages: list[Passage] = []
    truncated = False
    for subject in asset.speakers():
        name, parts = asset.say(subject)
        cut = list(_cut(name, parts))
        truncated = truncated or len(cut) > MAX_PASSAGES_PER_SUBJECT
        key = subject.value if isinstance(subject, ox.NamedNode) else str(subject)
        passages += [Passage(key, text) for text in cut[:MAX_PASSAGES_PER_SUBJECT] if text]
        if len(passages) > MAX_PASSAGES:
            return Extract(tuple(passages[:MAX_PASSAGES]), True)
    return Extract(tuple(passages), truncated or asset.was_cut)


class _Asset:
    """The statements of one asset, by subject."""

    def __init__(self, triples: list[ox.Triple]) -> None:
        self._said: dict[Node, list[tuple[str, Term]]] = {}
        self._pointed_at: set[ox.BlankNode] = set()
        self._names: dict[Node, str] = {}
        self._room = MAX_ASSET_CHARACTERS
        self.was_cut = False
        for triple in triples:
            assert isinstance(triple.subject, ox.NamedNode | ox.BlankNode)
            self._said.setdefault(triple.subject, []).append((triple.predicate.value, triple.object))
            if isinstance(triple.object, ox.BlankNode) and triple.object != triple.subject:
                self._pointed_at.add(triple.object)

    def speakers(self) -> Iterator[Node]:
        """Subjects with a passage of their own: the named ones, blank ones nobody points at, and then blank ones that
        are only reached from each other."""
        reached: set[Node] = set()
        for subject in self._said:
            if isinstance(subject, ox.NamedNode) or subject not in self._pointed_at:
                self._reach(subject, reached)
                yield subject
        for subject in self._said:
            if subject not in reached:
                self._reach(subject, reached)
                yield subject

    def say(self, subject: Node) -> tuple[str, list[str]]:
        """What the subject is called, and each of its statements in words, as far as there is room in the asset."""
        name = self._name(subject)
        parts: list[str] = []
        for part in self._statements(subject, {subject}, 0):
            if part == name and len(name) <= MAX_NAME_CHARACTERS:
                continue
            parts.append(part[: self._room])
            self._room -= len(parts[-1])
            if len(parts[-1]) < len(part):
                self.was_cut = True
                break
        return name, parts

    def _reach(self, start: Node, reached: set[Node]) -> None:
        waiting = [start]
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting += [term for _, term in self._said.get(node, ()) if isinstance(term, ox.BlankNode)]

    def _statements(self, subject: Node, inside: set[Node], depth: int) -> Iterator[str]:
        for predicate, term in self._said.get(subject, ()):
            words = "" if predicate == _TYPE or predicate in _LABELS else local_name(predicate)
            if not isinstance(term, ox.BlankNode):
                yield f"{words} {self._term(term)}".strip()
            elif depth == MAX_BLANK_DEPTH:
                self.was_cut = True
            elif term not in inside:
                inside.add(term)
                for inner in self._statements(term, inside, depth + 1):
                    yield f"{words} {inner}".strip()

    def _name(self, subject: Node) -> str:
        known = self._names.get(subject)
        if known is None:
            known = self._names[subject] = self._find_name(subject)
        return known

    def _find_name(self, subject: Node) -> str:
        said = self._said.get(subject, ())
        for label in _LABELS:
            for predicate, term in said:
                if predicate == label and isinstance(term, ox.Literal):
                    return literal_text(term)
        return local_name(subject.value) if isinstance(subject, ox.NamedNode) else ""

    def _term(self, term: Term) -> str:
        if isinstance(term, ox.Literal):
            return literal_text(term)
        if isinstance(term, ox.Triple):
            return " ".join((self._term(term.subject), local_name(term.predicate.value), self._term(term.object)))
        return self._name(term)[:MAX_NAME_CHARACTERS]


@lru_cache(maxsize=4_096)
def local_name(iri: str) -> str:
    """The last part of an IRI, as words as far as its punctuation tells: what follows the last `#`, `/` or `:`."""
    last = re.split(r"[#/:]", iri.rstrip("#/:"))[-1]
    return _SPACE.sub(" ", re.sub(r"[_.+-]", " ", unquote(last))).strip()


def literal_text(literal: ox.Literal) -> str:
    """A literal as a person would say it: a date also in words, markup without its tags, nothing of what is no text."""
    text, datatype = literal.value, literal.datatype.value
    if datatype in (_XSD + "hexBinary", _XSD + "base64Binary"):
        return ""
    if datatype in (_XSD + "date", _XSD + "dateTime"):
        return _date_text(text)
    if datatype in (_RDF + "HTML", _RDF + "XMLLiteral"):
        text = html.unescape(_MARKUP.sub(" ", text))
    words = text.split()
    if len(text) >= OPAQUE_CHARACTERS and max(map(len, words), default=0) >= OPAQUE_CHARACTERS:
        words = _OPAQUE.sub("", text).split()
    return " ".join(words)


def _date_text(text: str) -> str:
    found = _DATE.match(text)
    if found is None or not 1 <= int(found[2]) <= 12:
        return text
    return f"{text} ({int(found[3])} {_MONTHS[int(found[2]) - 1]} {found[1]})"


def _cut(name: str, parts: list[str]) -> Iterator[str]:
    """The parts as passages of bounded length, each beginning with the name. At most one more than are taken."""
    head = name[:MAX_NAME_CHARACTERS]
    room = MAX_PASSAGE_CHARACTERS - len(head) - 2
    said = [part for part in parts if part]
    text = "".join(part + (" " if part.endswith(".") else ". ") for part in said[:-1]) + "".join(said[-1:])
    start, count = 0, 0
    while start < len(text) or count == 0:
        end = _cut_point(text, start, room)
        piece = text[start:end].strip()
        yield f"{head}. {piece}" if head and piece else head or piece
        start, count = end, count + 1
        if count > MAX_PASSAGES_PER_SUBJECT:
            return


def _cut_point(text: str, start: int, room: int) -> int:
    """Where to end a passage that begins at `start`: after a sentence or a word in its last third, if there is one."""
    end = start + room
    if end >= len(text):
        return len(text)
    for mark in (". ", " "):
        found = text.rfind(mark, start + room * 2 // 3, end)
        if found >= 0:
            return found + len(mark)
    return end
