"""Files that a command reads and writes: whole, within limits, and never over another one."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from p2pmem_protocol.errors import MisuseError, OutsideError, RefusedError
from p2pmem_protocol.names import BadNameError

from p2pmem.api.codec import BadValueError
from p2pmem.api.problems import BadFileError
from p2pmem.importing.errors import InputTooLargeError, NoSuchInputError, NotAFileError

STANDARD_INPUT: Final = "-"


def shown_name(name: str) -> str:
    """What messages call a file, as text that any encoding can write."""
    return "standard input" if name == STANDARD_INPUT else name.encode("utf-8", "replace").decode()


@contextmanager
def read_as(name: str, what: str) -> Iterator[None]:
    """While the bytes of a file are taken for something: `BadFileError` where they are something else."""
    try:
        yield
    except RefusedError as error:
        why = str(error).partition(": ")[2]
        raise BadFileError(f"{shown_name(name)} is not {what}: {why}", error.reason) from None
    except (BadValueError, BadNameError) as error:
        raise BadFileError(f"{shown_name(name)} is not {what}: {error}") from None


def read_input(name: str, limit_bytes: int) -> bytes:
    """The bytes of a regular file, or with `-` of standard input."""
    from_here = name == STANDARD_INPUT
    data = sys.stdin.buffer.read(limit_bytes + 1) if from_here else _read_file(name, limit_bytes)
    if len(data) > limit_bytes:
        raise InputTooLargeError(f"{shown_name(name)} is over {limit_bytes} bytes, the most that is taken: split it")
    return data


def _read_file(name: str, limit_bytes: int) -> bytes:
    path = Path(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise NotAFileError(f"{name} is not a file: give one, or - for standard input")
        with path.open("rb") as file:
            return file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise NoSuchInputError(f"there is no file {name}") from None
    except OSError as error:
        raise NoSuchInputError(f"cannot read {name}: {error.strerror}") from None


def read_text(name: str, limit_bytes: int) -> str:
    try:
        return read_input(name, limit_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFileError(f"{shown_name(name)} is not UTF-8: byte {error.start}") from None


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise MisuseError(f"{path} exists already and is not overwritten; name another with --output") from None
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from None
