"""What the rest of the node sees of a chain: an interface, and values that say what was found there.

An effect on a chain is a transaction, and it must be possible to write it down before it is tried. So it comes in
three parts: `prepare_...` signs it and sends nothing; `send` may be repeated; `look_up` says what became of it.

Rules for a caller that must not act twice:

1. Store the `SignedTransaction` before `send`. After a crash, `look_up` what is stored before anything else.
2. All transactions of one sender with one nonce are one effect: at most one of them is ever mined. `raise_fee` makes
   another with the same nonce; store it too, and pass all of them to `look_up`.
3. UNKNOWN does not mean that it will not happen: send the same bytes again. Only REPLACED means that none of them will
   be mined (but by a reorganisation deeper than the confirmations asked for); then prepare anew.
4. What counts for an anchor is the root, not the transaction: whoever anchored it, `anchored` says so. The same for a
   quorum and an attestation. So look there, by `settled`, before anything is signed: the file of the caller may be a
   backup of a time before it signed the first one.
5. A mined transaction may be un-mined. Below the confirmations that a caller waits for, a fact is news, not truth.

Addresses are 20 bytes; hashes, roots and ids 32. Amounts of money are in wei.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Protocol, TypeVar

from p2pmem_protocol.errors import MisuseError

UINT16_MAX = 2**16 - 1
UINT32_MAX = 2**32 - 1
SIGNATURE_BYTES = 65
ADDRESS_BYTES = 20
HASH_BYTES = 32


def expect_bytes(value: bytes, size_bytes: int, what: str) -> None:
    """`MisuseError` unless the value has exactly this size."""
    if len(value) != size_bytes:
        raise MisuseError(f"{what} has {len(value)} bytes, and must have {size_bytes}")


def expect_range(value: int, least: int, most: int, what: str) -> None:
    """`MisuseError` unless least <= value <= most."""
    if not least <= value <= most:
        raise MisuseError(f"{what} is {value}, and must be {least} to {most}")


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """Which chain, which contract, and how patient to be.

    `fee_per_gas_max_wei` is a hard limit on what this node bids; above it nothing is signed.
    """

    url: str
    chain_id: int
    contract: bytes
    network: bytes
    confirmations: int = 2
    poll_seconds: float = 1.0
    request_seconds_max: float = 10.0
    response_bytes_max: int = 4 * 1024 * 1024
    fee_per_gas_max_wei: int = 500 * 10**9

    def __post_init__(self) -> None:
        expect_bytes(self.contract, ADDRESS_BYTES, "the address of the contract")
        expect_bytes(self.network, HASH_BYTES, "the network's id")
        expect_range(self.chain_id, 1, 2**63, "the chain id")
        expect_range(self.confirmations, 1, 10_000, "the number of confirmations")


@dataclass(frozen=True, slots=True)
class Head:
    """The newest block, or any other."""

    number: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class SignedTransaction:
    """A transaction, signed and ready. `raw` alone is enough to keep: `transactions.decode` finds the rest again."""

    raw: bytes = field(repr=False)
    hash: bytes
    nonce: int
    sender: bytes


@unique
class SendOutcome(Enum):
    """What a server said to a transaction. Repeating `send` is always harmless."""

    ACCEPTED = "accepted"
    ALREADY_KNOWN = "already_known"
    NONCE_PASSED = "nonce_passed"  # these bytes, or others with their nonce, are in a block: look up which


@unique
class TransactionState(Enum):
    """See the rules at the top of this module."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    MINED = "mined"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class TransactionFact:
    """What became of one effect. `hash` is that of its transactions which was mined or is pending.

    `confirmations` is 1 in the newest block; 0 unless mined. `succeeded` is False if the contract reverted.
    """

    state: TransactionState
    hash: bytes | None = None
    block: Head | None = None
    confirmations: int = 0
    succeeded: bool | None = None


@dataclass(frozen=True, slots=True)
class AnchorFact:
    """The first block in which somebody anchored a root."""

    root: bytes
    block_number: int
    confirmations: int


@dataclass(frozen=True, slots=True)
class QuorumFact:
    """The latest registered quorum of a graph."""

    quorum: bytes
    serial: int


@dataclass(frozen=True, slots=True)
class AttestationFact:
    """That `approvals` of `verifiers` approved a version when `m` were needed, under the quorum of this serial."""

    serial: int
    m: int
    verifiers: int
    approvals: int
    block_number: int
    confirmations: int


@dataclass(frozen=True, slots=True)
class QuorumPreimage:
    """What a quorum id is the hash of, beside the graph: keccak256(abi.encode(graph, serial, m, verifiers))."""

    serial: int
    m: int
    verifiers: tuple[bytes, ...]

    def __post_init__(self) -> None:
        expect_range(self.serial, 1, UINT32_MAX, "the serial of a quorum")
        expect_range(self.m, 1, min(len(self.verifiers), UINT16_MAX), "M of a quorum")
        for verifier in self.verifiers:
            expect_bytes(verifier, ADDRESS_BYTES, "a verifier's address")
        if any(left >= right for left, right in zip(self.verifiers, self.verifiers[1:], strict=False)):
            raise MisuseError("the verifiers of a quorum must be sorted, each once")


