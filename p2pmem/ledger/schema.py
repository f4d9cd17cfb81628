"""The tables of the ledger. The list of migrations only grows: a migration that was released is never changed."""

from __future__ import annotations

from typing import Final

COMPONENT: Final = "ledger of protocol 2"
BEFORE: Final = "ledger"
"""What it was called until version 2 of the protocol: nothing that was said under version 1 counts any more."""

_FIRST: Final = """
-- Context graphs that this node takes part in. `left_ms` is set when the user left: nothing is served or admitted.
CREATE TABLE graph(
    id BLOB PRIMARY KEY, creator BLOB NOT NULL, slug TEXT NOT NULL, joined_ms INTEGER NOT NULL, left_ms INTEGER
) STRICT;

-- Roster headers for ever; parts of the head.
CREATE TABLE header(id BLOB PRIMARY KEY, graph BLOB NOT NULL, data BLOB NOT NULL) STRICT;
CREATE INDEX header_of_graph ON header(graph);
CREATE TABLE part(
    graph BLOB NOT NULL, hash BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY(graph, hash)
) STRICT, WITHOUT ROWID;

-- Envelopes and evidence as they came. `place` is set, over (quota) or aside (cut by a head change, since `aside_ms`).
-- `short` is what the rules need to know of it, where that is kept: it spares reading `data` at every start.
CREATE TABLE item(
    arrival INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, graph BLOB NOT NULL, kind INTEGER NOT NULL,
    place TEXT NOT NULL, aside_ms INTEGER, received_ms INTEGER NOT NULL, short BLOB, data BLOB NOT NULL
) STRICT;
CREATE INDEX item_of_graph ON item(graph);
CREATE INDEX item_expired ON item(aside_ms) WHERE place = 'expired';

-- Sealed canonical N-Quads by their hash, and what they are: who names the hash beside another seal does not bear it.
CREATE TABLE content(
    hash BLOB PRIMARY KEY, data BLOB NOT NULL, root BLOB NOT NULL, leaves INTEGER NOT NULL
) STRICT;

-- Attached content by the graph through which it came: it is given to nobody of another graph.
CREATE TABLE attached(graph BLOB NOT NULL, hash BLOB NOT NULL, PRIMARY KEY(graph, hash)) STRICT, WITHOUT ROWID;

-- Private drafts of this node's agents.
CREATE TABLE draft(
    graph BLOB NOT NULL, agent BLOB NOT NULL, name TEXT NOT NULL, subgraph TEXT NOT NULL, content BLOB NOT NULL,
    seal BLOB, sealed_hash BLOB, updated_ms INTEGER NOT NULL, PRIMARY KEY(graph, agent, name)
) STRICT;

-- What this node's agents sealed and shared: kept until discarded, whatever the TTL of what was shared.
CREATE TABLE own(
    graph BLOB NOT NULL, agent BLOB NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, root BLOB NOT NULL,
    seal BLOB NOT NULL, content_hash BLOB NOT NULL, sealed_ms INTEGER NOT NULL,
    PRIMARY KEY(graph, agent, name, version)
) STRICT;

-- One row a lifecycle transition; history outlives the content.
CREATE TABLE lifecycle(
    step INTEGER PRIMARY KEY, graph BLOB NOT NULL, author BLOB NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    transition TEXT NOT NULL, agent BLOB NOT NULL, root BLOB, seal BLOB, at_ms INTEGER NOT NULL,
    UNIQUE(graph, author, name, version, transition, seal)
) STRICT;

-- Every change of the view, numbered without a gap of meaning: projections follow these.
CREATE TABLE event(
    position INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, graph BLOB NOT NULL, what TEXT NOT NULL,
    author BLOB, name TEXT
) STRICT;

-- What this node saw itself on a chain, by batch root.
CREATE TABLE chain_fact(
    batch_root BLOB NOT NULL, chain INTEGER NOT NULL, state TEXT NOT NULL, transaction_hash BLOB NOT NULL,
    block INTEGER NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY(batch_root, chain)
) STRICT;

-- An invite is known by the address of its token's key.
CREATE TABLE invite(
    key BLOB PRIMARY KEY, graph BLOB NOT NULL, roles INTEGER NOT NULL, uses INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL, asks INTEGER NOT NULL
) STRICT;
CREATE TABLE join_request(
    id BLOB PRIMARY KEY, graph BLOB NOT NULL, agent BLOB NOT NULL, label TEXT NOT NULL, roles INTEGER NOT NULL,
    peer TEXT NOT NULL, asked_ms INTEGER NOT NULL
) STRICT;

-- Where members were last reached.
CREATE TABLE peer_address(
    peer TEXT NOT NULL, graph BLOB NOT NULL, address TEXT NOT NULL, seen_ms INTEGER NOT NULL,
    PRIMARY KEY(graph, peer)
) STRICT;

-- Audit: a chain of hashes over salted payloads; payloads are aside and may be erased.
CREATE TABLE audit(
    entry INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, what TEXT NOT NULL, payload_hash BLOB NOT NULL,
    chain_hash BLOB NOT NULL
) STRICT;
CREATE TABLE audit_payload(entry INTEGER PRIMARY KEY, salt BLOB NOT NULL, payload TEXT NOT NULL) STRICT;

CREATE TABLE setting(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

-- Who acts for whom: given by a principal whose key is here, or held by an agent whose key is here.
CREATE TABLE delegation(
    principal BLOB NOT NULL, agent BLOB NOT NULL, serial INTEGER NOT NULL, label TEXT NOT NULL, rights INTEGER NOT NULL,
    signature BLOB NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY(principal, agent, serial)
) STRICT;

-- Peers that are kept out, or were not long ago. `until_ms` -1: for good.
CREATE TABLE ban(
    peer TEXT PRIMARY KEY, until_ms INTEGER NOT NULL, reason TEXT NOT NULL, times INTEGER NOT NULL,
    last_ms INTEGER NOT NULL
) STRICT;
"""

MIGRATIONS: Final = (_FIRST,)
