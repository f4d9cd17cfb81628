"""What the envelopes of each kind say. One frozen dataclass a kind, each with its one encoding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from functools import cached_property
from typing import Final, TypeAlias

from p2pmem_protocol.cbor import Value
from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import (
    ANCHOR_ASSETS_MAX,
    CONTENT_BYTES_MAX,
    CONTENT_INLINE_BYTES_MAX,
    KEPT_IDS_MAX,
    PROOF_HASHES_MAX,
    REASON_CHARS_MAX,
    UINT32_MAX,
    UINT64_MAX,
)
from p2pmem_protocol.names import Address, GraphId, NetworkId, VersionKey, check_name
from p2pmem_protocol.seal import SignedSeal


@dataclass(frozen=True)
class Context:
    """What a body's reader knows from the envelope around it."""

    network: NetworkId
    graph: GraphId
    author: Address


@dataclass(frozen=True)
class ContentRef:
    """Content by size alone: inline up to `CONTENT_INLINE_BYTES_MAX`, an attachment above. One legal form for each.

    `attached` is the keccak256 of an attachment, and None where the bytes are inline.
    """

    length: int
    inline: bytes | None
    attached: bytes | None = None

    @cached_property
    def hash(self) -> bytes:
        """keccak256 of the content, computed where it is asked for: most of what arrives is known already."""
        if self.inline is not None:
            return keccak256(self.inline)
        assert self.attached is not None
        return self.attached

    @classmethod
    def of(cls, content: bytes) -> ContentRef:
        if not 0 < len(content) <= CONTENT_BYTES_MAX:
            raise MisuseError(f"content has 1 to {CONTENT_BYTES_MAX} bytes, this one {len(content)}; split it")
        if len(content) <= CONTENT_INLINE_BYTES_MAX:
            return cls(len(content), content)
        return cls(len(content), None, keccak256(content))

    def to_value(self) -> Value:
        return self.inline if self.inline is not None else [self.hash, self.length]

    @classmethod
    def from_value(cls, value: Value) -> ContentRef:
        if isinstance(value, bytes):
            if not 0 < len(value) <= CONTENT_INLINE_BYTES_MAX:
                raise RefusedError(
                    Reason.CONTENT_NOT_ATTACHED_RIGHT, f"inline content has 1 to {CONTENT_INLINE_BYTES_MAX} bytes"
                )
            return cls(len(value), value)
        if not isinstance(value, list):
            raise RefusedError(Reason.BAD_FIELD, "content is neither bytes nor a hash with a length")
        reader = Reader.of_list(value, 2, "attached content")
        digest, length = reader.hash(0), reader.uint(1, UINT64_MAX)
        if not CONTENT_INLINE_BYTES_MAX < length <= CONTENT_BYTES_MAX:
            raise RefusedError(
                Reason.CONTENT_NOT_ATTACHED_RIGHT,
                f"attached content has {CONTENT_INLINE_BYTES_MAX + 1} to {CONTENT_BYTES_MAX} bytes",
            )
        return cls(length, None, digest)


@dataclass(frozen=True)
class Sealed:
    """The body of a share and of a publish: a seal and its content."""

    seal: SignedSeal
    content: ContentRef

    def to_value(self) -> dict[int, Value]:
        return {0: self.seal.to_value(), 1: self.content.to_value()}

    @classmethod
    def from_value(cls, value: Value, context: Context) -> Sealed:
        reader = Reader(value, "a share or publish")
        seal = SignedSeal.from_value(reader.nested(0), context.network, context.graph, context.author)
        content = ContentRef.from_value(reader.nested(1))
        reader.end()
        return cls(seal, content)


@unique
class RetractMode(IntEnum):
    """`ERASE` takes the version out of the set and its bytes from every member's node (rule V3)."""

    KEEP = 1
    ERASE = 2


@dataclass(frozen=True)
class Retract:
    """The version `version` of `author`'s asset `name`, with all its roots, is taken back (rule V2).

    Who signs it says what it covers. The author: all of the version. A principal, which shows its delegation to the
    author in `shown`: what was signed under a delegation of that principal. The owner: all of the version, as
    moderation. `shown` alone proves nothing, since a principal may name as its agent whom it likes; it says in which
    role the principal speaks.
    """

    author: Address
    name: str
    version: int
    mode: RetractMode
    successor: int | None
    reason: str
    shown: SignedActFor | None = None

    def to_value(self) -> dict[int, Value]:
        fields: dict[int, Value] = {
            0: bytes(self.author),
            1: self.name,
            2: self.version,
            3: int(self.mode),
            5: self.reason,
        }
        if self.successor is not None:
            fields[4] = self.successor
        if self.shown is not None:
            fields[6] = self.shown.to_value()
        return fields

    @classmethod
    def from_value(cls, value: Value, context: Context) -> Retract:
        reader = Reader(value, "a retract")
        author = reader.address(0)
        shown = SignedActFor.from_value(reader.nested(6), context.network, author) if reader.has(6) else None
        if shown is not None and shown.delegation.principal != context.author:
            raise RefusedError(Reason.BAD_FIELD, "a retract shows a delegation of another principal than its signer")
        retract = cls(
            author=author,
            name=reader.name(1, check_name),
            version=reader.uint(2, UINT32_MAX, 1),
            mode=RetractMode(reader.uint(3, 2, 1)),
            successor=reader.uint(4, UINT32_MAX, 1) if reader.has(4) else None,
            reason=reader.text(5, REASON_CHARS_MAX),
            shown=shown,
        )
        reader.end()
        return retract


