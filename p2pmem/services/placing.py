"""Where the versions of an asset stand in the triple store: named graphs, and aggregates for ranges of floors.

At a floor, the current version of an asset is the highest that reaches it. A version is so current at a range of
floors, from one above the best newer version up to its own level. There is one aggregate graph for each context graph,
layer and range, and a floor is the few aggregates whose range holds it: never a list of assets.

A floor may also ask for a least M. Nearly every version stands under the head's quorum, so that asks for all of them or
none. Where an asset has a version that the head keeps as verified under an earlier quorum with another M, its versions
stand once for each range of M in which they are current, in aggregates that name that range.

Of several seals of one version number, the best attested has the name of the asset for its named graph; the others have
their seal in theirs, in full: an author could make two with an equal beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from p2pmem_protocol.names import Address, AssetKey, GraphName
from p2pmem_protocol.trust import Floor, Trust, TrustReport
from p2pmem_protocol.view import AssetView, VersionView

from p2pmem.face import Layer
from p2pmem.ledger.graph import LedgerGraph

MRange: TypeAlias = tuple[int, int]
FLOORS: Final = tuple(level for level in Trust if level is not Trust.REJECTED)


@dataclass(frozen=True, slots=True)
class Placed:
    """One version where it is to stand: its named graph, and the range of floors at which it is current."""

    view: VersionView
    layer: Layer
    graph_iri: str
    low: Trust
    high: Trust
    m_range: MRange | None = None
    """The least M from which and up to which it is current so; None: whatever the head's quorum has."""


def placements(graph: LedgerGraph, view: AssetView) -> Iterator[Placed]:
    """Where the versions of an asset that are current at some floor stand."""
    if not _has_another_m(graph, view.key):
        yield from _placements(graph.name, view.current_at_any_floor(), None)
        return
    visible = tuple(view.visible())
    low = 0
    for value in sorted({version.trust.m for version in visible}):
        reaching = (version for version in visible if version.trust.m >= value)
        yield from _placements(graph.name, _current_at_any_floor(reaching), (low, value))
        low = value + 1


def _has_another_m(graph: LedgerGraph, key: AssetKey) -> bool:
    """Whether the head keeps a certificate for a version of this asset under a quorum with another M than its own."""
    asset, rights = graph.set.asset(key), graph.set.rights
    if asset is None or rights is None or not rights.certificates:
        return False
    kept = (each for version in asset.versions for each in rights.certificates.get(version.key, ()))
    return any(each.quorum.m != head_m(graph) for each in kept)


def _current_at_any_floor(versions: Iterable[VersionView]) -> tuple[VersionView, ...]:
    """As `AssetView.current_at_any_floor`, of some of its visible versions."""
    shown: list[VersionView] = []
    best = best_of_higher = Trust.REJECTED
    number = 0
    for version in versions:
        if version.key.version != number:
            number, best_of_higher = version.key.version, best
        if version.trust.level > best_of_higher:
            shown.append(version)
            best = max(best, version.trust.level)
    return tuple(shown)


def _placements(name: GraphName, shown: tuple[VersionView, ...], m_range: MRange | None) -> Iterator[Placed]:
    best = Trust.REJECTED
    of_range = "" if m_range is None else f"@m{m_range[0]}-{m_range[1]}"
    for number in dict.fromkeys(version.key.version for version in shown):
        group = sorted((version for version in shown if version.key.version == number), key=newest_best_first)
        is_first = number == shown[0].key.version
        for version in group:
            iri = version_iri(name, version, is_best=version is group[0])
            suffix = "" if is_first or version is not group[0] else f"@{number}"
            yield Placed(
                version, layer_of(version), iri + suffix + of_range, Trust(best + 1), version.trust.level, m_range
            )
        best = max(best, *(version.trust.level for version in group))


def newest_best_first(it: VersionView) -> tuple[int, bool, int, int, bytes]:
    """To put versions in order: of seals in conflict the best attested comes first."""
    return -it.key.version, not it.is_visible, -it.trust.level, -it.trust.m, it.key.seal


def layer_of(version: VersionView) -> Layer:
    return Layer.PUBLISHED if version.published else Layer.SHARED


def version_iri(name: GraphName, version: VersionView, *, is_best: bool) -> str:
    """The named graph of a version in its layer. `is_best`: no seal of its number is better attested."""
    key = version.key
    iri = name.published_iri if version.published else name.shared_iri
    plain = iri(key.author, key.name, version.subgraph)
    return plain if is_best else f"{plain}@{key.version}-{key.seal.hex()}"


def aggregate_iri(name: GraphName, layer: Layer, low: Trust, high: Trust, m_range: MRange | None = None) -> str:
    plain = f"{name.iri}/_view/{layer.value}/{int(low)}-{int(high)}"
    return plain if m_range is None else f"{plain}/m{m_range[0]}-{m_range[1]}"


def best_report(view: AssetView) -> TrustReport | None:
    """What stands behind the best attested version that is visible."""
    reports = (version.trust for version in view.visible())
    return max(reports, key=lambda report: (report.level, report.m, len(report.approvals)), default=None)


def head_m(graph: LedgerGraph) -> int:
    """M of the head's quorum, 0 without one."""
    return graph.head.quorum.m if graph.head is not None else 0


def _m_ranges(graph: LedgerGraph, least_m: int) -> Iterator[MRange | None]:
    """The ranges of M that hold `least_m`, of all that an asset of this graph may have."""
    if least_m <= head_m(graph):
        yield None
    kept = graph.head.body.certificates if graph.head is not None else ()
    values = sorted({head_m(graph), *(it.quorum.m for it in kept)})
    if len(values) > 1:
        lows = (0, *(value + 1 for value in values))
        yield from ((low, high) for low in lows for high in values if low <= least_m <= high)


def working_iri(name: GraphName) -> str:
    """The aggregate of this node's own drafts."""
    return f"{name.iri}/_view/{Layer.WORKING.value}"


def floor_graphs(graph: LedgerGraph, layers: Iterable[Layer], floor: Floor) -> tuple[str, ...]:
    """The aggregates that together are the dataset of one floor."""
    ranges = tuple(_m_ranges(graph, floor.least_m))
    return tuple(
        aggregate_iri(graph.name, layer, low, high, m_range)
        for layer in layers
        for low in FLOORS
        for high in FLOORS
        if low <= floor.level <= high
        for m_range in ranges
    )


def asset_of(graph_iri: str, graphs: dict[str, GraphName]) -> tuple[GraphName, AssetKey] | None:
    """Which asset a named graph of the store belongs to, when it is one of `graphs`."""
    for mark in ("/_shared_memory/", "/_verifiable_memory/", "/assertion/"):
        before, found, after = graph_iri.partition(mark)
        if not found:
            continue
        # The IRI of a graph is two path segments; what is between it and the mark is the sub-graph.
        creator, _, rest = before.partition("/")
        name = graphs.get(f"{creator}/{rest.partition('/')[0]}")
        author, _, asset = after.partition("/")
        if name is not None:
            return name, AssetKey(Address.parse(author), asset.partition("@")[0])
    return None
