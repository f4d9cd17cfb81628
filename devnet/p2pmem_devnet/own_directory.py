"""A directory for one run of something: it goes with the run, and when that was killed, at the next one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final

_LOCK: Final = ".lock"


@contextmanager
def own_directory(
    where: Path, prefix: str, keep: Callable[[BaseException, Path], bool] = lambda error, path: False
) -> Iterator[Path]:
    """A private directory in `where`, whose name begins with `prefix`.

    A lock beside it is held as long as this process lives; what one that was killed has left is deleted here. `keep`
    says of the error that ended the block whether the directory explains it: then it stays, and for good.
    """
    _delete_left_over(where, prefix)
    descriptor, lock = tempfile.mkstemp(prefix=prefix, suffix=_LOCK, dir=where)
    path = Path(lock.removesuffix(_LOCK))
    kept = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        path.mkdir(mode=0o700)
        yield path
    except BaseException as error:
        kept = keep(error, path)
        raise
    finally:
        if not kept:
            rmtree(path, ignore_errors=True)
        Path(lock).unlink(missing_ok=True)
        os.close(descriptor)


def _delete_left_over(where: Path, prefix: str) -> None:
    """Delete directories whose process has gone: nobody holds their locks. Others' are left alone."""
    for lock in where.glob(f"{prefix}*{_LOCK}"):
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
