"""Keeping connections: dial who is wanted, again and again, with growing pauses.

A pause doubles from the first to the longest of `PeerLimits` and is drawn between half and whole, so that peers that
lost each other at one instant do not meet again at one instant. A success begins anew, and so does a wish to dial soon.
A peer that answers that we share nothing is left in peace for longer.

Who is *wanted*, because a person said so, is dialled for ever. Who was only *heard of*, from another member, is one of
few such, and given up after some failures in a row. If it was reached once, now or before a restart, it is dialled on,
until somebody else is heard of and there is no room for both.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError, RefusedError
from p2pmem_protocol.names import GraphId

from p2pmem.net.greet import NotWelcomeError
from p2pmem.net.limits import PeerLimits
from p2pmem.net.names import Resolve, places_on_hearsay, system_resolve
from p2pmem.net.seam import Network, PeerId, PeerUnreachableError, peer_of_address

log = logging.getLogger(__name__)

HEARD_S_MIN: Final = 5.0
"""So long somebody who was heard of has to answer before others that are heard of may have the place."""
UNANSWERED_DIALS: Final = 3
"""In a row: some ten seconds, so that a restart of the other is none of a person's business."""


@dataclass(slots=True)
class _Target:
    addresses: list[str]
    wanted: bool
    graph: GraphId | None = None
    """For which it was heard of."""
    heard: set[str] = field(default_factory=set)
    """Those of the addresses that somebody said and nobody has seen yet: where they lead is looked at first."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    soon: trio.Event = field(default_factory=trio.Event)
    anew: bool = False
    """Whether the pauses begin anew with the dial that is made soon."""
    since_s: float = field(default_factory=trio.current_time)
    reached: bool = False
    answered_at: str = ""
    """Where it answered last: what others say does not displace this."""
    welcome: bool = True
    """False once it has answered that we share nothing."""
    failures: int = 0
    brief: int = 0
    """Sessions in a row that ended soon."""


class Dialer:
    """Holds a connection to every wanted peer, as long as it is wanted."""

    def __init__(
        self,
        network: Network,
        connected: Callable[[PeerId], Awaitable[None]],
        chance: random.Random,
        limits: PeerLimits | None = None,
        *,
        own: Callable[[], tuple[str, ...]] = tuple,
        spare: Callable[[Collection[PeerId]], PeerId | None] = lambda heard: None,
        resolve: Resolve = system_resolve,
    ) -> None:
        """`connected` is awaited after each dial that succeeded; it returns when the peer is to be dialled again. `own`
        are the addresses that this node tells others: what may be dialled on hearsay depends on them. `spare` says whom
        of those who were heard of, and are connected, to give up where there is no room."""
        self._network = network
        self._limits = limits or PeerLimits()
        self._own, self._spare, self._resolve = own, spare, resolve
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
        return self._add(address, wanted=True)

    def hear(self, address: str, graph: GraphId | None = None, *, met_before: bool = False) -> PeerId:
        """The same for an address that another member told us. Raises as `want`, and when too many are such.

        `graph`: whose member is said to be there, if anything is said of it. `met_before`: the peer was reached there
        once.
        """
        return self._add(address, wanted=False, graph=graph, met_before=met_before)

    def _add(self, address: str, *, wanted: bool, graph: GraphId | None = None, met_before: bool = False) -> PeerId:
        _, peer = peer_of_address(address, None)
        if peer == self._network.peer_id:
            raise MisuseError(f"{address} is this node's own address")
        target = self._targets.get(peer)
        if target is None:
            heard = set() if wanted or met_before else {address}
            answered_at = address if met_before else ""
            target = _Target([address], wanted, graph, heard, reached=met_before, answered_at=answered_at)
            return self._begin(peer, target)
        is_news = wanted or address not in target.addresses
        if wanted or not target.wanted:
            # Hearsay does not displace an address that somebody here gave.
            is_seen = wanted or met_before or (address in target.addresses and address not in target.heard)
            if address in target.addresses:
                target.addresses.remove(address)
            target.addresses.insert(0, address)
            self._leave_newest(target, kept="" if wanted else target.answered_at)
            target.heard = (target.heard & set(target.addresses)) - {address} | (set() if is_seen else {address})
        target.wanted = target.wanted or wanted
        if is_news:
            target.anew = True
            target.soon.set()
        return peer

    def _leave_newest(self, target: _Target, kept: str) -> None:
        """Of too many addresses the oldest go, but for `kept`."""
        while len(target.addresses) > self._limits.addresses_per_peer_max:
            target.addresses.remove(next(it for it in reversed(target.addresses) if it != kept))

    def _begin(self, peer: PeerId, target: _Target) -> PeerId:
        if len(self._targets) >= self._limits.wanted_peers_max:
            raise MisuseError(f"{self._limits.wanted_peers_max} peers are wanted already")
        if not target.wanted:
            self._make_room(target.graph)
        self._targets[peer] = target
        if self._nursery is not None:
            self._nursery.start_soon(self._keep, peer, target)
        return peer

    def _make_room(self, graph: GraphId | None) -> None:
        """For one more that was only heard of, in this graph. Who did not answer most often in a row is given up, if
        that is often; else who never answered, and had the time to (whoever says addresses that swallow what is sent
        there fills no place for long); else whom there is to spare; else the newest of the graph that has
        most, if this one has fewer: whoever owns a graph can list, and run, any number of peers."""
        heard = [peer for peer, it in self._targets.items() if not it.wanted]
        if len(heard) < self._limits.heard_peers_max:
            return
        away = [peer for peer in heard if peer not in self._network.connected()]
        worst = max(away, key=lambda peer: self._targets[peer].failures, default=None)
        if worst is None or self._targets[worst].failures < self._limits.heard_failures_max:
            worst = self._never_answered(away) or self._spare(heard) or self._of_fullest(heard, graph)
        if worst is None:
            raise MisuseError(f"{len(heard)} peers are dialled already that were only heard of")
        self.unwant(worst)

    def _never_answered(self, away: Iterable[PeerId]) -> PeerId | None:
        """Who of these was heard of longest ago, and long enough, and was not reached since."""
        until_s = trio.current_time() - HEARD_S_MIN
        never = [peer for peer in away if not (it := self._targets[peer]).reached and it.since_s <= until_s]
        return min(never, key=lambda peer: self._targets[peer].since_s, default=None)

    def _of_fullest(self, heard: Iterable[PeerId], graph: GraphId | None) -> PeerId | None:
        by_graph: dict[GraphId | None, list[PeerId]] = {graph: []}
        for peer in heard:
            by_graph.setdefault(self._targets[peer].graph, []).append(peer)
        fullest = max(by_graph.values(), key=len)
        return fullest[-1] if len(fullest) > len(by_graph[graph]) + 1 else None

    def unwant(self, peer: PeerId) -> None:
        """Dial it no more. A connection that stands is left alone."""
        target = self._targets.pop(peer, None)
        if target is not None:
            target.scope.cancel()

    def unhear(self, peer: PeerId) -> None:
        """Dial it no more, if it was only heard of."""
        target = self._targets.get(peer)
        if target is not None and not target.wanted:
            self.unwant(peer)

    def dial_soon(self) -> None:
        """Do not wait out the pauses: somebody asked, or the network came back."""
        for target in self._targets.values():
            target.anew = True
            target.soon.set()

    def came(self, peer: PeerId) -> None:
        """A peer is here. If it was away, what kept it away may have kept others, and they may be back too: all are
        dialled once. Whoever is still away is left the pause that it had, for others come back while it is."""
        target = self._targets.get(peer)
        if target is not None and target.failures >= UNANSWERED_DIALS:
            target.failures = 0
            for other in self._targets.values():
                if other.failures and other.welcome:
                    other.soon.set()

    def unanswered(self) -> dict[PeerId, tuple[str, ...]]:
        """Who did not answer at the last `UNANSWERED_DIALS` dials or more, and the addresses tried."""
        return {
            peer: tuple(target.addresses)
            for peer, target in self._targets.items()
            if target.failures >= UNANSWERED_DIALS and target.welcome
        }

    def unwelcome(self) -> tuple[PeerId, ...]:
        """Who answered last that we share nothing."""
        return tuple(peer for peer, target in self._targets.items() if not target.welcome)

    def wanted(self) -> frozenset[PeerId]:
        return frozenset(self._targets)

    async def _keep(self, peer: PeerId, target: _Target) -> None:
        limits = self._limits
        pause_s = limits.first_dial_pause_s
        with target.scope:
            while True:
                target.soon, began_s = trio.Event(), trio.current_time()
                if await self._dial(peer, target):
                    lasted = trio.current_time() - began_s >= limits.lasting_s
                    target.brief = 0 if lasted else target.brief + 1
                    doubled = min(max(target.brief - 1, 0), 30)
                    pause_s = min(limits.first_dial_pause_s * 2**doubled, limits.longest_dial_pause_s)
                    target.failures, target.reached = 0, True
                else:
                    target.failures += 1
                    if self._is_hopeless(target):
                        break
                    self._forget_talk(target)
                with trio.move_on_after(pause_s * self._chance.uniform(0.5, 1.0)):
                    await target.soon.wait()
                longest_s = limits.longest_dial_pause_s if target.welcome else limits.unwelcome_dial_pause_s
                if target.anew:
                    pause_s, target.anew = limits.first_dial_pause_s, False
                elif not target.soon.is_set():
                    pause_s = min(2 * pause_s, longest_s)
        if self._targets.get(peer) is target:
            del self._targets[peer]

    def _is_hopeless(self, target: _Target) -> bool:
        return not target.wanted and not target.reached and target.failures >= self._limits.heard_failures_max

    def _forget_talk(self, target: _Target) -> None:
        """After so many failures in a row dial on where the peer once answered, and no more where others say it is:
        else whoever was reached once could have this node knock at somebody else's door for ever."""
        if target.answered_at and target.failures >= self._limits.heard_failures_max:
            talk = target.heard - {target.answered_at}
            target.addresses[:] = [it for it in target.addresses if it not in talk]
            target.heard -= talk

    async def _dial(self, peer: PeerId, target: _Target) -> bool:
        for address in sorted(target.addresses, key=lambda it: it != target.answered_at):
            target.welcome = True
            try:
                is_here = peer in self._network.connected()
                await self._connect(address, peer, is_heard=address in target.heard)
                target.answered_at = target.answered_at if is_here else address
                await self._connected(peer)
            except NotWelcomeError:
                target.welcome = False
                return False
            except (OutsideError, RefusedError, MisuseError) as error:
                # Misuse, too: what somebody said may be an address of a kind that this network does not know.
                log.info("peer.dial_failed", extra={"peer": peer, "why": type(error).__name__})
                continue
            except Exception:
                # As with a handler of a stream that the peer opened: what it says ends what we do with it, no more.
                log.exception("peer.session_failed", extra={"peer": peer})
                return False
            return True
        return False

    async def _connect(self, address: str, peer: PeerId, *, is_heard: bool) -> None:
        """Be connected by this address. Raises as `Network.connect`."""
        places = await places_on_hearsay(address, self._own(), self._resolve) if is_heard else (address,)
        for place in places[:-1]:
            with suppress(OutsideError):
                await self._network.connect(place, expected=peer)
                return
        if not places:
            raise PeerUnreachableError(f"{address} leads nowhere that may be dialled on hearsay")
        await self._network.connect(places[-1], expected=peer)
