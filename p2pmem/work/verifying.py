"""endorse and verify.

endorse   check that the bytes are held; sign; admit
verify    sign `propose` under the head's quorum; admit; wait until consensus, rejection or the deadline. When the
          quorum changes meanwhile, propose again under the new one, up to a limit; while there is none, wait for one

What a verifier does with a proposal is in `reviewing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from p2pmem_jobs import Context, Handler, Job, Queue, WaitedTooLongError, codec
from p2pmem_protocol.bodies import Propose
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Endorse, Evidence
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS, DEADLINE_MS_MAX
from p2pmem_protocol.names import Address, AssetKey, GraphId, VersionKey
from p2pmem_protocol.records import ProposeRecord
from p2pmem_protocol.roster import Quorum
from p2pmem_protocol.trust import Line, Trust, TrustReport
from p2pmem_protocol.view import VersionView, asset_view

from p2pmem.ledger.batch import Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.finding import reference_in
from p2pmem.services.signing import Signing
from p2pmem.work.awaited import Awaited
from p2pmem.work.outgoing import RETRY, Outgoing, Ready, Stands, classify_error

DEADLINE_DEFAULT_MS: Final = 7 * DAY_MS
QUORUMS_ASKED_MAX: Final = 100
"""So many quorums one job asks. Each costs all members a proposal and the verdicts on it, which nobody's quota counts
once the quorum is another: an owner who changes it for ever must not fill their disks."""


@dataclass(frozen=True, slots=True)
class SubjectArgs:
    """One version, as arguments of a job hold it."""

    graph: bytes
    author: bytes
    name: str
    version: int
    root: bytes
    seal: bytes

    @property
    def key(self) -> VersionKey:
        return VersionKey(Address(self.author), self.name, self.version, self.root, self.seal)

    @classmethod
    def of(cls, graph: GraphId, key: VersionKey) -> SubjectArgs:
        return cls(graph, *key.fields)


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
class SaidResult:
    """A statement of ours that is in the set."""

    reference: str
    id: bytes
    decision: str
    method: str
    reason: str


@dataclass(frozen=True, slots=True)
class VerifiedResult:
    """How a verification ended: the level, its M of N in words, what is missing, and why it was rejected by whom."""

    reference: str
    level: str
    shown: str
    missing: str
    rejections: list[str]


class VerifyingJobs:
    """Registers endorse and verify with a queue. Tell it what changes by `heard`."""

    def __init__(self, ledger: Ledger, signing: Signing, outgoing: Outgoing, queue: Queue) -> None:
        self._ledger = ledger
        self._signing = signing
        self._outgoing = outgoing
        self._queue = queue
        self._asking = trio.Lock()
        self._awaited: Awaited[AssetKey] = Awaited()
        self.endorse: Handler[EndorseArgs, SaidResult] = queue.handler(
            "endorse", version=1, retry=RETRY, classify=classify_error, concurrency=64
        )(self._endorse)
        self.verify: Handler[VerifyArgs, VerifiedResult] = queue.handler(
            "verify", version=1, retry=RETRY, classify=classify_error, concurrency=64
        )(self._verify)

    def heard(self, delta: Delta) -> None:
        """A change is on disk: wake who waits for a verification of what it touched."""
        if delta.head_changed:
            self._awaited.notify_all(delta.graph)
        else:
            self._awaited.notify(delta.graph, delta.assets)

    # endorse

    async def _endorse(self, ctx: Context, args: EndorseArgs) -> SaidResult:
        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key
        decision = Endorse.WITHDRAW if args.withdraw else Endorse.ENDORSE

        def make() -> Ready:
            if decision is Endorse.ENDORSE:
                held_content(self._ledger, graph, key)
            return Ready(self._signing.endorsement(graph, Address(args.agent), key, decision, args.reason))

        done = await self._outgoing.admit_step(ctx, "admit", graph, make, dated=False)
        return SaidResult(reference_in(graph, key), done.id, decision.name.lower(), "", args.reason)

    # verify

    async def ask(self, args: VerifyArgs, *, at_least_until_ms: int | None) -> Job[VerifiedResult]:
        """Submit verify, or return the job that asks for the same already: asking twice is one proposal.

        A job whose deadline is before `at_least_until_ms` does not stand in the way of a new one.
        """
        owner = keccak256(f"{args.subject.graph.hex()}:{args.agent.hex()}:{args.subject}".encode()).hex()
        async with self._asking:
            for record in self._queue.live_of(owner, "verify"):
                known = codec.decode(record.args, VerifyArgs)
                if at_least_until_ms is None or known.deadline_ms >= at_least_until_ms:
                    return self._queue.job(record.id)
            return await self._queue.submit(self.verify, args, owner=owner)

    async def _verify(self, ctx: Context, args: VerifyArgs) -> VerifiedResult:
        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key
        for round_ in range(1, QUORUMS_ASKED_MAX + 1):
            report = self._report(graph, key)
            if report is not None and report.level is Trust.CONSENSUS_VERIFIED:
                break
            proposal = None
            if self._may_ask(graph, args):
                make = partial(self._proposal, graph, key, args)
                proposal = (await self._outgoing.admit_step(ctx, f"propose-{round_}", graph, make)).id
            if not await self._decided(ctx, graph, args, round_, proposal):
                break
        else:
            raise MisuseError(
                f"the quorum changed {QUORUMS_ASKED_MAX} times while {reference_in(graph, key)} waited to be verified; "
                "ask again when it stays"
            )
        return self._result(graph, key)

    def _may_ask(self, graph: LedgerGraph, args: VerifyArgs) -> bool:
        """Whether there is anybody to ask, and time left to answer."""
        return _quorum(graph) is not None and self._ledger.clock.now_ms() < args.deadline_ms

    def _proposal(self, graph: LedgerGraph, key: VersionKey, args: VerifyArgs) -> Ready | Stands:
        """What asks the quorum. What its agent has asked it already, for as long, stands: the node may have been put
        back from a copy since."""
        quorum = _quorum(graph)
        assert quorum is not None
        now_ms = self._ledger.clock.now_ms()
        view = version_view(graph, key, now_ms)
        if view is None or not view.is_visible:
            raise MisuseError(f"{reference_in(graph, key)} is not here: it has expired, was retracted, or never came")
        deadline_ms = min(args.deadline_ms, view.lives_until_ms or args.deadline_ms, now_ms + DEADLINE_MS_MAX)
        body = Propose(key, quorum.id)
        agent = Address(args.agent)
        for asked in graph.set.proposals(key):
            if (asked.author, asked.quorum) == (agent, quorum.id) and asked.ends_at_ms >= deadline_ms:
                return Stands(asked.id)
        return Ready(self._signing.envelope(graph, agent, Kind.PROPOSE, body, expires_at_ms=deadline_ms))

    async def _decided(
        self, ctx: Context, graph: LedgerGraph, args: VerifyArgs, round_: int, proposal: bytes | None
    ) -> bool:
        """Wait for the end of one proposal, or without one for a quorum. True when it is to be proposed anew: there is
        a quorum, and the proposal does not ask it.

        Which quorum it asks, it says itself: in a later run the head may be another one than when it was made.
        """
        key, now_ms = args.subject.key, self._ledger.clock.now_ms()

        def end() -> str | None:
            view = version_view(graph, key, self._ledger.clock.now_ms())
            if view is None:
                return "gone"
            if view.hidden_by is not None:
                return "retracted"
            if view.trust.level in (Trust.CONSENSUS_VERIFIED, Trust.REJECTED):
                return "decided"
            if self._may_ask(graph, args) and not _asks(graph, proposal):
                return "quorum"
            return None

        def detail() -> str:
            report = self._report(graph, key)
            return report.shown + "; " + _missing(graph, report) if report else ""

        try:
            timeout_s = max(args.deadline_ms - now_ms, 0) / 1000
            with self._awaited.signal(graph.id, key.asset) as changed:
                found = await ctx.wait_until(f"verdicts-{round_}", end, on=changed, timeout_s=timeout_s, detail=detail)
        except WaitedTooLongError:
            return False
        return found == "quorum"

    def _report(self, graph: LedgerGraph, key: VersionKey) -> TrustReport | None:
        view = version_view(graph, key, self._ledger.clock.now_ms())
        return view.trust if view else None

    def _is_retracted(self, graph: LedgerGraph, key: VersionKey) -> bool:
        view = version_view(graph, key, self._ledger.clock.now_ms())
        return view is not None and view.hidden_by is not None

    def _result(self, graph: LedgerGraph, key: VersionKey) -> VerifiedResult:
        report = self._report(graph, key)
        if report is None:
            raise MisuseError(f"{reference_in(graph, key)} expired or was erased before it was verified")
        if self._is_retracted(graph, key):
            raise MisuseError(f"{reference_in(graph, key)} was retracted: nobody verifies it")
        rejections = [self._said(graph, line) for line in report.rejections]
        return VerifiedResult(
            reference_in(graph, key), report.level.word, report.shown, _missing(graph, report), rejections
        )

    def _said(self, graph: LedgerGraph, line: Line) -> str:
        """Who rejected and why."""
        data = self._ledger.raw(line.id)
        reason = Evidence.decode(data).statement.reason if data is not None else ""
        return f"{graph.label_of(line.signer) or line.signer}: {reason}"


def _quorum(graph: LedgerGraph) -> Quorum | None:
    """The head's, if it has one."""
    return graph.head.quorum if graph.head is not None and not graph.head.quorum.is_none else None


