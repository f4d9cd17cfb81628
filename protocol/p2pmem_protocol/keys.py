"""Secp256k1 signatures as Ethereum makes them, in the one form that counts here.

A signature is 65 bytes: r, s, v, with s in the lower half of the group order (EIP-2) and v 27 or 28. Libraries also
recover from the high-s twin and from v 0 or 1; here both are refused, so that one statement by one key with one nonce
has one signature. A signature is never an identity: the same statement may be signed again with other bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

import coincurve

from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import HASH_BYTES, keccak256
from p2pmem_protocol.names import Address

SIGNATURE_BYTES: Final = 65
_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_HALF_ORDER: Final = _ORDER // 2


class Signer(Protocol):
    """Who can sign a digest: a key in memory, or a wallet elsewhere."""

    @property
    def address(self) -> Address: ...

    def sign(self, digest: bytes) -> bytes:
        """A 65-byte signature of a 32-byte digest."""


class Key:
    """An agent's secret key. Its representation never shows the secret."""

    __slots__ = ("_key", "address")

    def __init__(self, secret: bytes) -> None:
        """Raises `MisuseError` when `secret` is not 32 bytes of a valid scalar."""
        try:
            self._key = coincurve.PrivateKey(secret)
        except ValueError:
            raise MisuseError("an agent key is 32 bytes, neither zero nor past the group order") from None
        if len(secret) != 32:
            raise MisuseError(f"an agent key is 32 bytes, not {len(secret)}")
        self.address: Address = _address_of(self._key.public_key)

    @property
    def secret(self) -> bytes:
        """The secret, for writing a key file and for nothing else."""
        return self._key.secret

    def sign(self, digest: bytes) -> bytes:
        assert len(digest) == HASH_BYTES
        raw = self._key.sign_recoverable(digest, hasher=None)
        signature = raw[:64] + bytes((raw[64] + 27,))
        assert int.from_bytes(raw[32:64]) <= _HALF_ORDER
        return signature

    def __repr__(self) -> str:
        return f"<Key of {self.address}>"


def signer_of(digest: bytes, signature: bytes) -> Address:
    """The address whose key made `signature` over `digest`.

    Some address comes out of almost any 65 bytes: the caller compares it with the one that the statement names. Raises
    `RefusedError(BAD_SIGNATURE)` when the bytes are not in the one form that counts.
    """
    if len(digest) != HASH_BYTES:
        raise MisuseError(f"a digest is {HASH_BYTES} bytes, not {len(digest)}")
    check_form(signature)
    try:
        recoverable = signature[:64] + bytes((signature[64] - 27,))
        public = coincurve.PublicKey.from_signature_and_message(recoverable, digest, hasher=None)
    except ValueError:
        raise RefusedError(Reason.BAD_SIGNATURE, "no key can have made this signature") from None
    return _address_of(public)


def check_form(signature: bytes) -> None:
    """Raises `RefusedError(BAD_SIGNATURE)` unless `signature` is 65 bytes, low-s, with v 27 or 28."""
    if len(signature) != SIGNATURE_BYTES:
        raise RefusedError(Reason.BAD_SIGNATURE, f"a signature of {len(signature)} bytes; {SIGNATURE_BYTES} are right")
    if signature[64] not in (27, 28):
        raise RefusedError(Reason.BAD_SIGNATURE, f"v is {signature[64]}; 27 and 28 are right")
    s = int.from_bytes(signature[32:64])
    if not 0 < s <= _HALF_ORDER:
        raise RefusedError(Reason.BAD_SIGNATURE, "s is zero or in the upper half of the group order")
    if not 0 < int.from_bytes(signature[:32]) < _ORDER:
        raise RefusedError(Reason.BAD_SIGNATURE, "r is zero or past the group order")


def check_signed_by(address: Address, digest: bytes, signature: bytes) -> None:
    """Raises `RefusedError` unless `signature` over `digest` is by `address`."""
    _check_same(address, signer_of(digest, signature))


def check_still_signed_by(address: Address, digest: bytes, signature: bytes) -> None:
    """As `check_signed_by`, for statements that come again inside of others: seals and delegations.

    A renewal carries the seal of the first share, and all that an agent says for a principal carries one delegation.
    The last few thousand recovered signers are remembered; what was refused is not.
    """
    _check_same(address, _remembered_signer_of(digest, signature))


_remembered_signer_of: Final = lru_cache(maxsize=8_192)(signer_of)


def _check_same(named: Address, actual: Address) -> None:
    if actual != named:
        raise RefusedError(Reason.WRONG_SIGNER, f"the signature is not by {named}, who is named as signer")


def _address_of(public: coincurve.PublicKey) -> Address:
    return Address(keccak256(public.format(compressed=False)[1:])[-20:])
