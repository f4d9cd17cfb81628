"""Where members were met, kept beyond a restart: after it nobody else may know that this node is back.

What a member says of its own address is hearsay. Kept is only what was seen to lead to it: an address that this node
dialled, where the member proved itself, or one at the very host from which the member came. So nobody can have this
node knock at other people's doors for ever after. Of each member some few peers are kept, of each graph so many in all,
and after a restart they are dialled within the bounds of hearsay, some of many drawn by lot: who has many peers, or
was here last, does not choose whom this node meets.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address, GraphId

from p2pmem.ledger.ledger import Ledger
from p2pmem.net.dialer import Dialer
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId


class MetMembers:
    """Keeps addresses in the ledger, and has them dialled at the start."""

    def __init__(self, ledger: Ledger, dialer: Dialer, chance: random.Random, limits: PeerLimits) -> None:
        self._ledger = ledger
        self._dialer = dialer
        self._chance = chance
        self._limits = limits
        self._kept: dict[tuple[GraphId, Address | None], dict[PeerId, str]] = {}
        """What was kept since the start, those met last at the end."""

    async def remember(self, graph: GraphId, member: Address | None, peer: PeerId, address: str) -> None:
        """Keep that a peer of this member was met there; None: whoever let this node in. On disk when it returns."""
        peers = self._kept.setdefault((graph, member), {})
        if peers.get(peer) == address:
            return
        peers.pop(peer, None)
        peers[peer] = address
        gone = next(iter(peers)) if len(peers) > self._limits.peers_of_member_max else None
        if gone is not None:
            del peers[gone]
        now_ms = self._ledger.clock.now_ms()

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM peer_address WHERE graph = ? AND peer = ?", (graph, gone))
            connection.execute(
                "INSERT OR REPLACE INTO peer_address VALUES (?, ?, ?, ?)", (peer, graph, address, now_ms)
            )
            connection.execute(
                "DELETE FROM peer_address WHERE graph = ?1 AND peer NOT IN "
                "(SELECT peer FROM peer_address WHERE graph = ?1 ORDER BY seen_ms DESC, peer LIMIT ?2)",
                (graph, self._limits.met_peers_of_graph_max),
            )

        await self._ledger.database.write(write, owed=True)

    def dial(self) -> None:
        """Dial some of those met in each graph, as many as make a small graph whole; they know the others."""
        for graph in self._ledger.graphs:
            addresses = sorted(self.addresses(graph))
            count = min(self._limits.members_all_max - 1, len(addresses))
            for address in self._chance.sample(addresses, count):
                with suppress(MisuseError):  # of more graphs than there is room for, some are left to the others
                    self._dialer.hear(address, graph, met_before=True)

    def addresses(self, graph: GraphId) -> tuple[str, ...]:
        """Where members of a graph were met, lately first."""
        sql = "SELECT DISTINCT address FROM peer_address WHERE graph = ? ORDER BY seen_ms DESC, address"
        return self._ledger.database.read(lambda connection: tuple(row[0] for row in connection.execute(sql, (graph,))))

    def forget(self, graph: GraphId) -> None:
        """The graph was left, and what was kept on disk for it went with it."""
        self._kept = {key: peers for key, peers in self._kept.items() if key[0] != graph}
