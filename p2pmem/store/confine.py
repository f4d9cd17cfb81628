"""Takes from this process what a query worker never needs: sockets, other programs, other processes' memory.

On Linux by a seccomp filter, which cannot be taken back and holds for every thread begun later. (Limiting open files to
those already open would do for sockets too, but RocksDB opens its files when it first reads them.)
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from dataclasses import dataclass

_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_AT_LEAST = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE = 0, 4
_X32_NUMBERS = 0x40000000


@dataclass(frozen=True, slots=True)
class _Architecture:
    """Its number in seccomp's data (linux/audit.h), and its numbers of the calls that are refused."""

    audit: int
    refused: tuple[int, ...]


# socket, socketpair, connect, execve, execveat, ptrace, process_vm_readv, process_vm_writev, io_uring_setup
_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, (41, 53, 42, 59, 322, 101, 310, 311, 425)),
    "aarch64": _Architecture(0xC00000B7, (198, 199, 203, 221, 281, 117, 270, 271, 425)),
}


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def forbid_network() -> bool:
    """Refuse sockets and new programs from now on, in this thread and all it begins. False where it cannot be done."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or architecture is None:
        return False
    rows = _rows(architecture)
    instructions = (_Instruction * len(rows))(*(_Instruction(*row) for row in rows))
    program = _Program(len(rows), instructions)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _rows(architecture: _Architecture) -> list[tuple[int, int, int, int]]:
    """The filter: another architecture's call, or one of the refused, is an error; anything else passes."""
    refused = architecture.refused
    to_refusal = len(refused) + 1
    rows = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_EQUAL, 0, to_refusal + 2, architecture.audit),
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_AT_LEAST, to_refusal, 0, _X32_NUMBERS),
    ]
    rows += [(_JUMP_EQUAL, to_refusal - 1 - index, 0, number) for index, number in enumerate(refused)]
    rows += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EACCES)]
    return rows
