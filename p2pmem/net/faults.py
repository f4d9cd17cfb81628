"""How often strangers at one address may forge or malform before no stranger is let in from there.

A ban goes by peer id, and a stranger makes a new id for nothing. What costs him something is an address (in IPv6 a /48,
which he gets for nothing too). So each has an allowance that grows back with time: who uses it up keeps himself out,
whatever ids he has, and other strangers at his address with him, until some of it has grown back. Members are let in
all the same. Who uses new ids from that address can fill no table with them either.

Pure: time is an argument. Of addresses some are remembered; of more, the one at fault longest ago is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pmem.net.limits import PeerLimits


@dataclass(slots=True)
class _Account:
    faults: float
    at_ms: int


class Faults:
    """One account an address, empty at first."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._accounts: dict[str, _Account] = {}

    def note(self, address: str, now_ms: int) -> None:
        """Somebody there is at fault."""
        faults = self._left(address, now_ms) + 1
        self._accounts.pop(address, None)
        self._accounts[address] = _Account(min(faults, self._limits.faults_per_address_max), now_ms)
        if len(self._accounts) > self._limits.addresses_at_fault_max:
            del self._accounts[next(iter(self._accounts))]

    def are_too_many(self, address: str, now_ms: int) -> bool:
        """Whether the allowance of this address is used up."""
        return self._left(address, now_ms) > self._limits.faults_per_address_max - 1

    def _left(self, address: str, now_ms: int) -> float:
        """What is not forgiven yet."""
        account = self._accounts.get(address)
        if account is None:
            return 0.0
        forgiven = (now_ms - account.at_ms) / 1000 / self._limits.fault_forgiven_s
        return max(account.faults - max(forgiven, 0.0), 0.0)
