"""Content: what is under a seal. Canonical N-Quads, and nothing that two peers could read differently.

The canonical form of a set of RDF 1.1 triples is its RDFC-1.0 form: N-Quads in UTF-8, one line for each triple, sorted
by code point (which is the order of the UTF-8 bytes; a sort by UTF-16 units differs), each line once, each ended by
one line feed. The rules, each with the reason of its refusal:

    size          1 byte to 16 MiB, at most 200,000 lines                      CONTENT_EMPTY, OVERSIZE
    encoding      UTF-8, without byte-order mark. Surrogates have no UTF-8,    CONTENT_NOT_CANONICAL
                  and `\\uD800` is not an escape of the canonical form
    lines         ascending strictly; no comment, no blank line, no CR         CONTENT_NOT_CANONICAL
    graph         the default graph alone: three terms in a line. (With        CONTENT_NOT_CANONICAL
                  named graphs RDFC-1.0 has no one form, see `rdfc`.)
    nesting       none. RDF 1.2 triple terms are refused: RDFC-1.0 does not    CONTENT_TOO_DEEP
                  cover them, and deep ones kill parsers
    direction     none. RDF 1.2 base directions are refused for the first      CONTENT_NOT_CANONICAL
                  of these reasons
    IRIs          absolute by RFC 3987, so no space, no control, no            CONTENT_NOT_CANONICAL
                  non-character; never escaped, never normalised; at most      OVERSIZE
                  8,192 bytes
    literals      keep their lexical form ("01"^^xsd:integer stays); at most   OVERSIZE
                  1 MiB between the quotes as written
    escapes       \\b \\t \\n \\f \\r \\" \\\\ and, for other controls below U+0020,   CONTENT_NOT_CANONICAL
                  U+007F, U+FFFE and U+FFFF, `\\uHHHH` in upper case; every
                  other character stands for itself
    NUL           refused, also escaped: too much software ends a text at it   CONTENT_NOT_CANONICAL
    non-          kept in literals (Unicode corrigendum 9)
    characters
    normal form   text is kept as it came, never normalised: "é" in one and
                  in two code points are two literals, as in RDF
    language      well-formed by RFC 5646, in lower case                       CONTENT_NOT_CANONICAL
    datatypes     xsd:string is never written                                  CONTENT_NOT_CANONICAL
    predicates    not one that the protocol writes, see `RESERVED_PREDICATES`  CONTENT_RESERVED_PREDICATE
    blank nodes   labelled by RDFC-1.0, within the budget of `rdfc`            CONTENT_NOT_CANONICAL,
                                                                               CONTENT_OVER_BUDGET

Bytes from a peer are checked in this order, cheapest first. The grammar below is the scan for nesting too: it is flat,
and no parser sees a line that does not match it. Then the parser reads the bytes and writes them again, which has to
give the same bytes, and last the blank nodes are labelled anew, if there are any. What an author makes goes through
the same check, so nobody seals what others refuse.

Content is never computed from what a triple store gives back: stores rewrite literals. The bytes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias

import pyoxigraph as ox

from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.limits import CONTENT_BYTES_MAX, STATEMENTS_MAX
from p2pmem_protocol.merkle import Tree
from p2pmem_protocol.names import DKG
from p2pmem_protocol.rdfc import Quad, canonicalize, is_blank

IRI_BYTES_MAX: Final = 8_192
LITERAL_BYTES_MAX: Final = 1024 * 1024

RESERVED_PREDICATES: Final = frozenset(
    DKG + name
    for name in (
        # Trust and what it is derived from
        "trustLevel", "verificationStatus", "endorses", "endorsedAt", "endorsedBy", "verifiedBy", "verifiedAt",
        "approvals", "quorum", "verdict", "certificate",
        # Lifecycle
        "state", "memoryLayer", "fromLayer", "toLayer", "assertionName", "assertionGraph", "assertionVersion",
        "sharedAt", "publishedAt", "finalizedAt", "expiresAt", "retracted", "retractedBy", "supersededBy",
        "shareOperationId",
        # Ownership
        "workspaceOwner", "owner", "author", "authorAddress", "publisher", "contextGraph", "curator", "member",
        # Seals and anchors
        "assertionMerkleRoot", "merkleRoot", "leafCount", "seal", "signature", "authorAttestationR",
        "authorAttestationVS", "assertionFinalizedAt", "anchoredAt", "transactionHash", "batchId", "batchRoot",
        "kaUal", "kcUal",
    )
)  # fmt: skip
"""IRIs of the predicates that only the protocol writes, beside content. An author who could write them could dress his
content in trust that nobody gave."""

_RESERVED_TERMS: Final = frozenset(f"<{iri}>" for iri in RESERVED_PREDICATES)

_IRI: Final = r"<[A-Za-z][A-Za-z0-9+.\-]*:[^\x00-\x20<>\"{}|^`\\\x7f]*>"
_BLANK: Final = r"_:[^\x00-\x20<>\"\\]+"
_PLAIN: Final = r"[^\"\\\x00-\x1f\x7f\ufffe\uffff]*+"
# U+0000 is not among the escapes; those of \b \t \n \f \r have a letter.
_ESCAPE: Final = r"\\(?:[btnfr\"\\]|u00(?:0[1-7BEF]|1[0-9A-F]|7F)|uFFF[EF])"
_LITERAL: Final = rf"\"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*+\"(?:@[a-z]+(?:-[a-z0-9]+)*|\^\^{_IRI})?"
_LINE: Final = re.compile(rf"({_IRI}|{_BLANK}) ({_IRI}) ({_IRI}|{_BLANK}|{_LITERAL}) \.")
_STRING: Final = re.compile(rf"\"({_PLAIN}(?:{_ESCAPE}{_PLAIN})*+)\"(.*)")

# What a line that does not match most likely is, so that its author reads more than "does not match".
_FAULTS: Final = (
    (re.compile(r"(?:.*> )?<<"), Reason.CONTENT_TOO_DEEP, "has a triple term: content is RDF 1.1, nothing nests"),
    (re.compile(r".*\"@[A-Za-z0-9-]+--"), Reason.CONTENT_NOT_CANONICAL, "has a base direction: content is RDF 1.1"),
    (re.compile(r".*\"@[a-z0-9-]*[A-Z]"), Reason.CONTENT_NOT_CANONICAL, "has a language tag in upper case"),
    (re.compile(r".*\\u0000"), Reason.CONTENT_NOT_CANONICAL, "holds a NUL character: remove it"),
    (
        re.compile(rf"(?:{_IRI}|{_BLANK}) {_IRI} (?:{_IRI}|{_BLANK}|{_LITERAL}) (?:{_IRI}|{_BLANK}) \."),
        Reason.CONTENT_NOT_CANONICAL,
        "is in a named graph: content has one graph, the default graph",
    ),
)


@dataclass(frozen=True)
class Content:
    """Content that passed every rule of this module. Only `check_canonical` and `make_content` make one.

    `data` is the canonical N-Quads, `line_count` its number of lines, which is the number of statements and leaves.
    """

    data: bytes
    line_count: int

    @cached_property
    def hash(self) -> bytes:
        """keccak256 of `data`: the name under which the bytes are stored and fetched."""
        return keccak256(self.data)

    @cached_property
    def root(self) -> bytes:
        """The Merkle root that a seal signs. Takes some 5 us a line the first time."""
        return self.tree().root

    def tree(self) -> Tree:
        """The Merkle tree over the lines, in their order, for proofs."""
        return Tree.of_lines(self.lines())

    def lines(self) -> list[bytes]:
        """The canonical lines in order, each with its line feed."""
        return [line + b"\n" for line in self.data.split(b"\n")[:-1]]

    def triples(self) -> Iterator[ox.Triple]:
        """The statements as the parser reads them, lexical forms as they are."""
        for quad in ox.parse(self.data, ox.RdfFormat.N_QUADS):
            yield quad.triple if isinstance(quad, ox.Quad) else quad


def canonical(triples: Iterable[ox.Triple | ox.Quad]) -> bytes:
    """The canonical bytes of these statements; raises as `make_content`."""
    return make_content(triples).data


def make_content(triples: Iterable[ox.Triple | ox.Quad]) -> Content:
    """Content from an author's statements, in any order, with any blank node labels, repeated or not.

    Language tags come out in lower case. Without blank nodes this costs little more than writing and sorting the lines.
    Raises RefusedError with the reason of the rule that the statements break.
    """
    items = list(triples)
    plain = [item for item in items if isinstance(item, ox.Triple)]
    if len(plain) == len(items):
        written = ox.serialize(plain, format=ox.RdfFormat.N_TRIPLES)
    else:
        quads = [ox.Quad(*item) if isinstance(item, ox.Triple) else item for item in items]
        written = ox.serialize(quads, format=ox.RdfFormat.N_QUADS)
    assert written is not None
    return content_of_lines(written.decode().split("\n")[:-1])


def content_of_lines(lines: Iterable[str]) -> Content:
    """Content from lines as pyoxigraph writes N-Quads, without their line feeds: unsorted, with any blank node labels.

    Raises RefusedError as `make_content` does.
    """
    distinct = set(lines)
    if any("_:" in line for line in distinct):
        quads = _quads(sorted(distinct), _by_beginning)
        data = "".join(canonicalize(quads).lines).encode()
    else:
        data = "".join(f"{line}\n" for line in sorted(distinct)).encode()
    return _checked(data, _by_beginning)


def union(contents: Iterable[Content]) -> Content:
    """What several contents say together. Blank nodes of different contents stay apart, as RDF has it.

    Raises RefusedError: CONTENT_EMPTY for none, OVERSIZE or CONTENT_OVER_BUDGET where the whole is over a limit.
    """
    lines: set[str] = set()
    for at, content in enumerate(contents):
        for subject, predicate, object_, _ in _quads(content.data.decode().split("\n")[:-1], _by_beginning):
            lines.add(f"{_apart(subject, at)} {predicate} {_apart(object_, at)} .")
    return content_of_lines(lines)


def _apart(term: str, at: int) -> str:
    return f"_:u{at}{term[2:]}" if is_blank(term) else term


def check_canonical(data: bytes) -> Content:
    """Content from a peer's bytes, if they are canonical and break no rule of this module.

    Raises RefusedError with the reason of the first rule that they break. The work is bounded by the size of the bytes
    and by the budget of `rdfc`; the text names a line number and nothing of the content.
    """
    return _checked(data, _by_number)


_Show: TypeAlias = Callable[[int, str], str]
"""How a refusal names a line, from its number and itself."""


def _by_number(number: int, line: str) -> str:
    return f"line {number}"


def _by_beginning(number: int, line: str) -> str:
    """For the author, who never saw the canonical order and may see his own statement."""
    return f"the statement {line!r}" if len(line) <= 160 else f"the statement that begins {line[:160]!r}"


def _checked(data: bytes, show: _Show) -> Content:
    lines = _split(data)
    for number, (before, line) in enumerate(pairwise(lines), 2):
        if line <= before:
            raise RefusedError(
                Reason.CONTENT_NOT_CANONICAL,
                f"{show(number, line)} is not above the one before it: sort by code point, and keep each once",
            )
    quads = _quads(lines, show)
    _check_reading(data, lines, show)
    if any(is_blank(subject) or is_blank(object_) for subject, _, object_, _ in quads):
        _check_labels(quads, lines)
    return Content(data, len(lines))


def _split(data: bytes) -> list[str]:
    if not data:
        raise RefusedError(Reason.CONTENT_EMPTY, "there are no statements")
    if len(data) > CONTENT_BYTES_MAX:
        raise RefusedError(
            Reason.OVERSIZE, f"{len(data)} bytes of content, the limit is {CONTENT_BYTES_MAX}: split it into assets"
        )
    count = data.count(b"\n")
    if count > STATEMENTS_MAX:
        raise RefusedError(
            Reason.OVERSIZE, f"{count} statements, the limit is {STATEMENTS_MAX}: split them into assets"
        )
    if not data.endswith(b"\n"):
        raise RefusedError(Reason.CONTENT_NOT_CANONICAL, "the last line has no line feed")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RefusedError(Reason.CONTENT_NOT_CANONICAL, f"byte {error.start} is not UTF-8") from None
    return text.split("\n")[:-1]


def _quads(lines: list[str], show: _Show) -> list[Quad]:
    """The lines by the grammar, with the limits on terms and the reserved predicates."""
    quads: list[Quad] = []
    for number, line in enumerate(lines, 1):
        matched = _LINE.fullmatch(line)
        if matched is None:
            raise _fault(line, show(number, line))
        subject, predicate, object_ = matched.groups()
        if predicate in _RESERVED_TERMS:
            raise RefusedError(
                Reason.CONTENT_RESERVED_PREDICATE,
                f"{show(number, line)} has the predicate {predicate}, which only the protocol writes: use your own",
            )
        # A character has at most four bytes, so that most lines are not measured.
        if len(line) * 4 > IRI_BYTES_MAX:
            _check_sizes((subject, predicate, object_), show(number, line))
        quads.append((subject, predicate, object_, ""))
    return quads


def _fault(line: str, where: str) -> RefusedError:
    for pattern, reason, text in _FAULTS:
        if pattern.match(line):
            return RefusedError(reason, f"{where} {text}")
    return RefusedError(Reason.CONTENT_NOT_CANONICAL, f"{where} is not three terms as canonical N-Quads writes them")


def _check_sizes(terms: tuple[str, str, str], where: str) -> None:
    for term in terms:
        literal = _STRING.fullmatch(term)
        text, rest = literal.groups() if literal else ("", term)
        if len(text.encode()) > LITERAL_BYTES_MAX:
            raise RefusedError(
                Reason.OVERSIZE, f"{where} has a literal over {LITERAL_BYTES_MAX} bytes: store it beside, and link it"
            )
        if len(rest.strip("^<>").encode()) > IRI_BYTES_MAX:
            raise RefusedError(Reason.OVERSIZE, f"{where} has an IRI or a label over {IRI_BYTES_MAX} bytes")


def _check_reading(data: bytes, lines: list[str], show: _Show) -> None:
    """The parser knows IRIs and language tags in full, and has to write what it read: canonical(parse(b)) == b."""
    try:
        written = ox.serialize(ox.parse(data, ox.RdfFormat.N_QUADS), format=ox.RdfFormat.N_QUADS)
    except SyntaxError as error:
        number = min(error.lineno or 1, len(lines))
        raise RefusedError(
            Reason.CONTENT_NOT_CANONICAL,
            f"{show(number, lines[number - 1])} has an IRI, a datatype or a language tag that is not well-formed",
        ) from None
    if written != data:
        assert written is not None
        again = written.decode().split("\n")
        number = next(at for at, (one, other) in enumerate(zip(lines, again, strict=False), 1) if one != other)
        raise RefusedError(
            Reason.CONTENT_NOT_CANONICAL, f"{show(number, lines[number - 1])} is not written in the canonical form"
        )


def _check_labels(quads: list[Quad], lines: list[str]) -> None:
    # The lines are compared, not the labels: nodes that are alike in all may be exchanged, and give the same lines.
    if canonicalize(quads).lines != [f"{line}\n" for line in lines]:
        raise RefusedError(
            Reason.CONTENT_NOT_CANONICAL, "the blank nodes are not labelled as RDFC-1.0 labels them: canonicalise again"
        )
