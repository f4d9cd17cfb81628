"""endorse, verify and review.

endorse   check that the bytes are held; sign; admit
verify    sign `propose` under the head's quorum; admit; wait until consensus, rejection or the deadline. When the
          quorum changes meanwhile, propose again under the new one
review    (at a verifier) hold the bytes, recompute root and seal, apply the policy, sign a verdict, admit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p2pmem_jobs import Context, Handler, Queue, WaitedTooLongError
from p2pmem_protocol.bodies import Propose
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.errors import MisuseError, RefusedError
from p2pmem_protocol.evidence import Decision, Endorse, Evidence, Method, Verdict
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS, DEADLINE_MS_MAX
from p2pmem_protocol.names import Address, GraphId, VersionKey
from p2pmem_protocol.seal import Seal
from p2pmem_protocol.trust import Trust, TrustReport
from p2pmem_protocol.view import VersionView, asset_view

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.signing import Signing
from p2pmem.work.outgoing import RETRY, Outgoing, Ready, classify_error

DEADLINE_DEFAULT_MS: Final = 7 * DAY_MS
PROPOSALS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class SubjectArgs:
    """One version, as arguments of a job hold it."""

    graph: bytes
    author: bytes
    name: str
    version: int
    root: bytes

    @property
    def key(self) -> VersionKey:
        return VersionKey(Address(self.author), self.name, self.version, self.root)

    @classmethod
    def of(cls, graph: GraphId, key: VersionKey) -> SubjectArgs:
        return cls(graph, bytes(key.author), key.name, key.version, key.root)


@dataclass(frozen=True, slots=True)
class EndorseArgs:
    subject: SubjectArgs
    agent: bytes
    withdraw: bool
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyArgs:
    subject: SubjectArgs
    agent: bytes
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ReviewArgs:
    """A verdict to give. `decision` 0 lets the policy `auto` decide."""

    subject: SubjectArgs
    quorum: bytes
    agent: bytes
    decision: int
    reason: str


@dataclass(frozen=True, slots=True)
class SaidResult:
    """A statement of ours that is in the set."""

    reference: str
    id: bytes
    decision: str
    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class VerifiedResult:
    """How a verification ended: the level, and its M of N in words."""

    reference: str
    level: str
    shown: str
    missing: str


class VerifyingJobs:
    """Registers endorse, verify and review with a queue."""

    def __init__(self, ledger: Ledger, signing: Signing, outgoing: Outgoing, queue: Queue) -> None:
        self._ledger = ledger
        self._signing = signing
        self._outgoing = outgoing
        self.endorse: Handler[EndorseArgs, SaidResult] = queue.handler(
            "endorse", version=1, retry=RETRY, classify=classify_error, concurrency=64
        )(self._endorse)
        self.verify: Handler[VerifyArgs, VerifiedResult] = queue.handler(
            "verify", version=1, retry=RETRY, classify=classify_error, concurrency=64
        )(self._verify)
        self.review: Handler[ReviewArgs, SaidResult] = queue.handler(
            "review", version=1, retry=RETRY, classify=classify_error, concurrency=16
        )(self._review)

    # endorse

    async def _endorse(self, ctx: Context, args: EndorseArgs) -> SaidResult:
        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key
        decision = Endorse.WITHDRAW if args.withdraw else Endorse.ENDORSE

        def make() -> Ready:
            if decision is Endorse.ENDORSE:
                self._check_held(graph, key)
            return Ready(self._signing.endorsement(graph, Address(args.agent), key, decision, args.reason))

        done = await self._outgoing.admit_step(ctx, "admit", make)
        return SaidResult(_reference(key), done.id, decision.name.lower(), "", args.reason)

    def _check_held(self, graph: LedgerGraph, key: VersionKey) -> bytes:
        """Nobody signs what he does not hold."""
        view = version_view(graph, key, self._ledger.clock.now_ms())
        if view is None or not view.is_visible:
            raise MisuseError(f"{_reference(key)} is not here: it has expired, was retracted, or never came")
        content = self._ledger.content(view.content_hash)
        if content is None:
            raise MisuseError(f"the content of {_reference(key)} is not held here yet; wait until it was fetched")
        return content

    # verify

    async def _verify(self, ctx: Context, args: VerifyArgs) -> VerifiedResult:
        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key
        for round_ in range(1, PROPOSALS_MAX + 1):
            quorum = graph.head.quorum if graph.head else None
            if quorum is None or quorum.is_none:
                raise MisuseError(f"{graph.name} has no quorum, so nothing can be verified in it")
            report = self._report(graph, key)
            if report is not None and report.level is Trust.CONSENSUS_VERIFIED:
                break
            await self._outgoing.admit_step(ctx, f"propose-{round_}", lambda: self._proposal(graph, key, args))
            if not await self._decided(ctx, graph, key, args, round_):
                break
        return self._result(graph, key)

    def _proposal(self, graph: LedgerGraph, key: VersionKey, args: VerifyArgs) -> Ready:
        assert graph.head is not None
        now_ms = self._ledger.clock.now_ms()
        view = version_view(graph, key, now_ms)
        if view is None or not view.is_visible:
            raise MisuseError(f"{_reference(key)} is not here: it has expired, was retracted, or never came")
        deadline_ms = min(args.deadline_ms, view.lives_until_ms or args.deadline_ms, now_ms + DEADLINE_MS_MAX)
        body = Propose(key, graph.head.quorum.id)
        agent = Address(args.agent)
        return Ready(self._signing.envelope(graph, agent, Kind.PROPOSE, body, expires_at_ms=deadline_ms))

    async def _decided(self, ctx: Context, graph: LedgerGraph, key: VersionKey, args: VerifyArgs, round_: int) -> bool:
        """Wait for the end of one proposal. True when the quorum has changed, so that it must be proposed anew."""
        assert graph.head is not None
        proposed_under = graph.head.quorum.id
        now_ms = self._ledger.clock.now_ms()

        def end() -> str | None:
            report = self._report(graph, key)
            if report is None:
                return "gone"
            if report.level in (Trust.CONSENSUS_VERIFIED, Trust.REJECTED):
                return "decided"
            if graph.head is not None and graph.head.quorum.id != proposed_under:
                return "quorum"
            return None

        def detail() -> str:
            report = self._report(graph, key)
            return report.shown + "; " + _missing(graph, report) if report else ""

        try:
            timeout_s = max(args.deadline_ms - now_ms, 0) / 1000
            found = await ctx.wait_until(
                f"verdicts-{round_}", end, on=self._ledger.changed, timeout_s=timeout_s, detail=detail
            )
        except WaitedTooLongError:
            return False
        return found == "quorum"

    def _report(self, graph: LedgerGraph, key: VersionKey) -> TrustReport | None:
        view = version_view(graph, key, self._ledger.clock.now_ms())
        return view.trust if view else None

    def _result(self, graph: LedgerGraph, key: VersionKey) -> VerifiedResult:
        report = self._report(graph, key)
        if report is None:
            raise MisuseError(f"{_reference(key)} expired or was erased before it was verified")
        return VerifiedResult(_reference(key), report.level.word, report.shown, _missing(graph, report))

    # review

    async def _review(self, ctx: Context, args: ReviewArgs) -> SaidResult:
        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key

        def make() -> Ready:
            decision, method, reason = self._judge(graph, key, args)
            agent = Address(args.agent)
            return Ready(self._signing.verdict(graph, agent, key, args.quorum, decision, method, reason))

        done = await self._outgoing.admit_step(ctx, "admit", make)
        said = self._ledger.raw(done.id)
        if said is None:
            raise MisuseError(f"{_reference(key)} went before the verdict on it could be shown")
        verdict = Evidence.decode(said).statement
        assert isinstance(verdict, Verdict)
        return SaidResult(_reference(key), done.id, verdict.decision.name.lower(), verdict.method.word, verdict.reason)

    def _judge(self, graph: LedgerGraph, key: VersionKey, args: ReviewArgs) -> tuple[Decision, Method, str]:
        """Recompute root and seal from the bytes; then the person's decision, or the policy `auto`."""
        content = self._check_held(graph, key)
        problem = _problem(content, key)
        if args.decision:
            decision = Decision(args.decision)
            if problem and decision is Decision.APPROVE:
                raise MisuseError(f"{_reference(key)} cannot be approved: {problem}")
            return decision, Method.MANUAL, args.reason
        if problem:
            return Decision.REJECT, Method.AUTO, problem
        return Decision.APPROVE, Method.AUTO, "content, root and seal agree"


