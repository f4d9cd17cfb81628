"""Names: one grammar and one parser per kind of name.

    address    `0x` and 40 hexadecimal digits; in IRIs lower-case. Also read: checksummed (EIP-55), `did:dkg:agent:`
    slug       1 to 64 of `a-z 0-9 . _ -`, beginning with a letter or digit
    graph      `<creator address>/<slug>`, with or without `did:dkg:context-graph:` before it
    name       of a knowledge asset: 1 to 128 of `A-Z a-z 0-9 . _ ~ -`, beginning with a letter or digit
    sub-graph  1 to 128 of `a-z 0-9 . -` and `/` between parts, or empty for none; no part is `assertion`, begins with
               `_`, or looks like an address

A bad name is refused with the rule that it broke. On the wire and on a chain a context graph is its id,
keccak256(abi.encode(creator, keccak256(slug))): only the creator's key can found it, and a contract can check that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NewType

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hashing import HASH_BYTES, keccak256
from p2pmem_protocol.limits import NAME_CHARS_MAX, SLUG_CHARS_MAX, SUBGRAPH_CHARS_MAX

ADDRESS_BYTES: Final = 20

GraphId = NewType("GraphId", bytes)
NetworkId = NewType("NetworkId", bytes)

_HEX_ADDRESS: Final = re.compile(r"0[xX][0-9a-fA-F]{40}")
_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]*")
_SUBGRAPH_PART: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")

DKG: Final = "http://dkg.io/ontology/"
_GRAPH_PREFIX: Final = "did:dkg:context-graph:"
_AGENT_PREFIX: Final = "did:dkg:agent:"


class BadNameError(MisuseError):
    """A name broke a rule of its grammar."""


class Address(bytes):
    """An agent: the 20-byte Ethereum address of its key. `str()` gives the lower-case form that IRIs use."""

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Address:
        if len(raw) != ADDRESS_BYTES:
            raise BadNameError(f"an address is {ADDRESS_BYTES} bytes, not {len(raw)}")
        return super().__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read any usual form: lower-case, checksummed, DID. A wrong checksum is refused."""
        plain = text.removeprefix(_AGENT_PREFIX)
        if not _HEX_ADDRESS.fullmatch(plain):
            raise BadNameError(f"{_shown(text)} is not an address: 0x and 40 hexadecimal digits")
        digits = plain[2:]
        address = cls(bytes.fromhex(digits))
        if digits not in (digits.lower(), digits.upper()) and address.checksummed != "0x" + digits:
            raise BadNameError(f"{_shown(text)} has a wrong EIP-55 checksum: a digit or its case is mistyped")
        return address

    @property
    def checksummed(self) -> str:
        """The mixed-case form of EIP-55."""
        digits = self.hex()
        nibbles = keccak256(digits.encode()).hex()
        return "0x" + "".join(c.upper() if int(n, 16) >= 8 else c for c, n in zip(digits, nibbles, strict=False))

    @property
    def iri(self) -> str:
        return f"{_AGENT_PREFIX}{self}"

    def __str__(self) -> str:
        return "0x" + self.hex()

    def __repr__(self) -> str:
        return f"<Address {self}>"


ZERO_ADDRESS: Final = Address(bytes(ADDRESS_BYTES))


def network_id(name: str) -> NetworkId:
    """The id of a network from its name. Signatures made for one network are void in another."""
    if not _SLUG.fullmatch(name) or len(name) > SLUG_CHARS_MAX:
        raise BadNameError(f"{_shown(name)} is not a network name: {_slug_rule()}")
    return NetworkId(keccak256(name.encode()))


def check_slug(slug: str) -> str:
    """`slug` itself, when the grammar allows it."""
    if not _SLUG.fullmatch(slug) or len(slug) > SLUG_CHARS_MAX:
        raise BadNameError(f"{_shown(slug)} is not a slug: {_slug_rule()}")
    return slug


def check_name(name: str) -> str:
    """`name` itself, when it may name a knowledge asset."""
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise BadNameError(
            f"{_shown(name)} cannot name a knowledge asset: 1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 . _ ~ -, "
            "beginning with a letter or digit"
        )
    return name


