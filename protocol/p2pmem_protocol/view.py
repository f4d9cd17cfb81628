"""What a reader sees of a knowledge asset: a function of the set, the head, the time and chain facts.

A version (number and seal) is *visible* at t when a share of it is live and not barred by an earlier end (rule V1), or
when it is published; and no retract hides it (rule V2). Nothing is stored: a view is right at any t, also between two
sweeps of the set.

* Two visible seals of one number are in *conflict*, also of one root: a mark, not a filter (rule V4). Each has its own
  evidence.
* Supersession is per floor: at a floor, those are current that reach it and have the highest number that does. A newer,
  less attested version never hides an attested one.
* Without a floor the current versions at every floor are shown together; those above the best attested one are marked
  as newer and less attested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final, TypeAlias

from p2pmem_protocol.assets import Asset, Version
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, AssetKey, VersionKey
from p2pmem_protocol.records import FOREVER, RetractRecord, SealedRecord
from p2pmem_protocol.trust import Floor, Trust, TrustReport, assess

NO_CONTENT: Final = bytes(32)
"""In place of the hash of content, where everything that names some is known to name other content than was sealed."""


@unique
class Anchored(Enum):
    """What this node knows of a version on a chain: an attribute beside the layer, never part of trust."""

    NO = "no"
    CLAIMED = "claimed"
    CONFIRMED = "confirmed"
    REVERTED = "reverted"


_Place: TypeAlias = tuple[int, bytes]
"""Version number and seal."""


@dataclass(frozen=True, slots=True)
class _Number:
    """What all seals of one version number have in common. `conflicting`: those that count, where they are several."""

    principals: tuple[Address, ...]
    hidden_by: bytes | None
    conflicting: frozenset[bytes]


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


class AssetView:
    """An asset at one instant, highest version first. Versions are judged when they are looked at.

    It reads the set that it was made from: use it before the set changes again.
    """

    __slots__ = ("_made", "_reader", "key", "t_ms")

    def __init__(self, key: AssetKey, t_ms: int, reader: _Reader | None) -> None:
        self.key = key
        self.t_ms = t_ms
        self._reader = reader
        self._made: dict[_Place, VersionView] = {}

    @property
    def versions(self) -> tuple[VersionView, ...]:
        """All that is live, with what is hidden: filter by `is_visible`."""
        return tuple(self._view(place) for place in self._places())

    def version(self, key: VersionKey) -> VersionView | None:
        """One version, without judging the others; None when nothing of it is live."""
        place = _place(key)
        known = self._reader.versions.get(place) if self._reader is not None else None
        return self._view(place) if known is not None and known.key == key else None

    def visible(self) -> Iterator[VersionView]:
        return (version for version in map(self._view, self._places()) if version.is_visible)

    def current(self, floor: Floor) -> tuple[VersionView, ...]:
        """The highest version that reaches `floor`: one, or several seals in conflict, or none."""
        found: list[VersionView] = []
        for version in self.visible():
            if found and version.key.version != found[0].key.version:
                break
            if version.trust.reaches(floor):
                found.append(version)
        return tuple(found)

    def current_at_any_floor(self) -> tuple[VersionView, ...]:
        """What is shown without a floor: each visible version that no higher, at least as well attested one follows.

        Rejected versions are below every floor. The last of the answer is the best attested; what stands before it is
        newer and less attested.
        """
        shown: list[VersionView] = []
        best = best_of_higher = Trust.REJECTED
        number = 0
        for place in self._places():
            if place[0] != number:
                number, best_of_higher = place[0], best
            # Without evidence a version is self-attested, and nothing more need be known of it.
            if best_of_higher >= Trust.SELF_ATTESTED and not self._has_evidence(place):
                continue
            version = self._view(place)
            if version.is_visible and version.trust.level > best_of_higher:
                shown.append(version)
                best = max(best, version.trust.level)
        return tuple(shown)

    def superseded(self, floor: Floor) -> tuple[VersionView, ...]:
        """Visible versions that reach `floor` and are not current there."""
        current = {version.key for version in self.current(floor)}
        return tuple(
            version for version in self.visible() if version.trust.reaches(floor) and version.key not in current
        )

    def _places(self) -> Iterable[_Place]:
        return self._reader.places if self._reader else ()

    def _has_evidence(self, place: _Place) -> bool:
        return self._reader is not None and self._reader.versions[place].evidence is not None

    def _view(self, place: _Place) -> VersionView:
        view = self._made.get(place)
        if view is None:
            assert self._reader is not None
            view = self._made[place] = self._reader.view(place)
        return view


def asset_view(graph_set: GraphSet, key: AssetKey, t_ms: int, facts: ChainFacts | None = None) -> AssetView:
    """The view of one asset at `t_ms`. An asset that is not held has no versions."""
    asset = graph_set.asset(key)
    return AssetView(key, t_ms, _Reader(graph_set, asset, t_ms, facts or {}) if asset else None)


def explain(graph_set: GraphSet, key: VersionKey, t_ms: int) -> TrustReport | None:
    """Everything that stands behind one version's level at `t_ms`, which no chain changes; None when it is not held."""
    view = asset_view(graph_set, key.asset, t_ms).version(key)
    return view.trust if view is not None else None


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


