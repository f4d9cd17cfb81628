"""EIP-712 digests of every statement that is signed in p2pmem: one table of struct types, one domain.

The domain is {name "p2pmem", version "1", salt = network id}. It has no chain id and no contract: a statement is about
a graph and a root, so a seal made without a chain stays good when one is added, and a signature made for one network
is void in another. Chain transactions are chain-bound by themselves.

`digest` is the fast path: it knows only the static types in the table, and equals what any EIP-712 library computes.
`typed_data` gives the same statement in the JSON form that a wallet signs.

Source: EIP-712, "Typed structured data hashing and signing".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

from p2pmem_protocol.errors import BugError
from p2pmem_protocol.hashing import HASH_BYTES, keccak256
from p2pmem_protocol.names import ADDRESS_BYTES, NetworkId

FieldValue: TypeAlias = int | str | bytes

DOMAIN_NAME: Final = "p2pmem"
DOMAIN_VERSION: Final = "1"
_DOMAIN_TYPE: Final = "EIP712Domain(string name,string version,bytes32 salt)"


@dataclass(frozen=True, slots=True)
class StructType:
    """A struct as EIP-712 writes it: its name, and (type, name) of each field in order."""

    name: str
    fields: tuple[tuple[str, str], ...]
    type_hash: bytes

    @property
    def encoded(self) -> str:
        return f"{self.name}({','.join(f'{kind} {name}' for kind, name in self.fields)})"


def _struct(encoded: str) -> StructType:
    name, _, rest = encoded.partition("(")
    pairs = tuple(tuple(field.split(" ")) for field in rest.removesuffix(")").split(","))
    struct = StructType(name, tuple((kind, field) for kind, field in pairs), keccak256(encoded.encode()))
    assert struct.encoded == encoded
    return struct


class Struct(Enum):
    """Every struct type of the protocol. The text is hashed as it stands: a changed comma is another type."""

    SEAL = _struct(
        "Seal(bytes32 graph,string subgraph,string asset,uint32 version,bytes32 root,uint32 leaves,bytes32 previous,"
        "address author)"
    )
    ENVELOPE = _struct(
        "Envelope(bytes32 graph,uint8 kind,address author,bytes32 delegation,uint32 roster,uint64 issuedAt,"
        "uint64 expiresAt,bytes body)"
    )
    ENDORSEMENT = _struct(
        "Endorsement(bytes32 graph,string asset,uint32 version,bytes32 root,address author,uint8 decision,"
        "string reason,address signer)"
    )
    VERDICT = _struct(
        "Verdict(bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,address author,uint8 decision,"
        "uint8 method,bytes32 reason,address signer)"
    )
    ROSTER = _struct(
        "Roster(bytes32 graph,uint32 version,uint32 term,bytes32 parent,uint32 parentTerm,address owner,bytes32 quorum,"
        "uint32 quorumSerial,bytes32 members,bytes32 limits,bytes32 kept,bytes32 certificates,address signer)"
    )
    REGISTER_QUORUM = _struct("RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)")
    ACT_FOR = _struct("ActFor(address principal,address agent,uint32 serial,string label,uint8 rights)")
    CARRY = _struct("Carry(address agent,string peer,uint32 serial,uint64 until)")


@lru_cache(maxsize=64)
def domain_separator(network: NetworkId) -> bytes:
    """hashStruct of the domain for one network."""
    return keccak256(
        keccak256(_DOMAIN_TYPE.encode())
        + keccak256(DOMAIN_NAME.encode())
        + keccak256(DOMAIN_VERSION.encode())
        + network
    )


def digest(struct: Struct, values: Mapping[str, FieldValue], network: NetworkId) -> bytes:
    """The 32 bytes that are signed: keccak256(0x1901 || domain separator || hashStruct(values)).

    `values` has exactly the fields of `struct`; anything else is a `BugError`, since every value was checked before.
    """
    kind = struct.value
    if len(values) != len(kind.fields):
        raise BugError(f"{kind.name} has {len(kind.fields)} fields, {len(values)} were given")
    parts = [kind.type_hash]
    for field_type, field in kind.fields:
        parts.append(_encode(field_type, values[field]))
    return keccak256(b"\x19\x01" + domain_separator(network) + keccak256(b"".join(parts)))


def _encode(field_type: str, value: FieldValue) -> bytes:
    """The 32-byte word of one field (EIP-712, "Definition of encodeData")."""
    match field_type, value:
        case "bytes32", bytes() if len(value) == HASH_BYTES:
            return bytes(value)
        case "address", bytes() if len(value) == ADDRESS_BYTES:
            return bytes(12) + value
        case "string", str():
            return keccak256(value.encode())
        case "bytes", bytes():
            return keccak256(value)
        case (("uint8" | "uint16" | "uint32" | "uint64"), int()) if 0 <= value < 1 << int(field_type[4:]):
            return value.to_bytes(HASH_BYTES)
    raise BugError(f"{value!r:.80} is no {field_type}")


def typed_data(struct: Struct, values: Mapping[str, FieldValue], network: NetworkId) -> dict[str, object]:
    """The same statement as the JSON object of `eth_signTypedData_v4`, for a wallet outside."""
    kind = struct.value

    def shown(field_type: str, value: FieldValue) -> int | str:
        return "0x" + value.hex() if isinstance(value, bytes) else value

    return {
        "types": {
            "EIP712Domain": [
                {"name": "name", "type": "string"},
                {"name": "version", "type": "string"},
                {"name": "salt", "type": "bytes32"},
            ],
            kind.name: [{"name": field, "type": field_type} for field_type, field in kind.fields],
        },
        "primaryType": kind.name,
        "domain": {"name": DOMAIN_NAME, "version": DOMAIN_VERSION, "salt": "0x" + network.hex()},
        "message": {field: shown(field_type, values[field]) for field_type, field in kind.fields},
    }
