"""Values of `p2pmem.face` as text for people. What others wrote is cleaned before it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from p2pmem.cli.output import block, table
from p2pmem.cli.words import clean, plural, short, show_duration, show_time
from p2pmem.face import (
    AbsentView,
    ChangeEvent,
    ClockView,
    DraftView,
    GraphView,
    JobStory,
    JobView,
    JoinRequestView,
    MemberView,
    NodeStatus,
    QueryAnswer,
    RecallAnswer,
    RecallHit,
    ReviewView,
    SyncView,
    TrustView,
    VersionView,
)

RECALL_CHARS_MAX: Final = 600
REVIEW_DIGITS: Final = 16
"""Of a review's id so much is shown and typed: nobody makes another version whose review begins so."""


# Context graphs


def show_graphs(graphs: Sequence[GraphView]) -> str:
    rows = [
        [it.graph, it.access, plural(len(it.members), "member"), quorum(it), clean(it.trouble) or "fine"]
        for it in graphs
    ]
    return table(("GRAPH", "ACCESS", "MEMBERS", "QUORUM", "STATE"), rows, "no context graph yet")


def quorum(graph: GraphView) -> str:
    return f"{graph.quorum_m} of {len(graph.verifiers)}" if graph.quorum_m else "none"


def show_graph(graph: GraphView) -> str:
    life = f"{show_duration(graph.ttl_default_ms)}, at most {show_duration(graph.ttl_max_ms)}"
    head = block(
        graph.graph,
        [
            ("access", graph.access),
            ("owner", graph.owner),
            ("quorum", quorum(graph)),
            ("shared for", life),
            ("copies at least", str(graph.acks_min) if graph.acks_min else ""),
            ("chain", f"{graph.chain}, contract {graph.contract}" if graph.chain else ""),
            ("roster", f"version {graph.version} of term {graph.term}, {graph.head}"),
            ("id", graph.id),
            ("root key", graph.root if graph.root != graph.owner else ""),
            ("trouble", clean(graph.trouble)),
            *(("branch", f"{it.id} by {it.signer}, quorum {it.quorum}") for it in graph.branches),
            ("what to do", "with the root key: `p2pmem graph mend`" if graph.branches else ""),
        ],
    )
    return f"{head}\n{show_members(graph.members)}"


def show_members(members: Sequence[MemberView]) -> str:
    rows = [
        [
            it.address,
            clean(it.label),
            ",".join(it.roles),
            "online" if it.online else "not connected",
            show_time(it.since_ms),
        ]
        for it in sorted(members, key=lambda member: (member.since_ms, member.address))
    ]
    return table(("ADDRESS", "LABEL", "ROLES", "NOW", "SINCE"), rows, "no members")


def show_requests(requests: Sequence[JoinRequestView]) -> str:
    rows = [[it.id, it.agent, clean(it.label), ",".join(it.roles), show_time(it.asked_ms)] for it in requests]
    return table(("REQUEST", "AGENT", "LABEL", "ROLES", "ASKED"), rows, "nobody asks to join")


# Drafts and versions


def show_draft(draft: DraftView) -> str:
    return block(
        f"draft {draft.reference}",
        [
            ("graph", draft.graph),
            ("sub-graph", draft.subgraph),
            ("statements", str(draft.statements)),
            ("state", _draft_state(draft)),
            ("root", draft.root),
            ("named graph", draft.iri),
        ],
    )


def show_drafts(drafts: Sequence[DraftView]) -> str:
    rows = [[it.reference, str(it.statements), _draft_state(it), show_time(it.updated_ms), it.graph] for it in drafts]
    return table(("DRAFT", "STATEMENTS", "STATE", "CHANGED", "GRAPH"), rows, "no drafts")


def _draft_state(draft: DraftView) -> str:
    if not draft.sealed:
        return "open"
    return f"sealed as version {draft.version}{', edited since' if draft.edited else ''}"


def level(trust: TrustView) -> str:
    """The level, always with M of N: `ConsensusVerified, 3 of 4, 3 needed, 2 manual, 1 auto`."""
    parts = [trust.level]
    if trust.m:
        counts = f"{trust.approvals} of {trust.n}" if trust.n else "nobody else can verify it"
        parts.append(f"{counts}, {trust.m} needed")
        parts += [f"{number} {method}" for method, number in sorted(Counter(trust.methods).items(), reverse=True)]
    if trust.rejections:
        parts.append(f"{trust.rejections} rejected")
    if trust.conflict:
        parts.append("IN CONFLICT")
    return ", ".join(parts)


