"""The asynchronous face of importing: files in, content out, whatever the file does to its parser.

    async with Importer() as importer:
        imported = await importer.load("findings.ttl", base="did:dkg:context-graph:0x.../assertion/0x.../findings")
        imported.content.root

A file is read here, within its limit, and parsed in a worker process within limits of memory and of time. Workers are
kept warm; one that failed, or that grew, is not used again.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

import p2pmem_protocol
import pyoxigraph
import sha3
import trio
from p2pmem_protocol.limits import CONTENT_BYTES_MAX

import p2pmem
from p2pmem.importing import wire
from p2pmem.importing.errors import (
    ImportingError,
    InputTooLargeError,
    NoSuchInputError,
    NotAFileError,
    WorkerUnavailableError,
)
from p2pmem.importing.formats import Format
from p2pmem.importing.parsing import Imported, Request, import_bytes
from p2pmem.importing.wire import Answer, BadFrameError, too_hard

log = logging.getLogger(__name__)

Source: TypeAlias = "str | os.PathLike[str] | bytes"
"""A path, or the bytes themselves."""

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """What one import may cost. What it may *say* is a limit of content and of the protocol.

    `memory_bytes` is the address space of a worker, of which some 100 MiB are its own. A worker that holds more than
    `keep_bytes` of memory, or failed, is ended instead of kept. At most `workers` run at a time, `idle` are kept.
    """

    input_bytes: int = 64 * MIB
    memory_bytes: int = 1024 * MIB
    cpu_seconds: int = 30
    wall_seconds: float = 60.0
    workers: int = 2
    idle: int = 1
    keep_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class ImporterStatistics:
    """Of an importer now (`idle`, `busy`, `waiting`), and since it was opened."""

    idle: int
    busy: int
    waiting: int
    started: int
    imported: int
    refused: int
    died: int


class Imports(Protocol):
    """What both importers do."""

    async def load(
        self,
        source: Source,
        *,
        format: str | Format | None = None,
        base: str | None = None,
        merge_graphs: bool = False,
        name: str | None = None,
        fallback_base: str | None = None,
    ) -> Imported: ...


class InlineImporter:
    """Imports in this process, for simulations under a virtual clock, and for input that one trusts.

    Nothing bounds the parser here: nested JSON-LD of 80 kB ends the process. Never give it what a user brings.
    """

    def __init__(self, limits: ImportLimits | None = None) -> None:
        self._limits = limits or ImportLimits()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def load(
        self,
        source: Source,
        *,
        format: str | Format | None = None,
        base: str | None = None,
        merge_graphs: bool = False,
        name: str | None = None,
        fallback_base: str | None = None,
    ) -> Imported:
        """As `Importer.load`. Blocks; the one checkpoint is before anything is done."""
        await trio.lowlevel.checkpoint()
        request = _request(source, format, base, merge_graphs, name, fallback_base)
        return import_bytes(_read(source, request.name, self._limits.input_bytes), request)


class Importer:
    """Imports in worker processes. An async context manager; on leaving, workers are ended and waited for."""

    def __init__(self, limits: ImportLimits | None = None) -> None:
        self._limits = limits or ImportLimits()
        self._slots = trio.CapacityLimiter(self._limits.workers)
        self._idle: list[_Worker] = []
        self._started = self._imported = self._refused = self._died = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._idle:
            await self._idle.pop().end()

    def statistics(self) -> ImporterStatistics:
        slots = self._slots.statistics()
        return ImporterStatistics(
            idle=len(self._idle),
            busy=slots.borrowed_tokens,
            waiting=slots.tasks_waiting,
            started=self._started,
            imported=self._imported,
            refused=self._refused,
            died=self._died,
        )

    async def load(
        self,
        source: Source,
        *,
        format: str | Format | None = None,
        base: str | None = None,
        merge_graphs: bool = False,
        name: str | None = None,
        fallback_base: str | None = None,
    ) -> Imported:
        """The content of a file, or of bytes.

        `format` is a title, a media type or an extension; without it the extension of the file decides, then its first
        words. `base` resolves relative IRIs, `fallback_base` does where nobody chose one; `parsing` says what happens
        without either, and what `merge_graphs` does.
        `name` is what messages and the choice of a format call it; a path has its own.

        Waits while as many imports run as there are workers. Raises a subclass of ImportingError for what is wrong
        with the file, WorkerUnavailableError where no process can be started. Cancelled, it ends the worker that was
        at it, and nothing is left behind.
        """
        request = _request(source, format, base, merge_graphs, name, fallback_base)
        async with self._slots:
            data = await trio.to_thread.run_sync(
                _read, source, request.name, self._limits.input_bytes, abandon_on_cancel=True
            )
            worker = await self._worker()
            keep = False
            try:
                reply = await self._ask(worker, request, data)
                keep = isinstance(reply, ImportingError) or reply.resident_bytes <= self._limits.keep_bytes
                keep = keep and len(self._idle) < self._limits.idle
            finally:
                if keep:
                    self._idle.append(worker)
                else:
                    await worker.end()
        if isinstance(reply, ImportingError):
            self._refused += 1
            raise reply
        self._imported += 1
        return reply.imported

    async def _worker(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            await worker.end()
        self._started += 1
        return await _Worker.start(self._limits)

    async def _ask(self, worker: _Worker, request: Request, data: bytes) -> Answer | ImportingError:
        limits = self._limits
        why = f"it took more than {limits.wall_seconds:g} s"
        with trio.move_on_after(limits.wall_seconds):
            try:
                return await worker.ask(request, data, limits.cpu_seconds)
            except trio.BrokenResourceError:
                why = await worker.cause_of_death(limits)
            except BadFrameError as error:
                why = f"the parser answered with {error}"
        self._died += 1
        log.warning("import.worker_died", extra={"why": why, "input_bytes": len(data)})
        raise too_hard(request.name, why)


class _Worker:
    """One process, and one question at a time."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    @classmethod
    async def start(cls, limits: ImportLimits) -> _Worker:
        """Raises WorkerUnavailableError. It answers a tenth of a second later."""
        command = [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("worker.py")),
            str(limits.memory_bytes),
            str(limits.input_bytes),
            *_import_paths(),
        ]
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
            )
        except OSError as error:
            raise WorkerUnavailableError(
                f"no process could be started to parse the file ({error.strerror}): free memory or processes, and retry"
            ) from error
        return cls(process)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, request: Request, data: bytes, cpu_seconds: int) -> Answer | ImportingError:
        """Raises trio.BrokenResourceError or BadFrameError where it has no answer; it is of no use then."""
        await self._stdin.send_all(wire.frame(wire.request_head(request, cpu_seconds), data))
        await self._stdin.send_all(data)
        head_bytes, payload_bytes = wire.lengths(await self._receive(wire.LENGTHS_BYTES), CONTENT_BYTES_MAX)
        head = await self._receive(head_bytes)
        return wire.parse_answer(head, await self._receive(payload_bytes))

    async def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = await self._stdout.receive_some(min(count - len(data), MIB))
            if not piece:
                raise trio.BrokenResourceError("the worker ended")
            data += piece
        return bytes(data)

    async def cause_of_death(self, limits: ImportLimits) -> str:
        """Why it gave no answer, as far as its end tells."""
        await self._stdin.aclose()
        code = await self._process.wait()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it took more than {limits.cpu_seconds} s of processor time"
        if code in (-signal.SIGABRT, wire.EXIT_OUT_OF_MEMORY):
            return f"it needs more than {ceil(limits.memory_bytes / MIB)} MiB of memory"
        if code == -signal.SIGSEGV:
            return "it nests too deep for the parser"
        return f"the parser ended with code {code}"

    async def end(self) -> None:
        """End the process and wait for that. Not cancelled: a killed process ends at once."""
        with trio.CancelScope(shield=True):
            self._process.kill()
            await self._process.wait()
            await self._stdin.aclose()
            await self._stdout.aclose()


