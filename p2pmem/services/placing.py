"""Where the versions of an asset stand in the triple store: named graphs, and aggregates for ranges of floors.

At a floor, the current version of an asset is the highest that reaches it. A version is so current at a range of
floors, from one above the best newer version up to its own level. There is one aggregate graph for each context graph,
layer and range, and a floor is the few aggregates whose range holds it: never a list of assets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.names import Address, AssetKey, GraphName
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import AssetView, VersionView

from p2pmem.face import Layer

FLOORS: Final = tuple(level for level in Trust if level is not Trust.REJECTED)


@dataclass(frozen=True, slots=True)
class Placed:
    """One version where it is to stand: its named graph, and the range of floors at which it is current."""

    view: VersionView
    layer: Layer
    graph_iri: str
    low: Trust
    high: Trust


def placements(name: GraphName, view: AssetView) -> Iterator[Placed]:
    """Where the versions of an asset that are current at some floor stand."""
    best = Trust.REJECTED
    shown = view.current_at_any_floor()
    for number in dict.fromkeys(version.key.version for version in shown):
        group = [version for version in shown if version.key.version == number]
        for version in group:
            layer = Layer.PUBLISHED if version.published else Layer.SHARED
            is_first = number == shown[0].key.version
            suffix = "" if is_first else f"@{number}"
            if len(group) > 1 and version is not group[0]:
                suffix = f"@{number}-{version.key.root.hex()[:16]}"
            iri = layer_iri(name, layer, version) + suffix
            yield Placed(version, layer, iri, Trust(best + 1), version.trust.level)
        best = max(best, *(version.trust.level for version in group))


def layer_iri(name: GraphName, layer: Layer, version: VersionView) -> str:
    """The named graph of an asset in its layer."""
    key = version.key
    iri = name.published_iri if layer is Layer.PUBLISHED else name.shared_iri
    return iri(key.author, key.name, version.subgraph)


def aggregate_iri(name: GraphName, layer: Layer, low: Trust, high: Trust) -> str:
    return f"{name.iri}/_view/{layer.value}/{int(low)}-{int(high)}"


def working_iri(name: GraphName) -> str:
    """The aggregate of this node's own drafts."""
    return f"{name.iri}/_view/{Layer.WORKING.value}"


def floor_graphs(name: GraphName, layers: Iterable[Layer], floor: Trust) -> tuple[str, ...]:
    """The aggregates that together are the dataset of one floor."""
    return tuple(
        aggregate_iri(name, layer, low, high)
        for layer in layers
        for low in FLOORS
        for high in FLOORS
        if low <= floor <= high
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