def _asks(graph: LedgerGraph, proposal: bytes | None) -> bool:
    """Whether a proposal asks those who verify now."""
    record = graph.set.record(proposal) if proposal is not None else None
    quorum = _quorum(graph)
    return isinstance(record, ProposeRecord) and quorum is not None and record.quorum == quorum.id


def version_view(graph: LedgerGraph, key: VersionKey, now_ms: int) -> VersionView | None:
    """One version as it is now, or None when nothing of it is live."""
    return asset_view(graph.set, key.asset, now_ms).version(key)


def held_content(ledger: Ledger, graph: LedgerGraph, key: VersionKey) -> bytes:
    """The bytes of a version that somebody is to sign for: nobody signs what he does not hold. Raises `MisuseError`."""
    view = version_view(graph, key, ledger.clock.now_ms())
    if view is None or not view.is_visible:
        raise MisuseError(f"{reference_in(graph, key)} is not here: it has expired, was retracted, or never came")
    content = ledger.content(graph, view.content_hash)
    if content is None:
        raise MisuseError(f"the content of {reference_in(graph, key)} is not held here yet; wait until it was fetched")
    return content


def _missing(graph: LedgerGraph, report: TrustReport) -> str:
    if not report.missing or report.level is Trust.CONSENSUS_VERIFIED:
        return report.would_raise
    names = ", ".join(graph.label_of(agent) or str(agent) for agent in report.missing)
    return f"{report.would_raise}; nothing yet from {names}"
