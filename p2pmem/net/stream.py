"""One stream of a connection of the libp2p host: what has arrived and is unread, and who waits to write.

A stream never touches the socket: `send_all` puts content into the connection while there is room and the window is
open, so a cancelled write cannot tear a frame apart.
"""

from __future__ import annotations

from typing import Protocol

import trio

from p2pmem.net.counters import Traffic
from p2pmem.net.seam import READ_BYTES, PeerId, StreamClosedError
from p2pmem.net.stream_base import StreamBase, check_read_size


class Carrier(Protocol):
    """What a stream asks of its connection."""

    peer: PeerId
    traffic: Traffic

    @property
    def ended(self) -> bool: ...

    @property
    def has_room(self) -> bool:
        """Whether more may be put into what waits for the socket."""

    async def wait_for_room(self) -> None: ...

    def sendable_bytes(self, stream_id: int) -> int:
        """How far the window of the peer is open."""

    def put_data(self, stream_id: int, data: memoryview) -> None: ...

    def released(self, stream_id: int, size_bytes: int) -> None:
        """So much was read, and may come anew."""

    def dropped(self, size_bytes: int) -> None:
        """So much is no longer unread."""

    def end_stream(self, stream_id: int) -> None:
        """Our side says no more."""

    def close_stream(self, stream_id: int) -> None:
        """Nobody here reads or writes any more."""

    def reset_stream(self, stream_id: int) -> None: ...


class Libp2pStream(StreamBase):
    """One end of a stream; implements `seam.Stream`."""

    def __init__(self, connection: Carrier, stream_id: int, protocol: str) -> None:
        super().__init__(protocol)
        self._connection = connection
        self._id = stream_id
        self._buffer = bytearray()
        self._read_ended = False
        self._reset = False
        self._counted = False
        self._kept_bytes = 0

    @property
    def peer(self) -> PeerId:
        return self._connection.peer

    @property
    def unread_bytes(self) -> int:
        return len(self._buffer) + self._kept_bytes

    def agreed(self, protocol: str) -> None:
        """The protocol stands; from now on bytes are the application's."""
        self._protocol = protocol
        self._counted = True

    async def send_all(self, data: bytes) -> None:
        with self._sending:
            try:
                await trio.lowlevel.checkpoint()
                rest = memoryview(data)
                self._check_writable()
                while rest:
                    size = min(len(rest), await self._wait_for_room())
                    self._connection.put_data(self._id, rest[:size])
                    if self._counted:
                        self._connection.traffic.stream_sent_bytes += size
                    rest = rest[size:]
            except trio.Cancelled:
                self.reset_now()
                raise

    async def receive_some(self, max_bytes: int = READ_BYTES) -> bytes:
        check_read_size(max_bytes)
        with self._receiving:
            await trio.lowlevel.checkpoint()
            while not self._buffer:
                if self._closed:
                    raise self._closed_error()
                if self._read_ended:
                    return b""
                if self._reset:
                    raise self._ended_error()
                await self._changed.wait()
            data = bytes(self._buffer[:max_bytes])
            del self._buffer[:max_bytes]
            if self._counted:
                self._connection.traffic.stream_received_bytes += len(data)
            if self._reset:
                self._connection.dropped(len(data))
            else:
                self._connection.released(self._id, len(data))
            return data

    def keep(self, size_bytes: int) -> None:
        if not self._closed:
            self._connection.dropped(self._kept_bytes - size_bytes)
            self._kept_bytes = size_bytes

    async def close_write(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self._write_ended:
            self._write_ended = True
            if not self._reset:
                self._connection.end_stream(self._id)
            self._look_whether_gone()
            self.notify()

    def close_now(self) -> None:
        if not self._closed:
            self._closed = self._write_ended = True
            if not self._reset:
                self._connection.close_stream(self._id)
            self._drop_buffer()

    def reset_now(self) -> None:
        if not self._closed:
            self._closed = self._write_ended = True
            if not self._reset:
                self._connection.reset_stream(self._id)
            self._drop_buffer()

    # What the peer does

    def received(self, data: bytes) -> None:
        self._buffer += data
        self.notify()

    def peer_ended(self) -> None:
        self._read_ended = True
        self._look_whether_gone()
        self.notify()

    def window_opened(self) -> None:
        self.notify()

    def peer_reset(self) -> None:
        """The peer gave the stream up, or its connection ended. What has arrived can still be read. From now on its
        number may be another stream's, so nothing that is done with this one touches the connection's streams."""
        self._reset = True
        self._gone_at(trio.current_time())
        self.notify()

    # For multistream-select

    async def read_exactly(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            piece = await self.receive_some(size_bytes - len(data))
            if not piece:
                raise StreamClosedError(f"{self.peer} ended the stream before a protocol was agreed on")
            data += piece
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self.send_all(data)

    def _drop_buffer(self) -> None:
        self._connection.dropped(self.unread_bytes)
        self._kept_bytes = 0
        self._buffer = bytearray()  # `clear` keeps a piece in place: as much does not fit there again
        self._gone_at(trio.current_time())
        self.notify()

    def _look_whether_gone(self) -> None:
        """Both sides have said all: nobody hears its handler any more."""
        if self._read_ended and self._write_ended:
            self._gone_at(trio.current_time())

    def _ended_error(self) -> StreamClosedError:
        return self._lost_error() if self._connection.ended else self._reset_error()

    def _check_writable(self) -> None:
        if self._closed or self._write_ended:
            raise self._closed_error()
        if self._reset or self._connection.ended:
            raise self._ended_error()

    async def _wait_for_room(self) -> int:
        """How many bytes can be put into the connection now, at least one."""
        while True:
            self._check_writable()
            size = self._connection.sendable_bytes(self._id)
            if not size:
                await self._changed.wait()
            elif not self._connection.has_room:
                await self._connection.wait_for_room()
            else:
                return size
