"""A door in front of one node: other nodes dial the door, and the door passes bytes on until it is told not to.

Nodes announce their doors and nothing else, so all that passes between two nodes passes through one of them. A
*partition* is a door that takes no bytes from a certain node and gives it none: nobody is told, as with a cut cable.
When it ends, what was parted is closed, and the nodes dial anew.

The noise channel hides from a door who dials. So it asks the kernel which process holds the other end of the socket.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from p2pmem_protocol.errors import OutsideError

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 64 * 1024
_TABLE: Final = Path("/proc/net/tcp")


@dataclass(slots=True)
class _Passage:
    """One connection through the door."""

    caller: trio.SocketStream
    node: trio.SocketStream
    port: int
    parted: bool = False
    moved: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Door:
    """Listens on a port of its own as long as it is open; see `open_door`."""

    def __init__(self, listener: trio.SocketListener, group_of_port: Callable[[int], int | None]) -> None:
        self._listener = listener
        self._group_of_port = group_of_port
        self._target: tuple[str, int] | None = None
        self._passages: list[_Passage] = []
        self._shut_out: set[int] = set()
        host, self.port = listener.socket.getsockname()[:2]
        self.address = f"/ip4/{host}/tcp/{self.port}"

    def lead_to(self, target: tuple[str, int] | None) -> None:
        """From now on pass new connections to `target`; None: nobody is at home, and they are closed."""
        self._target = target

    def shut_out(self, groups: set[int]) -> None:
        """Part these process groups from the node, and nobody else. Those no longer parted begin anew."""
        freed = self._shut_out - groups
        self._shut_out = set(groups)
        for passage in self._passages:
            if passage.parted and freed:
                passage.scope.cancel()
            elif groups and self._group_of_port(passage.port) in groups:
                passage.parted = True

    async def _serve(self, caller: trio.SocketStream) -> None:
        async with caller:
            if self._target is None:
                return
            try:
                port = caller.socket.getpeername()[1]
                node = await trio.open_tcp_stream(*self._target)
            except OSError:
                return
            async with node:
                passage = _Passage(caller, node, port)
                passage.parted = bool(self._shut_out) and self._group_of_port(port) in self._shut_out
                self._passages.append(passage)
                try:
                    with passage.scope:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(_pass_on, passage, caller, node, nursery.cancel_scope)
                            nursery.start_soon(_pass_on, passage, node, caller, nursery.cancel_scope)
                finally:
                    self._passages.remove(passage)


async def _pass_on(
    passage: _Passage, source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope
) -> None:
    """Move bytes one way until either side ends; then the other way ends too, as with a connection that is lost."""
    try:
        while data := await source.receive_some(CHUNK_BYTES):
            if not passage.parted:
                await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    if passage.parted:
        await trio.sleep_forever()
    both.cancel()


async def open_door(nursery: trio.Nursery, group_of_port: Callable[[int], int | None]) -> Door:
    """A door on a port that the kernel chose; it works in `nursery`."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    door = Door(listener, group_of_port)
    nursery.start_soon(trio.serve_listeners, door._serve, [listener])
    return door


def group_of_port(port: int) -> int | None:
    """The process group that holds a TCP connection of this machine from `port`, or None when nobody does any more.

    Raises `OutsideError` where the kernel does not tell.
    """
    if not _TABLE.exists():
        raise OutsideError("a partition needs /proc/net/tcp, which only Linux has")
    inodes = {
        fields[9]
        for line in _TABLE.read_text().splitlines()[1:]
        if int((fields := line.split())[1].rpartition(":")[2], 16) == port
    }
    wanted = {f"socket:[{inode}]" for inode in inodes if inode != "0"}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(descriptor) in wanted for descriptor in (process / "fd").iterdir()):
                return os.getpgid(int(process.name))
        except OSError:
            continue  # another user's, or gone meanwhile
    return None
