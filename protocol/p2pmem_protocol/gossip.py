"""How a new envelope reaches every member of a gated graph: push, announce, ask. Rules and tables only, no IO.

The rules (simulated for 5 to 300 members: everybody is reached, under 0.1 bodies are sent in vain per delivery):

1. *List.* Each member tells those it is connected to which other members of the graph it is connected to, as eight
   bytes of a hash of graph and peer. An unknown list counts as empty.
2. *Push.* The author's node sends the whole envelope to every connected member.
3. *Announce.* Whoever admits an envelope for the first time, by whatever way, sends its short id to each connected
   member that has not sent or announced it and whose own list does not name the giver: that member heard the giver
   himself. It is the *target's* list that counts, so who lies in his list harms himself alone. A member whose list
   names only us gets the envelope whole: there is nobody else to give it.
4. *Ask.* Who lacks what was announced asks the first announcer, after a second the next (`asking`).
5. *A promise ends with its connection.* When a giver's connection ends, or a member's list drops him, what came from
   him in the last minute is announced to those whom rule 3 passed over for his sake.
6. *Once.* An id is relayed once and remembered for ten minutes. So there is no hop limit and no tree.

What reconciliation brings has no giver: he holds it, but he has promised to tell it to nobody. It is announced to all
who have not announced it themselves. More than 1,000 at once are not: then sets are compared with everybody.

Every table is bounded. What finds no room falls back: an envelope to its announcement, an announcement to the flag
"reconcile with me", a promise or a memory to what reconciliation finds. Nothing here loses an envelope for good,
because nothing here is the guarantee; reconciliation is.

How to drive it. Call the method that names what happened; each returns commands. For each peer run one writer:

    while True:
        outgoing = gossip.take(peer, now_ms)         # a frame to write now, or None
        if outgoing is None: wait until gossip.due_ms(peer), or until a Wake(peer) comes
        else: look up the envelopes' bytes, write frames.encode(outgoing.frame(bodies))

and call `tick` at `next_ms`. One machine serves all graphs of a node, since a peer has one stream for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeAlias

from p2pmem_protocol.asking import Asking, GivenUp, Question
from p2pmem_protocol.errors import BugError, MisuseError, Penalty, Reason, RefusedError
from p2pmem_protocol.frames import LIST_MEMBERS_MAX, SHORT_ID_BYTES, Frame, ListChange
from p2pmem_protocol.outbox import DEFAULT_OUTBOX_LIMITS, Outbox, OutboxLimits, OutboxStatistics, Outgoing
from p2pmem_protocol.relays import Promise, Relayed, Relays

RECONCILED_AT_ONCE_MAX: Final = 1_000
_QUEUED_LISTS_MAX: Final = 256

FORGOTTEN: Final = frozenset(
    (
        Reason.UNKNOWN_GRAPH,
        Reason.NO_HEAD,
        Reason.NOT_LISTED,
        Reason.FROM_THE_FUTURE,
        Reason.SUBJECT_NOT_HELD,
        Reason.WRONG_QUORUM,
        Reason.PARENT_NOT_HELD,
        Reason.CLOCK_APART,
        Reason.PARTIAL,
        Reason.NOT_DECIDABLE,
        Reason.TOO_MANY,
    )
)
"""Refusals that may end any moment: not remembered, so that the next announcement is followed up."""


@dataclass(frozen=True, slots=True)
class GossipLimits:
    """How much is remembered. At each limit the oldest is forgotten first."""

    memory: int = 20_000
    """Ids relayed or refused in the last ten minutes. Forgotten early: asked for once more, refused by the ledger."""
    promises: int = 20_000
    """Ids whose giver and passed-over members are kept a minute. Forgotten early: reconciliation has to find them."""
    asking: int = 20_000
    asking_of_one: int = 4_096
    outbox: OutboxLimits = DEFAULT_OUTBOX_LIMITS


# Commands


@dataclass(frozen=True, slots=True)
class Wake:
    """`due_ms` of this peer may have come nearer: let its writer look again."""

    peer: str


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Begin a round with `peer`, over `graph` or, None, over all shared ones: gossip could not keep up."""

    peer: str
    graph: bytes | None


