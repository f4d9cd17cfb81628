"""Recall: a question in words, answered with passages and who stands behind each.

Candidates come from full text. Then trust decides: rejected, retracted and expired versions are not there; what is
better attested weighs more; one's own draft is not ranked below a stranger's share. A passage that says something else
about a subject than a better attested one does, where each has one value, is put beneath it and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyoxigraph as ox
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.errors import MisuseError, RefusedError
from p2pmem_protocol.names import Address, AssetKey, GraphId
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.face import Layer, RecallAnswer, RecallHit
from p2pmem.ledger.drafts import Draft, read_draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.recall.passages import local_name
from p2pmem.recall.text_index import TextFilter, TextHit, TextIndex
from p2pmem.services.showing import Showing

LIMIT_MAX: Final = 100
CANDIDATES_PER_HIT: Final = 5
PER_AUTHOR: Final = 10
WEIGHT: Final = {
    Trust.SELF_ATTESTED: 1.0,
    Trust.ENDORSED: 1.3,
    Trust.PARTIALLY_VERIFIED: 1.6,
    Trust.CONSENSUS_VERIFIED: 2.2,
}
OWN_DRAFT_WEIGHT: Final = 1.3
FOUND: Final = 0.1
"""What being found at all is worth: in a small memory every word is common, and BM25 gives it nothing."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    hit: TextHit
    graph: LedgerGraph
    asset: AssetView | None
    version: VersionView | None
    draft: Draft | None
    score: float

    @property
    def level(self) -> Trust:
        return self.version.trust.level if self.version is not None else Trust.SELF_ATTESTED


