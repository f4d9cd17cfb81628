"""What somebody who is no member may ask: so many requests and bytes at once, growing back with time (rule J2).

Pure: time is an argument. Whether a graph is known here makes no difference, so running dry tells a stranger nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import PeerId


@dataclass(slots=True)
class _Account:
    requests: float
    bytes: float
    at_s: float


class Allowances:
    """One account a peer, full at first."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._accounts: OrderedDict[PeerId, _Account] = OrderedDict()

    def may_ask(self, peer: PeerId, now_s: float) -> bool:
        """Take one request off the account; False when it or the bytes are used up."""
        account = self._grown(peer, now_s)
        if account.requests < 1 or account.bytes <= 0:
            return False
        account.requests -= 1
        return True

    def answered(self, peer: PeerId, size_bytes: int, now_s: float) -> None:
        """An answer of this size was given. The last one may overdraw the account."""
        self._grown(peer, now_s).bytes -= size_bytes

    def _grown(self, peer: PeerId, now_s: float) -> _Account:
        limits = self._limits
        account = self._accounts.pop(peer, None)
        if account is None:
            account = _Account(limits.reader_requests_max, limits.reader_bytes_max, now_s)
        part = (now_s - account.at_s) / limits.reader_refill_s
        account.requests = min(account.requests + part * limits.reader_requests_max, limits.reader_requests_max)
        account.bytes = min(account.bytes + part * limits.reader_bytes_max, limits.reader_bytes_max)
        account.at_s = now_s
        self._accounts[peer] = account
        if len(self._accounts) > limits.readers_max:
            self._accounts.popitem(last=False)
        return account
