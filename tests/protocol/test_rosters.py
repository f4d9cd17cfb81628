"""Rosters as values: every number at the ends of its range, and nothing beyond what the format has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import ZERO_HASH, keccak256
from p2pmem_protocol.limits import (
    ITEM_BYTES_MAX,
    ROSTER_PART_BYTES_MAX,
    TTL_MS_MAX,
    VERIFIERS_MAX,
)
from p2pmem_protocol.names import Address
from p2pmem_protocol.rights import Rights
from p2pmem_protocol.roster import (
    HEADER_BYTES_MAX,
    Access,
    Body,
    KeptCertificate,
    Limits,
    Member,
    Quorum,
    Quotas,
    Role,
    Roster,
    SignedHeader,
    found,
)

from tests.protocol.world import (
    DAY,
    GRAPH,
    HOUR,
    NAME,
    NETWORK,
    T0,
    E,
    Peer,
    V,
    W,
    address,
    quorum,
    root_of,
    roster,
    share,
    signer,
    subject,
)

NO_QUORUM = quorum(0, ())
LIMITS = Limits(Access.GATED, NO_QUORUM)

LIST_MAX = 3


def numbered(count: int) -> list[Address]:
    return [Address(number.to_bytes(20)) for number in range(1, count + 1)]


def read(body: Body) -> Body:
    return body.parts.decode(GRAPH)


def refused(what: Callable[[], object]) -> Reason:
    with pytest.raises(RefusedError) as error:
        what()
    return error.value.reason


def test_a_member_may_have_all_roles_and_a_stranger_has_none() -> None:
    assert int(Role.all()) == 31
    body = Body((Member(address("alice"), Role.all(), "Alice", T0),), LIMITS)
    assert read(body) == body
    assert body.roles_of(address("alice")) == Role.all()
    assert body.roles_of(address("stranger")) == Role(0)


def test_a_quorum_has_so_many_verifiers_and_no_more() -> None:
    most = Quorum(GRAPH, 1, VERIFIERS_MAX, tuple(numbered(VERIFIERS_MAX)))
    assert Quorum.from_value(most.to_value(), GRAPH) == most
    with pytest.raises(MisuseError):
        Quorum(GRAPH, 1, 1, tuple(numbered(VERIFIERS_MAX + 1)))
    value: Any = [1, 1, [b"short"]]
    assert refused(lambda: Quorum.from_value(value, GRAPH)) is Reason.BAD_FIELD


def test_lives_are_from_one_millisecond_to_the_longest() -> None:
    for default, longest in ((1, 1), (1, TTL_MS_MAX), (TTL_MS_MAX, TTL_MS_MAX)):
        limits = replace(LIMITS, ttl_default_ms=default, ttl_max_ms=longest)
        assert Limits.decode(limits.encode(), GRAPH) == limits
    for default, longest in ((0, 1), (2, 1), (1, TTL_MS_MAX + 1)):
        with pytest.raises(MisuseError):
            replace(LIMITS, ttl_default_ms=default, ttl_max_ms=longest)


def test_limits_are_read_as_they_were_written() -> None:
    limits = Limits(
        Access.OPEN, quorum(1, ("v1",), 7), HOUR, DAY, 3, 31_337, address("contract"), Quotas(11, 12, 13, 14, 15)
    )
    assert Limits.decode(limits.encode(), GRAPH) == limits


def changed(data: bytes, change: dict[int, Any]) -> bytes:
    value: Any = cbor.decode(data, limit_bytes=ROSTER_PART_BYTES_MAX)
    return cbor.encode({**value, **change})


def test_a_field_that_the_format_does_not_have_is_refused() -> None:
    header = roster({"alice": W}).signed.encode()
    assert refused(lambda: SignedHeader.decode(changed(header, {17: 0}))) is Reason.BAD_SHAPE
    assert refused(lambda: Limits.decode(changed(LIMITS.encode(), {8: 0}), GRAPH)) is Reason.BAD_SHAPE


def test_more_bytes_than_a_header_or_a_part_may_have_are_not_read() -> None:
    assert refused(lambda: SignedHeader.decode(bytes(HEADER_BYTES_MAX + 1))) is Reason.OVERSIZE
    parts = Body((), LIMITS).parts
    for name in ("members", "limits", "kept", "certificates"):
        large = replace(parts, **{name: bytes(ROSTER_PART_BYTES_MAX + 1)})
        assert refused(lambda large=large: large.decode(GRAPH)) is Reason.OVERSIZE, name  # type: ignore[misc]


def test_lists_may_be_as_long_as_their_limits_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MEMBERS_MAX", "KEPT_IDS_MAX", "CERTIFICATES_KEPT_MAX"):
        monkeypatch.setattr(f"p2pmem_protocol.roster.{limit}", LIST_MAX)
    members = tuple(Member(each, W, "", T0) for each in numbered(LIST_MAX + 1))
    kept = tuple(number.to_bytes(32) for number in range(LIST_MAX + 1))
    certificate = KeptCertificate(subject("alice"), quorum(1, ("v1",)), (root_of("verdict"),))
    certificates = (certificate,) * (LIST_MAX + 1)
    full = Body(members[:-1], LIMITS, kept[:-1], certificates[:-1])
    assert read(full) == full
    for one_more in ({"members": members}, {"kept": kept}, {"certificates": certificates}):
        with pytest.raises(MisuseError):
            replace(full, **one_more)  # type: ignore[arg-type]
    long = replace(full.parts, certificates=cbor.encode([each.to_value() for each in certificates]))
    assert refused(lambda: long.decode(GRAPH)) is Reason.BAD_FIELD


def test_kept_ids_are_distinct_and_ascending() -> None:
    one, two = sorted((root_of("one"), root_of("two")))
    for kept in ((two, one), (one, one)):
        with pytest.raises(MisuseError):
            Body((), LIMITS, kept)


def test_the_quorums_of_kept_certificates_are_those_of_the_graph() -> None:
    old = quorum(2, ("v1", "v2"))
    certificate = KeptCertificate(subject("alice"), old, tuple(sorted((root_of("one"), root_of("two")))))
    body = read(Body((), LIMITS, certificates=(certificate,)))
    assert body.certificates == (certificate,)
    assert body.certificates[0].quorum.id == old.id


def test_a_header_names_both_the_quorum_and_its_serial() -> None:
    good = roster({"alice": W, "v1": V}, 1)
    for change in ({"quorum": ZERO_HASH}, {"quorum_serial": 2}):
        header = replace(good.header, **change)  # type: ignore[arg-type]
        other = header.sign(signer("root"))
        assert refused(lambda other=other: Roster.join(other, good.body.parts)) is Reason.BAD_FIELD  # type: ignore[misc]


def test_a_wallet_is_given_what_the_id_of_a_header_is_of() -> None:
    data: Any = roster({"alice": W, "v1": V}, 1).header.typed_data()
    assert data["primaryType"] == "Roster"
    assert data["message"]["version"] in (1, "1")
    assert data["message"]["graph"] in (GRAPH, "0x" + GRAPH.hex())


def test_a_graph_is_founded_with_all_verifiers_in_its_quorum() -> None:
    members = [Member(address(name), roles, name, T0) for name, roles in (("v2", V), ("alice", W), ("v1", V), ("e", E))]
    limits = Limits(Access.OPEN, NO_QUORUM, HOUR, DAY, 1, 5, address("contract"), Quotas(live_items=9))
    first = found(NAME, NETWORK, owner=address("alice"), members=members, m=2, limits=limits, signer=signer("root"))
    assert first.quorum == quorum(2, ("v1", "v2"))
    assert first.body.limits == replace(limits, quorum=first.quorum)
    assert set(first.body.members) == set(members)
    it = first.header
    assert (it.version, it.term, it.parent, it.parent_term) == (1, 1, ZERO_HASH, 0)
    assert (it.name, it.network, it.owner, it.signer) == (NAME, NETWORK, address("alice"), address("root"))
    first.signed.check()
    assert Roster.join(SignedHeader.decode(first.signed.encode()), first.body.parts) == first


def test_a_graph_may_be_founded_without_a_quorum() -> None:
    members = [Member(address("v1"), V, "", T0)]
    first = found(NAME, NETWORK, owner=address("root"), members=members, m=0, signer=signer("root"))
    assert first.quorum.is_none
    assert first.body.limits == LIMITS


def test_rights_know_every_kept_certificate_of_a_version() -> None:
    old, new = quorum(1, ("v1",), 1), quorum(1, ("v2",), 2)
    two = tuple(KeptCertificate(subject("alice"), each, (keccak256(each.id),)) for each in (old, new))
    other = KeptCertificate(subject("bob"), old, (root_of("verdict"),))
    rights = Rights(roster({"alice": W}, certificates=(*two, other)), named=(old.id, new.id))
    assert rights.certificates == {subject("alice"): two, subject("bob"): (other,)}


def test_content_of_just_the_size_that_a_roster_allows_may_be_said() -> None:
    item = share("alice", size=100)
    for most, reason in ((100, None), (99, Reason.OVER_QUOTA)):
        peer = Peer(roster({"alice": W}, quotas=Quotas(content_bytes=most)))
        assert peer.give(item) is reason


def test_a_part_may_be_longer_than_an_envelope() -> None:
    kept = tuple(number.to_bytes(32) for number in range(2_500))
    members = tuple(Member(each, W, "a label of some length, as people give", T0) for each in numbered(1_000))
    body = Body(members, LIMITS, kept)
    assert min(len(body.parts.kept), len(body.parts.members)) > ITEM_BYTES_MAX
    assert read(body) == body


def test_roles_have_these_numbers_and_limits_these_defaults() -> None:
    assert [(role.name, int(role)) for role in Role] == [
        ("READER", 1),
        ("WRITER", 2),
        ("ENDORSER", 4),
        ("VERIFIER", 8),
        ("APPROVER", 16),
    ]
    assert (LIMITS.acks_min, LIMITS.chain) == (0, 0)
    assert HEADER_BYTES_MAX == 1_024