def version_view(graph: LedgerGraph, key: VersionKey, now_ms: int) -> VersionView | None:
    """One version as it is now, or None when nothing of it is live."""
    return next((it for it in asset_view(graph.set, key.asset, now_ms).versions if it.key == key), None)


def seal_digest(ledger: Ledger, graph: LedgerGraph, view: VersionView) -> bytes:
    """The digest that the author sealed: the leaf of this version in an anchored batch."""
    key = view.key
    seal = Seal(
        ledger.network, graph.id, view.subgraph, key.name, key.version, key.root, view.leaves, view.previous, key.author
    )
    return seal.digest


def _problem(data: bytes, key: VersionKey) -> str:
    """What is wrong with the bytes, empty when nothing is."""
    try:
        content = check_canonical(data)
    except RefusedError as refused:
        return f"the content is not canonical: {refused}"
    return "" if content.root == key.root else "the content has another root than was sealed"


def _missing(graph: LedgerGraph, report: TrustReport) -> str:
    if not report.missing or report.level is Trust.CONSENSUS_VERIFIED:
        return report.would_raise
    names = ", ".join(graph.label_of(agent) or str(agent) for agent in report.missing)
    return f"{report.would_raise}; nothing yet from {names}"


def _reference(key: VersionKey) -> str:
    return f"{key.asset}@{key.version}"
