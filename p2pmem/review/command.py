"""The policy `exec`: a command gets the content on standard input and decides.

    exit code 0     approve     what it writes to standard output is the reason
    exit code 1     reject      the same
    anything else   no verdict; it is tried again, at least every two hours, as long as a verdict is asked for

**This is dangerous, and is off unless you set it.** The command runs with your rights on your machine, on bytes that
others wrote. They are canonical N-Quads of at most 16 MiB and nothing else is known of them: whoever may propose
chooses every IRI and literal. Never pass them to a shell, an interpreter or a template; a language model that reads
them reads instructions of strangers. The command is started without a shell, with an empty environment but for PATH
and what is listed below, in `/`; its output is cut at 64 KiB, and it is killed with its children at the time limit.
Its exit code decides: once it has ended, nobody waits for children that it left behind, and those are killed.
Killed is its process group: a child that begins a session of its own (`setsid`, a daemon) outlives all of this, with
your rights. On Linux `unshare --user --map-current-user --fork --pid --kill-child`, before the command, ends those too.

    P2PMEM_GRAPH    P2PMEM_SUBGRAPH (empty: none)    P2PMEM_AUTHOR    P2PMEM_NAME    P2PMEM_VERSION
    P2PMEM_ROOT     P2PMEM_SEAL
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from contextlib import suppress
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError
from p2pmem_protocol.evidence import Decision, Method
from p2pmem_protocol.names import hex_id
from p2pmem_protocol.seal import Seal

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.review.judging import Judgement, bounded_reason

OUTPUT_BYTES_MAX: Final = 64 * 1024
AT_A_TIME: Final = 2
_DECISIONS: Final = {0: Decision.APPROVE, 1: Decision.REJECT}


class CommandJudge:
    """Runs the command for each proposal, at most two at a time."""

    def __init__(self, command: str, timeout_s: float) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise MisuseError(f"review.command does not parse: {error}") from None
        self._timeout_s = timeout_s
        self._slots = trio.CapacityLimiter(AT_A_TIME)

    async def judge(self, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "P2PMEM_GRAPH": str(graph.name),
            "P2PMEM_SUBGRAPH": seal.subgraph,
            "P2PMEM_AUTHOR": str(seal.author),
            "P2PMEM_NAME": seal.name,
            "P2PMEM_VERSION": str(seal.version),
            "P2PMEM_ROOT": hex_id(seal.root),
            "P2PMEM_SEAL": hex_id(seal.digest),
        }
        async with self._slots:
            code, output = await run_bounded(self._command, content, environment, self._timeout_s)
        if code not in _DECISIONS:
            raise OutsideError(
                f"{self._command[0]} ended with code {code}: 0 approves, 1 rejects, others do not decide"
            )
        return Judgement(_DECISIONS[code], Method.EXEC, bounded_reason(output.decode("utf-8", "replace")))


async def run_bounded(
    command: list[str], data: bytes, environment: dict[str, str], timeout_s: float
) -> tuple[int, bytes]:
    """Run a process group on `data`: its exit code and the first 64 KiB of its output.

    Raises `OutsideError` when it cannot be started or takes too long. However this ends, also cancelled, the process
    and those of its children that stayed in its group are gone.
    """
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise OutsideError(f"cannot run {command[0]}: {error.strerror or error}") from error
    try:
        with trio.move_on_after(timeout_s):
            return await _converse(process, data)
        raise OutsideError(f"{command[0]} took more than {timeout_s:g} s and was ended")
    finally:
        await _end(process)


async def _converse(process: trio.Process, data: bytes) -> tuple[int, bytes]:
    """Write and read at once, until it ends; neither side can make the other wait for ever."""
    assert process.stdin is not None
    assert isinstance(process.stdout, trio.lowlevel.FdStream)
    stdin, stdout, output = process.stdin, process.stdout, bytearray()

    async def feed() -> None:
        try:
            await stdin.send_all(data)
        except trio.BrokenResourceError:
            return  # it decided before it had read everything
        finally:
            await stdin.aclose()

    async def listen() -> None:
        async for piece in stdout:
            # What is over the limit is read and thrown away, so that the command can end.
            output.extend(piece[: OUTPUT_BYTES_MAX - len(output)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        nursery.start_soon(listen)
        code = await process.wait()
        nursery.cancel_scope.cancel()  # a child of it may hold them open
    output += _left_in(stdout, OUTPUT_BYTES_MAX - len(output))
    return code, bytes(output)


def _left_in(stdout: trio.lowlevel.FdStream, at_most: int) -> bytes:
    """What was written and is not read yet."""
    left = bytearray()
    with suppress(BlockingIOError):  # somebody holds it open and writes nothing
        while len(left) < at_most and (piece := os.read(stdout.fileno(), at_most - len(left))):
            left += piece
    return bytes(left)


async def _end(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        with suppress(ProcessLookupError):  # all of it may be gone
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                await pipe.aclose()
