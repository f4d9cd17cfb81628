"""Rosters: who may do what in a context graph, as signed values. Which roster is the head is told in `heads`.

A roster is a signed *header* of hashes and four *parts* that the hashes name: members, limits, kept ids and kept
certificates. Its id is the header's digest. Headers are kept for ever and are small; parts are needed for the head only
(rule H5). The header says in itself whether it is a *root act*: then the term of its parent is below its own, it is
signed by the creator of the graph, and it stands alone. Every other header has the term of its parent and is signed by
the parent's owner (rule H2).

The *quorum id* is keccak256(abi.encode(graph, serial, M, verifiers)), verifiers ascending. A verdict binds to it, not
to a roster version, so that adding a reader breaks nothing. A graph without a quorum has the zero id and M = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag, unique
from functools import cached_property
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError, counted, lasting
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import ZERO_HASH, keccak256
from p2pmem_protocol.keys import SIGNATURE_BYTES, Signer, check_signed_by
from p2pmem_protocol.limits import (
    CERTIFICATES_KEPT_MAX,
    CONTENT_BYTES_MAX,
    KEPT_IDS_MAX,
    LABEL_CHARS_MAX,
    MEMBERS_MAX,
    QUOTA_CUTS,
    QUOTA_DURABLE_ITEMS,
    QUOTA_LIVE_BYTES,
    QUOTA_LIVE_ITEMS,
    ROSTER_PART_BYTES_MAX,
    TIME_MS_MAX,
    TTL_DEFAULT_MS,
    TTL_MS_MAX,
    UINT32_MAX,
    UINT64_MAX,
    VERIFIERS_MAX,
)
from p2pmem_protocol.names import (
    ADDRESS_BYTES,
    ZERO_ADDRESS,
    Address,
    GraphId,
    GraphName,
    NetworkId,
    VersionKey,
    check_slug,
)

FORMAT: Final = 1
HEADER_BYTES_MAX: Final = 1_024


class Role(IntFlag):
    """What a listed member may do. Everybody who is listed at all may read."""

    READER = 1
    WRITER = 2
    ENDORSER = 4
    VERIFIER = 8
    APPROVER = 16

    @classmethod
    def all(cls) -> Role:
        return cls.READER | cls.WRITER | cls.ENDORSER | cls.VERIFIER | cls.APPROVER

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(str(role.name).lower() for role in Role if role in self)


@unique
class Access(IntEnum):
    """GATED: only members read. OPEN: anyone may read; writing, endorsing and verifying are listed all the same."""

    GATED = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class Member:
    """One agent, its roles, a label for people, and since when it is listed."""

    address: Address
    roles: Role
    label: str
    since_ms: int

    def to_value(self) -> list[Value]:
        return [bytes(self.address), int(self.roles), self.label, self.since_ms]

    @classmethod
    def from_value(cls, value: Value) -> Member:
        reader = Reader.of_list(value, 4, "a member")
        return cls(
            reader.address(0),
            Role(reader.uint(1, int(Role.all()), 1)),
            reader.text(2, LABEL_CHARS_MAX),
            reader.uint(3, TIME_MS_MAX),
        )


@dataclass(frozen=True)
class Quorum:
    """M of these verifiers make a version ConsensusVerified. `serial` rises with each change of M or of them."""

    graph: GraphId
    serial: int
    m: int
    verifiers: tuple[Address, ...]

    def __post_init__(self) -> None:
        if list(self.verifiers) != sorted(set(self.verifiers)):
            raise MisuseError("verifiers of a quorum are distinct and in ascending order")
        if len(self.verifiers) > VERIFIERS_MAX:
            raise MisuseError(f"a quorum has at most {VERIFIERS_MAX} verifiers, not {len(self.verifiers)}")
        if not (self.m == 0 and not self.verifiers) and not 1 <= self.m <= len(self.verifiers):
            raise MisuseError(
                f"M = {self.m} of {counted(len(self.verifiers), 'verifier')}: M is from 1 to their number"
            )

    @property
    def is_none(self) -> bool:
        return self.m == 0

    @cached_property
    def id(self) -> bytes:
        """keccak256(abi.encode(bytes32 graph, uint32 serial, uint16 m, address[] verifiers)), or zero for none."""
        if self.is_none:
            return ZERO_HASH
        words = [self.graph, _word(self.serial), _word(self.m), _word(4 * 32), _word(len(self.verifiers))]
        words += [bytes(12) + verifier for verifier in self.verifiers]
        return keccak256(b"".join(words))

    def to_value(self) -> list[Value]:
        return [self.serial, self.m, [bytes(verifier) for verifier in self.verifiers]]

    @classmethod
    def from_value(cls, value: Value, graph: GraphId) -> Quorum:
        reader = Reader.of_list(value, 3, "a quorum")
        serial, m = reader.uint(0, UINT32_MAX), reader.uint(1, VERIFIERS_MAX)
        listed = reader.items(2, VERIFIERS_MAX)
        verifiers = tuple(Address(raw) for raw in listed if isinstance(raw, bytes) and len(raw) == ADDRESS_BYTES)
        if len(verifiers) != len(listed):
            raise RefusedError(Reason.BAD_FIELD, "a verifier of a quorum is not an address")
        try:
            return cls(graph, serial, m, verifiers)
        except MisuseError as error:
            raise RefusedError(Reason.BAD_FIELD, str(error)) from None


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one listed member, with all who act for it, may have in the set (rules Q1, Q2)."""

    live_bytes: int = QUOTA_LIVE_BYTES
    live_items: int = QUOTA_LIVE_ITEMS
    durable_items: int = QUOTA_DURABLE_ITEMS
    content_bytes: int = CONTENT_BYTES_MAX
    cuts: int = QUOTA_CUTS


