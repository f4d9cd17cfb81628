"""One context graph in memory: its headers, head, set, and which bytes are held. Fed by the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from p2pmem_protocol.errors import RefusedError, counted
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.holdings import Changes
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, GraphId, GraphName, NetworkId
from p2pmem_protocol.records import SealedRecord, State
from p2pmem_protocol.rights import kept_under
from p2pmem_protocol.roster import Parts, Role, Roster, SignedHeader
from p2pmem_protocol.snapshot import Snapshot, View

from p2pmem.ledger.narrowed import NarrowedSnapshots

SNAPSHOT_REUSED_MS: Final = 2_000
"""How long a snapshot of a large set that keeps changing serves all peers before another is built."""
SNAPSHOT_ALWAYS_NEW: Final = 2_000
"""Below so many items building is cheap, and every change shows at once."""


_Hashes: TypeAlias = set[bytes]


@dataclass(slots=True)
class OnceInAWhile:
    """A snapshot that is built anew after `SNAPSHOT_REUSED_MS`, and not before."""

    _snapshot: Snapshot | None = None
    _built_ms: int = 0

    def get(self, now_ms: int, build: Callable[[], Snapshot]) -> Snapshot:
        if self._snapshot is None or not 0 <= now_ms - self._built_ms < SNAPSHOT_REUSED_MS:
            self._snapshot, self._built_ms = build(), now_ms
        return self._snapshot


@dataclass(slots=True)
class Wanted:
    """Content that is not held: the greatest length said of it, and what names it."""

    length: int = 0
    by: dict[bytes, SealedRecord] = field(default_factory=dict)


@dataclass(slots=True)
class LedgerGraph:
    """What is known of one graph. `head` is the adopted roster: the head of the headers once all its parts are held."""

    name: GraphName
    network: NetworkId
    headers: HeadChain
    set: GraphSet
    joined_ms: int
    parts: dict[bytes, bytes] = field(default_factory=dict)
    head: Roster | None = None
    trouble: str = "no roster is held yet"
    held: _Hashes = field(default_factory=_Hashes)
    """Hashes of content that came through this graph: beside an item, from its members, or sealed here. What another
    graph alone holds is not given here: a hash is no secret, and whoever knows it could ask for the rest."""
    wanted: dict[bytes, Wanted] = field(default_factory=dict)
    """By its hash, content that is named and not held."""
    _snapshot: Snapshot | None = None
    _snapshot_ms: int = 0
    _is_stale: bool = False
    _was_crowded: bool = False
    """Whether somebody was over quota when it was built."""
    _elsewhen: OnceInAWhile = field(default_factory=OnceInAWhile)
    _added: list[tuple[int, bytes]] = field(default_factory=list)
    _narrowed: NarrowedSnapshots = field(default_factory=NarrowedSnapshots)

    @classmethod
    def new(cls, name: GraphName, network: NetworkId, joined_ms: int) -> LedgerGraph:
        return cls(name, network, HeadChain(name.id, network), GraphSet(name.id, network), joined_ms)

    @property
    def id(self) -> GraphId:
        return self.name.id

    def want(self, record: SealedRecord) -> None:
        """Fetch the content that this names. Whoever said a length that is too small hinders nobody."""
        wanted = self.wanted.setdefault(record.content_hash, Wanted())
        wanted.length = max(record.content_length, wanted.length)
        wanted.by[record.id] = record

    def wanting(self, content_hash: bytes) -> list[SealedRecord]:
        """What names this content, which is not held, and is still known. Looks at nothing else."""
        wanted = self.wanted.get(content_hash)
        return [it for it in wanted.by.values() if self.set.record(it.id) is it] if wanted is not None else []

    def missing_attachments(self) -> tuple[tuple[bytes, int], ...]:
        """(hash, length) of content that is named in the set and not held: what is aside is given to nobody."""
        return tuple((it, wanted.length) for it, wanted in self.wanted.items() if self.set.holders(it))

    def forget_unnamed(self, sealed_here: Collection[bytes]) -> list[bytes]:
        """What nothing names any more, in the set or cut by a head, is no longer of this graph: returns what it was.

        What was sealed here stays: who gives it, when it finds room in a quota again, if not its author's node?
        """
        named = {*self.set.contents(), *sealed_here}
        if len(self.set) < self.set.statistics().known:
            cut = (it for it in self.set.known() if it.state is State.CUT and isinstance(it, SealedRecord))
            named.update(it.content_hash for it in cut)
        gone = [content_hash for content_hash in self.held if content_hash not in named]
        self.held.difference_update(gone)
        for content_hash in list(self.wanted):
            if not self.wanting(content_hash):
                del self.wanted[content_hash]
        return gone

    @property
    def head_id(self) -> bytes:
        """The id of the adopted head, empty when there is none."""
        return self.head.id if self.head else b""

    @property
    def stand(self) -> bytes:
        """What tells peers apart that know other rosters: the head, and where it is forked also by which branches.

        Of a fork the head is the parent, so whoever has seen neither branch has the same head and must hear of it too.
        """
        state = self.headers.head()
        return keccak256(self.head_id + b"".join(state.branches)) if state.forked else self.head_id

    def is_member(self, agent: Address) -> bool:
        return self.head is not None and (agent in self.head.body.by_address or agent == self.head.header.owner)

    def roles_of(self, agent: Address) -> Role:
        return self.head.body.roles_of(agent) if self.head else Role(0)

    def label_of(self, agent: Address) -> str:
        member = self.head.body.by_address.get(agent) if self.head else None
        return member.label if member else ""

    def missing_parts(self) -> tuple[bytes, ...]:
        """Parts of the head of the headers that are not held."""
        state = self.headers.head()
        if state.header is None:
            return ()
        return tuple(part for part in state.header.header.part_hashes if part not in self.parts)

    def next_head(self) -> Roster | None:
        """The head of the headers joined with its parts, when all are held and it is not adopted yet.

        Sets `trouble` to what stands in the way, in words. Raises `RefusedError` when a part is not what it should be.
        """
        state = self.headers.head()
        self.trouble = state.why if state.forked or state.header is None else ""
        if state.header is None or state.header.id == self.head_id:
            return None
        missing = self.missing_parts()
        if missing:
            self.trouble = f"not held yet of the newest roster: {counted(len(missing), 'part')}; waiting for a member"
            return None
        try:
            return self._joined(state.header)
        except RefusedError as refused:
            self.trouble = f"the newest roster does not hold together: {refused}"
            raise

    def is_judged_otherwise(self) -> bool:
        """Whether the headers say now of the adopted head what they did not when the set was judged under it."""
        if self.headers.head().forked != self.set.is_forked:
            return True
        rights = self.set.rights
        if rights is None or not rights.roster.body.certificates:
            return False
        return kept_under(rights.roster, self.headers.quorums_of(rights.roster.id)) != rights.certificates

    def newest_whole(self) -> Roster | None:
        """After a start: the newest roster on the way to the head whose parts are held.

        That is the head, unless the node stopped between a header and its parts. Without a roster it would be nobody's
        member, nobody would talk to it, and it could never fetch them.
        """
        signed = self.headers.head().header
        while signed is not None:
            if all(part in self.parts for part in signed.header.part_hashes):
                return self._joined(signed)
            signed = self.headers.get(signed.header.parent)
        return None

    def _joined(self, signed: SignedHeader) -> Roster:
        members, limits, kept, certificates = (self.parts[part] for part in signed.header.part_hashes)
        return Roster.join(signed, Parts(members, limits, kept, certificates))

    def changed(self, changes: Changes) -> None:
        """Note how the set is no longer what the last snapshot shows.

        Mostly something came. That is added to the snapshot when it is asked for next; what ended needs no change,
        since a view leaves out what has ended. For everything else another snapshot is built.
        """
        if self._snapshot is None or self._is_stale:
            return
        if (
            self._was_crowded
            or changes.aside
            or any(departure.state is not State.EXPIRED for departure in changes.left)
        ):
            self._is_stale = True
            return
        for item_id in changes.entered:
            place = self.set.place_of(item_id)
            if place is None:
                self._is_stale = True
                return
            self._added.append((place, item_id))

    def snapshot(self, t_ms: int, now_ms: int) -> Snapshot:
        """The reconciled set around `t_ms`: one value that serves all peers.

        To build it takes some 2 us for each item. So of a large set that changes in other ways than by growing there is
        a new one every two seconds only. These are counted by `now_ms`, this node's own clock: `t_ms` peers have a say
        in, minutes away from it. For the same reason what is built for one peer must be right for all: it is never
        built for a later time than now, because a view leaves out what ends before it, and cannot bring it back. While
        somebody is over quota, what counts a minute from now is another thing every moment. Then who names another
        time is served from a snapshot of its own, that all such peers share.
        """
        crowded, last = self.set.is_crowded, self._snapshot
        if crowded and abs(t_ms - now_ms) > SNAPSHOT_REUSED_MS:
            return self._elsewhen.get(now_ms, lambda: Snapshot.build(self.set.reconciled(t_ms)))
        if last is not None and not self._is_stale and not crowded and not self._was_crowded:
            if self._added:
                last = self._snapshot = last.changed(add=self._added)
                self._added = []
            return last
        age_ms = now_ms - self._snapshot_ms
        is_fresh = len(self.set) > SNAPSHOT_ALWAYS_NEW and 0 <= age_ms < SNAPSHOT_REUSED_MS
        if crowded and self._was_crowded and not self._is_stale:
            is_fresh = 0 <= age_ms < min(len(self.set), SNAPSHOT_REUSED_MS)
        if last is None or not is_fresh:
            last = self._snapshot = Snapshot.build(self.set.reconciled(t_ms if crowded else min(t_ms, now_ms)))
            self._snapshot_ms = now_ms
            self._added = []
            self._is_stale, self._was_crowded = False, crowded
        return last

    def view(self, agreed_ms: int, now_ms: int) -> View:
        """What is reconciled with a peer that knows all kinds."""
        return self.snapshot(agreed_ms, now_ms).view(agreed_ms)

    def view_of(self, kinds: Collection[int], agreed_ms: int, now_ms: int) -> View | None:
        """What is reconciled with a peer that knows `kinds`; None when too many parts of the kinds are asked for."""
        known = frozenset(kind for kind in Kind if int(kind) in kinds)
        if len(known) == len(Kind):
            return self.view(agreed_ms, now_ms)
        at_ms = min(agreed_ms, now_ms)
        if self.set.is_crowded:
            at_ms = max(at_ms, now_ms - SNAPSHOT_REUSED_MS)
        snapshot = self._narrowed.get(known, now_ms, lambda: Snapshot.build(self.set.reconciled(at_ms, known)))
        return snapshot.view(agreed_ms) if snapshot is not None else None
