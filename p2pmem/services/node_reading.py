"""The reading half of a node's face: versions and who stands behind them, recall, queries, what changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

import trio
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.names import Address, AssetKey
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem import face
from p2pmem.face import (
    CertificateView,
    ChangeEvent,
    DiffView,
    Explanation,
    HistoryView,
    Layer,
    NotFoundError,
    RecallAnswer,
)
from p2pmem.ledger.drafts import Draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import UNKNOWN_GRAPH_TEXT, Ledger
from p2pmem.references import parse_reference
from p2pmem.services.certifying import statement_proof
from p2pmem.services.finding import assets_named, find_readable, find_version
from p2pmem.services.parts import Services
from p2pmem.services.placing import floor_graphs, working_iri
from p2pmem.services.trust_desk import TrustDesk, roster_file
from p2pmem.store.query import StoreBehind, looks_into_graphs

EVENTS_PER_READ: Final = 500
LISTED_AT_ONCE: Final = 100
"""Assets that are looked at before others have their turn; each takes some 0.1 ms."""
DESCRIBED_S: Final = 10.0
JUMPED_TEXT: Final = (
    "the wall clock jumped and is in doubt, and by it something has ended that a query would still find: set the clock "
    "right, or say that it is right with `p2pmem clock confirm`; recall and lists leave out what has ended"
)


class NodeReading:
    """What is read of one node. Decides nothing."""

    _drafts_of: Address | None = None
    """Whose drafts are recalled; None: those of all agents of the node."""

    def __init__(self, services: Services) -> None:
        self._s = services
        self._trust = TrustDesk(services.ledger, services.showing, services.duties)

    @property
    def _agent(self) -> Address:
        """Who speaks where nobody is named."""
        return self._s.signing.default_agent

    def _named(self, graph: str) -> LedgerGraph:
        """A context graph to say something in."""
        return self._s.ledger.named(graph)

    def _may_read(self, graph: LedgerGraph) -> bool:
        """Whether what is in the graph may be told to who asks."""
        return True

    def _to_read(self, graph: str) -> LedgerGraph:
        """A context graph to read. One that may not be read is one that is unknown."""
        found = self._s.ledger.named(graph)
        if not self._may_read(found):
            raise unknown(found)
        return found

    def _version(self, graph: str, reference: str) -> tuple[LedgerGraph, AssetView, VersionView]:
        """A version by reference, to say something about it."""
        found = self._named(graph)
        try:
            return found, *find_version(found, reference, self._agent, self._s.clock.now_ms())
        except NotFoundError as error:
            raise self._draft_instead(found, reference) or error from None

    def _readable(self, graph: str, reference: str) -> tuple[LedgerGraph, AssetView, VersionView]:
        """A version by reference, to read it."""
        found = self._to_read(graph)
        try:
            return found, *find_readable(found, reference, self._agent, self._s.clock.now_ms())
        except NotFoundError as error:
            raise self._draft_instead(found, reference) or error from None

    def _draft(self, graph: LedgerGraph, reference: str) -> Draft | None:
        """The draft of the agent's own that a reference without a version names, if there is one."""
        named = parse_reference(reference, self._agent)
        is_own = named.number is None and named.key.author == self._agent
        return self._s.drafting.get(graph.id, named.key) if is_own else None

    def _draft_instead(self, graph: LedgerGraph, reference: str) -> NotFoundError | None:
        """What to say where a version is wanted, and there is a draft of that name."""
        draft = self._draft(graph, reference)
        if draft is None:
            return None
        return NotFoundError(
            f"{draft.key} is a draft in {graph.name}, which nobody else sees: `p2pmem share {draft.name}` or "
            f"`p2pmem publish {draft.name}` makes it a version"
        )

    async def versions(
        self, graph: str, *, layer: Layer | None, min_trust: str | None, min_m: int = 0
    ) -> tuple[face.VersionView, ...]:
        """All of them, as each stood when it was looked at. Of many so many at a time: others go on meanwhile, and what
        has ended until all are looked at is left out."""
        s = self._s
        found = self._to_read(graph)
        floor = Floor(Trust.parse(min_trust or "SelfAttested"), min_m) if min_trust or min_m else None
        views: list[face.VersionView] = []
        for number, key in enumerate(sorted(found.set.assets(), key=_author_and_name), 1):
            asset = asset_view(found.set, key, s.clock.now_ms())
            chosen = asset.current(floor) if floor else tuple(asset.visible())
            views += [s.showing.version(found, asset, it, floor or Floor()) for it in chosen]
            if number % LISTED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        now_ms = s.clock.now_ms()
        return tuple(it for it in views if layer in (None, it.layer) and (not it.expires_ms or it.expires_ms > now_ms))

    async def version(self, graph: str, reference: str) -> face.VersionView:
        found, asset, view = self._readable(graph, reference)
        return self._s.showing.version(found, asset, view, Floor())

    async def history(self, graph: str, reference: str) -> HistoryView:
        found, own = self._to_read(graph), self._agent
        key = parse_reference(reference, own).key
        try:
            return self._trust.history(found, key)
        except NotFoundError:
            if "/" in reference:
                raise
        # as wherever one only reads, a name is also that of the only author who has it; here also of what is gone
        if len(named := assets_named(found, key.name)) == 1:
            return self._trust.history(found, named[0])
        _, view = find_readable(found, key.name, own, self._s.clock.now_ms())
        return self._trust.history(found, view.key.asset)

    async def diff(self, graph: str, reference: str, *, other: str | None) -> DiffView:
        draft = self._draft(self._to_read(graph), reference)
        if draft is not None:
            found = self._to_read(graph)
            asset = asset_view(found.set, draft.key, self._s.clock.now_ms())
            return self._trust.diff_of_draft(found, asset, draft, other)
        found, asset, view = self._readable(graph, reference)
        return self._trust.diff(found, view, asset, other)

    async def explain(self, graph: str, reference: str) -> Explanation:
        found, asset, view = self._readable(graph, reference)
        return self._trust.explain(found, asset, view)

    async def roster(self, graph: str) -> bytes:
        return roster_file(self._to_read(graph))

    async def content(self, graph: str, reference: str) -> bytes:
        found, _, view = self._readable(graph, reference)
        data = self._s.ledger.content(found, view.content_hash)
        if data is None or view.hidden_by is not None:
            raise NotFoundError(f"the content of {reference} is not held here")
        return data

    async def certificate(self, graph: str, reference: str) -> CertificateView:
        found, _, view = self._readable(graph, reference)
        return self._s.certifying.certificate(found, view)

    async def proof(self, graph: str, reference: str, statement: str) -> dict[str, object]:
        found, _, view = self._readable(graph, reference)
        return statement_proof(found, view, check_canonical(await self.content(graph, reference)), statement)

    async def recall(
        self, question: str, *, graph: str | None, min_trust: str | None, min_m: int, limit: int
    ) -> RecallAnswer:
        s = self._s
        graphs = [self._to_read(graph)] if graph else [*filter(self._may_read, s.ledger.graphs.values())]
        floor = Floor(Trust.parse(min_trust or "SelfAttested"), min_m) if min_trust or min_m else None
        answer = await s.recalling.recall(question, graphs, floor, limit, self._drafts_of)
        await s.auditing.recalled(question, answer)
        return answer

    async def query(
        self, sparql: str, *, graph: str, layer: Layer | None, min_trust: str | None, at_least: int, min_m: int = 0
    ) -> face.QueryAnswer:
        """Over the aggregates of one floor; GRAPH sees `_meta`. What has expired is swept before it is asked.

        `StoreBehind` where `_meta` does not say within `DESCRIBED_S` what has happened; `DiskError` where the disk
        refuses that, or to let go what has ended; `OutsideError` while the clock is in doubt, and something has ended
        by it that is not let go for that.
        """
        s = self._s
        found = self._to_read(graph)
        floor = Floor(Trust.parse(min_trust) if min_trust else Trust.SELF_ATTESTED, min_m)
        layers = [layer] if layer else [Layer.SHARED, Layer.PUBLISHED]
        graphs = [*floor_graphs(found, [it for it in layers if it is not Layer.WORKING], floor)]
        if Layer.WORKING in layers:
            graphs.append(working_iri(found.name))
        await s.keeper.swept()
        if looks_into_graphs(sparql):
            # Only a pattern inside GRAPH sees `_meta`, which else need not be brought up to date for an answer.
            await self._describe(s.ledger.position)
            await s.keeper.swept()  # what ended while it was waited for
        if s.keeper.owes():
            raise OutsideError(JUMPED_TEXT)
        s.projector.hurry()
        answer = await s.queries.query(
            sparql,
            default_graphs=graphs,
            named_graphs=[found.name.meta_iri],
            at_least=max(at_least, s.ledger.position),
        )
        return s.showing.answer(answer, sparql)

    async def _describe(self, position: int) -> None:
        """Wait until `_meta` says what happened up to `position`. An answer without it would look complete."""
        s = self._s
        with trio.move_on_after(0 if s.projector.refusals() else DESCRIBED_S):
            await s.projector.described(position)
        described = s.projector.describer.position
        if described < position:
            s.projector.check_takes()
            raise StoreBehind(position, described, "what _meta says")

    async def changes(self, since: int) -> AsyncIterator[ChangeEvent]:
        s = self._s
        position = since
        while True:
            for event in s.showing.events(position, EVENTS_PER_READ):
                position = event.position
                yield event
            if position >= s.ledger.position:
                await s.ledger.until(_newer(s.ledger, position))


def unknown(graph: LedgerGraph) -> NotFoundError:
    """What is said of a graph that does not exist, or is not for who asks: the same."""
    return NotFoundError(f"{graph.name} {UNKNOWN_GRAPH_TEXT}; `p2pmem graph list` shows those that it does")


def _author_and_name(key: AssetKey) -> tuple[Address, str]:
    """The order of assets, in a form that is compared ten times as fast."""
    return key.author, key.name


def _newer(ledger: Ledger, position: int) -> Callable[[], bool]:
    return lambda: ledger.position > position
