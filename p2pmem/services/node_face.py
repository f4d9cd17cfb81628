"""The node's answer to its users: `p2pmem.face.Face` over the services. Translates; decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace as with_fields
from typing import Any

import trio
from p2pmem_jobs import Handler, JobRecord, State
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Decision
from p2pmem_protocol.join import ADDRESSES_MAX, Invite
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, AssetKey, GraphName, check_name, hex_id, parse_hex_id
from p2pmem_protocol.trust import Floor
from p2pmem_protocol.view import asset_view

import p2pmem
from p2pmem import face
from p2pmem.face import (
    AgentView,
    BackupView,
    ChangePreview,
    ClockView,
    CompactView,
    DraftView,
    GraphView,
    JobStory,
    JobView,
    JoinRequestView,
    MemberChange,
    NewGraph,
    NodeStatus,
    NoRightError,
    PeerView,
    PreparedView,
    RestoreView,
    ReviewDetail,
    ReviewView,
    SignedView,
    SignRequest,
    SignView,
    SyncView,
)
from p2pmem.face_peers import DelegationView, PeerDetail, RevocationView
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.references import parse_reference
from p2pmem.services.absent import Absent
from p2pmem.services.delegating import rights_of, subject_of
from p2pmem.services.drafting import Reading
from p2pmem.services.finding import check_one_seal, endorsed_by
from p2pmem.services.job_desk import JobDesk
from p2pmem.services.member_desk import founding_of, roles_of
from p2pmem.services.node_reading import NodeReading
from p2pmem.services.parts import Services
from p2pmem.services.retracting import retraction
from p2pmem.work.outgoing import Ready
from p2pmem.work.registering import AttestArgs
from p2pmem.work.sharing import NewContent, PublishArgs, ShareArgs
from p2pmem.work.verifying import DEADLINE_DEFAULT_MS, EndorseArgs, SubjectArgs, VerifyArgs


class NodeFace(NodeReading):
    """`p2pmem.face.Face` of one node."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        absent = Absent(services.ledger, services.sessions, services.signing)
        self._desk = JobDesk(services.queue, services.showing, absent)
        self._members = services.members
        self._wallets = services.wallets

    # The node

    async def status(self) -> NodeStatus:
        s = self._s
        return NodeStatus(
            version=p2pmem.__version__,
            network=hex_id(s.ledger.network),
            network_name=s.network_name,
            peer=s.network.peer_id,
            addresses=s.network.addresses(),
            agents=tuple(map(str, s.signing.agents())),
            started_ms=s.started_ms,
            now_ms=s.clock.now_ms(),
            position=s.ledger.position,
            projected=s.projector.position,
            graphs=len(s.ledger.graphs),
            items=sum(len(graph.set) for graph in s.ledger.graphs.values()),
            peers=self._peers(),
            sync=self._sync(),
            chain=s.chain,
            partial=s.disk.is_partial,
            warnings=s.troubles.warnings(),
            refused=s.peering.refused(),
            clock=s.clock_watch.view(),
            restored=self._restore_view(),
        )

    def _sync(self) -> tuple[SyncView, ...]:
        """How the graphs that this node takes part in stood when they were last compared."""
        s = self._s
        # A connection alone is not enough: who is let in nowhere any more compares only what is open to all.
        members = {it.peer for it in s.sessions.all()}
        connected = s.network.connected()
        return tuple(
            SyncView(
                str(s.ledger.graph(graph).name),
                peer,
                last.comparison.equal,
                abs(last.comparison.ours - last.comparison.theirs),
                last.at_ms,
                last.comparison.trouble,
                peer in members or (s.ledger.is_open(graph) and peer in connected),
            )
            for (peer, graph), last in sorted(s.exchange.last_comparisons().items())
            if graph in s.ledger.graphs
        )

    def _peers(self) -> tuple[PeerView, ...]:
        s = self._s
        sessions = {session.peer: session for session in s.sessions.all()}
        views: list[PeerView] = []
        for peer in sorted(s.network.connected()):
            session = sessions.get(peer)
            agents = tuple(str(it.agent) for it in session.speakers.speakers) if session else ()
            graphs = len(s.sessions.graphs_of(session)) if session else 0
            apart_ms = s.sessions.apart_ms(session) if session else 0
            addresses = s.exchange.client.known_addresses(peer)
            state = "member" if session else "connected"
            views.append(PeerView(peer, addresses[0] if addresses else "", agents, graphs, apart_ms, state))
        return tuple(views)

    async def confirm_clock(self) -> ClockView:
        await self._s.keeper.confirm_clock()
        return self._s.clock_watch.view()

    async def back_up(self, to: str) -> BackupView:
        return await self._s.backups.back_up(to)

    async def confirm_restore(self, graph: str | None) -> RestoreView:
        s = self._s
        graphs = s.restored.graphs() if graph is None else (s.ledger.named(graph),)
        await s.restored.confirm(it.id for it in graphs)
        return self._restore_view()

    def _restore_view(self) -> RestoreView:
        s = self._s
        return RestoreView(tuple(str(it.name) for it in s.restored.graphs() if s.signing.takes_part(it)))

    async def compact(self) -> CompactView:
        return await self._s.compacting.compact()

    # Context graphs

    async def found(self, new: NewGraph) -> GraphView:
        s = self._s
        if new.chain and not s.chain:
            raise MisuseError("this node has no chain: set chain.rpc and chain.contract in its configuration")
        chain, contract = s.facts.chain_and_contract() if new.chain else (0, None)
        founding = founding_of(new, s.clock.now_ms(), s.label, chain, contract)
        return self._graph_view(await s.membership.found(founding))

    async def graphs(self) -> tuple[GraphView, ...]:
        known = [it for it in self._s.ledger.graphs.values() if it.head is not None and self._may_read(it)]
        return tuple(self._graph_view(it) for it in sorted(known, key=lambda graph: str(graph.name)))

    async def graph(self, graph: str) -> GraphView:
        return self._graph_view(self._to_read(graph))

    def _graph_view(self, graph: LedgerGraph) -> GraphView:
        s = self._s
        online = {speaker.agent for session in s.sessions.all() for speaker in session.speakers.speakers}
        view = s.showing.graph(graph, frozenset((*online, *s.signing.agents())))
        if s.facts.trouble and s.facts.anchors(graph):
            return with_fields(view, trouble=view.trouble or s.facts.trouble)
        return view

    async def change_members(self, graph: str, change: MemberChange) -> GraphView:
        return self._graph_view(await self._members.change(self._s.ledger.named(graph), change))

    async def preview_members(self, graph: str, change: MemberChange) -> ChangePreview:
        return self._members.preview(self._s.ledger.named(graph), change)

    async def prepare_members(self, graph: str, change: MemberChange) -> PreparedView:
        return self._s.preparing.prepare(self._s.ledger.named(graph), change)

    async def prepared_members(self, word: str) -> PreparedView:
        return self._s.preparing.read(word)

    async def sign_members(self, word: str) -> GraphView:
        return self._graph_view(await self._members.change(*self._s.preparing.change_of(word)))

    async def leave(self, graph: str) -> None:
        await self._s.joining.leave(self._s.ledger.named(graph))

    async def invite(self, graph: str, *, roles: tuple[str, ...], uses: int, life_ms: int, ask: bool = False) -> str:
        found = self._s.ledger.named(graph)
        invite = await self._s.joining.invite(found, roles_of(roles), uses, life_ms, ask=ask)
        return str(invite)

    async def join(self, invite: str, *, label: str) -> GraphView:
        graph = await self._s.joining.join(Invite.parse(invite), label or self._s.label)
        return self._graph_view(graph)

    async def follow(self, graph: str, *, addresses: tuple[str, ...]) -> GraphView:
        if not 1 <= len(addresses) <= ADDRESSES_MAX:
            raise MisuseError(f"give 1 to {ADDRESSES_MAX} addresses of nodes that have the graph")
        return self._graph_view(await self._s.joining.follow(GraphName.parse(graph), addresses))

    async def join_requests(self, graph: str) -> tuple[JoinRequestView, ...]:
        found = self._s.ledger.named(graph)
        return tuple(
            JoinRequestView(hex_id(it.id), str(found.name), str(it.agent), it.label, it.roles.words, it.asked_ms)
            for it in self._s.joining.requests(found)
        )

    async def decide_join(self, request: str, *, approve: bool) -> None:
        await self._s.joining.decide(parse_hex_id(request), approve=approve)

    # Who acts for whom, and peers

    async def delegate(self, agent: str, *, label: str, rights: tuple[str, ...]) -> DelegationView:
        return await self._s.delegating.give(Address.parse(agent), label, rights_of(rights))

    async def accept_delegation(self, word: str) -> DelegationView:
        return await self._s.delegating.hold(word)

    async def delegations(self) -> tuple[DelegationView, ...]:
        return self._s.delegating.all()

    async def revoke(self, subject: str, *, keep: bool = True) -> RevocationView:
        return await self._s.delegating.revoke(subject_of(subject), keep=keep)

    async def peers(self) -> tuple[PeerDetail, ...]:
        return self._s.peering.all()

    async def peer(self, peer: str) -> PeerDetail:
        return self._s.peering.one(peer)

    async def ban_peer(self, peer: str, *, for_ms: int | None) -> PeerDetail:
        return await self._s.peering.ban(peer, for_ms)

    async def unban_peer(self, peer: str) -> None:
        await self._s.peering.unban(peer)

    # Working memory

    async def draft(
        self,
        graph: str,
        name: str,
        data: bytes,
        *,
        format: str | None,
        base: str | None,
        subgraph: str,
        replace: bool,
        merge_graphs: bool = False,
        file: str | None = None,
    ) -> DraftView:
        s = self._s
        found = self._named(graph)
        how = Reading(format, base, subgraph, merge_graphs, file)
        written = await s.drafting.write(found, self._agent, check_name(name), data, how, replace_all=replace)
        await self._seen(s.ledger.position)
        return with_fields(s.showing.draft(found, written.draft), warnings=written.warnings)

    async def drafts(self, graph: str | None) -> tuple[DraftView, ...]:
        s = self._s
        wanted = self._named(graph).id if graph else None
        return tuple(
            s.showing.draft(s.ledger.graph(draft.graph), draft)
            for draft in s.drafting.all(wanted)
            if draft.graph in s.ledger.graphs
        )

    async def discard(self, graph: str, name: str) -> None:
        s = self._s
        await s.drafting.discard(self._named(graph), AssetKey(self._agent, check_name(name)))

    async def seal(self, graph: str, name: str) -> DraftView:
        s = self._s
        found = self._named(graph)
        key = AssetKey(self._agent, check_name(name))
        return s.showing.draft(found, await s.drafting.seal(found, key))

    # Jobs that say something

    async def share(self, graph: str, name: str, *, ttl_ms: int | None) -> JobView:
        s = self._s
        found = self._named(graph)
        s.signing.check_right(found, self._agent, Kind.SHARE)
        await self._have_room(found)
        args = ShareArgs(found.id, bytes(self._agent), check_name(name), ttl_ms)
        return await self._shared(await s.sharing.share_at_once(args))

    async def share_data(
        self,
        graph: str,
        name: str,
        data: bytes,
        *,
        format: str | None,
        base: str | None,
        subgraph: str,
        ttl_ms: int | None,
        merge_graphs: bool = False,
        file: str | None = None,
    ) -> JobView:
        s = self._s
        found = self._named(graph)
        agent = self._agent
        s.signing.check_right(found, agent, Kind.SHARE)
        read = await s.drafting.read(found, agent, name, data, Reading(format, base, subgraph, merge_graphs, file))
        await self._have_room(found)
        args = ShareArgs(found.id, bytes(agent), name, ttl_ms)
        shared = await self._shared(await s.sharing.share_at_once(args, NewContent(read.content, subgraph)))
        return with_fields(shared, warnings=read.warnings) if read.warnings else shared

    async def _shared(self, record: JobRecord) -> JobView:
        await self._seen(self._s.ledger.position)
        return self._s.showing.job(record)

    async def publish(self, graph: str, reference: str) -> JobView:
        s = self._s
        found = self._named(graph)
        named = parse_reference(reference, self._agent)
        key = named.key
        if not s.signing.holds(key.author):
            raise NoRightError(f"only the author publishes: {key} is by {key.author}, whose key is not here")
        s.signing.check_right(found, key.author, Kind.PUBLISH)
        await s.sharing.check_publish(found, named)
        await self._have_room(found)
        return await self._submit(s.sharing.publish, PublishArgs(found.id, bytes(key.author), key.name))

    async def endorse(self, graph: str, reference: str, *, reason: str, withdraw: bool) -> JobView:
        s = self._s
        found, asset, view = self._version(graph, reference)
        agent = self._agent
        s.signing.check_right(found, agent, Kind.ENDORSE)
        if withdraw:
            view = endorsed_by(found, asset, view, agent, reference)
        else:
            check_one_seal(asset, view, reference)
        if agent in (view.key.author, *view.principals) and not withdraw:
            raise MisuseError(f"{view.key.asset} is your own: an endorsement counts from somebody else only")
        args = EndorseArgs(SubjectArgs.of(found.id, view.key), bytes(agent), withdraw=withdraw, reason=reason)
        return await self._submit(s.verifying.endorse, args)

    async def verify(self, graph: str, reference: str, *, deadline_ms: int | None) -> JobView:
        s = self._s
        found, asset, view = self._version(graph, reference)
        s.signing.check_right(found, self._agent, Kind.PROPOSE)
        check_one_seal(asset, view, reference)
        if found.head is None or found.head.quorum.is_none:
            raise MisuseError(
                f"{found.name} has no quorum, so nothing can be verified in it: its owner sets one with "
                "`p2pmem graph members --m M`, once there are members who are verifiers"
            )
        until_ms = deadline_ms or s.clock.now_ms() + DEADLINE_DEFAULT_MS
        if until_ms <= s.clock.now_ms():
            raise MisuseError("the deadline has passed; give one that is to come")
        args = VerifyArgs(SubjectArgs.of(found.id, view.key), bytes(self._agent), until_ms)
        job = await s.verifying.ask(args, at_least_until_ms=deadline_ms)
        return await self._settled(await self._desk.settle(job))

    async def _have_room(self, graph: LedgerGraph) -> None:
        """Back-pressure: who shares faster than members take it waits here."""
        await self._s.exchange.room(graph.id)

    async def _submit(self, handler: Handler[Any, Any], args: Any) -> JobView:
        return await self._settled(await self._desk.submit(handler, args))

    async def _settled(self, view: JobView) -> JobView:
        if view.state == State.SUCCEEDED.value:
            await self._seen(self._s.ledger.position)
        return view

    async def _seen(self, position: int) -> None:
        """One's own write is visible to one's own reads when a call returns, unless the disk refuses the projection."""
        if self._s.projector.refusals():
            return
        with trio.move_on_after(5):
            await self._s.projector.reached(position)

    async def attest(self, graph: str, reference: str) -> JobView:
        s = self._s
        if s.registering is None:
            raise MisuseError("this node has no chain: set chain.rpc and chain.contract in its configuration")
        found, _, view = self._version(graph, reference)
        s.registering.check(found)
        s.certifying.certificate(found, view)
        return await self._submit(s.registering.attest, AttestArgs(SubjectArgs.of(found.id, view.key)))

    async def retract(
        self, graph: str, reference: str, *, reason: str, successor: int | None, erase: bool
    ) -> face.VersionView:
        s = self._s
        found, asset, view = self._version(graph, reference)
        agent = view.key.author if s.signing.holds(view.key.author) else s.signing.default_agent
        body = retraction(s.ledger, found, view, agent, erase=erase, successor=successor, reason=reason)
        shown = s.showing.version(found, asset, view, Floor())
        await s.outgoing.admit(Ready(s.signing.envelope(found, agent, Kind.RETRACT, body)))
        await self._seen(s.ledger.position)
        after = asset_view(found.set, view.key.asset, s.clock.now_ms())
        return next(
            (s.showing.version(found, after, it, Floor()) for it in after.versions if it.key == view.key), shown
        )

    # Reviews

    async def reviews(self, *, graph: str | None = None) -> tuple[ReviewView, ...]:
        only = None if graph is None else self._s.ledger.named(graph).id
        reviews = self._s.duties.open_reviews()
        return tuple(self._trust.review_view(it) for it in reviews if only in (None, it.graph))

    async def review(self, review: str) -> ReviewDetail:
        return self._trust.review(review)

    async def decide_review(self, review: str, *, approve: bool, reason: str) -> JobView:
        s = self._s
        it = self._trust.open_review(review)
        if not s.signing.holds(it.verifier):
            raise MisuseError(f"the key of {it.verifier} is in a wallet outside: `p2pmem sign prepare verdict`")
        return await self._desk.settle(
            await s.duties.submit(it, Decision.APPROVE if approve else Decision.REJECT, reason)
        )

    # Jobs

    async def job(self, job: str, *, wait_ms: int = 0) -> JobView:
        return await self._desk.job(job, wait_ms)

    async def jobs(
        self, *, state: str | None, limit: int, before: str | None = None, kind: str | None = None
    ) -> tuple[JobView, ...]:
        return await self._desk.jobs(state, limit, before, kind)

    async def job_story(self, job: str) -> JobStory:
        return self._desk.story(job)

    def watch_job(self, job: str, *, since: int = 0) -> AsyncIterator[JobView]:
        return self._desk.watch(job, since)

    async def cancel_job(self, job: str) -> JobView:
        return await self._desk.cancel(job)

    async def retry_job(self, job: str) -> JobView:
        return await self._desk.retry(job)

    async def resolve_job(self, job: str, *, outcome: str) -> JobView:
        return await self._desk.resolve(job, outcome)

    # Signing by wallets outside

    async def agents(self) -> tuple[AgentView, ...]:
        return self._wallets.agents()

    async def add_agent(self, address: str, *, label: str) -> AgentView:
        return await self._wallets.add(address, label)

    async def sign_prepare(self, request: SignRequest) -> SignView:
        return await self._wallets.prepare(request)

    async def sign_submit(self, id: str, *, signature: str) -> SignedView:
        signed = await self._wallets.submit(id, signature)
        await self._seen(self._s.ledger.position)
        return signed
