"""From a home directory to the node that runs there.

A running node writes `run.json` into its directory: its process, its HTTP address, its peer id and addresses. The file
of a process that is gone is not believed: something else may listen there by now, and would get the token.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2pmem_protocol.errors import MisuseError

from p2pmem.api.codec import BadValueError, decode, loads
from p2pmem.api.problems import UnreachableError
from p2pmem.home import Home, read_token

if TYPE_CHECKING:
    from p2pmem.face import Face


@dataclass(frozen=True, slots=True)
class Running:
    """The node that runs in a directory."""

    pid: int
    http: str
    peer: str
    addresses: tuple[str, ...]


def find_running(home: Home) -> Running:
    """Who runs here. Raises `UnreachableError` when nobody does, `MisuseError` without a node."""
    home.need()
    try:
        data = home.run_file.read_bytes()
        running: Running = decode(Running, loads(data), strict=False)
    except FileNotFoundError:
        raise UnreachableError(f"no node runs in {home.data_dir}: start it with `p2pmem run` first") from None
    except (OSError, BadValueError) as error:
        raise MisuseError(f"{home.run_file} does not say who runs here ({error}); start `p2pmem run` again") from None
    if not is_alive(running.pid):
        raise UnreachableError(
            f"no node runs in {home.data_dir}: process {running.pid} is gone; start it with `p2pmem run` again"
        )
    return running


def is_alive(pid: int) -> bool:
    """Whether there is such a process; another user's counts."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@asynccontextmanager
async def open_face(home: Home, agent: str | None = None) -> AsyncIterator[Face]:
    """The face of the node that runs in this directory, or what of it one agent may call."""
    from p2pmem.api.client import HttpFace
    from p2pmem.api.guard import agent_token

    running, token = find_running(home), read_token(home)
    async with HttpFace(running.http, token if agent is None else agent_token(token, agent)) as face:
        yield face


def ready_line(running: Running) -> str:
    addresses = " ".join(running.addresses) or "no address"
    return f"ready: HTTP at {running.http}, peers at {addresses}"
