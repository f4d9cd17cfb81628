"""Asking: one comparison with one peer, and the rounds that follow from it.

The order is that of the rules: headers first, then parts of the head, then, once both have one head and clocks agree,
the set. What is missing is fetched and admitted in pieces as it becomes known, so a round that stops half way was not
in vain. What the *peer* lacks it learns in its own round, which our different state made it start.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from p2pmem_jobs.clock import Clock
from p2pmem_protocol import frames
from p2pmem_protocol.errors import OutsideError, Reason, RefusedError
from p2pmem_protocol.frames import (
    FETCH_IDS_MAX,
    KNOWN_HEADERS_MAX,
    MESSAGE_BYTES_MAX,
    PART_LENGTH_MAX,
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
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.hello import SYNC_PROTOCOL, clocks_agree
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import MINUTE_MS
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.negentropy import Initiator
from p2pmem_protocol.roster import SignedHeader

from p2pmem.exchange.holdings import Holdings, How, Offered, Source
from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.reach import may_pass_on
from p2pmem.net.seam import Network, PeerId, Stream

log = logging.getLogger(__name__)

M = TypeVar("M")
A = TypeVar("A", Envelopes, Headers)

REFUSED_FOR_MS: Final = 2 * MINUTE_MS
REFUSED_MAX: Final = 50_000
HEADERS_TAKEN_MAX: Final = 100_000
ADDRESSES_OF_ONE_MAX: Final = 8
ADDRESSES_MAX: Final = 4_096
IDLE_LINES_MAX: Final = 5
"""Streams to one peer that are kept for the next questions: one to compare on, and as many as contents are fetched at
once."""
KINDS: Final = tuple(sorted(int(kind) for kind in Kind))


class NotGivenError(OutsideError):
    """The peer has no answer to that question, for the reason it gives."""

    def __init__(self, reason: int) -> None:
        name = Reason(reason).name.lower().replace("_", "-") if reason in set(Reason) else str(reason)
        super().__init__(f"the peer does not answer: {name}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one graph stood between us and a peer, and what the round brought."""

    graph: GraphId
    equal: bool
    ours: int
    theirs: int
    fetched: int
    trouble: str = ""


@dataclass(slots=True)
class Refused:
    """Ids that were refused in a round: not asked for again for two minutes or until the head changes (rule R1)."""

    until_ms: dict[bytes, int] = field(default_factory=dict)

    def wanted(self, ids: Iterable[bytes], now_ms: int) -> list[bytes]:
        # What was refused while the clock was years ahead is not refused for years.
        return [it for it in ids if not 0 < self.until_ms.get(it, 0) - now_ms <= REFUSED_FOR_MS]

    def note(self, item_id: bytes, now_ms: int) -> None:
        if len(self.until_ms) >= REFUSED_MAX:
            self.until_ms = {known: until for known, until in self.until_ms.items() if until > now_ms}
            if len(self.until_ms) >= REFUSED_MAX:
                self.until_ms.clear()
        self.until_ms[item_id] = now_ms + REFUSED_FOR_MS

    def forget(self) -> None:
        self.until_ms.clear()


