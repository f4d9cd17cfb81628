"""Whether what this node says may be compared with what it said before: after a restore it does not know that.

A ledger that was put back knows nothing of what was said since. A version that is sealed by it may bear the number of
one that others hold, and to every reader the two are in conflict for good. So each start looks whether the file was put
back (`Database.restores` tells), and marks every context graph that has other members. In such a graph nothing is
signed until one whole round of comparison with a member has ended, roster first, then the set; or the operator says
that nothing was lost.

    put back --start--> marked, in one transaction with the count of restores that is dealt with
    marked   --a whole round with a member; or `p2pmem restore confirm`--> as any other

The mark goes on disk first, and then in memory: killed in between, the node compares once more. A graph whose only
member is here is free at once, since there is nobody to compare with.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterable
from typing import Final

import trio
from p2pmem_protocol.names import Address, GraphId

from p2pmem.exchange.sync_client import Comparison
from p2pmem.ledger import audit
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger

log = logging.getLogger(__name__)

_DEALT_WITH: Final = "restores-dealt-with"
_MARKED: Final = "restored-graphs"
MARKED_POINT: Final = "restored/compared"
"""The crash point between a round and the end of the mark."""


class Restored:
    """The graphs in which a restored node has not compared yet. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger, marked: Iterable[GraphId]) -> None:
        self._ledger = ledger
        self._marked = set(marked)
        self._compared: set[GraphId] = set()
        self._has_compared = trio.Event()

    @classmethod
    async def open(cls, ledger: Ledger, own: Collection[Address]) -> Restored:
        """What is marked; after a restore every graph with a member other than `own` is. Errors: the disk's."""
        marked = {GraphId(bytes.fromhex(word)) for word in (ledger.get_setting(_MARKED) or "").split()}
        restores = ledger.database.restores
        restored = cls(ledger, marked)
        if restores != int(ledger.get_setting(_DEALT_WITH) or 0):
            marked |= {it.id for it in ledger.graphs.values() if _has_others(it, own)}
            await restored._write(marked, "put back", restores)
            log.warning("restored", extra={"graphs": len(marked)})
        return cls(ledger, marked)

    def waits(self, graph: GraphId) -> bool:
        """Whether nothing may be signed in a graph yet."""
        return graph in self._marked

    def graphs(self) -> tuple[LedgerGraph, ...]:
        """Those in which the node waits, by name."""
        waiting = [self._ledger.graphs[it] for it in self._marked if it in self._ledger.graphs]
        return tuple(sorted(waiting, key=lambda graph: str(graph.name)))

    def compared(self, found: Iterable[Comparison]) -> None:
        """Comparisons with a member have ended; those that found no trouble were whole."""
        done = {it.graph for it in found if not it.trouble} & self._marked
        if done:
            self._compared |= done
            self._has_compared.set()

    async def run(self) -> None:
        """End the marks of graphs that were compared, until cancelled. A disk that refuses is asked again."""
        while True:
            await self._has_compared.wait()
            self._has_compared = trio.Event()
            done, self._compared = self._compared, set()
            self._ledger.database.crash_point(MARKED_POINT)
            await self._end(done, "compared with a member")

    async def confirm(self, graphs: Iterable[GraphId]) -> None:
        """The operator says that nothing was said in these graphs which the ledger does not hold. Errors: the disk's;
        then the marks stay."""
        self._ledger.database.check_takes()
        await self._end(set(graphs), "confirmed by the operator")

    async def _end(self, done: set[GraphId], why: str) -> None:
        done &= self._marked
        if not done:
            return
        await self._write(self._marked - done, why)
        self._marked -= done
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


def _has_others(graph: LedgerGraph, own: Collection[Address]) -> bool:
    """Whether anybody else may hold what was said in a graph; without a roster nobody here knows."""
    return graph.head is None or any(member.address not in own for member in graph.head.body.members)
