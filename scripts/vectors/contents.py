"""Vectors of content: canonical forms, roots, proofs, and what is refused."""

from __future__ import annotations

from typing import Final

import pyoxigraph as ox
from p2pmem_protocol.content import Content, check_canonical, make_content
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.merkle import Tree, leaf_hash, line_value

from scripts.vectors.common import Json, refused, text

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
    (
        "a predicate of the protocol",
        b'<urn:a> <http://dkg.io/ontology/trustLevel> "ConsensusVerified" .\n',
        Reason.CONTENT_RESERVED_PREDICATE,
    ),
)


def contents() -> Json:
    return {
        "canonical": [_canonical(name, source) for name, source in SOURCES.items()],
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
