"""What is known of a context graph: records, where each stands, and the indexes that follow from that.

Every change of state goes through `_move`, which keeps the indexes right and notes what the running call has changed.
What is decided, and why, is in `graphset`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappush

from p2pmem_protocol.accounts import Account
from p2pmem_protocol.assets import Asset, Index, Version
from p2pmem_protocol.bodies import RetractMode
from p2pmem_protocol.limits import CUT_KEPT_ASIDE_MS
from p2pmem_protocol.names import Address, AssetKey, VersionKey
from p2pmem_protocol.records import (
    FOREVER,
    AckRecord,
    AnchorRecord,
    EvidenceRecord,
    ProposeRecord,
    Record,
    RetractRecord,
    RevokeRecord,
    SealedRecord,
    State,
)


@dataclass(frozen=True, slots=True)
class Departure:
    """A known thing and where it stands now: aside (CUT, OVER, LONE) or gone for good."""

    id: bytes
    state: State


@dataclass(frozen=True, slots=True)
class Changes:
    """What one call changed.

    `entered`: now in the set. `left`: were in the set, are aside or gone. `aside`: were aside before, and stand aside
    for another cause or are gone. `assets`: whose view may have changed.
    """

    entered: tuple[bytes, ...] = ()
    left: tuple[Departure, ...] = ()
    aside: tuple[Departure, ...] = ()
    assets: frozenset[AssetKey] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.entered or self.left or self.aside or self.assets)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts, for people and for tests."""

    known: int
    in_set: int
    aside: int
    assets: int
    principals: int
    settled: int


