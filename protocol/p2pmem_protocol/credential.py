"""Credentials: who may carry an agent's words, and who may speak for a principal. Neither is an envelope.

* `Carry`: an agent says that a peer carries its words. It is shown in hello, has a serial, and ends within 90 days.
* `ActFor`: a principal says that an agent speaks for it, under a label and with at most some rights. It is carried in
  the agent's envelopes, has a serial and no end: it ends by a revocation with a serial not below its own (rule D1).

Endorsing and verifying are not among the rights: they belong to listed principals, and M-of-N counts principals.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.keys import SIGNATURE_BYTES, Signer, check_signed_by, check_still_signed_by
from p2pmem_protocol.limits import CREDENTIAL_MS_MAX, LABEL_CHARS_MAX, TIME_MS_MAX, UINT32_MAX
from p2pmem_protocol.names import Address, NetworkId

PEER_CHARS_MAX: Final = 128
DELEGATION_PREFIX: Final = "p2pmemact1"
DELEGATION_CHARS_MAX: Final = 4_096


class Right(IntFlag):
    """What an agent may do for its principal."""

    SHARE = 1
    PUBLISH = 2
    RETRACT = 4
    PROPOSE = 8

    @classmethod
    def all(cls) -> Right:
        return cls.SHARE | cls.PUBLISH | cls.RETRACT | cls.PROPOSE


@dataclass(frozen=True)
class ActFor:
    """A principal's word that `agent` speaks for it."""

    network: NetworkId
    principal: Address
    agent: Address
    serial: int
    label: str
    rights: Right

    def __post_init__(self) -> None:
        if self.principal == self.agent:
            raise MisuseError("an agent needs no delegation to speak for itself")
        if not 1 <= self.serial <= UINT32_MAX:
            raise MisuseError(f"serial {self.serial} is not from 1 to {UINT32_MAX}")
        if len(self.label) > LABEL_CHARS_MAX:
            raise MisuseError(f"a label has at most {LABEL_CHARS_MAX} characters")

    def _values(self) -> dict[str, FieldValue]:
        return {
            "principal": self.principal,
            "agent": self.agent,
            "serial": self.serial,
            "label": self.label,
            "rights": int(self.rights),
        }

    @cached_property
    def digest(self) -> bytes:
        return digest(Struct.ACT_FOR, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.ACT_FOR, self._values(), self.network)

    def sign(self, signer: Signer) -> SignedActFor:
        if signer.address != self.principal:
            raise MisuseError(f"only {self.principal} can sign this delegation")
        return SignedActFor(self, signer.sign(self.digest))


@dataclass(frozen=True)
class SignedActFor:
    """A delegation with its signature; `check` tells whether it is right."""

    delegation: ActFor
    signature: bytes

    def __str__(self) -> str:
        """One word that hands it to the agent's node."""
        it = self.delegation
        data = cbor.encode({0: it.network, 1: bytes(it.agent), 2: self.to_value()})
        return DELEGATION_PREFIX + base64.b32encode(data).decode().rstrip("=").lower()

    @classmethod
    def parse(cls, text: str) -> SignedActFor:
        """Read the word, signature checked. Raises `MisuseError` when it is not a whole and good one."""
        plain = text.strip()
        if len(plain) > DELEGATION_CHARS_MAX or not plain.startswith(DELEGATION_PREFIX):
            raise MisuseError(f"this is not a delegation: it is one word that begins with {DELEGATION_PREFIX}")
        digits = plain.removeprefix(DELEGATION_PREFIX).upper()
        try:
            data = base64.b32decode(digits + "=" * (-len(digits) % 8))
            reader = Reader(cbor.decode(data, limit_bytes=DELEGATION_CHARS_MAX), "a delegation")
            network, agent = NetworkId(reader.hash(0)), reader.address(1)
            signed = cls.from_value(reader.nested(2), network, agent)
            reader.end()
            signed.check()
            if str(signed) != plain:
                raise RefusedError(Reason.NOT_DETERMINISTIC, "there is one way to write it, and this is another")
        except (ValueError, RefusedError) as error:
            raise MisuseError(f"the delegation is damaged ({error}); copy the whole word") from None
        return signed

    def check(self) -> None:
        check_still_signed_by(self.delegation.principal, self.delegation.digest, self.signature)

    def to_value(self) -> dict[int, Value]:
        it = self.delegation
        return {0: bytes(it.principal), 1: it.serial, 2: it.label, 3: int(it.rights), 4: self.signature}

    @classmethod
    def from_value(cls, value: Value, network: NetworkId, agent: Address) -> SignedActFor:
        """The agent is the author of the envelope that carries the delegation."""
        reader = Reader(value, "a delegation")
        principal = reader.address(0)
        serial = reader.uint(1, UINT32_MAX, 1)
        label = reader.text(2, LABEL_CHARS_MAX)
        rights = Right(reader.uint(3, int(Right.all()), 1))
        signature = reader.raw(4, SIGNATURE_BYTES, SIGNATURE_BYTES)
        reader.end()
        if principal == agent:
            raise RefusedError(Reason.BAD_FIELD, "a delegation from an agent to itself")
        return cls(ActFor(network, principal, agent, serial, label, rights), signature)


