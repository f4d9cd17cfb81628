"""EIP-712 digests of every statement that is signed in p2pmem: one table of struct types, one domain.

The domain is {name "p2pmem", version "1", salt = network id}. It has no chain id and no contract: a statement is about
a graph and a root, so a seal made without a chain stays good when one is added, and a signature made for one network
is void in another. Chain transactions are chain-bound by themselves.

`digest` is the fast path: it knows only the static types in the table, and equals what any EIP-712 library computes.
`typed_data` gives the same statement in the JSON form that a wallet signs.

Source: EIP-712, "Typed structured data hashing and signing".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

from p2pmem_protocol.errors import BugError, MisuseError
from p2pmem_protocol.hashing import HASH_BYTES, keccak256
from p2pmem_protocol.limits import NAME_CHARS_MAX
from p2pmem_protocol.names import ADDRESS_BYTES, NetworkId

FieldValue: TypeAlias = int | str | bytes
_Encoder: TypeAlias = Callable[[FieldValue], bytes]

DOMAIN_NAME: Final = "p2pmem"
DOMAIN_VERSION: Final = "1"
_DOMAIN_TYPE: Final = "EIP712Domain(string name,string version,bytes32 salt)"


class _NoWordError(Exception):
    """A value is not of the type that its field has."""


# The 32-byte word of one field (EIP-712, "Definition of encodeData"), by type.


def _bytes32(value: FieldValue) -> bytes:
    if not isinstance(value, bytes) or len(value) != HASH_BYTES:
        raise _NoWordError(f"{value!r:.80} is no bytes32")
    return value


def _address(value: FieldValue) -> bytes:
    if not isinstance(value, bytes) or len(value) != ADDRESS_BYTES:
        raise _NoWordError(f"{value!r:.80} is no address")
    return _PADDING + value


def _bytes(value: FieldValue) -> bytes:
    if not isinstance(value, bytes):
        raise _NoWordError(f"{value!r:.80} is no bytes")
    return keccak256(value)


def _string(value: FieldValue) -> bytes:
    if not isinstance(value, str):
        raise _NoWordError(f"{value!r:.80} is no string")
    try:
        return _name_hash(value) if len(value) <= NAME_CHARS_MAX else keccak256(value.encode())
    except UnicodeEncodeError:
        raise MisuseError("text that holds half a character (a lone surrogate) cannot be signed") from None


@lru_cache(maxsize=4_096)
def _name_hash(name: str) -> bytes:
    """Names, labels and short reasons come again and again."""
    return keccak256(name.encode())


def _uint(bits: int) -> _Encoder:
    past = 1 << bits

    def encode(value: FieldValue) -> bytes:
        if not isinstance(value, int) or not 0 <= value < past:
            raise _NoWordError(f"{value!r:.80} is no uint{bits}")
        return value.to_bytes(HASH_BYTES)

    return encode


_PADDING: Final = bytes(HASH_BYTES - ADDRESS_BYTES)
_ENCODERS: Final[Mapping[str, _Encoder]] = {
    "bytes32": _bytes32,
    "address": _address,
    "bytes": _bytes,
    "string": _string,
    "uint8": _uint(8),
    "uint32": _uint(32),
    "uint64": _uint(64),
}


@dataclass(frozen=True, slots=True)
class StructType:
    """A struct as EIP-712 writes it: its name, (type, name) of each field in order, and how each is encoded."""

    name: str
    fields: tuple[tuple[str, str], ...]
    type_hash: bytes
    encoders: tuple[tuple[str, _Encoder], ...]

    @property
    def encoded(self) -> str:
        return f"{self.name}({','.join(f'{kind} {name}' for kind, name in self.fields)})"


def _struct(encoded: str) -> StructType:
    name, _, rest = encoded.partition("(")
    pairs = [field.split(" ") for field in rest.removesuffix(")").split(",")]
    struct = StructType(
        name=name,
        fields=tuple((kind, field) for kind, field in pairs),
        type_hash=keccak256(encoded.encode()),
        encoders=tuple((field, _ENCODERS[kind]) for kind, field in pairs),
    )
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
        "Endorsement(bytes32 graph,string asset,uint32 version,bytes32 root,bytes32 seal,address author,"
        "uint8 decision,string reason,address signer)"
    )
    VERDICT = _struct(
        "Verdict(bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,bytes32 seal,address author,"
        "uint8 decision,uint8 method,bytes32 reason,address signer)"
    )
    ROSTER = _struct(
        "Roster(bytes32 graph,uint32 version,uint32 term,bytes32 parent,uint32 parentTerm,address owner,bytes32 quorum,"
        "uint32 quorumSerial,bytes32 members,bytes32 limits,bytes32 kept,bytes32 certificates,address signer)"
    )
    REGISTER_QUORUM = _struct("RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)")
    ACT_FOR = _struct("ActFor(address principal,address agent,uint32 serial,string label,uint8 rights)")
    CARRY = _struct("Carry(address agent,string peer,uint32 serial,uint64 until)")
    PREPARE = _struct("Prepare(bytes32 graph,bytes32 parent,string change,address approver)")
    ENTER = _struct("Enter(bytes32 graph,string peer,bytes proof,string label,uint64 at)")


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
    Text with a lone surrogate, which has no UTF-8, is a `MisuseError`.
    """
    kind = struct.value
    if len(values) != len(kind.fields):
        raise BugError(f"{kind.name} has {len(kind.fields)} fields, {len(values)} were given")
    words = [kind.type_hash]
    try:
        words += [encode(values[field]) for field, encode in kind.encoders]
    except (_NoWordError, KeyError) as error:
        raise BugError(f"not the values of a {kind.name}: {error}") from None
    return keccak256(b"\x19\x01" + domain_separator(network) + keccak256(b"".join(words)))


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