class SyncClient:
    """Compares with peers and fetches from them."""

    def __init__(self, network: Network, holdings: Holdings, clock: Clock) -> None:
        self._network = network
        self._holdings = holdings
        self._clock = clock
        self._refused: dict[GraphId, Refused] = {}
        self._addresses: dict[PeerId, tuple[str, ...]] = {}
        self._lines: dict[PeerId, list[_Line]] = {}

    def head_changed(self, graph: GraphId) -> None:
        """What was refused under another head may be admissible now."""
        self._refused.pop(graph, None)

    async def compare(self, peer: PeerId, graphs: Sequence[GraphId]) -> list[Comparison]:
        """Compare these graphs with a peer and fetch what is missing here.

        Raises `OutsideError` when the peer goes away or does not answer, `RefusedError` for words that no peer of this
        protocol says. Cancelled, what was admitted so far stays. One call at a time for each peer.
        """
        async with self._line(peer) as line:
            now_ms = self._clock.now_ms()
            mine = {graph: self._holdings.state(graph, now_ms) for graph in graphs}
            theirs = await line.ask(Heads(now_ms, tuple(mine.values())), Heads)
            if not clocks_agree(now_ms, theirs.clock_ms):
                apart_s = round((theirs.clock_ms - now_ms) / 1000)
                why = f"the peer's clock is {apart_s:+} s away from ours"
                return [Comparison(graph, False, mine[graph].count, 0, 0, why) for graph in graphs]
            agreed_ms = max(now_ms, theirs.clock_ms)
            answered = {GraphId(state.graph): state for state in theirs.graphs}
            if agreed_ms > now_ms:
                # What is the same as theirs, as it will be then, has nothing that ends before.
                mine = {
                    graph: ours if _is_same(ours, answered.get(graph)) else self._holdings.state(graph, agreed_ms)
                    for graph, ours in mine.items()
                }
            return [
                await self._graph(line, mine[graph], answered[graph], agreed_ms)
                for graph in graphs
                if graph in answered
            ]

    async def follow_head(self, peer: PeerId, graph: GraphId) -> None:
        """Take in the peer's newest roster of a graph, when it is another than ours. Raises as `compare`."""
        async with self._line(peer) as line:
            now_ms = self._clock.now_ms()
            ours = self._holdings.state(graph, now_ms)
            theirs = await line.ask(Heads(now_ms, (ours,)), Heads)
            if any(state.graph == graph and state.head != ours.head for state in theirs.graphs):
                await self._heads(line, graph)

    async def ask_peers(self, peer: PeerId, graph: GraphId, ours: tuple[str, ...]) -> tuple[str, ...]:
        """Tell a member where we can be dialled; learn where it and those it is connected to can be.

        Raises as `compare`, and shares its stream.
        """
        async with self._line(peer) as line:
            try:
                answer = await line.ask(Peers(graph, ours), Peers)
            except NotGivenError:
                return ()
        self.note_addresses(peer, answer.addresses, ours)
        return answer.addresses

    async def fetch_attachment(self, peer: PeerId, graph: GraphId, content_hash: bytes, length: int) -> bool:
        """Fetch one attachment from a member and keep it; False when the member does not hold it.

        Raises as `compare`, and `NotGivenError` when the member hears no more questions for now. Cancelled, nothing is
        kept.
        """
        async with self._line(peer) as line:
            return await self._attachment(line, graph, content_hash, length)

    @asynccontextmanager
    async def _line(self, peer: PeerId) -> AsyncIterator[_Line]:
        """An open stream to a peer that nobody else asks on, opened when there is none: to open one costs the peer more
        than most questions. Whoever fails on it closes it."""
        idle = self._lines.get(peer)
        line = idle.pop() if idle else _Line(await self._network.open_stream(peer, SYNC_PROTOCOL))
        try:
            yield line
        except BaseException:
            await line.close()
            raise
        idle = self._lines.setdefault(peer, [])
        if len(idle) < IDLE_LINES_MAX and peer in self._network.connected():
            idle.append(line)
        else:
            await line.close()

    async def forget(self, peer: PeerId) -> None:
        """The session with a peer has ended: close the streams to it on which nobody asks."""
        for line in self._lines.pop(peer, ()):
            await line.close()

    def note_addresses(self, peer: PeerId, addresses: Iterable[str], ours: tuple[str, ...]) -> None:
        """Remember those of `addresses` that lead to `peer` itself, as others' are theirs to tell, and may be passed on
        by who tells `ours`."""
        told = (address for address in addresses if address.endswith(f"/p2p/{peer}"))
        own = tuple(address for address in told if may_pass_on(address, ours))[:ADDRESSES_OF_ONE_MAX]
        self._addresses.pop(peer, None)
        if own:
            self._addresses[peer] = own
            while len(self._addresses) > ADDRESSES_MAX:
                del self._addresses[next(iter(self._addresses))]

    def known_addresses(self, peer: PeerId) -> tuple[str, ...]:
        return self._addresses.get(peer, ())

    async def _graph(self, line: _Line, ours: GraphState, theirs: GraphState, agreed_ms: int) -> Comparison:
        graph = GraphId(ours.graph)
        # A join brings the headers of one term; certificates that the head keeps may need those before it.
        if ours.head != theirs.head or self._holdings.lacks_headers(graph):
            await self._heads(line, graph)
            ours = self._holdings.state(graph, agreed_ms)
            if ours.head != theirs.head:
                return Comparison(graph, False, ours.count, theirs.count, 0, "the peer has another head")
        if (ours.count, ours.fingerprint) == (theirs.count, theirs.fingerprint):
            return Comparison(graph, True, ours.count, theirs.count, await self._attachments(line, graph))
        if ours.is_partial:
            # Rule J3: what is missing here is not asked for. What the peer lacks it gets in rounds of its own.
            return Comparison(graph, False, ours.count, theirs.count, 0, "this node's disk is nearly full")
        try:
            fetched = await self._round(line, graph, theirs.head, agreed_ms)
        except NotGivenError as error:
            return Comparison(graph, False, ours.count, theirs.count, 0, str(error))
        fetched += await self._attachments(line, graph)
        after = self._holdings.state(graph, agreed_ms)
        equal = (after.count, after.fingerprint) == (theirs.count, theirs.fingerprint)
        return Comparison(graph, equal, after.count, theirs.count, fetched)

    async def _heads(self, line: _Line, graph: GraphId) -> None:
        known = self._holdings.header_ids(graph)[:KNOWN_HEADERS_MAX]
        taken = 0
        async with aclosing(line.ask_many(AskHeaders(graph, known), Headers)) as answers:
            async for answer in answers:
                taken += len(answer.headers)
                if taken > HEADERS_TAKEN_MAX or (answer.more and not answer.headers):
                    raise RefusedError(Reason.TOO_MANY, "more roster headers than a graph can have")
                await self._holdings.add_headers(graph, [SignedHeader.decode(data) for data in answer.headers])
        parts: list[bytes] = []
        for part_hash in self._holdings.missing_parts(graph):
            part = await self._part(line, FetchPart(graph, part_hash, is_roster=True), PART_LENGTH_MAX)
            if part is not None:
                parts.append(part)
        if parts:
            await self._holdings.add_parts(graph, parts)

    async def _round(self, line: _Line, graph: GraphId, head: bytes, agreed_ms: int) -> int:
        refused = self._refused.setdefault(graph, Refused())
        initiator = Initiator(self._holdings.view(graph, agreed_ms))
        answer = await line.ask(RoundOpen(graph, head, agreed_ms, KINDS, initiator.start()), RoundMessage)
        fetched = 0
        waiting: list[bytes] = []
        while True:
            step = initiator.receive(answer.message)
            needed = refused.wanted(step.need, self._clock.now_ms())
            for at in range(0, len(needed), FETCH_IDS_MAX):
                fetched += await self._fetch(line, graph, needed[at : at + FETCH_IDS_MAX], refused, waiting)
            if step.reply is None:
                break
            answer = await line.ask(RoundMessage(step.reply), RoundMessage)
        # Evidence that came before its subject: by now the subject is here, or it is not to be had.
        if waiting:
            fetched += await self._take(line, waiting, refused, None)
        return fetched

    async def _fetch(
        self, line: _Line, graph: GraphId, ids: list[bytes], refused: Refused, waiting: list[bytes]
    ) -> int:
        fetched = given = 0
        async with aclosing(line.ask_many(Fetch(graph, tuple(ids)), Envelopes)) as answers:
            async for answer in answers:
                given += len(answer.envelopes)
                if given > len(ids) or (answer.more and not answer.envelopes):
                    raise RefusedError(Reason.BAD_FRAME, "more envelopes than were asked for, or none and more to come")
                fetched += await self._take(line, answer.envelopes, refused, waiting)
        return fetched

    async def _take(self, line: _Line, items: Sequence[bytes], refused: Refused, waiting: list[bytes] | None) -> int:
        """Admit; evidence whose subject is not held goes to `waiting` once, everything else refused is noted."""
        outcomes = await self._holdings.admit([Offered(data) for data in items], Source(How.ROUND, line.peer))
        now_ms = self._clock.now_ms()
        for data, outcome in zip(items, outcomes, strict=True):
            if outcome.reason is None or outcome.id is None:
                continue
            if outcome.reason is Reason.SUBJECT_NOT_HELD and waiting is not None and len(waiting) < REFUSED_MAX:
                waiting.append(data)
            else:
                refused.note(outcome.id, now_ms)
        return sum(outcome.is_new for outcome in outcomes)

    async def _attachments(self, line: _Line, graph: GraphId) -> int:
        kept = 0
        for content_hash, length in self._holdings.wanted_attachments(graph):
            kept += await self._attachment(line, graph, content_hash, length)
        return kept

    async def _attachment(self, line: _Line, graph: GraphId, content_hash: bytes, length: int) -> bool:
        data = await self._part(line, FetchPart(graph, content_hash), length)
        if data is None or len(data) != length:
            return False
        return await self._holdings.keep_attachment(graph, content_hash, data)

    async def _part(self, line: _Line, asked: FetchPart, length_max: int) -> bytes | None:
        """Bytes by hash, in pieces; the length is checked before a byte is taken. None: the peer does not hold them."""
        data = bytearray()
        while True:
            try:
                part = await line.ask(FetchPart(asked.graph, asked.content, len(data), asked.is_roster), Part)
            except NotGivenError as error:
                if error.reason == Reason.TOO_MANY:
                    raise  # it says so once, and has ended the stream
                return None
            if part.length_bytes > length_max and not asked.is_roster:
                return None  # whoever named it said less than it is: nothing that the giver could help
            if part.length_bytes > length_max or part.offset != len(data):
                raise RefusedError(Reason.BAD_FRAME, "a part that is longer than asked for, or from another place")
            data += part.data
            if len(data) >= part.length_bytes:
                break
            if not part.data:
                raise RefusedError(Reason.BAD_FRAME, "a part without bytes")
        whole = bytes(data)
        if keccak256(whole) != asked.content:
            raise RefusedError(Reason.CONTENT_HASH_MISMATCH, "bytes that are not what was asked for")
        return whole