def _import_paths() -> list[str]:
    """Where a worker finds the few packages that it needs, whatever way they are installed."""
    packages = [str(Path(file).parents[1]) for file in (p2pmem.__file__, p2pmem_protocol.__file__, pyoxigraph.__file__)]
    module = str(Path(sha3.__file__).parent)
    return list(dict.fromkeys([*packages, module]))


def _request(
    source: Source,
    format: str | Format | None,
    base: str | None,
    merge_graphs: bool,
    name: str | None,
    fallback_base: str | None,
) -> Request:
    if name is None:
        name = "the input" if isinstance(source, bytes) else os.path.basename(os.fspath(source)) or os.fspath(source)
    if isinstance(format, str):
        format = Format.parse(format)
    return Request(name, format, base, merge_graphs, fallback_base)


def _read(source: Source, name: str, bytes_max: int) -> bytes:
    """The bytes of a regular file, or of `source` itself, within the limit."""
    if isinstance(source, bytes):
        data = source
    else:
        try:
            data = _read_file(source, name, bytes_max)
        except (OSError, ValueError) as error:
            raise _unreadable(error, os.fspath(source)) from None
    if len(data) > bytes_max:
        raise InputTooLargeError(f"{name}: over {bytes_max} bytes, the limit of one file: split it")
    return data


def _read_file(path: str | os.PathLike[str], name: str, bytes_max: int) -> bytes:
    # To open a pipe without a writer must not wait for ever.
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotAFileError(f"{name}: this is not a regular file: name a file")
        return file.read(bytes_max + 1)


def _unreadable(error: OSError | ValueError, path: str) -> ImportingError:
    if isinstance(error, FileNotFoundError):
        return NoSuchInputError(f"{path}: there is no such file: check the path")
    if isinstance(error, PermissionError):
        return NoSuchInputError(f"{path}: you may not read this file: change its permissions")
    if isinstance(error, IsADirectoryError):
        return NotAFileError(f"{path}: this is a directory: name a file")
    if isinstance(error, OSError) and error.errno == errno.ENXIO:
        return NotAFileError(f"{path}: this is not a regular file: name a file")
    why = error.strerror if isinstance(error, OSError) else str(error)
    return NoSuchInputError(f"{path!r}: cannot be read ({why}): check the path")
