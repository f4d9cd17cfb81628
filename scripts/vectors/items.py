"""Vectors of what may be in a set: envelopes of every kind, endorsements, verdicts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.bodies import (
    Ack,
    Anchor,
    AnchoredAsset,
    Body,
    ContentRef,
    Propose,
    Retract,
    RetractMode,
    Revoke,
    Sealed,
)
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.credential import ActFor, Right, SignedActFor
from p2pmem_protocol.envelope import Envelope, Item, Unsigned, decode_item
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Method, Verdict
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import EVIDENCE, Kind
from p2pmem_protocol.merkle import Tree
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.roster import Quorum
from p2pmem_protocol.seal import NO_PREVIOUS, Seal

from scripts.vectors.common import DAY_MS, GRAPH, NETWORK, NOW_MS, Json, address, changed, key, named, refused, text
from scripts.vectors.contents import content_of

FIRST: Final = content_of('<urn:site:7> <urn:p:height> "412" .\n<urn:site:7> <urn:p:name> "North ridge"@en .\n')
SECOND: Final = content_of('<urn:site:7> <urn:p:height> "414" .\n<urn:site:7> <urn:p:name> "North ridge"@en .\n')
LARGE: Final = content_of("".join(f'<urn:site:{n}> <urn:p:note> "{"long " * 200}{n}" .\n' for n in range(61)))
QUORUM: Final = Quorum(GRAPH, 1, 2, tuple(sorted(address(it) for it in ("bob", "carol", "dave"))))

ENVELOPE: Final = dict(
    enumerate(
        (
            "format",
            "network",
            "graph",
            "kind",
            "author",
            "delegation",
            "roster",
            "issued_at",
            "expires_at",
            "body",
            "signature",
        )
    )
)
EVIDENCE_FIELDS: Final = dict(
    enumerate(
        (
            "format",
            "network",
            "graph",
            "kind",
            "signer",
            "author",
            "name",
            "version",
            "root",
            "seal",
            "decision",
            "reason",
            "signature",
            "quorum",
            "method",
        )
    )
)
DELEGATION: Final = dict(enumerate(("principal", "serial", "label", "rights", "signature")))
SEAL: Final = dict(enumerate(("subgraph", "name", "version", "root", "leaves", "previous", "signature")))
SUBJECT: Final = dict(enumerate(("author", "name", "version", "root", "seal")))
BODIES: Final = {
    Kind.SHARE: {0: "seal", 1: "content"},
    Kind.PUBLISH: {0: "seal", 1: "content"},
    Kind.RETRACT: dict(enumerate(("author", "name", "version", "mode", "successor", "reason", "shown"))),
    Kind.PROPOSE: SUBJECT | {5: "quorum"},
    Kind.ACK: {0: "root"},
    Kind.ANCHOR: dict(enumerate(("batch_root", "chain", "contract", "transaction", "block", "assets", "count"))),
    Kind.REVOKE: dict(enumerate(("agent", "peer", "serial", "kept"))),
}


def seal(author: str, version: int = 1, name: str = "site-7", subgraph: str = "") -> Seal:
    """Version 1 has FIRST for content, version 2 SECOND, version 3 LARGE."""
    content = (FIRST, SECOND, LARGE)[version - 1]
    previous = NO_PREVIOUS if version == 1 else (FIRST, SECOND)[version - 2].root
    return Seal(NETWORK, GRAPH, subgraph, name, version, content.root, content.line_count, previous, address(author))


def sealed(author: str, version: int = 1, subgraph: str = "") -> Sealed:
    content = (FIRST, SECOND, LARGE)[version - 1]
    return Sealed(seal(author, version, subgraph=subgraph).sign(key(author)), ContentRef.of(content.data))


def delegation(rights: Right | None = None, serial: int = 1) -> SignedActFor:
    rights = Right.all() if rights is None else rights
    return ActFor(NETWORK, address("team"), address("assistant"), serial, "notes", rights).sign(key("team"))


def envelope(
    kind: Kind,
    author: str,
    body: Body,
    *,
    issued: int = NOW_MS,
    life: int = 0,
    shown: SignedActFor | None = None,
) -> Envelope:
    ends = issued + life if life else 0
    return Unsigned(NETWORK, GRAPH, kind, address(author), shown, 1, issued, ends, body).sign(key(author))


def share(author: str = "alice", version: int = 1, *, issued: int = NOW_MS, life: int = 7 * DAY_MS) -> Envelope:
    return envelope(Kind.SHARE, author, sealed(author, version), issued=issued, life=life)


def endorse(signer: str, about: VersionKey, decision: Endorse = Endorse.ENDORSE, reason: str = "") -> Evidence:
    return Evidence.sign(Endorsement(NETWORK, GRAPH, about, decision, reason, address(signer)), key(signer))


def verdict(
    signer: str,
    about: VersionKey,
    decision: Decision = Decision.APPROVE,
    method: Method = Method.AUTO,
    quorum: Quorum = QUORUM,
    reason: str = "",
) -> Evidence:
    statement = Verdict(NETWORK, GRAPH, quorum.id, about, decision, method, reason, address(signer))
    return Evidence.sign(statement, key(signer))


def _anchor() -> Anchor:
    seals = [seal("alice", 1), seal("alice", 2), seal("bob", 1)]
    tree = Tree.of_values([it.digest for it in seals])
    assets = tuple(AnchoredAsset(it.key, tree.prove(at).hashes) for at, it in enumerate(seals))
    transaction = keccak256(b"a transaction")
    return Anchor(tree.root, len(seals), 31_337, Address(bytes(19) + b"\x01"), transaction, 12, assets)


def every_kind() -> Iterator[tuple[str, Item]]:
    about = seal("alice").key
    yield "a share", share()
    yield "a renewal of it", share(issued=NOW_MS + DAY_MS)
    yield "a share in a sub-graph", envelope(Kind.SHARE, "alice", sealed("alice", 1, "2026/q3"), life=DAY_MS)
    yield (
        "a share for a principal",
        envelope(Kind.SHARE, "assistant", sealed("assistant"), life=DAY_MS, shown=delegation()),
    )
    yield "a publish", envelope(Kind.PUBLISH, "alice", sealed("alice", 2))
    yield "a publish with its content attached", envelope(Kind.PUBLISH, "alice", sealed("alice", 3))
    yield (
        "a retract",
        envelope(Kind.RETRACT, "alice", Retract(address("alice"), "site-7", 1, RetractMode.KEEP, None, "a wrong date")),
    )
    yield (
        "a retract with a successor",
        envelope(Kind.RETRACT, "alice", Retract(address("alice"), "site-7", 2, RetractMode.KEEP, 1, "")),
    )
    shown = ActFor(NETWORK, address("team"), address("assistant"), 1, "notes", Right.all()).sign(key("team"))
    taken = Retract(address("assistant"), "site-7", 1, RetractMode.ERASE, None, "", shown)
    yield "a retract by a principal that erases", envelope(Kind.RETRACT, "team", taken)
    yield "a proposal", envelope(Kind.PROPOSE, "alice", Propose(about, QUORUM.id), life=DAY_MS)
    yield "an ack", envelope(Kind.ACK, "bob", Ack(about.root), life=30 * DAY_MS)
    yield "an anchor", envelope(Kind.ANCHOR, "alice", _anchor())
    yield (
        "a revoke of an agent",
        envelope(Kind.REVOKE, "team", Revoke(address("assistant"), None, 1, tuple(sorted((bytes(32), b"\xff" * 32))))),
    )
    yield "a revoke of a peer", envelope(Kind.REVOKE, "alice", Revoke(None, "12D3KooWExample", 3, ()))
    yield "an endorsement", endorse("bob", about, reason="I measured it too")
    yield "a withdrawal", endorse("bob", about, Endorse.WITHDRAW)
    yield "an approval", verdict("bob", about, Decision.APPROVE, Method.MANUAL, reason="read, and compared")
    yield "a rejection", verdict("carol", about, Decision.REJECT, Method.SHACL)


def items() -> Json:
    return {
        "accepted": [_item(name, item) for name, item in every_kind()],
        "attachment": {"content": LARGE.data.decode(), "hash": text(LARGE.hash), "length": len(LARGE.data)},
        "refused_by_form": list(_refused_by_form()),
        "refused_by_signature": list(_refused_by_signature()),
    }


def _item(name: str, item: Item) -> Json:
    data = item.encode()
    again = decode_item(data)
    again.check()
    assert again == item
    value = cbor.decode(data)
    if isinstance(item, Evidence):
        fields = named(value, EVIDENCE_FIELDS)
    else:
        fields = named(value, ENVELOPE) | {"body": _body(item)}
        if item.delegation is not None:
            fields["delegation"] = named(item.delegation.to_value(), DELEGATION)
    return {"name": name, "kind": item.kind.word, "bytes": text(data), "id": text(item.id), "fields": fields} | (
        {"seal_digest": text(item.body.seal.seal.digest)}
        if isinstance(item, Envelope) and isinstance(item.body, Sealed)
        else {}
    )


def _body(item: Envelope) -> Json:
    body = item.body
    fields = named(body.to_value(), BODIES[item.kind])
    if isinstance(body, Sealed):
        fields["seal"] = named(body.seal.to_value(), SEAL)
    if isinstance(body, Anchor):
        fields["assets"] = [named(it.to_value(), SUBJECT | {5: "proof"}) for it in body.assets]
    if isinstance(body, Retract) and body.shown is not None:
        fields["shown"] = named(body.shown.to_value(), DELEGATION)
    return fields


def _refused_by_form() -> Iterator[Json]:
    """What `decode_item` refuses; no signature is looked at."""
    good = share()
    data, body = good.encode(), good.unsigned.body_bytes
    seal_value = good.unsigned.body.to_value()[0]
    assert isinstance(seal_value, dict)

    def with_seal(changes: dict[int, Value]) -> bytes:
        return changed(data, {9: changed(body, {0: seal_value | changes})})

    evidence = verdict("bob", seal("alice").key).encode()
    retract = envelope(Kind.RETRACT, "alice", Retract(address("alice"), "a", 1, RetractMode.KEEP, None, ""))
    revoke = envelope(Kind.REVOKE, "team", Revoke(address("assistant"), None, 1, ()))
    by_principal = envelope(
        Kind.RETRACT, "team", Retract(address("assistant"), "a", 1, RetractMode.KEEP, None, "", delegation())
    )
    cases: tuple[tuple[str, Reason, bytes], ...] = (
        ("cut short", Reason.NOT_CBOR, data[:-1]),
        ("a byte too many", Reason.TRAILING_BYTES, data + b"\x00"),
        ("a list", Reason.BAD_SHAPE, b"\x80"),
        ("another format", Reason.BAD_VERSION, changed(data, {0: 2})),
        ("a kind of a later release", Reason.UNKNOWN_KIND, changed(data, {3: 11})),
        ("a kind of a later release with fields of its own", Reason.UNKNOWN_KIND, cbor.encode({0: 1, 1: "x", 3: 11})),
        ("the kind that is not used", Reason.UNKNOWN_KIND, changed(data, {3: 1})),
        ("a kind past 2^32 - 1", Reason.BAD_FIELD, changed(data, {3: 2**32})),
        ("no author", Reason.BAD_SHAPE, changed(data, {}, without=(4,))),
        ("a field too many", Reason.BAD_SHAPE, changed(data, {11: 0})),
        ("an author of 19 bytes", Reason.BAD_FIELD, changed(data, {4: bytes(19)})),
        ("true for a number", Reason.BAD_FIELD, changed(data, {6: True})),
        ("a signature of 64 bytes", Reason.BAD_FIELD, changed(data, {10: bytes(64)})),
        ("an endorsement in an envelope", Reason.BAD_SHAPE, changed(data, {3: 5})),
        ("a share without an end", Reason.BAD_LIFE, changed(data, {8: 0})),
        ("a share that ends as it begins", Reason.BAD_LIFE, changed(data, {8: NOW_MS})),
        ("issued at 0", Reason.BAD_LIFE, changed(data, {7: 0})),
        ("a publish with an end", Reason.BAD_LIFE, changed(data, {3: 3})),
        ("an end past the year 9999", Reason.BAD_FIELD, changed(data, {8: 253_402_300_800_000})),
        ("a body that is not CBOR", Reason.NOT_CBOR, changed(data, {9: b"\xa1"})),
        ("a body with its keys out of order", Reason.NOT_DETERMINISTIC, changed(data, {9: b"\xa2\x01\x00\x00\x00"})),
        ("an empty body", Reason.BAD_FIELD, changed(data, {9: b""})),
        ("a body of another kind", Reason.BAD_SHAPE, changed(data, {9: cbor.encode({0: bytes(32)}), 3: 2})),
        ("a name that is not one", Reason.BAD_NAME, with_seal({1: "a/b"})),
        ("a name of 129 characters", Reason.BAD_NAME, with_seal({1: "x" * 129})),
        ("a sub-graph that is not one", Reason.BAD_NAME, with_seal({0: "_meta"})),
        ("version 0", Reason.BAD_FIELD, with_seal({2: 0})),
        ("no statements", Reason.BAD_FIELD, with_seal({4: 0})),
        ("a first version with a previous root", Reason.BAD_FIELD, with_seal({5: bytes(31) + b"\x01"})),
        ("a second version without one", Reason.BAD_FIELD, with_seal({2: 2})),
        (
            "content that should be inline",
            Reason.CONTENT_NOT_ATTACHED_RIGHT,
            changed(data, {9: changed(body, {1: [bytes(32), 61_440]})}),
        ),
        ("content that is text", Reason.BAD_FIELD, changed(data, {9: changed(body, {1: "x"})})),
        (
            "content with true for its length",
            Reason.BAD_FIELD,
            changed(data, {9: changed(body, {1: [bytes(32), True]})}),
        ),
        ("content with a hash alone", Reason.BAD_SHAPE, changed(data, {9: changed(body, {1: [bytes(32)]})})),
        ("content of no bytes", Reason.CONTENT_NOT_ATTACHED_RIGHT, changed(data, {9: changed(body, {1: b""})})),
        (
            "a delegation to oneself",
            Reason.BAD_FIELD,
            changed(data, {5: delegation().to_value() | {0: bytes(address("alice"))}}),
        ),
        ("a delegation of no rights", Reason.BAD_FIELD, changed(data, {5: delegation().to_value() | {3: 0}})),
        (
            "a retract of an unknown mode",
            Reason.BAD_FIELD,
            changed(retract.encode(), {9: changed(retract.unsigned.body_bytes, {3: 3})}),
        ),
        (
            "a retract that shows the delegation of another",
            Reason.BAD_FIELD,
            changed(by_principal.encode(), {4: bytes(address("bob"))}),
        ),
        (
            "a revoke of an agent and a peer",
            Reason.BAD_SHAPE,
            changed(revoke.encode(), {9: changed(revoke.unsigned.body_bytes, {1: "12D3KooWExample"})}),
        ),
        (
            "kept ids out of order",
            Reason.BAD_FIELD,
            changed(revoke.encode(), {9: changed(revoke.unsigned.body_bytes, {3: [b"\x02" * 32, b"\x01" * 32]})}),
        ),
        ("a decision that is none", Reason.BAD_FIELD, changed(evidence, {10: 3})),
        ("a verdict without a quorum", Reason.BAD_SHAPE, changed(evidence, {}, without=(13,))),
        ("an endorsement under a quorum", Reason.BAD_SHAPE, changed(evidence, {3: 5})),
        ("a reason of 1,001 characters", Reason.BAD_FIELD, changed(evidence, {11: "x" * 1_001})),
        ("a verdict that names no seal", Reason.BAD_SHAPE, changed(evidence, {}, without=(9,))),
    )
    for name, reason, wrong in cases:
        yield refused(name, reason, wrong, decode_item)


def _refused_by_signature() -> Iterator[Json]:
    """Right in form; a signature in it is not by whom it names."""
    good = share()
    data = good.encode()
    twin = _twin(good.signature)
    strange_seal = replace(sealed("alice"), seal=replace(sealed("alice").seal, signature=sealed("bob").seal.signature))
    strange_act = replace(delegation(), signature=delegation(serial=2).signature)
    kept = delegation()
    other = envelope(Kind.SHARE, "assistant", sealed("assistant"), life=DAY_MS, shown=kept)
    evidence = verdict("bob", seal("alice").key).encode()
    cases = (
        ("another author", Reason.WRONG_SIGNER, changed(data, {4: bytes(address("bob"))})),
        ("another network", Reason.WRONG_SIGNER, changed(data, {1: keccak256(b"other")})),
        ("another graph", Reason.WRONG_SIGNER, changed(data, {2: keccak256(b"other")})),
        ("a later end", Reason.WRONG_SIGNER, changed(data, {8: good.expires_at_ms + 1})),
        ("another hint of the roster", Reason.WRONG_SIGNER, changed(data, {6: 2})),
        ("the twin with a high s", Reason.BAD_SIGNATURE, changed(data, {10: twin})),
        ("a seal that the author did not sign", Reason.WRONG_SIGNER, share_of(strange_seal).encode()),
        ("a delegation left out", Reason.WRONG_SIGNER, changed(other.encode(), {}, without=(5,))),
        (
            "a delegation that the principal did not sign",
            Reason.WRONG_SIGNER,
            envelope(Kind.SHARE, "assistant", sealed("assistant"), life=DAY_MS, shown=strange_act).encode(),
        ),
        ("the other decision", Reason.WRONG_SIGNER, changed(evidence, {10: 2})),
        ("another seal of the same root", Reason.WRONG_SIGNER, changed(evidence, {9: bytes(32)})),
        ("a stronger method", Reason.WRONG_SIGNER, changed(evidence, {14: 4})),
        ("another quorum", Reason.WRONG_SIGNER, changed(evidence, {13: bytes(32)})),
    )
    for name, reason, wrong in cases:
        decode_item(wrong)
        yield refused(name, reason, wrong, lambda raw: decode_item(raw).check())


def share_of(body: Sealed) -> Envelope:
    return envelope(Kind.SHARE, "alice", body, life=DAY_MS)


def _twin(signature: bytes) -> bytes:
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    s = order - int.from_bytes(signature[32:64])
    return signature[:32] + s.to_bytes(32) + bytes((55 - signature[64],))


assert set(BODIES) == set(Kind) - EVIDENCE
