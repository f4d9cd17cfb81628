"""share and publish.

share     seal if unsealed; sign the envelope, admit it and move the draft (one transaction); gossip hears of it
publish   the same with `publish`; wait for the graph's minimum of acknowledgements; with a chain wait until the
          version is anchored and confirmed; mark it finalized

What stands already is not said again: asked twice, or before the node was put back from a copy, a publish is one, and
only the draft moves.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from functools import partial

from p2pmem_jobs import Context, Handler, JobRecord, Queue
from p2pmem_protocol.authoring import may_publish, may_share
from p2pmem_protocol.content import Content
from p2pmem_protocol.envelope import Envelope
from p2pmem_protocol.errors import MisuseError, counted
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import Address, AssetKey, GraphId, VersionKey
from p2pmem_protocol.records import AckRecord, SealedRecord
from p2pmem_protocol.view import Anchored, asset_view, copies

from p2pmem.exchange.holdings import OWN
from p2pmem.ledger.batch import Batch, Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import Transition
from p2pmem.references import Reference, full_reference
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.drafting import Drafting, Ready as Sealed
from p2pmem.services.finding import reference_in
from p2pmem.services.signing import Signing
from p2pmem.work.awaited import Awaited
from p2pmem.work.outgoing import RETRY, InSet, Outgoing, Ready, Stands, classify_error
from p2pmem.work.verifying import version_view


@dataclass(frozen=True, slots=True)
class ShareArgs:
    """Share the draft `name` of `agent`, or renew what was shared, for `ttl_ms` (None: the graph's default)."""

    graph: bytes
    agent: bytes
    name: str
    ttl_ms: int | None


@dataclass(frozen=True, slots=True)
class NewContent:
    """Content that is shared as it comes."""

    content: Content
    subgraph: str


@dataclass(frozen=True, slots=True)
class PublishArgs:
    graph: bytes
    agent: bytes
    name: str


@dataclass(frozen=True, slots=True)
class SharedResult:
    """What was shared: version, root, digest of the seal, and the end of its life (0: none)."""

    reference: str
    version: int
    root: bytes
    seal: bytes
    envelope: bytes
    expires_ms: int

    @classmethod
    def of(cls, key: VersionKey, envelope: bytes, expires_ms: int) -> SharedResult:
        return cls(str(key.asset), key.version, key.root, key.seal, envelope, expires_ms)


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """What was published: how many promised to keep it, and where it is on a chain."""

    reference: str
    version: int
    root: bytes
    seal: bytes
    envelope: bytes
    acks: int
    transaction: bytes | None
    block: int


class SharingJobs:
    """Registers share and publish with a queue."""

    def __init__(
        self,
        ledger: Ledger,
        signing: Signing,
        drafting: Drafting,
        outgoing: Outgoing,
        facts: ChainFacts,
        queue: Queue,
    ) -> None:
        self._ledger = ledger
        self._signing = signing
        self._drafting = drafting
        self._outgoing = outgoing
        self._facts = facts
        self._queue = queue
        self._promises: Awaited[bytes] = Awaited()
        """By root."""
        self.share: Handler[ShareArgs, SharedResult] = queue.handler(
            "share", version=1, retry=RETRY, classify=classify_error, concurrency=64
        )(self._share)
        self.publish: Handler[PublishArgs, PublishedResult] = queue.handler(
            "publish", version=1, retry=RETRY, classify=classify_error, concurrency=64
        )(self._publish)

    def heard(self, delta: Delta) -> None:
        """A change is on disk: wake who waits for a promise that has come."""
        graph = self._ledger.graphs.get(delta.graph)
        if graph is None or not self._promises.waits(delta.graph):
            return
        if delta.head_changed or delta.left or any(item.kind is Kind.RETRACT for item in delta.entered):
            self._promises.notify_all(delta.graph)
        records = [graph.set.record(item.id) for item in delta.entered if item.kind is Kind.ACK]
        self._promises.notify(delta.graph, [record.root for record in records if isinstance(record, AckRecord)])

    async def _share(self, ctx: Context, args: ShareArgs) -> SharedResult:
        graph = self._ledger.graph(GraphId(args.graph))
        key = AssetKey(Address(args.agent), args.name)
        if ctx.is_done("admit"):
            done = await self._outgoing.admit_step(ctx, "admit", graph, _nothing)
            return self._shared_result(graph, key, done.id)
        await self._outgoing.until_may_sign(ctx, graph, "may-seal")
        sealed = await self._drafting.ready(graph, key)
        expires_ms = self._may_share(graph, key, sealed, args.ttl_ms)

        def make() -> Ready | Stands:
            # Without a draft it is a renewal, which is due whatever stands.
            stands = self._stands(graph, key, sealed, Kind.SHARE) if sealed.draft is not None else None
            return stands or self._signed(graph, key, sealed, Kind.SHARE, expires_ms)

        done = await self._outgoing.admit_step(ctx, "admit", graph, make)
        return self._shared_result(graph, key, done.id)

    async def share_at_once(self, args: ShareArgs, new: NewContent | None = None) -> JobRecord:
        """A share that has nothing to wait for: seal, envelope, move and the job that tells of it in one transaction.

        With `new`, that content is shared without ever having been a draft. Raises a `MisuseError` when it cannot be;
        nothing has changed then, and there is no job. So it does with a `DiskError` while the disk takes nothing: who
        asks is told at once, and does not ask again and again for what would pile up. A cancellation waits for what has
        begun.
        """
        self._ledger.database.check_takes()
        graph = self._ledger.graph(GraphId(args.graph))
        key = AssetKey(Address(args.agent), args.name)
        if new is None:
            sealed = await self._drafting.ready(graph, key)
        else:
            sealed = self._drafting.ready_new(graph, key, new.content, new.subgraph)
        return await self._share_now(graph, key, sealed, args)

    async def renew(self, args: ShareArgs) -> JobRecord:
        """Share what was shared before once more, whatever is drafted since. As `share_at_once`, but that this waits
        while the disk takes nothing: it is the node that asks, for one after the other.
        """
        graph = self._ledger.graph(GraphId(args.graph))
        key = AssetKey(Address(args.agent), args.name)
        return await self._share_now(graph, key, await self._drafting.ready_again(graph, key), args)

    async def _share_now(self, graph: LedgerGraph, key: AssetKey, sealed: Sealed, args: ShareArgs) -> JobRecord:
        expires_ms = self._may_share(graph, key, sealed, args.ttl_ms)
        submission = self._queue.prepare(self.share, args)
        taken = self._outgoing.take(self._signed(graph, key, sealed, Kind.SHARE, expires_ms))

        def write(connection: sqlite3.Connection) -> tuple[InSet, JobRecord]:
            in_set = taken.write(connection)
            result = SharedResult.of(sealed.own.seal.seal.key, in_set.id, expires_ms)
            return in_set, submission.insert_done(connection, result)

        def after(done: tuple[InSet, JobRecord]) -> None:
            taken.tell(done[0])
            submission.announce_done(done[1])

        _, record = await self._ledger.database.write(write, after, owed=True)
        return record

    def _may_share(self, graph: LedgerGraph, key: AssetKey, sealed: Sealed, ttl_ms: int | None) -> int:
        """Whether this may be shared now, and until when."""
        expires_ms = self.expiry(graph, ttl_ms)
        may_share(asset_view(graph.set, key, self._ledger.clock.now_ms()), sealed.own.seal.seal, expires_ms)
        return expires_ms

    def _shared_result(self, graph: LedgerGraph, key: AssetKey, envelope: bytes) -> SharedResult:
        """The result again after a crash between the step and the end of the job."""
        version = self._version_said(graph, key, envelope)
        record = graph.set.record(envelope)
        return SharedResult.of(version, envelope, record.ends_at_ms if record else 0)

    def _version_said(self, graph: LedgerGraph, key: AssetKey, envelope: bytes) -> VersionKey:
        """The version that an envelope of ours shared or published: there may be newer ones since."""
        record = graph.set.record(envelope)
        if isinstance(record, SealedRecord):
            return record.key
        own = self._drafting.latest_own(graph.id, key)  # the envelope is gone: all that is known is what was sealed
        assert own is not None
        return own.seal.seal.key

    def expiry(self, graph: LedgerGraph, ttl_ms: int | None) -> int:
        """When what is shared now ends. Raises `MisuseError` for a life that the graph does not allow."""
        if graph.head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        limits = graph.head.body.limits
        life_ms = ttl_ms if ttl_ms is not None else limits.ttl_default_ms
        if not 0 < life_ms <= limits.ttl_max_ms:
            raise MisuseError(
                f"a life of {life_ms / DAY_MS:g} days is not possible in {graph.name}: "
                f"there the most is {limits.ttl_max_ms / DAY_MS:g} days, and the least 1 ms"
            )
        return self._ledger.clock.now_ms() + life_ms

    def _signed(self, graph: LedgerGraph, key: AssetKey, sealed: Sealed, kind: Kind, expires_ms: int) -> Ready:
        body = self._signing.sealed_body(sealed.own.seal, sealed.content.data)
        return self.ready(sealed, self._signing.envelope(graph, key.author, kind, body, expires_at_ms=expires_ms))

    def _stands(self, graph: LedgerGraph, key: AssetKey, sealed: Sealed, kind: Kind) -> Stands | None:
        """What stands of this version that was said for the same principal as would be said now, if anything does."""
        version = graph.set.version(sealed.own.seal.seal.key)
        acting = self._signing.acting_in(graph, key.author)
        principal = acting.delegation.principal if acting is not None else key.author
        live = version.live(self._ledger.clock.now_ms()) if version is not None else ()
        said = [it for it in live if (it.kind, it.author, it.principal) == (kind, key.author, principal)]
        newest = max(said, key=lambda it: (it.ends_at_ms, it.id), default=None)
        return Stands(newest.id, partial(self._drafting.moved_rows, ready=sealed)) if newest is not None else None

    def published(self, graph: LedgerGraph, version: VersionKey) -> None:
        """A version was published outside of any job: anchor it where the graph has a chain."""
        if self._facts.anchors(graph):
            self._facts.want_anchor(graph, version)

    async def check_publish(self, graph: LedgerGraph, named: Reference) -> None:
        """Raises a `MisuseError` for what cannot be published as it is now: before there is a job that would fail."""
        key = named.key
        sealed = await self._drafting.ready(graph, key)
        if named.number not in (None, sealed.own.version):
            raise MisuseError(
                f"what would be published is version {sealed.own.version} of {key.name}, not {named.number}: an "
                "earlier one cannot be any more, and a draft goes before what was shared"
            )
        if not named.names(sealed.own.seal.seal.key):
            raise MisuseError(
                f"what would be published is {full_reference(sealed.own.seal.seal.key)}: another seal that was let go "
                "as that version cannot be"
            )
        may_publish(asset_view(graph.set, key, self._ledger.clock.now_ms()), sealed.own.seal.seal)

    def ready(self, sealed: Sealed, item: Envelope) -> Ready:
        """A signed share or publish, with the rows that move its draft."""
        return Ready(item, sealed.content, partial(self._drafting.moved_rows, ready=sealed))

    async def _publish(self, ctx: Context, args: PublishArgs) -> PublishedResult:
        graph = self._ledger.graph(GraphId(args.graph))
        key = AssetKey(Address(args.agent), args.name)
        if ctx.is_done("admit"):
            done = await self._outgoing.admit_step(ctx, "admit", graph, _nothing)
            version = self._version_said(graph, key, done.id)
        else:
            await self._outgoing.until_may_sign(ctx, graph, "may-seal")
            sealed = await self._drafting.ready(graph, key)
            own = sealed.own
            may_publish(asset_view(graph.set, key, self._ledger.clock.now_ms()), own.seal.seal)

            def make() -> Ready | Stands:
                stands = self._stands(graph, key, sealed, Kind.PUBLISH)
                return stands or self._signed(graph, key, sealed, Kind.PUBLISH, 0)

            done = await self._outgoing.admit_step(ctx, "admit", graph, make)
            version = own.seal.seal.key
        await self._wait_acks(ctx, graph, version, done.id)
        transaction, block = await self._wait_anchored(ctx, graph, version)
        await self._finalize(ctx, graph, version)
        acks = len(copies(graph.set, version.root, self._ledger.clock.now_ms()))
        return PublishedResult(str(key), version.version, version.root, version.seal, done.id, acks, transaction, block)

    async def _wait_acks(self, ctx: Context, graph: LedgerGraph, version: VersionKey, publish: bytes) -> None:
        """Wait for promises, unless nobody gives one any more: raises `MisuseError` for what was taken back."""

        def needed() -> int:
            return graph.head.body.limits.acks_min if graph.head else 0

        def promised() -> int:
            held_by = copies(graph.set, version.root, self._ledger.clock.now_ms())
            return sum(not self._signing.holds(agent) for agent in held_by)

        def end() -> str | None:
            if promised() >= needed():
                return "promised"
            record, view = graph.set.record(publish), version_view(graph, version, self._ledger.clock.now_ms())
            # What is only aside may come back.
            is_gone = record is None or record.state.gone or (view is not None and view.hidden_by is not None)
            return "gone" if is_gone else None

        with self._promises.signal(graph.id, version.root) as changed:
            found = await ctx.wait_until(
                "acks",
                end,
                on=changed,
                detail=lambda: f"{counted(promised(), 'member')} promised to keep it, needed: {needed()}",
            )
        if found == "gone":
            raise MisuseError(
                f"{reference_in(graph, version)} was retracted before enough members had promised to keep it"
            )

    async def _wait_anchored(self, ctx: Context, graph: LedgerGraph, version: VersionKey) -> tuple[bytes | None, int]:
        if not self._facts.anchors(graph):
            return None, 0
        self._facts.want_anchor(graph, version)
        await ctx.wait_until(
            "anchored",
            lambda: self._facts.state(graph, version) is Anchored.CONFIRMED,
            on=self._ledger.changed,
            detail=lambda: self._facts.trouble or "waiting for the chain to confirm the anchor",
        )
        fact = self._facts.fact(graph, version)
        return (fact.transaction, fact.block) if fact else (None, 0)

    async def _finalize(self, ctx: Context, graph: LedgerGraph, version: VersionKey) -> None:
        batch = Batch(self._ledger.clock.now_ms(), OWN)
        batch.sealed_step(graph.id, version, Transition.FINALIZE)
        batch.event(graph.id, "finalized", [version.asset])
        await ctx.step_rows(
            "finalize",
            lambda connection: self._ledger.write_rows(connection, batch),
            returns=int,
            after=lambda position: self._ledger.tell(batch, position),
        )


def _nothing() -> Ready:
    raise AssertionError("the step is done")
