"""Signals by what is waited for: thousands of jobs may wait, and each looks only when it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from p2pmem_jobs import Signal
from p2pmem_protocol.names import GraphId

K = TypeVar("K", bound=Hashable)


class Awaited(Generic[K]):
    """What jobs wait for, graph by graph. A key for which nobody waits does not exist."""

    def __init__(self) -> None:
        self._signals: dict[GraphId, dict[K, Signal]] = {}
        self._users: Counter[tuple[GraphId, K]] = Counter()

    @contextmanager
    def signal(self, graph: GraphId, key: K) -> Iterator[Signal]:
        """Notified when `key` was named, or everything of its graph."""
        signals = self._signals.setdefault(graph, {})
        self._users[graph, key] += 1
        try:
            yield signals.setdefault(key, Signal())
        finally:
            self._users[graph, key] -= 1
            # Who has the signal may not listen yet: it stays as long as anybody has it.
            if not self._users[graph, key]:
                del self._users[graph, key], signals[key]

    def waits(self, graph: GraphId) -> bool:
        """Whether anybody waits for anything of this graph."""
        return bool(self._signals.get(graph))

    def notify(self, graph: GraphId, keys: Iterable[K]) -> None:
        signals = self._signals.get(graph, {})
        for key in keys:
            if key in signals:
                signals[key].notify()

    def notify_all(self, graph: GraphId) -> None:
        for signal in self._signals.get(graph, {}).values():
            signal.notify()
