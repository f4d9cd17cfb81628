"""What gossip remembers: which ids it has dealt with, and which promises of others it leant on.

Both tables are bounded in time and in number; the oldest goes first. What is forgotten early costs a question or a
round of reconciliation, never an envelope.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

MEMORY_MS: Final = 600_000
PROMISE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Relayed:
    """An id that was dealt with: admitted, or refused for good; then `item_id` is None."""

    graph: bytes
    item_id: bytes | None
    size_bytes: int
    at_ms: int


@dataclass(slots=True)
class Promise:
    """Whose word an envelope came by (a hash), who has spoken of it, and whom we passed over as they hear him too."""

    short_id: bytes
    giver: bytes
    at_ms: int
    spoke: set[str]
    passed_over: set[str]


class Owed(NamedTuple):
    """An announcement that `peer` is owed because the giver on whom we relied has gone."""

    peer: str
    graph: bytes
    short_id: bytes


class Relays:
    """The memory of ten minutes and the promises of one."""

    def __init__(self, *, memory: int = 20_000, promises: int = 20_000) -> None:
        self._memory_max = memory
        self._promises_max = promises
        self._memory: OrderedDict[bytes, Relayed] = OrderedDict()
        self._promises: OrderedDict[bytes, Promise] = OrderedDict()
        self._by_giver: dict[bytes, dict[bytes, Promise]] = {}

    def get(self, short_id: bytes) -> Relayed | None:
        return self._memory.get(short_id)

    def remember(self, short_id: bytes, known: Relayed) -> None:
        self._memory[short_id] = known
        self._memory.move_to_end(short_id)
        self.forget(known.at_ms)

    def forget_refusals(self, graph: bytes) -> None:
        """What was refused in `graph` may be admissible now."""
        for short_id in [it for it, known in self._memory.items() if known.graph == graph and known.item_id is None]:
            del self._memory[short_id]

    def lean_on(self, promise: Promise) -> None:
        """Those passed over will hear of it from the giver, as long as he is there."""
        self._drop_promise(promise.short_id)
        self._promises[promise.short_id] = promise
        self._by_giver.setdefault(promise.giver, {})[promise.short_id] = promise
        self.forget(promise.at_ms)

    def heard(self, short_id: bytes, peer: str) -> None:
        """`peer` has it: he is owed nothing."""
        promise = self._promises.get(short_id)
        if promise is not None:
            promise.spoke.add(peer)

    def ended(self, giver: bytes, peers: Iterable[str], now_ms: int) -> list[Owed]:
        """The giver has gone for `peers`: what they are owed now, and only once."""
        self.forget(now_ms)
        owed = []
        heard_him = set(peers)
        for promise in self._by_giver.get(giver, {}).values():
            left_alone = promise.passed_over & heard_him
            promise.passed_over -= left_alone
            known = self._memory.get(promise.short_id)
            if known is not None:
                owed += [Owed(peer, known.graph, promise.short_id) for peer in sorted(left_alone - promise.spoke)]
        return owed

    def forget(self, now_ms: int) -> None:
        """Let go of what is too old or too much."""
        memory, promises = self._memory, self._promises
        while memory:
            short_id, known = next(iter(memory.items()))
            if known.at_ms + MEMORY_MS > now_ms and len(memory) <= self._memory_max:
                break
            del memory[short_id]
        while promises:
            short_id, promise = next(iter(promises.items()))
            if promise.at_ms + PROMISE_MS > now_ms and len(promises) <= self._promises_max:
                break
            self._drop_promise(short_id)

    def _drop_promise(self, short_id: bytes) -> None:
        promise = self._promises.pop(short_id, None)
        if promise is None:
            return
        of_giver = self._by_giver[promise.giver]
        del of_giver[short_id]
        if not of_giver:
            del self._by_giver[promise.giver]

    @property
    def remembered(self) -> int:
        return len(self._memory)

    @property
    def promises(self) -> int:
        return len(self._promises)
