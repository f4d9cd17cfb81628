"""Vectors of what everything else is made of: names, CBOR, signed structs, signatures."""

from __future__ import annotations

from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, domain_separator, typed_data
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.keys import check_signed_by
from p2pmem_protocol.names import Address, GraphName, check_name, check_slug, check_subgraph, network_id

from scripts.vectors.common import (
    AGENTS,
    GRAPH,
    NAME,
    NETWORK,
    NETWORK_NAME,
    NOW_MS,
    Json,
    address,
    key,
    misuse,
    refused,
    shown,
    text,
    word,
)


def names() -> Json:
    alice = address("alice")
    return {
        "network": [{"name": name, "id": text(network_id(name))} for name in (NETWORK_NAME, "p2pmem", "a", "0.x_y-z")],
        "agents": [{"name": it, "secret": text(key(it).secret), "address": str(address(it))} for it in AGENTS],
        "address": {
            "read": [
                {"text": it, "address": str(alice)}
                for it in (str(alice), alice.checksummed, alice.iri, str(alice).upper().replace("0X", "0x"))
            ],
            "refused": [
                misuse(it, Address.parse)
                for it in ("", str(alice)[2:], str(alice)[:-1], str(alice) + "0", f" {alice}", _miswritten(alice))
            ],
        },
        "slug": {
            "read": [check_slug(it) for it in ("a", "0", "field-notes", "a.b_c-d", "x" * 64)],
            "refused": [misuse(it, check_slug) for it in ("", "A", "-a", ".a", "a/b", "a b", "é", "x" * 65, "a\n")],
        },
        "asset": {
            "read": [check_name(it) for it in ("a", "Z", "0", "Report-2026.v1_b~c", "x" * 128)],
            "refused": [misuse(it, check_name) for it in ("", "-a", "~a", "a/b", "a b", "é", "a:b", "x" * 129, "a\n")],
        },
        "subgraph": {
            "read": [check_subgraph(it) for it in ("", "a", "a/b", "2026/q3", "a.b-c", "x" * 128)],
            "refused": [
                misuse(it, check_subgraph)
                for it in (
                    "/",
                    "a/",
                    "/a",
                    "a//b",
                    "_a",
                    "a/_b",
                    "assertion",
                    "a/assertion",
                    "A",
                    "a_b",
                    "é",
                    "x" * 129,
                )
            ]
            + [misuse(f"a/{alice}", check_subgraph), misuse("0X" + "a" * 40, check_subgraph)],
        },
        "graph": [_graph(NAME), _graph(GraphName(alice, "a"))],
    }


def _miswritten(agent: Address) -> str:
    """The checksummed form with the case of its first letter turned."""
    written = agent.checksummed
    at = next(at for at, character in enumerate(written) if at > 1 and character.isalpha())
    return written[:at] + written[at].swapcase() + written[at + 1 :]


def _graph(name: GraphName) -> Json:
    bob = address("bob")
    return {
        "creator": str(name.creator),
        "slug": name.slug,
        "id": text(name.id),
        "iri": name.iri,
        "meta": name.meta_iri,
        "draft": name.draft_iri(bob, "report", "2026/q3"),
        "shared": name.shared_iri(bob, "report"),
        "published": name.published_iri(bob, "report", "2026/q3"),
        "lifecycle": name.lifecycle_iri(bob, "report"),
    }


ACCEPTED_CBOR: Final[tuple[tuple[str, Value], ...]] = (
    ("0", 0),
    ("23", 23),
    ("24", 24),
    ("2^64 - 1", 2**64 - 1),
    ("-1", -1),
    ("-2^64", -(2**64)),
    ("no bytes", b""),
    ("three bytes", b"\x01\x02\x03"),
    ("text", "grüß 𐍈"),
    ("false", False),
    ("true", True),
    ("null", None),
    ("a list in a list", [1, [2, []]]),
    ("an empty map", dict[int, Value]()),
    ("integer keys", dict[int, Value]({0: 1, 24: b"\x00", 256: "a"})),
    ("text keys, the shorter first", {"b": 1, "aa": 2}),
)

REFUSED_CBOR: Final = (
    ("the data ends inside a value", "1901", Reason.NOT_CBOR),
    ("a string past the end", "430102", Reason.NOT_CBOR),
    ("a list of 2^62 items", "9b4000000000000000", Reason.NOT_CBOR),
    ("the integer 0 in two bytes", "1800", Reason.NOT_DETERMINISTIC),
    ("a length not in its shortest form", "580100", Reason.NOT_DETERMINISTIC),
    ("keys out of order", "a202000100", Reason.NOT_DETERMINISTIC),
    ("a key twice", "a201000100", Reason.DUPLICATE_KEY),
    ("two values", "0000", Reason.TRAILING_BYTES),
    ("a big integer", "c249010000000000000000", Reason.BIG_INTEGER),
    ("a shared reference", "d81c81d81d00", Reason.TAG),
    ("a float", "f93c00", Reason.FLOAT),
    ("a list of no length", "9f01ff", Reason.INDEFINITE_LENGTH),
    ("17 levels", "81" * 17 + "00", Reason.TOO_DEEP),
    ("not UTF-8", "61ff", Reason.BAD_TEXT),
    ("a surrogate", "63eda080", Reason.BAD_TEXT),
    ("undefined", "f7", Reason.BAD_SHAPE),
    ("a simple value in two bytes", "f820", Reason.BAD_SHAPE),
    ("a simple value that is reserved", "fc", Reason.BAD_SHAPE),
    ("a reserved length", "1c", Reason.NOT_CBOR),
    ("a tag of a reserved length", "dc", Reason.TAG),
    ("a break alone", "ff", Reason.INDEFINITE_LENGTH),
    ("an integer of no length", "1f", Reason.INDEFINITE_LENGTH),
    ("a negative key", "a12000", Reason.BAD_SHAPE),
    ("integer and text keys in one map", "a20100616100", Reason.BAD_SHAPE),
)


