"""Fetching content that is too large to be inside an envelope, as soon as an envelope names it.

Comparisons fetch what is missing too, and lose nothing, but the next one may be a minute away. So whoever gave the
envelope is asked at once, then the other members, each once. When nobody has it yet, the next comparison goes on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from math import inf
from typing import Final

import trio
from p2pmem_protocol.errors import OutsideError, RefusedError
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.holdings import Holdings
from p2pmem.exchange.sync_client import NotGivenError, SyncClient
from p2pmem.net.seam import PeerId

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 4
TOO_MANY_PAUSE_S: Final = 5.0
"""Who hears no more questions for now is asked again after so long: to be told so costs it more than to answer."""
WAITING_MAX: Final = 1_024


class Fetching:
    """Fetches attachments. `run` it in the exchange's nursery."""

    def __init__(
        self,
        holdings: Holdings,
        client: SyncClient,
        members: Callable[[GraphId], list[PeerId]],
        penalise: Callable[[PeerId, RefusedError], None],
        chance: random.Random,
    ) -> None:
        """`members` gives the connected nodes that may have what is in a graph."""
        self._holdings = holdings
        self._client = client
        self._members = members
        self._penalise = penalise
        self._chance = chance
        self._rests_until_s: dict[PeerId, float] = {}
        self._under_way: set[tuple[GraphId, bytes]] = set()
        self._send, self._receive = trio.open_memory_channel[tuple[GraphId, bytes, int, str]](WAITING_MAX)

    def look(self, graph: GraphId, giver: str) -> None:
        """Something came into `graph`, from `giver` (empty: nobody in particular): fetch what it names and is not held.

        What finds no room here is left to the next comparison.
        """
        for content_hash, length in self._holdings.wanted_attachments(graph):
            if (graph, content_hash) in self._under_way:
                continue
            try:
                self._send.send_nowait((graph, content_hash, length, giver))
            except trio.WouldBlock:
                return
            self._under_way.add((graph, content_hash))

    async def run(self) -> None:
        """Fetch until cancelled, a few at a time."""
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE_MAX):
                nursery.start_soon(self._run_one)

    async def _run_one(self) -> None:
        async for graph, content_hash, length, giver in self._receive:
            try:
                await self._fetch(graph, content_hash, length, giver)
            finally:
                self._under_way.discard((graph, content_hash))

    async def _fetch(self, graph: GraphId, content_hash: bytes, length: int, giver: str) -> None:
        peers = self._members(graph)
        self._chance.shuffle(peers)
        if giver and giver not in peers:
            peers.append(PeerId(giver))
        peers.sort(key=lambda peer: peer != giver)
        for peer in peers:
            if (content_hash, length) not in self._holdings.wanted_attachments(graph):
                return
            if self._rests_until_s.get(peer, -inf) > trio.current_time():
                continue
            try:
                if await self._client.fetch_attachment(peer, graph, content_hash, length):
                    return
            except RefusedError as error:
                self._penalise(peer, error)
            except NotGivenError as error:
                log.info("fetch.refused", extra={"peer": peer, "why": str(error)})
                self._rest(peer)
            except OutsideError as error:
                log.info("fetch.failed", extra={"peer": peer, "why": type(error).__name__})

    def _rest(self, peer: PeerId) -> None:
        now_s = trio.current_time()
        self._rests_until_s = {it: until_s for it, until_s in self._rests_until_s.items() if until_s > now_s}
        self._rests_until_s[peer] = now_s + TOO_MANY_PAUSE_S
