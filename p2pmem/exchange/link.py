"""One member stream: frames in, frames out, for the gossip machine. Everything that decides is in `Gossip`."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from math import inf, isinf
from typing import Final

import trio
from p2pmem_protocol import frames
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.frames import Frame, Skipped
from p2pmem_protocol.gossip import Command, Gossip
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.holdings import Holdings, How, Offered, Source
from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.seam import PeerId, Stream
from p2pmem.net.sessions import Session

log = logging.getLogger(__name__)

RECENT_BYTES_MAX: Final = 2 * 1024 * 1024
Do = Callable[[Iterable[Command]], None]


def ticks_ms() -> int:
    """Time for pauses and time-outs: never steps, says nothing about the calendar."""
    return round(trio.current_time() * 1000)


class Recent:
    """Bytes of what came in last, so that relaying does not read the disk. Bounded; the oldest go first."""

    def __init__(self) -> None:
        self._items: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def add(self, item_id: bytes, data: bytes) -> None:
        if item_id in self._items:
            return
        self._items[item_id] = data
        self._bytes += len(data)
        while self._bytes > RECENT_BYTES_MAX:
            _, oldest = self._items.popitem(last=False)
            self._bytes -= len(oldest)

    def get(self, item_id: bytes) -> bytes | None:
        return self._items.get(item_id)

    @property
    def size_bytes(self) -> int:
        return self._bytes


class Link:
    """Reads and writes the frames of one session."""

    def __init__(
        self,
        session: Session,
        stream: Stream,
        reader: FrameReader,
        *,
        gossip: Gossip,
        holdings: Holdings,
        recent: Recent,
        raw: Callable[[bytes], bytes | None],
        do: Do,
        follow_head: Callable[[GraphId], Awaitable[None]],
        turn: Callable[[], Awaitable[None]],
    ) -> None:
        """`follow_head` asks the peer for a newer roster of a graph, and never raises. `turn` returns when one
        more frame may be taken in; it is a checkpoint, because many may come in one read."""
        self.session = session
        self._wake = trio.Event()
        self._planned_ms = -inf
        """When the writer looks again by itself; it is at work until then and looks anyhow."""
        self._stream = stream
        self._reader = reader
        self._gossip = gossip
        self._holdings = holdings
        self._recent = recent
        self._raw = raw
        self._do = do
        self._follow_head = follow_head
        self._turn = turn

    @property
    def peer(self) -> PeerId:
        return self.session.peer

    async def write(self) -> None:
        """Write what the machine has for this peer, as it becomes due. Ends with the stream, by its error."""
        while True:
            outgoing = self._gossip.take(self.peer, ticks_ms())
            if outgoing is not None:
                await send_frames(self._stream, frames.encode(outgoing.frame(self._bodies(outgoing.envelopes))))
                continue
            due_ms = self._gossip.due_ms(self.peer)
            self._planned_ms, self._wake = (due_ms if due_ms > -inf else inf), trio.Event()
            if isinf(self._planned_ms):
                await self._wake.wait()
            else:
                with trio.move_on_after(max(self._planned_ms - ticks_ms(), 1) / 1000):
                    await self._wake.wait()
            self._planned_ms = -inf

    def wake(self) -> None:
        """The machine may have something for this peer sooner than it had. Most that comes brings nothing to say."""
        if self._gossip.due_ms(self.peer) < self._planned_ms:
            self._wake.set()

    def _bodies(self, ids: Sequence[bytes]) -> Iterator[bytes]:
        for item_id in ids:
            data = self._recent.get(item_id) or self._raw(item_id)
            if data is not None:
                yield data

    async def read(self) -> None:
        """Take frames in until the peer ends its side. Raises `RefusedError` for what no member sends."""
        await self._reader.each(self._take)

    async def _take(self, data: bytes) -> bool:
        """A frame, when its turn comes. True: the next may come."""
        await self._turn()
        message = frames.decode(data)
        is_last = not self._reader.has_frame()
        if isinstance(message, Skipped):
            self._do(self._gossip.frame_skipped(self.peer, is_last=is_last))
            return True
        if not isinstance(message, Frame):
            raise RefusedError(Reason.BAD_FRAME, f"a {type(message).__name__} on the member stream")
        self._do(self._gossip.frame_received(self.peer, message, is_last=is_last, now_ms=ticks_ms()))
        if message.envelopes:
            await self._admit(message.envelopes)
        return True

    async def _follow_heads(self, items: Sequence[Item]) -> None:
        """An item that was signed under a newer roster than ours waits until we have asked for it: passing the item on
        under the old one could hand it to somebody who was taken out before it was said."""
        behind = {
            item.graph
            for item in items
            if isinstance(item, Envelope) and item.unsigned.roster > self._holdings.roster_version(item.graph) > 0
        }
        for graph in sorted(behind):
            await self._follow_head(graph)

    async def _admit(self, envelopes: Sequence[bytes]) -> None:
        """Admit what a frame brought. What was admitted is told to the machine by the ledger's listener, once it is on
        disk; what was not, here."""
        offered = [Offered(data) for data in envelopes]
        items = [it.item for it in offered if it.is_item]
        for item in items:
            self._gossip.arriving(self.peer, item.id, ticks_ms())
        await self._follow_heads(items)
        graphs = {item.id: item.graph for item in items}
        outcomes = await self._holdings.admit(offered, Source(How.MEMBER, self.peer))
        for outcome in outcomes:
            if not outcome.is_new and outcome.id is not None:
                reason = outcome.reason or Reason.DUPLICATE
                refused = self._gossip.refused(self.peer, graphs[outcome.id], outcome.id, reason, ticks_ms())
                self._do(refused)
