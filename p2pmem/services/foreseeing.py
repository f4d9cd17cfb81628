"""What a change of members would do before it is made: whose trust rises or falls by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from p2pmem_protocol.assets import Version
from p2pmem_protocol.names import VersionKey
from p2pmem_protocol.rights import Rights
from p2pmem_protocol.roster import Roster
from p2pmem_protocol.rosters_change import RosterPlan
from p2pmem_protocol.trust import Trust, assess
from p2pmem_protocol.view import VersionView, asset_view

from p2pmem.ledger.graph import LedgerGraph


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A version's level now, and under the planned roster; None: it would not be there."""

    version: VersionKey
    now: Trust
    then: Trust | None


def foresee(graph: LedgerGraph, plan: RosterPlan, now_ms: int) -> Iterator[Foreseen]:
    """Every visible version that would stand otherwise. What a smaller quota would push out is left out."""
    header = replace(plan.head.header, owner=plan.owner)
    named = graph.headers.quorums_of(plan.head.id)
    rights = Rights(Roster(replace(plan.head.signed, header=header), plan.body), named)
    for key in sorted(graph.set.assets()):
        for view in asset_view(graph.set, key, now_ms).visible():
            version = graph.set.version(view.key)
            assert version is not None
            then = _level(view, version, rights, now_ms)
            if then is not view.trust.level:
                yield Foreseen(view.key, view.trust.level, then)


def _level(view: VersionView, version: Version, rights: Rights, now_ms: int) -> Trust | None:
    if all(rights.problem(record) is not None for record in version.live(now_ms)):
        return None
    body = rights.roster.body
    report = assess(
        view.key,
        [record for record in version.evidence_in_set() if rights.problem(record) is None],
        principals=view.principals,
        quorum=body.limits.quorum,
        certificates=rights.certificates.get(view.key, ()),
    )
    return report.level
