"""Invites that were given out and may still be used, and the requests of those who wait for a person.

Kept is the address of an invite's key, never the token that the key is made from: who reads the ledger can let in
nobody.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.join import TOKEN_BYTES, invite_key
from p2pmem_protocol.names import Address, GraphId
from p2pmem_protocol.roster import Role

from p2pmem.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Somebody with a good invite who waits for the owner."""

    id: bytes
    graph: GraphId
    agent: Address
    label: str
    roles: Role
    peer: str
    asked_ms: int


@dataclass(frozen=True, slots=True)
class Use:
    """What one use of an invite gives: roles, at once or after a person has said yes."""

    roles: Role
    asks_a_person: bool


class Invites:
    """Rows of the owner's ledger. Writes are on disk when they return; one that waits is withdrawn when cancelled."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def make(self, graph: GraphId, roles: Role, uses: int, life_ms: int, *, ask: bool) -> bytes:
        """The token of a new invite, which is kept nowhere."""
        token = self._ledger.random_bytes(TOKEN_BYTES)
        ends_ms = self._ledger.clock.now_ms() + life_ms
        row = (invite_key(token).address, graph, int(roles | Role.READER), uses, ends_ms, int(ask))
        await self._ledger.database.write(
            lambda connection: connection.execute("INSERT INTO invite VALUES (?, ?, ?, ?, ?, ?)", row)
        )
        return token

    async def use(self, graph: GraphId, key: Address) -> Use | None:
        """Take one use off the invite with this key; None when there is none, or it is used up or has ended."""
        now_ms = self._ledger.clock.now_ms()

        def take(connection: sqlite3.Connection) -> Use | None:
            row = connection.execute(
                "UPDATE invite SET uses = uses - 1 "
                "WHERE key = ? AND graph = ? AND uses > 0 AND expires_ms > ? RETURNING roles, asks",
                (key, graph, now_ms),
            ).fetchone()
            return Use(Role(row[0]), bool(row[1])) if row else None

        return await self._ledger.database.write(take)

    # Requests that wait for a person

    def requests(self, graph: GraphId | None) -> list[JoinRequest]:
        """Who waits to be let in, oldest first."""
        rows = self._ledger.database.read(
            lambda connection: connection.execute(
                "SELECT id, graph, agent, label, roles, peer, asked_ms FROM join_request "
                "WHERE ?1 IS NULL OR graph = ?1 ORDER BY asked_ms",
                (graph,),
            ).fetchall()
        )
        return [
            JoinRequest(row[0], GraphId(row[1]), Address(row[2]), row[3], Role(row[4]), row[5], row[6]) for row in rows
        ]

    def waits(self, graph: GraphId, agent: Address) -> bool:
        return any(request.agent == agent for request in self.requests(graph))

    async def note_request(self, graph: GraphId, agent: Address, label: str, roles: Role, peer: str) -> None:
        now_ms = self._ledger.clock.now_ms()
        request_id = keccak256(graph + agent + now_ms.to_bytes(8))
        row = (request_id, graph, agent, label, int(roles), peer, now_ms)
        await self._ledger.database.write(
            lambda connection: connection.execute(
                "INSERT OR IGNORE INTO join_request VALUES (?, ?, ?, ?, ?, ?, ?)", row
            )
        )

    async def forget_request(self, request_id: bytes) -> None:
        await self._ledger.database.write(
            lambda connection: connection.execute("DELETE FROM join_request WHERE id = ?", (request_id,))
        )
