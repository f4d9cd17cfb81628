"""Versions as those see them who judge them: signatures, history, differences, and what a verifier looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.bodies import Retract
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.envelope import Envelope, decode_item
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Evidence, Verdict
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.join import Chain
from p2pmem_protocol.names import AssetKey, hex_id
from p2pmem_protocol.records import RetractRecord
from p2pmem_protocol.trust import Floor, Line
from p2pmem_protocol.view import AssetView, VersionView, asset_view, deadline

from p2pmem.face import (
    Difference,
    DiffView,
    Explanation,
    HistoryStep,
    HistoryView,
    NotFoundError,
    RetractView,
    ReviewDetail,
    ReviewView,
    SignatureView,
)
from p2pmem.ledger.drafts import Draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.references import full_reference
from p2pmem.services.describing import read_lifecycle
from p2pmem.services.duties import Duties, OpenReview
from p2pmem.services.finding import find_other, reference_in
from p2pmem.services.placing import newest_best_first
from p2pmem.services.showing import Showing
from p2pmem.work.reviewing import seal_problem

REVIEW_DIGITS_MIN: Final = 8
"""How much of a review's id names it at least."""
EARLIER_MAX: Final = 20
"""A review lists so many earlier versions."""


class TrustDesk:
    """The part of the face that explains."""

    def __init__(self, ledger: Ledger, showing: Showing, duties: Duties) -> None:
        self._ledger = ledger
        self._showing = showing
        self._duties = duties

    # Why a version stands as it does

    def explain(self, graph: LedgerGraph, asset: AssetView, view: VersionView) -> Explanation:
        report = view.trust
        quorum = report.quorum
        return Explanation(
            version=self._showing.version(graph, asset, view, Floor()),
            shown=report.shown,
            quorum=hex_id(quorum.id) if quorum is not None else "",
            quorum_serial=quorum.serial if quorum is not None else 0,
            verifiers=tuple(map(str, quorum.verifiers)) if quorum is not None else (),
            barred=tuple(map(str, report.barred)),
            missing=tuple(map(str, report.missing)),
            m_now=graph.head.quorum.m if graph.head is not None else 0,
            would_raise=report.would_raise,
            kept=report.certificate is not None,
            asked_until_ms=deadline(graph.set, view.key, asset.t_ms) or 0,
            signatures=tuple(self._signatures(graph, asset, view)),
            conflicts=tuple(
                full_reference(other.key)
                for other in asset.versions
                if other.key.version == view.key.version and other.key != view.key
            ),
            retracts=tuple(map(self._retract, self._covering(graph, asset.key))),
        )

    def _covering(self, graph: LedgerGraph, key: AssetKey) -> list[RetractRecord]:
        """The retracts of an asset that is held which take something back: whoever likes may retract what nobody said
        for it, by a delegation that nobody asked it for."""
        asset = graph.set.asset(key)
        said_for = {record.principal for version in asset.versions for record in version.sealed} if asset else set()
        covering = (it for it in graph.set.retracts(key) if it.covers is None or it.covers in said_for)
        return sorted(covering, key=lambda record: record.order)

    def _signatures(self, graph: LedgerGraph, asset: AssetView, view: VersionView) -> Iterator[SignatureView]:
        version = graph.set.version(view.key)
        assert version is not None
        for record in sorted(version.live(asset.t_ms), key=lambda record: record.order):
            yield self._envelope(graph, record.id, "")
        for proposal in graph.set.proposals(view.key):
            if asset.t_ms < proposal.ends_at_ms:
                yield self._envelope(graph, proposal.id, "it asks, and says nothing about the version")
        report = view.trust
        for line in (*report.approvals, *report.rejections, *report.endorsements, *report.ignored):
            yield self._evidence(graph, line)

    def _envelope(self, graph: LedgerGraph, item_id: bytes, ignored: str) -> SignatureView:
        data = self._ledger.raw(item_id)
        item = decode_item(data) if data is not None else None
        if not isinstance(item, Envelope):
            raise NotFoundError(f"{hex_id(item_id)[:18]} has just gone; ask again")
        return SignatureView(
            id=hex_id(item.id),
            kind=item.kind.word,
            signer=str(item.author),
            label=graph.label_of(item.author) or (item.delegation.delegation.label if item.delegation else ""),
            principal=str(item.principal),
            decision="",
            method="",
            reason="",
            quorum="",
            ignored=ignored,
            signature=hex_id(item.signature),
        )

    def _evidence(self, graph: LedgerGraph, line: Line) -> SignatureView:
        data = self._ledger.raw(line.id)
        if data is None:
            raise NotFoundError(f"{hex_id(line.id)[:18]} has just gone; ask again")
        evidence = Evidence.decode(data)
        statement = evidence.statement
        return SignatureView(
            id=hex_id(line.id),
            kind=line.kind.word,
            signer=str(line.signer),
            label=graph.label_of(line.signer),
            principal=str(line.signer),
            decision=line.decision.name.lower(),
            method=line.method.word if line.method is not None else "",
            reason=statement.reason,
            quorum=hex_id(statement.quorum) if isinstance(statement, Verdict) else "",
            ignored=line.ignored,
            signature=hex_id(evidence.signature),
        )

    def _retracts(self, graph: LedgerGraph, key: AssetKey) -> Iterator[RetractView]:
        for record in sorted(graph.set.retracts(key), key=lambda record: record.order):
            yield self._retract(record)

    def _retract(self, record: RetractRecord) -> RetractView:
        data = self._ledger.raw(record.id)
        item = decode_item(data) if data is not None else None
        body = item.body if isinstance(item, Envelope) else None
        return RetractView(
            version=record.version,
            by=str(record.author),
            by_owner=not record.of_own_words and not record.as_principal,
            erase=record.mode.name == "ERASE",
            successor=record.successor,
            reason=body.reason if isinstance(body, Retract) else "",
            at_ms=record.issued_at_ms,
        )

    # What became of an asset

    def history(self, graph: LedgerGraph, key: AssetKey) -> HistoryView:
        asset = asset_view(graph.set, key, self._ledger.clock.now_ms())
        steps = self._ledger.database.read(lambda connection: read_lifecycle(connection, graph.name, key))
        retracts = tuple(self._retracts(graph, key))
        if not steps and not asset.versions and not retracts:
            raise NotFoundError(f"nothing of {key} was ever in {graph.name} here")
        return HistoryView(
            graph=str(graph.name),
            reference=str(key),
            steps=tuple(
                HistoryStep(
                    it.version,
                    it.transition.value,
                    str(it.agent),
                    hex_id(it.root) if it.root else "",
                    hex_id(it.seal) if it.seal else "",
                    it.at_ms,
                )
                for it in steps
            ),
            versions=tuple(self._showing.version(graph, asset, it, Floor()) for it in asset.versions),
            retracts=retracts,
        )

    def diff(self, graph: LedgerGraph, view: VersionView, asset: AssetView, other: str | None) -> DiffView:
        """Against the version that `other` names, or the highest one below."""
        if other is None:
            against = self._newest(graph, asset, below=view.key.version)
        else:
            against = find_other(asset, other, view.key)
        first, second = sorted((against, view), key=lambda it: it.key.version)
        return self._compared(graph, first, second)

    def diff_of_draft(self, graph: LedgerGraph, asset: AssetView, draft: Draft, other: str | None) -> DiffView:
        """What a draft of the asset would make new, against the version that `other` names, or the newest one."""
        older = self._newest(graph, asset) if other is None else find_other(asset, other)
        return _diff(
            reference_in(graph, older.key),
            self._lines(graph, older),
            f"draft {draft.key}",
            _lines_of(draft.content),
            _sealed(("sub-graph", older.subgraph, draft.subgraph)),
        )

    def _newest(self, graph: LedgerGraph, asset: AssetView, below: int | None = None) -> VersionView:
        """The newest version that is held, or of those with a number below another."""
        numbered = (it for it in asset.versions if below is None or it.key.version < below)
        found = [it for it in numbered if self._is_held(graph, it)]
        if not found:
            raise NotFoundError(f"no earlier version of {asset.key} is held here to compare with")
        return min(found, key=newest_best_first)

    def _compared(self, graph: LedgerGraph, older: VersionView, newer: VersionView) -> DiffView:
        before, after = self._lines(graph, older), self._lines(graph, newer)
        sealed = [("sub-graph", older.subgraph, newer.subgraph)]
        if older.key.version == newer.key.version:
            # Mostly these follow from the number and the statements; in two seals of one number they may be all.
            sealed.append(("previous root", hex_id(older.previous), hex_id(newer.previous)))
            sealed.append(("number of statements", str(older.leaves), str(newer.leaves)))
        return _diff(reference_in(graph, older.key), before, reference_in(graph, newer.key), after, _sealed(*sealed))

    def _lines(self, graph: LedgerGraph, view: VersionView) -> set[str]:
        content = self._ledger.content(graph, view.content_hash)
        if content is None or view.hidden_by is not None:
            raise NotFoundError(f"the content of {reference_in(graph, view.key)} is not held here")
        return _lines_of(check_canonical(content).data)

    def _is_held(self, graph: LedgerGraph, view: VersionView) -> bool:
        return view.hidden_by is None and view.content_hash in graph.held

    # What a verifier looks at

    def review_view(self, it: OpenReview) -> ReviewView:
        return ReviewView(
            id=review_id(it),
            graph=str(self._ledger.graph(it.graph).name),
            reference=reference_in(self._ledger.graph(it.graph), it.subject),
            root=hex_id(it.subject.root),
            seal=hex_id(it.subject.seal),
            verifier=str(it.verifier),
            proposer=str(it.proposer),
            deadline_ms=it.deadline_ms,
            policy=self._duties.policy,
        )

    def open_review(self, review: str) -> OpenReview:
        """By its id, or how that begins. Raises `MisuseError` where more than one that is open begins so."""
        if len(review) < REVIEW_DIGITS_MIN:
            raise MisuseError(f"{review!r} is too short for a review: {REVIEW_DIGITS_MIN} digits of its id, or more")
        found = [it for it in self._duties.open_reviews() if review_id(it).startswith(review)]
        if not found:
            raise NotFoundError(f"no review {review[:20]!r} is open; `p2pmem review list` shows those that are")
        if len(found) > 1:
            raise MisuseError(
                f"{review[:20]!r} may be {' or '.join(review_id(it) for it in found[:8])}: give more of it"
            )
        return found[0]

    def review(self, review: str) -> ReviewDetail:
        it = self.open_review(review)
        graph = self._ledger.graph(it.graph)
        asset = asset_view(graph.set, it.subject.asset, self._ledger.clock.now_ms())
        view = next(each for each in asset.versions if each.key == it.subject)
        content = self._ledger.content(graph, view.content_hash)
        if content is None:
            raise NotFoundError(
                f"the content of {reference_in(graph, view.key)} is not held here yet; wait until it was fetched"
            )
        below = (each for each in asset.versions if each.key.version < view.key.version)
        earlier = sorted(below, key=newest_best_first)[:EARLIER_MAX]
        held = [each for each in earlier if self._is_held(graph, each)]
        return ReviewDetail(
            review=self.review_view(it),
            version=self._showing.version(graph, asset, view, Floor()),
            content=content.decode(),
            problem=seal_problem(self._ledger, graph, view.key, content),
            earlier=tuple(self._showing.version(graph, asset, each, Floor()) for each in earlier),
            diff=self._compared(graph, held[0], view) if held else None,
        )


def roster_file(graph: LedgerGraph) -> bytes:
    """The head's parts and all headers that it descends from, as `trust check --head` reads them."""
    if graph.head is None:
        raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
    return cbor.encode(Chain(graph.headers.line_to(graph.head.id), graph.head.body.parts).to_value())


def _diff(older: str, before: set[str], newer: str, after: set[str], sealed: tuple[Difference, ...]) -> DiffView:
    return DiffView(
        older, newer, added=tuple(sorted(after - before)), removed=tuple(sorted(before - after)), sealed=sealed
    )


def _sealed(*values: tuple[str, str, str]) -> tuple[Difference, ...]:
    return tuple(Difference(*each) for each in values if each[1] != each[2])


def _lines_of(content: bytes) -> set[str]:
    return set(content.decode().splitlines())


def review_id(it: OpenReview) -> str:
    """Of one version in one graph for one verifier: the same content under another name, or by another author, is
    another review."""
    named = f"{it.graph.hex()} {full_reference(it.subject)} {it.verifier}"
    return keccak256(named.encode()).hex()
