"""A fair share of the places for each context graph, where places are not enough for all members.

Who owns a graph lists in it whom he likes, a thousand keys of his own too. Whoever takes part in that graph, and in
another, must not lose the members of the other to them. So places are divided:

* Each graph of which somebody is here has the same share: the places, by the number of such graphs.
* A connection counts in every graph that we share with its peer, and is protected by the one that has most room: it may
  be given up only where each of these graphs is over its share. So nothing is gained by listing the members of another
  graph: they stay protected by their own.
* Who gives way is of the graph that is over its share most. A share that nobody uses is for the others.

Hence no graph loses anybody while no more of it are here than its share, whatever the owner of another does. And where
more are here than there are places, somebody may always be given up: if every connection were in a graph that is not
over its share, they would be no more than all shares together.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence, Set
from itertools import chain
from typing import TypeVar

G = TypeVar("G", bound=Hashable)


def over_share(graphs_of: Sequence[Set[G]], places: int) -> list[int]:
    """For each who is here, by how many connections that of its graphs is over its share which is so least. Above 0 it
    may be given up. `graphs_of`: the graphs that we share with each; whoever shares none is over by all."""
    held = Counter(chain.from_iterable(graphs_of))
    share = places // max(len(held), 1)
    return [min(map(held.__getitem__, graphs), default=len(graphs_of) + share) - share for graphs in graphs_of]


def share_of(graphs_of: Sequence[Set[G]], places: int) -> int:
    """The share of each graph of which somebody is here."""
    return places // max(len(set(chain.from_iterable(graphs_of))), 1)


def first_of_each(graphs_of: Sequence[Set[G]], most: int) -> list[bool]:
    """For each in turn, whether it is one of the first `most` in one of its graphs."""
    before: Counter[G] = Counter()
    found = []
    for graphs in graphs_of:
        found.append(any(before[it] < most for it in graphs))
        before.update(graphs)
    return found
