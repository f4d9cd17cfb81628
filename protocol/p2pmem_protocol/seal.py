"""A seal: the author's EIP-712 signature over one version of a knowledge asset. It travels with the content, always."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from p2pmem_protocol.cbor import Value
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import HASH_BYTES, ZERO_HASH
from p2pmem_protocol.keys import SIGNATURE_BYTES, Signer, check_still_signed_by
from p2pmem_protocol.limits import STATEMENTS_MAX, UINT32_MAX
from p2pmem_protocol.names import (
    Address,
    GraphId,
    NetworkId,
    VersionKey,
    check_name,
    check_subgraph,
)

NO_PREVIOUS: Final = ZERO_HASH


@dataclass(frozen=True)
class Seal:
    """What the author signs. `previous` is the root of the version before, or 32 zero bytes for a first one.

    `leaves` is the number of statements: a tree with sorted pairs proves membership only, so the count is signed too.
    """

    network: NetworkId
    graph: GraphId
    subgraph: str
    name: str
    version: int
    root: bytes
    leaves: int
    previous: bytes
    author: Address

    def __post_init__(self) -> None:
        check_name(self.name)
        check_subgraph(self.subgraph)
        if not 1 <= self.version <= UINT32_MAX:
            raise MisuseError(f"version {self.version} is not from 1 to {UINT32_MAX}")
        if not 1 <= self.leaves <= STATEMENTS_MAX:
            raise MisuseError(f"a seal covers 1 to {STATEMENTS_MAX} statements, not {self.leaves}")
        if len(self.root) != HASH_BYTES or len(self.previous) != HASH_BYTES:
            raise MisuseError(f"root and previous root of a seal are {HASH_BYTES} bytes each")

    @property
    def key(self) -> VersionKey:
        return VersionKey(self.author, self.name, self.version, self.root, self.digest)

    def _values(self) -> dict[str, FieldValue]:
        return {
            "graph": self.graph,
            "subgraph": self.subgraph,
            "asset": self.name,
            "version": self.version,
            "root": self.root,
            "leaves": self.leaves,
            "previous": self.previous,
            "author": self.author,
        }

    @cached_property
    def digest(self) -> bytes:
        """What is signed. It names the version, and is its leaf in an anchored batch."""
        return digest(Struct.SEAL, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        """For a wallet outside."""
        return typed_data(Struct.SEAL, self._values(), self.network)

    def sign(self, signer: Signer) -> SignedSeal:
        if signer.address != self.author:
            raise MisuseError(f"the seal names {self.author} as author; {signer.address} cannot sign it")
        return SignedSeal(self, signer.sign(self.digest))


@dataclass(frozen=True)
class SignedSeal:
    """A seal with its signature, not yet known to be right: call `check`."""

    seal: Seal
    signature: bytes

    def check(self) -> None:
        """Raises `RefusedError` unless the signature is the author's."""
        check_still_signed_by(self.seal.author, self.seal.digest, self.signature)

    def to_value(self) -> dict[int, Value]:
        seal = self.seal
        return {
            0: seal.subgraph,
            1: seal.name,
            2: seal.version,
            3: seal.root,
            4: seal.leaves,
            5: seal.previous,
            6: self.signature,
        }

    @classmethod
    def from_value(cls, value: Value, network: NetworkId, graph: GraphId, author: Address) -> SignedSeal:
        """Network, graph and author are those of the envelope that carries the seal: a seal of another is no seal."""
        reader = Reader(value, "a seal")
        seal = Seal(
            network=network,
            graph=graph,
            subgraph=reader.name(0, check_subgraph),
            name=reader.name(1, check_name),
            version=reader.uint(2, UINT32_MAX, 1),
            root=reader.hash(3),
            leaves=reader.uint(4, STATEMENTS_MAX, 1),
            previous=reader.hash(5),
            author=author,
        )
        if (seal.version == 1) != (seal.previous == NO_PREVIOUS):
            raise RefusedError(Reason.BAD_FIELD, "a first version has no previous root, every other one has")
        signed = cls(seal, reader.raw(6, SIGNATURE_BYTES, SIGNATURE_BYTES))
        reader.end()
        return signed
