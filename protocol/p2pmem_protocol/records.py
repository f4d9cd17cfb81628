"""What the rules need to know of each thing in the set of a context graph, in few bytes.

A record is made from an envelope or a piece of evidence once its form is known to be right. It holds no content and no
signature: these stay in the ledger. The only fields that change are `state` and `since_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final

from p2pmem_protocol.bodies import Ack, Anchor, Propose, Retract, RetractMode, Revoke, Sealed
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import NEVER, Item
from p2pmem_protocol.errors import BugError
from p2pmem_protocol.evidence import Decision, Endorse, Evidence, Method, Verdict
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CONTENT_INLINE_BYTES_MAX
from p2pmem_protocol.names import Address, AssetKey, VersionKey
from p2pmem_protocol.seal import NO_PREVIOUS

FOREVER: Final = 2**53 - 1
"""Where things without an end stand in the order of a reconciliation; exact in a JavaScript number."""


@unique
class State(Enum):
    """Where a known thing stands. NEW, then one of the next four, then gone for one of four causes.

    IN         in the set
    CUT        aside: the head, or a revocation, gives it no right; comes back when a head change restores that
    OVER       aside: was pushed out of its author's quota by an older one; comes back when there is room
    LONE       aside: evidence whose subject is aside; comes back with it
    EXPIRED, ERASED, DISPLACED (by evidence of a lower id that means the same), FORGOTTEN (aside too long)
    """

    NEW = "new"
    IN = "in"
    CUT = "cut"
    OVER = "over"
    LONE = "lone"
    EXPIRED = "expired"
    ERASED = "erased"
    DISPLACED = "displaced"
    FORGOTTEN = "forgotten"

    @property
    def aside(self) -> bool:
        return self in _ASIDE

    @property
    def gone(self) -> bool:
        return self in _GONE


_ASIDE: Final = frozenset((State.CUT, State.OVER, State.LONE))
_GONE: Final = frozenset((State.EXPIRED, State.ERASED, State.DISPLACED, State.FORGOTTEN))


@dataclass(slots=True, eq=False)
class Record:
    """What all kinds share. `principal` is whose role and quota it uses; `serial` and `rights` are of the delegation
    that it shows, zero without one; `ends_at_ms` is `FOREVER` for what stays."""

    id: bytes
    kind: Kind
    author: Address
    principal: Address
    serial: int
    rights: Right
    issued_at_ms: int
    ends_at_ms: int
    charge_bytes: int
    state: State
    since_ms: int

    @property
    def delegated(self) -> bool:
        return self.serial != 0

    @property
    def order(self) -> tuple[int, bytes]:
        """The order in which a quota is filled (rule Q1)."""
        return (self.issued_at_ms, self.id)


@dataclass(slots=True, eq=False)
class SealedRecord(Record):
    """A share or a publish."""

    key: VersionKey
    subgraph: str
    leaves: int
    previous: bytes
    content_hash: bytes
    content_length: int
    content_is_other: bool = field(default=False, kw_only=True)
    """Said by who holds what stands under `content_hash`: it is not what was sealed. A seal names content by its root
    alone, so a signer can put any hash beside it."""

    @property
    def is_inline(self) -> bool:
        """Whether the content came beside it; otherwise it is attached. That is so by size alone."""
        return self.content_length <= CONTENT_INLINE_BYTES_MAX


@dataclass(slots=True, eq=False)
class RetractRecord(Record):
    """`as_principal`: signed by a principal that showed its delegation to the author of the words (rule V2)."""

    asset: AssetKey
    version: int
    mode: RetractMode
    successor: int | None
    as_principal: bool

    @property
    def of_own_words(self) -> bool:
        return self.author == self.asset.author

    @property
    def covers(self) -> Address | None:
        """Of its version, what was said for this principal; None: all of it, for whomever it was said (rule V2)."""
        return self.author if self.as_principal else None


@dataclass(slots=True, eq=False)
class RevokeRecord(Record):
    agent: Address | None
    peer: str | None
    revoked_serial: int
    kept: frozenset[bytes]


@dataclass(slots=True, eq=False)
class ProposeRecord(Record):
    subject: VersionKey
    quorum: bytes


@dataclass(slots=True, eq=False)
class AckRecord(Record):
    root: bytes


@dataclass(slots=True, eq=False)
class AnchorRecord(Record):
    batch_root: bytes
    chain: int
    contract: Address
    subjects: tuple[VersionKey, ...]


@dataclass(slots=True, eq=False)
class EvidenceRecord(Record):
    """An endorsement (quorum zero, no method) or a verdict. `author` and `principal` are the signer."""

    subject: VersionKey
    quorum: bytes
    decision: Endorse | Decision
    method: Method | None

    @property
    def slot(self) -> tuple[Kind, Address, bytes, int, int]:
        """Key and meaning: of each, the set holds the lowest id (rules E3, E4)."""
        return (self.kind, self.author, self.quorum, int(self.decision), int(self.method or 0))


def record_of(item: Item, encoded_size_bytes: int) -> Record:
    """The record of an envelope or of evidence. What it is charged is its size and that of content attached to it."""
    if isinstance(item, Evidence):
        return evidence_record(item)
    shown = item.delegation
    ends_at_ms = FOREVER if item.expires_at_ms == NEVER else item.expires_at_ms
    common = (
        item.id,
        item.kind,
        item.author,
        item.principal,
        shown.delegation.serial if shown else 0,
        shown.delegation.rights if shown else Right(0),
        item.issued_at_ms,
        ends_at_ms,
        encoded_size_bytes,
        State.NEW,
        0,
    )
    match item.body:
        case Sealed(signed, content):
            seal = signed.seal
            # Most versions are first ones: their 32 zero bytes are one object.
            previous = NO_PREVIOUS if seal.previous == NO_PREVIOUS else seal.previous
            sealed = SealedRecord(*common, seal.key, seal.subgraph, seal.leaves, previous, content.hash, content.length)
            if content.inline is None:
                sealed.charge_bytes += content.length
            return sealed
        case Retract() as it:
            asset = AssetKey(it.author, it.name)
            return RetractRecord(*common, asset, it.version, it.mode, it.successor, it.shown is not None)
        case Revoke(agent, peer, serial, kept):
            return RevokeRecord(*common, agent, peer, serial, frozenset(kept))
        case Propose(subject, quorum):
            return ProposeRecord(*common, subject, quorum)
        case Ack(root):
            return AckRecord(*common, root)
        case Anchor() as it:
            subjects = tuple(asset.subject for asset in it.assets)
            return AnchorRecord(*common, it.batch_root, it.chain, it.contract, subjects)
    raise BugError(f"no record for a {item.kind.word}")


def evidence_record(item: Evidence) -> EvidenceRecord:
    """The record of an endorsement or a verdict."""
    it = item.statement
    return EvidenceRecord(
        id=item.id,
        kind=item.kind,
        author=item.signer,
        principal=item.signer,
        serial=0,
        rights=Right(0),
        issued_at_ms=0,
        ends_at_ms=FOREVER,
        charge_bytes=0,
        state=State.NEW,
        since_ms=0,
        subject=item.subject,
        quorum=it.quorum if isinstance(it, Verdict) else ZERO_HASH,
        decision=it.decision,
        method=it.method if isinstance(it, Verdict) else None,
    )
