"""Ids of jobs: 26 characters, ordered by the time of their making, then random (the form is that of a ULID)."""

from __future__ import annotations

from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BYTES = 10


def new_id(now_ms: int, random_bytes: Callable[[int], bytes]) -> str:
    """An id of 48 bits of time and 80 random ones, in lower-case base 32 without i, l, o and u."""
    assert 0 <= now_ms < 2**48
    number = now_ms << (8 * _RANDOM_BYTES) | int.from_bytes(random_bytes(_RANDOM_BYTES), "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
