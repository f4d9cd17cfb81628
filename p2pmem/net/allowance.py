"""So many a minute: what strangers may cause, by whatever tells them apart. Pure: time is an argument."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Final

_REFILL_S: Final = 60.0


class Allowance:
    """One account for each key, full at first, growing back within a minute."""

    def __init__(self, per_minute: int, accounts_max: int = 1) -> None:
        self._per_minute = per_minute
        self._accounts_max = accounts_max
        self._accounts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # what is left, and when that was so

    def take(self, now_s: float, key: Hashable = "", count: int = 1) -> bool:
        """Take so many off the account; False, and nothing is taken, when there are not as many left."""
        left = self._left(now_s, key)
        may = left >= count
        self._keep(key, left - count if may else left, now_s)
        return may

    def take_later(self, now_s: float, key: Hashable = "", count: int = 1) -> float:
        """Take so many off the account, which may be overdrawn; in how many seconds that has grown back."""
        left = self._left(now_s, key) - count
        self._keep(key, left, now_s)
        return max(-left, 0.0) * _REFILL_S / self._per_minute

    def take_of_one(self, now_s: float, keys: Collection[Hashable], count: int = 1) -> bool:
        """Take so many off one of several accounts that has as many; False when there is none. Of no accounts: True."""
        return not keys or any(self.take(now_s, key, count) for key in keys)

    def take_of_one_later(self, now_s: float, keys: Collection[Hashable], count: int = 1) -> float:
        """The same off one of several accounts: one that has as much, or else the one that has most."""
        for key in keys:
            left = self._left(now_s, key)
            if left >= count:
                self._keep(key, left - count, now_s)
                return 0.0
        return self.take_later(now_s, max(keys, key=lambda it: self._left(now_s, it)), count)

    def _left(self, now_s: float, key: Hashable) -> float:
        left, at_s = self._accounts.get(key, (float(self._per_minute), now_s))
        return min(left + (now_s - at_s) / _REFILL_S * self._per_minute, self._per_minute)

    def _keep(self, key: Hashable, left: float, now_s: float) -> None:
        self._accounts[key] = left, now_s
        self._accounts.move_to_end(key)
        if len(self._accounts) > self._accounts_max:
            self._accounts.popitem(last=False)
