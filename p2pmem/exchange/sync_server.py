"""Answering: the sync stream of one peer. One request, one answer, as long as the peer likes.

What may be asked depends on who asks: a graph is told to peers that are members now, and an open graph to anybody who
names it (rule J2); where members can be dialled, only members learn. Every other question gets one answer, the same
bytes, whether the graph is known here or not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import replace
from functools import partial
from typing import Final

import trio
from p2pmem_jobs.clock import Clock
from p2pmem_protocol import frames
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.frames import (
    ADDRESSES_MAX,
    HEADERS_MAX,
    MESSAGE_BYTES_MAX,
    PART_BYTES_MAX,
    AskHeaders,
    Envelopes,
    Fetch,
    FetchPart,
    GraphState,
    Headers,
    Heads,
    Message,
    NotGiven,
    Part,
    Peers,
    RoundMessage,
    RoundOpen,
)
from p2pmem_protocol.hello import clocks_agree
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.negentropy import Responder
from p2pmem_protocol.roster import HEADER_BYTES_MAX

from p2pmem.exchange.allowance import Allowances
from p2pmem.exchange.holdings import Holdings
from p2pmem.exchange.waiting import WaitingAnswers
from p2pmem.net.framing import FrameReader, encode_frames, send_frames
from p2pmem.net.limits import PeerLimits
from p2pmem.net.pace import Pace
from p2pmem.net.room import origin_of_address
from p2pmem.net.seam import PeerId, Stream, StreamClosedError

log = logging.getLogger(__name__)

ROOM_BYTES: Final = MESSAGE_BYTES_MAX - 4_096
"""What an answer may hold, so that the map around it fits too."""

HEADERS_OF_ONE_MESSAGE: Final = min(HEADERS_MAX, ROOM_BYTES // (HEADER_BYTES_MAX + 8))

FOUND_BYTES: Final = 512 * 1024
"""To go through so much of an attachment takes as long as another request."""

_NO: Final = NotGiven(int(Reason.UNKNOWN_GRAPH))
_TOO_MANY: Final = NotGiven(int(Reason.TOO_MANY))


class SyncServer:
    """Serves the sync streams of all peers."""

    def __init__(
        self,
        holdings: Holdings,
        clock: Clock,
        *,
        may_read: Callable[[PeerId, GraphId], bool],
        shared_with: Callable[[PeerId], Set[GraphId]],
        differs: Callable[[PeerId, GraphState, bytes], None],
        equal: Callable[[PeerId, Collection[GraphState]], None],
        peers: Callable[[PeerId, Peers], tuple[str, ...]],
        penalise: Callable[[PeerId, RefusedError], None],
        member_at: Callable[[PeerId], str | None],
        address_of: Callable[[PeerId], str],
        refuse: Callable[[str, str, PeerId], None],
        limits: PeerLimits | None = None,
    ) -> None:
        """`may_read` is asked for every request; `shared_with` says in which graphs a peer is a member's node now.
        `differs` is told of a peer's state of a graph that is not ours, and of our head; `equal` in which graphs a peer
        that asked has the same as we. `peers` takes in where the asker can be dialled, and says where others can be.
        `member_at` is the name of the member that a peer has said hello as, `address_of` from where a peer came:
        members are answered at some pace, others have an allowance. `refuse` counts a refusal and says it
        (`Network.refuse`).
        """
        self._holdings = holdings
        self._clock = clock
        self._may_read = may_read
        self._shared_with = shared_with
        self._differs = differs
        self._equal = equal
        self._peers = peers
        self._penalise = penalise
        self._member_at, self._address_of, self._refuse = member_at, address_of, refuse
        self._serving: Counter[PeerId] = Counter()
        self._limits = limits = limits or PeerLimits()
        self._allowances = Allowances(limits)
        self._pace = Pace(
            address_of,
            limits.member_requests_per_minute,
            limits.known_members_max,
            graphs_of=shared_with,
            graph_per_minute=limits.graph_requests_per_minute,
        )
        self._waiting = WaitingAnswers(
            limits.answers_waiting_max_bytes,
            account_of=lambda peer: member_at(peer) or self._where(peer),
            graphs_of=shared_with,
            refuse=refuse,
        )

    async def serve(self, stream: Stream) -> None:
        """Answer until the peer ends its side, or has used up what a stranger may ask: to refuse costs as much as to
        answer, so he hears it once on each stream. Bytes that no peer of this protocol sends end the stream."""
        if self._serving[stream.peer] >= self._limits.sync_streams_per_peer_max:
            self._refuse("sync.refused", "sync-streams", stream.peer)
            await stream.reset()
            return
        self._serving[stream.peer] += 1
        try:
            await self._serve(stream)
        finally:
            self._serving -= Counter((stream.peer,))

    async def _serve(self, stream: Stream) -> None:
        reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
        try:
            await reader.each(partial(self._answer_on, stream, _Talk()))
        except RefusedError as error:
            self._penalise(stream.peer, error)
        except StreamClosedError:
            log.debug("sync.closed", extra={"peer": stream.peer})

    async def _answer_on(self, stream: Stream, talk: _Talk, data: bytes) -> bool:
        """Answer one question. Whether another may follow."""
        message = frames.decode(data)
        if not await self._may_ask(stream.peer, message):
            await _say_too_many(stream)
            return False
        # For who does not read, bytes are held as they go out, and nothing that they were made of.
        for said in map(_said, self._answer(stream.peer, message, talk)):
            if not self._may_hear(stream.peer, len(said)):
                await _say_too_many(stream)
                return False
            await self._waiting.send(stream, said)
        return True

    async def _may_ask(self, peer: PeerId, message: Message) -> bool:
        """Whether one more request is answered; of a member always, when its turn comes."""
        member, work = self._member_at(peer), _work_of(message)
        if member is None:
            return self._allowances.may_ask(peer, self._where(peer), trio.current_time(), work)
        await self._pace.turn(member, peer, work)
        return True

    def _may_hear(self, peer: PeerId, size_bytes: int) -> bool:
        """Whether one more message of an answer is given, which is accounted for; to a member always."""
        if self._member_at(peer) is not None:
            return True
        where, now_s = self._where(peer), trio.current_time()
        if not self._allowances.may_hear(peer, where, now_s):
            return False
        self._allowances.answered(peer, where, size_bytes, now_s)
        return True

    def _where(self, peer: PeerId) -> str:
        return origin_of_address(self._address_of(peer)).wide

    def _answer(self, peer: PeerId, message: Message, talk: _Talk) -> Iterator[Message]:
        """One message, or some: each is made when it is sent."""
        match message:
            case Heads():
                yield self._heads(peer, message)
                return
            case RoundMessage() if talk.round is not None and self._may_read(peer, GraphId(talk.round.graph)):
                yield self._round(talk.round, talk.responder, message.message)
                return
        graph = getattr(message, "graph", None)
        if graph is None or not self._may_read(peer, GraphId(graph)):
            yield _NO
            return
        match message:
            case RoundOpen():
                yield self._open(message, talk)
            case Fetch():
                yield from self._envelopes(peer, message)
            case FetchPart():
                yield self._part(message)
            case AskHeaders():
                yield from self._headers(peer, message)
            case Peers() if GraphId(graph) in self._shared_with(peer):
                yield Peers(graph, self._peers(peer, message)[:ADDRESSES_MAX])
            case Peers():
                yield _NO
            case _:
                yield NotGiven(int(Reason.NOT_SPOKEN))

    def _heads(self, peer: PeerId, theirs: Heads) -> Heads:
        ours: list[GraphState] = []
        now_ms = self._clock.now_ms()
        agreed_ms = max(now_ms, theirs.clock_ms)
        if not clocks_agree(now_ms, theirs.clock_ms):
            return Heads(now_ms)
        equal: list[GraphState] = []
        for state in theirs.graphs:
            graph = GraphId(state.graph)
            if not self._may_read(peer, graph):
                continue
            mine = self._holdings.state(graph, agreed_ms)
            ours.append(mine)
            if (mine.head, mine.count, mine.fingerprint) != (state.head, state.count, state.fingerprint):
                self._differs(peer, state, mine.head)
            else:
                equal.append(mine)
        self._equal(peer, equal)
        return Heads(now_ms, tuple(ours))

    def _open(self, opened: RoundOpen, talk: _Talk) -> Message:
        if not clocks_agree(self._clock.now_ms(), opened.agreed_ms):
            return NotGiven(int(Reason.CLOCK_APART))
        talk.round, talk.responder = replace(opened, message=b""), Responder()
        return self._round(talk.round, talk.responder, opened.message)

    def _round(self, opened: RoundOpen, responder: Responder, message: bytes) -> Message:
        """Answer one message of a round, over the set as it is now: between messages nothing of it is held, so rounds
        that are left open cost nothing."""
        graph = GraphId(opened.graph)
        if self._holdings.state(graph, opened.agreed_ms).head != opened.head:
            return NotGiven(int(Reason.NO_HEAD))
        view = self._holdings.view_of(graph, opened.kinds, opened.agreed_ms)
        return RoundMessage(responder.receive(view, message)) if view is not None else _TOO_MANY

    def _envelopes(self, peer: PeerId, asked: Fetch) -> Iterator[Message]:
        """Read message by message: one question may be about 60 MiB, and whoever asks need not read the answer. So it
        lasts, too, and ends where the peer may not read the graph any more."""
        graph = GraphId(asked.graph)
        *groups, last = _groups(self._holdings.sizes(graph, asked.ids))
        for ids in groups:
            if not self._may_read(peer, graph):
                yield _NO
                return
            # What has left the set meanwhile is left out; that there is more is never said beside nothing.
            found = [Envelopes(tuple(self._holdings.raw(graph, ids)), more=True)]
            if found[0].envelopes:
                yield found.pop()
        yield Envelopes(tuple(self._holdings.raw(graph, last))) if self._may_read(peer, graph) else _NO

    def _part(self, asked: FetchPart) -> Message:
        graph = GraphId(asked.graph)
        if asked.is_roster:
            data = self._holdings.roster_part(graph, asked.content)
            found = (len(data), data[asked.offset : asked.offset + PART_BYTES_MAX]) if data is not None else None
        else:
            found = self._holdings.attachment_piece(graph, asked.content, asked.offset, PART_BYTES_MAX)
        if found is None or asked.offset > found[0]:
            return NotGiven(int(Reason.SUBJECT_NOT_HELD))
        return Part(found[0], asked.offset, found[1])

    def _headers(self, peer: PeerId, asked: AskHeaders) -> Iterator[Message]:
        """As envelopes: each message is made when it is sent."""
        graph, known = GraphId(asked.graph), frozenset(asked.known)
        ids = [it for it in self._holdings.header_ids(graph) if it not in known]
        for at in range(0, max(len(ids), 1), HEADERS_OF_ONE_MESSAGE):
            if not self._may_read(peer, graph):
                yield _NO
                return
            some, more = ids[at : at + HEADERS_OF_ONE_MESSAGE], at + HEADERS_OF_ONE_MESSAGE < len(ids)
            yield Headers(asked.graph, tuple(self._holdings.headers(graph, some)), more=more)


def _work_of(message: Message) -> int:
    """How many requests it counts as. SQLite goes through an attachment from its beginning to find a piece of it."""
    return 1 + message.offset // FOUND_BYTES if isinstance(message, FetchPart) and not message.is_roster else 1


def _said(answer: Message) -> bytes:
    return encode_frames([frames.encode(answer)])


async def _say_too_many(stream: Stream) -> None:
    await send_frames(stream, frames.encode(_TOO_MANY))
    await stream.close_write()


def _groups(sizes: Iterable[tuple[bytes, int]]) -> list[list[bytes]]:
    """Ids in their order, each group as much as a message holds. The last one is empty only where there is none."""
    groups: list[list[bytes]] = [[]]
    room = ROOM_BYTES
    for item_id, size_bytes in sizes:
        if size_bytes + 8 > room:
            groups.append([])
            room = ROOM_BYTES
        groups[-1].append(item_id)
        room -= size_bytes + 8
    return groups


class _Talk:
    """What one stream remembers between requests: the round under way."""

    def __init__(self) -> None:
        self.round: RoundOpen | None = None
        self.responder = Responder()
