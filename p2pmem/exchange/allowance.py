"""What somebody who is no member may ask: so many requests and bytes at once, growing back with time (rule J2).

A peer id costs nothing, so an address has an account besides, and all together have one. Pure: time is an argument.
Whether a graph is known here makes no difference, so running dry tells a stranger nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from p2pmem.net.allowance import Allowance
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId


@dataclass(slots=True)
class _Account:
    requests: float
    bytes: float
    at_s: float


class Allowances:
    """One account a peer, one an address, and one for all; full at first."""

    def __init__(self, limits: PeerLimits) -> None:
        self._peers = _Accounts(limits.reader_requests_max, limits.reader_bytes_max, limits)
        self._addresses = _Accounts(limits.reader_requests_per_address_max, limits.reader_bytes_per_address_max, limits)
        self._all = Allowance(limits.readers_work_per_minute)

    def may_ask(self, peer: PeerId, address: str, now_s: float, work: int = 1) -> bool:
        """Take one request off both accounts, and its work off that of all; False when one of them, or its bytes, is
        used up."""
        accounts = self._accounts_of(peer, address, now_s)
        if any(it.requests < 1 or it.bytes <= 0 for it in accounts) or not self._all.take(now_s, count=work):
            return False
        for it in accounts:
            it.requests -= 1
        return True

    def may_hear(self, peer: PeerId, address: str, now_s: float) -> bool:
        """Whether one more message of an answer may be given: bytes are left."""
        return all(it.bytes > 0 for it in self._accounts_of(peer, address, now_s))

    def answered(self, peer: PeerId, address: str, size_bytes: int, now_s: float) -> None:
        """A message of this size was given. The last one may overdraw the accounts."""
        for it in self._accounts_of(peer, address, now_s):
            it.bytes -= size_bytes

    def _accounts_of(self, peer: PeerId, address: str, now_s: float) -> tuple[_Account, _Account]:
        return self._peers.grown(peer, now_s), self._addresses.grown(address, now_s)


class _Accounts:
    def __init__(self, requests_max: int, bytes_max: int, limits: PeerLimits) -> None:
        self._requests_max, self._bytes_max = requests_max, bytes_max
        self._refill_s, self._accounts_max = limits.reader_refill_s, limits.readers_max
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def grown(self, key: str, now_s: float) -> _Account:
        """As it stands now."""
        account = self._accounts.pop(key, None) or _Account(self._requests_max, self._bytes_max, now_s)
        part = (now_s - account.at_s) / self._refill_s
        account.requests = min(account.requests + part * self._requests_max, self._requests_max)
        account.bytes = min(account.bytes + part * self._bytes_max, self._bytes_max)
        account.at_s = now_s
        self._accounts[key] = account
        if len(self._accounts) > self._accounts_max:
            self._accounts.popitem(last=False)
        return account
