"""A small world for tests of the set and the view: keys by name, rosters and signed things in few words."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, lru_cache

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
from p2pmem_protocol.credential import ActFor, Right, SignedActFor
from p2pmem_protocol.envelope import Envelope, Item, Unsigned
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Method, Verdict
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.hashing import ZERO_HASH, keccak256
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import ZERO_ADDRESS, Address, GraphName, VersionKey, network_id
from p2pmem_protocol.roster import (
    Access,
    Body as RosterBody,
    KeptCertificate,
    Limits,
    Member,
    Quorum,
    Quotas,
    Role,
    Roster,
    sign_roster,
)
from p2pmem_protocol.seal import NO_PREVIOUS, Seal

NETWORK = network_id("test")
T0 = 1_800_000_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
W = Role.READER | Role.WRITER
E = Role.READER | Role.ENDORSER
V = Role.READER | Role.VERIFIER


@cache
def key(name: str) -> Key:
    return Key(keccak256(b"test key of " + name.encode()))


def address(name: str) -> Address:
    return key(name).address


class CachedSigner:
    """Signs each digest once: histories repeat the same few statements."""

    def __init__(self, name: str) -> None:
        self._key = key(name)
        self.address = self._key.address

    def sign(self, digest: bytes) -> bytes:
        return _signature(self._key, digest)


@lru_cache(maxsize=200_000)
def _signature(signing: Key, digest: bytes) -> bytes:
    return signing.sign(digest)


@cache
def signer(name: str) -> CachedSigner:
    return CachedSigner(name)


ROOT = "root"
NAME = GraphName(address(ROOT), "things")
GRAPH = NAME.id


def root_of(text: str) -> bytes:
    return keccak256(b"root " + text.encode())


def subject(author: str, version: int = 1, root: str = "a", name: str = "asset", subgraph: str = "") -> VersionKey:
    return seal(author, version, root, name, subgraph=subgraph).key


@lru_cache(maxsize=10_000)
def seal(author: str, version: int, root: str, name: str, previous: bytes | None = None, subgraph: str = "") -> Seal:
    prior = NO_PREVIOUS if version == 1 else previous or root_of("before")
    return Seal(NETWORK, GRAPH, subgraph, name, version, root_of(root), 1, prior, address(author))


def quorum(m: int, verifiers: tuple[str, ...], serial: int = 1) -> Quorum:
    return Quorum(GRAPH, serial, m, tuple(sorted(address(name) for name in verifiers)) if m else ())


def roster(
    members: dict[str, Role],
    m: int = 0,
    *,
    parent: Roster | None = None,
    owner: str = "owner",
    by: str | None = None,
    term: int | None = None,
    serial: int | None = None,
    verifiers: tuple[str, ...] | None = None,
    quotas: Quotas | None = None,
    ttl_max_ms: int = 30 * DAY,
    kept: tuple[bytes, ...] = (),
    certificates: tuple[KeptCertificate, ...] = (),
    access: Access = Access.GATED,
) -> Roster:
    """A roster after `parent`, or a first one. `term` makes it a root act."""
    if verifiers is None:
        verifiers = tuple(name for name, roles in members.items() if Role.VERIFIER in roles)
    if serial is None:
        serial = 1 if parent is None else parent.quorum.serial
        if parent is not None and quorum(m, verifiers, serial) != parent.quorum:
            serial += 1
    body = RosterBody(
        members=tuple(
            sorted(
                (Member(address(name), roles, name, T0) for name, roles in members.items()), key=lambda it: it.address
            )
        ),
        limits=Limits(
            access, quorum(m, verifiers, serial), min(7 * DAY, ttl_max_ms), ttl_max_ms, quotas=quotas or Quotas()
        ),
        kept=tuple(sorted(set(kept))),
        certificates=certificates,
    )
    is_root_act = parent is None or term is not None
    return sign_roster(
        NAME,
        NETWORK,
        version=1 if parent is None else parent.header.version + 1,
        term=term or (parent.header.term if parent else 1),
        parent=parent.id if parent else ZERO_HASH,
        parent_term=parent.header.term if parent else 0,
        owner=address(owner),
        body=body,
        signer=signer(by or (ROOT if is_root_act else owner)),
    )


def act_for(principal: str, agent: str, serial: int = 1, rights: Right | None = None) -> SignedActFor:
    rights = Right.all() if rights is None else rights
    return ActFor(NETWORK, address(principal), address(agent), serial, "", rights).sign(signer(principal))


def envelope(
    kind: Kind, author: str, body: Body, issued: int, expires: int, delegation: SignedActFor | None = None
) -> Envelope:
    unsigned = Unsigned(NETWORK, GRAPH, kind, address(author), delegation, 1, issued, expires, body)
    return unsigned.sign(signer(author))


def sealed(
    author: str,
    version: int,
    root: str,
    name: str,
    size: int = 10,
    previous: bytes | None = None,
    subgraph: str = "",
) -> Sealed:
    content = ContentRef.of((root.encode() * size)[:size])
    return Sealed(seal(author, version, root, name, previous, subgraph).sign(signer(author)), content)


def share(
    author: str,
    version: int = 1,
    root: str = "a",
    *,
    name: str = "asset",
    issued: int = T0,
    life: int = DAY,
    act: SignedActFor | None = None,
    size: int = 10,
    previous: bytes | None = None,
    subgraph: str = "",
) -> Envelope:
    body = sealed(author, version, root, name, size, previous, subgraph)
    return envelope(Kind.SHARE, author, body, issued, issued + life, act)


def publish(
    author: str,
    version: int = 1,
    root: str = "a",
    *,
    name: str = "asset",
    issued: int = T0,
    act: SignedActFor | None = None,
    size: int = 10,
    subgraph: str = "",
) -> Envelope:
    body = sealed(author, version, root, name, size, subgraph=subgraph)
    return envelope(Kind.PUBLISH, author, body, issued, 0, act)


def retract(
    by: str,
    author: str | None = None,
    version: int = 1,
    *,
    name: str = "asset",
    mode: RetractMode = RetractMode.KEEP,
    successor: int | None = None,
    issued: int = T0,
    act: SignedActFor | None = None,
    shown: SignedActFor | None = None,
) -> Envelope:
    body = Retract(address(author or by), name, version, mode, successor, "", shown)
    return envelope(Kind.RETRACT, by, body, issued, 0, act)


def revoke(by: str, agent: str, serial: int = 1, kept: tuple[bytes, ...] = (), issued: int = T0) -> Envelope:
    return envelope(Kind.REVOKE, by, Revoke(address(agent), None, serial, tuple(sorted(kept))), issued, 0)


def propose(
    by: str, about: VersionKey, under: Quorum, *, issued: int = T0, life: int = DAY, act: SignedActFor | None = None
) -> Envelope:
    return envelope(Kind.PROPOSE, by, Propose(about, under.id), issued, issued + life, act)


def ack(by: str, root: str = "a", *, issued: int = T0, life: int = DAY) -> Envelope:
    return envelope(Kind.ACK, by, Ack(root_of(root)), issued, issued + life)


def anchor(by: str, *about: VersionKey, issued: int = T0) -> Envelope:
    assets = tuple(AnchoredAsset(each, ()) for each in about)
    body = Anchor(root_of("batch"), len(assets), 1, ZERO_ADDRESS, root_of("transaction"), 1, assets)
    return envelope(Kind.ANCHOR, by, body, issued, 0)


def endorse(by: str, about: VersionKey, decision: Endorse = Endorse.ENDORSE, reason: str = "") -> Evidence:
    return Evidence.sign(Endorsement(NETWORK, GRAPH, about, decision, reason, address(by)), signer(by))


def withdraw(by: str, about: VersionKey, reason: str = "") -> Evidence:
    return endorse(by, about, Endorse.WITHDRAW, reason)


def verdict(
    by: str,
    about: VersionKey,
    under: Quorum,
    decision: Decision = Decision.APPROVE,
    method: Method = Method.AUTO,
    reason: str = "",
) -> Evidence:
    statement = Verdict(NETWORK, GRAPH, under.id, about, decision, method, reason, address(by))
    return Evidence.sign(statement, signer(by))


def reject(by: str, about: VersionKey, under: Quorum, method: Method = Method.MANUAL, reason: str = "") -> Evidence:
    return verdict(by, about, under, Decision.REJECT, method, reason)


def certificate(about: VersionKey, under: Quorum, *verdicts: Evidence) -> KeptCertificate:
    return KeptCertificate(about, under, tuple(sorted(each.id for each in verdicts)))


@lru_cache(maxsize=200_000)
def size_of(item: Item) -> int:
    return len(item.encode())


class Peer:
    """A graph set with the sizes looked up, that turns refusals into reasons."""

    def __init__(self, head: Roster | None = None, t_ms: int = T0, *items: Item, named: Collection[bytes] = ()) -> None:
        self.set = GraphSet(GRAPH, NETWORK)
        self.named = frozenset(named)
        if head is not None:
            self.set.set_head(head, t_ms, named=named)
        for item in items:
            assert self.give(item, t_ms) is None, item

    def give(self, item: Item, t_ms: int = T0) -> Reason | None:
        """The reason of a refusal, or None when `item` was admitted."""
        try:
            self.admit(item, t_ms)
        except RefusedError as refused:
            return refused.reason
        return None

    def admit(self, item: Item, t_ms: int = T0) -> Changes:
        return self.set.admit(item, size_of(item), t_ms)

    def has(self, item: Item) -> bool:
        return item.id in self.set
