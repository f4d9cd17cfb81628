"""What a member does for the others without being told: promise to keep what is published, and review proposals.

Both follow from the set: a published version that is held and that this node's agent has not acknowledged, a live
proposal on which its verifier has said nothing. So nothing is forgotten by a crash, and nothing done twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_jobs import FullError, Job, JobEndedBadlyError, Queue
from p2pmem_protocol.bodies import Ack
from p2pmem_protocol.evidence import Decision
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import Address, AssetKey, GraphId, VersionKey
from p2pmem_protocol.records import FOREVER
from p2pmem_protocol.view import VersionView, deadline

from p2pmem.ledger.batch import Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.signing import Signing
from p2pmem.work.outgoing import NotAdmittedError, Outgoing, Ready
from p2pmem.work.reviewing import ReviewArgs, ReviewingJobs
from p2pmem.work.verifying import SaidResult, SubjectArgs, version_view

log = logging.getLogger(__name__)

LOOKED_AT_ONCE: Final = 100
PROMISE_MS: Final = 180 * DAY_MS
RENEWED_BEFORE_MS: Final = 30 * DAY_MS
REVIEWS_PER_PROPOSER_MAX: Final = 64
"""So many proposals of one member are under review, or shown to a person, at a time: nobody buries the others."""


@dataclass(frozen=True, slots=True)
class OpenReview:
    """A live proposal that waits for one of this node's verifiers."""

    graph: GraphId
    subject: VersionKey
    quorum: bytes
    verifier: Address
    proposer: Address
    deadline_ms: int


