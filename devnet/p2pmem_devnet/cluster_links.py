"""What a test can do to the links of a cluster: cut them, one way or both, slow them, let them break at random."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, product

from p2pmem_protocol.errors import MisuseError

from p2pmem.net.memory import MemoryFabric
from p2pmem.net.memory_wire import Link
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_devnet.cluster_trace import Trace


class Links:
    """The part of a cluster that is about its links. Only a network in memory has links to shape."""

    fabric: MemoryFabric
    nodes: list[ClusterNode]
    trace: Trace
    _is_real: bool
    _partitions: list[tuple[frozenset[str], frozenset[str], bool]]

    def _must_be_in_memory(self) -> None:
        """Raises `MisuseError` where links are not ours to shape."""
        if self._is_real:
            raise MisuseError("links can be cut, slowed and listened to in a cluster with net='memory' only")

    @contextmanager
    def partition(
        self, left: Iterable[ClusterNode], right: Iterable[ClusterNode], *, one_way: bool = False
    ) -> Iterator[None]:
        """Within the block nothing gets from `left` to `right`, nor back unless `one_way`."""
        self._must_be_in_memory()
        sides = (_names(left), _names(right), not one_way)
        self._partitions.append(sides)
        self._apply_partitions()
        self.trace.note("partition", sorted(sides[0]), sorted(sides[1]), one_way)
        try:
            yield
        finally:
            self._partitions.remove(sides)
            self._apply_partitions()
            self.trace.note("healed")

    def _apply_partitions(self) -> None:
        # Releasing and blocking again in the same instant lets nothing through.
        self.fabric.heal()
        for left, right, both_ways in self._partitions:
            self.fabric.partition(left, right, both_ways=both_ways)

    def slow(
        self,
        *nodes: ClusterNode,
        delay: timedelta = timedelta(milliseconds=50),
        jitter: timedelta = timedelta(0),
        bytes_per_s: float = float("inf"),
    ) -> None:
        """From now on all links of these nodes (none named: of all) have this delay and bandwidth."""
        for source, target in self._links_of(nodes):
            link = self.fabric.wire(source, target).link
            changed = replace(
                link, delay_s=delay.total_seconds(), jitter_s=jitter.total_seconds(), bytes_per_s=bytes_per_s
            )
            self.fabric.set_link(source, target, changed, both_ways=False)

    def lose(self, *nodes: ClusterNode, every: timedelta = timedelta(minutes=1)) -> None:
        """From now on connections of these nodes (none named: of all) break at random, on average after this time."""
        for source, target in self._links_of(nodes):
            link = replace(self.fabric.wire(source, target).link, mean_life_s=every.total_seconds())
            self.fabric.set_link(source, target, link, both_ways=False)
        for one, other in combinations(sorted({name for pair in self._links_of(nodes) for name in pair}), 2):
            self.fabric.cut(one, other)

    def calm(self) -> None:
        """Ideal links again, everywhere."""
        for source, target in self._links_of(()):
            self.fabric.set_link(source, target, Link(), both_ways=False)

    def _links_of(self, nodes: Collection[ClusterNode]) -> list[tuple[str, str]]:
        self._must_be_in_memory()
        everybody = [node.name for node in self.nodes]
        chosen = [node.name for node in nodes] or everybody
        pairs = {
            pair for one, other in product(chosen, everybody) if one != other for pair in ((one, other), (other, one))
        }
        return sorted(pairs)

    def can_reach(self, one: ClusterNode, other: ClusterNode) -> bool:
        """Whether bytes get from one node to the other and back."""
        if self._is_real:
            return True
        there, back = self.fabric.wire(one.name, other.name), self.fabric.wire(other.name, one.name)
        return not there.blocked and not back.blocked


def _names(nodes: Iterable[ClusterNode]) -> frozenset[str]:
    return frozenset(node.name for node in nodes)
