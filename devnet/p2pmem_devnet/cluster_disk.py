"""The disks of a cluster's nodes: directories that can be taken at one instant, as a power cut leaves them.

A node that crashes is copied at that very instant, and what its dying tasks still write goes to the directory that
nobody opens again. Calls to the disk run inline in virtual time, so no transaction is half way unless the crash came
from inside of it; SQLite then ignores in the copy what was not committed, as it does after a real crash.
"""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from typing import Final

from p2pmem.node import Places
from p2pmem_devnet.own_directory import own_directory

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
_PREFIX: Final = "p2pmem-cluster-"
_TEXT: Final = "text.sqlite"
_STORE: Final = "store"


def private_directory(parent: Path | None = None) -> AbstractContextManager[Path]:
    """A private directory for one cluster: in memory where the system has such a place, since nothing is to last."""
    return own_directory(parent or (_IN_MEMORY if _IN_MEMORY.is_dir() else Path(tempfile.gettempdir())), _PREFIX)


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
