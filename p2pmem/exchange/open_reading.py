"""Reading open graphs from a peer that knows nobody of us: whoever names an open graph may compare it (rule J2).

A member compares over its session. A reader has none; as long as he is connected he compares on connect, when asked to
and every minute, which is what makes up for anything that the topic lost.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

import trio
from p2pmem_protocol.errors import OutsideError, RefusedError
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.sync_client import Comparison, SyncClient
from p2pmem.net.seam import Network, PeerEventKind, PeerId

log = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
NO_PROGRESS_PAUSE_S: Final = 5.0


class OpenReading:
    """Compares open graphs with peers that do not welcome us as a member."""

    def __init__(
        self,
        network: Network,
        client: SyncClient,
        open_graphs: Callable[[], Iterable[GraphId]],
        compared: Callable[[PeerId, list[Comparison]], None],
        penalise: Callable[[PeerId, RefusedError], None],
        chance: random.Random,
    ) -> None:
        self._network = network
        self._client = client
        self._open_graphs = open_graphs
        self._compared = compared
        self._penalise = penalise
        self._chance = chance
        self._reading: dict[PeerId, trio.CancelScope] = {}
        self._wanted = trio.Event()

    def peers(self) -> frozenset[PeerId]:
        """From whom we read now."""
        return frozenset(self._reading)

    def want(self) -> None:
        """Compare soon."""
        self._wanted.set()
        self._wanted = trio.Event()

    def begin_anew(self) -> None:
        """End all reading: we may be a member now, so hello is worth a try."""
        for scope in self._reading.values():
            scope.cancel()

    async def read(self, peer: PeerId) -> None:
        """Compare until the peer is gone, `begin_anew` is called, or no graph is open any more."""
        with trio.CancelScope() as scope:
            self._reading[peer] = scope
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, peer, scope)
                    await self._compare(peer)
                    nursery.cancel_scope.cancel()
            finally:
                if self._reading.get(peer) is scope:
                    del self._reading[peer]
                with trio.CancelScope(shield=True):
                    await self._client.forget(peer)

    async def _watch(self, peer: PeerId, scope: trio.CancelScope) -> None:
        async for event in self._network.peer_events():
            if event.kind is PeerEventKind.DISCONNECTED and peer not in self._network.connected():
                scope.cancel()

    async def _compare(self, peer: PeerId) -> None:
        while graphs := sorted(self._open_graphs()):
            pause_s = PERIOD_S
            try:
                results = await self._client.compare(peer, graphs)
                self._compared(peer, results)
                if not all(result.equal for result in results):
                    pause_s = NO_PROGRESS_PAUSE_S
            except RefusedError as error:
                self._penalise(peer, error)
                return
            except OutsideError as error:
                log.info("open.not_read", extra={"peer": peer, "why": str(error)})
                pause_s = NO_PROGRESS_PAUSE_S
            wanted = self._wanted
            with trio.move_on_after(pause_s * self._chance.uniform(0.8, 1.2)):
                await wanted.wait()
