"""Memory that native libraries have freed: the allocator keeps it for itself, in pieces, unless it is told otherwise.

The triple store and SQLite work in several threads, and glibc keeps an arena for each; after some thousand shares tens
of megabytes lie there unused. Elsewhere than with glibc this does nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_M_ARENA_MAX: Final = -8
ARENAS: Final = 2


def share_arenas() -> None:
    """Let all threads of this process use two arenas, not one each. To be called before there are threads."""
    if sys.platform.startswith("linux"):
        set_option: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(_M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return free memory to the system. Takes some milliseconds, in which other threads run."""
    trim = _trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
