"""Lines about peers are theirs to cause, so there are so many of each and no more: a log fills no disk.

Whoever opens sockets and is refused each time would write a line with each, as fast as he opens them. Every address is
said often enough for a program that blocks it, and counters (`p2pmem status`) count all.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from p2pmem.net.allowance import Allowance
from p2pmem.net.room import origin_of_address

OF_EVENT_PER_MINUTE: Final = 240
"""Some 36 MB a day of one event, at once or spread,"""
OF_ADDRESS_PER_MINUTE: Final = 20
"""and of these so many about one IP address (one /48 in IPv6), so that it does not hide others."""
_ADDRESSES_MAX: Final = 1_024
_EVENTS_MAX: Final = 256
_OF_PEERS: Final = "libp2p"
"""A library whose every line is about what some peer did, though it does not say so in our words."""


class FewLines(logging.Filter):
    """Lets through what is not about a peer, and of the rest so much. What was left out of an event is said with the
    next line of it, as `left_out`."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._of_addresses = Allowance(OF_ADDRESS_PER_MINUTE, _ADDRESSES_MAX)
        self._of_events = Allowance(OF_EVENT_PER_MINUTE, _EVENTS_MAX)
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        address = getattr(record, "address", None)
        if address is None and not hasattr(record, "peer") and not record.name.startswith(_OF_PEERS):
            return True
        if not self._may_be_said(record.msg, origin_of_address(str(address)).wide if address else ""):
            self._left_out[record.msg] += 1
            return False
        if left_out := self._left_out.pop(record.msg, 0):
            record.left_out = left_out
        return True

    def _may_be_said(self, event: str, host: str) -> bool:
        now_s = self._now_s()
        if host and not self._of_addresses.take(now_s, f"{event} {host}"):
            return False
        return self._of_events.take(now_s, event)
