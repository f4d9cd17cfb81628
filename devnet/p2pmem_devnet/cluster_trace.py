"""The same seed, the same trace: a deterministic scheduler, and a running hash over everything that happened.

trio shuffles the tasks that are ready at the same time. With a seed that becomes a choice which can be made again, and
different seeds try different orders. What else could differ between two runs (the order of a set of bytes or of text
follows a secret of the process) must not show in anything that a node does; the hash tells when it does.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from p2pmem.ledger.batch import Delta

LINES_KEPT_MAX: Final = 10_000


@contextmanager
def deterministic_scheduling(seed: int) -> Iterator[None]:
    """Within the block, trio orders tasks that are ready together by `seed` alone."""
    # The hook that trio keeps for Hypothesis; there is no public one.
    run: Any = trio._core._run
    before, state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = before
        run._r.setstate(state)


class Trace:
    """What happened on all nodes, in order: changes of ledgers, and what the test did to the cluster."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT_MAX)
        """The latest lines, for people who compare two runs."""

    def note(self, *words: object) -> None:
        at_ms = round(trio.current_time() * 1000)
        line = f"{at_ms} {' '.join(map(str, words))}"
        self.lines.append(line)
        self.count += 1
        self._hash.update(line.encode() + b"\n")

    def delta(self, node: str, delta: Delta) -> None:
        """A node committed a change."""
        entered = ",".join(f"{item.kind.word}:{item.id.hex()[:12]}" for item in delta.entered)
        left = ",".join(item_id.hex()[:12] for item_id in delta.left)
        assets = ",".join(map(str, sorted(delta.assets)))
        how = f"{delta.source.how.value}:{delta.source.peer[-8:]}"
        self.note(node, delta.position, how, "head" if delta.head_changed else "", f"+[{entered}] -[{left}] [{assets}]")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
