"""What an agent with a wallet outside may ask to sign: one method an action of `face.SignRequest`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from p2pmem_protocol.authoring import may_publish, may_share
from p2pmem_protocol.bodies import Ack, Body, Propose
from p2pmem_protocol.credential import ActFor, Carry, Right
from p2pmem_protocol.envelope import NEVER, Unsigned
from p2pmem_protocol.errors import MisuseError, counted
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Method, Verdict
from p2pmem_protocol.keys import SIGNATURE_BYTES
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import ACK_MS_MAX, DEADLINE_MS_MAX
from p2pmem_protocol.names import Address, AssetKey, check_name, hex_id
from p2pmem_protocol.rosters_change import RosterPlan
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.face import AgentView, MemberChange, NotFoundError, SignedView, SignRequest, SignView
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.references import full_reference
from p2pmem.services.delegating import Delegating, rights_of, subject_of
from p2pmem.services.drafting import Drafting, Reading
from p2pmem.services.duties import PROMISE_MS
from p2pmem.services.finding import check_one_seal, endorsed_by, find_version, reference_in
from p2pmem.services.member_desk import MemberDesk, founding_of
from p2pmem.services.membership import Membership
from p2pmem.services.papers import LIFE_MS, OwnPapers
from p2pmem.services.preparing import Preparing
from p2pmem.services.retracting import retraction
from p2pmem.services.signing import Signing
from p2pmem.services.telling_changes import bounded, differences, line_of, lines_of
from p2pmem.services.wallets import Handed, Statement, Wallets
from p2pmem.work.outgoing import Outgoing, Ready
from p2pmem.work.registering import RegisteringJobs, registration_digest, registration_typed_data
from p2pmem.work.sharing import SharingJobs
from p2pmem.work.verifying import DEADLINE_DEFAULT_MS, held_content


@dataclass(frozen=True, slots=True)
class Blank:
    """Signs nothing, so that a statement can be made whose signature is still to come."""

    address: Address

    def sign(self, digest: bytes) -> bytes:
        return bytes(SIGNATURE_BYTES)


class SigningDesk:
    """The part of the face for wallets outside."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        signing: Signing,
        wallets: Wallets,
        drafting: Drafting,
        sharing: SharingJobs,
        outgoing: Outgoing,
        membership: Membership,
        members: MemberDesk,
        preparing: Preparing,
        papers: OwnPapers,
        delegating: Delegating,
        registering: RegisteringJobs | None,
    ) -> None:
        self._ledger = ledger
        self._signing = signing
        self._wallets = wallets
        self._drafting = drafting
        self._sharing = sharing
        self._outgoing = outgoing
        self._membership = membership
        self._members = members
        self._preparing = preparing
        self._papers = papers
        self._delegating = delegating
        self._registering = registering
        self._actions: Final[dict[str, Callable[[SignRequest, Address], Awaitable[Statement]]]] = {
            "found": self._found,
            "roster": self._roster,
            "prepare": self._prepare,
            "seal": self._seal,
            "share": self._share,
            "publish": self._publish,
            "endorse": self._endorse,
            "propose": self._propose,
            "verdict": self._verdict,
            "retract": self._retract,
            "ack": self._ack,
            "revoke": self._revoke,
            "carry": self._carry,
            "act_for": self._act_for,
            "quorum": self._quorum,
        }

    def agents(self) -> tuple[AgentView, ...]:
        """With the label that each has, for one of ours the first in a graph that lists it."""
        own = tuple(AgentView(str(it), self._label_of(it), False) for it in self._signing.agents())
        return own + tuple(AgentView(str(it), label, True) for it, label in self._signing.outside.items())

    def _label_of(self, agent: Address) -> str:
        graphs = sorted(self._ledger.graphs.values(), key=lambda graph: graph.name.iri)
        return next(filter(None, (graph.label_of(agent) for graph in graphs)), "")

    async def add(self, address: str, label: str) -> AgentView:
        agent = Address.parse(address)
        await self._wallets.add(agent, label)
        return AgentView(str(agent), label, True)

    async def prepare(self, request: SignRequest) -> SignView:
        make = self._actions.get(request.action)
        if make is None:
            raise MisuseError(f"{request.action[:20]!r} is no action; they are {', '.join(self._actions)}")
        agent = Address.parse(request.agent)
        self._wallets.check(agent)
        waiting = self._wallets.keep(await make(request, agent))
        it = waiting.statement
        return SignView(
            hex_id(it.digest), it.action, str(it.agent), it.typed_data, waiting.until_ms, it.told, it.warnings
        )

    async def submit(self, id_: str, signature: str) -> SignedView:
        statement, about = await self._wallets.submit(id_, signature)
        return SignedView(hex_id(statement.digest), statement.action, about)

    # Graphs and members

    async def _found(self, request: SignRequest, agent: Address) -> Statement:
        if request.new is None:
            raise MisuseError("found needs `new`, what the graph begins with")
        founding = founding_of(request.new, self._ledger.clock.now_ms(), self._signing.outside[agent])
        name, make = self._membership.first(founding, agent)

        async def finish(handed: Handed) -> str:
            return str((await self._membership.adopt(name, make(handed))).name)

        first = make(Blank(agent))
        header = first.header
        said, more = bounded(differences(None, first.body, None, agent))
        told = (*map(line_of, said), *more)
        return Statement("found", agent, header.id, header.typed_data(), finish, told)

    async def _roster(self, request: SignRequest, agent: Address) -> Statement:
        if request.prepared:
            graph, change = self._preparing.change_of(request.prepared)
        else:
            graph, change = self._graph(request), request.change or MemberChange()
        plan: RosterPlan = self._members.plan(graph, change)
        term = graph.headers.next_term if plan.is_root_act else None
        header = plan.sign(Blank(agent), term=term).header

        async def finish(handed: Handed) -> str:
            return str((await self._membership.adopt_signed(graph, plan, handed)).name)

        told = lines_of(self._members.preview_of(graph, change, plan))
        return Statement("roster", agent, header.id, header.typed_data(), finish, told)

    async def _prepare(self, request: SignRequest, agent: Address) -> Statement:
        graph, change = self._graph(request), request.change or MemberChange()
        prepared = self._preparing.unsigned(graph, change, agent)

        async def finish(handed: Handed) -> str:
            return str(prepared.sign(handed))

        told = lines_of(self._members.preview(graph, change))
        return Statement("prepare", agent, prepared.digest, prepared.typed_data(), finish, told)

    async def _quorum(self, request: SignRequest, agent: Address) -> Statement:
        graph, registering = self._graph(request), self._registering
        if registering is None or graph.head is None or graph.head.quorum.is_none:
            raise MisuseError(f"{graph.name} has no quorum, or this node no chain to register it on")
        registering.check(graph)
        if agent != graph.name.creator:
            raise MisuseError(f"the contract takes a quorum from the root key alone, {graph.name.creator}")
        quorum, network = graph.head.quorum, self._ledger.network

        async def finish(handed: Handed) -> str:
            await registering.submit(quorum, handed.sign(registration_digest(network, quorum)))
            return str(graph.name)

        data = registration_typed_data(network, quorum)
        return Statement("quorum", agent, registration_digest(network, quorum), data, finish)

    # Versions

    async def _seal(self, request: SignRequest, agent: Address) -> Statement:
        graph, key = self._graph(request), AssetKey(agent, check_name(request.name))
        warnings: tuple[str, ...] = ()
        if request.data is not None:
            how = Reading(request.format, request.base, request.subgraph, request.merge_graphs)
            written = await self._drafting.write(graph, agent, key.name, request.data.encode(), how, replace_all=True)
            warnings = written.warnings
        unsealed = await self._drafting.unsealed(graph, key)

        async def finish(handed: Handed) -> str:
            await self._drafting.keep_seal(graph, unsealed, unsealed.seal.sign(handed))
            return reference_in(graph, unsealed.seal.key)

        return Statement("seal", agent, unsealed.seal.digest, unsealed.seal.typed_data(), finish, warnings=warnings)

    async def _share(self, request: SignRequest, agent: Address) -> Statement:
        graph = self._graph(request)
        return await self._send(graph, agent, request, Kind.SHARE, self._sharing.expiry(graph, request.ttl_ms))

    async def _publish(self, request: SignRequest, agent: Address) -> Statement:
        return await self._send(self._graph(request), agent, request, Kind.PUBLISH, NEVER)

    async def _send(
        self, graph: LedgerGraph, agent: Address, request: SignRequest, kind: Kind, expires_ms: int
    ) -> Statement:
        self._signing.check_right(graph, agent, kind)
        key = AssetKey(agent, check_name(request.name))
        sealed = await self._drafting.ready_sealed(graph, key)
        seal = sealed.own.seal
        unsigned = self._signing.unsigned(
            graph, agent, kind, self._signing.sealed_body(seal, sealed.content.data), expires_at_ms=expires_ms
        )

        async def finish(handed: Handed) -> str:
            view = asset_view(graph.set, key, self._ledger.clock.now_ms())
            if kind is Kind.SHARE:
                may_share(view, seal.seal, expires_ms)
            else:
                may_publish(view, seal.seal)
            await self._outgoing.admit(self._sharing.ready(sealed, unsigned.sign(handed)))
            if kind is Kind.PUBLISH:
                self._sharing.published(graph, seal.seal.key)
            return reference_in(graph, seal.seal.key)

        told = f"{'shares' if kind is Kind.SHARE else 'publishes'} {reference_in(graph, seal.seal.key)}"
        return self._statement(request.action, unsigned, told, finish)

    async def _propose(self, request: SignRequest, agent: Address) -> Statement:
        graph, asset, view = self._found_version(request, agent)
        check_one_seal(asset, view, request.reference)
        now_ms = self._ledger.clock.now_ms()
        if graph.head is None or graph.head.quorum.is_none:
            raise MisuseError(f"{graph.name} has no quorum, so nothing can be verified in it")
        self._signing.check_right(graph, agent, Kind.PROPOSE)
        until_ms = request.deadline_ms or now_ms + DEADLINE_DEFAULT_MS
        until_ms = min(until_ms, view.lives_until_ms or until_ms, now_ms + DEADLINE_MS_MAX)
        body = Propose(view.key, graph.head.quorum.id)
        told = f"asks the verifiers about {reference_in(graph, view.key)}"
        return self._enveloped(request, graph, agent, view, Kind.PROPOSE, body, until_ms, told)

    async def _retract(self, request: SignRequest, agent: Address) -> Statement:
        graph, view = self._version(request, agent)
        body = retraction(
            self._ledger,
            graph,
            view,
            agent,
            erase=request.erase,
            successor=request.successor,
            reason=request.reason,
        )
        told = f"takes back {view.key.asset}@{view.key.version}"
        if request.successor is not None:
            told += f", whose place version {request.successor} takes"
        if request.erase:
            told += ", and erases its content at every member"
        return self._enveloped(request, graph, agent, view, Kind.RETRACT, body, NEVER, told)

    async def _ack(self, request: SignRequest, agent: Address) -> Statement:
        graph, view = self._version(request, agent)
        self._signing.check_right(graph, agent, Kind.ACK)
        held_content(self._ledger, graph, view.key)
        now_ms = self._ledger.clock.now_ms()
        until_ms = min(request.deadline_ms or now_ms + PROMISE_MS, now_ms + ACK_MS_MAX)
        told = f"promises to keep the content of {reference_in(graph, view.key)}"
        return self._enveloped(request, graph, agent, view, Kind.ACK, Ack(view.key.root), until_ms, told)

    async def _revoke(self, request: SignRequest, agent: Address) -> Statement:
        graph, subject = self._graph(request), subject_of(request.subject)
        body = self._delegating.revocation(graph, agent, subject, keep=request.keep)
        if body is None or not graph.is_member(agent):
            raise MisuseError(
                f"nothing of {subject} is to be ended in {graph.name}: {agent} is no member, or delegated nothing to "
                "it that is known here"
            )
        unsigned = self._signing.unsigned(graph, agent, Kind.REVOKE, body)

        async def finish(handed: Handed) -> str:
            await self._outgoing.admit(Ready(unsigned.sign(handed)))
            return str(subject)

        told = f"ends what {agent} delegated to {subject}, up to serial {body.serial}, and keeps {len(body.kept)} items"
        return self._statement(request.action, unsigned, told, finish)

    def _enveloped(
        self,
        request: SignRequest,
        graph: LedgerGraph,
        agent: Address,
        view: VersionView,
        kind: Kind,
        body: Body,
        until_ms: int,
        told: str,
    ) -> Statement:
        unsigned = self._signing.unsigned(graph, agent, kind, body, expires_at_ms=until_ms)

        async def finish(handed: Handed) -> str:
            await self._outgoing.admit(Ready(unsigned.sign(handed)))
            return reference_in(graph, view.key)

        return self._statement(request.action, unsigned, told, finish)

    # Evidence

    async def _endorse(self, request: SignRequest, agent: Address) -> Statement:
        graph, asset, view = self._found_version(request, agent)
        decision = Endorse.WITHDRAW if request.withdraw else Endorse.ENDORSE
        if decision is Endorse.WITHDRAW:
            view = endorsed_by(graph, asset, view, agent, request.reference)
        else:
            self._signing.check_right(graph, agent, Kind.ENDORSE)
            check_one_seal(asset, view, request.reference)
            held_content(self._ledger, graph, view.key)
        return self._said(
            request,
            graph,
            view,
            Endorsement(self._ledger.network, graph.id, view.key, decision, request.reason, agent),
        )

    async def _verdict(self, request: SignRequest, agent: Address) -> Statement:
        graph, asset, view = self._found_version(request, agent)
        check_one_seal(asset, view, request.reference)
        if request.decision not in ("approve", "reject"):
            raise MisuseError(f"a verdict is approve or reject, not {request.decision[:20]!r}")
        if graph.head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        self._signing.check_right(graph, agent, Kind.VERDICT)
        held_content(self._ledger, graph, view.key)
        verdict = Verdict(
            self._ledger.network,
            graph.id,
            graph.head.quorum.id,
            view.key,
            Decision[request.decision.upper()],
            Method.MANUAL,
            request.reason,
            agent,
        )
        return self._said(request, graph, view, verdict)

    def _said(
        self, request: SignRequest, graph: LedgerGraph, view: VersionView, said: Endorsement | Verdict
    ) -> Statement:
        async def finish(handed: Handed) -> str:
            await self._outgoing.admit(Ready(Evidence.sign(said, handed)))
            return reference_in(graph, view.key)

        word = f"{said.decision.name.lower()}s"
        return Statement(request.action, said.signer, said.digest, said.typed_data(), finish, (_told(word, view),))

    # Credentials

    async def _carry(self, request: SignRequest, agent: Address) -> Statement:
        carry = Carry(
            self._ledger.network,
            agent,
            self._papers.peer,
            self._papers.serial,
            self._ledger.clock.now_ms() + LIFE_MS,
        )

        async def finish(handed: Handed) -> str:
            await self._papers.keep(self._ledger, carry.sign(handed))
            return ""

        return Statement("carry", agent, carry.digest, carry.typed_data(), finish)

    async def _act_for(self, request: SignRequest, agent: Address) -> Statement:
        ours = self._signing.default_agent
        other = Address.parse(request.subject) if request.subject else ours
        rights = rights_of(request.rights) if request.rights or other != ours else Right.all()
        serial = self._delegating.next_serial(agent, other)
        acts = ActFor(self._ledger.network, agent, other, serial, request.label or "assistant", rights)

        async def finish(handed: Handed) -> str:
            signed = acts.sign(handed)
            if other == ours:
                await self._delegating.hold_signed(signed)
            else:
                await self._delegating.keep_given(signed)
            return str(signed)

        return Statement("act_for", agent, acts.digest, acts.typed_data(), finish)

    # Help

    def _statement(
        self, action: str, unsigned: Unsigned, told: str, finish: Callable[[Handed], Awaitable[str]]
    ) -> Statement:
        """What an envelope says is bytes to a wallet, and its graph a hash: so it is `told` to who signs."""
        told += f" in {self._ledger.graph(unsigned.graph).name}"
        if unsigned.expires_at_ms != NEVER:
            until = datetime.fromtimestamp(unsigned.expires_at_ms / 1_000, UTC)
            told += f", until {until.isoformat(timespec='seconds')}"
        if unsigned.delegation is not None:
            told += f", for {unsigned.delegation.delegation.principal}"
        return Statement(action, unsigned.author, unsigned.id, unsigned.typed_data(), finish, (told,))

    def _graph(self, request: SignRequest) -> LedgerGraph:
        if not request.graph:
            raise MisuseError(f"{request.action} needs `graph`")
        return self._ledger.named(request.graph)

    def _version(self, request: SignRequest, agent: Address) -> tuple[LedgerGraph, VersionView]:
        graph, _, view = self._found_version(request, agent)
        return graph, view

    def _found_version(self, request: SignRequest, agent: Address) -> tuple[LedgerGraph, AssetView, VersionView]:
        graph = self._graph(request)
        asset, view = find_version(graph, request.reference, agent, self._ledger.clock.now_ms())
        if not view.is_visible:
            raise NotFoundError(f"{request.reference} is not in {graph.name}: it has expired, or was retracted")
        return graph, asset, view


def _told(word: str, view: VersionView) -> str:
    """What a wallet shows of a seal is a hash: this is what it seals."""
    where = f"in the sub-graph {view.subgraph}" if view.subgraph else "in no sub-graph"
    return f"{word} {full_reference(view.key)}: {counted(view.leaves, 'statement')} {where}"