def check_subgraph(subgraph: str) -> str:
    """`subgraph` itself, when the grammar allows it. Empty means the context graph itself."""
    if not subgraph:
        return subgraph
    if len(subgraph) > SUBGRAPH_CHARS_MAX:
        raise BadNameError(f"a sub-graph name has at most {SUBGRAPH_CHARS_MAX} characters, this one {len(subgraph)}")
    for part in subgraph.split("/"):
        if part == "assertion":
            raise BadNameError(f"{_shown(subgraph)} cannot be a sub-graph: `assertion` names drafts")
        if _HEX_ADDRESS.fullmatch(part):
            raise BadNameError(f"{_shown(subgraph)} cannot be a sub-graph: a part looks like an address")
        if not _SUBGRAPH_PART.fullmatch(part):
            raise BadNameError(
                f"{_shown(subgraph)} is not a sub-graph: parts of a-z 0-9 . - that begin with a letter or digit, "
                "with / between them"
            )
    return subgraph


@dataclass(frozen=True, slots=True)
class GraphName:
    """A context graph by its readable name: who created it, and a slug."""

    creator: Address
    slug: str

    def __post_init__(self) -> None:
        check_slug(self.slug)

    @staticmethod
    def parse(text: str) -> GraphName:
        return _graph_name(text)

    @property
    def id(self) -> GraphId:
        return graph_id(self.creator, self.slug)

    @property
    def iri(self) -> str:
        return f"{_GRAPH_PREFIX}{self}"

    def __str__(self) -> str:
        return f"{self.creator}/{self.slug}"

    # Named graphs. Every prefix scan over them must include the closing delimiter: `ab` is a prefix of `abc`.

    def _within(self, subgraph: str) -> str:
        return f"{self.iri}/{subgraph}" if subgraph else self.iri

    @property
    def meta_iri(self) -> str:
        """Lifecycle and provenance."""
        return f"{self.iri}/_meta"

    def draft_iri(self, agent: Address, name: str, subgraph: str = "") -> str:
        return f"{self._within(subgraph)}/assertion/{agent}/{name}"

    def shared_iri(self, author: Address, name: str, subgraph: str = "") -> str:
        return f"{self._within(subgraph)}/_shared_memory/{author}/{name}"

    def published_iri(self, author: Address, name: str, subgraph: str = "") -> str:
        return f"{self._within(subgraph)}/_verifiable_memory/{author}/{name}"

    def lifecycle_iri(self, author: Address, name: str) -> str:
        """The subject that stands for an asset in `_meta`."""
        return f"urn:dkg:assertion:{self}:{author}:{name}"


@lru_cache(maxsize=256)
def _graph_name(text: str) -> GraphName:
    """A node's users name the same few graphs again and again."""
    creator, slash, slug = text.removeprefix(_GRAPH_PREFIX).partition("/")
    if not slash:
        raise BadNameError(f"{_shown(text)} is not a context graph: <creator address>/<slug>")
    return GraphName(Address.parse(creator), check_slug(slug))


@lru_cache(maxsize=4_096)
def graph_id(creator: Address, slug: str) -> GraphId:
    """keccak256(abi.encode(address creator, bytes32 keccak256(slug)))."""
    return GraphId(keccak256(bytes(12) + creator + keccak256(check_slug(slug).encode())))


@dataclass(frozen=True, slots=True, order=True)
class AssetKey:
    """A knowledge asset inside one context graph: its author and its name."""

    author: Address
    name: str

    def __str__(self) -> str:
        return f"{self.author}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class VersionKey:
    """One sealed version: whatever is said about it names all five. Equal content by two authors has one root, and an
    author may seal one root twice, in another sub-graph say: then only the digest of the seal tells which is meant."""

    author: Address
    name: str
    version: int
    root: bytes
    seal: bytes

    @property
    def asset(self) -> AssetKey:
        return AssetKey(self.author, self.name)

    @property
    def fields(self) -> tuple[bytes, str, int, bytes, bytes]:
        """As the wire has them, in this order."""
        return (bytes(self.author), self.name, self.version, self.root, self.seal)

    def __str__(self) -> str:
        return f"{self.author}/{self.name} v{self.version} root {hex_id(self.root)[:10]} seal {hex_id(self.seal)[:10]}"


def hex_id(raw: bytes) -> str:
    """Hashes and ids as people and JSON see them."""
    return "0x" + raw.hex()


def parse_hex_id(text: str) -> bytes:
    """The 32 bytes that `text` shows."""
    digits = text.removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != HASH_BYTES or len(digits) != 2 * HASH_BYTES:
        raise BadNameError(f"{_shown(text)} is not an id: 0x and {2 * HASH_BYTES} hexadecimal digits")
    return raw


def _slug_rule() -> str:
    return f"1 to {SLUG_CHARS_MAX} of a-z 0-9 . _ -, beginning with a letter or digit"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
