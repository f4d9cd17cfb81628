"""The credentials that this node shows in hello: for each of its agents, that this peer carries its words."""

from __future__ import annotations

from typing import Final

from p2pmem_jobs import Clock
from p2pmem_protocol.credential import Carry, SignedActFor, SignedCarry
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import Address, NetworkId

from p2pmem.keyring import Keyring
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.seam import PeerId

LIFE_MS: Final = 60 * DAY_MS
RENEWED_BEFORE_MS: Final = 30 * DAY_MS
_SERIAL_SETTING: Final = "credential-serial"


class OwnPapers:
    """Makes credentials when they are needed and renews them a month before they end."""

    def __init__(self, keyring: Keyring, network: NetworkId, peer: PeerId, clock: Clock, serial: int) -> None:
        self._keyring = keyring
        self._network = network
        self._peer = peer
        self._clock = clock
        self._serial = serial
        self._made: dict[Address, SignedCarry] = {}
        self._acting: tuple[SignedActFor, ...] = ()

    @classmethod
    async def open(cls, keyring: Keyring, ledger: Ledger, peer: PeerId) -> OwnPapers:
        """With the serial that the ledger remembers; a first one is 1."""
        stored = ledger.get_setting(_SERIAL_SETTING)
        if stored is None:
            await ledger.set_setting(_SERIAL_SETTING, "1")
        return cls(keyring, ledger.network, peer, ledger.clock, int(stored or 1))

    def credentials(self) -> tuple[SignedCarry, ...]:
        now_ms = self._clock.now_ms()
        for agent, key in self._keyring.keys.items():
            made = self._made.get(agent)
            if made is None or not 0 < made.carry.until_ms - now_ms - RENEWED_BEFORE_MS <= LIFE_MS:
                carry = Carry(self._network, agent, self._peer, self._serial, now_ms + LIFE_MS)
                self._made[agent] = carry.sign(key)
        return tuple(self._made[agent] for agent in self._keyring.keys)

    def delegations(self) -> tuple[SignedActFor, ...]:
        return self._acting

    def act_for(self, *delegations: SignedActFor) -> None:
        """From now on show these delegations of principals."""
        self._acting = delegations
