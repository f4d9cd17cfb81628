"""Vectors of rosters, their parts, and of which roster is the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hashing import ZERO_HASH, keccak256
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.names import Address
from p2pmem_protocol.roster import (
    Access,
    Body,
    KeptCertificate,
    Limits,
    Member,
    Parts,
    Quorum,
    Role,
    Roster,
    SignedHeader,
    found,
    sign_roster,
)

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
    named,
    refused,
    shown,
    text,
    word,
)
from scripts.vectors.items import QUORUM, seal, verdict

HEADER: Final = dict(
    enumerate(
        (
            "format",
            "network",
            "creator",
            "slug",
            "version",
            "term",
            "parent",
            "parent_term",
            "owner",
            "quorum",
            "quorum_serial",
            "members",
            "limits",
            "kept",
            "certificates",
            "signer",
            "signature",
        )
    )
)
LIMITS: Final = dict(
    enumerate(("access", "quorum", "ttl_default", "ttl_max", "acks_min", "chain", "contract", "quotas"))
)

WRITER: Final = Role.READER | Role.WRITER
VERIFIER: Final = Role.READER | Role.VERIFIER
ROLES: Final = {
    "owner": Role.all() & ~Role.VERIFIER,
    "alice": WRITER | Role.ENDORSER,
    "bob": VERIFIER | Role.ENDORSER | Role.WRITER,
    "carol": VERIFIER,
    "dave": VERIFIER,
    "team": WRITER,
}


def members(roles: dict[str, Role] | None = None) -> tuple[Member, ...]:
    listed = [Member(address(name), role, name, NOW_MS) for name, role in (roles or ROLES).items()]
    return tuple(sorted(listed, key=lambda member: member.address))


def first(limits: Limits | None = None) -> Roster:
    """The first roster: term 1, signed by the root, M = 2 of bob, carol and dave."""
    return found(NAME, NETWORK, owner=address("owner"), members=members(), m=2, limits=limits, signer=key("root"))


def after(
    parent: Roster,
    body: Body | None = None,
    *,
    signer: str = "owner",
    term: int | None = None,
    version: int | None = None,
    owner: str = "owner",
) -> Roster:
    return sign_roster(
        NAME,
        NETWORK,
        version=version or parent.header.version + 1,
        term=term or parent.header.term,
        parent=parent.id,
        parent_term=parent.header.term,
        owner=address(owner),
        body=body or parent.body,
        signer=key(signer),
    )


def full_body() -> Body:
    """A body with something in every part, under another quorum than the first roster's."""
    verdicts = tuple(sorted(verdict(name, seal("alice").key).id for name in ("bob", "carol")))
    return Body(
        members=members(ROLES | {"erin": VERIFIER}),
        limits=Limits(
            Access.OPEN,
            Quorum(GRAPH, 2, 3, tuple(sorted(address(it) for it in ("bob", "carol", "dave", "erin")))),
            ttl_default_ms=DAY_MS,
            ttl_max_ms=10 * DAY_MS,
            acks_min=2,
            chain=31_337,
            contract=Address(bytes(19) + b"\x01"),
        ),
        kept=(bytes(31) + b"\x01", b"\xff" * 32),
        certificates=(KeptCertificate(seal("alice").key, QUORUM, verdicts),),
    )


def rosters() -> Json:
    one = first()
    lone, none = Quorum(GRAPH, 5, 1, (address("bob"),)), Quorum(GRAPH, 6, 0, ())
    return {
        "quorums": [
            {
                "serial": it.serial,
                "m": it.m,
                "verifiers": [str(each) for each in it.verifiers],
                "id": text(it.id),
            }
            for it in (QUORUM, full_body().limits.quorum, lone, none)
        ],
        "rosters": [_roster("the first", one), _roster("the next, with another quorum", after(one, full_body()))],
        "refused_headers": _refused_headers(one),
        "refused_parts": _refused_parts(),
    }


def _roster(name: str, roster: Roster) -> Json:
    parts = roster.body.parts
    assert Roster.join(SignedHeader.decode(roster.signed.encode()), parts) == roster
    limits = cbor.decode(parts.limits)
    return {
        "name": name,
        "header": text(roster.signed.encode()),
        "id": text(roster.id),
        "fields": named(cbor.decode(roster.signed.encode()), HEADER),
        "parts": {
            "members": _part(parts.members),
            "limits": _part(parts.limits) | {"fields": named(limits, LIMITS)},
            "kept": _part(parts.kept),
            "certificates": _part(parts.certificates),
        },
    }


