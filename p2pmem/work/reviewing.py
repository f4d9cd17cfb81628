"""review: what a verifier does with a proposal.

judge   hold the bytes; recompute root and count, check the seal; then a person's decision, or the node's policy, which
        has nothing to say where a person has decided
admit   sign the verdict with its method, admit it

Nobody signs what he does not hold, and nobody approves bytes that are not what was sealed. The policy `auto` asks
nobody, so its verdict is ready in a moment: it, and the job that tells of it, are one write (`at_once`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p2pmem_jobs import Context, Handler, Queue, RetryPolicy
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.errors import MisuseError, OutsideError, RefusedError
from p2pmem_protocol.evidence import Decision, Evidence, Method, Verdict
from p2pmem_protocol.names import Address, GraphId, VersionKey
from p2pmem_protocol.view import deadline

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.review.judging import AGREED, AutoJudge, Judge, Judgement
from p2pmem.services.certifying import sealed_by_author
from p2pmem.services.finding import reference_in
from p2pmem.services.signing import Signing
from p2pmem.work.outgoing import AtOnce, Outgoing, Ready, classify_error
from p2pmem.work.verifying import SaidResult, SubjectArgs, held_content

RETRY: Final = RetryPolicy(first_s=0.5, cap_s=7_200.0, transient_runs=1_000)
"""A policy that has no answer is asked again for as long as the longest proposal lives, and seldom enough: content that
is too hard for its limits, with so many proposals as one member may have, leaves half of the time to others."""
AT_ONCE_BYTES_MAX: Final = 65_536
"""Content up to this size is judged in the event loop: some two milliseconds."""


@dataclass(frozen=True, slots=True)
class ReviewArgs:
    """A verdict to give. `decision` 0 lets the node's policy decide."""

    subject: SubjectArgs
    quorum: bytes
    agent: bytes
    decision: int
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A judgement as the job keeps it."""

    decision: int
    method: int
    reason: str


class ReviewingJobs:
    """Registers review with a queue. `judge` None is the policy `manual`: only persons decide."""

    def __init__(self, ledger: Ledger, signing: Signing, outgoing: Outgoing, judge: Judge | None, queue: Queue) -> None:
        self._ledger = ledger
        self._signing = signing
        self._outgoing = outgoing
        self._judge_by_policy = judge
        self._queue = queue
        self.review: Handler[ReviewArgs, SaidResult] = queue.handler(
            "review", version=1, retry=RETRY, classify=classify_error, concurrency=16
        )(self._review)

    @property
    def by_itself(self) -> bool:
        """Whether proposals are reviewed without a person."""
        return self._judge_by_policy is not None

    def at_once(self, args: ReviewArgs, content_hash: bytes) -> AtOnce | None:
        """Judge by the policy `auto`, and take the verdict into the set: the caller writes it before it waits.

        The caller has just seen that the version is visible, with content of this hash. None where it takes a job: for
        a person's decision, for a policy that asks others, and for content that takes long to look at. Raises
        `MisuseError` as the job would; nothing has changed then.
        """
        if args.decision or not isinstance(self._judge_by_policy, AutoJudge):
            return None
        graph, key = self._ledger.graph(GraphId(args.subject.graph)), args.subject.key
        content = self._ledger.content(graph, content_hash)
        if content is None or len(content) > AT_ONCE_BYTES_MAX:
            return None
        problem = seal_problem(self._ledger, graph, key, content)
        judged = Judgement(Decision.REJECT, Method.AUTO, problem) if problem else AGREED
        said = self._signed(graph, args, judged)
        job = self._queue.prepare(self.review, args)
        taken = self._outgoing.take(Ready(said))
        if taken.stands != said.id:
            return None  # it said so before, in other words: the job tells in which
        return AtOnce(taken, job, self._result(graph, key, said))

    def _signed(self, graph: LedgerGraph, args: ReviewArgs, judged: Judgement) -> Evidence:
        agent, key = Address(args.agent), args.subject.key
        return self._signing.verdict(graph, agent, key, args.quorum, judged.decision, judged.method, judged.reason)

    def _result(self, graph: LedgerGraph, key: VersionKey, said: Evidence) -> SaidResult:
        verdict = said.statement
        assert isinstance(verdict, Verdict)
        return SaidResult(
            reference_in(graph, key), said.id, verdict.decision.name.lower(), verdict.method.word, verdict.reason
        )

    async def _review(self, ctx: Context, args: ReviewArgs) -> SaidResult:
        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key

        async def judge() -> Judged:
            return await self._judge(graph, key, args)

        # What only looks at the bytes says the same again; what asks others is asked once.
        asks_others = not (args.decision or isinstance(self._judge_by_policy, AutoJudge))
        judged: Judged = await (ctx.step("judge", judge, returns=Judged) if asks_others else judge())

        def make() -> Ready:
            held_content(self._ledger, graph, key)
            if not args.decision:
                _check_undecided(graph, key, args)
            said = Judgement(Decision(judged.decision), Method(judged.method), judged.reason)
            return Ready(self._signed(graph, args, said))

        done = await self._outgoing.admit_step(ctx, "admit", graph, make, dated=False)
        said = self._ledger.raw(done.id)
        if said is None:
            raise MisuseError(f"{reference_in(graph, key)} went before the verdict on it could be shown")
        return self._result(graph, key, Evidence.decode(said))

    async def _judge(self, graph: LedgerGraph, key: VersionKey, args: ReviewArgs) -> Judged:
        content = held_content(self._ledger, graph, key)
        problem = seal_problem(self._ledger, graph, key, content)
        if args.decision:
            decision = Decision(args.decision)
            if problem and decision is Decision.APPROVE:
                raise MisuseError(f"{reference_in(graph, key)} cannot be approved: {problem}")
            found = Judgement(decision, Method.MANUAL, args.reason)
        elif problem:
            found = Judgement(Decision.REJECT, Method.AUTO, problem)
        elif self._judge_by_policy is None:
            raise MisuseError(f"{reference_in(graph, key)} waits for a person: review.policy is manual now")
        elif not verifies(graph, args.quorum):
            raise MisuseError(f"{reference_in(graph, key)} is for another quorum to verify now")
        else:
            _check_undecided(graph, key, args)
            seal = sealed_by_author(self._ledger, graph, key).seal
            try:
                found = await self._judge_by_policy.judge(graph, seal, content)
            except OutsideError as error:
                if self._is_asked(graph, key, args.quorum):
                    raise
                raise MisuseError(f"{error}; and nobody asks for it any more") from error
        return Judged(int(found.decision), int(found.method), found.reason)

    def _is_asked(self, graph: LedgerGraph, key: VersionKey, quorum: bytes) -> bool:
        """Whether a live proposal asks those of this quorum."""
        return verifies(graph, quorum) and deadline(graph.set, key, self._ledger.clock.now_ms()) is not None


def verifies(graph: LedgerGraph, quorum: bytes) -> bool:
    """Whether this quorum is the head's: of another no verdict is let in."""
    return graph.head is not None and graph.head.quorum.id == quorum


def _check_undecided(graph: LedgerGraph, key: VersionKey, args: ReviewArgs) -> None:
    """What a person has said is not followed by what a policy says: approval by it would outweigh a rejection. Raises
    `MisuseError`."""
    version = graph.set.version(key)
    for record in version.evidence_in_set() if version is not None else ():
        if record.author == args.agent and record.quorum == args.quorum and record.method is Method.MANUAL:
            raise MisuseError(f"a person has decided about {reference_in(graph, key)} meanwhile")


def seal_problem(ledger: Ledger, graph: LedgerGraph, key: VersionKey, data: bytes) -> str:
    """What is wrong with the bytes of a version, recomputed from them; empty when nothing is."""
    try:
        content = check_canonical(data)
        sealed = sealed_by_author(ledger, graph, key)
        sealed.check()
    except RefusedError as refused:
        return f"the content or its seal is not right: {refused}"
    if content.root != key.root:
        return "the content has another root than was sealed"
    if content.line_count != sealed.seal.leaves:
        return f"the content has {content.line_count} statements, and {sealed.seal.leaves} were sealed"
    return ""
