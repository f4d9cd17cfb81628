"""What the projections hold: the named graphs of each asset, and how the ones that changed last stand.

There is a line for every asset for as long as the node runs, so a line has to be small. The IRI of a named graph says
mostly what is known without it: graph, author and name. What is left is the same for nearly all assets, and one tuple
of it serves them all. How a graph stands is only there to spare writing what is written already: it is kept of the
assets that changed last, and of the others everything is written again when they change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from p2pmem_protocol.names import AssetKey, GraphId, GraphName

from p2pmem.face import Layer

STANDS_MAX: Final = 5_000
"""Assets of which it is known how they stand; some 500 bytes each."""


@dataclass(frozen=True, slots=True)
class Stands:
    """What the projections hold for one named graph: equal means that nothing is to be written."""

    aggregate: str
    content_hash: bytes
    version: int
    seal: bytes
    layer: Layer
    level: int
    expires_at_ms: int

    def is_stored_as(self, other: Stands | None) -> bool:
        return other is not None and (self.aggregate, self.content_hash) == (other.aggregate, other.content_hash)

    def reads_as(self, other: Stands | None) -> bool:
        """Whether the full text is the same, and how it is filed but for level and end."""
        if other is None:
            return False
        mine, theirs = ((it.content_hash, it.version, it.seal, it.layer) for it in (self, other))
        return mine == theirs


Graphs = Mapping[str, Stands | None]
"""The named graphs of an asset by their IRIs. None: it is there, and how it stands is not known any more."""


@dataclass(slots=True)
class _InGraph:
    name: GraphName
    places: dict[AssetKey, tuple[str, ...]] = field(default_factory=dict)


class PlacedGraphs:
    """The table. Who calls it is the one who writes the projections."""

    def __init__(self, stands_max: int = STANDS_MAX) -> None:
        self._stands_max = stands_max
        self._graphs: dict[GraphId, _InGraph] = {}
        self._stands: OrderedDict[tuple[GraphId, AssetKey], Graphs] = OrderedDict()
        self._same: dict[tuple[str, ...], tuple[str, ...]] = {}

    def __len__(self) -> int:
        """Assets that have named graphs."""
        return sum(len(graph.places) for graph in self._graphs.values())

    def clear(self) -> None:
        self._graphs.clear()
        self._stands.clear()
        self._same.clear()

    def get(self, graph: GraphId, key: AssetKey) -> Graphs:
        """The named graphs of an asset; none of one that is not placed."""
        known = self._stands.get((graph, key))
        if known is not None:
            return known
        found = self._graphs.get(graph)
        if found is None:
            return {}
        return {_iri(found.name, key, place): None for place in found.places.get(key, ())}

    def put(self, name: GraphName, key: AssetKey, graphs: Graphs) -> None:
        """From now on these are the named graphs of an asset: all of them, none for one that is gone."""
        self._stands.pop((name.id, key), None)
        if not graphs:
            self._discard(name.id, key)
            return
        self._note(name, key, graphs)
        self._stands[name.id, key] = graphs
        while len(self._stands) > self._stands_max:
            self._stands.popitem(last=False)

    def add(self, name: GraphName, key: AssetKey, graph_iri: str) -> None:
        """One more named graph of an asset that was placed before this process began. `key` is kept, not copied."""
        self._note(name, key, (*self.get(name.id, key), graph_iri))

    def drop_asset(self, graph: GraphId, key: AssetKey) -> None:
        """It has no named graph any more."""
        self._stands.pop((graph, key), None)
        self._discard(graph, key)

    def _note(self, name: GraphName, key: AssetKey, iris: Iterable[str]) -> None:
        places = tuple(sorted(_place(name, key, iri) for iri in iris))
        in_graph = self._graphs.setdefault(name.id, _InGraph(name))
        in_graph.places[key] = self._same.setdefault(places, places)

    def _discard(self, graph: GraphId, key: AssetKey) -> None:
        found = self._graphs.get(graph)
        if found is not None:
            found.places.pop(key, None)
            if not found.places:
                del self._graphs[graph]


_ASSET: Final = "*"
"""Stands for author and name in what is kept of an IRI; no IRI has it."""


def _place(name: GraphName, key: AssetKey, graph_iri: str) -> str:
    """What the IRI of a named graph says beyond its context graph, author and name."""
    begin = len(name.iri)
    assert graph_iri.startswith(name.iri)
    before, found, after = graph_iri[begin:].partition(str(key))
    assert found
    return f"{before}{_ASSET}{after}"


def _iri(name: GraphName, key: AssetKey, place: str) -> str:
    return name.iri + place.replace(_ASSET, str(key))
