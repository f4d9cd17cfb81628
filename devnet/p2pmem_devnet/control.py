"""Orders to a devnet that is kept: a Unix socket that only its user can reach, a line of JSON each way."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError, P2pmemError

from p2pmem_devnet.options import Order

LINE_BYTES_MAX: Final = 4_096
ORDER_S_MAX: Final = 120.0
_SOCKET: Final = "devnet.sock"

Carry = Callable[[Order], Awaitable[str]]
"""Carries an order out and says in words what it did."""


def control_directory() -> Path:
    """Where the socket lies: `P2PMEM_DEVNET_CONTROL`, or a directory of this user's own, the same in every terminal."""
    named = os.environ.get("P2PMEM_DEVNET_CONTROL")
    if named:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "p2pmem")
    # not where TMPDIR leads: that is often another one in another terminal, and a long one leaves a socket no room
    place = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())  # noqa: S108 - made 0700, checked
    return place / f"p2pmem-devnet-{os.getuid()}"


async def need_none_kept() -> None:
    """Raises `MisuseError` when another devnet is kept already."""
    path = _own_directory() / _SOCKET
    if path.exists() and await _answers(path):
        raise MisuseError(f"a devnet is kept already (it listens at {path}): `scripts/devnet stop` ends it")


@asynccontextmanager
async def take_orders(carry: Carry) -> AsyncIterator[None]:
    """Take orders while the block runs, one at a time. `MisuseError` when another devnet is kept already."""
    await need_none_kept()
    path = control_directory() / _SOCKET
    path.unlink(missing_ok=True)
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen(8)
    one_at_a_time = trio.Lock()

    async def serve(stream: trio.SocketStream) -> None:
        async with stream, one_at_a_time:
            try:
                data = json.loads(await _line(stream))
                answer = {"ok": True, "text": await carry(Order(str(data["word"]), str(data["argument"])))}
            except (P2pmemError, ValueError, KeyError, TypeError) as error:
                answer = {"ok": False, "text": str(error)}
            try:
                await stream.send_all(json.dumps(answer).encode() + b"\n")
            except trio.BrokenResourceError:
                return  # whoever gave the order has gone

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])
            yield
            nursery.cancel_scope.cancel()
    finally:
        path.unlink(missing_ok=True)


async def give(order: Order) -> str:
    """Give an order to the devnet that is kept; what it did, in words.

    Raises `MisuseError` when there is none or the order cannot be, and `OutsideError` when it does not answer.
    """
    path = control_directory() / _SOCKET
    try:
        stream = await trio.open_unix_socket(str(path))
    except OSError:
        raise MisuseError(f"no devnet is kept: start one with `scripts/devnet --keep` (looked at {path})") from None
    answer = None
    async with stream:
        with trio.move_on_after(ORDER_S_MAX):
            await stream.send_all(json.dumps({"word": order.word, "argument": order.argument}).encode() + b"\n")
            line = await _line(stream)
            answer = json.loads(line) if line else {"ok": True, "text": "it ended"}
    if answer is None:
        raise OutsideError(f"the devnet did not carry out {order.word!r} within {ORDER_S_MAX:.0f} s")
    if not answer["ok"]:
        raise MisuseError(str(answer["text"]))
    return str(answer["text"])


def _own_directory() -> Path:
    directory = control_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise MisuseError(f"{directory} is not this user's alone: remove it, or set P2PMEM_DEVNET_CONTROL to another")
    return directory


async def _answers(path: Path) -> bool:
    try:
        async with await trio.open_unix_socket(str(path)):
            return True
    except OSError:
        return False


async def _line(stream: trio.SocketStream) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < LINE_BYTES_MAX:
        more = await stream.receive_some(LINE_BYTES_MAX)
        if not more:
            break
        data += more
    return data
