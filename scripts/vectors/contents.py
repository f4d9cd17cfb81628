"""Vectors of content: canonical forms, roots, proofs, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyoxigraph as ox
from p2pmem_protocol.content import Content, check_canonical, make_content
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.merkle import Tree, leaf_hash, line_value
from p2pmem_protocol.rdfc import canonicalize

from scripts.vectors.common import Json, refused, text


def _linked(count: int) -> str:
    """Each of so many blank nodes linked to each other one: nothing tells them apart."""
    return "".join(f"_:b{a} <urn:p> _:b{b} .\n" for a in range(count) for b in range(count) if a != b)


def _ring(count: int) -> str:
    """A ring of so many blank nodes, sorted as content has to be."""
    return "".join(sorted(f"_:b{n} <urn:p> _:b{(n + 1) % count} .\n" for n in range(count)))


SOURCES: Final = {
    "one statement": "<urn:a> <urn:p> <urn:b> .\n",
    "a lexical form stays": '<urn:a> <urn:p> "01"^^<http://www.w3.org/2001/XMLSchema#integer> .\n',
    "language tags become lower-case": '<urn:a> <urn:p> "colour"@en-GB .\n',
    "xsd:string is not written": '<urn:a> <urn:p> "x"^^<http://www.w3.org/2001/XMLSchema#string> .\n',
    "escapes": '<urn:a> <urn:p> "tab\\t quote\\" back\\\\ line\\n \\u0001 \\u007F \\u00E9" .\n',
    "lines are sorted by code point and each comes once": (
        '<urn:b> <urn:p> "2" .\n<urn:a> <urn:p> "\U00010000" .\n<urn:a> <urn:p> "\uffe5" .\n<urn:b> <urn:p> "2" .\n'
    ),
    "two blank nodes": "_:x <urn:p> _:y .\n_:y <urn:p> <urn:a> .\n",
    "a ring of three blank nodes": "_:x <urn:p> _:y .\n_:y <urn:p> _:z .\n_:z <urn:p> _:x .\n",
    "two nodes that are alike": "_:x <urn:p> _:y .\n_:y <urn:p> _:x .\n",
    "five nodes, all linked to all": _linked(5),
    "a list of six equal items": "_:l5 <urn:rest> <urn:nil> .\n"
    + "".join(f"_:l{n} <urn:first> <urn:item> .\n" for n in range(6))
    + "".join(f"_:l{n} <urn:rest> _:l{n + 1} .\n" for n in range(5)),
    "two rings of three": "".join(f"_:{ring}{n} <urn:p> _:{ring}{(n + 1) % 3} .\n" for ring in "ab" for n in range(3)),
    "U+FFFE and U+FFFF are escaped, other non-characters are not": (
        '<urn:a> <urn:p> "\\uFFFE \\uFFFF \ufdd0 \u0080" .\n'
    ),
    "IRIs of RFC 3987": (
        "<a:> <http://[2001:db8::1]:80/\u00e9%41?\ue000#\U000e1000> <x://u:p@h.example:/a//b?/?#/?> .\n"
        "<a:b> <urn:p> <http://[v1.a:b]> .\n"
    ),
    "language tags of RFC 5646": "".join(
        f'<urn:a> <urn:p> "x"@{tag} .\n'
        for tag in ("i-klingon", "zh-yue-hak", "sl-rozaj-1994", "de-latn-de-u-co-phonebk-x-a", "x-a")
    ),
    "a predicate beside those of the protocol": '<urn:a> <http://dkg.io/ontology/trustLevels> "x" .\n',
    "seven statements": "".join(f'<urn:s{n}> <urn:p> "{n}" .\n' for n in range(7)),
}

REFUSED: Final = (
    ("nothing", b"", Reason.CONTENT_EMPTY),
    ("no last line feed", b"<urn:a> <urn:p> <urn:b> .", Reason.CONTENT_NOT_CANONICAL),
    (
        "lines out of order",
        b"<urn:b> <urn:p> <urn:b> .\n<urn:a> <urn:p> <urn:b> .\n",
        Reason.CONTENT_NOT_CANONICAL,
    ),
    ("a line twice", b"<urn:a> <urn:p> <urn:b> .\n" * 2, Reason.CONTENT_NOT_CANONICAL),
    ("a blank line", b"\n<urn:a> <urn:p> <urn:b> .\n", Reason.CONTENT_NOT_CANONICAL),
    ("two spaces", b"<urn:a>  <urn:p> <urn:b> .\n", Reason.CONTENT_NOT_CANONICAL),
    ("a named graph", b"<urn:a> <urn:p> <urn:b> <urn:g> .\n", Reason.CONTENT_NOT_CANONICAL),
    ("a relative IRI", b"<a> <urn:p> <urn:b> .\n", Reason.CONTENT_NOT_CANONICAL),
    ("a language tag in upper case", b'<urn:a> <urn:p> "x"@EN .\n', Reason.CONTENT_NOT_CANONICAL),
    ("an escape that is not needed", b'<urn:a> <urn:p> "\\u00E9" .\n', Reason.CONTENT_NOT_CANONICAL),
    ("NUL", b'<urn:a> <urn:p> "\\u0000" .\n', Reason.CONTENT_NOT_CANONICAL),
    ("not UTF-8", b'<urn:a> <urn:p> "\xff" .\n', Reason.CONTENT_NOT_CANONICAL),
    ("other labels than RDFC-1.0 gives", b"_:x <urn:p> <urn:b> .\n", Reason.CONTENT_NOT_CANONICAL),
    (
        "xsd:string written",
        b'<urn:a> <urn:p> "x"^^<http://www.w3.org/2001/XMLSchema#string> .\n',
        Reason.CONTENT_NOT_CANONICAL,
    ),
    ("a triple term", b"<urn:a> <urn:p> <<( <urn:a> <urn:p> <urn:b> )>> .\n", Reason.CONTENT_TOO_DEEP),
    *(
        (f"{what}, which is no IRI of RFC 3987", f"<urn:a> <urn:p> <{iri}> .\n".encode(), Reason.CONTENT_NOT_CANONICAL)
        for what, iri in (
            ("a bracket in a path", "http://a/["),
            ("half an escape", "urn:a:%4"),
            ("a port of letters", "http://a:b/"),
            ("a private character in a path", "urn:a:\ue000"),
            ("a non-character", "urn:a:\ufdd0"),
            ("two fragments", "urn:a#b#c"),
            ("an address that is none", "http://[1::2::3]/"),
        )
    ),
    *(
        (f"a language tag that is none: {tag}", f'<urn:a> <urn:p> "x"@{tag} .\n'.encode(), Reason.CONTENT_NOT_CANONICAL)
        for tag in ("a", "en-a", "i-none", "en-us-us", "abcdefghi")
    ),
    ("a base direction", b'<urn:a> <urn:p> "x"@en--ltr .\n', Reason.CONTENT_NOT_CANONICAL),
    (
        "rdf:langString without a tag",
        b'<urn:a> <urn:p> "x"^^<http://www.w3.org/1999/02/22-rdf-syntax-ns#langString> .\n',
        Reason.CONTENT_NOT_CANONICAL,
    ),
    ("a lower-case escape", b'<urn:a> <urn:p> "\\u007f" .\n', Reason.CONTENT_NOT_CANONICAL),
    ("one as RDF-star wrote it", b"<urn:a> <urn:p> << <urn:a> <urn:p> <urn:b> >> .\n", Reason.CONTENT_TOO_DEEP),
    ("an IRI of 8,193 bytes", b"<urn:a> <urn:p> <urn:" + b"x" * 8_189 + b"> .\n", Reason.OVERSIZE),
    ("seven nodes, all linked to all: too many permutations", _linked(7).encode(), Reason.CONTENT_OVER_BUDGET),
    ("a ring of 142: too many calls", _ring(142).encode(), Reason.CONTENT_OVER_BUDGET),
    ("a ring of 257: too deep", _ring(257).encode(), Reason.CONTENT_OVER_BUDGET),
    (
        "a predicate of the protocol",
        b'<urn:a> <http://dkg.io/ontology/trustLevel> "ConsensusVerified" .\n',
        Reason.CONTENT_RESERVED_PREDICATE,
    ),
)


def contents() -> Json:
    return {
        "canonical": [_canonical(name, source) for name, source in SOURCES.items()],
        "at_the_edge": [_at_the_edge("a ring of 141: as many calls as may be", _ring(141))],
        "refused": [refused(name, reason, data, check_canonical) for name, data, reason in REFUSED],
        "batches": [_batch(count) for count in (1, 2, 3, 8)],
    }


def content_of(source: str) -> Content:
    return make_content(quad.triple for quad in ox.parse(source, ox.RdfFormat.N_QUADS))


def _canonical(name: str, source: str) -> Json:
    content = content_of(source)
    tree, lines = content.tree(), content.lines()
    return {
        "name": name,
        "source": source,
        "canonical": content.data.decode(),
        "hash": text(content.hash),
        "work": _work(lines),
        "leaves": content.line_count,
        "root": text(content.root),
        "proofs": [
            {
                "line": line.decode(),
                "value": text(line_value(line)),
                "leaf": text(tree.prove(at).leaf),
                "proof": [text(it) for it in tree.prove(at).hashes],
            }
            for at, line in enumerate(lines)
        ],
    }


def _at_the_edge(name: str, source: str) -> Json:
    content = content_of(source)
    return {"name": name, "canonical": content.data.decode(), "work": _work(content.lines())}


def _work(lines: Sequence[bytes]) -> Json:
    """What RDFC-1.0 counts over the content itself."""
    quads = [(s, p, o, "") for s, p, o in (line.decode()[:-3].split(" ", 2) for line in lines)]
    work = canonicalize(quads).work
    return {"calls": work.calls, "permutations": work.permutations, "looked_at": work.visits, "depth": work.deepest}


def _batch(count: int) -> Json:
    """A tree over values that are no lines: the seal digests of an anchored batch."""
    values = [keccak256(f"value {n}".encode()) for n in range(count)]
    tree = Tree.of_values(values)
    return {
        "values": [text(it) for it in values],
        "leaf_hashes": [text(leaf_hash(it)) for it in values],
        "root": text(tree.root),
        "proofs": [[text(it) for it in tree.prove(at).hashes] for at in range(count)],
    }