@dataclass(frozen=True)
class Limits:
    """The part of a roster that says how the graph works."""

    access: Access
    quorum: Quorum
    ttl_default_ms: int = TTL_DEFAULT_MS
    ttl_max_ms: int = TTL_MS_MAX
    acks_min: int = 0
    chain: int = 0
    contract: Address = ZERO_ADDRESS
    quotas: Quotas = Quotas()

    def __post_init__(self) -> None:
        if not 0 < self.ttl_default_ms <= self.ttl_max_ms <= TTL_MS_MAX:
            raise MisuseError(
                f"a default life of {lasting(self.ttl_default_ms)} and a longest of {lasting(self.ttl_max_ms)}: "
                f"the default is above 0 and not over the longest, and that is {lasting(TTL_MS_MAX)} at most"
            )

    def encode(self) -> bytes:
        it = self.quotas
        quotas: list[Value] = [it.live_bytes, it.live_items, it.durable_items, it.content_bytes, it.cuts]
        return cbor.encode(
            {
                0: int(self.access),
                1: self.quorum.to_value(),
                2: self.ttl_default_ms,
                3: self.ttl_max_ms,
                4: self.acks_min,
                5: self.chain,
                6: bytes(self.contract),
                7: quotas,
            }
        )

    @classmethod
    def decode(cls, data: bytes, graph: GraphId) -> Limits:
        reader = Reader(cbor.decode(data, limit_bytes=ROSTER_PART_BYTES_MAX), "the limits of a roster")
        access = Access(reader.uint(0, 2, 1))
        quorum = Quorum.from_value(reader.nested(1), graph)
        ttl_default_ms, ttl_max_ms = reader.uint(2, TTL_MS_MAX, 1), reader.uint(3, TTL_MS_MAX, 1)
        acks_min = reader.uint(4, MEMBERS_MAX)
        chain, contract = reader.uint(5, UINT64_MAX), reader.address(6)
        counts = Reader.of_list(reader.nested(7), 5, "the quotas of a roster")
        quotas = Quotas(
            live_bytes=counts.uint(0, UINT64_MAX),
            live_items=counts.uint(1, UINT64_MAX),
            durable_items=counts.uint(2, UINT64_MAX),
            content_bytes=counts.uint(3, CONTENT_BYTES_MAX),
            cuts=counts.uint(4, UINT64_MAX),
        )
        reader.end()
        if ttl_default_ms > ttl_max_ms:
            raise RefusedError(Reason.BAD_FIELD, "the default life is longer than the longest")
        return cls(access, quorum, ttl_default_ms, ttl_max_ms, acks_min, chain, contract, quotas)


