"""When a cluster has settled: no work is left on any node, and members that can reach each other hold the same.

What is not settled is a list of gaps, each with the node, what is missing there, and why. Jobs that wait for somebody
(a verification that lacks verdicts) are no work: they end when what they wait for comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from p2pmem_jobs import State
from p2pmem_jobs.reading import list_jobs
from p2pmem_protocol.names import GraphId

from p2pmem.ledger.graph import LedgerGraph

if TYPE_CHECKING:
    from p2pmem_devnet.cluster_node import ClusterNode

IDS_SHOWN_MAX: Final = 4
JOBS_SHOWN_MAX: Final = 20


class NotSettledError(AssertionError):
    """The cluster did not settle in the time given. The message is a table: node, what is missing there, why."""

    def __init__(self, gaps: tuple[Gap, ...], within_s: float) -> None:
        self.gaps = gaps
        super().__init__(f"not settled after {within_s:g} s of the cluster's time\n{table(gaps)}")


@dataclass(frozen=True, slots=True)
class Gap:
    """What one node still lacks."""

    node: str
    missing: str
    why: str


def table(gaps: Iterable[Gap]) -> str:
    """Gaps as lines of three columns."""
    rows = [("node", "missing", "why"), *((gap.node, gap.missing, gap.why) for gap in gaps)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}".rstrip() for row in rows)


def find_gaps(groups: Iterable[tuple[ClusterNode, ...]]) -> tuple[Gap, ...]:
    """Everything that is not settled. Each group is of running nodes that can reach each other."""
    gaps: list[Gap] = []
    for group in groups:
        for node in group:
            gaps += _work_left(node)
        graphs = {graph for node in group for graph in node.inside.ledger.graphs}
        for graph in sorted(graphs):
            gaps += _differences(group, graph)
    return tuple(gaps)


def _work_left(node: ClusterNode) -> list[Gap]:
    inside = node.inside
    services = inside.services
    found: list[Gap] = []
    if not inside.ledger.database.is_idle:
        found.append(Gap(node.name, "a commit", "what its set in memory has is not on disk yet"))
    behind = inside.ledger.position - services.projector.position
    if behind:
        services.projector.hurry()
        found.append(Gap(node.name, f"{behind} events", "its triple store and text index are behind its ledger"))
    if not services.duties.is_idle:
        found.append(Gap(node.name, "acknowledgements, reviews", "it has not looked at all changes yet"))
    due_ms = services.keeper.due_ms()
    if due_ms is not None and due_ms <= node.clock.now_ms():
        why = "the keeper is paused because the clock jumped" if services.keeper.paused else "the sweep is due"
        found.append(Gap(node.name, "the end of something", why))
    jobs = inside.ledger.database.read(
        lambda connection: list_jobs(
            connection, frozenset((State.QUEUED, State.RUNNING)), {}, 2**63 - 1, JOBS_SHOWN_MAX
        )
    )
    for record in jobs:
        why = record.detail or record.parked or record.error or record.state.value
        found.append(Gap(node.name, f"the end of a {record.kind} job", why))
    return found


def _differences(group: tuple[ClusterNode, ...], graph: GraphId) -> list[Gap]:
    """Compare the members of one graph; each against all that the others hold together."""
    held = {node: node.inside.ledger.graphs[graph] for node in group if graph in node.inside.ledger.graphs}
    best = max((it for it in held.values() if it.head is not None), key=_head_order, default=None)
    if best is None or best.head is None:
        return []
    members = [node for node in held if best.is_member(node.address)]
    t_ms = max(node.clock.now_ms() for node in members) if members else 0
    found: list[Gap] = []
    for node in members:
        mine = held[node]
        if mine.stand != best.stand:
            version = f"roster {best.head.header.version} of term {best.head.header.term}"
            found.append(Gap(node.name, version, mine.trouble or _why(node, members)))
    if found:
        return found
    summaries = {node: held[node].view(t_ms, t_ms).summary() for node in members}
    if len({(it.count, it.fingerprint) for it in summaries.values()}) > 1:
        found += _missing_items(members, held, t_ms)
    for node in members:
        for content_hash, _ in held[node].missing_attachments():
            if any(content_hash in held[other].held for other in members):
                found.append(Gap(node.name, f"content {content_hash.hex()[:12]}", _why(node, members)))
    return found


def _missing_items(members: list[ClusterNode], held: dict[ClusterNode, LedgerGraph], t_ms: int) -> list[Gap]:
    sets = {node: {item_id for _, item_id in held[node].set.reconciled(t_ms)} for node in members}
    union = set().union(*sets.values())
    found: list[Gap] = []
    for node in members:
        missing = sorted(union - sets[node])
        if not missing:
            continue
        shown = ", ".join(_item(item_id, held.values()) for item_id in missing[:IDS_SHOWN_MAX])
        more = f" and {len(missing) - IDS_SHOWN_MAX} more" if len(missing) > IDS_SHOWN_MAX else ""
        state = held[node].set.state_of(missing[0])
        why = f"it is known there and stands {state.value}" if state is not None else _why(node, members)
        found.append(Gap(node.name, shown + more, why))
    return found


def _item(item_id: bytes, graphs: Iterable[LedgerGraph]) -> str:
    for graph in graphs:
        record = graph.set.record(item_id)
        if record is not None and item_id in graph.set:
            return f"{record.kind.word} {item_id.hex()[:8]}"
    return item_id.hex()[:8]


def _why(node: ClusterNode, members: Iterable[ClusterNode]) -> str:
    """What stands between a node and the other members, in words."""
    inside = node.inside
    names = {other.inside.network.peer_id: other.name for other in members if other is not node}
    sessions = {session.peer: session for session in inside.services.sessions.all()}
    reasons: list[str] = []
    without = sorted(name for peer, name in names.items() if peer not in sessions)
    if without:
        reasons.append(f"no session with {', '.join(without)}")
    reasons += [
        f"the clock of {names[peer]} is {session.clock_apart_ms / 1000:+g} s away"
        for peer, session in sorted(sessions.items())
        if peer in names and not session.may_reconcile
    ]
    for (peer, _), last in sorted(inside.exchange.last_comparisons().items()):
        if peer in names and not last.comparison.equal:
            comparison = last.comparison
            said = comparison.trouble or f"{comparison.ours} items here, {comparison.theirs} there"
            reasons.append(f"last comparison with {names[peer]}: {said}")
    refusals = {reason.name.lower(): count for reason, count in sorted(inside.services.admission.refusals.items())}
    if refusals:
        reasons.append(f"refused so far: {refusals}")
    return "; ".join(reasons) or "still on its way"


def _head_order(graph: LedgerGraph) -> tuple[int, int, bytes]:
    """Who knows most: also of a fork, whose head is older than its branches."""
    assert graph.head is not None
    return (graph.head.header.term, len(graph.headers), graph.head.id)
