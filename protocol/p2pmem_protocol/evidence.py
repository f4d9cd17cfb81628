"""Evidence: endorsements and verdicts. A statement that anybody may hand on; it has no outer envelope (rule E1).

Its signature is the signer's EIP-712 signature of the statement itself, its id the statement's digest. It has no expiry
and is charged to no quota: it is in the set exactly while a share or publish of its subject is.

It names the seal and not the root alone: what else the author seals over the same content, in another sub-graph or
after another version, has none of it. The root is there because people compare roots; one that is not that of the seal
makes a subject that nobody ever holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from functools import cached_property
from typing import Final

from p2pmem_protocol.cbor import Value, decode, encode
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import HASH_BYTES, keccak256
from p2pmem_protocol.keys import SIGNATURE_BYTES, Signer, check_signed_by
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import REASON_CHARS_MAX, UINT32_MAX
from p2pmem_protocol.names import Address, GraphId, NetworkId, VersionKey, check_name

FORMAT: Final = 1


@unique
class Endorse(IntEnum):
    """An endorsement, or its end. A withdrawal wins for good (rule E3)."""

    ENDORSE = 1
    WITHDRAW = 2


@unique
class Decision(IntEnum):
    APPROVE = 1
    REJECT = 2


@unique
class Method(IntEnum):
    """How a verifier came to a verdict, weakest first: `auto` says only that the bytes match."""

    AUTO = 1
    SHACL = 2
    EXEC = 3
    MANUAL = 4

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Endorsement:
    """ "I find it good", or the withdrawal of that."""

    network: NetworkId
    graph: GraphId
    subject: VersionKey
    decision: Endorse
    reason: str
    signer: Address

    kind = Kind.ENDORSE

    def __post_init__(self) -> None:
        _check_subject(self.subject, self.reason)

    def _values(self) -> dict[str, FieldValue]:
        return {
            "graph": self.graph,
            "asset": self.subject.name,
            "version": self.subject.version,
            "root": self.subject.root,
            "seal": self.subject.seal,
            "author": self.subject.author,
            "decision": int(self.decision),
            "reason": self.reason,
            "signer": self.signer,
        }

    @cached_property
    def digest(self) -> bytes:
        return digest(Struct.ENDORSEMENT, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.ENDORSEMENT, self._values(), self.network)


@dataclass(frozen=True)
class Verdict:
    """ "I checked it by this graph's policy": a verifier's decision under one quorum.

    It binds to the quorum's id, not to a roster version, so that adding a reader breaks nothing.
    """

    network: NetworkId
    graph: GraphId
    quorum: bytes
    subject: VersionKey
    decision: Decision
    method: Method
    reason: str
    signer: Address

    kind = Kind.VERDICT

    def __post_init__(self) -> None:
        _check_subject(self.subject, self.reason)
        if len(self.quorum) != HASH_BYTES:
            raise MisuseError(f"a quorum id is {HASH_BYTES} bytes")

    def _values(self) -> dict[str, FieldValue]:
        return {
            "graph": self.graph,
            "quorum": self.quorum,
            "asset": self.subject.name,
            "version": self.subject.version,
            "root": self.subject.root,
            "seal": self.subject.seal,
            "author": self.subject.author,
            "decision": int(self.decision),
            "method": int(self.method),
            # The text stays out of the struct that a contract checks; its hash is signed.
            "reason": keccak256(self.reason.encode()),
            "signer": self.signer,
        }

    @cached_property
    def digest(self) -> bytes:
        return digest(Struct.VERDICT, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.VERDICT, self._values(), self.network)


Statement = Endorsement | Verdict


@dataclass(frozen=True)
class Evidence:
    """A signed statement. `decode` checks its form only; `check` checks its signature."""

    statement: Statement
    signature: bytes

    @classmethod
    def sign(cls, statement: Statement, signer: Signer) -> Evidence:
        if signer.address != statement.signer:
            raise MisuseError(f"the statement names {statement.signer} as signer; {signer.address} cannot sign it")
        return cls(statement, signer.sign(statement.digest))

    @property
    def id(self) -> bytes:
        return self.statement.digest

    @property
    def kind(self) -> Kind:
        return self.statement.kind

    @property
    def graph(self) -> GraphId:
        return self.statement.graph

    @property
    def network(self) -> NetworkId:
        return self.statement.network

    @property
    def signer(self) -> Address:
        return self.statement.signer

    @property
    def subject(self) -> VersionKey:
        return self.statement.subject

    def check(self) -> None:
        """Raises `RefusedError` unless the signature is the signer's."""
        check_signed_by(self.statement.signer, self.statement.digest, self.signature)

    def encode(self) -> bytes:
        return encode(self._to_value())

    def _to_value(self) -> dict[int, Value]:
        it = self.statement
        fields: dict[int, Value] = {
            0: FORMAT,
            1: it.network,
            2: it.graph,
            3: int(it.kind),
            4: bytes(it.signer),
            **dict(enumerate(it.subject.fields, 5)),
            10: int(it.decision),
            11: it.reason,
            12: self.signature,
        }
        if isinstance(it, Verdict):
            fields |= {13: it.quorum, 14: int(it.method)}
        return fields

    @classmethod
    def decode(cls, data: bytes) -> Evidence:
        """Read evidence; raises `RefusedError` when the form is wrong. The signature is not checked yet."""
        return cls.from_value(decode(data))

    @classmethod
    def from_value(cls, value: Value) -> Evidence:
        reader = Reader(value, "a piece of evidence")
        if reader.uint(0, UINT32_MAX) != FORMAT:
            raise RefusedError(Reason.BAD_VERSION, "a format of evidence that is not known here")
        network = NetworkId(reader.hash(1))
        graph = GraphId(reader.hash(2))
        kind = Kind(reader.uint(3, max(Kind), min(Kind)))
        signer = reader.address(4)
        subject = reader.version(5)
        decision = reader.uint(10, 2, 1)
        reason = reader.text(11, REASON_CHARS_MAX)
        signature = reader.raw(12, SIGNATURE_BYTES, SIGNATURE_BYTES)
        statement: Statement
        if kind is Kind.ENDORSE:
            statement = Endorsement(network, graph, subject, Endorse(decision), reason, signer)
        elif kind is Kind.VERDICT:
            quorum = reader.hash(13)
            method = Method(reader.uint(14, max(Method), min(Method)))
            statement = Verdict(network, graph, quorum, subject, Decision(decision), method, reason, signer)
        else:
            raise RefusedError(Reason.BAD_SHAPE, f"{kind.word} is not evidence")
        reader.end()
        return cls(statement, signature)


def _check_subject(subject: VersionKey, reason: str) -> None:
    check_name(subject.name)
    if not 1 <= subject.version <= UINT32_MAX:
        raise MisuseError(f"version {subject.version} is not from 1 to {UINT32_MAX}")
    if len(subject.root) != HASH_BYTES or len(subject.seal) != HASH_BYTES:
        raise MisuseError(f"a root and the digest of a seal are {HASH_BYTES} bytes each")
    if len(reason) > REASON_CHARS_MAX:
        raise MisuseError(f"a reason has at most {REASON_CHARS_MAX} characters, this one {len(reason)}")
