"""Keccak-256, the hash of the Ethereum world (not the later SHA3-256)."""

from __future__ import annotations

import sha3


def keccak256(data: bytes) -> bytes:
    """32 bytes. Source: the Keccak submission with its original padding, as in the Ethereum yellow paper."""
    return bytes(sha3.keccak_256(data).digest())
