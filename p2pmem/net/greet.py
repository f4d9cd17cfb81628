"""hello over a stream: `p2pmem_protocol.hello` with IO and a deadline.

The reader is the one that goes on to read frames: the listener may send some right behind its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.hello import HELLO_MS_MAX, Greeting, Proof, Speakers, may_speak

from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.seam import Stream


class NotWelcomeError(OutsideError):
    """The peer ended hello without an answer: it shares no context graph with us, or nobody is there."""


async def greet_as_opener(
    stream: Stream, reader: FrameReader, *, ours: Greeting, proof: Proof, now_ms: int
) -> tuple[Greeting, Speakers]:
    """Prove first, then learn who the other side speaks for.

    Raises `RefusedError` when what the peer says does not hold, `NotWelcomeError` when it closes without an answer or
    says nothing for 5 s, and `StreamClosedError`. Cancelled, the stream is in an unknown state: reset it.
    """
    with _in_time():
        await send_frames(stream, ours.encode())
        theirs = Greeting.decode(await _answer(reader))
        may_speak(ours, theirs)
        await send_frames(stream, proof.encode())
        speakers = Proof.decode(await _answer(reader), ours.network, stream.peer).check(now_ms)
    return theirs, speakers


async def greet_as_listener(
    stream: Stream,
    reader: FrameReader,
    *,
    ours: Greeting,
    may_prove: Callable[[], bool],
    prove: Callable[[Speakers], Proof | None],
    now_ms: int,
) -> tuple[Greeting, Speakers] | None:
    """Let the opener prove itself, and answer with what `prove` gives for it; None: say nothing and close. `may_prove`
    is asked once the proof is here: without leave it is not looked at, which is what costs.

    A stranger sees our greeting and the end of the stream, whoever he is and whatever is here.
    """
    with _in_time():
        theirs = Greeting.decode(await _answer(reader))
        await send_frames(stream, ours.encode())
        may_speak(ours, theirs)
        proven = await _answer(reader)
        if not may_prove():
            return None
        speakers = Proof.decode(proven, ours.network, stream.peer).check(now_ms)
        proof = prove(speakers)
        if proof is None:
            return None
        await send_frames(stream, proof.encode())
    return theirs, speakers


@contextmanager
def _in_time() -> Iterator[None]:
    with trio.move_on_after(HELLO_MS_MAX / 1000) as scope:
        yield
    if scope.cancelled_caught:
        raise NotWelcomeError(f"the peer did not finish hello within {HELLO_MS_MAX} ms")


async def _answer(reader: FrameReader) -> bytes:
    frame = await reader.receive()
    if frame is None:
        raise NotWelcomeError("the peer ended hello without an answer: it shares no context graph with us")
    return frame