@dataclass(frozen=True)
class Propose:
    """Please verify this version. The envelope's expiry is the deadline (rule A2)."""

    subject: VersionKey
    quorum: bytes

    def to_value(self) -> dict[int, Value]:
        return dict(enumerate((*self.subject.fields, self.quorum)))

    @classmethod
    def from_value(cls, value: Value, context: Context) -> Propose:
        reader = Reader(value, "a proposal")
        propose = cls(reader.version(0), reader.hash(5))
        reader.end()
        return propose


@dataclass(frozen=True)
class Ack:
    """I hold the content under this root until the envelope's expiry (rule A1)."""

    root: bytes

    def to_value(self) -> dict[int, Value]:
        return {0: self.root}

    @classmethod
    def from_value(cls, value: Value, context: Context) -> Ack:
        reader = Reader(value, "an ack")
        ack = cls(reader.hash(0))
        reader.end()
        return ack


@dataclass(frozen=True)
class AnchoredAsset:
    """One version in an anchored batch, with the Merkle proof of its seal digest."""

    subject: VersionKey
    proof: tuple[bytes, ...]

    def to_value(self) -> dict[int, Value]:
        proof: list[Value] = [*self.proof]
        return dict(enumerate((*self.subject.fields, proof)))

    @classmethod
    def from_value(cls, value: Value) -> AnchoredAsset:
        reader = Reader(value, "an anchored asset")
        asset = cls(reader.version(0), reader.hashes(5, PROOF_HASHES_MAX))
        reader.end()
        return asset


@dataclass(frozen=True)
class Anchor:
    """A claim that a batch of `count` seal digests is on a chain. Nobody believes it unchecked."""

    batch_root: bytes
    count: int
    chain: int
    contract: Address
    transaction: bytes
    block: int
    assets: tuple[AnchoredAsset, ...]

    def to_value(self) -> dict[int, Value]:
        return {
            0: self.batch_root,
            1: self.chain,
            2: bytes(self.contract),
            3: self.transaction,
            4: self.block,
            5: [asset.to_value() for asset in self.assets],
            6: self.count,
        }

    @classmethod
    def from_value(cls, value: Value, context: Context) -> Anchor:
        reader = Reader(value, "an anchor")
        anchor = cls(
            batch_root=reader.hash(0),
            count=reader.uint(6, UINT32_MAX, 1),
            chain=reader.uint(1, UINT64_MAX),
            contract=reader.address(2),
            transaction=reader.hash(3),
            block=reader.uint(4, UINT64_MAX),
            assets=tuple(AnchoredAsset.from_value(item) for item in reader.items(5, ANCHOR_ASSETS_MAX, 1)),
        )
        reader.end()
        return anchor


REVOKE_IDS_MAX: Final = min(KEPT_IDS_MAX, 1_900)  # inline in a body of 64 KiB


@dataclass(frozen=True)
class Revoke:
    """The author ends what it delegated: to an agent that acted for it, or to a peer that carried its words.

    Exactly one of `agent` and `peer` is named. Every delegation with a serial not above `serial` is void; of an agent's
    envelopes under such a delegation only the ids in `kept` still count (rule D1).
    """

    agent: Address | None
    peer: str | None
    serial: int
    kept: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if (self.agent is None) == (self.peer is None):
            raise MisuseError("a revocation names an agent or a peer, not both")

    def to_value(self) -> dict[int, Value]:
        fields: dict[int, Value] = {2: self.serial, 3: list(self.kept)}
        if self.agent is not None:
            fields[0] = bytes(self.agent)
        if self.peer is not None:
            fields[1] = self.peer
        return fields

    @classmethod
    def from_value(cls, value: Value, context: Context) -> Revoke:
        reader = Reader(value, "a revocation")
        agent = reader.address(0) if reader.has(0) else None
        peer = reader.text(1, 128, 1) if reader.has(1) else None
        if (agent is None) == (peer is None):
            raise RefusedError(Reason.BAD_SHAPE, "a revocation names an agent or a peer, not both")
        serial = reader.uint(2, UINT32_MAX, 1)
        kept = reader.sorted_hashes(3, REVOKE_IDS_MAX)
        reader.end()
        return cls(agent, peer, serial, kept)


Body: TypeAlias = Sealed | Retract | Propose | Ack | Anchor | Revoke

BODIES: Final[dict[Kind, type[Sealed] | type[Retract] | type[Propose] | type[Ack] | type[Anchor] | type[Revoke]]] = {
    Kind.SHARE: Sealed,
    Kind.PUBLISH: Sealed,
    Kind.RETRACT: Retract,
    Kind.PROPOSE: Propose,
    Kind.ACK: Ack,
    Kind.ANCHOR: Anchor,
    Kind.REVOKE: Revoke,
}
