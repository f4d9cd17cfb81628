"""What a member does for the others without being told: promise to keep what is published, and review proposals.

Both follow from the set: a published version that is held and that this node's agent has not acknowledged, a live
proposal on which its verifier has said nothing. So nothing is forgotten by a crash, and nothing done twice.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_jobs import ClosedError, EndedError, Job, JobEndedBadlyError, OutsideError as NotStoredError, Queue
from p2pmem_protocol.bodies import Ack
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Decision
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import Address, AssetKey, GraphId, VersionKey
from p2pmem_protocol.records import FOREVER, AckRecord
from p2pmem_protocol.view import deadline

from p2pmem.face import NoRightError
from p2pmem.ledger.batch import Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.may_sign import SigningWaitsError
from p2pmem.services.signing import Signing
from p2pmem.work.outgoing import ASK_AGAIN_S, AtOnce, NotAdmittedError, Outgoing, Ready
from p2pmem.work.reviewing import ReviewArgs, ReviewingJobs, verifies
from p2pmem.work.verifying import SaidResult, SubjectArgs, version_view

log = logging.getLogger(__name__)

LOOKED_AT_ONCE: Final = 100
TAKEN_AT_ONCE: Final = 16
"""So many promises and verdicts are one transaction: some thirty milliseconds of the event loop."""
PROMISE_MS: Final = 180 * DAY_MS
RENEWED_BEFORE_MS: Final = 30 * DAY_MS
PROMISES_EVERY_S: Final = 12 * 3_600
REVIEWS_PER_PROPOSER_MAX: Final = 64
"""So many proposals of one member are under review, or shown to a person, at a time: nobody buries the others.