class Holdings:
    """Records by id, and everything that can be looked up in them."""

    def __init__(self) -> None:
        self._records: dict[bytes, Record] = {}
        self._accounts: dict[Address, Account] = {}
        self._assets: dict[AssetKey, Asset] = {}
        self._retracts: Index[AssetKey, RetractRecord] = Index()
        self._erasers: Index[tuple[AssetKey, int, Address | None], RetractRecord] = Index()
        self._anchors: Index[VersionKey, AnchorRecord] = Index()
        self._proposals: Index[VersionKey, ProposeRecord] = Index()
        self._acks: Index[bytes, AckRecord] = Index()
        self._peer_revokes: Index[tuple[Address, str], RevokeRecord] = Index()
        self.revocations_changed = 0
        """How often one came into the set or left it: as long as it is the same, so is what is revoked."""
        self._contents: dict[bytes, int] = {}
        self._expiries: list[tuple[int, bytes]] = []
        self._asides: list[tuple[int, bytes]] = []
        self._in_set = 0
        self._settled = 0
        # What the running call has touched; empty between calls.
        self._before: dict[bytes, tuple[Record, State]] = {}
        self._touched: dict[VersionKey, Version] = {}
        self._erased: set[tuple[AssetKey, int]] = set()
        self._changed: set[AssetKey] = set()

    # Reading

    def __len__(self) -> int:
        return self._in_set

    def __contains__(self, item_id: bytes) -> bool:
        record = self._records.get(item_id)
        return record is not None and record.state is State.IN

    def state_of(self, item_id: bytes) -> State | None:
        """Where a known thing stands; None for what is not known."""
        record = self._records.get(item_id)
        return record.state if record else None

    def record(self, item_id: bytes) -> Record | None:
        return self._records.get(item_id)

    def records(self) -> Iterator[Record]:
        """Everything that is in the set, in no order."""
        return (record for record in self._records.values() if record.state is State.IN)

    def known(self) -> Iterator[Record]:
        """Everything that is known, in the set or aside."""
        return iter(self._records.values())

    def assets(self) -> Iterator[AssetKey]:
        return iter(self._assets)

    def asset(self, key: AssetKey) -> Asset | None:
        return self._assets.get(key)

    def version(self, key: VersionKey) -> Version | None:
        asset = self._assets.get(key.asset)
        return asset.get(key) if asset else None

    def retracts(self, key: AssetKey) -> Collection[RetractRecord]:
        return self._retracts[key]

    def anchors(self, key: VersionKey) -> Collection[AnchorRecord]:
        return self._anchors[key]

    def proposals(self, key: VersionKey) -> Collection[ProposeRecord]:
        return self._proposals[key]

    def proposed(self) -> Iterable[VersionKey]:
        """Every version that somebody asked to have verified."""
        return self._proposals.keys()

    def acks(self, root: bytes) -> Collection[AckRecord]:
        return self._acks[root]

    def revoked_peer_serial(self, agent: Address, peer: str) -> int:
        """Credentials of `agent` for `peer` with a serial not above this one are void; 0 when none was revoked."""
        revokes = self._peer_revokes[agent, peer]
        # Asked for each session whenever anything is told, and nearly always there are none.
        return max(record.revoked_serial for record in revokes) if revokes else 0

    def contents(self) -> Iterable[bytes]:
        """Hashes of the content that a member must hold: that of every share and publish in the set."""
        return self._contents.keys()

    def holders(self, content_hash: bytes) -> int:
        """How many shares and publishes in the set have this content; at 0 its bytes may go (rule V3)."""
        return self._contents.get(content_hash, 0)

    def statistics(self) -> Statistics:
        """Counts. `settled` is how often a whole account was decided again: the expensive step."""
        known = len(self._records)
        return Statistics(
            known, self._in_set, known - self._in_set, len(self._assets), len(self._accounts), self._settled
        )

    # Changing

    def _begin(self) -> None:
        self._before.clear()
        self._touched.clear()
        self._erased.clear()
        self._changed.clear()

    def _collect(self) -> Changes:
        """The net of what the running call has changed."""
        entered: list[bytes] = []
        left: list[Departure] = []
        aside: list[Departure] = []
        for item_id, (record, before) in self._before.items():
            if record.state is before:
                continue
            if record.state is State.IN:
                entered.append(item_id)
            elif before is State.IN:
                left.append(Departure(item_id, record.state))
            else:
                aside.append(Departure(item_id, record.state))
            self._changed.update(_assets_of(record))
            if record.state.gone:
                self._discard_if_empty(record.principal)
        changes = Changes(tuple(entered), tuple(left), tuple(aside), frozenset(self._changed))
        self._begin()
        return changes

    def _place(self, record: Record) -> None:
        """Make a new record known."""
        self._records[record.id] = record
        if isinstance(record, EvidenceRecord):
            version = self._version_of(record.subject)
            record.subject = version.key
            version.add_evidence(record)
            return
        account = self._accounts.get(record.principal)
        if account is None:
            account = self._accounts[record.principal] = Account(record.principal)
        if isinstance(record, RetractRecord | RevokeRecord):
            account.cuts[record.id] = record
            return
        record.principal = account.principal
        if record.author == record.principal:
            record.author = record.principal
        account.by_agent.setdefault(record.author, {})[record.id] = record
        if record.ends_at_ms != FOREVER:
            heappush(self._expiries, (record.ends_at_ms, record.id))
        if isinstance(record, SealedRecord):
            key = record.key
            version = self._version_of(VersionKey(record.author, key.name, key.version, key.root, key.seal))
            record.key = version.key
            version.add_sealed(record)

    def _move(self, record: Record, state: State, t_ms: int) -> None:
        before = record.state
        if before is state:
            return
        self._before.setdefault(record.id, (record, before))
        record.state = state
        if before is State.IN:
            self._leave(record)
        if state is State.IN:
            self._enter(record)
        elif state is State.CUT:
            record.since_ms = t_ms
            heappush(self._asides, (t_ms + CUT_KEPT_ASIDE_MS, record.id))
        elif state.gone:
            self._drop(record)

    def _enter(self, record: Record) -> None:
        self._in_set += 1
        match record:
            case SealedRecord():
                self._contents[record.content_hash] = self._contents.get(record.content_hash, 0) + 1
                version = self._version_of(record.key)
                version.present += 1
                if version.present == 1:
                    self._touched[version.key] = version
            case RetractRecord():
                self._retracts.add(record.asset, record)
                if record.mode is RetractMode.ERASE:
                    taken_back = (record.asset, record.version, record.covers)
                    # Where another one says the same, all that it covers has gone by now.
                    if not self._erasers[taken_back]:
                        self._erased.add((record.asset, record.version))
                    self._erasers.add(taken_back, record)
            case RevokeRecord():
                self.revocations_changed += 1
                if record.peer is not None:
                    self._peer_revokes.add((record.author, record.peer), record)
            case AnchorRecord():
                for subject in set(record.subjects):
                    self._anchors.add(subject, record)
            case ProposeRecord():
                self._proposals.add(record.subject, record)
            case AckRecord():
                self._acks.add(record.root, record)

    def _leave(self, record: Record) -> None:
        self._in_set -= 1
        match record:
            case SealedRecord():
                left = self._contents[record.content_hash] - 1
                if left:
                    self._contents[record.content_hash] = left
                else:
                    del self._contents[record.content_hash]
                version = self._version_of(record.key)
                version.present -= 1
                if version.present == 0:
                    self._touched[version.key] = version
            case RetractRecord():
                self._retracts.discard(record.asset, record)
                if record.mode is RetractMode.ERASE:
                    self._erasers.discard((record.asset, record.version, record.covers), record)
            case RevokeRecord():
                self.revocations_changed += 1
                if record.peer is not None:
                    self._peer_revokes.discard((record.author, record.peer), record)
            case AnchorRecord():
                for subject in set(record.subjects):
                    self._anchors.discard(subject, record)
            case ProposeRecord():
                self._proposals.discard(record.subject, record)
            case AckRecord():
                self._acks.discard(record.root, record)

    def _drop(self, record: Record) -> None:
        """Make a record unknown."""
        del self._records[record.id]
        if isinstance(record, EvidenceRecord):
            self._version_of(record.subject).discard_evidence(record)
            return
        account = self._accounts[record.principal]
        if isinstance(record, RetractRecord | RevokeRecord):
            del account.cuts[record.id]
        else:
            records = account.by_agent[record.author]
            records.pop(record.id, None)
            if not records:
                del account.by_agent[record.author]
        if isinstance(record, SealedRecord):
            version = self._version_of(record.key)
            version.discard_sealed(record)
            if not version.sealed:
                self._touched[version.key] = version

    def _discard_if_empty(self, principal: Address) -> None:
        account = self._accounts.get(principal)
        if account is not None and account.is_empty:
            del self._accounts[principal]

    def _version_of(self, key: VersionKey) -> Version:
        """The version, made when nothing of it is known yet."""
        asset_key = key.asset
        asset = self._assets.get(asset_key)
        if asset is None:
            asset = self._assets[asset_key] = Asset(asset_key)
        version = asset.get(key)
        if version is None:
            version = Version(key)
            asset.add(version)
        return version

    def _discard_version(self, version: Version) -> None:
        asset = self._assets.get(version.key.asset)
        if asset is not None:
            asset.discard(version)
            if not asset.versions:
                del self._assets[asset.key]


def _assets_of(record: Record) -> tuple[AssetKey, ...]:
    match record:
        case SealedRecord():
            return (record.key.asset,)
        case RetractRecord():
            return (record.asset,)
        case EvidenceRecord() | ProposeRecord():
            return (record.subject.asset,)
        case AnchorRecord():
            return tuple(subject.asset for subject in record.subjects)
    return ()
