"""Signals: they wake whoever waits, and mean nothing.

Who waits for a condition registers first, then tests it, then sleeps, and tests it again when woken. So nothing is
lost between the test and the sleep, and a signal too many costs one test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import trio


class Signal:
    """Something may have changed. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def notify(self) -> None:
        """Wakes all who listen."""
        for listener in self._listeners:
            listener.wake()

    def __len__(self) -> int:
        """How many listen."""
        return len(self._listeners)


class Listener:
    """Listens to signals inside a `with` block: `wait` returns at once if one came since its beginning or the last."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self._signals = tuple(signals)
        self._event = trio.Event()

    def __enter__(self) -> Listener:
        for signal in self._signals:
            signal._listeners.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        for signal in self._signals:
            signal._listeners.discard(self)

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Sleeps until a signal comes. Cancelled, it has missed nothing: the next `wait` returns at once."""
        await self._event.wait()
        self._event = trio.Event()


class Signals:
    """Signals by key. Those to which nobody listens do not exist."""

    def __init__(self) -> None:
        self._signals: dict[str, Signal] = {}

    @contextmanager
    def listen(self, key: str) -> Iterator[Listener]:
        """Listens to one key, from now on."""
        signal = self._signals.setdefault(key, Signal())
        try:
            with Listener((signal,)) as listener:
                yield listener
        finally:
            if not signal:
                self._signals.pop(key, None)

    def notify(self, key: str) -> None:
        if key in self._signals:
            self._signals[key].notify()

    def notify_all(self) -> None:
        """Wakes who listens to any key."""
        for signal in self._signals.values():
            signal.notify()
