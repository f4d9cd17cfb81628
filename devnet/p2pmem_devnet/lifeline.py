"""Processes that cannot outlive the one that started them.

A program rarely looks whether its parent still lives. So a shell stands between: its standard input is a pipe that only
we hold, and when that ends, because we ended (also by kill -9), the program is ended too. We write there by which
signal it shall end. The shell stays until the program is gone, so that its port is free when the shell has ended.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

import trio
from p2pmem_protocol.errors import BugError

_SHELL = """
trap : TERM
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{ read -r how <&3; kill -s "${how:-TERM}" $child; } >/dev/null 2>&1 &
lifeline=$!
exec 3<&-
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
kill -KILL $lifeline 2>/dev/null
wait $lifeline
exit $code
"""


async def open_with_lifeline(
    command: Sequence[str], *, stderr: int | IO[bytes], env: Mapping[str, str] | None = None
) -> trio.Process:
    """Start `command` with a pipe for its output. It is in a process group of its own, so that a terminal's Ctrl-C does
    not reach it: it ends when we say so. Whoever has waited for its end closes `process.stdin`.
    """
    return await trio.lowlevel.open_process(
        ["/bin/sh", "-c", _SHELL, "lifeline", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        start_new_session=True,
    )


async def send_signal(process: trio.Process, how: Literal["TERM", "KILL"]) -> None:
    """Let the program end, by this signal. Harmless when it has just ended by itself."""
    if process.stdin is None:
        raise BugError("the process was not started with a lifeline")
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await process.stdin.send_all(how.encode() + b"\n")
