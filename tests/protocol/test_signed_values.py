"""Seals, delegations, credentials, envelopes and evidence as values: what cannot be made, and what a reader refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.bodies import Ack, Anchor, AnchoredAsset, ContentRef, Revoke, Sealed
from p2pmem_protocol.credential import ActFor, Carry, Right, SignedActFor, SignedCarry
from p2pmem_protocol.envelope import Envelope, Unsigned, decode_item, life_problem
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.evidence import Endorse, Endorsement, Evidence, Verdict
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import ZERO_HASH, keccak256
from p2pmem_protocol.kinds import DURABLE, EVIDENCE, EXPIRING, Kind
from p2pmem_protocol.limits import (
    CONTENT_BYTES_MAX,
    CONTENT_INLINE_BYTES_MAX,
    CREDENTIAL_MS_MAX,
    LABEL_CHARS_MAX,
    REASON_CHARS_MAX,
    STATEMENTS_MAX,
    TIME_MS_MAX,
    UINT32_MAX,
)
from p2pmem_protocol.names import VersionKey
from p2pmem_protocol.seal import NO_PREVIOUS, Seal, SignedSeal

from tests.protocol import world as w

SEAL = Seal(w.NETWORK, w.GRAPH, "a/b", "asset", 2, b"\x01" * 32, 7, b"\x02" * 32, w.address("alice"))


def refusal(read: Any, *arguments: Any) -> Reason:
    with pytest.raises(RefusedError) as caught:
        read(*arguments)
    return caught.value.reason


# Seals


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"subgraph": "_meta"},
        {"version": 0},
        {"version": UINT32_MAX + 1},
        {"leaves": 0},
        {"leaves": STATEMENTS_MAX + 1},
        {"root": b"\x01" * 31},
        {"previous": b"\x01" * 33},
    ],
    ids=str,
)
def test_a_seal_that_cannot_be_is_not_made(change: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        replace(SEAL, **change)


def test_a_seal_may_be_at_each_end() -> None:
    for change in (
        {"version": 1},
        {"version": UINT32_MAX},
        {"leaves": 1},
        {"leaves": STATEMENTS_MAX},
        {"subgraph": ""},
    ):
        made = replace(SEAL, **change)
        assert made.digest != SEAL.digest
        assert made.key == VersionKey(SEAL.author, SEAL.name, made.version, SEAL.root, made.digest)


def test_only_the_author_seals() -> None:
    with pytest.raises(MisuseError, match="author"):
        SEAL.sign(w.key("bob"))
    signed = SEAL.sign(w.key("alice"))
    signed.check()
    assert refusal(replace(signed, signature=w.key("bob").sign(SEAL.digest)).check) is Reason.WRONG_SIGNER
    assert refusal(replace(signed, seal=replace(SEAL, leaves=8)).check) is Reason.WRONG_SIGNER


def test_a_wallet_is_given_what_the_digest_is_of() -> None:
    shown = SEAL.typed_data()
    assert shown["primaryType"] == "Seal"
    assert shown["message"] == {
        "graph": "0x" + w.GRAPH.hex(),
        "subgraph": "a/b",
        "asset": "asset",
        "version": 2,
        "root": "0x" + "01" * 32,
        "leaves": 7,
        "previous": "0x" + "02" * 32,
        "author": str(SEAL.author),
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({0: "A"}, Reason.BAD_NAME),
        ({0: 1}, Reason.BAD_FIELD),
        ({0: "a" * 129}, Reason.BAD_NAME),
        ({1: ""}, Reason.BAD_NAME),
        ({1: "a" * 129}, Reason.BAD_NAME),
        ({2: 0}, Reason.BAD_FIELD),
        ({2: UINT32_MAX + 1}, Reason.BAD_FIELD),
        ({2: True}, Reason.BAD_FIELD),
        ({2: 1}, Reason.BAD_FIELD),
        ({3: bytes(31)}, Reason.BAD_FIELD),
        ({4: 0}, Reason.BAD_FIELD),
        ({4: STATEMENTS_MAX + 1}, Reason.BAD_FIELD),
        ({5: NO_PREVIOUS}, Reason.BAD_FIELD),
        ({6: bytes(64)}, Reason.BAD_FIELD),
        ({7: 0}, Reason.BAD_SHAPE),
    ],
    ids=str,
)
def test_a_seal_of_another_form_is_refused(change: dict[int, Any], reason: Reason) -> None:
    value = SEAL.sign(w.key("alice")).to_value()
    assert refusal(SignedSeal.from_value, value | change, w.NETWORK, w.GRAPH, SEAL.author) is reason
    assert SignedSeal.from_value(value, w.NETWORK, w.GRAPH, SEAL.author).to_value() == value


@pytest.mark.parametrize("missing", range(7))
def test_a_seal_has_all_its_fields(missing: int) -> None:
    value = SEAL.sign(w.key("alice")).to_value()
    del value[missing]
    assert refusal(SignedSeal.from_value, value, w.NETWORK, w.GRAPH, SEAL.author) is Reason.BAD_SHAPE


# Delegations and credentials

ACT = ActFor(w.NETWORK, w.address("team"), w.address("bot"), 1, "x" * LABEL_CHARS_MAX, Right.SHARE)
CARRY = Carry(w.NETWORK, w.address("alice"), "peer", 1, w.T0)


@pytest.mark.parametrize(
    "change", [{"agent": ACT.principal}, {"serial": 0}, {"serial": UINT32_MAX + 1}, {"label": "x" * 65}], ids=str
)
def test_a_delegation_that_cannot_be_is_not_made(change: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        replace(ACT, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"serial": 0},
        {"serial": UINT32_MAX + 1},
        {"until_ms": 0},
        {"until_ms": TIME_MS_MAX + 1},
        {"peer": ""},
        {"peer": "p" * 129},
    ],
    ids=str,
)
def test_a_credential_that_cannot_be_is_not_made(change: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        replace(CARRY, **change)


def test_a_delegation_is_signed_by_its_principal_and_binds_agent_rights_label_and_serial() -> None:
    with pytest.raises(MisuseError, match="only"):
        ACT.sign(w.key("bot"))
    signed = ACT.sign(w.key("team"))
    signed.check()
    value = signed.to_value()
    assert SignedActFor.from_value(value, w.NETWORK, ACT.agent) == signed
    assert refusal(SignedActFor.from_value(value, w.NETWORK, w.address("other")).check) is Reason.WRONG_SIGNER
    for change in ({1: 2}, {2: "y"}, {3: 3}):
        assert refusal(SignedActFor.from_value(value | change, w.NETWORK, ACT.agent).check) is Reason.WRONG_SIGNER
    for change, reason in (
        ({0: bytes(ACT.agent)}, Reason.BAD_FIELD),
        ({1: 0}, Reason.BAD_FIELD),
        ({2: "x" * 65}, Reason.BAD_FIELD),
        ({3: 0}, Reason.BAD_FIELD),
        ({3: 16}, Reason.BAD_FIELD),
        ({5: 0}, Reason.BAD_SHAPE),
    ):
        assert refusal(SignedActFor.from_value, value | change, w.NETWORK, ACT.agent) is reason


def test_a_credential_holds_for_its_peer_until_its_end_and_for_ninety_days_at_most() -> None:
    with pytest.raises(MisuseError, match="only"):
        CARRY.sign(w.key("bob"))
    signed = CARRY.sign(w.key("alice"))
    signed.check(w.T0 - 1)
    signed.check(w.T0 - CREDENTIAL_MS_MAX)
    assert refusal(signed.check, w.T0) is Reason.CREDENTIAL_ENDED
    assert refusal(signed.check, w.T0 - CREDENTIAL_MS_MAX - 1) is Reason.BAD_LIFE
    value = signed.to_value()
    assert SignedCarry.from_value(value, w.NETWORK, "peer") == signed
    copied = SignedCarry.from_value(value, w.NETWORK, "thief")
    assert refusal(copied.check, w.T0 - 1) is Reason.WRONG_SIGNER


def test_a_delegation_and_a_credential_may_be_at_each_end() -> None:
    for serial in (1, UINT32_MAX):
        act = replace(ACT, serial=serial).sign(w.key("team"))
        assert SignedActFor.from_value(act.to_value(), w.NETWORK, ACT.agent) == act
    for change in (
        {"serial": UINT32_MAX},
        {"until_ms": 1},
        {"until_ms": TIME_MS_MAX},
        {"peer": "p"},
        {"peer": "p" * 128},
    ):
        made = replace(CARRY, **change)
        carry = made.sign(w.key("alice"))
        assert SignedCarry.from_value(carry.to_value(), w.NETWORK, made.peer) == carry


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({0: bytes(19)}, Reason.BAD_FIELD),
        ({1: 0}, Reason.BAD_FIELD),
        ({1: UINT32_MAX + 1}, Reason.BAD_FIELD),
        ({2: 0}, Reason.BAD_FIELD),
        ({2: TIME_MS_MAX + 1}, Reason.BAD_FIELD),
        ({3: bytes(64)}, Reason.BAD_FIELD),
        ({3: bytes(66)}, Reason.BAD_FIELD),
        ({4: 0}, Reason.BAD_SHAPE),
    ],
    ids=str,
)
def test_a_credential_of_another_form_is_refused(change: dict[int, Any], reason: Reason) -> None:
    value = CARRY.sign(w.key("alice")).to_value()
    assert refusal(SignedCarry.from_value, value | change, w.NETWORK, "peer") is reason


@pytest.mark.parametrize("signature", [bytes(64), bytes(66)], ids=len)
def test_a_delegation_with_a_signature_of_another_length_is_refused(signature: bytes) -> None:
    value = ACT.sign(w.key("team")).to_value()
    assert refusal(SignedActFor.from_value, value | {4: signature}, w.NETWORK, ACT.agent) is Reason.BAD_FIELD


def test_a_wallet_is_given_delegations_credentials_and_evidence() -> None:
    act, carry = ACT.typed_data(), CARRY.typed_data()
    assert (act["primaryType"], carry["primaryType"]) == ("ActFor", "Carry")
    assert act["message"] == {
        "principal": str(ACT.principal),
        "agent": str(ACT.agent),
        "serial": 1,
        "label": ACT.label,
        "rights": 1,
    }
    assert carry["message"] == {"agent": str(CARRY.agent), "peer": "peer", "serial": 1, "until": w.T0}
    endorsement = w.endorse("bob", w.subject("alice"), reason="good").statement
    verdict = w.verdict("bob", w.subject("alice"), w.quorum(1, ("bob",)), reason="good").statement
    for statement, reason in ((endorsement, "good"), (verdict, "0x" + keccak256(b"good").hex())):
        shown = statement.typed_data()
        assert shown["primaryType"] == type(statement).__name__
        message = shown["message"]
        assert isinstance(message, dict)
        assert (message["reason"], message["signer"]) == (reason, str(w.address("bob")))
    for made in (act, carry):
        assert made["domain"] == {"name": "p2pmem", "version": "1", "salt": "0x" + w.NETWORK.hex()}


# Content


def test_content_is_inline_or_attached_by_its_size_alone() -> None:
    inline = ContentRef.of(bytes(CONTENT_INLINE_BYTES_MAX))
    attached = ContentRef.of(bytes(CONTENT_INLINE_BYTES_MAX + 1))
    assert inline.to_value() == bytes(CONTENT_INLINE_BYTES_MAX)
    assert attached.to_value() == [keccak256(bytes(CONTENT_INLINE_BYTES_MAX + 1)), CONTENT_INLINE_BYTES_MAX + 1]
    assert inline.hash == keccak256(bytes(CONTENT_INLINE_BYTES_MAX))
    assert attached.hash == attached.attached
    for reference in (inline, attached):
        assert ContentRef.from_value(reference.to_value()) == reference
    for length in (0, CONTENT_BYTES_MAX + 1):
        with pytest.raises(MisuseError):
            ContentRef.of(bytes(length))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", Reason.CONTENT_NOT_ATTACHED_RIGHT),
        (bytes(CONTENT_INLINE_BYTES_MAX + 1), Reason.CONTENT_NOT_ATTACHED_RIGHT),
        ([bytes(32), CONTENT_INLINE_BYTES_MAX], Reason.CONTENT_NOT_ATTACHED_RIGHT),
        ([bytes(32), CONTENT_BYTES_MAX + 1], Reason.CONTENT_NOT_ATTACHED_RIGHT),
        ([bytes(32), 0], Reason.CONTENT_NOT_ATTACHED_RIGHT),
        ([bytes(31), CONTENT_BYTES_MAX], Reason.BAD_FIELD),
        ([bytes(32), True], Reason.BAD_FIELD),
        ([bytes(32)], Reason.BAD_SHAPE),
        ([bytes(32), CONTENT_BYTES_MAX, 0], Reason.BAD_SHAPE),
        ("text", Reason.BAD_FIELD),
        (None, Reason.BAD_FIELD),
    ],
)
def test_a_reference_of_another_form_is_refused(value: Any, reason: Reason) -> None:
    assert refusal(ContentRef.from_value, value) is reason


def test_the_largest_attachment_may_be_named() -> None:
    assert ContentRef.from_value([bytes(32), CONTENT_BYTES_MAX]).length == CONTENT_BYTES_MAX


# Envelopes


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in EVIDENCE])
def test_what_stays_has_no_end_and_everything_else_ends_after_it_was_issued(kind: Kind) -> None:
    if kind in DURABLE:
        assert life_problem(kind, 1, 0) is None
        assert life_problem(kind, TIME_MS_MAX, 0) is None
        assert life_problem(kind, 1, 2) is not None
    else:
        assert kind in EXPIRING
        assert life_problem(kind, 1, 2) is None
        assert life_problem(kind, 1, TIME_MS_MAX) is None
        for end in (0, 1, TIME_MS_MAX + 1):
            assert life_problem(kind, 1, end) is not None
    assert life_problem(kind, 0, 0 if kind in DURABLE else 1) is not None
    assert life_problem(kind, TIME_MS_MAX + 1, 0) is not None


def test_an_envelope_that_cannot_be_is_not_made() -> None:
    def made(kind: Kind, body: Any, ends: int = 0) -> Unsigned:
        return Unsigned(w.NETWORK, w.GRAPH, kind, w.address("alice"), None, 1, 1, ends, body)

    for kind, body, ends in (
        (Kind.ACK, Ack(ZERO_HASH), 0),
        (Kind.SHARE, Ack(ZERO_HASH), 2),
        (Kind.ENDORSE, Ack(ZERO_HASH), 0),
    ):
        with pytest.raises(MisuseError):
            made(kind, body, ends)
    assets = (AnchoredAsset(w.subject("alice"), (ZERO_HASH,) * 32),) * 256
    batch = Anchor(ZERO_HASH, 256, 1, w.address("alice"), ZERO_HASH, 1, assets)
    with pytest.raises(MisuseError, match="65536"):
        made(Kind.ANCHOR, batch)
    unsigned = made(Kind.ACK, Ack(ZERO_HASH), 2)
    with pytest.raises(MisuseError, match="author"):
        unsigned.sign(w.key("bob"))


def test_two_signatures_over_one_statement_are_one_envelope() -> None:
    one = w.share("alice")
    other = replace(one, signature=w.share("alice", version=2).signature)
    assert one.id == other.id
    assert one.encode() != other.encode()
    assert refusal(other.check) is Reason.WRONG_SIGNER


def test_an_envelope_keeps_the_bytes_of_the_body_that_it_was_read_from() -> None:
    data = w.share("alice").encode()
    value = cbor.decode(data)
    assert isinstance(value, dict)
    assert Envelope.decode(data).unsigned.body_bytes == value[9]
    assert Envelope.decode(data) == w.share("alice")


def test_another_body_has_other_bytes_and_another_id() -> None:
    read = decode_item(w.share("alice").encode())
    assert isinstance(read, Envelope)
    changed = replace(read.unsigned, body=w.share("alice", 2).body)
    assert changed.body_bytes == cbor.encode(changed.body.to_value()) != read.unsigned.body_bytes
    assert changed.id != read.id


def test_who_acts_for_a_principal_uses_its_role_and_both_signatures_are_checked() -> None:
    act = w.act_for("team", "bot")
    made = w.share("bot", act=act)
    assert (made.author, made.principal) == (w.address("bot"), w.address("team"))
    made.check()
    assert w.share("bot").principal == w.address("bot")
    assert w.share("bot").id != made.id
    wrong = replace(made.unsigned, delegation=replace(act, signature=w.act_for("team", "bot", 2).signature))
    assert refusal(wrong.sign(w.key("bot")).check) is Reason.WRONG_SIGNER


def test_a_share_with_the_seal_of_another_is_refused() -> None:
    made = w.share("alice")
    assert isinstance(made.body, Sealed)
    stolen = replace(made.body.seal, signature=w.key("bob").sign(made.body.seal.seal.digest))
    wrong = replace(made.unsigned, body=replace(made.body, seal=stolen)).sign(w.key("alice"))
    assert decode_item(wrong.encode()) == wrong
    assert refusal(wrong.check) is Reason.WRONG_SIGNER


def test_a_retract_shows_a_delegation_that_is_checked() -> None:
    act = w.act_for("team", "bot")
    w.retract("team", "bot", shown=act).check()
    wrong = w.retract("team", "bot", shown=replace(act, signature=w.act_for("team", "bot", 2).signature))
    assert refusal(wrong.check) is Reason.WRONG_SIGNER


def test_a_revoke_names_an_agent_or_a_peer() -> None:
    for agent, peer in ((None, None), (w.address("bot"), "peer")):
        with pytest.raises(MisuseError):
            Revoke(agent, peer, 1, ())
    for body in (Revoke(w.address("bot"), None, 1, (ZERO_HASH,)), Revoke(None, "p" * 128, UINT32_MAX, ())):
        made = w.envelope(Kind.REVOKE, "team", body, w.T0, 0)
        assert decode_item(made.encode()) == made


# Evidence


@pytest.mark.parametrize(
    "change", [{"name": "a/b"}, {"version": 0}, {"version": UINT32_MAX + 1}, {"root": bytes(31)}], ids=str
)
def test_evidence_about_what_cannot_be_is_not_made(change: dict[str, Any]) -> None:
    subject = replace(w.subject("alice"), **change)
    with pytest.raises(MisuseError):
        Endorsement(w.NETWORK, w.GRAPH, subject, Endorse.ENDORSE, "", w.address("bob"))


def test_evidence_is_about_any_version_that_can_be() -> None:
    for version in (1, UINT32_MAX):
        made = w.endorse("bob", w.subject("alice", version))
        assert Evidence.decode(made.encode()) == made


def test_a_reason_has_a_limit_and_a_quorum_32_bytes() -> None:
    good = w.endorse("bob", w.subject("alice"), reason="x" * REASON_CHARS_MAX)
    assert Evidence.decode(good.encode()) == good
    with pytest.raises(MisuseError, match="reason"):
        w.endorse("bob", w.subject("alice"), reason="x" * (REASON_CHARS_MAX + 1))
    under = w.quorum(1, ("bob",))
    verdict = w.verdict("bob", w.subject("alice"), under).statement
    assert isinstance(verdict, Verdict)
    with pytest.raises(MisuseError, match="quorum"):
        replace(verdict, quorum=bytes(31))
    with pytest.raises(MisuseError, match="signer"):
        Evidence.sign(verdict, w.key("carol"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({0: 0}, Reason.BAD_VERSION),
        ({0: 2}, Reason.BAD_VERSION),
        ({3: 1}, Reason.BAD_FIELD),
        ({3: 2}, Reason.BAD_SHAPE),
        ({3: 11}, Reason.BAD_FIELD),
        ({6: "a/b"}, Reason.BAD_NAME),
        ({7: 0}, Reason.BAD_FIELD),
        ({7: UINT32_MAX + 1}, Reason.BAD_FIELD),
        ({8: bytes(31)}, Reason.BAD_FIELD),
        ({9: bytes(31)}, Reason.BAD_FIELD),
        ({10: 0}, Reason.BAD_FIELD),
        ({10: 3}, Reason.BAD_FIELD),
        ({11: "x" * (REASON_CHARS_MAX + 1)}, Reason.BAD_FIELD),
        ({12: bytes(64)}, Reason.BAD_FIELD),
        ({12: bytes(66)}, Reason.BAD_FIELD),
        ({13: bytes(31)}, Reason.BAD_FIELD),
        ({14: 0}, Reason.BAD_FIELD),
        ({14: 5}, Reason.BAD_FIELD),
        ({15: 0}, Reason.BAD_SHAPE),
    ],
    ids=str,
)
def test_a_verdict_of_another_form_is_refused(change: dict[int, Any], reason: Reason) -> None:
    value = cbor.decode(w.verdict("bob", w.subject("alice"), w.quorum(1, ("bob",))).encode())
    assert isinstance(value, dict)
    assert refusal(Evidence.from_value, value | change) is reason
    assert Evidence.from_value(value).encode() == cbor.encode(value)


# Readers of fields

ONE, TWO = b"\x01" * 32, b"\x02" * 32


def test_a_reader_takes_each_field_once_and_wants_all_to_be_taken() -> None:
    reader = Reader({0: 1, 1: b"\x01", 2: "a"}, "a thing")
    assert reader.has(0)
    assert not reader.has(3)
    assert (reader.uint(0, 1), reader.raw(1, 1), reader.text(2, 1)) == (1, b"\x01", "a")
    reader.end()
    assert refusal(reader.uint, 0, 1) is Reason.BAD_SHAPE
    assert refusal(Reader({0: 1}, "a thing").end) is Reason.BAD_SHAPE


@pytest.mark.parametrize("value", [None, [], 1, "a", {"a": 1}, {0: 1, "a": 1}, {True: 1}])
def test_only_a_map_with_integer_keys_has_fields(value: Any) -> None:
    assert refusal(Reader, value, "a thing") is Reason.BAD_SHAPE


@pytest.mark.parametrize("value", [None, {}, [1], [1, 2, 3]])
def test_a_list_of_fixed_length_has_that_length(value: Any) -> None:
    assert refusal(Reader.of_list, value, 2, "a pair") is Reason.BAD_SHAPE
    reader = Reader.of_list([1, 2], 2, "a pair")
    assert (reader.uint(0, 9), reader.uint(1, 9)) == (1, 2)
    with pytest.raises(RefusedError, match="a pair lacks field 2"):
        reader.uint(2, 9)


@pytest.mark.parametrize(
    ("method", "arguments", "good", "bad"),
    [
        ("uint", (9, 3), [3, 9], [2, 10, True, "3", None, -1]),
        ("raw", (3, 1), [b"a", b"abc"], [b"", b"abcd", "a", 1]),
        ("hash", (), [bytes(32)], [bytes(31), bytes(33)]),
        ("address", (), [bytes(20)], [bytes(19), bytes(21)]),
        ("text", (3, 1), ["a", "äöü"], ["", "abcd", b"a"]),
        ("boolean", (), [True, False], [0, 1, None]),
        ("items", (2, 1), [[1], [1, 2]], [[], [1, 2, 3], {}, None]),
        (
            "sorted_hashes",
            (2,),
            [[], [b"\x01" * 32, b"\x02" * 32]],
            [[b"\x01" * 32] * 2, [b"\x02" * 32, b"\x01" * 32], [1]],
        ),
        ("hashes", (2,), [[TWO, ONE]], [[bytes(31)], [bytes(32), bytes(31)], [bytes(32)] * 3, ["a"]]),
        ("ascending_uints", (2, 9), [[], [0, 9]], [[1, 1], [2, 1], [10], [True], [0, 1, 2], [-1]]),
        ("texts", (2, 2), [["ab"], ["b", "a"]], [[], [""], ["abc"], [1], ["a", "b", "c"]]),
    ],
)
def test_fields_at_the_ends_of_their_range(
    method: str, arguments: tuple[int, ...], good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        taken = getattr(Reader({4: value}, "a thing"), method)(4, *arguments)
        assert taken == (tuple(value) if isinstance(value, list) and method != "items" else value)
    for value in bad:
        with pytest.raises(RefusedError, match="field 4 of a thing is not") as caught:
            getattr(Reader({4: value}, "a thing"), method)(4, *arguments)
        assert caught.value.reason is Reason.BAD_FIELD
    with pytest.raises(RefusedError, match="a thing lacks field 4") as caught:
        getattr(Reader({}, "a thing"), method)(4, *arguments)
    assert caught.value.reason is Reason.BAD_SHAPE