def _part(data: bytes) -> Json:
    return {"bytes": text(data), "hash": text(keccak256(data)), "fields": shown(cbor.decode(data))}


def _refused_headers(one: Roster) -> list[Json]:
    data = one.signed.encode()
    by_owner = after(one, term=2, signer="owner")
    without_parent = replace(one.header, parent_term=1, term=2).sign(key("root"))
    version_two = replace(one.header, version=2).sign(key("root"))
    cases = (
        ("another format", Reason.BAD_VERSION, changed(data, {0: 2})),
        ("a slug that is not one", Reason.BAD_NAME, changed(data, {3: "Field"})),
        ("version 0", Reason.BAD_FIELD, changed(data, {4: 0})),
        ("no signature", Reason.BAD_SHAPE, changed(data, {}, without=(16,))),
        ("another owner", Reason.WRONG_SIGNER, changed(data, {8: bytes(address("bob"))})),
        ("a root act that the owner signed", Reason.WRONG_SIGNER, by_owner.signed.encode()),
        ("a term below that of the parent", Reason.BAD_FIELD, changed(data, {7: 2, 6: b"\x01" * 32})),
        ("no parent, but its term", Reason.BAD_FIELD, without_parent.encode()),
        ("a first roster of version 2", Reason.BAD_FIELD, version_two.encode()),
    )
    return [refused(name, reason, it, lambda raw: SignedHeader.decode(raw).check()) for name, reason, it in cases]


def _refused_parts() -> list[Json]:
    """Each names the part that it stands in for; the others are those of the second roster."""
    parts = full_body().parts
    listed = cbor.decode(parts.members)
    limits = parts.limits
    assert isinstance(listed, list)
    member = listed[0]
    assert isinstance(member, list)
    quorum: list[Value] = [1, 1, [bytes(address("bob"))]]

    def member_with(position: int, value: Value) -> bytes:
        other = [value if at == position else it for at, it in enumerate(member)]
        return cbor.encode([other, *listed[1:]])

    cases: tuple[tuple[str, str, Reason, bytes], ...] = (
        ("members", "members out of order", Reason.BAD_FIELD, cbor.encode(listed[::-1])),
        ("members", "a member twice", Reason.BAD_FIELD, cbor.encode([listed[0], *listed])),
        ("members", "a member without a role", Reason.BAD_FIELD, member_with(1, 0)),
        ("members", "an unknown role", Reason.BAD_FIELD, member_with(1, 32)),
        ("members", "true for a role", Reason.BAD_FIELD, member_with(1, True)),
        ("members", "a label of 65 characters", Reason.BAD_FIELD, member_with(2, "x" * 65)),
        ("members", "a verifier of the quorum who is not listed", Reason.BAD_FIELD, cbor.encode([])),
        ("members", "a map", Reason.BAD_SHAPE, b"\xa0"),
        ("limits", "an access that is none", Reason.BAD_FIELD, changed(limits, {0: 3})),
        ("limits", "M of 0 with verifiers", Reason.BAD_FIELD, changed(limits, {1: [1, 0, quorum[2]]})),
        ("limits", "M above the number of verifiers", Reason.BAD_FIELD, changed(limits, {1: [1, 2, quorum[2]]})),
        ("limits", "a default life above the longest", Reason.BAD_FIELD, changed(limits, {2: 10 * DAY_MS + 1})),
        ("limits", "a life of 31 days", Reason.BAD_FIELD, changed(limits, {3: 31 * DAY_MS})),
        ("limits", "four quotas", Reason.BAD_SHAPE, changed(limits, {7: [1, 1, 1, 1]})),
        ("kept", "kept ids out of order", Reason.BAD_FIELD, cbor.encode([b"\x02" * 32, b"\x01" * 32])),
        ("kept", "a kept id of 31 bytes", Reason.BAD_FIELD, cbor.encode([bytes(31)])),
        (
            "certificates",
            "fewer verdicts than M",
            Reason.BAD_FIELD,
            _certificate([bytes(32)]),
        ),
        ("certificates", "verdicts out of order", Reason.BAD_FIELD, _certificate([b"\x02" * 32, b"\x01" * 32])),
    )
    entries: list[Json] = []
    for part, name, reason, data in cases:

        def read(raw: bytes, part: str = part) -> None:
            replace(parts, **{part: raw}).decode(GRAPH)

        entries.append({"part": part} | refused(name, reason, data, read))
    assert Parts.decode(parts, GRAPH) == full_body()
    return entries


