"""What the ledger tells the store: where an asset now stands, and what `_meta` graphs now say."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHANGES_PER_APPLY = 100_000
"""Placements, drops and meta changes in one call. A sweep of more goes in several calls, each with its position."""


@dataclass(frozen=True, slots=True)
class Placement:
    """An asset as it now stands: `content` is what its named graph says, and its aggregate says it too.

    * `graph_iri`: the named graph of the asset in its layer. It belongs to this asset alone.
    * `aggregate_iri`: the one graph that gathers all assets of a context graph, layer and trust level. An asset is in
      one aggregate; putting it with another moves it.
    * `content`: canonical N-Quads, one default graph. Blank nodes stay the asset's own, also in the aggregate.
    """

    graph_iri: str
    aggregate_iri: str
    content: bytes


@dataclass(frozen=True, slots=True)
class MetaChange:
    """A change of a graph that belongs to no asset, such as `_meta`.

    In this order: `clear` empties the graph, every triple whose subject is in `reset_subjects` leaves, `remove` leaves,
    `add` comes. `remove` and `add` are N-Triples lines without blank nodes, so that the same change made twice is one.
    """

    graph_iri: str
    add: bytes = b""
    remove: bytes = b""
    reset_subjects: tuple[str, ...] = ()
    clear: bool = False


@dataclass(frozen=True, slots=True)
class StoreChange:
    """Everything that one transaction of the store does."""

    put: tuple[Placement, ...] = ()
    drop: tuple[str, ...] = ()
    meta: tuple[MetaChange, ...] = ()