def _is_same(ours: GraphState, theirs: GraphState | None) -> bool:
    """Whether both have the same head and hold the same."""
    if theirs is None:
        return False
    return (ours.head, ours.count, ours.fingerprint) == (theirs.head, theirs.count, theirs.fingerprint)


class _Line:
    """Questions and answers on one stream."""

    def __init__(self, stream: Stream) -> None:
        self.peer = stream.peer
        self._stream = stream
        self._reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)

    async def close(self) -> None:
        await self._stream.reset()

    async def ask(self, question: Message, kind: type[M]) -> M:
        """One question, one answer of `kind`; `NotGivenError` when there is none."""
        await send_frames(self._stream, frames.encode(question))
        return await self._answer(kind)

    async def ask_many(self, question: Message, kind: type[A]) -> AsyncGenerator[A, None]:
        """One question, and answers of `kind` until one says that no more follows."""
        await send_frames(self._stream, frames.encode(question))
        while True:
            answer = await self._answer(kind)
            yield answer
            if not answer.more:
                return

    async def _answer(self, kind: type[M]) -> M:
        data = await self._reader.receive()
        if data is None:
            raise OutsideError("the peer ended the sync stream before it had answered")
        answer = frames.decode(data)
        if isinstance(answer, NotGiven):
            raise NotGivenError(answer.reason)
        if not isinstance(answer, kind):
            raise RefusedError(Reason.BAD_FRAME, f"a {type(answer).__name__} where a {kind.__name__} was due")
        return answer