@dataclass(frozen=True, slots=True)
class QuorumRegistration:
    """A quorum with its creator's EIP-712 signature over RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)."""

    creator: bytes
    slug_hash: bytes
    quorum: QuorumPreimage
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        expect_bytes(self.creator, ADDRESS_BYTES, "the creator's address")
        expect_bytes(self.slug_hash, HASH_BYTES, "the hash of the slug")
        expect_bytes(self.signature, SIGNATURE_BYTES, "the creator's signature")


@dataclass(frozen=True, slots=True)
class Subject:
    """A sealed version. The name of the asset is hashed before it leaves."""

    graph: bytes
    asset: str
    version: int
    root: bytes
    seal: bytes
    author: bytes

    def __post_init__(self) -> None:
        expect_bytes(self.graph, HASH_BYTES, "the graph's id")
        expect_bytes(self.root, HASH_BYTES, "the root")
        expect_bytes(self.seal, HASH_BYTES, "the digest of the seal")
        expect_bytes(self.author, ADDRESS_BYTES, "the author's address")
        expect_range(self.version, 0, UINT32_MAX, "the version")


@dataclass(frozen=True, slots=True)
class Approval:
    """A verifier's approval. `reason` is the keccak-256 of its text; method 1 auto, 2 shacl, 3 exec, 4 manual."""

    signer: bytes
    method: int
    reason: bytes
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        expect_bytes(self.signer, ADDRESS_BYTES, "a signer's address")
        expect_bytes(self.reason, HASH_BYTES, "the hash of a reason")
        expect_bytes(self.signature, SIGNATURE_BYTES, "a verdict's signature")
        expect_range(self.method, 1, 4, "the method of a verdict")


@dataclass(frozen=True, slots=True)
class ChainStatistics:
    """Counts since the chain was opened."""

    requests: int
    failures: int
    prepared: int
    sent: int
    reserved_nonces: int


class Deep(Protocol):
    """Something found on the chain."""

    @property
    def confirmations(self) -> int:
        """1 in the newest block."""


F = TypeVar("F", bound=Deep)


class HeadSource(Protocol):
    """The two questions that following a chain needs."""

    async def head(self) -> Head:
        """The newest block."""

    async def block_hash(self, block_number: int) -> bytes | None:
        """The hash of the block of this number on the chain as it is now; None if there is none."""


class Chain(HeadSource, Protocol):
    """A chain with our contract on it. A node without one holds None.

    Every method may raise `OutsideError` (ask again later) and `WrongChainError` (the settings are wrong). All can be
    cancelled at any time; a cancelled `send` may have sent.
    """

    @property
    def sender(self) -> bytes:
        """The address that pays."""

    async def check(self) -> None:
        """Make sure that this is the configured chain and contract. Asked once, and before the first transaction."""

    async def prepare_anchor(self, batch_root: bytes, count: int) -> SignedTransaction:
        """Sign an anchor of a batch of `count` seals. Nothing is sent. Its nonce is taken until `release`d."""

    async def prepare_register_quorum(self, registration: QuorumRegistration) -> SignedTransaction:
        """Sign a registration. `ContractRefusedError` with rule StaleSerial, NotSignedByCreator or BadQuorum."""

    async def prepare_attest(
        self, subject: Subject, quorum: QuorumPreimage, approvals: Sequence[Approval]
    ) -> SignedTransaction:
        """Sign an attestation; approvals in any order, one per signer. `ContractRefusedError` names the rule broken."""

    async def raise_fee(self, transaction: SignedTransaction) -> SignedTransaction:
        """The same effect (same nonce, same call) with a higher bid, for one that stays pending. Nothing is sent."""

    def release(self, transaction: SignedTransaction) -> None:
        """Forget that a prepared transaction has its nonce: its caller gives it up, or may come back to it.

        What was sent the chain counts itself. What was not, and is sent later, may find that another one took its
        nonce: REPLACED.
        """

    async def send(self, transaction: SignedTransaction) -> SendOutcome:
        """Hand it to the chain. Idempotent."""

    async def look_up(self, *attempts: SignedTransaction, confirmations: int | None = None) -> TransactionFact:
        """What became of an effect, of which these are all the transactions."""

    async def wait_confirmed(
        self, *attempts: SignedTransaction, confirmations: int | None = None, poll_seconds: float | None = None
    ) -> TransactionFact:
        """Return when the effect is this many blocks deep, or REPLACED. What the chain lost is sent again meanwhile."""

    async def settled(self, ask: Callable[[], Awaitable[F | None]]) -> F | None:
        """What `ask` finds when all that this sender had sent is in a block, or gone; and what it finds deep enough.

        None is the word that nobody has done it: a transaction of ours that is still on its way would be done twice.
        """

    async def anchored(self, batch_root: bytes) -> AnchorFact | None:
        """Whether anybody anchored a root, as the newest block has it."""

    async def anchoring_transaction(self, fact: AnchorFact) -> bytes | None:
        """The hash of the transaction that anchored a root first; None when the server does not know it any more."""

    async def proves_anchored(self, batch_root: bytes, seal_digest: bytes, proof: Sequence[bytes]) -> bool:
        """Ask the contract whether a seal is in an anchored batch."""

    async def quorum_of(self, graph: bytes) -> QuorumFact | None:
        """The latest registered quorum."""

    async def attestation_of(self, subject: Subject) -> AttestationFact | None:
        """What the contract holds about a version."""

    def statistics(self) -> ChainStatistics:
        """Counts for people and for metrics."""
