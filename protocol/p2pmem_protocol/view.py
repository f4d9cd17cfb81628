"""What a reader sees of a knowledge asset: a function of the set, the head, the time and chain facts.

A version (number and root) is *visible* at t when a share of it is live and not barred by an earlier end (rule V1), or
when it is published; and no retract hides it (rule V2). Nothing is stored: a view is right at any t, also between two
sweeps of the set.

* Two visible roots of one number are in *conflict*: a mark, not a filter (rule V4).
* Supersession is per floor: at a floor, those roots are current that reach it and have the highest number that does. A
  newer, less attested version never hides an attested one.
* Without a floor the current versions at every floor are shown together; those above the best attested one are marked
  as newer and less attested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, unique

from p2pmem_protocol.assets import Version
from p2pmem_protocol.graphset import GraphSet, covers
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, AssetKey, VersionKey
from p2pmem_protocol.records import FOREVER, RetractRecord, SealedRecord
from p2pmem_protocol.roster import KeptCertificate
from p2pmem_protocol.trust import Floor, Trust, TrustReport, assess


@unique
class Anchored(Enum):
    """What this node knows of a version on a chain: an attribute beside the layer, never part of trust."""

    NO = "no"
    CLAIMED = "claimed"
    CONFIRMED = "confirmed"
    REVERTED = "reverted"


ChainFacts = Mapping[VersionKey, Anchored]
"""What this node's own look at the chain says: CONFIRMED or REVERTED. An anchor in the set alone is a claim."""


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version at one instant.

    `shares_end_ms`: the latest end of its live shares, None without any. `shared_until_ms`: the same, but None when the
    version is `barred`: a lower version's shares end later, so that it does not count as shared (rule V1). `hidden_by`:
    the retract that hides it, if any.
    """

    key: VersionKey
    subgraph: str
    leaves: int
    previous: bytes
    content_hash: bytes
    content_length: int
    shares_end_ms: int | None
    shared_until_ms: int | None
    published: bool
    principals: tuple[Address, ...]
    barred: bool
    hidden_by: bytes | None
    conflict: bool
    anchored: Anchored
    trust: TrustReport

    @property
    def is_visible(self) -> bool:
        return self.hidden_by is None and (self.shared_until_ms is not None or self.published)

    @property
    def lives_until_ms(self) -> int | None:
        """When it stops being readable by itself; None for what is published."""
        return None if self.published else self.shared_until_ms


@dataclass(frozen=True, slots=True)
class AssetView:
    """An asset at one instant, highest version first. `versions` includes what is hidden: filter by `is_visible`."""

    key: AssetKey
    t_ms: int
    versions: tuple[VersionView, ...]

    def visible(self) -> Iterator[VersionView]:
        return (version for version in self.versions if version.is_visible)

    def current(self, floor: Floor) -> tuple[VersionView, ...]:
        """The highest version that reaches `floor`: one, or several roots in conflict, or none."""
        reaching = [version for version in self.visible() if version.trust.reaches(floor)]
        return tuple(version for version in reaching if version.key.version == reaching[0].key.version)

    def current_at_any_floor(self) -> tuple[VersionView, ...]:
        """What is shown without a floor: each visible version that no higher, at least as well attested one follows.

        Rejected versions are below every floor. The last of the answer is the best attested; what stands before it is
        newer and less attested.
        """
        shown: list[VersionView] = []
        best = Trust.REJECTED
        numbered: list[VersionView] = []
        for version in self.visible():
            if numbered and version.key.version != numbered[0].key.version:
                best = max([best, *(each.trust.level for each in numbered)])
                numbered = []
            if version.trust.level > best:
                shown.append(version)
                numbered.append(version)
        return tuple(shown)

    def superseded(self, floor: Floor) -> tuple[VersionView, ...]:
        """Visible versions that reach `floor` and are not current there."""
        current = {version.key for version in self.current(floor)}
        return tuple(
            version for version in self.visible() if version.trust.reaches(floor) and version.key not in current
        )


def asset_view(graph_set: GraphSet, key: AssetKey, t_ms: int, facts: ChainFacts | None = None) -> AssetView:
    """The view of one asset at `t_ms`. An asset that is not held has no versions."""
    asset = graph_set.asset(key)
    if asset is None:
        return AssetView(key, t_ms, ())
    versions = {(version.key.version, version.key.root): version for version in asset.versions}
    live = {place: records for place, version in versions.items() if (records := list(version.live(t_ms)))}
    shared = {place: end for place, records in live.items() if (end := _shared_until(records))}
    reader = _Reader(graph_set, key, versions, live, shared, facts or {})
    views = [reader.view(place) for place in sorted(live, key=lambda place: (-place[0], place[1]))]
    return AssetView(key, t_ms, tuple(views))


def explain(graph_set: GraphSet, key: VersionKey, t_ms: int, facts: ChainFacts | None = None) -> TrustReport | None:
    """Everything that stands behind one version's level at `t_ms`; None when it is not held."""
    view = asset_view(graph_set, key.asset, t_ms, facts)
    return next((version.trust for version in view.versions if version.key == key), None)