def cbor_values() -> Json:
    return {
        "accepted": [{"name": name, "bytes": text(cbor.encode(value))} for name, value in ACCEPTED_CBOR],
        "refused": [refused(name, reason, bytes.fromhex(data), cbor.decode) for name, data, reason in REFUSED_CBOR],
    }


def _hash(what: str) -> bytes:
    return keccak256(what.encode())


STRUCT_VALUES: Final[dict[Struct, dict[str, FieldValue]]] = {
    Struct.SEAL: {
        "graph": GRAPH,
        "subgraph": "2026/q3",
        "asset": "report",
        "version": 2,
        "root": _hash("a root"),
        "leaves": 7,
        "previous": _hash("the root before"),
        "author": address("alice"),
    },
    Struct.ENVELOPE: {
        "graph": GRAPH,
        "kind": 3,
        "author": address("alice"),
        "delegation": bytes(32),
        "roster": 1,
        "issuedAt": NOW_MS,
        "expiresAt": 0,
        "body": b"\xa0",
    },
    Struct.ENDORSEMENT: {
        "graph": GRAPH,
        "asset": "report",
        "version": 2**32 - 1,
        "root": _hash("a root"),
        "seal": _hash("a seal"),
        "author": address("alice"),
        "decision": 1,
        "reason": "I was there: «Grüße»",
        "signer": address("bob"),
    },
    Struct.VERDICT: {
        "graph": GRAPH,
        "quorum": _hash("a quorum"),
        "asset": "report",
        "version": 1,
        "root": _hash("a root"),
        "seal": _hash("a seal"),
        "author": address("alice"),
        "decision": 2,
        "method": 4,
        "reason": _hash("the text of the reason"),
        "signer": address("carol"),
    },
    Struct.ROSTER: {
        "graph": GRAPH,
        "version": 3,
        "term": 2,
        "parent": _hash("the roster before"),
        "parentTerm": 2,
        "owner": address("owner"),
        "quorum": _hash("a quorum"),
        "quorumSerial": 4,
        "members": _hash("members"),
        "limits": _hash("limits"),
        "kept": _hash("kept"),
        "certificates": _hash("certificates"),
        "signer": address("owner"),
    },
    Struct.REGISTER_QUORUM: {"graph": GRAPH, "quorum": _hash("a quorum"), "serial": 4},
    Struct.ACT_FOR: {
        "principal": address("team"),
        "agent": address("assistant"),
        "serial": 1,
        "label": "",
        "rights": 15,
    },
    Struct.CARRY: {
        "agent": address("alice"),
        "peer": "12D3KooWExample",
        "serial": 1,
        "until": NOW_MS + 1,
    },
    Struct.PREPARE: {
        "graph": GRAPH,
        "parent": _hash("the roster before"),
        "change": '{"m":2}',
        "approver": address("bob"),
    },
    Struct.ENTER: {"graph": GRAPH, "peer": "12D3KooWExample", "proof": b"a proof", "label": "notes", "at": NOW_MS},
}


def structs() -> Json:
    return {
        "network": text(NETWORK),
        "domain_separator": text(domain_separator(NETWORK)),
        "structs": [_struct(struct, values) for struct, values in STRUCT_VALUES.items()],
        "signatures": _signatures(),
    }


def _struct(struct: Struct, values: dict[str, FieldValue]) -> Json:
    signed = digest(struct, values, NETWORK)
    return {
        "type": struct.value.encoded,
        "type_hash": text(struct.value.type_hash),
        "values": shown(values),
        "digest": text(signed),
        "typed_data": typed_data(struct, values, NETWORK),
        "signer": str(address("alice")),
        "signature": text(key("alice").sign(signed)),
    }


_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def _signatures() -> Json:
    alice, signed = address("alice"), _hash("a digest")
    good = key("alice").sign(signed)
    r, s, v = good[:32], good[32:64], good[64]
    high = (_ORDER - int.from_bytes(s)).to_bytes(32)
    bad = {
        "the twin with a high s": r + high + bytes((55 - v,)),
        "v of 0 or 1": r + s + bytes((v - 27,)),
        "v of 29": r + s + b"\x1d",
        "the other v": r + s + bytes((55 - v,)),
        "64 bytes": r + s,
        "66 bytes": good + b"\x00",
        "no bytes": b"",
        "s of zero": r + bytes(32) + bytes((v,)),
        "r of zero": bytes(32) + s + bytes((v,)),
        "r of the group order": _ORDER.to_bytes(32) + s + bytes((v,)),
        "r that is on no curve point": _off_curve(s, v),
        "by another key": key("bob").sign(signed),
        "over another digest": key("alice").sign(_hash("another digest")),
    }
    return {
        "digest": text(signed),
        "signer": str(alice),
        "accepted": text(good),
        "refused": [
            {"name": name, "signature": text(it)} | _signature_reason(alice, signed, it) for name, it in bad.items()
        ],
    }


def _off_curve(s: bytes, v: int) -> bytes:
    """x = 5 is on no point of secp256k1: 5^3 + 7 is no square."""
    return (5).to_bytes(32) + s + bytes((v,))


def _signature_reason(signer: Address, signed: bytes, signature: bytes) -> Json:
    try:
        check_signed_by(signer, signed, signature)
    except RefusedError as error:
        return {"reason": word(error.reason), "code": int(error.reason)}
    raise AssertionError("a bad signature is accepted")
