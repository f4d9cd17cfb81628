"""What a peer that malforms or forges gets: its connection ends, and it is not let in again for a growing while.

A person may ban a peer, for a time or for good, and lift any ban. Bans outlive a restart. They go by peer id, and a
stranger makes a new one for nothing: so his address has an allowance besides (`faults.py`), and his bans are the first
to be forgotten. One log line a refusal, with stable fields, fit for programs that read logs and block addresses.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import trio
from p2pmem_jobs import Clock
from p2pmem_protocol.errors import MisuseError, Penalty, Reason, RefusedError

from p2pmem.net.faults import Faults
from p2pmem.net.limits import PeerLimits
from p2pmem.net.room import origin_of_address
from p2pmem.net.seam import Network, PeerId

log = logging.getLogger(__name__)

FOR_GOOD_MS: Final = -1
BY_A_PERSON: Final = "banned"
SET_BACK_MS: Final = 300_000
"""A ban that began so much later than it is now was made when the clock was wrong."""


@dataclass(frozen=True, slots=True)
class Ban:
    """How a peer stands. `until_ms` may have passed: then it counts only for how long the next ban is."""

    until_ms: int
    reason: str
    times: int
    last_ms: int

    def holds(self, now_ms: int) -> bool:
        if self.reason != BY_A_PERSON and now_ms < self.last_ms - SET_BACK_MS:
            return False
        return self.until_ms == FOR_GOOD_MS or now_ms < self.until_ms


class Bans(Protocol):
    """Where bans are kept."""

    def load(self) -> Mapping[PeerId, Ban]: ...

    async def keep(self, peer: PeerId, ban: Ban | None) -> None:
        """Remember a ban, or forget it; returns when that is on disk."""


class Penalties:
    """Who may not be connected for now. `run` it in the node's nursery."""

    def __init__(
        self,
        network: Network,
        bans: Bans,
        clock: Clock,
        limits: PeerLimits | None = None,
        is_known: Callable[[PeerId], bool] = lambda peer: False,
    ) -> None:
        """`is_known`: whether a peer is a member's."""
        self._network = network
        self._store = bans
        self._clock = clock
        self._limits = limits or PeerLimits()
        self._is_known = is_known
        self._faults = Faults(self._limits)
        self._bans: dict[PeerId, Ban] = dict(bans.load())
        self._punished: dict[PeerId, str] = {}
        self._held_off: dict[PeerId, float] = {}
        self._changed = trio.Event()
        self.reasons: Counter[Reason] = Counter()
        self.refusals: Counter[PeerId] = Counter()

    def start(self) -> None:
        """From now on, nobody who is banned is let in."""
        self._network.set_gate(self.may_connect)

    async def run(self) -> None:
        """End the connections of those who were punished, and keep their bans, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                punished, self._punished = self._punished, {}
                for peer, why in punished.items():
                    if peer in self._bans:  # all at once: who does not read takes a second to go
                        nursery.start_soon(self._network.disconnect, peer, why)
                for peer in punished:
                    # As it is by now: a person may have decided something meanwhile.
                    await self._store.keep(peer, self._bans.get(peer))

    def may_connect(self, peer: PeerId, origin: str = "") -> bool:
        """Whether the peer may be connected, that dials from `origin` if it dials."""
        ban = self._bans.get(peer)
        if (ban is not None and ban.holds(self._clock.now_ms())) or self._held_off.get(peer, 0) > trio.current_time():
            return False
        return not origin or not self._faults.are_too_many(origin, _steady_ms()) or self._is_known(peer)

    async def hold_off(self, peer: PeerId, for_s: float) -> None:
        """End the connections to a peer that did nothing wrong, and let it in again after so long. Not a ban: nobody
        is shown it, and it does not outlive a restart."""
        now_s = trio.current_time()
        self._held_off = {other: until_s for other, until_s in self._held_off.items() if until_s > now_s}
        self._held_off[peer] = now_s + for_s
        await self._network.disconnect(peer, "room")

    def punish(self, peer: PeerId, refused: RefusedError) -> None:
        """Count a refusal; when it is the sender's fault, end the connection and close the door for a while."""
        self.reasons[refused.reason] += 1
        reason = refused.reason.name.lower()
        facts = {"reason": reason, "address": self._network.address_of(peer), "peer": peer}
        log.warning("peer.refused", extra={**facts, "penalty": refused.penalty.value})
        if refused.penalty is Penalty.NONE:
            return
        limits, now_ms, before = self._limits, self._clock.now_ms(), self._bans.get(peer)
        if facts["address"]:
            self._faults.note(origin_of_address(facts["address"]).wide, _steady_ms())
        self.refusals[peer] += 1
        if before is not None and before.until_ms == FOR_GOOD_MS:
            self._settle(peer, before, reason)
            return
        is_new = before is None or now_ms - before.last_ms > limits.forgiven_after_s * 1000
        times = 1 if before is None or is_new else before.times + 1
        ban_s = min(limits.first_ban_s * 2 ** min(times - 1, 32), limits.longest_ban_s)
        standing = before if before is not None and before.holds(now_ms) else None
        until_ms = max(now_ms + round(ban_s * 1000), standing.until_ms if standing is not None else 0)
        by_a_person = standing is not None and standing.reason == BY_A_PERSON
        self._settle(peer, Ban(until_ms, BY_A_PERSON if by_a_person else reason, times, now_ms), reason)

    def _settle(self, peer: PeerId, ban: Ban, why: str) -> None:
        self._bans.pop(peer, None)
        self._bans[peer] = ban
        self._punished[peer] = why
        if len(self._bans) > self._limits.banned_peers_max:
            oldest = self._first_to_forget(peer)
            del self._bans[oldest]
            self.refusals.pop(oldest, None)
            self._punished.setdefault(oldest, "forgotten")
        self._changed.set()

    def _first_to_forget(self, newest: PeerId) -> PeerId:
        """Of strangers the one punished longest ago; of members, only where there is no stranger."""
        by_us = (it for it, ban in self._bans.items() if ban.reason != BY_A_PERSON)
        member: PeerId | None = None
        for peer in by_us:
            if not self._is_known(peer):
                return peer
            member = member or peer
        return member or newest

    # What a person decides

    async def ban(self, peer: PeerId, for_ms: int | None) -> Ban:
        """Keep a peer out for a time, or for good (None), and end its connections. On disk when it returns.

        Raises `MisuseError` for ourselves and for a time that is none.
        """
        if peer == self._network.peer_id:
            raise MisuseError("a node cannot ban itself")
        if for_ms is not None and for_ms <= 0:
            raise MisuseError("a ban lasts longer than nothing; leave the time out for one that never ends")
        now_ms = self._clock.now_ms()
        before = self._bans.get(peer)
        until_ms = FOR_GOOD_MS if for_ms is None else now_ms + for_ms
        ban = Ban(until_ms, BY_A_PERSON, before.times if before else 0, now_ms)
        self._bans[peer] = ban
        await self._store.keep(peer, ban)
        log.warning("peer.banned", extra={"peer": peer, "until_ms": until_ms})
        await self._network.disconnect(peer, BY_A_PERSON)
        return ban

    async def pardon(self, peer: PeerId) -> bool:
        """Lift a ban and forget what led to it. Returns whether there was one; on disk when it returns."""
        ban = self._bans.pop(peer, None)
        self.refusals.pop(peer, None)
        await self._store.keep(peer, None)
        if ban is not None:
            log.info("peer.unbanned", extra={"peer": peer})
        return ban is not None and ban.holds(self._clock.now_ms())

    def banned(self) -> dict[PeerId, Ban]:
        """Who is kept out now."""
        now_ms = self._clock.now_ms()
        return {peer: ban for peer, ban in self._bans.items() if ban.holds(now_ms)}


def _steady_ms() -> int:
    """Time for what does not outlive a restart: never steps, says nothing about the calendar."""
    return round(trio.current_time() * 1000)
