"""Life on a cluster: much said over a long time by everybody, while things break. All of it is drawn from the seed.

What happens when is decided before anything does, as a list in the order of time. So a day that goes another way can be
compared with the list, and nothing that a node does changes what others do.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from p2pmem_devnet.cluster_node import Asset, ClusterNode, NodeDownError

if TYPE_CHECKING:
    from p2pmem_devnet.cluster import Cluster

log = logging.getLogger(__name__)

FAULT_S: Final = (60.0, 1_800.0)
"""How long something is broken: at least, at most."""
VERIFIED_WITHIN: Final = timedelta(hours=6)
THINGS: Final = 500


@dataclass(slots=True)
class Happened:
    """What came of it, counted. `missed`: what was to be said by a node that was down just then."""

    shares: int = 0
    verifications: int = 0
    missed: int = 0
    crashes: int = 0
    partitions: int = 0


class Life:
    """One run of it over `cluster`."""

    def __init__(self, cluster: Cluster, chance: Random, ttl: timedelta) -> None:
        self._cluster = cluster
        self._chance = chance
        self._ttl = ttl
        self._latest: list[Asset] = []
        self.happened = Happened()

    async def live(self, *, shares: int, verifications: int, faults: int, over: timedelta) -> None:
        """Return once all of it has happened, each fault is over, and every node is up."""
        acts: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._share, shares),
            (self._verify, verifications),
            (self._break, faults),
        ]
        plan = [(self._chance.uniform(0, over.total_seconds()), act) for act, count in acts for _ in range(count)]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for at_s, act in sorted(plan, key=lambda it: it[0]):
                await trio.sleep_until(began + at_s)
                nursery.start_soon(act)

    async def _share(self) -> None:
        node, number = self._chance.choice(self._cluster.nodes), self._chance.randrange(THINGS)
        text = f'ex:{node.name} ex:saw ex:thing{number} ; ex:says "it is {self._chance.randrange(10**6)}" .'
        ttl = self._ttl * self._chance.uniform(0.5, 1.5)
        await self._say(partial(self._shared, node, text, ttl))

    async def _shared(self, node: ClusterNode, text: str, ttl: timedelta) -> None:
        self._latest = [*self._latest[-9:], await node.share(text, ttl=ttl)]
        self.happened.shares += 1

    async def _verify(self) -> None:
        """Somebody asks for a verification of something that was said lately and that he sees."""
        up = [node for node in self._cluster.nodes if node.is_up]
        seen = [(node, asset) for asset in self._latest for node in up if node.sees(asset)]
        if not seen:
            self.happened.missed += 1
            return
        node, asset = self._chance.choice(seen)
        await self._say(partial(self._verified, node, asset))

    async def _verified(self, node: ClusterNode, asset: Asset) -> None:
        await node.start_verify(asset, within=VERIFIED_WITHIN)
        self.happened.verifications += 1

    async def _say(self, say: Callable[[], Awaitable[None]]) -> None:
        try:
            await say()
        except NodeDownError:
            self.happened.missed += 1

    async def _break(self) -> None:
        lasts_s = self._chance.uniform(*FAULT_S)
        await self._chance.choice((self._crash, self._part))(lasts_s)

    async def _crash(self, lasts_s: float) -> None:
        up = [node for node in self._cluster.nodes if node.is_up]
        if len(up) <= len(self._cluster.nodes) // 2:
            return
        node, silent = self._chance.choice(up), self._chance.random() < 0.5
        self.happened.crashes += 1
        await self._cluster.crash(node, silent=silent)
        await trio.sleep(lasts_s)
        await self._cluster.restart(node)

    async def _part(self, lasts_s: float) -> None:
        nodes = self._cluster.nodes
        left = self._chance.sample(nodes, self._chance.randint(1, len(nodes) // 2))
        right = [node for node in nodes if node not in left]
        self.happened.partitions += 1
        with self._cluster.partition(left, right, one_way=self._chance.random() < 0.25):
            await trio.sleep(lasts_s)