class _Reader:
    """One asset at one instant: what is live, by version number and seal, and what follows for whole numbers."""

    def __init__(self, graph_set: GraphSet, asset: Asset, t_ms: int, facts: ChainFacts) -> None:
        self._graph_set = graph_set
        self._facts = facts
        self.versions: dict[_Place, Version] = {}
        self._live: dict[_Place, list[SealedRecord]] = {}
        for version in asset.versions:
            records = list(version.live(t_ms))
            if records:
                place = _place(version.key)
                self.versions[place] = version
                self._live[place] = records
        self.places = sorted(self._live, key=lambda place: (-place[0], place[1]))
        self._seals: dict[int, list[bytes]] = {}
        for number, seal in self.places:
            self._seals.setdefault(number, []).append(seal)
        self._ends = {place: end for place, records in self._live.items() if (end := _shares_end(records))}
        self._lower_end = self._ends_of_lower()
        # By whom they cover; the owner's by number. There may be as many as versions, so none is looked at for each.
        self._retracts: dict[Address | None, list[RetractRecord]] = {}
        self._moderated: dict[int, RetractRecord] = {}
        self._sort(graph_set.retracts(asset.key))
        # There may be as many seals of one number as versions, so none is looked at for each of the others.
        self._numbers: dict[int, _Number] = {}

    def view(self, place: _Place) -> VersionView:
        version = self.versions[place]
        number = self._number(place[0])
        sealed = self._live[place][0]  # all bear one seal
        bearing = (record for record in self._live[place] if not record.content_is_other)
        bearer = min(bearing, key=lambda record: record.id, default=None)
        ends_at_ms = self._ends.get(place)
        barred = ends_at_ms is not None and self._ends_early(place)
        return VersionView(
            key=version.key,
            subgraph=sealed.subgraph,
            leaves=sealed.leaves,
            previous=sealed.previous,
            content_hash=bearer.content_hash if bearer is not None else NO_CONTENT,
            content_length=bearer.content_length if bearer is not None else 0,
            shares_end_ms=ends_at_ms,
            shared_until_ms=None if barred else ends_at_ms,
            published=self._is_published(place),
            principals=number.principals,
            barred=barred,
            hidden_by=number.hidden_by,
            conflict=place[1] in number.conflicting,
            anchored=self._anchored(version.key),
            trust=self._trust(version, number.principals),
        )

    def _number(self, number: int) -> _Number:
        found = self._numbers.get(number)
        if found is None:
            principals = tuple(sorted({record.principal for record in self._of_number(number)}))
            counting = frozenset(seal for seal in self._seals[number] if self._counts((number, seal)))
            conflicting = counting if len(counting) > 1 else frozenset[bytes]()
            found = self._numbers[number] = _Number(principals, self._hidden_by(number, principals), conflicting)
        return found

    def _ends_of_lower(self) -> dict[int, int]:
        """For each number, the latest end of a share of any lower one."""
        latest = 0
        lower: dict[int, int] = {}
        for number in reversed(self._seals):
            lower[number] = latest
            latest = max([latest, *(self._ends.get((number, seal), 0) for seal in self._seals[number])])
        return lower

    def _ends_early(self, place: _Place) -> bool:
        """Rule V1: shares against shares, each seal by its latest end."""
        return self._ends[place] < self._lower_end[place[0]]

    def _is_published(self, place: _Place) -> bool:
        return any(record.ends_at_ms == FOREVER for record in self._live[place])

    def _of_number(self, number: int) -> Iterator[SealedRecord]:
        for seal in self._seals[number]:
            yield from self._live[number, seal]

    def _sort(self, retracts: Iterable[RetractRecord]) -> None:
        """Anybody may show a delegation, so those of who is no principal here are passed over before any is sorted."""
        covered = {None, *(record.principal for records in self._live.values() for record in records)}
        for retract in sorted((it for it in retracts if it.covers in covered), key=_highest_first):
            if retract.of_own_words or retract.as_principal:
                self._retracts.setdefault(retract.covers, []).append(retract)
            else:
                self._moderated.setdefault(retract.version, retract)

    def _hidden_by(self, number: int, principals: Iterable[Address]) -> bytes | None:
        """Rule V2: of the retracts that hide this number, that of the highest version, at a tie the lowest id."""
        hiding = [self._first_hiding(number, whom) for whom in (None, *principals)]
        found = [it for it in (*hiding, self._moderated.get(number)) if it is not None]
        return min(found, key=_highest_first).id if found else None

    def _first_hiding(self, number: int, whom: Address | None) -> RetractRecord | None:
        """Only those that name this number as their successor are passed by, and each names one."""
        for retract in self._retracts.get(whom, ()):
            if retract.version < number:
                return None
            if number == retract.version or number != retract.successor:
                return retract
        return None

    def _counts(self, place: _Place) -> bool:
        return self._is_published(place) or (place in self._ends and not self._ends_early(place))

    def _anchored(self, key: VersionKey) -> Anchored:
        known = self._facts.get(key)
        if known is not None:
            return known
        return Anchored.CLAIMED if self._graph_set.anchors(key) else Anchored.NO

    def _trust(self, version: Version, principals: tuple[Address, ...]) -> TrustReport:
        rights = self._graph_set.rights
        return assess(
            version.key,
            version.evidence_in_set(),
            principals=principals,
            quorum=rights.roster.quorum if rights else None,
            certificates=rights.certificates.get(version.key, ()) if rights else (),
        )


def _place(key: VersionKey) -> _Place:
    return (key.version, key.seal)


def _highest_first(retract: RetractRecord) -> tuple[int, bytes]:
    return (-retract.version, retract.id)


def _shares_end(records: list[SealedRecord]) -> int | None:
    return max((record.ends_at_ms for record in records if record.kind is Kind.SHARE), default=None)
