"""What a change of members would do before it is made: whose trust rises or falls by it, what goes and what comes back.

It is made, in a copy of the set that nobody sees: so whatever a head decides is told as it would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace

from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.names import AssetKey, VersionKey
from p2pmem_protocol.roster import Roster
from p2pmem_protocol.rosters_change import RosterPlan
from p2pmem_protocol.trust import Trust, TrustReport
from p2pmem_protocol.view import asset_view

from p2pmem.ledger.graph import LedgerGraph


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What stands behind a version now, and under the planned roster; None: nobody is shown it."""

    version: VersionKey
    now: TrustReport | None
    then: TrustReport | None


def foresee(graph: LedgerGraph, plan: RosterPlan, now_ms: int) -> Iterator[Foreseen]:
    """Every version that would stand otherwise: at another level, or verified by another M; hidden ones that would be
    shown again among them.

    Takes about as long as reading the set at a start. What a retract has erased does not come back by itself.
    """
    then = _copied(graph, now_ms)
    header = replace(plan.head.header, owner=plan.owner)
    planned = Roster(replace(plan.head.signed, header=header), plan.body)
    changes = then.set_head(planned, now_ms, named=graph.headers.quorums_of(plan.head.id))
    for key in sorted(changes.assets):
        before, after = _reports(graph.set, key, now_ms), _reports(then, key, now_ms)
        for version in sorted(before.keys() | after.keys()):
            foreseen = Foreseen(version, before.get(version), after.get(version))
            if _stands(foreseen.now) != _stands(foreseen.then):
                yield foreseen


def _copied(graph: LedgerGraph, now_ms: int) -> GraphSet:
    """The set once more, as it stands."""
    again = GraphSet(graph.set.graph, graph.set.network)
    for record in graph.set.known():
        again.restore_record(copy(record), record.state, record.since_ms)
    named = graph.headers.quorums_of(graph.head_id)
    again.set_head(graph.set.head, now_ms, forked=graph.set.is_forked, named=named)
    return again


def _reports(graph_set: GraphSet, key: AssetKey, now_ms: int) -> dict[VersionKey, TrustReport]:
    """What stands behind those versions of an asset that are visible."""
    return {view.key: view.trust for view in asset_view(graph_set, key, now_ms).visible()}


def _stands(report: TrustReport | None) -> tuple[Trust, int] | None:
    """What rises or falls: the level, and of what is verified the M. That of another level is how many it would need,
    which is other for all of them with the quorum, and is told of that."""
    if report is None:
        return None
    return report.level, report.m if report.level is Trust.CONSENSUS_VERIFIED else 0
