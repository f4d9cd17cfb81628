"""The credentials that this node shows in hello: for each of its agents, that this peer carries its words."""

from __future__ import annotations

from typing import Final

from p2pmem_jobs import Clock
from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.credential import Carry, SignedActFor, SignedCarry
from p2pmem_protocol.errors import MisuseError, RefusedError
from p2pmem_protocol.keys import check_signed_by
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import Address, NetworkId

from p2pmem.keyring import Keyring
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.seam import PeerId

LIFE_MS: Final = 60 * DAY_MS
RENEWED_BEFORE_MS: Final = 30 * DAY_MS
_SERIAL_SETTING: Final = "credential-serial"
_CARRIED_SETTING: Final = "credentials-outside"
CARRIED_MAX: Final = 16
"""Agents outside whose words this peer carries: hello has room for few."""


class OwnPapers:
    """Makes credentials when they are needed and renews them a month before they end."""

    def __init__(self, keyring: Keyring, network: NetworkId, peer: PeerId, clock: Clock, serial: int) -> None:
        self._keyring = keyring
        self._network = network
        self.peer = peer
        self._clock = clock
        self.serial = serial
        self._made: dict[Address, SignedCarry] = {}
        self._carried: dict[Address, SignedCarry] = {}
        self._acting: tuple[SignedActFor, ...] = ()

    @classmethod
    async def open(cls, keyring: Keyring, ledger: Ledger, peer: PeerId) -> OwnPapers:
        """With the serial that the ledger remembers; a first one is 1."""
        stored = ledger.get_setting(_SERIAL_SETTING)
        if stored is None:
            await ledger.set_setting(_SERIAL_SETTING, "1")
        papers = cls(keyring, ledger.network, peer, ledger.clock, int(stored or 1))
        for value in _stored(ledger, _CARRIED_SETTING):
            carried = SignedCarry.from_value(value, ledger.network, peer)
            if _is_for_this_peer(carried):
                papers._carried[carried.carry.agent] = carried
        return papers

    def agents(self) -> tuple[Address, ...]:
        """Those whose words this peer carries now: by their keys, or by a credential that their wallets signed."""
        return (*self._keyring.addresses, *(it.carry.agent for it in self._carries()))

    def _carries(self) -> list[SignedCarry]:
        now_ms = self._clock.now_ms()
        return [it for it in self._carried.values() if it.carry.until_ms > now_ms]

    def credentials(self) -> tuple[SignedCarry, ...]:
        now_ms = self._clock.now_ms()
        for agent, key in self._keyring.keys.items():
            made = self._made.get(agent)
            if made is None or not 0 < made.carry.until_ms - now_ms - RENEWED_BEFORE_MS <= LIFE_MS:
                carry = Carry(self._network, agent, self.peer, self.serial, now_ms + LIFE_MS)
                self._made[agent] = carry.sign(key)
        return (*(self._made[agent] for agent in self._keyring.keys), *self._carries())

    async def keep(self, ledger: Ledger, carried: SignedCarry) -> None:
        """From now on say that this peer carries the words of an agent whose key is elsewhere."""
        agents = {**self._carried, carried.carry.agent: carried}
        if len(agents) > CARRIED_MAX:
            raise MisuseError(f"a node carries the words of at most {CARRIED_MAX} agents outside")
        await _store(ledger, _CARRIED_SETTING, [it.to_value() for it in agents.values()])
        self._carried = agents

    def delegations(self) -> tuple[SignedActFor, ...]:
        return self._acting

    def act_for(self, *delegations: SignedActFor) -> None:
        """From now on show these delegations of principals."""
        self._acting = delegations


def _is_for_this_peer(carried: SignedCarry) -> bool:
    """One of another day's `peer.key` is of no use to anybody."""
    try:
        check_signed_by(carried.carry.agent, carried.carry.digest, carried.signature)
    except RefusedError:
        return False
    return True


def _stored(ledger: Ledger, setting: str) -> list[Value]:
    text = ledger.get_setting(setting)
    found = cbor.decode(bytes.fromhex(text)) if text else []
    assert isinstance(found, list)
    return found


async def _store(ledger: Ledger, setting: str, values: list[Value]) -> None:
    await ledger.set_setting(setting, cbor.encode(values).hex())
