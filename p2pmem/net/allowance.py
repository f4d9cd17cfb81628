"""So many a minute: what strangers may cause, by whatever tells them apart. Pure: time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_REFILL_S: Final = 60.0


class Allowance:
    """One account for each key, full at first, growing back within a minute."""

    def __init__(self, per_minute: int, accounts_max: int = 1) -> None:
        self._per_minute = per_minute
        self._accounts_max = accounts_max
        self._accounts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when that was so

    def take(self, now_s: float, key: str = "", count: int = 1) -> bool:
        """Take so many off the account; False, and nothing is taken, when there are not as many left."""
        left, at_s = self._accounts.pop(key, (float(self._per_minute), now_s))
        left = min(left + (now_s - at_s) / _REFILL_S * self._per_minute, self._per_minute)
        may = left >= count
        self._accounts[key] = (left - count if may else left, now_s)
        if len(self._accounts) > self._accounts_max:
            self._accounts.popitem(last=False)
        return may