@dataclass(frozen=True)
class KeptCertificate:
    """A complete certificate under an earlier quorum that stays (rule K3)."""

    subject: VersionKey
    quorum: Quorum
    verdicts: tuple[bytes, ...]

    def to_value(self) -> list[Value]:
        return [*self.subject.fields, self.quorum.to_value(), list(self.verdicts)]

    @classmethod
    def from_value(cls, value: Value, graph: GraphId) -> KeptCertificate:
        reader = Reader.of_list(value, 7, "a kept certificate")
        subject = reader.version(0)
        quorum = Quorum.from_value(reader.nested(5), graph)
        verdicts = reader.sorted_hashes(6, VERIFIERS_MAX)
        if quorum.is_none or len(verdicts) != quorum.m:
            raise RefusedError(Reason.BAD_FIELD, f"a kept certificate lists {quorum.m} verdicts, not {len(verdicts)}")
        return cls(subject, quorum, verdicts)


@dataclass(frozen=True)
class Body:
    """The four parts of a roster."""

    members: tuple[Member, ...]
    limits: Limits
    kept: tuple[bytes, ...] = ()
    certificates: tuple[KeptCertificate, ...] = ()

    def __post_init__(self) -> None:
        addresses = [member.address for member in self.members]
        if addresses != sorted(set(addresses)):
            raise MisuseError("members of a roster are distinct and in ascending order of address")
        if len(addresses) > MEMBERS_MAX:
            raise MisuseError(f"a graph has at most {MEMBERS_MAX} members, not {len(addresses)}")
        if list(self.kept) != sorted(set(self.kept)) or len(self.kept) > KEPT_IDS_MAX:
            raise MisuseError(f"at most {KEPT_IDS_MAX} kept ids, distinct and in ascending order")
        if len(self.certificates) > CERTIFICATES_KEPT_MAX:
            raise MisuseError(f"at most {CERTIFICATES_KEPT_MAX} certificates are kept")
        unlisted = set(self.limits.quorum.verifiers) - {m.address for m in self.members if Role.VERIFIER in m.roles}
        if unlisted:
            raise MisuseError(f"{min(unlisted)} is in the quorum but not listed as a verifier")

    @cached_property
    def kept_ids(self) -> frozenset[bytes]:
        return frozenset(self.kept)

    @cached_property
    def by_address(self) -> dict[Address, Member]:
        return {member.address: member for member in self.members}

    def roles_of(self, agent: Address) -> Role:
        """No role at all for who is not listed."""
        member = self.by_address.get(agent)
        return member.roles if member else Role(0)

    @cached_property
    def parts(self) -> Parts:
        return Parts(
            members=cbor.encode([member.to_value() for member in self.members]),
            limits=self.limits.encode(),
            kept=cbor.encode(list(self.kept)),
            certificates=cbor.encode([certificate.to_value() for certificate in self.certificates]),
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts as bytes: what the header's hashes name and what travels."""

    members: bytes
    limits: bytes
    kept: bytes
    certificates: bytes

    @property
    def all(self) -> tuple[bytes, bytes, bytes, bytes]:
        return (self.members, self.limits, self.kept, self.certificates)

    @property
    def hashes(self) -> tuple[bytes, bytes, bytes, bytes]:
        members, limits, kept, certificates = (keccak256(part) for part in self.all)
        return (members, limits, kept, certificates)

    def decode(self, graph: GraphId) -> Body:
        """Raises `RefusedError` when a part is not in its one form, or the parts do not fit each other."""
        members = _decode_list(self.members, "members")
        kept = Reader({0: _decode_list(self.kept, "kept ids")}, "kept ids").sorted_hashes(0, KEPT_IDS_MAX)
        certificates = _decode_list(self.certificates, "kept certificates")
        try:
            return Body(
                members=tuple(Member.from_value(value) for value in members[: MEMBERS_MAX + 1]),
                limits=Limits.decode(self.limits, graph),
                kept=kept,
                certificates=tuple(
                    KeptCertificate.from_value(value, graph) for value in certificates[: CERTIFICATES_KEPT_MAX + 1]
                ),
            )
        except MisuseError as error:
            raise RefusedError(Reason.BAD_FIELD, str(error)) from None


@dataclass(frozen=True)
class Header:
    """What the owner or the root signs. `parent` is zero for the first roster of a graph."""

    network: NetworkId
    name: GraphName
    version: int
    term: int
    parent: bytes
    parent_term: int
    owner: Address
    quorum: bytes
    quorum_serial: int
    members: bytes
    limits: bytes
    kept: bytes
    certificates: bytes
    signer: Address

    @property
    def graph(self) -> GraphId:
        return self.name.id

    @property
    def is_root_act(self) -> bool:
        return self.term > self.parent_term

    @property
    def part_hashes(self) -> tuple[bytes, bytes, bytes, bytes]:
        return (self.members, self.limits, self.kept, self.certificates)

    def _values(self) -> dict[str, FieldValue]:
        return {
            "graph": self.graph,
            "version": self.version,
            "term": self.term,
            "parent": self.parent,
            "parentTerm": self.parent_term,
            "owner": self.owner,
            "quorum": self.quorum,
            "quorumSerial": self.quorum_serial,
            "members": self.members,
            "limits": self.limits,
            "kept": self.kept,
            "certificates": self.certificates,
            "signer": self.signer,
        }

    @cached_property
    def id(self) -> bytes:
        return digest(Struct.ROSTER, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.ROSTER, self._values(), self.network)

    def sign(self, signer: Signer) -> SignedHeader:
        if signer.address != self.signer:
            raise MisuseError(f"the roster names {self.signer} as signer; {signer.address} cannot sign it")
        return SignedHeader(self, signer.sign(self.id))


@dataclass(frozen=True)
class SignedHeader:
    """A header with its signature. What it may do depends on the headers before it: see `heads`."""

    header: Header
    signature: bytes

    @property
    def id(self) -> bytes:
        return self.header.id

    def check(self) -> None:
        """Raises `RefusedError` when the header contradicts itself or is not signed by who it names."""
        it = self.header
        if it.is_root_act and it.signer != it.name.creator:
            raise RefusedError(Reason.WRONG_SIGNER, "a root act is signed by the creator of the graph")
        if it.term < it.parent_term:
            raise RefusedError(Reason.BAD_FIELD, "the term of a roster is not below that of its parent")
        if (it.parent == ZERO_HASH) != (it.parent_term == 0) or (it.parent == ZERO_HASH and it.version != 1):
            raise RefusedError(Reason.BAD_FIELD, "only the first roster has no parent, and it is version 1 of a term")
        check_signed_by(it.signer, it.id, self.signature)

    def encode(self) -> bytes:
        it = self.header
        return cbor.encode(
            {
                0: FORMAT,
                1: it.network,
                2: bytes(it.name.creator),
                3: it.name.slug,
                4: it.version,
                5: it.term,
                6: it.parent,
                7: it.parent_term,
                8: bytes(it.owner),
                9: it.quorum,
                10: it.quorum_serial,
                11: it.members,
                12: it.limits,
                13: it.kept,
                14: it.certificates,
                15: bytes(it.signer),
                16: self.signature,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> SignedHeader:
        reader = Reader(cbor.decode(data, limit_bytes=HEADER_BYTES_MAX), "a roster header")
        if reader.uint(0, UINT32_MAX) != FORMAT:
            raise RefusedError(Reason.BAD_VERSION, "a format of roster that is not known here")
        header = Header(
            network=NetworkId(reader.hash(1)),
            name=GraphName(reader.address(2), reader.name(3, check_slug)),
            version=reader.uint(4, UINT32_MAX, 1),
            term=reader.uint(5, UINT32_MAX, 1),
            parent=reader.hash(6),
            parent_term=reader.uint(7, UINT32_MAX),
            owner=reader.address(8),
            quorum=reader.hash(9),
            quorum_serial=reader.uint(10, UINT32_MAX),
            members=reader.hash(11),
            limits=reader.hash(12),
            kept=reader.hash(13),
            certificates=reader.hash(14),
            signer=reader.address(15),
        )
        signature = reader.raw(16, SIGNATURE_BYTES, SIGNATURE_BYTES)
        reader.end()
        return cls(header, signature)


@dataclass(frozen=True)
class Roster:
    """A header together with the body that it names."""

    signed: SignedHeader
    body: Body

    @classmethod
    def join(cls, signed: SignedHeader, parts: Parts) -> Roster:
        """Raises `RefusedError` unless `parts` are what the header names."""
        header = signed.header
        if parts.hashes != header.part_hashes:
            raise RefusedError(Reason.CONTENT_HASH_MISMATCH, "a part of a roster is not what its header names")
        body = parts.decode(header.graph)
        quorum = body.limits.quorum
        if quorum.id != header.quorum or quorum.serial != header.quorum_serial:
            raise RefusedError(Reason.BAD_FIELD, "the quorum of a roster is not what its header names")
        return cls(signed, body)

    @property
    def header(self) -> Header:
        return self.signed.header

    @property
    def id(self) -> bytes:
        return self.signed.id

    @property
    def graph(self) -> GraphId:
        return self.header.graph

    @property
    def quorum(self) -> Quorum:
        return self.body.limits.quorum


def found(
    name: GraphName,
    network: NetworkId,
    *,
    owner: Address,
    members: Sequence[Member],
    m: int,
    limits: Limits | None = None,
    signer: Signer,
) -> Roster:
    """The first roster of a graph, signed by its creator. All members with the verifier's role are in the quorum.

    `limits` gives everything but the quorum, which follows from `m` and the members; M = 0 means no quorum.
    """
    verifiers = tuple(sorted(member.address for member in members if Role.VERIFIER in member.roles)) if m else ()
    quorum = Quorum(name.id, 1, m, verifiers)
    base = limits or Limits(Access.GATED, quorum)
    body = Body(
        tuple(sorted(members, key=lambda member: member.address)),
        Limits(
            base.access,
            quorum,
            base.ttl_default_ms,
            base.ttl_max_ms,
            base.acks_min,
            base.chain,
            base.contract,
            base.quotas,
        ),
    )
    return sign_roster(
        name, network, version=1, term=1, parent=ZERO_HASH, parent_term=0, owner=owner, body=body, signer=signer
    )


def sign_roster(
    name: GraphName,
    network: NetworkId,
    *,
    version: int,
    term: int,
    parent: bytes,
    parent_term: int,
    owner: Address,
    body: Body,
    signer: Signer,
) -> Roster:
    """Make and sign the header that names `body`."""
    members, limits, kept, certificates = body.parts.hashes
    header = Header(
        network=network,
        name=name,
        version=version,
        term=term,
        parent=parent,
        parent_term=parent_term,
        owner=owner,
        quorum=body.limits.quorum.id,
        quorum_serial=body.limits.quorum.serial,
        members=members,
        limits=limits,
        kept=kept,
        certificates=certificates,
        signer=signer.address,
    )
    return Roster(header.sign(signer), body)


def _decode_list(data: bytes, what: str) -> list[Value]:
    value = cbor.decode(data, limit_bytes=ROSTER_PART_BYTES_MAX)
    if not isinstance(value, list):
        raise RefusedError(Reason.BAD_SHAPE, f"the {what} of a roster are not a list")
    return value


def _word(number: int) -> bytes:
    return number.to_bytes(32)
