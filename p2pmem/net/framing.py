"""Frames over a stream: an unsigned varint of the length, then so many bytes.

The varint is the one of libp2p and Protocol Buffers (LEB128, multiformats/unsigned-varint): seven bits a byte, low ones
first, in the shortest form. The decoder holds no more than one frame of the size agreed on and one read: a length above
the limit is refused before a byte of the body is waited for.

`FrameDecoder` and `encode_frames` know nothing of streams; `FrameReader` and `send_frames` put them on one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from p2pmem_protocol.errors import BugError, MisuseError, Reason, RefusedError

from p2pmem.net.seam import READ_BYTES, Stream

_VARINT_MAX_BYTES = 5
FRAME_MAX_BYTES = 2**31 - 1


def encode_length(length: int) -> bytes:
    """The shortest varint of `length`, which is at most `FRAME_MAX_BYTES`."""
    if not 0 <= length <= FRAME_MAX_BYTES:
        raise MisuseError(f"a frame has 0 to {FRAME_MAX_BYTES} bytes, not {length}")
    out = bytearray()
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def encode_frames(frames: Iterable[bytes]) -> bytes:
    """All frames, each behind its length, as one run of bytes."""
    out = bytearray()
    for frame in frames:
        out += encode_length(len(frame))
        out += frame
    return bytes(out)


class FrameDecoder:
    """Bytes in, frames out.

    `feed` takes what was read; `next_frame` gives a frame, or None while one is incomplete. After a refusal the decoder
    is spent: where the next frame begins is unknown for ever, so it refuses again.
    """

    def __init__(self, *, frame_max_bytes: int) -> None:
        if not 0 < frame_max_bytes <= FRAME_MAX_BYTES:
            raise MisuseError(f"frame_max_bytes is 1 to {FRAME_MAX_BYTES}, not {frame_max_bytes}")
        self._frame_max_bytes = frame_max_bytes
        self._buffer = bytearray()
        self._at = 0
        self._body_bytes: int | None = None
        self._refusal: RefusedError | None = None

    @property
    def buffered_bytes(self) -> int:
        """What was fed and not yet given out."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        # Moving the rest down once per read, not once per frame, keeps many small frames linear.
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next whole frame, or None: feed more.

        Raises `RefusedError`: OVERSIZE for a length over the limit, BAD_FRAME for a varint that is not in its shortest
        form.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._body_bytes is None and not self._take_length():
            return None
        if self._body_bytes is None:
            raise BugError("a length was taken and is not there")
        end = self._at + self._body_bytes
        if end > len(self._buffer):
            return None
        frame = bytes(memoryview(self._buffer)[self._at : end])
        self._at = end
        if self._body_bytes >= READ_BYTES:  # else a large frame would be held twice until more is read
            self._buffer, self._at = self._buffer[end:], 0
        self._body_bytes = None
        return frame

    def has_frame(self) -> bool:
        """Whether `next_frame` would give a frame (or refuse) without more bytes."""
        if self._refusal is not None:
            return True
        try:
            if self._body_bytes is None and not self._take_length():
                return False
        except RefusedError:
            return True
        return self._body_bytes is not None and self.buffered_bytes >= self._body_bytes

    def check_end(self) -> None:
        """To be called at the end of the bytes: refuses (BAD_FRAME) if it came inside a frame."""
        if self._refusal is not None:
            raise self._refusal
        if self._body_bytes is not None or self.buffered_bytes:
            raise self._refuse(Reason.BAD_FRAME, "the stream ended inside a frame")

    def _take_length(self) -> bool:
        length = 0
        for index in range(_VARINT_MAX_BYTES):
            if self._at + index >= len(self._buffer):
                return False
            byte = self._buffer[self._at + index]
            length |= (byte & 0x7F) << (7 * index)
            if length > self._frame_max_bytes:
                raise self._refuse(Reason.OVERSIZE, f"a frame of more than {self._frame_max_bytes} bytes was announced")
            if not byte & 0x80:
                if byte == 0 and index > 0:
                    raise self._refuse(Reason.BAD_FRAME, "the length of a frame is not in its shortest form")
                self._at += index + 1
                self._body_bytes = length
                return True
        raise self._refuse(Reason.BAD_FRAME, f"the length of a frame takes more than {_VARINT_MAX_BYTES} bytes")

    def _refuse(self, reason: Reason, text: str) -> RefusedError:
        self._refusal = RefusedError(reason, text)
        self._buffer.clear()
        self._at = 0
        return self._refusal


class FrameReader:
    """Frames from a stream, read in pieces of up to 64 KiB. A frame counts as unread (`Stream.keep`) until the next is
    asked for, because it may wait for its turn; not where all that is held is less than one such piece."""

    def __init__(self, stream: Stream, *, frame_max_bytes: int) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(frame_max_bytes=frame_max_bytes)
        self._kept_bytes = 0

    async def receive(self) -> bytes | None:
        """The next frame, or None if the peer has ended its side after a whole one.

        Raises `RefusedError` (OVERSIZE, BAD_FRAME) and whatever `Stream.receive_some` raises. Cancelled, nothing is
        lost: call it again. It is a checkpoint only when it has to read.
        """
        while (frame := self._decoder.next_frame()) is None:
            self._keep(self._decoder.buffered_bytes)
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                self._decoder.check_end()
                return None
            self._decoder.feed(data)
        held_bytes = len(frame) + self._decoder.buffered_bytes
        self._keep(held_bytes if held_bytes >= READ_BYTES else 0)
        return frame

    async def each(self, take: Callable[[bytes], Awaitable[bool]]) -> None:
        """Hand one frame after another to `take`, until that says no or the peer has ended its side.

        Nothing of a frame is held while the next is waited for, as the variable of a loop would: who sends one large
        frame on each stream and then half of another would have a node hold what nobody counts. Raises as `receive`.
        """
        while (frame := await self.receive()) is not None:
            taking = take(frame)
            del frame
            if not await taking:
                return
            del taking

    def _keep(self, size_bytes: int) -> None:
        if size_bytes != self._kept_bytes:
            self._kept_bytes = size_bytes
            self._stream.keep(size_bytes)

    def has_frame(self) -> bool:
        """Whether `receive` would answer without reading: when not, it is the moment to acknowledge."""
        return self._decoder.has_frame()


async def send_frames(stream: Stream, *frames: bytes) -> None:
    """Send all frames in one write, because the cost is per write. Raises and is cancelled as `Stream.send_all`."""
    await stream.send_all(encode_frames(frames))