def _certificate(verdicts: list[Value]) -> bytes:
    about = seal("alice").key
    return cbor.encode([[*about.fields, QUORUM.to_value(), verdicts]])


def heads() -> Json:
    one = first()
    two = after(one)
    left = after(two)
    right = after(two, full_body())
    left_child = after(left)
    repair = after(two, term=2, signer="root", owner="alice")
    repair_child = after(repair, signer="alice", owner="alice")
    other_repair = after(right, term=2, signer="root")
    fresh = found(NAME, NETWORK, owner=address("bob"), members=members(), m=0, signer=key("root"))
    named_headers = {
        "one": one,
        "two": two,
        "left": left,
        "right": right,
        "left_child": left_child,
        "repair": repair,
        "repair_child": repair_child,
        "other_repair": other_repair,
        "fresh": fresh,
    }
    cases = (
        ("nothing is held", ()),
        ("the first", ("one",)),
        ("a chain", ("one", "two", "left", "left_child")),
        ("a fork: the parent is the head", ("one", "two", "left", "right")),
        ("a fork stays one when a branch grows", ("one", "two", "left", "right", "left_child")),
        ("a root act of the next term ends the fork", ("one", "two", "left", "right", "repair")),
        ("and its children follow it", ("one", "two", "left", "right", "repair", "repair_child")),
        ("a root act stands alone", ("repair",)),
        ("two root acts of one term: their nearest common ancestor", ("one", "two", "right", "repair", "other_repair")),
        ("two root acts whose common ancestor is not held", ("right", "repair", "other_repair")),
        ("two first rosters", ("one", "two", "fresh")),
        ("a later term beats two first rosters", ("one", "two", "fresh", "repair")),
    )
    return {
        "headers": {name: text(it.signed.encode()) for name, it in named_headers.items()},
        "ids": {name: text(it.id) for name, it in named_headers.items()},
        "cases": [_case(name, [named_headers[it] for it in held], held) for name, held in cases],
        "cannot_follow": _cannot_follow(one, two),
    }


def _case(name: str, held: Sequence[Roster], names: Sequence[str]) -> Json:
    states = []
    for order in list(permutations(held))[:24]:
        chain = HeadChain(GRAPH, NETWORK)
        chain.add_all(it.signed for it in order)
        states.append(chain.head())
    state = states[0]
    assert all(it == state for it in states)
    return {
        "name": name,
        "held": list(names),
        "head": text(state.header.id) if state.header else None,
        "forked": state.forked,
        "branches": [text(it) for it in state.branches],
    }


def _cannot_follow(one: Roster, two: Roster) -> list[Json]:
    """Signed right, but not children of the header `one` (rule H2)."""
    quorum_kept = replace(two.header, quorum_serial=2)
    quorum_changed = replace(two.header, quorum=b"\x01" * 32)
    wrong = (
        ("version + 2", replace(two.header, version=3), "owner", Reason.BAD_FIELD),
        ("another signer than the owner", replace(two.header, signer=address("alice")), "alice", Reason.WRONG_SIGNER),
        ("another owner", replace(two.header, owner=address("alice")), "owner", Reason.WRONG_SIGNER),
        ("a serial that rises for nothing", quorum_kept, "owner", Reason.BAD_FIELD),
        ("another quorum under the old serial", quorum_changed, "owner", Reason.BAD_FIELD),
        ("a parent that is not held", replace(two.header, parent=b"\x01" * 32), "owner", Reason.PARENT_NOT_HELD),
    )
    entries = []
    for name, header, signer, reason in wrong:
        signed = header.sign(key(signer))
        chain = HeadChain(GRAPH, NETWORK)
        chain.add(one.signed)
        try:
            chain.add(signed)
        except RefusedError as error:
            if error.reason is not reason:
                raise AssertionError(f"{name} is refused for another reason: {error}") from error
        else:
            raise AssertionError(f"{name} is not refused")
        entries.append({"name": name, "header": text(signed.encode()), "reason": word(reason), "code": int(reason)})
    assert one.header.parent == ZERO_HASH
    return entries
