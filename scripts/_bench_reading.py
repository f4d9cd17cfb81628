"""Readers of a measurement: they ask one node on every face, again and again, while what they ask for ends.

Whatever is given of an asset after its instant is counted: by the answer's own words where it has an end, and else by
the instant at which all of them have ended. Which call it came from does not matter, only when it began.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from p2pmem.face import Layer, NotFoundError
from p2pmem.node import Node
from p2pmem.store.query import StoreBehind

ASKED_EVERY_S: Final = 0.1
LISTED_EVERY_S: Final = 15.0
COUNT: Final = "SELECT (COUNT(DISTINCT ?s) AS ?n) { ?s <http://bench.example/said/0> ?o }"


@dataclass
class Seen:
    """What readers were given: answers by face, times of those that began after the instant, and what was wrong."""

    answers: Counter[str] = field(default_factory=Counter)
    behind: int = 0
    expired: Counter[str] = field(default_factory=Counter)
    late_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    before: Counter[str] = field(default_factory=Counter)

    def told(self) -> dict[str, Any]:
        return {
            "answers": dict(self.answers),
            "refused_behind": self.behind,
            "given_before": dict(self.before),
            "given_after_their_end": sum(self.expired.values()),
            "ms_after": {
                face: {"p50": round(statistics.median(each), 1), "most": round(max(each), 1)}
                for face, each in self.late_ms.items()
            },
        }


class Readers:
    """Ask `node` about assets that end at `ends_ms`, and one that stays. `run` until cancelled."""

    def __init__(self, node: Node, graph: str, word: str, name: str, ends_ms: int) -> None:
        """`name` is one of those that end, which `word` finds; `ends_ms` is when the last of all does."""
        self._node = node
        self._graph = graph
        self._word = word
        self._name = name
        self._ends_ms = ends_ms
        self.seen = Seen()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._again, "recall", self._recall, ASKED_EVERY_S)
            nursery.start_soon(self._again, "query", self._query, ASKED_EVERY_S)
            nursery.start_soon(self._again, "version", self._version, ASKED_EVERY_S)
            nursery.start_soon(self._again, "content", self._content, ASKED_EVERY_S)
            nursery.start_soon(self._again, "versions", self._versions, LISTED_EVERY_S)

    async def _again(self, face: str, ask: Callable[[int], Awaitable[tuple[int, int]]], every_s: float) -> None:
        clock = self._node.ledger.clock
        while True:
            began_ms, began_s = clock.now_ms(), trio.current_time()
            try:
                given, expired = await ask(began_ms)
            except StoreBehind:
                self.seen.behind += 1
            else:
                self.seen.answers[face] += 1
                if began_ms < self._ends_ms:
                    self.seen.before[face] = max(self.seen.before[face], given)
                else:
                    self.seen.late_ms[face].append((trio.current_time() - began_s) * 1000)
                self.seen.expired[face] += expired
            await trio.sleep(every_s)

    async def _recall(self, began_ms: int) -> tuple[int, int]:
        answer = await self._node.face.recall(self._word, graph=self._graph, min_trust=None, min_m=0, limit=20)
        ends = [hit.version.expires_ms for hit in answer.hits if hit.version is not None]
        return len(ends), sum(0 < end <= began_ms for end in ends)

    async def _query(self, began_ms: int) -> tuple[int, int]:
        answer = await self._node.face.query(
            COUNT, graph=self._graph, layer=Layer.SHARED, min_trust=None, at_least=0, min_m=0
        )
        ((count,),) = answer.rows
        given = int((count or '"0"').split('"')[1])
        return given, given if began_ms >= self._ends_ms else 0

    async def _version(self, began_ms: int) -> tuple[int, int]:
        try:
            view = await self._node.face.version(self._graph, self._name)
        except NotFoundError:
            return 0, 0
        return 1, int(view.expires_ms <= began_ms)

    async def _content(self, began_ms: int) -> tuple[int, int]:
        try:
            await self._node.face.content(self._graph, self._name)
        except NotFoundError:
            return 0, 0
        return 1, int(began_ms >= self._ends_ms)

    async def _versions(self, began_ms: int) -> tuple[int, int]:
        views = await self._node.face.versions(self._graph, layer=Layer.SHARED, min_trust=None)
        return len(views), sum(0 < it.expires_ms <= began_ms for it in views)