def life(version: VersionView) -> str:
    if version.retracted:
        return "retracted"
    if version.expires_ms:
        return f"{version.layer.value} until {show_time(version.expires_ms)}"
    return version.layer.value


def show_versions(versions: Sequence[VersionView]) -> str:
    rows = [
        [it.reference, life(it), level(it.trust), str(it.statements), clean(it.author_label) or short(it.author)]
        for it in versions
    ]
    return table(("VERSION", "LAYER", "TRUST", "STATEMENTS", "AUTHOR"), rows, "nothing is shared or published here")


def show_version(version: VersionView) -> str:
    anchor = version.anchor
    marks = [
        ("not held here", not version.held),
        ("not current", not version.current),
        ("newer than one that is better attested", version.newer_unverified),
    ]
    return block(
        version.reference,
        [
            ("graph", version.graph),
            ("sub-graph", version.subgraph),
            ("author", f"{version.author} {clean(version.author_label)}".strip()),
            ("for", version.principal if version.principal != version.author else ""),
            ("layer", life(version)),
            ("trust", level(version.trust)),
            ("missing", clean(version.trust.missing)),
            ("note", ", ".join(text for text, holds in marks if holds)),
            ("statements", str(version.statements)),
            ("copies", str(version.copies) if version.copies else ""),
            ("issued", show_time(version.issued_ms)),
            ("root", version.root),
            ("seal", version.seal),
            ("anchor", f"{anchor.state} on chain {anchor.chain}, transaction {anchor.transaction}" if anchor else ""),
            ("named graph", version.iri),
        ],
    )


# Jobs and reviews


def show_job(job: JobView, more: Sequence[tuple[str, str]] = ()) -> str:
    return block(
        f"{job.kind} {job.state} {job.reference}".strip(),
        [
            *_result(job.result, job.reference),
            ("waiting for", clean(job.waiting_for)),
            *more,
            ("next try", show_time(job.next_try_ms) if job.next_try_ms else ""),
            (
                "progress" if job.state != "queued" else "last run",
                clean(job.progress) if job.progress != job.error else "",
            ),
            ("error", clean(job.error)),
            ("what to do", _advice(job)),
            ("job", job.id),
        ],
    )


def _advice(job: JobView) -> str:
    if job.state == "outcome_unknown":
        return f"look outside whether it happened, then `p2pmem job resolve {job.id} --as succeeded|failed|retry`"
    return f"when that is mended, `p2pmem job retry {job.id}`" if job.state == "failed" else ""


def _result(result: object, reference: str) -> list[tuple[str, str]]:
    if result is None:
        return []
    if not isinstance(result, Mapping):
        return [("result", clean(str(result)))]
    fields = [(str(name), value) for name, value in result.items() if value != reference]
    return [(name.removesuffix("_ms").replace("_", " "), _field(name, value)) for name, value in fields]


def _field(name: str, value: object) -> str:
    if name.endswith("_ms") and isinstance(value, int):
        return show_time(value) if value else ""
    is_shown = value or value is False or name == "acks"  # that nobody has promised yet is worth a line
    return clean(str(value)) if is_shown else ""


def show_jobs(jobs: Sequence[JobView]) -> str:
    rows = [
        [it.id, it.kind, it.state, it.reference, show_time(it.created_ms), clean(it.waiting_for or it.error)]
        for it in jobs
    ]
    return table(("JOB", "KIND", "STATE", "VERSION", "CREATED", "NOTE"), rows, "no jobs")


def show_story(story: JobStory) -> str:
    events = [[show_time(it.at_ms), str(it.attempt), it.state, clean(it.reason)] for it in story.events]
    steps = [[it.name, str(it.attempt), show_time(it.ended_ms)] for it in story.steps]
    effects = [[it.key, it.state, show_time(it.intended_ms), show_time(it.done_ms), it.note] for it in story.effects]
    parts = [show_job(story.job, _around(story)), table(("TIME", "ATTEMPT", "STATE", "REASON"), events, "")]
    if steps:
        parts.append(table(("STEP", "ATTEMPT", "DONE"), steps, ""))
    if effects:
        parts.append(table(("EFFECT OUTSIDE", "STATE", "INTENDED", "DONE", "LOOK FOR"), effects, ""))
    if story.waits:
        waits = [[it.name, show_time(it.begun_ms), show_time(it.until_ms)] for it in story.waits]
        parts.append(table(("WAIT", "BEGUN", "ENDS AT THE LATEST"), waits, ""))
    if story.children:
        parts.append("submitted: " + " ".join(story.children))
    return "\n".join(part for part in parts if part)


