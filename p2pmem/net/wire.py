"""A TCP socket as the libp2p host uses it: counted, read in large pieces, and never waiting for ever to write."""

from __future__ import annotations

from typing import Final

import trio

from p2pmem.net.counters import Traffic

RECEIVE_BYTES: Final = 64 * 1024


class WireError(Exception):
    """The socket has ended, was closed here, or takes no more bytes."""


class Wire:
    """Owns a socket. One task reads, another writes."""

    def __init__(self, stream: trio.SocketStream, *, stalled_write_timeout_s: float) -> None:
        self._socket = stream.socket
        self._stalled_write_timeout_s = stalled_write_timeout_s
        self._buffer = bytearray()
        self.traffic = Traffic()
        """Where bytes are counted; whoever learns who the other side is, puts his counters here."""

    async def fill(self) -> bool:
        """Wait for more bytes in the buffer; False at the end of the stream."""
        try:
            data = await self._socket.recv(RECEIVE_BYTES)
        except (OSError, trio.ClosedResourceError) as error:
            raise WireError(f"reading: {error}") from error
        self.traffic.wire_received_bytes += len(data)
        self._buffer += data
        return bool(data)

    async def read_exactly(self, size_bytes: int) -> bytes:
        """So many bytes; `WireError` if the stream ends before."""
        while len(self._buffer) < size_bytes:
            if not await self.fill():
                raise WireError("the other side closed the connection")
        data = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return data

    def take_messages(self) -> list[bytes]:
        """All whole noise messages in the buffer: two bytes of length, then the message."""
        messages: list[bytes] = []
        at, end = 0, len(self._buffer)
        view = memoryview(self._buffer)
        while end - at >= 2:
            length = view[at] << 8 | view[at + 1]
            if end - at - 2 < length:
                break
            messages.append(bytes(view[at + 2 : at + 2 + length]))
            at += 2 + length
        view.release()
        del self._buffer[:at]
        return messages

    async def write(self, data: bytes) -> None:
        """Send all of `data`. Raises `WireError`, also if not one byte was taken for too long.

        Cancelled, an unknown part was sent: the connection can only be closed.
        """
        rest = memoryview(data)
        while rest:
            with trio.move_on_after(self._stalled_write_timeout_s) as scope:
                try:
                    sent = await self._socket.send(rest)
                except (OSError, trio.ClosedResourceError) as error:
                    raise WireError(f"writing: {error}") from error
                self.traffic.wire_sent_bytes += sent
                rest = rest[sent:]
            if scope.cancelled_caught:
                raise WireError("the other side takes no bytes")

    def close(self) -> None:
        """Close the socket now; whoever waits on it gets `WireError`."""
        self._socket.close()
