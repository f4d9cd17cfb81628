"""What a peer that malforms or forges gets: its connection ends, and it is not let in again for a growing while.

One log line a refusal, with stable fields, fit for programs that read logs and block addresses.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_protocol.errors import Penalty, Reason, RefusedError

from p2pmem.net.seam import Network, PeerId

log = logging.getLogger(__name__)

FIRST_BAN_S: Final = 10.0
LONGEST_BAN_S: Final = 3600.0
FORGIVEN_AFTER_S: Final = 24 * 3600.0
PEERS_MAX: Final = 10_000


@dataclass(slots=True)
class _Record:
    times: int
    until_s: float
    last_s: float


class Penalties:
    """Who may not be connected for now. `run` it in the node's nursery."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._records: dict[PeerId, _Record] = {}
        self._send, self._receive = trio.open_memory_channel[tuple[PeerId, str]](1_024)
        self.reasons: Counter[Reason] = Counter()

    def start(self) -> None:
        """From now on, nobody who is banned is let in."""
        self._network.set_gate(self.may_connect)

    async def run(self) -> None:
        """End the connections of those who were punished, until cancelled."""
        async for peer, why in self._receive:
            await self._network.disconnect(peer, why)

    def may_connect(self, peer: PeerId) -> bool:
        record = self._records.get(peer)
        return record is None or trio.current_time() >= record.until_s

    def punish(self, peer: PeerId, refused: RefusedError) -> None:
        """Count a refusal; when it is the sender's fault, end the connection and close the door for a while."""
        self.reasons[refused.reason] += 1
        fields = {"peer": peer, "reason": refused.reason.name.lower(), "penalty": refused.penalty.value}
        log.warning("peer.refused", extra=fields)
        if refused.penalty is Penalty.NONE:
            return
        now_s = trio.current_time()
        record = self._records.get(peer)
        times = 1 if record is None or now_s - record.last_s > FORGIVEN_AFTER_S else record.times + 1
        until_s = now_s + min(FIRST_BAN_S * 2 ** min(times - 1, 16), LONGEST_BAN_S)
        self._records[peer] = _Record(times, until_s, now_s)
        while len(self._records) > PEERS_MAX:
            del self._records[next(iter(self._records))]
        try:
            self._send.send_nowait((peer, refused.reason.name.lower()))
        except trio.WouldBlock:
            log.warning("peer.punishments_wait", extra={"waiting": 1_024})

    def banned(self) -> dict[PeerId, float]:
        """Who is banned, and for how many seconds more."""
        now_s = trio.current_time()
        return {peer: it.until_s - now_s for peer, it in self._records.items() if it.until_s > now_s}

    def pardon(self, peer: PeerId) -> None:
        self._records.pop(peer, None)
