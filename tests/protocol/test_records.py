"""A record holds of each thing what the rules ask for, field by field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from p2pmem_protocol.bodies import Anchor, AnchoredAsset, ContentRef, Retract, RetractMode, Revoke, Sealed
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import Envelope
from p2pmem_protocol.evidence import Decision, Endorse, Method
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CONTENT_INLINE_BYTES_MAX
from p2pmem_protocol.names import AssetKey
from p2pmem_protocol.record_bytes import RecordReader, to_bytes
from p2pmem_protocol.records import (
    FOREVER,
    AckRecord,
    AnchorRecord,
    EvidenceRecord,
    ProposeRecord,
    RetractRecord,
    RevokeRecord,
    SealedRecord,
    State,
    record_of,
)
from p2pmem_protocol.seal import NO_PREVIOUS, Seal

from tests.protocol.world import (
    DAY,
    GRAPH,
    NETWORK,
    T0,
    ack,
    act_for,
    address,
    anchor,
    endorse,
    envelope,
    propose,
    publish,
    quorum,
    retract,
    revoke,
    root_of,
    share,
    signer,
    subject,
    verdict,
)

Q = quorum(2, ("v1", "v2"))


def common(item: Envelope, ends_at_ms: int) -> Any:
    """What every record says of an envelope by alice that was issued at T0 and takes 77 bytes."""
    who = address("alice")
    return (item.id, item.kind, who, who, 0, Right(0), T0, ends_at_ms, 77, State.NEW, 0)


def sealed_share(size: int, version: int = 1, subgraph: str = "part/two") -> Envelope:
    previous = NO_PREVIOUS if version == 1 else root_of("before")
    seal = Seal(NETWORK, GRAPH, subgraph, "asset", version, root_of("a"), 12, previous, address("alice"))
    return envelope(Kind.SHARE, "alice", Sealed(seal.sign(signer("alice")), ContentRef.of(b"c" * size)), T0, T0 + DAY)


@pytest.mark.parametrize("version", [1, 2])
def test_of_a_share_all_that_its_seal_says_is_kept(version: int) -> None:
    item = sealed_share(100, version)
    body = item.body
    assert isinstance(body, Sealed)
    seal = body.seal.seal
    expected = SealedRecord(*common(item, T0 + DAY), seal.key, "part/two", 12, seal.previous, body.content.hash, 100)
    record = record_of(item, 77)
    assert isinstance(record, SealedRecord)
    assert fields_of(record) == fields_of(expected)


def fields_of(record: Any) -> tuple[Any, ...]:
    return tuple(
        getattr(record, name) for each in reversed(type(record).__mro__) for name in getattr(each, "__slots__", ())
    )


def test_attached_content_is_charged_and_content_inside_is_in_the_size_already() -> None:
    assert record_of(sealed_share(CONTENT_INLINE_BYTES_MAX), 77).charge_bytes == 77
    attached = CONTENT_INLINE_BYTES_MAX + 1
    assert record_of(sealed_share(attached), 77).charge_bytes == 77 + attached


def test_what_stays_ends_never_and_what_is_delegated_says_under_what() -> None:
    assert record_of(publish("alice"), 77).ends_at_ms == FOREVER
    rights = Right.SHARE | Right.RETRACT
    record = record_of(share("alice", act=act_for("bob", "alice", 9, rights)), 77)
    assert (record.principal, record.serial, record.rights) == (address("bob"), 9, rights)
    assert record.delegated
    assert not record_of(share("alice"), 77).delegated


def test_of_every_other_kind_what_the_rules_ask_for_is_kept() -> None:
    about = subject("bob", 3)
    taken_back = retract("alice", "bob", 3, mode=RetractMode.ERASE, successor=2)
    ended = envelope(Kind.REVOKE, "alice", Revoke(None, "12D3", 4, (b"k" * 32,)), T0, 0)
    claims = Anchor(
        root_of("batch"), 1, 31_337, address("contract"), root_of("transaction"), 5, (AnchoredAsset(about, ()),)
    )
    cases: list[tuple[Envelope, Any]] = [
        (
            taken_back,
            RetractRecord(
                *common(taken_back, FOREVER), AssetKey(address("bob"), "asset"), 3, RetractMode.ERASE, 2, False
            ),
        ),
        (ended, RevokeRecord(*common(ended, FOREVER), None, "12D3", 4, frozenset((b"k" * 32,)))),
        (
            agent := revoke("alice", "helper", 6),
            RevokeRecord(*common(agent, FOREVER), address("helper"), None, 6, frozenset()),
        ),
        (asked := propose("alice", about, Q), ProposeRecord(*common(asked, T0 + DAY), about, Q.id)),
        (held := ack("alice"), AckRecord(*common(held, T0 + DAY), root_of("a"))),
        (
            claimed := envelope(Kind.ANCHOR, "alice", claims, T0, 0),
            AnchorRecord(*common(claimed, FOREVER), root_of("batch"), 31_337, address("contract"), (about,)),
        ),
    ]
    for item, expected in cases:
        record = record_of(item, 77)
        assert type(record) is type(expected)
        assert fields_of(record) == fields_of(expected)
    body = taken_back.body
    assert isinstance(body, Retract)
    shown = envelope(Kind.RETRACT, "alice", replace(body, shown=act_for("alice", "bob")), T0, 0)
    found = record_of(shown, 77)
    assert isinstance(found, RetractRecord)
    assert found.as_principal
    assert not found.of_own_words
    assert isinstance(record_of(anchor("alice", about), 1), AnchorRecord)


def test_of_evidence_signer_subject_and_meaning_are_kept() -> None:
    about = subject("alice")
    said, judged = endorse("bob", about), verdict("v1", about, Q, Decision.REJECT, Method.SHACL)
    cases = (
        (said, "bob", ZERO_HASH, Endorse.ENDORSE, None, (Kind.ENDORSE, address("bob"), ZERO_HASH, 1, 0)),
        (judged, "v1", Q.id, Decision.REJECT, Method.SHACL, (Kind.VERDICT, address("v1"), Q.id, 2, 2)),
    )
    for item, by, under, decision, method, slot in cases:
        record = record_of(item, 77)
        assert isinstance(record, EvidenceRecord)
        who = address(by)
        bare = (item.id, item.kind, who, who, 0, Right(0), 0, FOREVER, 0, State.NEW, 0)
        assert fields_of(record) == fields_of(EvidenceRecord(*bare, about, under, decision, method))
        assert record.slot == slot


def test_a_record_in_bytes_keeps_the_sub_graph_and_shares_what_is_common() -> None:
    reader = RecordReader()
    read = []
    for item in (sealed_share(10), sealed_share(20), sealed_share(10, subgraph="größe".encode().hex())):
        record = record_of(item, 77)
        data = to_bytes(record)
        assert data is not None
        again = reader.from_bytes(data, item.id, item.kind)
        assert fields_of(again) == fields_of(record)
        read.append(again)
    one, other, third = read
    assert one.subgraph is other.subgraph
    assert one.subgraph != third.subgraph
    assert one.author is other.author is one.principal is one.key.author
    assert one.rights is other.rights
    assert one.previous is NO_PREVIOUS
