"""Whether what this node says may be compared with what it said before: after a restore it does not know that.

A ledger that was put back knows nothing of what was said since. A version that is sealed by it may bear the number of
one that others hold, and to every reader the two are in conflict for good. So each start looks whether the file was put
back (`Database.restores` tells), and marks every context graph that has other members. In such a graph nothing is
signed until a whole round of comparison has ended with a node of each other member, roster first, then the set; or the
operator says that nothing was lost. One member is not enough: it may have been away when the others heard what is lost
here. Nobody knows who heard it, so all are met; a person has just restored the node, and knows of those who never come.
Where a graph has so many members that not everybody is connected with everybody, as many as a node dials are enough: in
such a graph everybody who is there hears of everything within a minute.

    put back --start--> marked, in one transaction with the count of restores that is dealt with
    marked   --whole rounds with all members; or `p2pmem restore confirm`--> as any other

The mark goes on disk first, and then in memory: killed in between, or stopped before all were met, the node compares
with all once more.

A member who speaks through this node alone has no other node that could have heard what is lost: there is nobody to
compare with, and a graph of such members only is free at once. Those are the agents whose keys are here, and those with
a wallet outside that signed that this peer carries their words. Nobody can prove that he has no second node; so each
agent that ever spoke through another peer, of which a comparison ended with this node, is noted for good and waited for
as any other member is. A second node that this one never met before the copy was made is not waited for.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable
from typing import Final

import trio
from p2pmem_protocol.names import Address, GraphId
from p2pmem_protocol.roster import Member

from p2pmem.exchange.crowd import is_small
from p2pmem.exchange.sync_client import Comparison
from p2pmem.ledger import audit
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.limits import PeerLimits

log = logging.getLogger(__name__)

_DEALT_WITH: Final = "restores-dealt-with"
_MARKED: Final = "restored-graphs"
_ELSEWHERE: Final = "agents-elsewhere"
MARKED_POINT: Final = "restored/compared"
"""The crash point between the last round and the end of the mark."""


class Restored:
    """The graphs in which a restored node has not compared yet. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger, here: Callable[[], Collection[Address]], limits: PeerLimits) -> None:
        """`here`: the agents that speak through this node."""
        self._ledger, self._here, self._limits = ledger, here, limits
        self._marked = {GraphId(it) for it in self._stored(_MARKED)}
        self._elsewhere = {Address(it) for it in self._stored(_ELSEWHERE)}
        """Of those that speak here, who spoke through another peer too."""
        self._met: dict[GraphId, set[Address]] = {}
        self._compared: set[GraphId] = set()
        self._is_news = trio.Event()
        """A mark is to end, or somebody is to be noted."""

    @classmethod
    async def open(cls, ledger: Ledger, here: Callable[[], Collection[Address]], limits: PeerLimits) -> Restored:
        """What is marked; after a restore every graph is in which another node may speak. Errors: the disk's."""
        restored = cls(ledger, here, limits)
        restores = ledger.database.restores
        if restores != int(ledger.get_setting(_DEALT_WITH) or 0):
            marked = {it.id for it in ledger.graphs.values() if it.head is None or restored._others(it)}
            await restored._write(restored._marked | marked, "put back", restores)
            restored._marked |= marked
            log.warning("restored", extra={"graphs": len(restored._marked)})
        return restored

    def waits(self, graph: GraphId) -> bool:
        """Whether nothing may be signed in a graph yet."""
        return graph in self._marked

    def graphs(self) -> tuple[LedgerGraph, ...]:
        """Those in which the node waits, by name."""
        waiting = [self._ledger.graphs[it] for it in self._marked if it in self._ledger.graphs]
        return tuple(sorted(waiting, key=lambda graph: str(graph.name)))

    def not_met(self, graph: LedgerGraph) -> tuple[str, ...]:
        """Other members with whose nodes no whole round has ended yet, by label or address; none where enough have."""
        others, met = self._others(graph), self._met.get(graph.id, set())
        missing = tuple(self._named(it) for it in others if it.address not in met)
        is_crowd = not is_small(self._limits, len(others) + 1)
        return () if is_crowd and len(others) - len(missing) >= self._limits.members_dialled else missing

    def compared(self, agents: Collection[Address], names: Collection[Address], found: Iterable[Comparison]) -> None:
        """Comparisons have ended with a node through which these agents speak, and which is one of the members `names`,
        them or for whom they act; those that found no trouble were whole."""
        elsewhere = {it for it in self._here() if it in agents} - self._elsewhere
        if elsewhere:
            self._elsewhere |= elsewhere
            self._is_news.set()
        for graph_id in {it.graph for it in found if not it.trouble} & self._marked:
            self._met.setdefault(graph_id, set()).update(names)
            graph = self._ledger.graphs.get(graph_id)
            if graph is not None and not self.not_met(graph):
                self._compared.add(graph_id)
                self._is_news.set()

    async def run(self) -> None:
        """Note who speaks elsewhere and end the marks of graphs that were compared, until cancelled. A disk that
        refuses is asked again."""
        noted = set(self._elsewhere)
        while True:
            await self._is_news.wait()
            self._is_news = trio.Event()
            if noted != self._elsewhere:
                noted = set(self._elsewhere)
                await self._write_elsewhere(noted)
            done, self._compared = self._compared, set()
            if done:
                self._ledger.database.crash_point(MARKED_POINT)
                await self._end(done, "compared with all members")

    async def confirm(self, graphs: Iterable[GraphId]) -> None:
        """The operator says that nothing was said in these graphs which the ledger does not hold. Errors: the disk's;
        then the marks stay."""
        self._ledger.database.check_takes()
        await self._end(set(graphs), "confirmed by the operator")

    def _others(self, graph: LedgerGraph) -> tuple[Member, ...]:
        """Who else may hold what was said in a graph, by the roster that counts here now."""
        members = graph.head.body.members if graph.head is not None else ()
        own = set(self._here()) - self._elsewhere
        return tuple(it for it in members if it.address not in own)

    def _named(self, member: Member) -> str:
        name = member.label or str(member.address)
        return f"another node of {name}" if member.address in self._elsewhere else name

    async def _end(self, done: set[GraphId], why: str) -> None:
        done &= self._marked
        if not done:
            return
        await self._write(self._marked - done, why)
        self._marked -= done
        for graph_id in done:
            self._met.pop(graph_id, None)
        log.info("restored.ended", extra={"graphs": len(done), "why": why})
        self._ledger.wake()  # what waits to be signed

    async def _write(self, marked: Collection[GraphId], why: str, restores: int | None = None) -> None:
        ledger, now_ms = self._ledger, self._ledger.clock.now_ms()

        def write(connection: sqlite3.Connection) -> None:
            ledger.write_setting(connection, _MARKED, " ".join(sorted(it.hex() for it in marked)))
            if restores is not None:
                ledger.write_setting(connection, _DEALT_WITH, str(restores))
            payload = f"{why}; graphs to compare: {len(marked)}"
            audit.append(connection, now_ms, "restore", payload, ledger.random_bytes)

        await ledger.database.write(write, owed=True)

    async def _write_elsewhere(self, agents: Collection[Address]) -> None:
        value = " ".join(sorted(it.hex() for it in agents))
        await self._ledger.database.write(
            lambda connection: self._ledger.write_setting(connection, _ELSEWHERE, value), owed=True
        )

    def _stored(self, setting: str) -> list[bytes]:
        return [bytes.fromhex(word) for word in (self._ledger.get_setting(setting) or "").split()]