def copies(graph_set: GraphSet, root: bytes, t_ms: int) -> dict[Address, int]:
    """Who promised to hold the content under `root`, and until when: the furthest date of each counts (rule A1)."""
    promised: dict[Address, int] = {}
    for ack in graph_set.acks(root):
        if t_ms < ack.ends_at_ms:
            promised[ack.author] = max(ack.ends_at_ms, promised.get(ack.author, 0))
    return promised


def deadline(graph_set: GraphSet, key: VersionKey, t_ms: int) -> int | None:
    """Until when somebody asks to have this version verified: the furthest live deadline, or None (rule A2)."""
    live = [proposal.ends_at_ms for proposal in graph_set.proposals(key) if t_ms < proposal.ends_at_ms]
    return max(live, default=None)


def _shared_until(records: list[SealedRecord]) -> int | None:
    return max((record.ends_at_ms for record in records if record.kind is Kind.SHARE), default=None)


@dataclass(frozen=True, slots=True)
class _Reader:
    """One asset at one instant, by (number, root): live shares and publishes, and the latest end of the shares."""

    graph_set: GraphSet
    asset: AssetKey
    versions: Mapping[tuple[int, bytes], Version]
    live: Mapping[tuple[int, bytes], list[SealedRecord]]
    shared: Mapping[tuple[int, bytes], int]
    facts: ChainFacts

    def view(self, place: tuple[int, bytes]) -> VersionView:
        version = self.versions[place]
        records = self.live[place]
        first = min(records, key=lambda record: record.id)
        ends_at_ms = self.shared.get(place)
        barred = ends_at_ms is not None and self._ends_early(place)
        return VersionView(
            key=version.key,
            subgraph=first.subgraph,
            leaves=first.leaves,
            previous=first.previous,
            content_hash=first.content_hash,
            content_length=first.content_length,
            shares_end_ms=ends_at_ms,
            shared_until_ms=None if barred else ends_at_ms,
            published=self._is_published(place),
            principals=self._principals(place[0]),
            barred=barred,
            hidden_by=self._hidden_by(place),
            conflict=self._conflicts(place),
            anchored=self._anchored(version.key),
            trust=self._trust(version),
        )

    def _is_published(self, place: tuple[int, bytes]) -> bool:
        return any(record.ends_at_ms == FOREVER for record in self.live[place])

    def _ends_early(self, place: tuple[int, bytes]) -> bool:
        """Rule V1: shares against shares, each root by its latest end."""
        ends_at_ms = self.shared[place]
        return any(other[0] < place[0] and ends_at_ms < end for other, end in self.shared.items())

    def _hidden_by(self, place: tuple[int, bytes]) -> bytes | None:
        hiding = [retract.id for retract in self.graph_set.retracts(self.asset) if self._hides(retract, place)]
        return min(hiding, default=None)

    def _hides(self, retract: RetractRecord, place: tuple[int, bytes]) -> bool:
        number = place[0]
        if not any(covers(retract, record) for record in self._all_roots(number)):
            return False
        if number == retract.version:
            return True
        moderation = not retract.of_own_words and not retract.as_principal
        return not moderation and number < retract.version and number != retract.successor

    def _all_roots(self, number: int) -> Iterator[SealedRecord]:
        for place, records in self.live.items():
            if place[0] == number:
                yield from records

    def _counts(self, place: tuple[int, bytes]) -> bool:
        return self._is_published(place) or (place in self.shared and not self._ends_early(place))

    def _conflicts(self, place: tuple[int, bytes]) -> bool:
        return any(
            other[0] == place[0] and other != place and self._counts(other) and self._counts(place)
            for other in self.live
        )

    def _principals(self, number: int) -> tuple[Address, ...]:
        return tuple(sorted({record.principal for record in self._all_roots(number)}))

    def _anchored(self, key: VersionKey) -> Anchored:
        known = self.facts.get(key)
        if known is not None:
            return known
        return Anchored.CLAIMED if self.graph_set.anchors(key) else Anchored.NO

    def _trust(self, version: Version) -> TrustReport:
        head = self.graph_set.head
        return assess(
            version.key,
            version.evidence_in_set(),
            principals=self._principals(version.key.version),
            quorum=head.quorum if head else None,
            certificates=self._certificates(version.key),
        )

    def _certificates(self, key: VersionKey) -> Collection[KeptCertificate]:
        rights = self.graph_set.rights
        return rights.certificates.get(key, ()) if rights else ()
