"""What an Oxigraph store holds, as a plan of changes asks for it. Reads only."""

from __future__ import annotations

import pyoxigraph as ox

from p2pmem.store.plan import HOLDS, IN_AGGREGATE, MEMBERSHIP, TALLY_OF, tally_count, tally_graph


class Held:
    """What an Oxigraph store holds, for planning one change: nothing may be written while it is used."""

    def __init__(self, store: ox.Store) -> None:
        self._store = store
        self._tallied: dict[ox.NamedNode, bool] = {}

    def aggregate_of(self, graph: ox.NamedNode) -> ox.NamedNode | None:
        for quad in self._store.quads_for_pattern(graph, IN_AGGREGATE, None, MEMBERSHIP):
            assert isinstance(quad.object, ox.NamedNode)
            return quad.object
        return None

    def content_of(self, graph: ox.NamedNode) -> bytes | None:
        """The content of an asset, by its named graph; None where that is no asset's."""
        for quad in self._store.quads_for_pattern(graph, HOLDS, None, MEMBERSHIP):
            assert isinstance(quad.object, ox.Literal)
            return quad.object.value.encode()
        return None

    def triples_of(self, graph: ox.NamedNode) -> set[ox.Triple]:
        return {quad.triple for quad in self._store.quads_for_pattern(None, None, None, graph)}

    def triples_about(self, graph: ox.NamedNode, subject: ox.NamedNode) -> set[ox.Triple]:
        return {quad.triple for quad in self._store.quads_for_pattern(subject, None, None, graph)}

    def has_about(self, graph: ox.NamedNode, subject: ox.NamedNode | ox.BlankNode | ox.Triple) -> bool:
        return next(iter(self._store.quads_for_pattern(subject, None, None, graph)), None) is not None

    def holders(self, aggregate: ox.NamedNode, triple: ox.Triple) -> int:
        if ox.Quad(triple.subject, triple.predicate, triple.object, aggregate) not in self._store:
            return 0
        if not self._has_tally(aggregate):
            return 1
        for quad in self._store.quads_for_pattern(None, TALLY_OF, triple, tally_graph(aggregate)):
            return tally_count(quad)
        return 1

    def _has_tally(self, aggregate: ox.NamedNode) -> bool:
        """Whether any triple of the aggregate has several holders. In most graphs none has, and to ask once spares a
        look-up for each triple of whatever goes."""
        found = self._tallied.get(aggregate)
        if found is None:
            rows = self._store.quads_for_pattern(None, TALLY_OF, None, tally_graph(aggregate))
            found = self._tallied[aggregate] = next(iter(rows), None) is not None
        return found

    def tally_of(self, aggregate: ox.NamedNode) -> dict[ox.Triple, int]:
        rows = self._store.quads_for_pattern(None, TALLY_OF, None, tally_graph(aggregate))
        return {quad.object: tally_count(quad) for quad in rows if isinstance(quad.object, ox.Triple)}
