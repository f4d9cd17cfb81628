"""The part of `MemoryFace` that is about the node, its context graphs, and its peers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address, GraphName

from p2pmem.face import (
    BackupView,
    ClockView,
    CompactView,
    GraphView,
    JoinRequestView,
    MemberChange,
    MemberView,
    NewGraph,
    NewMember,
    NodeStatus,
    NotFoundError,
    PeerView,
    RestoreView,
    SyncView,
)
from p2pmem.face_peers import DelegationView, PeerDetail, ReasonCount, RevocationView

from .memory_values import AGENT, NOW_MS, OTHER, PEER

if TYPE_CHECKING:
    from .memory_face import MemoryFace


class MemoryGraphs:
    """Mixed into `MemoryFace`, which holds what it shows."""

    async def status(self: MemoryFace) -> NodeStatus:
        self._note("status")
        return NodeStatus(
            version="0.1.0",
            network="0x" + "5a" * 32,
            network_name="main",
            peer=PEER,
            addresses=("/ip4/127.0.0.1/tcp/4001",),
            agents=(AGENT,),
            started_ms=NOW_MS - 5_000,
            now_ms=NOW_MS,
            position=len(self._events),
            projected=len(self._events),
            graphs=len(self._graphs),
            items=0,
            peers=(PeerView("12D3KooWBob", "/ip4/127.0.0.1/tcp/4002", (OTHER,), 1, -20, "member"),),
            sync=(SyncView(f"{AGENT}/findings", "12D3KooWBob", False, 3, NOW_MS - 1_000, ""),),
            chain="",
            partial=False,
            warnings=("the disk is nearly full",),
            refused=(ReasonCount("network", "handshake", 3), ReasonCount("peer", "bad-signature", 1)),
        )

    async def found(self: MemoryFace, new: NewGraph) -> GraphView:
        self._note("found", new=new)
        name = GraphName(Address.parse(AGENT), new.slug)
        if new.m == 0:
            raise MisuseError("M = 0 would verify everything; leave the verifiers out for a graph without a quorum")
        if str(name) in self._graphs:
            raise MisuseError(f"{name} exists already; choose another slug")
        members = (NewMember(AGENT, ("writer", "approver"), "me"), *new.members)
        verifiers = tuple(it.address for it in new.members if "verifier" in it.roles)
        view = GraphView(
            graph=str(name),
            iri=name.iri,
            id="0x" + name.id.hex(),
            access=new.access,
            owner=AGENT,
            version=1,
            term=1,
            head="0x" + "11" * 32,
            quorum_m=new.m or len(verifiers),
            verifiers=verifiers,
            members=tuple(MemberView(it.address, it.label, it.roles, NOW_MS, it.address == AGENT) for it in members),
            ttl_default_ms=new.ttl_default_ms or 7 * 86_400_000,
            ttl_max_ms=new.ttl_max_ms or 30 * 86_400_000,
            acks_min=new.acks_min,
            chain=0,
            contract="",
            trouble="",
        )
        self._graphs[str(name)] = view
        await self._changed("roster", str(name))
        return view

    async def confirm_clock(self: MemoryFace) -> ClockView:
        self._note("confirm_clock")
        return ClockView()

    async def back_up(self: MemoryFace, to: str) -> BackupView:
        self._note("back_up", to=to)
        return BackupView(to, 4_096)

    async def confirm_restore(self: MemoryFace, graph: str | None) -> RestoreView:
        self._note("confirm_restore", graph=graph)
        return RestoreView()

    async def compact(self: MemoryFace) -> CompactView:
        self._note("compact")
        return CompactView(2_000, 1_000)

    async def graphs(self: MemoryFace) -> tuple[GraphView, ...]:
        self._note("graphs")
        return tuple(self._graphs.values())

    async def graph(self: MemoryFace, graph: str) -> GraphView:
        self._note("graph", graph=graph)
        name = str(GraphName.parse(graph))
        if name not in self._graphs:
            raise NotFoundError(f"{name} is unknown here or not yours")
        return self._graphs[name]

    async def change_members(self: MemoryFace, graph: str, change: MemberChange) -> GraphView:
        self._note("change_members", graph=graph, change=change)
        view = await self.graph(graph)
        kept = [it for it in view.members if it.address not in change.remove]
        added = [MemberView(it.address, it.label, it.roles, NOW_MS, False) for it in change.set]
        self._graphs[graph] = replace(view, version=view.version + 1, members=(*kept, *added))
        return self._graphs[graph]

    async def leave(self: MemoryFace, graph: str) -> None:
        self._note("leave", graph=graph)
        if (await self.graph(graph)).owner == AGENT:
            raise MisuseError(f"the owner of {graph} cannot leave it")
        del self._graphs[graph]

    async def invite(
        self: MemoryFace, graph: str, *, roles: tuple[str, ...], uses: int, life_ms: int, ask: bool = False
    ) -> str:
        self._note("invite", graph=graph, roles=roles, uses=uses, life_ms=life_ms, ask=ask)
        await self.graph(graph)
        return "p2pmem1abc"

    async def join(self: MemoryFace, invite: str, *, label: str) -> GraphView:
        self._note("join", invite=invite, label=label)
        if not invite.startswith("p2pmem1"):
            raise MisuseError("this is not an invite: it is one word that begins with p2pmem1")
        made = await self.found(NewGraph("joined"))
        self._graphs[made.graph] = replace(made, owner=OTHER)
        return self._graphs[made.graph]

    async def follow(self: MemoryFace, graph: str, *, addresses: tuple[str, ...]) -> GraphView:
        self._note("follow", graph=graph, addresses=addresses)
        return await self.found(NewGraph("followed"))

    async def delegate(self: MemoryFace, agent: str, *, label: str, rights: tuple[str, ...]) -> DelegationView:
        self._note("delegate", agent=agent, label=label, rights=rights)
        made = DelegationView(AGENT, agent, label, rights or ("share",), 1, True, False, False, "p2pmemact1abc")
        self._delegations.append(made)
        return made

    async def accept_delegation(self: MemoryFace, word: str) -> DelegationView:
        self._note("accept_delegation", word=word)
        if not self._delegations:
            raise MisuseError("this is not a delegation: it is one word that begins with p2pmemact1")
        return self._delegations[-1]

    async def delegations(self: MemoryFace) -> tuple[DelegationView, ...]:
        self._note("delegations")
        return tuple(self._delegations)

    async def revoke(self: MemoryFace, subject: str, *, keep: bool = True) -> RevocationView:
        self._note("revoke", subject=subject, keep=keep)
        if not self._delegations:
            raise MisuseError(f"nothing of {subject} is to be ended here")
        return RevocationView(subject, tuple(self._graphs), (), 0)

    async def peers(self: MemoryFace) -> tuple[PeerDetail, ...]:
        self._note("peers")
        return tuple(self._banned.values())

    async def peer(self: MemoryFace, peer: str) -> PeerDetail:
        self._note("peer", peer=peer)
        if peer not in self._banned:
            raise NotFoundError("neither connected nor banned")
        return self._banned[peer]

    async def ban_peer(self: MemoryFace, peer: str, *, for_ms: int | None) -> PeerDetail:
        self._note("ban_peer", peer=peer, for_ms=for_ms)
        until_ms = -1 if for_ms is None else for_ms
        self._banned[peer] = PeerDetail(peer, "banned", (), (), (), (), 0, until_ms, "by hand", 0, 0, 0)
        return self._banned[peer]

    async def unban_peer(self: MemoryFace, peer: str) -> None:
        self._note("unban_peer", peer=peer)
        if self._banned.pop(peer, None) is None:
            raise NotFoundError("not banned")

    async def join_requests(self: MemoryFace, graph: str) -> tuple[JoinRequestView, ...]:
        self._note("join_requests", graph=graph)
        await self.graph(graph)
        return tuple(replace(it, graph=graph) for it in self._requests.values())

    async def decide_join(self: MemoryFace, request: str, *, approve: bool) -> None:
        self._note("decide_join", request=request, approve=approve)
        if self._requests.pop(request, None) is None:
            raise NotFoundError(f"there is no request {request}")
