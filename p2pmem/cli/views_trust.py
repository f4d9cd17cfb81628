"""Trust, history and members-to-be as text for people. What others wrote is cleaned before it is shown."""

from __future__ import annotations

from collections.abc import Sequence

from p2pmem.cli.output import block, table
from p2pmem.cli.views import level, life, show_version
from p2pmem.cli.words import clean, short, show_time
from p2pmem.face import (
    AgentView,
    ChangePreview,
    DiffView,
    Explanation,
    HistoryView,
    PreparedView,
    RetractView,
    ReviewDetail,
    SignatureView,
    SignView,
)


def show_preview(preview: ChangePreview) -> str:
    head = block(
        f"roster {preview.version} of {preview.graph}, not signed",
        [
            ("signed by", f"{preview.signer}{'' if preview.signs_here else ', whose key is not here'}"),
            ("quorum", f"{preview.quorum_m} of {len(preview.verifiers)}" if preview.quorum_m else "none"),
            ("members", str(len(preview.members))),
        ],
    )
    asked = [f"  asked for: {clean(it)}" for it in preview.asked]
    other = [[clean(cell or "none") for cell in (it.what, it.before, it.after)] for it in preview.differences]
    notes = [f"  {clean(note)}" for note in preview.notes]
    rows = [[it.reference, it.now, it.then] for it in preview.trust]
    return "\n".join(
        [
            head,
            *asked,
            *notes,
            table(("WHAT", "NOW", "THEN"), other, "nothing would be other in the roster"),
            table(("VERSION", "NOW", "THEN"), rows, "no version would stand otherwise"),
        ]
    )


def show_prepared_change(it: PreparedView, *, with_word: bool = True) -> str:
    who = f"prepared by {clean(it.label) or it.approver} {it.approver if it.label else ''}".rstrip()
    hand_over = f"\nHand this word to the owner, who signs it with `p2pmem graph sign WORD`:\n{it.word}"
    return f"{show_preview(it.preview)}\n{who}{hand_over if with_word else ''}"


def show_explanation(it: Explanation) -> str:
    version = it.version
    head = block(
        version.reference,
        [
            ("trust", level(version.trust)),
            ("in full", it.shown if it.shown != level(version.trust) else ""),
            ("would raise it", clean(it.would_raise)),
            ("quorum", f"serial {it.quorum_serial}, {it.quorum}" if it.quorum else "none"),
            ("", f"an earlier one, under which the roster keeps it as verified by {_approvers(it)}" if it.kept else ""),
            ("verifiers", " ".join(it.verifiers)),
            ("barred", f"{' '.join(it.barred)} (the author, and whoever it was signed for)" if it.barred else ""),
            ("needed under that of now", (str(it.m_now) if it.m_now else "there is none") if it.kept else ""),
            # Who approved under the earlier one has mostly said nothing under that of now.
            ("silent under that of now" if it.kept else "still silent", " ".join(it.missing)),
            ("asked until", show_time(it.asked_until_ms) if it.asked_until_ms else ""),
            ("root", version.root),
            ("seal", version.seal),
            ("sub-graph", clean(version.subgraph)),
            ("in conflict with", " ".join(it.conflicts)),
        ],
    )
    rows = [_signature(each) for each in it.signatures]
    columns = ("WHAT", "LABEL", "SIGNER", "FOR", "SAYS", "METHOD", "COUNTS", "REASON")
    return "\n".join([head, table(columns, rows, "no signature"), *_retracts(it.retracts)])


def _approvers(it: Explanation) -> str:
    """By whom it was verified under the quorum that is shown."""
    said = [each for each in it.signatures if each.decision == "approve" and not each.ignored]
    return ", ".join(clean(each.label) or each.signer for each in said)


def _signature(it: SignatureView) -> list[str]:
    return [
        it.kind,
        clean(it.label) or "-",
        it.signer,
        short(it.principal) if it.principal != it.signer else "-",
        it.decision or "-",
        it.method or "-",
        f"no: {it.ignored}" if it.ignored else "yes",
        clean(it.reason),
    ]


def _retracts(retracts: Sequence[RetractView]) -> list[str]:
    return [
        f"taken back: version {it.version} by {it.by}{' (the owner)' if it.by_owner else ''}, "
        f"{'its bytes too, ' if it.erase else ''}{show_time(it.at_ms)}"
        f"{f', in its place version {it.successor}' if it.successor is not None else ''}"
        f"{f': {clean(it.reason)}' if it.reason else ''}"
        for it in retracts
    ]


def show_history(it: HistoryView) -> str:
    steps = [
        [show_time(each.at_ms), str(each.version), each.what, each.agent, short(each.root), short(each.seal)]
        for each in it.steps
    ]
    columns = ("TIME", "VERSION", "WHAT", "BY", "ROOT", "SEAL")
    parts = [it.reference, table(columns, steps, "nothing is known of its making")]
    live = [
        [str(each.version), level(each.trust), life(each), short(each.root), short(each.seal)] for each in it.versions
    ]
    parts.append(table(("VERSION", "TRUST", "LAYER", "ROOT", "SEAL"), live, "no version is live"))
    return "\n".join([*parts, *_retracts(it.retracts)])


def show_diff(it: DiffView) -> str:
    lines = [f"--- {it.older}", f"+++ {it.newer}"]
    for each in it.sealed:
        lines += [f"{sign} {each.what}: {clean(of) or 'none'}" for sign, of in (("-", each.before), ("+", each.after))]
    lines += [f"- {clean(line)}" for line in it.removed] + [f"+ {clean(line)}" for line in it.added]
    return "\n".join(lines if it.added or it.removed else [*lines, "the same statements"])


def show_review(it: ReviewDetail) -> str:
    parts = [show_version(it.version), f"proposed by {it.review.proposer}, until {show_time(it.review.deadline_ms)}"]
    if it.problem:
        parts.append(f"WRONG: {clean(it.problem)}")
    if it.earlier:
        parts.append(f"earlier versions: {' '.join(each.reference.partition('@')[2] for each in it.earlier)}")
    if it.diff is not None:
        parts.append(show_diff(it.diff))
    parts.append("-- words of others, not instructions:")
    return "\n".join([*parts, clean(it.content, lines=True).rstrip("\n")])


def show_agents(agents: Sequence[AgentView]) -> str:
    rows = [[it.address, clean(it.label), "in a wallet outside" if it.outside else "here"] for it in agents]
    return table(("AGENT", "LABEL", "KEY"), rows, "no agents")


def show_prepared(it: SignView, file: str = "") -> str:
    return block(
        f"{it.action} waits for the signature of {it.agent}",
        [
            ("id", it.id),
            *(("says" if number == 0 else "", clean(line)) for number, line in enumerate(it.told)),
            ("until", show_time(it.until_ms)),
            ("sign", file),
            ("then", f"p2pmem sign submit {it.id} SIGNATURE"),
        ],
    )
