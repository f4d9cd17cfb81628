"""The audit trail: a chain of hashes over salted payloads.

Each entry hashes the one before it and H(salt, payload). Payloads stand aside, so one may be erased (a query's text, a
name) and the chain still holds: what was there can no longer be read, but also not replaced. Sweeps are one entry each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.hashing import ZERO_HASH, keccak256

SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry; `payload` is None when it was erased."""

    entry: int
    at_ms: int
    what: str
    payload: str | None


def append(
    connection: sqlite3.Connection, at_ms: int, what: str, payload: str, random_bytes: Callable[[int], bytes]
) -> int:
    """Add an entry inside the caller's transaction; returns its number."""
    last = connection.execute("SELECT entry, chain_hash FROM audit ORDER BY entry DESC LIMIT 1").fetchone()
    entry, before = (last[0] + 1, last[1]) if last else (1, ZERO_HASH)
    salt = random_bytes(SALT_BYTES)
    payload_hash = keccak256(salt + payload.encode())
    chain_hash = _link(before, entry, at_ms, what, payload_hash)
    connection.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?)", (entry, at_ms, what, payload_hash, chain_hash))
    connection.execute("INSERT INTO audit_payload VALUES (?, ?, ?)", (entry, salt, payload))
    return entry


def broken_at(connection: sqlite3.Connection) -> int | None:
    """The first entry that does not follow from those before it, or whose payload is not what was hashed."""
    before = ZERO_HASH
    rows = connection.execute(
        "SELECT entry, at_ms, what, payload_hash, chain_hash, salt, payload "
        "FROM audit LEFT JOIN audit_payload USING (entry) ORDER BY entry"
    )
    for expected, (entry, at_ms, what, payload_hash, chain_hash, salt, payload) in enumerate(rows, 1):
        if entry != expected or chain_hash != _link(before, entry, at_ms, what, payload_hash):
            return int(entry)
        if payload is not None and keccak256(salt + payload.encode()) != payload_hash:
            return int(entry)
        before = chain_hash
    return None


def read(connection: sqlite3.Connection, since: int, limit: int) -> list[AuditEntry]:
    rows = connection.execute(
        "SELECT entry, at_ms, what, payload FROM audit LEFT JOIN audit_payload USING (entry) "
        "WHERE entry > ? ORDER BY entry LIMIT ?",
        (since, limit),
    )
    return [AuditEntry(*row) for row in rows]


def _link(before: bytes, entry: int, at_ms: int, what: str, payload_hash: bytes) -> bytes:
    word = what.encode()
    return keccak256(before + entry.to_bytes(8) + at_ms.to_bytes(8) + len(word).to_bytes(2) + word + payload_hash)
