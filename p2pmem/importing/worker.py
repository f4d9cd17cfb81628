"""The process that parses what users bring. Run by path, with nothing of the node loaded but the parser.

It reads a request from standard input, writes the answer to standard output, and again, until the input ends. Before
the first request it gives up what it will not need: memory beyond its limit, new files and sockets of any kind (no
descriptor is left for one), new processes, core files. Processor time is limited anew for each request. Whatever then
goes wrong inside of the parser ends this process and nothing else.

    python -I -S worker.py MEMORY-BYTES INPUT-BYTES-MAX IMPORT-PATH...
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import BinaryIO


def _read(source: BinaryIO, count: int) -> bytes:
    data = source.read(count)
    if len(data) < count:
        # The node is gone, or does not want this any more.
        raise SystemExit(0)
    return data


def _give_up(memory_bytes: int) -> None:
    """From here on this process can compute, read its input, write its output, and nothing else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _allow_cpu(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 1, most))


def _resident_bytes(statm: int) -> int:
    """What this process holds now. The `ru_maxrss` of a process begins with that of its parent, so it says nothing."""
    return int(os.pread(statm, 256, 0).split()[1]) * resource.getpagesize()


def main(memory_bytes: int, input_bytes_max: int) -> None:
    """Serve until the input ends."""
    # Everything is loaded before files can no longer be opened.
    import encodings.idna
    import encodings.unicode_escape  # noqa: F401

    from p2pmem.importing import wire
    from p2pmem.importing.errors import ImportingError
    from p2pmem.importing.parsing import import_bytes

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    statm = os.open("/proc/self/statm", os.O_RDONLY)
    _give_up(memory_bytes)
    while True:
        head_bytes, payload_bytes = wire.lengths(_read(source, wire.LENGTHS_BYTES), input_bytes_max)
        request, cpu_seconds = wire.parse_request(_read(source, head_bytes))
        data = _read(source, payload_bytes)
        _allow_cpu(cpu_seconds)
        content = b""
        try:
            imported = import_bytes(data, request)
        except ImportingError as error:
            reply: wire.Answer | ImportingError = error
        except MemoryError:
            raise SystemExit(wire.EXIT_OUT_OF_MEMORY) from None
        else:
            content = imported.content.data
            reply = wire.Answer(imported, _resident_bytes(statm))
            del imported
        sink.write(wire.frame(wire.answer_head(reply), content))
        sink.write(content)
        sink.flush()
        del data, content, reply


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    main(int(sys.argv[1]), int(sys.argv[2]))
