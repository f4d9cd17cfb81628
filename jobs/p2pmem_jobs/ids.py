"""Ids of jobs: ordered by the time of their making, then random."""

from __future__ import annotations

from collections.abc import Callable

_TIME_BYTES = 6
_TIME_MAX_MS = (1 << 48) - 1
_RANDOM_BYTES = 8


def new_id(now_ms: int, random_bytes: Callable[[int], bytes]) -> str:
    """28 hexadecimal characters: 48 bits of time in milliseconds, and 64 random ones. A clock may stand anywhere."""
    time_ms = min(max(now_ms, 0), _TIME_MAX_MS)
    return (time_ms.to_bytes(_TIME_BYTES, "big") + random_bytes(_RANDOM_BYTES)).hex()