@dataclass(frozen=True, slots=True)
class Compare:
    """Tell head, count and fingerprint of `graph` to every connected member."""

    graph: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection: nothing was acknowledged for ten seconds. Then call `peer_left`."""

    peer: str


Command: TypeAlias = Wake | Reconcile | Compare | Close


@dataclass(frozen=True, slots=True)
class GossipStatistics:
    """Counters since the start, and how full the tables are."""

    published: int
    admitted: int
    refused: int
    pushed: int
    announced: int
    asked: int
    given: int
    given_up: int
    flagged: int
    remembered: int
    promises: int
    asking: int


@dataclass(slots=True)
class _Counters:
    published: int = 0
    admitted: int = 0
    refused: int = 0
    pushed: int = 0
    announced: int = 0
    asked: int = 0
    given: int = 0
    given_up: int = 0
    flagged: int = 0


@dataclass(slots=True)
class _Peer:
    """A connected peer: its outbox, and for each shared graph its list as far as it is known."""

    outbox: Outbox
    lists: dict[bytes, set[bytes]] = field(default_factory=dict)
    is_closing: bool = False


def member_hash(graph: bytes, peer: str) -> bytes:
    """How a peer is named in lists of a graph: eight bytes that say nothing to who does not know both."""
    return hashlib.sha256(b"p2pmem list" + graph + peer.encode()).digest()[:SHORT_ID_BYTES]


class Gossip:
    """The gossip of one node in all its gated graphs, towards all its connected peers."""

    def __init__(self, me: str, limits: GossipLimits | None = None) -> None:
        self._me = me
        self._limits = limits or GossipLimits()
        self._peers: dict[str, _Peer] = {}
        # Connected members of each graph with their hashes; the outer key is also "which graphs have company".
        self._members: dict[bytes, dict[str, bytes]] = {}
        self._asking = Asking(rows=self._limits.asking, rows_of_one=self._limits.asking_of_one)
        self._relays = Relays(memory=self._limits.memory, promises=self._limits.promises)
        self._overdue_ms = inf
        """When somebody may have left a frame unacknowledged for too long."""
        self._commands: dict[Command, None] = {}
        self._counters = _Counters()

    # Members come and go

    def peer_joined(self, peer: str, graphs: Iterable[bytes], now_ms: int) -> list[Command]:
        """A peer's hello is done; it is a member of `graphs`, as we are."""
        if peer in self._peers:
            raise MisuseError(f"{peer} has joined already: one stream for each peer")
        self._peers[peer] = _Peer(Outbox(self._limits.outbox))
        for graph in graphs:
            self._share(peer, graph, now_ms)
        return self._take_commands()

    def graph_shared(self, peer: str, graph: bytes, now_ms: int) -> list[Command]:
        """A connected peer has become a member of `graph`, or we have. Nothing happens if it was one."""
        if peer in self._peers and graph not in self._peers[peer].lists:
            self._share(peer, graph, now_ms)
        return self._take_commands()

    def graph_unshared(self, peer: str, graph: bytes, now_ms: int) -> list[Command]:
        """A connected peer is no longer a member of `graph`. Nothing happens if it was none."""
        if peer in self._peers and graph in self._peers[peer].lists:
            self._unshare(peer, graph, now_ms)
        return self._take_commands()

    def peer_left(self, peer: str, now_ms: int) -> list[Command]:
        """The connection of a peer has ended. What it still owed is asked of others; what it promised, we promise."""
        state = self._peers.get(peer)
        if state is None:
            return []
        for graph in list(state.lists):
            self._unshare(peer, graph, now_ms)
        del self._peers[peer]
        for question in self._asking.left(peer, now_ms):
            self._ask(question, now_ms)
        return self._take_commands()

    def _share(self, peer: str, graph: bytes, now_ms: int) -> None:
        members = self._members.setdefault(graph, {})
        hashed = member_hash(graph, peer)
        others = tuple(members)
        # Before the others are told: who is told the whole list is told of this one too.
        members[peer] = hashed
        for other in others:
            self._tell_list(other, ListChange(graph, added=(hashed,)), now_ms)
        self._peers[peer].lists[graph] = set()
        self._tell_whole_list(peer, graph, now_ms)

    def _unshare(self, peer: str, graph: bytes, now_ms: int) -> None:
        members = self._members[graph]
        hashed = members.pop(peer)
        state = self._peers[peer]
        del state.lists[graph]
        state.outbox.drop_lists(graph)
        for other in members:
            self._tell_list(other, ListChange(graph, removed=(hashed,)), now_ms)
        self._promise_ended(hashed, members, now_ms)
        if not members:
            del self._members[graph]

    def _tell_list(self, peer: str, change: ListChange, now_ms: int) -> None:
        outbox = self._peers[peer].outbox
        if outbox.queued_lists >= _QUEUED_LISTS_MAX:
            outbox.drop_lists(change.graph)
            self._tell_whole_list(peer, change.graph, now_ms)
            return
        outbox.tell_list(change, now_ms)
        self._wake(peer)

    def _tell_whole_list(self, peer: str, graph: bytes, now_ms: int) -> None:
        hashes = tuple(self._members[graph].values())[:LIST_MEMBERS_MAX]
        self._peers[peer].outbox.tell_list(ListChange(graph, is_whole=True, added=hashes), now_ms)
        self._wake(peer)

    # Envelopes

    def published(self, graph: bytes, item_id: bytes, size_bytes: int, now_ms: int) -> list[Command]:
        """An envelope of our own is on disk: push it to every connected member (rule 2)."""
        self._counters.published += 1
        short_id = item_id[:SHORT_ID_BYTES]
        self._settle(short_id)
        self._relays.remember(short_id, Relayed(graph, item_id, size_bytes, now_ms))
        for peer in self._members.get(graph, ()):
            self._push(peer, graph, item_id, size_bytes, now_ms)
        return self._take_commands()

    def arriving(self, peer: str, item_id: bytes, now_ms: int) -> None:
        """An envelope came from `peer` and waits for admission: it is not asked of others meanwhile."""
        if peer in self._peers:
            self._asking.arriving(item_id[:SHORT_ID_BYTES], peer, now_ms)

    def admitted(self, graph: bytes, item_id: bytes, size_bytes: int, giver: str | None, now_ms: int) -> list[Command]:
        """An envelope was admitted for the first time and is on disk: announce it (rule 3).

        `giver` is the peer on whose member stream it came; None when it came by reconciliation or otherwise.
        """
        self._relay(graph, item_id, size_bytes, giver, now_ms)
        return self._take_commands()

    def reconciled(self, graph: bytes, items: Iterable[tuple[bytes, int]], now_ms: int) -> list[Command]:
        """What a round brought and was admitted: (id, size in bytes) of each."""
        batch = list(items)
        if len(batch) <= RECONCILED_AT_ONCE_MAX:
            for item_id, size_bytes in batch:
                self._relay(graph, item_id, size_bytes, None, now_ms)
            return self._take_commands()
        for item_id, size_bytes in batch:
            short_id = item_id[:SHORT_ID_BYTES]
            self._settle(short_id)
            self._relays.remember(short_id, Relayed(graph, item_id, size_bytes, now_ms))
        self._counters.admitted += len(batch)
        self._commands[Compare(graph)] = None
        return self._take_commands()

    def refused(self, peer: str, graph: bytes, item_id: bytes, reason: Reason, now_ms: int) -> list[Command]:
        """An envelope from `peer` was not admitted.

        Wrong bytes are the sender's: the id may still be good, so another one is asked. What cannot be decided yet is
        forgotten. Everything else is not asked for again, for ten minutes or until the head changes.
        """
        self._counters.refused += 1
        short_id = item_id[:SHORT_ID_BYTES]
        if reason is Reason.DUPLICATE and self._heard_again(short_id, peer):
            pass
        elif reason.penalty is Penalty.CLOSE:
            question = self._asking.failed(short_id, peer, now_ms)
            if question is not None:
                self._ask(question, now_ms)
        else:
            self._settle(short_id)
            if reason not in FORGOTTEN:
                self._relays.remember(short_id, Relayed(graph, None, 0, now_ms))
        return self._take_commands()

    def head_changed(self, graph: bytes) -> None:
        """What was refused in `graph` may be admissible now: forget the refusals."""
        self._relays.forget_refusals(graph)

    def _relay(self, graph: bytes, item_id: bytes, size_bytes: int, giver: str | None, now_ms: int) -> None:
        short_id = item_id[:SHORT_ID_BYTES]
        spoke = set(self._settle(short_id))
        known = self._relays.get(short_id)
        if known is not None and known.item_id is not None:
            return
        self._counters.admitted += 1
        self._relays.remember(short_id, Relayed(graph, item_id, size_bytes, now_ms))
        if giver is not None:
            spoke.add(giver)
        giver_hash = None if giver is None else member_hash(graph, giver)
        passed_over = set()
        for peer in self._members.get(graph, ()):
            if peer in spoke:
                continue
            listed = self._peers[peer].lists[graph]
            if giver_hash is not None and giver_hash in listed:
                passed_over.add(peer)
            elif listed == {member_hash(graph, self._me)}:
                self._push(peer, graph, item_id, size_bytes, now_ms)
            else:
                self._announce(peer, graph, short_id, now_ms)
        if giver_hash is not None and passed_over:
            if giver in self._members.get(graph, ()):
                self._relays.lean_on(Promise(short_id, giver_hash, now_ms, spoke, passed_over))
            else:
                # He left between giving and admission: his promise ended before we could lean on it.
                for peer in passed_over:
                    self._announce(peer, graph, short_id, now_ms)

    # Frames

    def frame_received(self, peer: str, frame: Frame, *, is_last: bool, now_ms: int) -> list[Command]:
        """Take in all of a frame but its envelopes, which are for admission and then `admitted` or `refused`.

        `is_last` says that nothing more waits to be read from this peer. Raises RefusedError for what no member
        sends; close the connection then, and call `peer_left`.
        """
        state = self._peers.get(peer)
        if state is None:
            return []
        state.outbox.acked(frame.ack)
        if frame.seq:
            state.outbox.received(frame.seq, is_last=is_last)
        elif frame != Frame(ack=frame.ack):
            raise RefusedError(Reason.BAD_FRAME, "a frame without a number carries more than an acknowledgement")
        elif is_last:
            state.outbox.all_is_read()
        for change in frame.lists:
            self._list_changed(peer, change, now_ms)
        for short_id in frame.announced:
            self._announced(peer, short_id, now_ms)
        for short_id in frame.asked:
            self._asked(peer, short_id, now_ms)
        for graph in frame.reconcile:
            if graph in state.lists:
                self._commands[Reconcile(peer, graph)] = None
        self._wake(peer)
        return self._take_commands()

    def frame_skipped(self, peer: str, *, is_last: bool) -> list[Command]:
        """A message came that we do not know; `is_last` as in `frame_received`."""
        state = self._peers.get(peer)
        if state is not None and is_last:
            state.outbox.all_is_read()
            self._wake(peer)
        return self._take_commands()

    def take(self, peer: str, now_ms: int) -> Outgoing | None:
        """The frame to write to `peer` now, or None. It counts as sent."""
        state = self._peers.get(peer)
        if state is None or state.is_closing:
            return None
        outgoing = state.outbox.take(now_ms)
        self._overdue_ms = min(self._overdue_ms, state.outbox.overdue_ms())
        return outgoing

    def due_ms(self, peer: str) -> float:
        """When `take` has something for `peer`: -inf at once, inf not before a Wake."""
        state = self._peers.get(peer)
        return inf if state is None or state.is_closing else state.outbox.due_ms()

    def tick(self, now_ms: int) -> list[Command]:
        """Time has come to `now_ms`: ask again, give up, close who acknowledges nothing."""
        for one in self._asking.due(now_ms):
            if isinstance(one, Question):
                self._ask(one, now_ms)
            else:
                self._give_up(one)
        for peer, state in self._peers.items():
            if state.outbox.overdue_ms() <= now_ms and not state.is_closing:
                state.is_closing = True
                self._commands[Close(peer)] = None
        overdue = (state.outbox.overdue_ms() for state in self._peers.values() if not state.is_closing)
        self._overdue_ms = min(overdue, default=inf)
        self._relays.forget(now_ms)
        return self._take_commands()

    def next_ms(self) -> float:
        """When `tick` is to be called next; inf when nothing waits for the time. Never too late, at times too early: an
        acknowledgement does not put it off."""
        return min(self._asking.next_ms(), self._overdue_ms)

    # What callers want to know

    def is_pressed(self, graph: bytes) -> bool:
        """Whether who publishes in `graph` should wait: most of its connected members are half full.

        One member that has stopped does not hold up the others; it is closed after ten seconds.
        """
        members = self._members.get(graph, ())
        return 2 * sum(self._peers[peer].outbox.is_pressed for peer in members) > len(members)

    def members(self, graph: bytes) -> tuple[str, ...]:
        """The connected members of `graph`."""
        return tuple(self._members.get(graph, ()))

    def list_length(self, peer: str, graph: bytes) -> int:
        """How many members `peer` says it is connected to."""
        state = self._peers.get(peer)
        return 0 if state is None else len(state.lists.get(graph, ()))

    def outbox_statistics(self, peer: str) -> OutboxStatistics | None:
        state = self._peers.get(peer)
        return None if state is None else state.outbox.statistics()

    def statistics(self) -> GossipStatistics:
        counted = self._counters
        return GossipStatistics(
            published=counted.published,
            admitted=counted.admitted,
            refused=counted.refused,
            pushed=counted.pushed,
            announced=counted.announced,
            asked=counted.asked,
            given=counted.given,
            given_up=counted.given_up,
            flagged=counted.flagged,
            remembered=self._relays.remembered,
            promises=self._relays.promises,
            asking=len(self._asking),
        )

    # What a frame says

    def _list_changed(self, peer: str, change: ListChange, now_ms: int) -> None:
        state = self._peers[peer]
        listed = state.lists.get(change.graph)
        if listed is None:
            return
        dropped = set(change.removed) & listed
        if change.is_whole:
            dropped |= listed - set(change.added)
        listed -= dropped
        listed |= set(change.added)
        if len(listed) > LIST_MEMBERS_MAX:
            raise RefusedError(Reason.BAD_FRAME, f"a list of {len(listed)} members; {LIST_MEMBERS_MAX} is the most")
        for giver in dropped:
            self._promise_ended(giver, (peer,), now_ms)

    def _announced(self, peer: str, short_id: bytes, now_ms: int) -> None:
        if self._heard_again(short_id, peer):
            return
        if not self._asking.has_room(short_id, peer):
            self._commands[Reconcile(peer, None)] = None
            return
        question = self._asking.announced(short_id, peer, now_ms)
        if question is not None:
            self._ask(question, now_ms)

    def _asked(self, peer: str, short_id: bytes, now_ms: int) -> None:
        known = self._relays.get(short_id)
        if known is None or known.item_id is None or known.graph not in self._peers[peer].lists:
            return
        # No room: he asks again in a second, us or another.
        if self._peers[peer].outbox.push(known.item_id, known.size_bytes, now_ms):
            self._counters.given += 1

    def _heard_again(self, short_id: bytes, peer: str) -> bool:
        """Whether the id is known already. Who spoke of it is told of it no more, not even what is queued."""
        known = self._relays.get(short_id)
        if known is None:
            return False
        self._relays.heard(short_id, peer)
        if peer in self._peers:
            self._peers[peer].outbox.withdraw(known.item_id or short_id)
        return True

    # What we say

    def _push(self, peer: str, graph: bytes, item_id: bytes, size_bytes: int, now_ms: int) -> None:
        if self._peers[peer].outbox.push(item_id, size_bytes, now_ms):
            self._counters.pushed += 1
            self._wake(peer)
        else:
            self._announce(peer, graph, item_id[:SHORT_ID_BYTES], now_ms)

    def _announce(self, peer: str, graph: bytes, short_id: bytes, now_ms: int) -> None:
        if self._peers[peer].outbox.announce(short_id, now_ms):
            self._counters.announced += 1
        else:
            self._peers[peer].outbox.flag(graph, now_ms)
            self._counters.flagged += 1
        self._wake(peer)

    def _ask(self, question: Question, now_ms: int) -> None:
        state = self._peers.get(question.peer)
        if state is None:
            raise BugError(f"a question is due to {question.peer}, who is not connected")
        if state.outbox.ask(question.short_id, now_ms):
            self._counters.asked += 1
            self._wake(question.peer)

    def _give_up(self, one: GivenUp) -> None:
        self._counters.given_up += 1
        self._commands[Reconcile(one.peer, None)] = None

    def _promise_ended(self, giver: bytes, members: Iterable[str], now_ms: int) -> None:
        """Announce what came from `giver` in the last minute to those of `members` passed over for him (rule 5)."""
        for owed in self._relays.ended(giver, members, now_ms):
            if owed.peer in self._members.get(owed.graph, ()):
                self._announce(owed.peer, owed.graph, owed.short_id, now_ms)

    def _settle(self, short_id: bytes) -> tuple[str, ...]:
        """It is wanted no more, and not even asked for if the question has not gone. Who had announced it."""
        announcers = self._asking.settled(short_id)
        for peer in announcers:
            self._peers[peer].outbox.withdraw_ask(short_id)
        return announcers

    def _wake(self, peer: str) -> None:
        self._commands[Wake(peer)] = None

    def _take_commands(self) -> list[Command]:
        commands = list(self._commands)
        self._commands.clear()
        return commands
