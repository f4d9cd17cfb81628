"""Vectors of what peers say before they are members: hello, invites, the join stream."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.credential import DELEGATION_PREFIX, Carry, SignedActFor, SignedCarry
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.hello import Greeting, Proof
from p2pmem_protocol.join import INVITE_PREFIX, Answer, Ask, Chain, Invite, Reply, invite_key
from p2pmem_protocol.limits import CREDENTIAL_MS_MAX
from p2pmem_protocol.prepared import PREPARED_PREFIX, Prepared, SignedPrepared

from scripts.vectors.common import (
    DAY_MS,
    GRAPH,
    NAME,
    NETWORK,
    NOW_MS,
    Json,
    address,
    changed,
    key,
    misuse,
    named,
    refused,
    text,
)
from scripts.vectors.items import delegation
from scripts.vectors.rosters import after, first

PEER: Final = "12D3KooWExample"
GREETING: Final = dict(enumerate(("network", "version", "kinds", "item_bytes_max", "content_bytes_max", "clock")))
CREDENTIAL: Final = dict(enumerate(("agent", "serial", "until", "signature")))
INVITE: Final = dict(enumerate(("network", "creator", "slug", "addresses", "head", "token")))
PREPARED: Final = dict(enumerate(("network", "graph", "parent", "change", "approver", "signature")))


def carry(agent: str = "alice", peer: str = PEER, until_ms: int = NOW_MS + 30 * DAY_MS) -> SignedCarry:
    return Carry(NETWORK, address(agent), peer, 1, until_ms).sign(key(agent))


def prepared(m: int = 2) -> SignedPrepared:
    change = f'{{"set":[{{"address":"{address("dave")}","roles":["writer"],"label":"Jörg"}}],"m":{m}}}'
    return Prepared(NETWORK, GRAPH, after(first()).id, change, address("bob")).sign(key("bob"))


def conversation() -> Json:
    greeting = Greeting.ours(NETWORK, NOW_MS)
    proof = Proof((carry(), carry("assistant")), (delegation(),))
    proof.check(NOW_MS)
    roster = after(first())
    chain = Chain((first().signed, roster.signed), roster.body.parts)
    invite = Invite(NETWORK, NAME, (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}",), roster.id, bytes(range(16)))
    asks = (
        ("without an invite", Ask(greeting, proof, GRAPH, "")),
        ("with an invite", Ask(greeting, proof, GRAPH, "notes").enter(invite.token, PEER)),
        ("with a chain", Ask(greeting, proof, GRAPH, "", chain=chain)),
    )
    answers = (
        ("no", Answer(Reply.NO)),
        ("waiting", Answer(Reply.WAITING)),
        ("listed", Answer(Reply.LISTED, chain)),
        ("open", Answer(Reply.OPEN, chain)),
    )
    for _, ask in asks:
        assert Ask.decode(ask.encode(), NETWORK, PEER) == ask
    assert [ask.entry_key(PEER) for _, ask in asks] == [None, invite_key(invite.token).address, None]
    for _, answer in answers:
        assert Answer.decode(answer.encode()) == answer
    assert Invite.parse(str(invite)) == invite
    return {
        "peer": PEER,
        "now": NOW_MS,
        "greeting": {"bytes": text(greeting.encode()), "fields": named(cbor.decode(greeting.encode()), GREETING)},
        "proof": {
            "bytes": text(proof.encode()),
            "credentials": [named(it.to_value(), CREDENTIAL) for it in proof.credentials],
            "names": sorted(str(it) for it in proof.check(NOW_MS).names_at(NOW_MS)),
        },
        "invite": {"text": str(invite), "fields": named(_value_of(INVITE_PREFIX, str(invite)), INVITE)},
        "invites_refused": [misuse(it, Invite.parse) for it in _damaged(INVITE_PREFIX, str(invite))],
        "delegation": {"text": str(delegation()), "fields": _delegation_fields(delegation())},
        "delegations_refused": [
            misuse(it, SignedActFor.parse)
            for it in (*_damaged(DELEGATION_PREFIX, str(delegation())), str(_forged()), str(invite))
        ],
        "prepared": {
            "text": str(prepared()),
            "fields": named(_value_of(PREPARED_PREFIX, str(prepared())), PREPARED),
            "digest": text(prepared().prepared.digest),
        },
        "prepared_refused": [
            misuse(it, SignedPrepared.parse)
            for it in (*_damaged(PREPARED_PREFIX, str(prepared())), str(_forged_change()), str(delegation()))
        ],
        "invite_key": str(invite_key(invite.token).address),
        "asks": [{"name": name, "bytes": text(it.encode()), "entry_key": _entry_key(it)} for name, it in asks],
        "answers": [{"name": name, "bytes": text(it.encode())} for name, it in answers],
        "refused_greetings": _refused_greetings(greeting.encode()),
        "refused_proofs": _refused_proofs(proof),
        "refused_asks": _refused_asks(asks[1][1]),
        "refused_answers": [
            refused("listed without a roster", Reason.BAD_SHAPE, cbor.encode({0: 1}), Answer.decode),
            refused("no, with a roster", Reason.BAD_SHAPE, changed(answers[2][1].encode(), {0: 0}), Answer.decode),
            refused("a reply that is none", Reason.BAD_FIELD, cbor.encode({0: 4}), Answer.decode),
        ],
    }


def _entry_key(ask: Ask) -> str | None:
    found = ask.entry_key(PEER)
    return str(found) if found is not None else None


def _refused_asks(good: Ask) -> list[Json]:
    high_s = good.entry[:32] + b"\xff" * 32 + good.entry[64:]
    cases = (
        ("a token, as it stands", Reason.BAD_FIELD, changed(good.encode(), {3: bytes(range(16))})),
        ("an entry that is empty", Reason.BAD_FIELD, changed(good.encode(), {3: b""})),
        ("an entry with a high s", Reason.BAD_SIGNATURE, replace(good, entry=high_s).encode()),
        ("a field too many", Reason.BAD_SHAPE, changed(good.encode(), {6: 0})),
    )
    return [refused(name, reason, data, lambda raw: Ask.decode(raw, NETWORK, PEER)) for name, reason, data in cases]


def _damaged(prefix: str, whole: str) -> tuple[str, ...]:
    # Where the last letter carries bits that are not used, another one there decodes to the same bytes.
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    last = letters[(letters.index(whole[-1]) + 1) % 32]
    return ("", prefix, whole[:-1], whole[:-1] + last, "x" + whole, whole + "a")


def _forged() -> SignedActFor:
    """A delegation that the principal did not sign."""
    return replace(delegation(), signature=delegation(serial=2).signature)


def _forged_change() -> SignedPrepared:
    """A change that is another one than its approver signed."""
    return replace(prepared(), signature=prepared(m=3).signature)


def _delegation_fields(signed: SignedActFor) -> Json:
    shown = named(signed.to_value(), dict(enumerate(("principal", "serial", "label", "rights", "signature"))))
    return {"network": text(signed.delegation.network), "agent": str(signed.delegation.agent), "delegation": shown}


def _value_of(prefix: str, word: str) -> cbor.Value:
    digits = word.removeprefix(prefix).upper()
    return cbor.decode(base64.b32decode(digits + "=" * (-len(digits) % 8)))


def _refused_greetings(good: bytes) -> list[Json]:
    cases = (
        ("kinds out of order", Reason.BAD_FIELD, changed(good, {2: [3, 2]})),
        ("a kind twice", Reason.BAD_FIELD, changed(good, {2: [2, 2]})),
        ("version 0", Reason.BAD_FIELD, changed(good, {1: 0})),
        ("a field too many", Reason.BAD_SHAPE, changed(good, {6: 0})),
    )
    return [refused(name, reason, data, Greeting.decode) for name, reason, data in cases]


def _refused_proofs(good: Proof) -> list[Json]:
    """For the peer and at the time above."""
    cases = (
        ("no credential", Reason.BAD_FIELD, cbor.encode({0: [], 1: []})),
        ("a credential for another peer", Reason.WRONG_SIGNER, Proof((carry(peer="12D3KooWOther"),)).encode()),
        ("one that has ended", Reason.CREDENTIAL_ENDED, Proof((carry(until_ms=NOW_MS),)).encode()),
        (
            "one for more than 90 days",
            Reason.BAD_LIFE,
            Proof((carry(until_ms=NOW_MS + CREDENTIAL_MS_MAX + 1),)).encode(),
        ),
        ("a delegation to an agent that is not shown", Reason.BAD_FIELD, Proof((carry(),), (delegation(),)).encode()),
    )

    def read(raw: bytes) -> None:
        Proof.decode(raw, NETWORK, PEER).check(NOW_MS)

    assert good.credentials
    return [refused(name, reason, data, read) for name, reason, data in cases]
