"""The disks of a cluster's nodes: directories that can be taken at one instant, as a power cut leaves them.

A node that crashes is copied at that very instant, and what its dying tasks still write goes to the directory that
nobody opens again. Calls to the disk run inline in virtual time, so no transaction is half way unless the crash came
from inside of it; SQLite then ignores in the copy what was not committed, as it does after a real crash.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from typing import Final

from p2pmem.node import Places

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
_PREFIX: Final = "p2pmem-cluster-"
_LOCK: Final = ".lock"
_TEXT: Final = "text.sqlite"
_STORE: Final = "store"


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """A private directory for one cluster: in memory where the system has such a place, since nothing is to last.

    A lock beside it is held as long as this process lives. What one that was killed has left is deleted here.
    """
    where = parent or (_IN_MEMORY if _IN_MEMORY.is_dir() else Path(tempfile.gettempdir()))
    _delete_left_over(where)
    descriptor, lock = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK, dir=where)
    path = Path(lock.removesuffix(_LOCK))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        path.mkdir(mode=0o700)
        yield path
    finally:
        rmtree(path, ignore_errors=True)
        Path(lock).unlink(missing_ok=True)
        os.close(descriptor)


def _delete_left_over(where: Path) -> None:
    """Delete directories whose process has gone: nobody holds their locks. Others' are left alone."""
    for lock in where.glob(f"{_PREFIX}*{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue  # somebody else's, or deleted this moment
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock that was made this moment may have no directory yet: its owner then goes on without it.
            if (path := lock.with_suffix("")).is_dir():
                rmtree(path, ignore_errors=True)
                lock.unlink(missing_ok=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


class Disk:
    """The disk of one node. `generation` rises with each crash; `path` is the directory that counts now."""

    def __init__(self, root: Path, *, keeps_projections: bool) -> None:
        self._root = root
        self._keeps_projections = keeps_projections
        self.generation = 0
        self.path.mkdir(parents=True)

    @property
    def path(self) -> Path:
        return self._root / str(self.generation)

    def places(self) -> Places:
        """Where a node is to keep its things. Projections are in memory, and so made anew at each start, unless the
        cluster was told to keep them."""
        ledger = self.path / "ledger.sqlite"
        if not self._keeps_projections:
            return Places(ledger=ledger)
        return Places(ledger, self.path / _STORE, self.path / _TEXT)

    def cut(self) -> None:
        """Take the disk as it is now; whoever still writes to the old place writes for nobody."""
        before = self.path
        self.generation += 1
        copytree(before, self.path, ignore=ignore_patterns("*-shm"))

    def wipe_projections(self) -> None:
        """Delete what can be made anew from the ledger. Only while no node has it open."""
        rmtree(self.path / _STORE, ignore_errors=True)
        for path in self.path.glob(f"{_TEXT}*"):
            path.unlink()
