"""A user's bytes to content. Pure: no file, no clock, no network; the limits of the process it runs in bound it.

Rules, beside those of content itself:

* **Encoding**: UTF-8, with or without a byte-order mark. UTF-16 and compressed files are recognised, and refused with
  the command that converts them.
* **Base**: relative IRIs are resolved against the base of the file, else against the one that the caller gives, else
  against `https://p2pmem.invalid/<first 32 hex digits of the file's SHA-256>/`. The domain can never exist (RFC 2606);
  the hash keeps `<#me>` of two people apart, and says nothing of where the file lay. It changes with the file, so
  whoever means to write a next version gives a base, as the node does with the name of the asset. A warning says when
  the caller chose none and the file has relative IRIs.
* **Named graphs** are refused, unless the caller asks to merge them: content has one graph, and to merge is to assert
  what the file may only quote. Merging is reported as a warning.
* **JSON-LD** contexts are inline. A remote one is never fetched, whatever its scheme.
* **XML entities** are short words for IRIs, as ontology editors write them: at most 4 KiB, no entity within an entity,
  none from outside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final
from xml.parsers import expat

import pyoxigraph as ox
from p2pmem_protocol.content import Content, content_of_lines
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.limits import CONTENT_BYTES_MAX, STATEMENTS_MAX

from p2pmem.importing.errors import (
    BadBaseError,
    EmptyInputError,
    EncodingError,
    InputRefusedError,
    InputSyntaxError,
    InputTooLargeError,
    NamedGraphError,
    RemoteContextError,
    XmlEntityError,
)
from p2pmem.importing.formats import Format, choose, recognise

ENTITY_BYTES_MAX: Final = 4_096
BATCH_STATEMENTS: Final = 1_000

_PARSERS: Final = {
    Format.TURTLE: ox.RdfFormat.TURTLE,
    Format.N_TRIPLES: ox.RdfFormat.N_TRIPLES,
    Format.N_QUADS: ox.RdfFormat.N_QUADS,
    Format.TRIG: ox.RdfFormat.TRIG,
    Format.JSON_LD: ox.RdfFormat.JSON_LD,
    Format.RDF_XML: ox.RdfFormat.RDF_XML,
}
_MARK: Final = b"\xef\xbb\xbf"
_PACKED: Final = (
    (b"\x1f\x8b", "gzip", "unpack it with gunzip"),
    (b"BZh", "bzip2", "unpack it with bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unpack it with unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unpack it with unzstd"),
    (b"PK\x03\x04", "a zip archive", "unpack it with unzip"),
    (b"%PDF-", "PDF", "export its data as RDF"),
)
_DECLARED: Final = re.compile(rb"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9._-]+)[\"']")
_ENTITY: Final = re.compile(rb"<!ENTITY\s+(%\s+)?[^\s\"'>]+\s+(?:\"([^\"]*)\"|'([^']*)'|(SYSTEM|PUBLIC))")
_WITHIN_ENTITY: Final = re.compile(rb"&(?!#|amp;|lt;|gt;|quot;|apos;)|%[A-Za-z]+;")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_LOOKED_AT_BYTES: Final = 4_096
_WIDE_BYTES: Final = 8
_NO_HOST: Final = "https://p2pmem.invalid/"
_UNDER_NO_HOST: Final = re.compile(rf"<({re.escape(_NO_HOST)}[^>]*)>")
_POSITION: Final = re.compile(r"^Parser error (?:at|between) .*?: |\s*\(line \d+\)$")


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a parser beside the bytes. `name` is what messages call the file.

    `base` is what the caller chose, `fallback_base` what relative IRIs are relative to where he chose nothing.
    """

    name: str
    format: Format | None = None
    base: str | None = None
    merge_graphs: bool = False
    fallback_base: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file says: its content, as which format and against which base it was read, and what to know of it."""

    content: Content
    format: Format
    base: str
    warnings: tuple[str, ...] = ()


def import_bytes(data: bytes, request: Request) -> Imported:
    """The content of a file. Raises a subclass of ImportingError; MemoryError where the process has no more."""
    text = _checked_text(data, request.name)
    form = choose(request.name, text, request.format)
    if form is Format.RDF_XML:
        _check_xml(text, request.name)
    base = _checked_base(request.fallback_base if request.base is None else request.base, data, request.name)
    warnings: list[str] = []
    lines = _lines(_statements(text, form, base, request.name), request, warnings)
    if not lines:
        raise EmptyInputError(f"{request.name}: no statement in it, read as {form.title}{_hint_if_empty(form)}")
    try:
        content = content_of_lines(lines)
    except RefusedError as refused:
        raise InputRefusedError(f"{request.name}: {refused}", refused.reason) from None
    became = _from_relative(lines, text) if request.base is None else None
    if became is not None:
        warnings.append(
            f"{request.name}: has relative IRIs, and one of them became <{became}>: choose with --base what they are "
            "relative to"
        )
    return Imported(content, form, base, tuple(warnings))


def _checked_text(data: bytes, name: str) -> bytes:
    """The bytes without a byte-order mark, if they are UTF-8."""
    for magic, packed, remedy in _PACKED:
        if data.startswith(magic):
            raise EncodingError(f"{name}: this is {packed}, not text: {remedy} first")
    wide = _wide_encoding(data)
    if wide is not None:
        raise EncodingError(f"{name}: this is {wide}: convert it with iconv -f {wide} -t UTF-8")
    text = data.removeprefix(_MARK)
    if not text.strip():
        raise EmptyInputError(f"{name}: the file is empty")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if _CONTROL.search(text[:_LOOKED_AT_BYTES]):
            raise EncodingError(f"{name}: this is not text but binary data: export what it says as RDF") from None
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        raise EncodingError(
            f"{name}: line {line}, byte {column}: not UTF-8: convert the file with iconv -f ITS-ENCODING -t UTF-8"
        ) from None
    return text


def _wide_encoding(data: bytes) -> str | None:
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    # Without a mark: the words that a format begins with are ASCII, so one of the two bytes of each is zero.
    high, low = data[0:_WIDE_BYTES:2], data[1:_WIDE_BYTES:2]
    if low and not any(high) and all(low):
        return "UTF-16BE"
    if low and not any(low) and all(high):
        return "UTF-16LE"
    return None


def _checked_base(asked: str | None, data: bytes, name: str) -> str:
    if asked is None:
        return f"{_NO_HOST}{hashlib.sha256(data).hexdigest()[:32]}/"
    try:
        ox.NamedNode(asked)
    except ValueError as error:
        raise BadBaseError(f"{name}: the base {asked!r} is not an absolute IRI ({error}): give one") from None
    return asked


def _from_relative(lines: Iterable[str], text: bytes) -> str | None:
    """An IRI under the host of bases that nobody chose, and that the file does not write out itself."""
    found = {iri for line in lines if _NO_HOST in line for iri in _UNDER_NO_HOST.findall(line)}
    return min((iri for iri in found if iri.encode() not in text), default=None)


def _check_xml(text: bytes, name: str) -> None:
    declared = _DECLARED.match(text.lstrip())
    if declared is not None and declared[1].lower() not in (b"utf-8", b"utf8", b"us-ascii"):
        encoding = declared[1].decode()
        raise EncodingError(
            f"{name}: line 1: declared as {encoding}: convert it with iconv -f {encoding} -t UTF-8, and declare UTF-8"
        )
    for found in _ENTITY.finditer(text):
        parameter, quoted, apostrophed, outside = found.groups()
        value = quoted or apostrophed or b""
        line = text.count(b"\n", 0, found.start()) + 1
        if outside or parameter:
            raise XmlEntityError(f"{name}: line {line}: an XML entity from outside is never read: write its text here")
        if _WITHIN_ENTITY.search(value):
            raise XmlEntityError(f"{name}: line {line}: an XML entity within an entity may grow without end: expand it")
        if len(value) > ENTITY_BYTES_MAX:
            raise XmlEntityError(f"{name}: line {line}: an XML entity over {ENTITY_BYTES_MAX} bytes: write it out")


def _statements(text: bytes, form: Format, base: str, name: str) -> Iterator[ox.Quad]:
    try:
        for quad in ox.parse(text, _PARSERS[form], base_iri=base):
            assert isinstance(quad, ox.Quad)
            yield quad
    except SyntaxError as error:
        if "LoadDocumentCallback" in str(error):
            raise RemoteContextError(
                f"{name}: the JSON-LD context {_remote_context(text)} is elsewhere and never fetched: "
                'put the context itself into the file, in place of its address: "@context": {...}'
            ) from None
        raise _syntax_error(error, text, form, name) from None


def _lines(quads: Iterator[ox.Quad], request: Request, warnings: list[str]) -> set[str]:
    """The distinct statements as lines of N-Quads, within the limits of content, in batches."""
    lines: set[str] = set()
    size, merged = 0, set[str]()
    while batch := list(islice(quads, BATCH_STATEMENTS)):
        graphs = {str(quad.graph_name) for quad in batch if not isinstance(quad.graph_name, ox.DefaultGraph)}
        if graphs and not request.merge_graphs:
            raise NamedGraphError(
                f"{request.name}: has statements in the named graph {min(graphs)}, and content has one graph: "
                "move them to the default graph, or merge the graphs with --merge-graphs (all statements are then "
                "asserted)"
            )
        merged |= graphs
        written = ox.serialize((quad.triple for quad in batch), format=ox.RdfFormat.N_TRIPLES)
        assert written is not None
        for line in written.decode().split("\n")[:-1]:
            if line not in lines:
                lines.add(line)
                size += len(line.encode()) + 1
        if len(lines) > STATEMENTS_MAX or size > CONTENT_BYTES_MAX:
            raise InputTooLargeError(
                f"{request.name}: says more than {STATEMENTS_MAX} statements or {CONTENT_BYTES_MAX} bytes of them: "
                "split it into several files"
            )
    if merged:
        warnings.append(
            f"{request.name}: {_graphs(len(merged))} merged into the one that content has; {_names(len(merged))}"
        )
    return lines


def _syntax_error(error: SyntaxError, text: bytes, form: Format, name: str) -> InputSyntaxError:
    message, line, column = _POSITION.sub("", error.msg or str(error)), error.lineno, error.offset
    if form is Format.RDF_XML and line is None:
        message, line, column = _locate_in_xml(text, message)
    looks_like = recognise(text)
    hint = ""
    if looks_like in (Format.JSON_LD, Format.RDF_XML) and looks_like is not form:
        hint = f". It looks like {looks_like.title}: name that format"
    where = f"line {line}, column {column}: " if line is not None else ""
    return InputSyntaxError(f"{name}: {where}not valid {form.title}: {_short(message)}{hint}", line, column)


def _locate_in_xml(text: bytes, message: str) -> tuple[str, int | None, int | None]:
    """Where the XML itself is broken, which the RDF/XML parser does not say."""
    parser = expat.ParserCreate()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        return expat.errors.messages[error.code], error.lineno, error.offset + 1
    return message, None, None


def _remote_context(text: bytes) -> str:
    """The first context that is an address, for the message."""
    try:
        todo = [json.loads(text)]
    except (ValueError, RecursionError):
        return "of the file"
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            contexts = item.get("@context")
            for context in [item.get("@import"), *(contexts if isinstance(contexts, list) else [contexts])]:
                if isinstance(context, str):
                    return repr(_short(context))
            todo += item.values()
    return "of the file"


def _graphs(number: int) -> str:
    return "1 named graph was" if number == 1 else f"{number} named graphs were"


def _names(number: int) -> str:
    return "its name is lost" if number == 1 else "their names are lost"


def _hint_if_empty(form: Format) -> str:
    return ": JSON becomes statements by an @context, which this has not" if form is Format.JSON_LD else ""


def _short(text: str) -> str:
    """One line that a terminal shows as it is."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= 200 else line[:199] + "…"
