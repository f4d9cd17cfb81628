"""Invites, and the join stream: how somebody who is not a member becomes one.

An *invite* is one string: `p2pmem1` and base32 of a CBOR map with graph, addresses, head and token. The token makes a
key. Who made the invite keeps the key's address with roles, uses left and end; the string itself gives nobody a right.

On the *join stream*, the only one that a stranger may open, the opener sends one `Ask` and gets one `Answer`. An `Ask`
shows credentials, and an entry, signed with the key of an invite, or a roster chain that lists one of the agents (rule
J1). Whoever is listed by the head gets the roster; who shows a good entry becomes listed first, or waits for the owner.
The token itself is never sent. An entry lets in nobody but the peer and the agents whose ask it is part of, so it is of
no use to a member who passes the ask on. Of an open graph anybody who names
it gets the roster, marked `OPEN` (rule J2). Everybody else gets `NO`: a stranger's question and a non-member's get one
answer, the same bytes, whether or not the graph is known here.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from enum import IntEnum, unique
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.eip712 import FieldValue, Struct, digest
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.hello import HELLO_BYTES_MAX, Greeting, Proof
from p2pmem_protocol.keys import SIGNATURE_BYTES, Key, check_form, signer_of
from p2pmem_protocol.limits import LABEL_CHARS_MAX, ROSTER_PART_BYTES_MAX
from p2pmem_protocol.names import Address, GraphId, GraphName, NetworkId, check_slug
from p2pmem_protocol.roster import Parts, SignedHeader

INVITE_PREFIX: Final = "p2pmem1"
INVITE_CHARS_MAX: Final = 32_768
"""Above what as many and as long addresses as there may be come to, so that whatever is made can be read."""
ADDRESSES_MAX: Final = 16
ADDRESS_CHARS_MAX: Final = 256
TOKEN_BYTES: Final = 16
HEADERS_MAX: Final = 10_000
ANSWER_BYTES_MAX: Final = 4 * ROSTER_PART_BYTES_MAX
_KEY_OF_TOKEN: Final = b"p2pmem invite"


@dataclass(frozen=True, slots=True)
class Invite:
    """Where to ask, and for what. `token` is empty when the agent is listed already."""

    network: NetworkId
    graph: GraphName
    addresses: tuple[str, ...]
    head: bytes
    token: bytes

    def __post_init__(self) -> None:
        lengths = [len(it) for it in self.addresses]
        if not 0 < len(lengths) <= ADDRESSES_MAX or not all(0 < it <= ADDRESS_CHARS_MAX for it in lengths):
            raise MisuseError(f"an invite names 1 to {ADDRESSES_MAX} addresses of 1 to {ADDRESS_CHARS_MAX} characters")

    def __str__(self) -> str:
        value: dict[int, Value] = {
            0: self.network,
            1: bytes(self.graph.creator),
            2: self.graph.slug,
            3: [*self.addresses],
            4: self.head,
            5: self.token,
        }
        return INVITE_PREFIX + base64.b32encode(cbor.encode(value)).decode().rstrip("=").lower()

    @classmethod
    def parse(cls, text: str) -> Invite:
        """Raises `MisuseError` when the text is not a whole invite."""
        plain = text.strip()
        if len(plain) > INVITE_CHARS_MAX or not plain.startswith(INVITE_PREFIX):
            raise MisuseError(f"this is not an invite: it is one word that begins with {INVITE_PREFIX}")
        digits = plain.removeprefix(INVITE_PREFIX).upper()
        try:
            data = base64.b32decode(digits + "=" * (-len(digits) % 8))
            invite = cls._read(Reader(cbor.decode(data, limit_bytes=INVITE_CHARS_MAX), "an invite"))
        except (ValueError, RefusedError) as error:
            raise MisuseError(f"the invite is damaged ({error}); copy the whole word") from None
        if str(invite) != plain.lower():
            raise MisuseError("the invite is damaged (its last letter is not the one written); copy the whole word")
        return invite

    @classmethod
    def _read(cls, reader: Reader) -> Invite:
        network = NetworkId(reader.hash(0))
        graph = GraphName(reader.address(1), reader.name(2, check_slug))
        addresses = reader.texts(3, ADDRESSES_MAX, ADDRESS_CHARS_MAX)
        head, token = reader.hash(4), reader.raw(5, TOKEN_BYTES)
        reader.end()
        return cls(network, graph, addresses, head, token)


@dataclass(frozen=True, slots=True)
class Chain:
    """A roster with the headers that lead to it, root act first."""

    headers: tuple[SignedHeader, ...]
    parts: Parts

    def to_value(self) -> Value:
        parts: list[Value] = [*self.parts.all]
        return [[header.encode() for header in self.headers], parts]

    @classmethod
    def from_value(cls, value: Value) -> Chain:
        reader = Reader.of_list(value, 2, "a chain")
        headers = tuple(map(SignedHeader.decode, reader.strings(0, HEADERS_MAX, 1)))
        parts = Reader.of_list(reader.nested(1), 4, "the parts of a roster")
        return cls(headers, Parts(*(parts.raw(position, ANSWER_BYTES_MAX) for position in range(4))))


def invite_key(token: bytes) -> Key:
    """The key that a token makes. Who gives out the invite keeps its address alone."""
    return Key(keccak256(_KEY_OF_TOKEN + token))


@dataclass(frozen=True, slots=True)
class Ask:
    """May I come in? `entry` is empty without an invite, or 65 bytes signed with its key."""

    greeting: Greeting
    proof: Proof
    graph: GraphId
    label: str
    entry: bytes = b""
    chain: Chain | None = None

    def enter(self, token: bytes, peer: str) -> Ask:
        """The same ask by `peer`, with the invite that has this token; without a token, the ask as it is."""
        if not token:
            return self
        return replace(self, entry=invite_key(token).sign(self._entry_digest(peer)))

    def entry_key(self, peer: str) -> Address | None:
        """The address of the key that `peer`, who asks, used; None without an entry. That of no invite at all when the
        entry was made for another peer, graph, moment or label, or other agents."""
        if not self.entry:
            return None
        try:
            return signer_of(self._entry_digest(peer), self.entry)
        except RefusedError:
            return None  # no key can have made it

    def _entry_digest(self, peer: str) -> bytes:
        values: dict[str, FieldValue] = {
            "graph": self.graph,
            "peer": peer,
            "proof": self.proof.encode(),
            "label": self.label,
            "at": self.greeting.clock_ms,
        }
        return digest(Struct.ENTER, values, self.greeting.network)

    def encode(self) -> bytes:
        fields: dict[int, Value] = {0: self.greeting.encode(), 1: self.proof.encode(), 2: self.graph}
        if self.entry:
            fields[3] = self.entry
        fields[4] = self.label
        if self.chain is not None:
            fields[5] = self.chain.to_value()
        return cbor.encode(fields)

    @classmethod
    def decode(cls, data: bytes, network: NetworkId, peer: str) -> Ask:
        reader = Reader(cbor.decode(data, limit_bytes=ANSWER_BYTES_MAX), "a join request")
        ask = cls(
            greeting=Greeting.decode(reader.raw(0, HELLO_BYTES_MAX)),
            proof=Proof.decode(reader.raw(1, HELLO_BYTES_MAX), network, peer),
            graph=GraphId(reader.hash(2)),
            label=reader.text(4, LABEL_CHARS_MAX),
            entry=reader.raw(3, SIGNATURE_BYTES, SIGNATURE_BYTES) if reader.has(3) else b"",
            chain=Chain.from_value(reader.nested(5)) if reader.has(5) else None,
        )
        reader.end()
        if ask.entry:
            check_form(ask.entry)
        return ask


@unique
class Reply(IntEnum):
    NO = 0
    LISTED = 1
    WAITING = 2
    OPEN = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """LISTED comes with the roster, OPEN too, for who is not listed and may read all the same; WAITING means that a
    person decides; NO says nothing more."""

    reply: Reply
    chain: Chain | None = None

    def encode(self) -> bytes:
        fields: dict[int, Value] = {0: int(self.reply)}
        if self.chain is not None:
            fields[1] = self.chain.to_value()
        return cbor.encode(fields)

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        reader = Reader(cbor.decode(data, limit_bytes=ANSWER_BYTES_MAX), "an answer to a join request")
        reply = Reply(reader.uint(0, max(Reply)))
        chain = Chain.from_value(reader.nested(1)) if reader.has(1) else None
        reader.end()
        if (reply in (Reply.LISTED, Reply.OPEN)) != (chain is not None):
            raise RefusedError(Reason.BAD_SHAPE, "a roster comes with LISTED and OPEN, and with nothing else")
        return cls(reply, chain)
