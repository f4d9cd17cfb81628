"""Work on bytes that every node of a process has is done once, by the first of them.

A share that reaches twenty nodes is decoded twenty times, its signatures are recovered, and its content is looked at
whether it is canonical: with one result each time, since each of these is a function of its bytes alone, and what comes
out never changes. So within `shared_work` the others take what came out for the first. The remembered is found by all
of the bytes, it is bounded, and refusals are not remembered: whoever hands on bad bytes is found out by each node anew.
Everything that depends on a node (who may say it, when, quotas, its ledger and store) is each node's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from p2pmem_protocol import keys

from p2pmem.exchange import holdings
from p2pmem.ledger import admission

REMEMBERED_MAX: Final = 1_024
"""Results of each function; of more, those asked for longest ago go."""
LONG_BYTES: Final = 16 * 1024
"""What is longer is not remembered."""
PURE: Final[tuple[tuple[ModuleType, str], ...]] = (
    (holdings, "decode_item"),
    (admission, "check_canonical"),
    (keys, "signer_of"),
)


@contextmanager
def shared_work() -> Iterator[None]:
    """Within the block, pure work is done once in this process. What is audited is best audited outside of it."""
    with ExitStack() as stack:
        for module, name in PURE:
            plain = getattr(module, name)
            setattr(module, name, _once(plain))
            stack.callback(setattr, module, name, plain)
        yield


def _once(plain: Callable[..., Any]) -> Callable[..., Any]:
    remembering = lru_cache(maxsize=REMEMBERED_MAX)(plain)

    def once(data: bytes, *others: bytes) -> Any:
        return plain(data, *others) if len(data) > LONG_BYTES else remembering(data, *others)

    return once
