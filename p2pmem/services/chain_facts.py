"""What this node knows of versions on a chain: claims in the set, and what it saw itself."""

from __future__ import annotations

from collections.abc import Mapping

from p2pmem_protocol.names import Address, GraphId, VersionKey
from p2pmem_protocol.view import Anchored

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import ChainFact, Ledger


class ChainFacts:
    """Anchors by version. Without a chain, claims are all there is."""

    def __init__(self, ledger: Ledger, chain_id: int, contract: Address | None) -> None:
        """`chain_id` and `contract` are those that this node asks; 0 and None when it has no chain."""
        self._ledger = ledger
        self._chain_id = chain_id
        self._contract = contract
        self._wanted: dict[GraphId, dict[VersionKey, bool]] = {}
        """Versions to anchor, and whether a job was asked for them since this process began."""
        self.trouble = ""
        """In words, while the chain that this node asks does not answer as it should."""

    @property
    def has_chain(self) -> bool:
        """Whether this node has a chain in its settings."""
        return self._chain_id != 0

    def chain_and_contract(self) -> tuple[int, Address | None]:
        """What a graph that is to be anchored names."""
        return self._chain_id, self._contract

    def anchors(self, graph: LedgerGraph) -> bool:
        """Whether published versions of this graph are to be anchored by this node."""
        return self._chain_id != 0 and graph.head is not None and graph.head.body.limits.chain == self._chain_id

    def fact(self, graph: LedgerGraph, version: VersionKey) -> ChainFact | None:
        """The best of what this node saw of the batches that an anchor in the set names for this version."""
        found = [
            fact
            for record in graph.set.anchors(version)
            if (fact := self._ledger.chain_facts.get(record.batch_root)) is not None
        ]
        confirmed = [fact for fact in found if fact.state == Anchored.CONFIRMED.value]
        return next(iter(confirmed or found), None)

    def state(self, graph: LedgerGraph, version: VersionKey) -> Anchored:
        fact = self.fact(graph, version)
        if fact is not None:
            return Anchored(fact.state)
        return Anchored.CLAIMED if graph.set.anchors(version) else Anchored.NO

    def of(self, graph: LedgerGraph, versions: list[VersionKey]) -> Mapping[VersionKey, Anchored]:
        """For `asset_view`: what was seen, without the mere claims."""
        return {
            version: Anchored(fact.state) for version in versions if (fact := self.fact(graph, version)) is not None
        }

    def want_anchor(self, graph: LedgerGraph, version: VersionKey) -> None:
        """Somebody waits for this version to be anchored: put it into the next batch."""
        self._wanted.setdefault(graph.id, {})[version] = False
        self._ledger.wake()

    def waits(self, graph: LedgerGraph) -> bool:
        """Whether versions wait that no job has been asked to anchor."""
        return any(not asked for asked in self._wanted.get(graph.id, {}).values())

    def take_waiting(self, graph: LedgerGraph) -> list[VersionKey]:
        """The versions that no job has been asked to anchor; from now on one has."""
        wanted = self._wanted.get(graph.id, {})
        waiting = sorted(version for version, asked in wanted.items() if not asked)
        wanted.update(dict.fromkeys(waiting, True))
        return waiting

    def unanchored(self, graph: LedgerGraph) -> list[VersionKey]:
        """Wanted versions that no confirmed anchor covers."""
        wanted = self._wanted.get(graph.id, {})
        for version in [it for it in wanted if self.state(graph, it) is Anchored.CONFIRMED]:
            del wanted[version]
        return sorted(wanted)