Of several who propose a version one is charged, the author before the others: while any of them has room, it waits for
none."""


@dataclass(frozen=True, slots=True)
class OpenReview:
    """A live proposal that waits for one of this node's verifiers. `proposer` is charged for it, of those who asked."""

    graph: GraphId
    subject: VersionKey
    quorum: bytes
    verifier: Address
    proposer: Address
    deadline_ms: int
    content_hash: bytes


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
        """While nothing is signed, nothing is promised or decided: what a clock in doubt dates, members would take only
        when its day has come."""
        self._ledger = ledger
        self._outgoing = outgoing
        self._signing = signing
        self._jobs = jobs
        self._queue = queue
        self.policy = policy
        """How proposals are reviewed here, a word of `review.judging`."""
        self._under_review: Counter[Address] = Counter()
        self._running: dict[str, OpenReview] = {}
        """What is counted there, by the ids of its jobs."""
        self._waiting: dict[Address, OrderedDict[tuple[GraphId, AssetKey], None]] = {}
        """By proposer, what is looked at when it has room again."""
        self._changed: dict[tuple[GraphId, AssetKey], None] = {}
        self._looking = True  # at first, everything is to be looked at
        self._submitting = trio.Lock()
        self._not_asked: dict[tuple[GraphId, AssetKey], None] = {}
        """Whose reviews the queue or the disk had no room for: looked at again in a moment."""
        self._not_signed: dict[GraphId, dict[AssetKey, None]] = {}
        """Looked at while nothing was signed in the graph: looked at again when it is."""
        self._taken: list[AtOnce] = []
        """In the set in memory, and to be written before anything is waited for."""

    @property
    def is_idle(self) -> bool:
        """Whether every change so far was looked at."""
        return not self._changed and not self._looking and not self._may_sign_again()

    def heard(self, delta: Delta) -> None:
        """A change is on disk: look at what it touched."""
        if delta.head_changed:
            graph = self._ledger.graphs.get(delta.graph)
            if graph is not None:
                self._changed.update({(delta.graph, key): None for key in sorted(graph.set.assets())})
        self._changed.update({(delta.graph, key): None for key in sorted(delta.assets)})

    async def renew_promises(self) -> None:
        """Look again at what this node promised to keep and whose promise ends soon: a quiet graph wakes nobody."""
        until_ms = self._ledger.clock.now_ms() + RENEWED_BEFORE_MS
        for graph in list(self._ledger.graphs.values()):
            if self._signing.may_sign.why_not(graph):
                continue
            due = {
                ack.root
                for ack in graph.set.records()
                if isinstance(ack, AckRecord) and ack.ends_at_ms <= until_ms and self._signing.holds(ack.author)
            }
            for number, key in enumerate(list(graph.set.assets()) if due else []):
                if number % LOOKED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                asset = graph.set.asset(key)
                if asset is not None and any(version.key.root in due for version in asset.versions):
                    self._changed[graph.id, key] = None
        if self._changed or self._not_signed:
            self._ledger.wake()

    async def run(self) -> None:
        """First look at everything, then at what changes, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._run()

    async def _run(self) -> None:
        for graph in self._ledger.graphs.values():
            self._changed.update({(graph.id, key): None for key in graph.set.assets()})
        self._looking = False
        while True:
            await self._ledger.until(lambda: bool(self._changed) or bool(self._may_sign_again()))
            for graph_id in self._may_sign_again():
                self._changed.update({(graph_id, key): None for key in self._not_signed.pop(graph_id)})
            changed, self._changed = self._changed, {}
            self._looking = True
            for number, (graph_id, key) in enumerate(changed):
                await self._look_at(graph_id, key)
                if len(self._taken) >= TAKEN_AT_ONCE:
                    await self._write_taken()
                elif number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1 and not self._taken:
                    await trio.lowlevel.checkpoint()
            await self._write_taken()
            self._look_again()
            if self._not_asked:
                await trio.sleep(ASK_AGAIN_S)
                self._changed.update(self._not_asked)
                self._not_asked.clear()
            self._looking = False

    def _may_sign_again(self) -> list[GraphId]:
        """Graphs in which something waits that is signed again by now, and those that are here no more."""
        graphs = self._ledger.graphs
        return [it for it in self._not_signed if it not in graphs or not self._signing.may_sign.why_not(graphs[it])]

    def _look_again(self) -> None:
        """Of what waits, look at as much as there is room for; where some is gone, the next of it has its turn."""
        for proposer, waiting in list(self._waiting.items()):
            for _ in range(min(REVIEWS_PER_PROPOSER_MAX - self._under_review[proposer], len(waiting))):
                self._changed[waiting.popitem(last=False)[0]] = None
            if not waiting:
                del self._waiting[proposer]

    async def _write_taken(self) -> None:
        """Write what was taken into the set, all in one transaction; due before anything else is waited for."""
        taken, self._taken = self._taken, []
        if taken:
            crash_point = self._ledger.database.crash_point
            reviews = any(it.job is not None for it in taken)
            if reviews:
                crash_point("review/admit/before")
            await self._outgoing.write_all(taken)
            if reviews:
                crash_point("review/admit/after")

    async def _look_at(self, graph_id: GraphId, key: AssetKey) -> None:
        graph = self._ledger.graphs.get(graph_id)
        if graph is None:
            return
        await self._end_outdated(graph, key)
        if self._signing.may_sign.why_not(graph, dated=False):
            self._not_signed.setdefault(graph_id, {})[key] = None
            return
        asset = graph.set.asset(key)
        for version in list(asset.versions) if asset is not None else []:
            # Most of what comes is only shared, and nobody has asked to verify it: no view is made for nothing.
            if any(record.ends_at_ms == FOREVER for record in version.sealed):
                self._acknowledge(graph, version.key)
            if version.key in graph.set.proposed():
                await self._review(graph, version.key)

    def _acknowledge(self, graph: LedgerGraph, key: VersionKey) -> None:
        """Promise to keep a published version that is held."""
        if self._signing.may_sign.why_not(graph):
            self._not_signed.setdefault(graph.id, {})[key.asset] = None
            return
        now_ms = self._ledger.clock.now_ms()
        view = version_view(graph, key, now_ms)
        if view is None or not view.published or view.content_hash not in graph.held:
            return
        for agent in self._signing.agents():
            if agent == key.author or not graph.is_member(agent):
                continue
            promised = [ack.ends_at_ms for ack in graph.set.acks(key.root) if ack.author == agent]
            if max(promised, default=0) - now_ms > RENEWED_BEFORE_MS:
                continue
            until_ms = now_ms + PROMISE_MS
            try:
                envelope = self._signing.envelope(graph, agent, Kind.ACK, Ack(key.root), expires_at_ms=until_ms)
                self._taken.append(AtOnce(self._outgoing.take(Ready(envelope))))
            except SigningWaitsError:  # the clock has jumped since we asked
                self._not_signed.setdefault(graph.id, {})[key.asset] = None
            except (NotAdmittedError, NoRightError) as refused:
                log.info("ack.refused", extra={"why": str(refused)})

    def open_reviews(self) -> Iterator[OpenReview]:
        """Proposals that wait for this node's verifiers, whatever its policy is; so many of each proposer."""
        shown: Counter[Address] = Counter()
        for graph in self._ledger.graphs.values():
            for key in sorted(graph.set.proposed()):
                proposer = _with_room(self._proposers(graph, key), shown)
                for review in self._reviews_of(graph, key, proposer) if proposer is not None else ():
                    if shown[review.proposer] < REVIEWS_PER_PROPOSER_MAX:
                        shown[review.proposer] += 1
                        yield review

    def _proposers(self, graph: LedgerGraph, key: VersionKey) -> list[Address]:
        """Who asks for a version to be verified: its author, or whom it acts for, before the others."""
        now_ms = self._ledger.clock.now_ms()
        asked = {(it.author != key.author, it.principal) for it in graph.set.proposals(key) if now_ms < it.ends_at_ms}
        return [principal for _, principal in sorted(asked)]

    def _reviews_of(self, graph: LedgerGraph, key: VersionKey, proposer: Address) -> Iterator[OpenReview]:
        now_ms = self._ledger.clock.now_ms()
        until_ms = deadline(graph.set, key, now_ms)
        if until_ms is None or graph.head is None:
            return
        quorum = graph.head.quorum
        asked = [it for it in quorum.verifiers if self._signing.speaks_for(it)]
        silent = [verifier for verifier in asked if not _has_said(graph, key, verifier, quorum.id)]
        # Each change of an asset comes here, and mostly all of ours have spoken: no view is made for nothing.
        view = version_view(graph, key, now_ms) if silent else None
        if view is None or not view.is_visible:
            return
        for verifier in silent:
            if verifier not in view.trust.barred:
                yield OpenReview(graph.id, key, quorum.id, verifier, proposer, until_ms, view.content_hash)

    async def _review(self, graph: LedgerGraph, key: VersionKey) -> None:
        if not self._jobs.by_itself:
            return
        proposers = self._proposers(graph, key)
        proposer = _with_room(proposers, self._under_review)
        if proposer is None:
            self._wait_for_room(graph, key, proposers)
            return
        for review in self._reviews_of(graph, key, proposer):
            if not self._signing.holds(review.verifier) or review.content_hash not in graph.held:
                continue
            if self._review_at_once(review):
                continue
            if self._under_review[proposer] >= REVIEWS_PER_PROPOSER_MAX:
                self._wait_for_room(graph, key, proposers)
                return
            await self._write_taken()
            try:
                job = await self.submit(review, None, "")
            except NotStoredError as error:  # the queue or the disk is full
                if not self._not_asked:
                    log.warning("review.not_asked", extra={"why": str(error)})
                self._not_asked[graph.id, key.asset] = None
                continue
            if job.id not in self._running:
                self._running[job.id] = review
                self._under_review[proposer] += 1
                self._nursery.start_soon(self._until_reviewed, job, proposer)

    async def _end_outdated(self, graph: LedgerGraph, key: AssetKey) -> None:
        """End what a policy has no answer to yet on behalf of a quorum that is not the head's: no verdict under it is
        let in, and what waits to be tried again would hold its place until then."""
        for job_id, review in list(self._running.items()):
            if (review.graph, review.subject.asset) == (graph.id, key) and not verifies(graph, review.quorum):
                await self._write_taken()
                try:
                    await self._queue.cancel(job_id, "its quorum verifies no more")
                except (EndedError, NotStoredError) as error:  # by itself, now or when it is tried again
                    log.info("review.ends", extra={"why": str(error)})

    def _wait_for_room(self, graph: LedgerGraph, key: VersionKey, proposers: list[Address]) -> None:
        for proposer in proposers:
            self._waiting.setdefault(proposer, OrderedDict())[graph.id, key.asset] = None

    def _review_at_once(self, review: OpenReview) -> bool:
        """Whether its verdict is in the set, or cannot be; otherwise it takes a job."""
        try:
            taken = self._jobs.at_once(_args(review, None, ""), review.content_hash)
        except MisuseError as refused:
            log.info("review.ended", extra={"why": str(refused)})
            return True
        if taken is not None:
            self._taken.append(taken)
        return taken is not None

    async def _until_reviewed(self, job: Job[SaidResult], proposer: Address) -> None:
        """One of a proposer's reviews has ended, however: others of its proposals may be looked at."""
        try:
            await job.result()
        except (JobEndedBadlyError, ClosedError) as error:  # or the node stops, and it goes on at the next start
            log.info("review.ended", extra={"why": str(error)})
        del self._running[job.id]
        self._under_review[proposer] -= 1
        self._look_again()
        self._ledger.wake()

    async def submit(self, review: OpenReview, decision: Decision | None, reason: str) -> Job[SaidResult]:
        """Give a verdict as a job: a person's `decision`, or None for the policy. While one decides, that is it.

        One that has ended stands in no way: what it said goes with the version, and the version may come again.
        """
        args = _args(review, decision, reason)
        key = f"{review.verifier}:{review.quorum.hex()}:{args.subject}:{args.decision}"
        owner = keccak256(key.encode()).hex()
        async with self._submitting:
            for record in self._queue.live_of(owner, "review"):
                return self._queue.job(record.id)
            return await self._queue.submit(self._jobs.review, args, owner=owner)


def _with_room(proposers: list[Address], counted: Counter[Address]) -> Address | None:
    """The first of them of whom not too many are counted."""
    return next((it for it in proposers if counted[it] < REVIEWS_PER_PROPOSER_MAX), None)


def _has_said(graph: LedgerGraph, key: VersionKey, verifier: Address, quorum: bytes) -> bool:
    version = graph.set.version(key)
    return version is not None and any(
        record.author == verifier and record.quorum == quorum for record in version.evidence_in_set()
    )


def _args(review: OpenReview, decision: Decision | None, reason: str) -> ReviewArgs:
    return ReviewArgs(
        SubjectArgs.of(review.graph, review.subject),
        review.quorum,
        bytes(review.verifier),
        int(decision) if decision else 0,
        reason,
    )
