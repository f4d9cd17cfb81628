"""A change of members that an approver prepared, for the owner's node to sign as one step.

It gives nobody a right and is in no set: the roster that the owner signs does all. It names the roster that it was
prepared on, so that it means what its approver saw, and is good for that one alone. The change itself is text, as it is
asked for (JSON): a wallet shows it to who signs, and the node that makes the roster of it reads it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.keys import SIGNATURE_BYTES, Signer, check_signed_by
from p2pmem_protocol.names import Address, GraphId, NetworkId

PREPARED_PREFIX: Final = "p2pmemchange1"
CHANGE_CHARS_MAX: Final = 65_536
PREPARED_CHARS_MAX: Final = 8 * CHANGE_CHARS_MAX
"""A character has at most 4 bytes, and 5 bytes are 8 letters: whatever is made can be read."""


@dataclass(frozen=True)
class Prepared:
    """What an approver wishes the next roster after `parent`, the id of a header, to be."""

    network: NetworkId
    graph: GraphId
    parent: bytes
    change: str
    approver: Address

    def __post_init__(self) -> None:
        if not 0 < len(self.change) <= CHANGE_CHARS_MAX:
            raise MisuseError(f"a change that is prepared has 1 to {CHANGE_CHARS_MAX} characters")

    def _values(self) -> dict[str, FieldValue]:
        return {"graph": self.graph, "parent": self.parent, "change": self.change, "approver": self.approver}

    @cached_property
    def digest(self) -> bytes:
        return digest(Struct.PREPARE, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.PREPARE, self._values(), self.network)

    def sign(self, signer: Signer) -> SignedPrepared:
        if signer.address != self.approver:
            raise MisuseError(f"only {self.approver} can sign what it prepared")
        return SignedPrepared(self, signer.sign(self.digest))


@dataclass(frozen=True)
class SignedPrepared:
    """The same with its signature; `check` tells whether it is right."""

    prepared: Prepared
    signature: bytes

    def __str__(self) -> str:
        """One word that hands it to the owner's node."""
        it = self.prepared
        data = cbor.encode(
            {0: it.network, 1: it.graph, 2: it.parent, 3: it.change, 4: bytes(it.approver), 5: self.signature}
        )
        return PREPARED_PREFIX + base64.b32encode(data).decode().rstrip("=").lower()

    @classmethod
    def parse(cls, text: str) -> SignedPrepared:
        """Read the word, signature checked. Raises `MisuseError` when it is not a whole and good one."""
        plain = text.strip()
        if len(plain) > PREPARED_CHARS_MAX or not plain.startswith(PREPARED_PREFIX):
            raise MisuseError(f"this is not a change that was prepared: it is one word that begins {PREPARED_PREFIX}")
        digits = plain.removeprefix(PREPARED_PREFIX).upper()
        try:
            data = base64.b32decode(digits + "=" * (-len(digits) % 8))
            reader = Reader(cbor.decode(data, limit_bytes=PREPARED_CHARS_MAX), "a change that was prepared")
            prepared = Prepared(
                NetworkId(reader.hash(0)),
                GraphId(reader.hash(1)),
                reader.hash(2),
                reader.text(3, CHANGE_CHARS_MAX, 1),
                reader.address(4),
            )
            signed = cls(prepared, reader.raw(5, SIGNATURE_BYTES, SIGNATURE_BYTES))
            reader.end()
            signed.check()
            if str(signed) != plain:
                raise RefusedError(Reason.NOT_DETERMINISTIC, "there is one way to write it, and this is another")
        except (ValueError, RefusedError) as error:
            raise MisuseError(f"the change that was prepared is damaged ({error}); copy the whole word") from None
        return signed

    def check(self) -> None:
        check_signed_by(self.prepared.approver, self.prepared.digest, self.signature)
