"""The worker process: opens a read-only snapshot, gives up what a query could misuse, and answers one query at a time.

Spoken over stdin and stdout: a frame is its length in four bytes, big-endian, and that many bytes. The first frame says
that the worker is ready. A request is one frame of JSON. A reply is one frame of JSON and, for an answer, one more
frame with the body. The process ends when stdin ends, also in the middle of a query, so it dies with its parent. It
imports as little as it can.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import struct
import sys
import threading
from dataclasses import dataclass
from typing import BinaryIO

import pyoxigraph as ox
from p2pmem_protocol.errors import MisuseError

from p2pmem.store.answering import answer, stored_position
from p2pmem.store.confine import forbid_network
from p2pmem.store.query import QueryAnswer, QueryRefused, QuerySyntax, QueryTooLarge

MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">I")
_CPU_SLACK_S = 2


@dataclass(frozen=True, slots=True)
class Request:
    """One query, and the snapshot it is asked of. As JSON it is the first frame."""

    snapshot: str
    sparql: str
    default_graphs: list[str]
    named_graphs: list[str]
    max_rows: int
    max_bytes: int
    time_ms: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """How it went. `error` is the name of an error's class, empty when a body follows."""

    error: str = ""
    text: str = ""
    line: int = 0
    column: int = 0
    kind: str = ""
    position: int = 0
    truncated: bool = False
    row_count: int = 0


def pack(body: bytes) -> bytes:
    """A frame."""
    return _LENGTH.pack(len(body)) + body


def frame_length(head: bytes) -> int:
    """The length that a frame's first four bytes tell."""
    (length,) = _LENGTH.unpack(head)
    assert isinstance(length, int)
    return length


class _Snapshot:
    """The snapshot that is open, if any."""

    def __init__(self, is_confined: bool) -> None:
        self._is_confined = is_confined
        self._path = ""
        self._store: ox.Store | None = None

    def open(self, path: str) -> ox.Store:
        """The store in `path`."""
        if self._store is None or path != self._path:
            self._store = None
            gc.collect()
            self._allow_files(True)
            self._store = ox.Store.read_only(path)
            self._path = path
            self._allow_files(False)
        return self._store

    def _allow_files(self, allowed: bool) -> None:
        """Where the kernel cannot refuse sockets alone, refuse all new descriptors while queries run: then no socket is
        opened, and a store of more than some sixteen files cannot be read."""
        if not self._is_confined:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard if allowed else 3, hard))


def main() -> None:
    """Answer until stdin ends."""
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    snapshot = _Snapshot(is_confined=forbid_network())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    _send(sink, b"ready")
    sink.flush()
    while (head := source.read(_LENGTH.size)) != b"":
        request = Request(**json.loads(source.read(frame_length(head))))
        reply, body = _answer(snapshot, request)
        _send(sink, json.dumps(_fields(reply)).encode())
        if not reply.error:
            _send(sink, body)
        sink.flush()


def _end_with_stdin() -> None:
    """Die when nobody holds the other end of stdin any more; the engine lets other threads run while it evaluates.

    The kernel's own signal for that (PR_SET_PDEATHSIG) comes when the *thread* that started this process ends, and
    threads of a pool end when they have had nothing to do for some seconds.
    """
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    while not any(event & select.POLLHUP for _, event in poll.poll()):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _answer(snapshot: _Snapshot, request: Request) -> tuple[Reply, bytes]:
    try:
        store = snapshot.open(request.snapshot)
    except (OSError, RuntimeError) as error:
        return Reply("OutsideError", f"the snapshot could not be opened: {error}"), b""
    _limit(request)
    try:
        found = answer(
            store,
            request.sparql,
            request.default_graphs,
            request.named_graphs,
            request.max_rows,
            request.max_bytes,
        )
    except QuerySyntax as error:
        return Reply("QuerySyntax", str(error), error.line, error.column), b""
    except (QueryRefused, QueryTooLarge, MisuseError) as error:
        return Reply(type(error).__name__, str(error)), b""
    except MemoryError:
        return Reply("QueryTooLarge", f"the query needs more than {request.memory_bytes} bytes of memory"), b""
    except (OSError, RuntimeError, ValueError) as error:
        return Reply("QueryRefused", f"the query could not be evaluated: {str(error)[:300]}"), b""
    return _reply(found, stored_position(store)), found.body


def _reply(found: QueryAnswer, position: int) -> Reply:
    assert found.position == position, "a snapshot does not move"
    return Reply(kind=found.kind.value, position=position, truncated=found.truncated, row_count=found.row_count)


def _fields(reply: Reply) -> dict[str, str | int | bool]:
    return {name: getattr(reply, name) for name in Reply.__slots__}


def _send(sink: BinaryIO, body: bytes) -> None:
    sink.write(pack(body))


def _limit(request: Request) -> None:
    """Memory, and CPU time as a last resort, should nobody be left who kills us at the deadline."""
    resource.setrlimit(resource.RLIMIT_AS, (request.memory_bytes, resource.RLIM_INFINITY))
    used = resource.getrusage(resource.RUSAGE_SELF)
    cores = os.cpu_count() or 1
    seconds = int(used.ru_utime + used.ru_stime) + cores * (request.time_ms // 1000 + _CPU_SLACK_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