@dataclass(frozen=True)
class Carry:
    """An agent's word that `peer` carries its words until `until_ms`. Copied to another peer it is useless."""

    network: NetworkId
    agent: Address
    peer: str
    serial: int
    until_ms: int

    def __post_init__(self) -> None:
        if not 1 <= self.serial <= UINT32_MAX:
            raise MisuseError(f"serial {self.serial} is not from 1 to {UINT32_MAX}")
        if not 0 < self.until_ms <= TIME_MS_MAX or not 0 < len(self.peer) <= PEER_CHARS_MAX:
            raise MisuseError("a credential names a peer and an end")

    def _values(self) -> dict[str, FieldValue]:
        return {"agent": self.agent, "peer": self.peer, "serial": self.serial, "until": self.until_ms}

    @cached_property
    def digest(self) -> bytes:
        return digest(Struct.CARRY, self._values(), self.network)

    def typed_data(self) -> dict[str, object]:
        return typed_data(Struct.CARRY, self._values(), self.network)

    def sign(self, signer: Signer) -> SignedCarry:
        if signer.address != self.agent:
            raise MisuseError(f"only {self.agent} can sign this credential")
        return SignedCarry(self, signer.sign(self.digest))


@dataclass(frozen=True)
class SignedCarry:
    """A credential with its signature; `check` tells whether it holds for a peer at a time."""

    carry: Carry
    signature: bytes

    def check(self, now_ms: int) -> None:
        """Raises `RefusedError` when it has ended, lasts longer than 90 days, or is not signed by its agent."""
        if now_ms >= self.carry.until_ms:
            raise RefusedError(Reason.CREDENTIAL_ENDED, f"the credential of {self.carry.agent} has ended")
        if self.carry.until_ms - now_ms > CREDENTIAL_MS_MAX:
            raise RefusedError(Reason.BAD_LIFE, "a credential ends within 90 days")
        check_signed_by(self.carry.agent, self.carry.digest, self.signature)

    def to_value(self) -> dict[int, Value]:
        it = self.carry
        return {0: bytes(it.agent), 1: it.serial, 2: it.until_ms, 3: self.signature}

    @classmethod
    def from_value(cls, value: Value, network: NetworkId, peer: str) -> SignedCarry:
        """The peer is the one that the secure channel proved, so a credential of another peer fails its signature."""
        reader = Reader(value, "a credential")
        carry = Carry(
            network=network,
            agent=reader.address(0),
            peer=peer,
            serial=reader.uint(1, UINT32_MAX, 1),
            until_ms=reader.uint(2, TIME_MS_MAX, 1),
        )
        signature = reader.raw(3, SIGNATURE_BYTES, SIGNATURE_BYTES)
        reader.end()
        return cls(carry, signature)