class Recalling:
    """Answers questions from this node's own indexes; asks nobody."""

    def __init__(self, ledger: Ledger, text: TextIndex, showing: Showing) -> None:
        self._ledger = ledger
        self._text = text
        self._showing = showing

    async def recall(
        self,
        question: str,
        graphs: Iterable[LedgerGraph],
        floor: Floor | None,
        limit: int,
        drafts_of: Address | None = None,
    ) -> RecallAnswer:
        """The passages that answer best, at most `limit`. `floor` None stands for the default policy. Drafts are those
        of all agents of this node, or of one alone."""
        if not question.strip():
            raise MisuseError("there is no word in the question")
        if not 1 <= limit <= LIMIT_MAX:
            raise MisuseError(f"limit {limit}: 1 to {LIMIT_MAX} are possible")
        by_iri = {graph.name.iri: graph for graph in graphs}
        now_ms = self._ledger.clock.now_ms()
        filter_ = TextFilter(
            context_graphs=tuple(by_iri),
            now_ms=now_ms,
            least_level=int(floor.level) if floor else None,
            layers=(Layer.SHARED.value, Layer.PUBLISHED.value) if floor else None,
            per_author=PER_AUTHOR,
        )
        hits = await self._text.search(question, min(limit * CANDIDATES_PER_HIT, 1_000), filter_)
        drafts = cache(self._draft)  # which may be large, and have many of the passages
        found = [
            candidate
            for hit in _once(hits)
            if (candidate := self._candidate(hit, by_iri[hit.context_graph], floor, now_ms, drafts)) is not None
            and (candidate.draft is None or drafts_of in (None, candidate.draft.agent))
        ]
        found.sort(key=lambda candidate: -candidate.score)
        shown = self._folded(found)[:limit]
        return RecallAnswer(question, _policy(floor), self._text.position, tuple(shown))

    def _draft(self, graph: GraphId, key: AssetKey) -> Draft | None:
        return self._ledger.database.read(lambda it: read_draft(it, self._ledger.network, graph, key))

    def _candidate(
        self,
        hit: TextHit,
        graph: LedgerGraph,
        floor: Floor | None,
        now_ms: int,
        drafts: Callable[[GraphId, AssetKey], Draft | None],
    ) -> _Candidate | None:
        """A hit as it stands now; None when the ledger says that it is not to be returned."""
        author, _, name = hit.asset.partition("/")
        key = AssetKey(Address.parse(author), name)
        if hit.layer == Layer.WORKING.value:
            draft = drafts(graph.id, key)
            if draft is None:
                return None
            return _Candidate(hit, graph, None, None, draft, (hit.score + FOUND) * OWN_DRAFT_WEIGHT)
        asset = asset_view(graph.set, key, now_ms)
        current = asset.current(floor) if floor else asset.current_at_any_floor()
        for version in current:
            if (version.key.version, version.key.seal) == (hit.version, hit.seal):
                level = version.trust.level
                if level is Trust.REJECTED:
                    return None
                return _Candidate(hit, graph, asset, version, None, (hit.score + FOUND) * WEIGHT[level])
        return None

    def _folded(self, found: list[_Candidate]) -> list[RecallHit]:
        """Best first; what says otherwise than a better attested passage comes right after it, marked."""
        leaders: list[_Candidate] = []
        beneath: dict[int, list[RecallHit]] = {}
        for candidate in sorted(found, key=lambda it: (-it.level, -it.score)):
            better = self._contradicted(candidate, leaders)
            if better is None:
                leaders.append(candidate)
                continue
            leader, predicate = better
            note = f"says otherwise than the better attested passage above ({predicate})"
            beneath.setdefault(id(leader), []).append(self._hit(candidate, note))
        shown: list[RecallHit] = []
        for leader in sorted(leaders, key=lambda it: -it.score):
            shown += [self._hit(leader, _note(leader)), *beneath.get(id(leader), [])]
        return shown

    def _contradicted(self, candidate: _Candidate, others: list[_Candidate]) -> tuple[_Candidate, str] | None:
        for other in others:
            if other.level > candidate.level and other.hit.subject == candidate.hit.subject:
                predicate = _differs(self._values(other), self._values(candidate))
                if predicate is not None:
                    return other, local_name(predicate)
        return None

    def _values(self, candidate: _Candidate) -> dict[str, str]:
        """The predicates of the passage's subject that have exactly one value, with it. Texts in a language are names
        and notes, of which there may be many."""
        data = self._content(candidate)
        values: dict[str, list[str]] = {}
        try:
            content = check_canonical(data) if data is not None else None
        except RefusedError:
            return {}
        for triple in content.triples() if content is not None else ():
            if isinstance(triple.object, ox.Literal) and triple.object.language:
                continue
            if getattr(triple.subject, "value", None) == candidate.hit.subject:
                values.setdefault(triple.predicate.value, []).append(str(triple.object))
        return {predicate: found[0] for predicate, found in values.items() if len(found) == 1}

    def _content(self, candidate: _Candidate) -> bytes | None:
        if candidate.version is not None:
            return self._ledger.content(candidate.graph, candidate.version.content_hash)
        return candidate.draft.content if candidate.draft is not None else None

    def _hit(self, candidate: _Candidate, note: str) -> RecallHit:
        version = None
        if candidate.version is not None and candidate.asset is not None:
            version = self._showing.version(candidate.graph, candidate.asset, candidate.version, Floor())
        return RecallHit(
            text=candidate.hit.text,
            subject=candidate.hit.subject,
            score=round(candidate.score, 4),
            own_draft=candidate.version is None,
            note=note,
            version=version,
            draft=self._showing.draft(candidate.graph, candidate.draft) if candidate.draft is not None else None,
        )


def _once(hits: Iterable[TextHit]) -> Iterable[TextHit]:
    """A version may stand in several named graphs; each of its passages is one hit."""
    return {(hit.asset, hit.version, hit.seal, hit.subject, hit.text): hit for hit in reversed(list(hits))}.values()


def _differs(better: dict[str, str], worse: dict[str, str]) -> str | None:
    """A predicate on which two passages, each with one value, disagree."""
    return next((predicate for predicate, value in worse.items() if better.get(predicate, value) != value), None)


def _note(candidate: _Candidate) -> str:
    conflict = candidate.version is not None and candidate.version.conflict
    return "its author let go another seal as this version too" if conflict else ""


def _policy(floor: Floor | None) -> str:
    if floor is None:
        return "all but Rejected; expired and retracted left out; weighted by trust"
    least = f", M of at least {floor.least_m}" if floor.least_m else ""
    return f"at least {floor.level.word}{least}; expired and retracted left out; weighted by trust"
