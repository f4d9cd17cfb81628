"""Join streams on the side of who is asked: how long an ask waits for its answer, how answers go out, and how a member
passes an ask on to the owner.

An invite may name members that are not the owner, because the owner's node cannot be dialled. Such a member passes what
it heard on, over the connection that the owner's node keeps to it, and the answer back. On a relay stream it sends two
frames: the peer id of who asks, and the ask as it was. The owner's node sends an empty frame once it knows that the
entry is good, since listing may take a while, and then the answer. It hears members only. The member learns nothing
that it could use: an entry is for the peer and the agents who ask (`p2pmem_protocol.join`).

Every *no* comes `RELAY_S` after the ask was heard, here and everywhere, whatever was asked and whether or not there was
anybody to pass it on to: how long it takes tells a stranger nothing either.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import trio
from p2pmem_protocol.errors import OutsideError, Reason, RefusedError
from p2pmem_protocol.hello import RELAY_PROTOCOL
from p2pmem_protocol.join import ANSWER_BYTES_MAX, Answer, Chain, Reply

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.net.framing import FrameReader, encode_frames, send_frames
from p2pmem.net.seam import Network, PeerId, Stream
from p2pmem.services.join_places import Place
from p2pmem.services.membership import TOGETHER_S

RELAY_S: Final = 2.0
PASS_ON_S: Final = 1.8
"""How long an owner is waited for: what ends a relay stream does not delay the *no*."""
ANSWER_S_MAX: Final = 5.0 + TOGETHER_S
"""Who joins may have to wait until others are listed with it."""
_PEER_BYTES_MAX: Final = 128


@dataclass(slots=True)
class Turn:
    """One ask that is being answered: its place, until when it may take, and on which stream a member passed it on."""

    place: Place
    scope: trio.CancelScope
    relayed: Stream | None = None

    def keep(self) -> None:
        """What is done now is done to its end: a use of an invite is taken, and not for nothing."""
        self.place.kept = True
        self.scope.deadline = trio.current_time() + ANSWER_S_MAX

    async def tell_good(self) -> None:
        """Tell the member who passed the ask on that the entry is good. If he is gone, it goes on all the same."""
        if self.relayed is not None:
            with suppress(OutsideError):
                await send_frames(self.relayed, b"")


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Said:
    """An answer as it goes out: one frame."""

    reply: Reply
    data: bytes

    @classmethod
    def of(cls, answer: Answer) -> Said:
        return cls(answer.reply, encode_frames([answer.encode()]))


class Answers:
    """All who are sent one roster at a time are sent the same bytes: however many of them read slowly, there is no more
    in memory than the few rosters that were heads within `ANSWER_S_MAX`."""

    def __init__(self) -> None:
        self._under_way: WeakValueDictionary[tuple[Reply, bytes], Said] = WeakValueDictionary()

    def with_roster(self, reply: Reply, graph: LedgerGraph) -> Said:
        """The head of a graph, with the headers that lead to it. The graph has one."""
        assert graph.head is not None
        key = reply, graph.head.id
        said = self._under_way.get(key)
        if said is None:
            said = Said.of(Answer(reply, Chain(graph.headers.chain_to(graph.head.id), graph.head.body.parts)))
            self._under_way[key] = said
        return said


async def say(stream: Stream, said: Said) -> None:
    """Answer, and end our side. Who has not taken it in after `ANSWER_S_MAX` gets no more of it."""
    with trio.move_on_after(ANSWER_S_MAX):
        await stream.send_all(said.data)
        await stream.close_write()


async def ask_owner(
    network: Network, owner: PeerId, asker: PeerId, question: bytes, is_good: Callable[[], None]
) -> Answer | None:
    """Pass an ask on to the owner's node; None when it ends without an answer, or is silent for too long. `is_good` is
    called when the owner says that the entry is good and the answer will come.

    Raises `OutsideError` (the stream broke) and `RefusedError` (that is no answer). Cancelled, the stream is reset.
    """
    with trio.move_on_after(PASS_ON_S) as scope:
        stream = await network.open_stream(owner, RELAY_PROTOCOL)
        try:
            await send_frames(stream, asker.encode(), question)
            reader = FrameReader(stream, frame_max_bytes=ANSWER_BYTES_MAX)
            frame = await reader.receive()
            if frame == b"":
                is_good()
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