class Duties:
    """Runs after each change, on what changed. `run` it in the node's nursery."""

    def __init__(
        self,
        ledger: Ledger,
        outgoing: Outgoing,
        signing: Signing,
        jobs: ReviewingJobs,
        queue: Queue,
        *,
        policy: str,
    ) -> None:
        self._ledger = ledger
        self._outgoing = outgoing
        self._signing = signing
        self._jobs = jobs
        self._queue = queue
        self.policy = policy
        """How proposals are reviewed here, a word of `review.judging`."""
        self._under_review: Counter[Address] = Counter()
        self._waiting: dict[Address, dict[tuple[GraphId, AssetKey], None]] = {}
        """By proposer, what is looked at when one of its proposals is done."""
        self._changed: dict[tuple[GraphId, AssetKey], None] = {}
        self._looking = False

    @property
    def is_idle(self) -> bool:
        """Whether every change so far was looked at."""
        return not self._changed and not self._looking

    def heard(self, delta: Delta) -> None:
        """A change is on disk: look at what it touched."""
        if delta.head_changed:
            graph = self._ledger.graphs.get(delta.graph)
            if graph is not None:
                self._changed.update({(delta.graph, key): None for key in sorted(graph.set.assets())})
        self._changed.update({(delta.graph, key): None for key in sorted(delta.assets)})

    async def run(self) -> None:
        """First look at everything, then at what changes, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._run()

    async def _run(self) -> None:
        for graph in self._ledger.graphs.values():
            self._changed.update({(graph.id, key): None for key in graph.set.assets()})
        while True:
            await self._ledger.until(lambda: bool(self._changed))
            changed, self._changed = self._changed, {}
            self._looking = True
            for number, (graph_id, key) in enumerate(changed):
                await self._look_at(graph_id, key)
                if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                    await trio.lowlevel.checkpoint()
            self._looking = False

    async def _look_at(self, graph_id: GraphId, key: AssetKey) -> None:
        graph = self._ledger.graphs.get(graph_id)
        if graph is None:
            return
        asset = graph.set.asset(key)
        for version in list(asset.versions) if asset is not None else []:
            # Most of what comes is only shared, and nobody has asked to verify it: no view is made for nothing.
            if any(record.ends_at_ms == FOREVER for record in version.sealed):
                await self._acknowledge(graph, version.key)
            if version.key in graph.set.proposed():
                await self._review(graph, version.key)

    async def _acknowledge(self, graph: LedgerGraph, key: VersionKey) -> None:
        """Promise to keep a published version that is held."""
        now_ms = self._ledger.clock.now_ms()
        view = version_view(graph, key, now_ms)
        if view is None or not view.published or view.content_hash not in self._ledger.held:
            return
        for agent in self._signing.agents():
            if agent == key.author or not graph.is_member(agent):
                continue
            promised = [ack.ends_at_ms for ack in graph.set.acks(key.root) if ack.author == agent]
            if max(promised, default=0) - now_ms > RENEWED_BEFORE_MS:
                continue
            envelope = self._signing.envelope(graph, agent, Kind.ACK, Ack(key.root), expires_at_ms=now_ms + PROMISE_MS)
            try:
                await self._outgoing.admit(Ready(envelope))
            except NotAdmittedError as refused:
                log.info("ack.refused", extra={"why": str(refused)})

    def open_reviews(self) -> Iterator[OpenReview]:
        """Proposals that wait for this node's verifiers, whatever its policy is; so many of each proposer."""
        shown: Counter[Address] = Counter()
        for graph in self._ledger.graphs.values():
            for key in sorted(graph.set.proposed()):
                for review in self._reviews_of(graph, key):
                    if shown[review.proposer] < REVIEWS_PER_PROPOSER_MAX:
                        shown[review.proposer] += 1
                        yield review

    def _reviews_of(self, graph: LedgerGraph, key: VersionKey) -> Iterator[OpenReview]:
        now_ms = self._ledger.clock.now_ms()
        until_ms = deadline(graph.set, key, now_ms)
        if until_ms is None or graph.head is None:
            return
        view = version_view(graph, key, now_ms)
        if view is None or not view.is_visible:
            return
        quorum = graph.head.quorum
        for verifier in quorum.verifiers:
            if self._signing.speaks_for(verifier) and not self._has_said(graph, view, verifier, quorum.id):
                proposer = min(proposal.principal for proposal in graph.set.proposals(key))
                yield OpenReview(graph.id, key, quorum.id, verifier, proposer, until_ms)

    def _has_said(self, graph: LedgerGraph, view: VersionView, verifier: Address, quorum: bytes) -> bool:
        if verifier in view.trust.barred:
            return True
        version = graph.set.version(view.key)
        return version is not None and any(
            record.author == verifier and record.quorum == quorum for record in version.evidence_in_set()
        )

    async def _review(self, graph: LedgerGraph, key: VersionKey) -> None:
        if not self._jobs.by_itself:
            return
        for review in self._reviews_of(graph, key):
            if not self._signing.holds(review.verifier) or not self._is_held(graph, key):
                continue
            if self._under_review[review.proposer] >= REVIEWS_PER_PROPOSER_MAX:
                self._waiting.setdefault(review.proposer, {})[graph.id, key.asset] = None
                continue
            try:
                job = await self.submit(review, None, "")
            except FullError:
                log.warning("review.queue_full")
                continue
            self._under_review[review.proposer] += 1
            self._nursery.start_soon(self._until_reviewed, job, review.proposer)

    async def _until_reviewed(self, job: Job[SaidResult], proposer: Address) -> None:
        """One of a proposer's reviews has ended, however: another of its proposals may be looked at."""
        try:
            await job.result()
        except JobEndedBadlyError as error:
            log.info("review.ended", extra={"why": str(error)})
        self._under_review[proposer] -= 1
        waiting = self._waiting.get(proposer, {})
        if waiting:
            self._changed[waiting.popitem()[0]] = None
            self._ledger.wake()

    def _is_held(self, graph: LedgerGraph, key: VersionKey) -> bool:
        view = version_view(graph, key, self._ledger.clock.now_ms())
        return view is not None and view.content_hash in self._ledger.held

    async def submit(self, review: OpenReview, decision: Decision | None, reason: str) -> Job[SaidResult]:
        """Give a verdict as a job: a person's `decision`, or None for the policy."""
        args = ReviewArgs(
            SubjectArgs.of(review.graph, review.subject),
            review.quorum,
            bytes(review.verifier),
            int(decision) if decision else 0,
            reason,
        )
        key = f"{review.verifier}:{review.quorum.hex()}:{review.subject}:{int(decision) if decision else 0}"
        return await self._queue.submit(self._jobs.review, args, dedupe_key=keccak256(key.encode()).hex())
