"""Envelopes: everything that peers tell each other durably, but for evidence and rosters.

An envelope is a deterministic CBOR map, signed by its author, and its id is the EIP-712 digest of what is signed: two
signatures over one statement are one envelope. Decoding checks form and life span, cheapest first; the signature is
checked by `check`, because most of what arrives twice is known by its id before that.

    0 format      1 network     2 graph       3 kind        4 author      5 delegation (optional)
    6 roster      7 issued_at   8 expires_at  9 body (CBOR in a byte string)                10 signature
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.bodies import BODIES, Body, Context, Retract, Sealed
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.evidence import Evidence
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.keys import SIGNATURE_BYTES, Signer, check_signed_by
from p2pmem_protocol.kinds import DURABLE, EVIDENCE, Kind
from p2pmem_protocol.limits import BODY_BYTES_MAX, ITEM_BYTES_MAX, TIME_MS_MAX, UINT32_MAX
from p2pmem_protocol.names import Address, GraphId, NetworkId

FORMAT: Final = 1
NEVER: Final = 0


@dataclass(frozen=True)
class Unsigned:
    """An envelope before its signature: what the author is asked to sign.

    `roster` is the version of the roster that the author saw: a hint, it gives nobody a right. `expires_at_ms` is 0 for
    kinds that stay and later than `issued_at_ms` for all others.
    """

    network: NetworkId
    graph: GraphId
    kind: Kind
    author: Address
    delegation: SignedActFor | None
    roster: int
    issued_at_ms: int
    expires_at_ms: int
    body: Body
    body_bytes: bytes = field(init=False, compare=False, repr=False)
    """The encoding of `body`, which is what is signed."""
    read_from: InitVar[bytes | None] = None
    """The bytes that `body` was read from, where it was read: they are not made again."""

    def __post_init__(self, read_from: bytes | None) -> None:
        if self.kind in EVIDENCE or not isinstance(self.body, BODIES[self.kind]):
            raise MisuseError(f"a {type(self.body).__name__} is not the body of a {self.kind.word}")
        problem = life_problem(self.kind, self.issued_at_ms, self.expires_at_ms)
        if problem:
            raise MisuseError(problem)
        encoded = cbor.encode(self.body.to_value()) if read_from is None else read_from
        object.__setattr__(self, "body_bytes", encoded)
        if len(self.body_bytes) > BODY_BYTES_MAX:
            raise MisuseError(f"the body has {len(self.body_bytes)} bytes, at most {BODY_BYTES_MAX} are possible")

    def _values(self) -> dict[str, FieldValue]:
        return {
            "graph": self.graph,
            "kind": int(self.kind),
            "author": self.author,
            "delegation": self.delegation.delegation.digest if self.delegation else ZERO_HASH,
            "roster": self.roster,
            "issuedAt": self.issued_at_ms,
            "expiresAt": self.expires_at_ms,
            "body": self.body_bytes,
        }

    @cached_property
    def id(self) -> bytes:
        return digest(Struct.ENVELOPE, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.ENVELOPE, self._values(), self.network)

    def sign(self, signer: Signer) -> Envelope:
        if signer.address != self.author:
            raise MisuseError(f"the envelope names {self.author} as author; {signer.address} cannot sign it")
        return Envelope(self, signer.sign(self.id))


@dataclass(frozen=True)
class Envelope:
    """A signed envelope. Its id does not depend on the signature."""

    unsigned: Unsigned
    signature: bytes

    @property
    def id(self) -> bytes:
        return self.unsigned.id

    @property
    def kind(self) -> Kind:
        return self.unsigned.kind

    @property
    def network(self) -> NetworkId:
        return self.unsigned.network

    @property
    def graph(self) -> GraphId:
        return self.unsigned.graph

    @property
    def author(self) -> Address:
        return self.unsigned.author

    @property
    def delegation(self) -> SignedActFor | None:
        return self.unsigned.delegation

    @property
    def principal(self) -> Address:
        """Whose role, quota and rights it uses: the author's own, or the principal's that it shows."""
        shown = self.unsigned.delegation
        return shown.delegation.principal if shown else self.unsigned.author

    @property
    def issued_at_ms(self) -> int:
        return self.unsigned.issued_at_ms

    @property
    def expires_at_ms(self) -> int:
        return self.unsigned.expires_at_ms

    @property
    def body(self) -> Body:
        return self.unsigned.body

    def check(self) -> None:
        """Raises `RefusedError` unless envelope, delegations and seal are each signed by who they name."""
        check_signed_by(self.author, self.id, self.signature)
        if self.unsigned.delegation is not None:
            self.unsigned.delegation.check()
        if isinstance(self.body, Sealed):
            self.body.seal.check()
        if isinstance(self.body, Retract) and self.body.shown is not None:
            self.body.shown.check()

    def encode(self) -> bytes:
        it = self.unsigned
        fields: dict[int, Value] = {
            0: FORMAT,
            1: it.network,
            2: it.graph,
            3: int(it.kind),
            4: bytes(it.author),
            6: it.roster,
            7: it.issued_at_ms,
            8: it.expires_at_ms,
            9: it.body_bytes,
            10: self.signature,
        }
        if it.delegation is not None:
            fields[5] = it.delegation.to_value()
        return cbor.encode(fields)

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        """Read an envelope; raises `RefusedError` when its form is wrong. The signature is not checked yet."""
        return cls.from_value(cbor.decode(data, limit_bytes=ITEM_BYTES_MAX))

    @classmethod
    def from_value(cls, value: Value) -> Envelope:
        reader = Reader(value, "an envelope")
        if reader.uint(0, UINT32_MAX) != FORMAT:
            raise RefusedError(Reason.BAD_VERSION, "a format of envelope that is not known here")
        network = NetworkId(reader.hash(1))
        graph = GraphId(reader.hash(2))
        kind = _kind(reader.uint(3, UINT32_MAX))
        author = reader.address(4)
        delegation = SignedActFor.from_value(reader.nested(5), network, author) if reader.has(5) else None
        roster = reader.uint(6, UINT32_MAX)
        issued_at_ms = reader.uint(7, TIME_MS_MAX)
        expires_at_ms = reader.uint(8, TIME_MS_MAX)
        body_bytes = reader.raw(9, BODY_BYTES_MAX, 1)
        signature = reader.raw(10, SIGNATURE_BYTES, SIGNATURE_BYTES)
        reader.end()
        problem = life_problem(kind, issued_at_ms, expires_at_ms)
        if problem:
            raise RefusedError(Reason.BAD_LIFE, problem)
        body_value = cbor.decode(body_bytes, limit_bytes=BODY_BYTES_MAX)
        body = BODIES[kind].from_value(body_value, Context(network, graph, author))
        unsigned = Unsigned(
            network, graph, kind, author, delegation, roster, issued_at_ms, expires_at_ms, body, body_bytes
        )
        return cls(unsigned, signature)


Item = Envelope | Evidence
_EVIDENCE_NUMBERS: Final = tuple(int(kind) for kind in EVIDENCE)


def decode_item(data: bytes) -> Item:
    """Read whatever may be in the set of a graph: an envelope or a piece of evidence.

    Raises `RefusedError`; with `UNKNOWN_KIND` for a kind of a later release, which is skipped and nobody's fault.
    """
    value = cbor.decode(data, limit_bytes=ITEM_BYTES_MAX)
    if isinstance(value, dict):
        _check_known_kind(value.get(0), value.get(3))
        if value.get(3) in _EVIDENCE_NUMBERS:
            return Evidence.from_value(value)
    return Envelope.from_value(value)


def _check_known_kind(written_format: Value, number: Value) -> None:
    """Before any other field: a later kind may have other fields than ours, and who hands it on is not to blame."""
    if type(written_format) is not int or written_format != FORMAT or type(number) is not int:
        return
    if 0 <= number <= UINT32_MAX and number not in _KINDS:
        raise RefusedError(Reason.UNKNOWN_KIND, f"kind {number} belongs to a later release")


def life_problem(kind: Kind, issued_at_ms: int, expires_at_ms: int) -> str | None:
    """What is wrong with a life span whatever the roster says, or None."""
    if not 0 < issued_at_ms <= TIME_MS_MAX:
        return f"issued_at {issued_at_ms} is not from 1 to {TIME_MS_MAX}"
    if kind in DURABLE:
        return None if expires_at_ms == NEVER else f"a {kind.word} stays: its expiry is 0, not {expires_at_ms}"
    if not issued_at_ms < expires_at_ms <= TIME_MS_MAX:
        return f"a {kind.word} ends after it was issued and before the year 10000, not at {expires_at_ms}"
    return None


_KINDS: Final = {int(kind): kind for kind in Kind}


def _kind(number: int) -> Kind:
    kind = _KINDS.get(number)
    if kind is None:
        raise RefusedError(Reason.UNKNOWN_KIND, f"kind {number} belongs to a later release")
    if kind in EVIDENCE:
        raise RefusedError(Reason.BAD_SHAPE, f"a {kind.word} has no outer envelope")
    return kind
