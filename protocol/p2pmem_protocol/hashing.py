"""Keccak-256, the hash of Ethereum (not NIST SHA-3: the padding differs)."""

from __future__ import annotations

from typing import Final

import sha3

HASH_BYTES: Final = 32
ZERO_HASH: Final = bytes(HASH_BYTES)


def keccak256(data: bytes) -> bytes:
    """The 32-byte Keccak-256 digest of `data`."""
    digest: bytes = sha3.keccak_256(data).digest()
    return digest
