"""The files of the triple store: opened, opened anew, destroyed; and what their errors mean. Everything here blocks.

Oxigraph has no close(): it lets go of its files with the last reference to the store, also that of a look-up which
still runs in another thread. And after a write that the disk refused it takes no other one, whatever room there is,
until it is opened anew.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyoxigraph as ox
from p2pmem_jobs.errors import DiskError
from p2pmem_protocol.errors import OutsideError

from p2pmem.home import made_anew
from p2pmem.store.answering import DESCRIBED, POSITION, STORE
from p2pmem.store.plan import INTERNAL, STATE

log = logging.getLogger(__name__)

FORMAT = 2
"""How quads are laid out. A store of an earlier format is emptied when it is opened, and the ledger fills it again."""

ASSETS = ox.NamedNode(INTERNAL + "assets")
_FORMAT = ox.NamedNode(INTERNAL + "format")

_LETS_GO_S = 5.0
_ROOM_BYTES: Final = 1024 * 1024
"""What an opening writes, besides a table of all that is in the log."""
_NO_ROOM = ("no space left", "quota exceeded", "file too large")
"""What the system says when a file may not grow; Oxigraph hands on the text alone."""


class ProjectionUnusable(OutsideError):
    """The store's directory cannot be opened: in use, damaged, or of another format. The ledger has lost nothing."""


class _InUse(ProjectionUnusable):
    """Somebody has it open."""


def open_store(path: Path | None) -> ox.Store:
    """The store in `path`, made if need be, or one in memory. Errors: `ProjectionUnusable`; `DiskError` for no room."""
    if path is None:
        store = ox.Store()
        stamp(store)
        return store
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        _remove_diaries(path)
        store = ox.Store(path)
        if not store:
            stamp(store)
        found = stored_number(store, _FORMAT)
        if found < FORMAT:  # or none at all, when it was stopped in the middle of a clearing
            log.info("store.of_earlier_format", extra={"format": found})
            store.clear()
            stamp(store)
            found = FORMAT
    except (OSError, RuntimeError) as error:
        if _says_no_room(error):
            raise DiskError(_refused("opened", error)) from error
        if "lock" in str(error).lower():
            raise _InUse(f"the store in {path} is open already, here or in another process") from error
        raise ProjectionUnusable(f"the store in {path} cannot be opened: {error}; {made_anew(path)}") from error
    if found != FORMAT:
        raise ProjectionUnusable(f"the store in {path} is of format {found}, this is {FORMAT}; {made_anew(path)}")
    return store


def _remove_diaries(path: Path) -> None:
    """Each opening leaves one of some 140 KB, of which the native store would keep a thousand."""
    for diary in path.glob("LOG.old.*"):
        diary.unlink(missing_ok=True)


def open_when_let_go(path: Path) -> ox.Store:
    """As `open_store`, for who has just let go of the store: others who read it may need some seconds more.

    `DiskError` when they hold it still then; the next try will do.
    """
    end_s = time.monotonic() + _LETS_GO_S
    while True:
        try:
            return open_store(path)
        except _InUse as error:
            if time.monotonic() >= end_s:
                raise DiskError(f"{error}, where it was let go to be opened anew") from error
        gc.collect()  # what nobody can reach any more may hold it too
        time.sleep(0.02)


def check_room(path: Path) -> None:
    """`DiskError` where there is no room to open the store in `path` anew: better keep what is open, and can be read.

    Opening writes what the log holds as a table. The file that is tried is removed again.
    """
    probe = path / "p2pmem-room"
    try:
        wanted = _ROOM_BYTES + sum(file.stat().st_size for file in path.glob("*.log"))
        fd = os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, wanted)
        finally:
            os.close(fd)
            probe.unlink()
    except OSError as error:
        raise DiskError(_refused("opened anew", error)) from error


def destroy_projection(path: Path) -> None:
    """Delete the store's files. Everything in them can be made again from the ledger. The store must not be open."""
    shutil.rmtree(path, ignore_errors=False)
    log.warning("store.destroyed")


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Errors of the native store, which come from the disk, as ours: `DiskError`, unless the files are damaged.

    Oxigraph's own are `OSError` for what the system refused, and `RuntimeError` for all others.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(_refused(what, error)) from error
    except RuntimeError as error:
        if _says_no_room(error):
            raise DiskError(_refused(what, error)) from error
        raise OutsideError(f"the store could not be {what}: {error}; nothing is lost") from error


def _refused(what: str, error: Exception) -> str:
    return f"the store could not be {what}: {error}. Nothing is lost; free some space, or check the disk"


def _says_no_room(error: Exception) -> bool:
    text = str(error).lower()
    return any(words in text for words in _NO_ROOM)


def stamp(store: ox.Store) -> None:
    """Mark an empty store."""
    numbers = ((_FORMAT, FORMAT), (POSITION, 0), (DESCRIBED, 0), (ASSETS, 0))
    store.extend([number_quad(name, value) for name, value in numbers])


def number_quad(name: ox.NamedNode, value: int) -> ox.Quad:
    return ox.Quad(STORE, name, ox.Literal(value), STATE)


def stored_number(store: ox.Store, name: ox.NamedNode) -> int:
    for quad in store.quads_for_pattern(STORE, name, None, STATE):
        assert isinstance(quad.object, ox.Literal)
        return int(quad.object.value)
    return 0
