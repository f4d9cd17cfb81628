"""The bodies of envelopes, kind by kind: the number of each field, the ends of each range, and nothing beyond."""

from __future__ import annotations

from typing import Any

import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.bodies import (
    BODIES,
    REVOKE_IDS_MAX,
    Anchor,
    AnchoredAsset,
    ContentRef,
    Context,
    Retract,
    RetractMode,
    Revoke,
)
from p2pmem_protocol.envelope import Envelope, decode_item
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import (
    ANCHOR_ASSETS_MAX,
    BODY_BYTES_MAX,
    CONTENT_BYTES_MAX,
    CONTENT_INLINE_BYTES_MAX,
    PROOF_HASHES_MAX,
    REASON_CHARS_MAX,
    UINT32_MAX,
    UINT64_MAX,
)

from tests.protocol.world import (
    GRAPH,
    NETWORK,
    T0,
    ack,
    act_for,
    address,
    endorse,
    envelope,
    propose,
    publish,
    quorum,
    retract,
    revoke,
    root_of,
    share,
    subject,
)

CONTEXT = Context(NETWORK, GRAPH, address("alice"))
ABOUT = subject("bob", 3)
SUBJECT: dict[int, Any] = {0: bytes(address("bob")), 1: "asset", 2: 3, 3: root_of("a"), 4: ABOUT.seal}
SHOWN = act_for("alice", "bob")
Q = quorum(1, ("v1",))

ANCHORED = Anchor(
    root_of("batch"),
    7,
    31_337,
    address("contract"),
    root_of("transaction"),
    9,
    (AnchoredAsset(ABOUT, (root_of("two"), root_of("one"))),),
)
TAKEN_BACK = Retract(address("bob"), "asset", 3, RetractMode.ERASE, 2, "wrong", SHOWN)
IDS = tuple(sorted((root_of("one"), root_of("two"))))

BODY_FIELDS: list[tuple[Kind, Any, dict[int, Any]]] = [
    (
        Kind.RETRACT,
        TAKEN_BACK,
        {0: bytes(address("bob")), 1: "asset", 2: 3, 3: 2, 4: 2, 5: "wrong", 6: SHOWN.to_value()},
    ),
    (
        Kind.RETRACT,
        Retract(address("bob"), "asset", 3, RetractMode.KEEP, None, ""),
        {0: bytes(address("bob")), 1: "asset", 2: 3, 3: 1, 5: ""},
    ),
    (Kind.PROPOSE, propose("alice", ABOUT, Q).body, {**SUBJECT, 5: Q.id}),
    (Kind.ACK, ack("alice").body, {0: root_of("a")}),
    (
        Kind.ANCHOR,
        ANCHORED,
        {
            0: root_of("batch"),
            1: 31_337,
            2: bytes(address("contract")),
            3: root_of("transaction"),
            4: 9,
            5: [{**SUBJECT, 5: [root_of("two"), root_of("one")]}],
            6: 7,
        },
    ),
    (Kind.REVOKE, Revoke(address("bob"), None, 5, IDS), {0: bytes(address("bob")), 2: 5, 3: list(IDS)}),
    (Kind.REVOKE, Revoke(None, "12D3", 5, ()), {1: "12D3", 2: 5, 3: []}),
]


@pytest.mark.parametrize(("kind", "body", "fields"), BODY_FIELDS)
def test_a_body_has_these_fields_and_no_other(kind: Kind, body: Any, fields: dict[int, Any]) -> None:
    assert body.to_value() == fields
    assert BODIES[kind].from_value(fields, CONTEXT) == body
    with pytest.raises(RefusedError) as refused:
        BODIES[kind].from_value({**fields, 9: 0}, CONTEXT)
    assert refused.value.reason is Reason.BAD_SHAPE


def test_a_share_has_a_seal_and_content_and_nothing_else() -> None:
    body: Any = share("alice").body
    fields = body.to_value()
    assert set(fields) == {0, 1}
    assert BODIES[Kind.SHARE].from_value(fields, CONTEXT) == body
    with pytest.raises(RefusedError) as refused:
        BODIES[Kind.SHARE].from_value({**fields, 2: 0}, CONTEXT)
    assert refused.value.reason is Reason.BAD_SHAPE


@pytest.mark.parametrize(
    ("kind", "body", "field", "good", "bad"),
    [
        (Kind.RETRACT, TAKEN_BACK, 2, [1, UINT32_MAX], [0, UINT32_MAX + 1]),
        (Kind.RETRACT, TAKEN_BACK, 3, [1, 2], [0, 3]),
        (Kind.RETRACT, TAKEN_BACK, 4, [1, UINT32_MAX], [0, UINT32_MAX + 1]),
        (Kind.RETRACT, TAKEN_BACK, 5, ["", "r" * REASON_CHARS_MAX], ["r" * (REASON_CHARS_MAX + 1)]),
        (Kind.ANCHOR, ANCHORED, 1, [0, UINT64_MAX], [-1]),
        (Kind.ANCHOR, ANCHORED, 4, [0, UINT64_MAX], [-1]),
        (Kind.ANCHOR, ANCHORED, 6, [1, UINT32_MAX], [0, UINT32_MAX + 1]),
        (
            Kind.ANCHOR,
            ANCHORED,
            5,
            [[{**SUBJECT, 5: [root_of("one")] * PROOF_HASHES_MAX}] * ANCHOR_ASSETS_MAX],
            [
                [],
                [{**SUBJECT, 5: []}] * (ANCHOR_ASSETS_MAX + 1),
                [{**SUBJECT, 5: [root_of("1")] * (PROOF_HASHES_MAX + 1)}],
            ],
        ),
        (Kind.REVOKE, Revoke(None, "12D3", 5, ()), 1, ["p", "p" * 128], ["", "p" * 129]),
        (Kind.REVOKE, Revoke(None, "12D3", 5, ()), 2, [1, UINT32_MAX], [0, UINT32_MAX + 1]),
        (
            Kind.REVOKE,
            Revoke(None, "12D3", 5, ()),
            3,
            [[number.to_bytes(32) for number in range(REVOKE_IDS_MAX)]],
            [[number.to_bytes(32) for number in range(REVOKE_IDS_MAX + 1)]],
        ),
    ],
)
def test_a_field_of_a_body_may_be_at_each_end(
    kind: Kind, body: Any, field: int, good: list[Any], bad: list[Any]
) -> None:
    fields = body.to_value()
    for value in good:
        assert BODIES[kind].from_value({**fields, field: value}, CONTEXT).to_value() == {**fields, field: value}
    for value in bad:
        with pytest.raises(RefusedError) as refused:
            BODIES[kind].from_value({**fields, field: value}, CONTEXT)
        assert refused.value.reason is Reason.BAD_FIELD


