"""Processes that cannot outlive the one that started them.

A program rarely looks whether its parent still lives. So a shell stands between: its standard input is a pipe that only
we hold, and when that ends, because we ended (also by kill -9), the program is ended too. The shell stays until the
program is gone, and ends with its exit code.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

import trio

_SHELL = """
trap : TERM
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{ read -r _ <&3; kill -TERM $child; } >/dev/null 2>&1 &
lifeline=$!
exec 3<&-
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
kill -KILL $lifeline 2>/dev/null
exit $code
"""


async def open_with_lifeline(
    command: Sequence[str], *, stderr: int | IO[bytes], env: Mapping[str, str] | None = None
) -> trio.Process:
    """Start `command` with a pipe for its output. It leads a process group of its own: `os.killpg(process.pid, ...)`
    reaches the program, and a terminal's Ctrl-C does not, so it ends when we say so.

    Whoever ends it closes `process.stdin` afterwards.
    """
    return await trio.lowlevel.open_process(
        ["/bin/sh", "-c", _SHELL, "lifeline", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        start_new_session=True,
    )
