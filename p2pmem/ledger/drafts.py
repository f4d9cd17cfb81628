"""Private drafts, and what this node's agents sealed: rows and values. Functions of an open connection.

A draft is in no other view than its agent's. When it is shared it moves: the draft goes, and the sealed version stays
with its author until it is discarded, whatever the life of what was shared.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

from p2pmem_protocol import cbor
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.limits import CONTENT_BYTES_MAX
from p2pmem_protocol.names import Address, AssetKey, GraphId, NetworkId
from p2pmem_protocol.seal import SignedSeal

_DRAFT_COLUMNS: Final = "graph, agent, name, subgraph, content, seal, sealed_hash, updated_ms"
_OWN_COLUMNS: Final = "graph, agent, name, version, root, seal, content_hash, sealed_ms"


@dataclass(frozen=True, slots=True)
class Draft:
    """Working memory: canonical content that one agent has not shared yet.

    `seal` is what was last sealed and `sealed_hash` the hash of the content it was made over.
    """

    graph: GraphId
    agent: Address
    name: str
    subgraph: str
    content: bytes
    seal: SignedSeal | None
    sealed_hash: bytes | None
    updated_ms: int

    @property
    def key(self) -> AssetKey:
        return AssetKey(self.agent, self.name)

    @property
    def edited(self) -> bool:
        """Whether it was edited after it was sealed: its content, or the sub-graph that it is to stand in."""
        if self.seal is None:
            return False
        return self.sealed_hash != keccak256(self.content) or self.seal.seal.subgraph != self.subgraph


@dataclass(frozen=True, slots=True)
class OwnVersion:
    """A version that this node's agent sealed and let go."""

    graph: GraphId
    agent: Address
    name: str
    version: int
    root: bytes
    seal: SignedSeal
    content_hash: bytes
    sealed_ms: int


def read_draft(connection: sqlite3.Connection, network: NetworkId, graph: GraphId, key: AssetKey) -> Draft | None:
    row = connection.execute(
        f"SELECT {_DRAFT_COLUMNS} FROM draft WHERE graph = ? AND agent = ? AND name = ?",  # noqa: S608 - columns only
        (graph, key.author, key.name),
    ).fetchone()
    return _draft(row, network) if row else None


def read_drafts(connection: sqlite3.Connection, network: NetworkId, graph: GraphId | None) -> list[Draft]:
    rows = connection.execute(
        f"SELECT {_DRAFT_COLUMNS} FROM draft WHERE ?1 IS NULL OR graph = ?1 ORDER BY updated_ms, name",  # noqa: S608
        (graph,),
    )
    return [_draft(row, network) for row in rows]


def write_draft(connection: sqlite3.Connection, draft: Draft) -> None:
    assert 0 < len(draft.content) <= CONTENT_BYTES_MAX
    connection.execute(
        f"INSERT OR REPLACE INTO draft({_DRAFT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            draft.graph,
            draft.agent,
            draft.name,
            draft.subgraph,
            draft.content,
            cbor.encode(draft.seal.to_value()) if draft.seal else None,
            draft.sealed_hash,
            draft.updated_ms,
        ),
    )


def delete_draft(connection: sqlite3.Connection, graph: GraphId, key: AssetKey) -> bool:
    """Whether there was one."""
    cursor = connection.execute(
        "DELETE FROM draft WHERE graph = ? AND agent = ? AND name = ?", (graph, key.author, key.name)
    )
    return cursor.rowcount > 0


def delete_draft_of(connection: sqlite3.Connection, draft: Draft) -> None:
    """Delete a draft if it still says the same."""
    connection.execute(
        "DELETE FROM draft WHERE graph = ? AND agent = ? AND name = ? AND content = ? AND subgraph = ?",
        (draft.graph, draft.agent, draft.name, draft.content, draft.subgraph),
    )


def write_own(connection: sqlite3.Connection, own: OwnVersion) -> None:
    connection.execute(
        f"INSERT OR IGNORE INTO own({_OWN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            own.graph,
            own.agent,
            own.name,
            own.version,
            own.root,
            cbor.encode(own.seal.to_value()),
            own.content_hash,
            own.sealed_ms,
        ),
    )


def latest_own(connection: sqlite3.Connection, network: NetworkId, graph: GraphId, key: AssetKey) -> OwnVersion | None:
    """The newest version of an asset that this node's agent let go."""
    row = connection.execute(
        f"SELECT {_OWN_COLUMNS} FROM own WHERE graph = ? AND agent = ? AND name = ? "  # noqa: S608
        "ORDER BY version DESC LIMIT 1",
        (graph, key.author, key.name),
    ).fetchone()
    return _own(row, network) if row else None


def _draft(row: tuple[Any, ...], network: NetworkId) -> Draft:
    graph, agent, name, subgraph, content, seal, sealed_hash, updated_ms = row
    return Draft(
        GraphId(graph),
        Address(agent),
        name,
        subgraph,
        content,
        SignedSeal.from_value(cbor.decode(seal), network, GraphId(graph), Address(agent)) if seal else None,
        sealed_hash,
        updated_ms,
    )


def _own(row: tuple[Any, ...], network: NetworkId) -> OwnVersion:
    graph, agent, name, version, root, seal, content_hash, sealed_ms = row
    signed = SignedSeal.from_value(cbor.decode(seal), network, GraphId(graph), Address(agent))
    return OwnVersion(GraphId(graph), Address(agent), name, version, root, signed, content_hash, sealed_ms)
