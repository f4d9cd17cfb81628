"""Join streams on the side of who is asked: how many are served, and how a member passes a question on to the owner.

An invite may name members that are not the owner, because the owner's node cannot be dialled. Such a member passes what
it heard on, over the connection that the owner's node keeps to it, and the answer back. On a relay stream it sends two
frames: the peer id of who asks, and the question as it was asked. The owner's node sends an empty frame once it knows
that the token is good, since listing may take a while, and then the answer. It hears members only.

A wrong token gets its `no` after `RELAY_S`, here and everywhere, whether or not there was anybody to pass it on to: how
long it takes tells a stranger nothing either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hello import RELAY_PROTOCOL
from p2pmem_protocol.join import ANSWER_BYTES_MAX, Answer

from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.seam import Network, PeerId, Stream
from p2pmem.services.membership import TOGETHER_S

RELAY_S: Final = 2.0
ANSWER_S_MAX: Final = 5.0 + TOGETHER_S
"""Who joins may have to wait until others are listed with it."""
_PEER_BYTES_MAX: Final = 128


class Places:
    """Join streams served at once. Where all are taken, whoever has kept his idle for longest loses it: strangers who
    say nothing cannot keep out somebody who does."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[trio.CancelScope] = []
        self._busy = 0

    def make_room(self) -> bool:
        """Whether one more can be served, if need be by ending an idle one."""
        if self._busy + len(self._idle) < self._most:
            return True
        if not self._idle:
            return False
        self._idle.pop(0).cancel()
        return True

    @contextmanager
    def idle(self, for_s: float) -> Iterator[None]:
        """A place of somebody who has nothing done for him: it ends after so long, or when the place is needed."""
        with trio.move_on_after(for_s) as scope:
            self._idle.append(scope)
            try:
                yield
            finally:
                if scope in self._idle:
                    self._idle.remove(scope)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A place of somebody who is being answered."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1


async def ask_owner(network: Network, owner: PeerId, asker: PeerId, question: bytes) -> Answer | None:
    """Pass a question on to the owner's node; None when it ends without an answer, or is silent for too long.

    Raises `OutsideError` (the stream broke) and `RefusedError` (that is no answer). Cancelled, the stream is reset.
    """
    with trio.move_on_after(RELAY_S) as scope:
        stream = await network.open_stream(owner, RELAY_PROTOCOL)
        try:
            await send_frames(stream, asker.encode(), question)
            reader = FrameReader(stream, frame_max_bytes=ANSWER_BYTES_MAX)
            frame = await reader.receive()
            if frame == b"":
                scope.deadline = trio.current_time() + ANSWER_S_MAX
                frame = await reader.receive()
            return Answer.decode(frame) if frame else None
        finally:
            await stream.reset()
    return None


async def hear_relayed(stream: Stream, question_max_bytes: int) -> tuple[PeerId, bytes] | None:
    """Who asks, and what, from a member that passes it on; None when it ends before. Raises as `FrameReader`."""
    reader = FrameReader(stream, frame_max_bytes=question_max_bytes)
    asker, question = await reader.receive(), await reader.receive()
    if asker is None or question is None:
        return None
    try:
        if len(asker) <= _PEER_BYTES_MAX:
            return PeerId(asker.decode()), question
    except UnicodeDecodeError:
        pass
    raise RefusedError(Reason.BAD_FIELD, "a question from somebody whose id is none")