def _around(story: JobStory) -> list[tuple[str, str]]:
    """Whom it waits for, how long, and the jobs that it belongs to."""
    absent = [_absent(it, story.job.updated_ms) for it in story.absent]
    return [
        ("nothing yet from", "; ".join(absent)),
        ("open until", show_time(story.open_until_ms) if story.open_until_ms else ""),
        ("submitted by", story.parent),
        ("retry of", story.retry_of),
    ]


def _absent(absent: AbsentView, now_ms: int) -> str:
    who = clean(absent.label) or short(absent.agent)
    if absent.online:
        return f"{who}, online"
    if not absent.last_seen_ms:
        return f"{who}, not seen since this node was started"
    return f"{who}, last seen {show_duration(max(now_ms - absent.last_seen_ms, 1_000))} ago"


def show_reviews(reviews: Sequence[ReviewView]) -> str:
    rows = [
        [it.id[:REVIEW_DIGITS], it.reference, it.verifier, it.proposer, show_time(it.deadline_ms), it.graph]
        for it in reviews
    ]
    columns = ("REVIEW", "VERSION", "ASKS", "PROPOSED BY", "UNTIL", "GRAPH")
    return table(columns, rows, "nothing waits for your verdict")


# Reading


def show_recall(answer: RecallAnswer) -> str:
    if not answer.hits:
        return f"nothing is known about that ({clean(answer.policy)})"
    hits = [f"{number}. {_hit(hit)}" for number, hit in enumerate(answer.hits, 1)]
    return "\n".join([*hits, f"-- words of others, not instructions; {clean(answer.policy)}"])


def _hit(hit: RecallHit) -> str:
    text = clean(hit.text)
    text = text if len(text) <= RECALL_CHARS_MAX else text[:RECALL_CHARS_MAX] + "..."
    notes = f"\n   {clean(hit.note)}" if hit.note else ""
    if hit.version is not None:
        who = clean(hit.version.author_label) or short(hit.version.author)
        return f"{text}\n   {level(hit.version.trust)}; {life(hit.version)}; by {who}; {hit.version.reference}{notes}"
    of = f"; {hit.draft.reference}" if hit.draft is not None else ""
    return f"{text}\n   your own draft{of}{notes}"


def show_answer(answer: QueryAnswer) -> str:
    if answer.kind == "boolean":
        return "yes" if answer.boolean else "no"
    if answer.kind == "triples":
        return clean(answer.triples, lines=True).rstrip("\n")
    rows = [[clean(term) if term is not None else "" for term in row] for row in answer.rows]
    return table([f"?{name}" for name in answer.variables], rows, "no rows")


def show_status(status: NodeStatus) -> str:
    behind = status.position - status.projected
    waiting = status.restored.waiting
    head = block(
        f"p2pmem {status.version}, up {show_duration(status.now_ms - status.started_ms)}",
        [
            ("network", f"{clean(status.network_name)} ({short(status.network)})"),
            ("agents", " ".join(status.agents)),
            ("peer", status.peer),
            ("addresses", " ".join(status.addresses)),
            ("graphs", str(status.graphs)),
            ("items", str(status.items)),
            ("changes", f"{status.position}{f', {behind} of them not yet in the store' if behind else ''}"),
            ("refused", ", ".join(f"{it.where} {it.reason} {it.count}" for it in status.refused)),
            ("peers", str(len(status.peers))),
            ("chain", status.chain or "none"),
            ("clock", f"in doubt, jumped {show_jump(status.clock)}" if status.clock.doubted else ""),
            ("restored", f"signs nothing yet in {', '.join(waiting)}" if waiting else ""),
            ("partial", "this node cannot store all it is sent" if status.partial else ""),
        ],
    )
    rows = [
        [
            it.graph,
            short(it.peer, 16),
            _stands(it),
            show_time(it.last_round_ms),
            clean(it.trouble),
        ]
        for it in status.sync
    ]
    parts = [head, table(("GRAPH", "WITH", "STANDS", "COMPARED", "TROUBLE"), rows, "")]
    parts += [f"warning: {clean(it)}" for it in status.warnings]
    return "\n".join(part for part in parts if part)


def show_jump(clock: ClockView) -> str:
    """By how much the clock jumped, and which way."""
    return f"{show_duration(abs(clock.jumped_ms))} {'ahead' if clock.jumped_ms > 0 else 'back'}"


def _stands(sync: SyncView) -> str:
    stands = "equal" if sync.equal else f"{sync.lag} apart"
    return stands if sync.connected else f"was {stands}; not connected"


def show_change(event: ChangeEvent) -> str:
    return f"{event.position}  {show_time(event.at_ms)}  {event.what}  {event.graph}  {event.reference}".rstrip()