def test_a_revocation_of_both_or_none_and_a_delegation_of_another_are_refused() -> None:
    agent = bytes(address("bob"))
    for fields in ({0: agent, 1: "12D3", 2: 5, 3: []}, {2: 5, 3: []}):
        with pytest.raises(RefusedError) as refused:
            Revoke.from_value(fields, CONTEXT)
        assert refused.value.reason is Reason.BAD_SHAPE
    with pytest.raises(RefusedError) as refused:
        Retract.from_value(TAKEN_BACK.to_value(), Context(NETWORK, GRAPH, address("carol")))
    assert refused.value.reason is Reason.BAD_FIELD


def test_a_field_that_an_anchored_asset_does_not_have_is_refused() -> None:
    fields: Any = ANCHORED.to_value()
    with pytest.raises(RefusedError) as refused:
        Anchor.from_value({**fields, 5: [{**SUBJECT, 5: [], 6: 0}]}, CONTEXT)
    assert refused.value.reason is Reason.BAD_SHAPE


def test_content_has_one_form_for_each_length() -> None:
    for size in (1, CONTENT_INLINE_BYTES_MAX):
        inline = ContentRef.of(b"c" * size)
        assert (inline.length, inline.inline, inline.hash) == (size, b"c" * size, keccak256(b"c" * size))
        assert ContentRef.from_value(inline.to_value()) == inline
    attached = ContentRef.of(b"c" * (CONTENT_INLINE_BYTES_MAX + 1))
    assert attached.inline is None
    assert attached.to_value() == [keccak256(b"c" * (CONTENT_INLINE_BYTES_MAX + 1)), CONTENT_INLINE_BYTES_MAX + 1]
    assert ContentRef.from_value(attached.to_value()) == attached
    assert ContentRef.of(bytes(CONTENT_BYTES_MAX)).length == CONTENT_BYTES_MAX
    for content in (b"", bytes(CONTENT_BYTES_MAX + 1)):
        with pytest.raises(MisuseError):
            ContentRef.of(content)
    one: Any = b"c"
    assert ContentRef.from_value(one).length == 1
    wrong: Any
    for wrong in (b"", b"c" * (CONTENT_INLINE_BYTES_MAX + 1)):
        with pytest.raises(RefusedError) as refused:
            ContentRef.from_value(wrong)
        assert refused.value.reason is Reason.CONTENT_NOT_ATTACHED_RIGHT


def test_every_kind_comes_back_from_its_bytes() -> None:
    items = [
        share("alice", 2, act=act_for("carol", "alice")),
        publish("alice"),
        revoke("alice", "helper", 3, IDS),
        ack("alice"),
        propose("alice", ABOUT, Q),
        retract("alice", version=2, successor=1),
        envelope(Kind.ANCHOR, "alice", ANCHORED, T0, 0),
        envelope(Kind.RETRACT, "alice", TAKEN_BACK, T0, 0),
    ]
    for item in items:
        again = decode_item(item.encode())
        assert again == item
        assert again.id == item.id
        assert again.encode() == item.encode()


def test_evidence_has_no_outer_envelope() -> None:
    value: Any = cbor.decode(share("alice").encode())
    with pytest.raises(RefusedError) as refused:
        Envelope.from_value({**value, 3: int(Kind.ENDORSE)})
    assert refused.value.reason is Reason.BAD_SHAPE
    assert decode_item(endorse("bob", ABOUT).encode()) == endorse("bob", ABOUT)


def test_a_body_of_just_the_size_that_is_possible_is_possible() -> None:
    def of_length(length: int) -> Envelope:
        ids = tuple(number.to_bytes(32) for number in range(REVOKE_IDS_MAX))
        bare = len(cbor.encode(Revoke(None, "p" * 300, 5, ids).to_value()))
        return envelope(Kind.REVOKE, "alice", Revoke(None, "p" * (300 + length - bare), 5, ids), T0, 0)

    assert len(of_length(BODY_BYTES_MAX).unsigned.body_bytes) == BODY_BYTES_MAX
    with pytest.raises(MisuseError):
        of_length(BODY_BYTES_MAX + 1)


def test_a_wallet_is_given_what_the_id_of_an_envelope_is_of() -> None:
    unsigned = ack("alice").unsigned
    data: Any = unsigned.typed_data()
    assert data["primaryType"] == "Envelope"
    assert data["message"]["kind"] in (int(Kind.ACK), str(int(Kind.ACK)))
    assert data["domain"] == unsigned.typed_data()["domain"]
