"""Keeping connections: dial who is wanted, again and again, with growing pauses.

A pause doubles from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S` and is drawn between half and whole, so that peers that lost
each other at one instant do not meet again at one instant. A success begins anew.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError, RefusedError

from p2pmem.net.seam import Network, PeerId, peer_of_address

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 60.0
HOPELESS_AFTER: Final = 4
"""So many failed attempts in a row, and others are looked for as well."""
TARGETS_MAX: Final = 1_024


@dataclass(slots=True)
class _Target:
    addresses: list[str]
    scope: trio.CancelScope
    soon: trio.Event
    failures: int = 0
    """Attempts that failed, one after the other."""


class Dialer:
    """Holds a connection to every wanted peer, as long as it is wanted."""

    def __init__(self, network: Network, connected: Callable[[PeerId], Awaitable[None]], chance: random.Random) -> None:
        """`connected` is awaited after each dial that succeeded; it returns when the peer is to be dialled again."""
        self._network = network
        self._connected = connected
        self._chance = chance
        self._targets: dict[PeerId, _Target] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Dial until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for peer, target in self._targets.items():
                nursery.start_soon(self._keep, peer, target)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def want(self, address: str) -> PeerId:
        """Keep a connection to the peer at `address`, which ends in `/p2p/<peer>`. Wanted already: one more address.

        Raises `MisuseError` for an address that names no peer or our own, and when too many peers are wanted.
        """
        _, peer = peer_of_address(address, None)
        if peer == self._network.peer_id:
            raise MisuseError(f"{address} is this node's own address")
        target = self._targets.get(peer)
        if target is not None:
            if address in target.addresses:
                target.addresses.remove(address)
            target.addresses.insert(0, address)
            del target.addresses[8:]
            target.soon.set()
            return peer
        if len(self._targets) >= TARGETS_MAX:
            raise MisuseError(f"{TARGETS_MAX} peers are wanted already")
        target = self._targets[peer] = _Target([address], trio.CancelScope(), trio.Event())
        if self._nursery is not None:
            self._nursery.start_soon(self._keep, peer, target)
        return peer

    def unwant(self, peer: PeerId) -> None:
        """Dial it no more. A connection that stands is left alone."""
        target = self._targets.pop(peer, None)
        if target is not None:
            target.scope.cancel()

    def dial_soon(self) -> None:
        """Do not wait out the pauses: somebody asked, or the network came back."""
        for target in self._targets.values():
            target.soon.set()

    def wanted(self) -> frozenset[PeerId]:
        return frozenset(self._targets)

    def promising(self) -> frozenset[PeerId]:
        """Those wanted that may soon be connected: not the ones that nobody has answered for a while."""
        return frozenset(peer for peer, target in self._targets.items() if target.failures < HOPELESS_AFTER)

    async def _keep(self, peer: PeerId, target: _Target) -> None:
        pause_s = FIRST_PAUSE_S
        with target.scope:
            while True:
                if await self._dial(peer, target):
                    pause_s = FIRST_PAUSE_S
                    target.failures = 0
                else:
                    target.failures += 1
                target.soon = trio.Event()
                with trio.move_on_after(pause_s * self._chance.uniform(0.5, 1.0)):
                    await target.soon.wait()
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _dial(self, peer: PeerId, target: _Target) -> bool:
        for address in tuple(target.addresses):
            try:
                await self._network.connect(address, expected=peer)
                await self._connected(peer)
            except (OutsideError, RefusedError) as error:
                log.info("peer.dial_failed", extra={"peer": peer, "why": type(error).__name__})
                continue
            return True
        return False
