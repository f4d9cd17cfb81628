"""Gossip of open graphs: one topic each, which anybody may join (rule J2). Nothing of a gated graph comes here.

    heard: said here, or brought by a small round --> topic --> whoever joined
    topic --> admission, the same as everywhere --> ACCEPT new and passed on
                                                    IGNORE known, or not for us now
                                                    REJECT wrong for everybody: its giver is to blame

One item is one message, as its bytes are. Topics are open as long as this node follows an open graph; a node that
follows none speaks no gossip at all. A topic's name is a hash, so that its listing tells nobody which graph it is who
could not name the graph himself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import trio
from p2pmem_jobs import Signal
from p2pmem_protocol.errors import Penalty, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.holdings import Holdings, How, Offered, Source
from p2pmem.ledger.batch import Delta
from p2pmem.net.seam import Network, PeerId
from p2pmem.net.topics import OpenTopics, Topics, Verdict

log = logging.getLogger(__name__)

ROUND_NEWS_MAX: Final = 32
"""A round that brought more is catching up on what others know, and is not told on."""
WAITING_MAX: Final = 4_096
PRESSED_AT: Final = 256


def topic_of(graph: GraphId) -> str:
    """The topic of an open graph: only who can name the graph can name it."""
    return "/p2pmem/open/2/" + keccak256(b"p2pmem open graph" + graph).hex()


class OpenGossip:
    """Keeps topics equal to the open graphs that this node follows. `run` it in the exchange's nursery."""

    def __init__(
        self,
        network: Network,
        open_topics: OpenTopics,
        holdings: Holdings,
        open_graphs: Callable[[], Iterable[GraphId]],
        penalise: Callable[[PeerId, RefusedError], None],
        moved: Signal,
    ) -> None:
        """`open_graphs` gives those to follow, as they are now; `moved` is notified when the queue became shorter."""
        self._network = network
        self._open_topics = open_topics
        self._holdings = holdings
        self._open_graphs = open_graphs
        self._penalise = penalise
        self._moved = moved
        self._changed = trio.Event()
        self._waiting: deque[tuple[GraphId, bytes]] = deque()
        self._rejected: dict[PeerId, Reason] = {}
        self._topics: Topics | None = None
        self.dropped = 0

    def look(self) -> None:
        """Which graphs are open here may have changed."""
        self._changed.set()

    def heard(self, delta: Delta) -> None:
        """A change of an open graph is on disk: tell what others may not know."""
        if delta.source.how is How.TOPIC:
            return  # the topic itself passes it on
        if delta.source.how is How.ROUND and len(delta.entered) > ROUND_NEWS_MAX:
            return
        self._waiting.extend((delta.graph, item.data) for item in delta.entered)
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._changed.set()

    @property
    def is_pressed(self) -> bool:
        """Whether who says more should wait."""
        return len(self._waiting) >= PRESSED_AT

    def readers(self, graph: GraphId) -> frozenset[PeerId]:
        """Who is known to have joined the graph's topic."""
        return self._topics.peers(topic_of(graph)) if self._topics is not None else frozenset()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            while not self._wanted():
                self._waiting.clear()
                await self._wait()
            async with self._open_topics(self._network, self._blame) as topics:
                self._topics = topics
                try:
                    await self._follow(topics)
                finally:
                    self._topics = None

    async def _follow(self, topics: Topics) -> None:
        """Keep what is joined right and publish what waits, until no graph is open any more."""
        joined: set[GraphId] = set()
        while wanted := self._wanted():
            for graph in sorted(joined - wanted):
                await topics.unsubscribe(topic_of(graph))
                joined.discard(graph)
            for graph in sorted(wanted - joined):
                await topics.subscribe(topic_of(graph), partial(self._receive, graph))
                joined.add(graph)
            while self._waiting:
                graph, data = self._waiting.popleft()
                # It may have become gated since it was put here.
                if graph in joined and graph in self._wanted():
                    await topics.publish(topic_of(graph), data)
                self._moved.notify()
            await self._wait()

    def _wanted(self) -> set[GraphId]:
        return set(self._open_graphs())

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()

    async def _receive(self, graph: GraphId, peer: PeerId, data: bytes) -> Verdict:
        """Admit one message. Its verdict follows from the refusal's penalty, so nobody suffers for a roster behind."""
        offered = Offered(data)
        if offered.is_item and offered.item.graph != graph:
            return self._reject(peer, Reason.BAD_FRAME)
        (outcome,) = await self._holdings.admit([offered], Source(How.TOPIC, peer))
        if outcome.is_new:
            return Verdict.ACCEPT
        if outcome.reason is not None and outcome.reason.penalty is not Penalty.NONE:
            return self._reject(peer, outcome.reason)
        return Verdict.IGNORE

    def _reject(self, peer: PeerId, reason: Reason) -> Verdict:
        self._rejected[peer] = reason
        return Verdict.REJECT

    def _blame(self, peer: PeerId, why: str) -> None:
        """Topics name the guilty; the reason is the one that admission gave, when it did."""
        self._penalise(peer, RefusedError(self._rejected.pop(peer, Reason.BAD_FRAME), why))
