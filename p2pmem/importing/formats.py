"""The RDF formats that a file may have, and how one is recognised: asked for, by extension, by its first words."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Final

from p2pmem.importing.errors import NoSuchFormatError, UnrecognisedError


class Format(Enum):
    """An RDF format. The value is its media type."""

    TURTLE = "text/turtle"
    N_TRIPLES = "application/n-triples"
    N_QUADS = "application/n-quads"
    TRIG = "application/trig"
    JSON_LD = "application/ld+json"
    RDF_XML = "application/rdf+xml"

    @property
    def title(self) -> str:
        """The name that people use."""
        return _TITLES[self]

    @classmethod
    def parse(cls, text: str) -> Format:
        """Read a title, a media type or an extension, in any case: `Turtle`, `text/turtle`, `ttl`, `.ttl`.

        Raises NoSuchFormatError.
        """
        return _format(text)


@lru_cache(maxsize=64)
def _format(text: str) -> Format:
    word = text.strip().lower().partition(";")[0]
    found = _EXTENSIONS.get(word.lstrip(".")) or _MORE_MEDIA_TYPES.get(word)
    if found is not None:
        return found
    for form in Format:
        if word in (form.value, form.title.lower(), form.name.lower(), form.name.lower().replace("_", "-")):
            return form
    raise NoSuchFormatError(f"there is no format {text!r}: use one of {_choices()}")


_TITLES: Final = {
    Format.TURTLE: "Turtle",
    Format.N_TRIPLES: "N-Triples",
    Format.N_QUADS: "N-Quads",
    Format.TRIG: "TriG",
    Format.JSON_LD: "JSON-LD",
    Format.RDF_XML: "RDF/XML",
}
_EXTENSIONS: Final = {
    "ttl": Format.TURTLE,
    "nt": Format.N_TRIPLES,
    "nq": Format.N_QUADS,
    "trig": Format.TRIG,
    "jsonld": Format.JSON_LD,
    "json": Format.JSON_LD,
    "rdf": Format.RDF_XML,
    "xml": Format.RDF_XML,
}
_MORE_MEDIA_TYPES: Final = {
    "application/json": Format.JSON_LD,
    "application/xml": Format.RDF_XML,
    "text/xml": Format.RDF_XML,
    "application/x-turtle": Format.TURTLE,
}
# Only the first bytes are looked at.
_LOOKED_AT_BYTES: Final = 4_096

_SKIPPED: Final = re.compile(rb"(?:\s|#[^\n]*(?:\n|\Z))*")
_JSON: Final = re.compile(rb"\{\s*[\"}]|\[\s*[{\[\]\"]")
_XML: Final = re.compile(rb"<\?xml|<!--|<!DOCTYPE\s+rdf|<rdf:|<[A-Za-z]+:RDF[\s>]", re.IGNORECASE)
_HTML: Final = re.compile(rb"<!DOCTYPE\s+html|<html|<head|<body", re.IGNORECASE)
_FOUR_TERMS: Final = re.compile(
    rb"(?:<[^>\s]*>|_:\S+)[ \t]+<[^>\s]*>[ \t]+"
    rb"(?:<[^>\s]*>|_:\S+|\"(?:[^\"\\\n]|\\.)*\"(?:@[A-Za-z0-9-]+|\^\^<[^>\s]*>)?)[ \t]+"
    rb"(?:<[^>\s]*>|_:[^\s.]+)[ \t]*\."
)
_TURTLE: Final = re.compile(rb"@prefix|@base|prefix\s|base\s|graph\s|<|_:|\[|\(|\{|[A-Za-z]?[\w.-]*:", re.IGNORECASE)


def choose(name: str, data: bytes, asked: Format | None) -> Format:
    """What is asked for; else what the extension of the name says; else what the first words look like.

    Raises UnrecognisedError where none of them says anything.
    """
    if asked is not None:
        return asked
    extension = PurePath(name).suffix.lower().lstrip(".")
    found = _EXTENSIONS.get(extension) or recognise(data)
    if found is None:
        raise UnrecognisedError(
            f"{name}: not recognised as RDF: give it the extension of its format, or name that with --format: one of "
            f"{_choices()}"
        )
    return found


def recognise(data: bytes) -> Format | None:
    """The format that the first words look like. Text that could be Turtle is taken for TriG, which contains it."""
    begin = data[:_LOOKED_AT_BYTES]
    plain = begin.lstrip()
    if _JSON.match(plain):
        return Format.JSON_LD
    if _HTML.match(plain):
        return None
    if _XML.match(plain):
        return Format.RDF_XML
    skipped = _SKIPPED.match(begin)
    assert skipped is not None
    words = begin[skipped.end() :]
    if _FOUR_TERMS.match(words):
        return Format.N_QUADS
    # Nothing but comments so far is Turtle as well.
    return Format.TRIG if not words or _TURTLE.match(words) else None


def _choices() -> str:
    return ", ".join(form.title for form in Format)
