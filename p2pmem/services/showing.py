"""From the rules' values to what people and JSON see."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from p2pmem_jobs import JobRecord, JobsError, State
from p2pmem_protocol.envelope import Envelope
from p2pmem_protocol.errors import MisuseError, P2pmemError
from p2pmem_protocol.evidence import Evidence
from p2pmem_protocol.hashing import HASH_BYTES
from p2pmem_protocol.names import ADDRESS_BYTES, Address, GraphId, VersionKey, hex_id
from p2pmem_protocol.records import SealedRecord
from p2pmem_protocol.roster import Header
from p2pmem_protocol.trust import Floor, Line, TrustReport
from p2pmem_protocol.view import Anchored, AssetView, VersionView, copies

from p2pmem import face
from p2pmem.face import (
    AnchorView,
    BranchView,
    ChangeEvent,
    DraftView,
    GraphView,
    JobView,
    MemberView,
    QuotaView,
    SignerView,
    TrustView,
)
from p2pmem.ledger.drafts import Draft
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.references import full_reference
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.finding import reference_in
from p2pmem.services.placing import layer_of, newest_best_first, version_iri
from p2pmem.store.query import AnswerKind, QueryAnswer
from p2pmem.store.terms import to_oxigraph

NEEDS_CHAIN: Final = ("anchor", "register", "attest")
"""Jobs that only a node with a chain does."""


class Showing:
    """Makes the values of `p2pmem.face`."""

    def __init__(self, ledger: Ledger, facts: ChainFacts) -> None:
        self._ledger = ledger
        self._facts = facts

    def graph(self, graph: LedgerGraph, online: frozenset[Address]) -> GraphView:
        head = graph.head
        if head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        limits = head.body.limits
        return GraphView(
            graph=str(graph.name),
            iri=graph.name.iri,
            id=hex_id(graph.id),
            access=limits.access.name.lower(),
            owner=str(head.header.owner),
            version=head.header.version,
            term=head.header.term,
            head=hex_id(head.id),
            quorum_m=head.quorum.m,
            verifiers=tuple(map(str, head.quorum.verifiers)),
            members=tuple(
                MemberView(str(it.address), it.label, it.roles.words, it.since_ms, it.address in online)
                for it in head.body.members
            ),
            ttl_default_ms=limits.ttl_default_ms,
            ttl_max_ms=limits.ttl_max_ms,
            acks_min=limits.acks_min,
            chain=limits.chain,
            contract=str(limits.contract),
            trouble=graph.trouble,
            root=str(graph.name.creator),
            quotas=QuotaView(
                limits.quotas.live_bytes,
                limits.quotas.live_items,
                limits.quotas.durable_items,
                limits.quotas.content_bytes,
            ),
            branches=tuple(_branch(it.header) for it in map(graph.headers.get, graph.headers.head().branches) if it),
        )

    def _delegated_label(self, records: Sequence[SealedRecord]) -> str:
        """What a principal calls the agent, when the agent is not listed itself."""
        for record in records:
            data = self._ledger.raw(record.id) if record.delegated else None
            delegation = Envelope.decode(data).delegation if data is not None else None
            if delegation is not None:
                return delegation.delegation.label
        return ""

    def draft(self, graph: LedgerGraph, draft: Draft) -> DraftView:
        seal = draft.seal.seal if draft.seal else None
        return DraftView(
            graph=str(graph.name),
            reference=str(draft.key),
            iri=graph.name.draft_iri(draft.agent, draft.name, draft.subgraph),
            subgraph=draft.subgraph,
            statements=draft.content.count(b"\n"),
            sealed=seal is not None,
            edited=draft.edited,
            version=seal.version if seal else 0,
            root=hex_id(seal.root) if seal else "",
            updated_ms=draft.updated_ms,
        )

    def version(self, graph: LedgerGraph, asset: AssetView, view: VersionView, floor: Floor) -> face.VersionView:
        """One version as it stands at the instant of `asset`."""
        key = view.key
        of_number = [other for other in asset.visible() if other.key.version == key.version]
        is_best = view.key == min((*of_number, view), key=newest_best_first).key
        best = max((other.trust.level for other in asset.visible() if other.key.version < key.version), default=None)
        live = [record for record in self._records(graph, view) if asset.t_ms < record.ends_at_ms]
        return face.VersionView(
            graph=str(graph.name),
            reference=f"{key.asset}@{key.version}" if not view.conflict else full_reference(key),
            iri=version_iri(graph.name, view, is_best=is_best),
            author=str(key.author),
            principal=str(view.principals[0]) if view.principals else str(key.author),
            author_label=graph.label_of(key.author) or self._delegated_label(live),
            name=key.name,
            version=key.version,
            root=hex_id(key.root),
            seal=hex_id(key.seal),
            statements=view.leaves,
            subgraph=view.subgraph,
            layer=layer_of(view),
            expires_ms=view.lives_until_ms or 0,
            issued_ms=min((record.issued_at_ms for record in live), default=0),
            held=view.content_hash in graph.held,
            current=view.key in {current.key for current in asset.current(floor)},
            retracted=view.hidden_by is not None,
            newer_unverified=best is not None and best > view.trust.level,
            copies=len(copies(graph.set, key.root, asset.t_ms)),
            trust=self.trust(graph, view.trust, conflict=view.conflict),
            anchor=self._anchor(graph, view),
        )

    def _records(self, graph: LedgerGraph, view: VersionView) -> list[SealedRecord]:
        version = graph.set.version(view.key)
        return list(version.sealed) if version is not None else []

    def trust(self, graph: LedgerGraph, report: TrustReport, *, conflict: bool) -> TrustView:
        lines = [
            *((line, "") for line in (*report.approvals, *report.rejections, *report.endorsements)),
            *((line, line.ignored) for line in report.ignored),
        ]
        methods = [line.method.word for line in report.approvals if line.method is not None]
        return TrustView(
            level=report.level.word,
            m=report.m,
            n=report.n,
            approvals=len(report.approvals),
            rejections=len(report.rejections),
            endorsements=len(report.endorsements),
            methods=tuple(sorted(methods)),
            signers=tuple(self._signer(graph, line, ignored) for line, ignored in lines),
            missing=report.would_raise,
            conflict=conflict,
        )

    def _signer(self, graph: LedgerGraph, line: Line, ignored: str) -> SignerView:
        said = self._ledger.raw(line.id)
        reason = Evidence.decode(said).statement.reason if said is not None else ""
        return SignerView(
            address=str(line.signer),
            label=graph.label_of(line.signer),
            decision=line.decision.name.lower(),
            method=line.method.word if line.method is not None else "",
            reason=f"{reason} ({ignored})" if ignored else reason,
            counts=line.counts,
        )

    def job(self, record: JobRecord) -> JobView:
        """A job, with what it is about taken from its arguments."""
        args = _arguments(record)
        subject = args.get("subject", args)
        graph = self._ledger.graphs.get(GraphId(_bytes(subject.get("graph"))))
        author = _bytes(subject.get("author") or args.get("agent"))
        name = subject.get("name")
        reference = f"{Address(author)}/{name}" if name and len(author) == ADDRESS_BYTES else ""
        if reference and "version" in subject:
            reference = _version_reference(graph, subject) or f"{reference}@{subject['version']}"
        waits = record.state is State.WAITING
        return JobView(
            id=record.id,
            kind=record.kind,
            state=record.state.value,
            reference=reference,
            graph=str(graph.name) if graph is not None else "",
            created_ms=record.submitted_ms,
            updated_ms=record.ended_ms or self._ledger.clock.now_ms(),
            attempts=record.attempt,
            progress=record.detail if not waits else "",
            waiting_for=record.detail if waits else self._parked(record),
            error=in_words(record.error or ""),
            result=_plain(_stored(record.result)) if record.result is not None else None,
            agent=str(agent) if (agent := _agent_in(args)) is not None else "",
            next_try_ms=_next_try_ms(record, self._ledger.clock.now_ms()),
        )

    def _parked(self, record: JobRecord) -> str:
        """Why nothing goes on with a job, in words of the node and not of its queue."""
        if record.parked is None:
            return ""
        if record.kind in NEEDS_CHAIN and not self._facts.has_chain:
            return (
                "this node has no chain in its settings any more: set chain.rpc and chain.contract and start it again, "
                "or cancel the job"
            )
        return f"another version of p2pmem began it, and this one cannot go on with it ({record.parked})"

    def answer(self, answer: QueryAnswer, sparql: str) -> face.QueryAnswer:
        """An answer of the store."""
        kind = answer.kind
        rows = answer.rows() if kind is AnswerKind.SELECT else ()
        variables = answer.variables if kind is AnswerKind.SELECT else ()
        order = sorted(range(len(variables)), key=lambda at: _first_named(variables[at], sparql))
        return face.QueryAnswer(
            kind={AnswerKind.SELECT: "rows", AnswerKind.ASK: "boolean", AnswerKind.GRAPH: "triples"}[kind],
            variables=tuple(variables[at] for at in order),
            rows=tuple(tuple(_term(row[at]) for at in order) for row in rows),
            boolean=answer.boolean if kind is AnswerKind.ASK else None,
            triples=answer.n_triples if kind is AnswerKind.GRAPH else "",
            position=answer.position,
            truncated=answer.truncated,
        )

    def events(self, since: int, limit: int) -> list[ChangeEvent]:
        """Changes after a position."""
        rows = self._ledger.database.read(
            lambda connection: connection.execute(
                "SELECT position, at_ms, graph, what, author, name FROM event WHERE position > ? "
                "ORDER BY position LIMIT ?",
                (since, limit),
            ).fetchall()
        )
        return [
            ChangeEvent(
                position=position,
                what=what,
                graph=str(graph.name) if (graph := self._ledger.graphs.get(GraphId(graph_id))) is not None else "",
                reference=f"{Address(author)}/{name}" if author is not None else "",
                at_ms=at_ms,
            )
            for position, at_ms, graph_id, what, author, name in rows
        ]

    def _anchor(self, graph: LedgerGraph, view: VersionView) -> AnchorView | None:
        fact = self._facts.fact(graph, view.key)
        if fact is not None:
            contract = str(graph.head.body.limits.contract) if graph.head else ""
            return AnchorView(
                fact.state, fact.chain, contract, hex_id(fact.transaction), fact.block, hex_id(fact.batch_root)
            )
        claims = graph.set.anchors(view.key)
        if not claims:
            return None
        claim = min(claims, key=lambda record: record.id)
        return AnchorView(Anchored.CLAIMED.value, claim.chain, str(claim.contract), "", 0, hex_id(claim.batch_root))


def _term(value: Any) -> str | None:
    return str(to_oxigraph(value)) if value is not None else None


def _first_named(variable: str, sparql: str) -> int:
    """Where a query names a variable first: columns stand in that order, also those of `SELECT *`."""
    found = re.search(rf"[?$]{re.escape(variable)}\b", sparql)
    return found.start() if found else len(sparql)


def in_words(error: str) -> str:
    """What the queue keeps of an error, `Class: text`, without the class where that is ours and the text says it all.

    The class of a foreign error stays: it may be all there is.
    """
    kind, found, text = error.partition(": ")
    ours = found and text and kind in {*_names_under(P2pmemError), *_names_under(JobsError)}
    return text if ours else error


def _names_under(kind: type[Exception]) -> set[str]:
    return {kind.__name__}.union(*map(_names_under, kind.__subclasses__()))


def _branch(header: Header) -> BranchView:
    return BranchView(
        hex_id(header.id),
        header.version,
        header.term,
        str(header.owner),
        str(header.signer),
        f"serial {header.quorum_serial}",
    )


def agent_of(record: JobRecord) -> Address | None:
    """Whose job it is: the agent that it signs as. None for what the node does as such."""
    return _agent_in(_arguments(record))


def _agent_in(args: dict[str, Any]) -> Address | None:
    agent = _bytes(args.get("agent"))
    return Address(agent) if len(agent) == ADDRESS_BYTES else None


def _next_try_ms(record: JobRecord, now_ms: int) -> int:
    return record.run_at_ms if record.state is State.QUEUED and record.run_at_ms > now_ms else 0


def _version_reference(graph: LedgerGraph | None, subject: dict[str, Any]) -> str:
    """The version that a job is about, by a name that no other has; empty where its arguments are damaged."""
    root, seal = _bytes(subject.get("root")), _bytes(subject.get("seal"))
    if graph is None or len(root) != HASH_BYTES or len(seal) != HASH_BYTES:
        return ""
    author = Address(_bytes(subject.get("author")))
    return reference_in(graph, VersionKey(author, subject["name"], subject["version"], root, seal))


def _arguments(record: JobRecord) -> dict[str, Any]:
    """What a job is about, as far as it can be read: of a job that is damaged a list shows what is left."""
    args = _stored(record.args)
    return args if isinstance(args, dict) and isinstance(args.get("subject", args), dict) else {}


def _stored(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _bytes(value: object) -> bytes:
    """A byte string as the job queue writes it; empty where it is damaged."""
    try:
        return base64.b64decode(value["$bytes"]) if isinstance(value, dict) and "$bytes" in value else b""
    except ValueError:
        return b""


def _plain(value: Any) -> Any:
    """A job's result with ids as hexadecimal text."""
    if isinstance(value, dict):
        return hex_id(_bytes(value)) if "$bytes" in value else {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
