"""The part of `MemoryFace` that is about trust: it answers in the shapes of the face, and signs nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from p2pmem_protocol.errors import MisuseError

from p2pmem.face import (
    AgentView,
    ChangePreview,
    Difference,
    DiffView,
    Explanation,
    GraphView,
    HistoryStep,
    HistoryView,
    JobView,
    MemberChange,
    NewMember,
    NotFoundError,
    PreparedView,
    RetractView,
    ReviewDetail,
    SignatureView,
    SignedView,
    SignRequest,
    SignView,
)

if TYPE_CHECKING:
    from .memory_face import MemoryFace

OUTSIDE = "0x" + "c3" * 20
WORD = "p2pmemchange1word"
"""What an approver prepared at this node."""


class MemoryTrust:
    """Mixed into `MemoryFace`, whose graphs and versions it shows."""

    _prepared_change: tuple[str, MemberChange] | None = None

    async def preview_members(self: MemoryFace, graph: str, change: MemberChange) -> ChangePreview:
        self._note("preview_members", graph=graph, change=change)
        now = await self.graph(graph)
        members = tuple(NewMember(it.address, it.roles, it.label) for it in now.members) + change.set
        return ChangePreview(
            graph,
            now.version + 1,
            now.owner,
            True,
            change.m or 0,
            now.verifiers,
            members,
            ("M is 1",),
            (Difference("quorum", "none", "1 of 1"),),
            ("a note",),
            (),
        )

    async def prepare_members(self: MemoryFace, graph: str, change: MemberChange) -> PreparedView:
        self._note("prepare_members", graph=graph, change=change)
        self._prepared_change = (graph, change)
        return await self._shown(graph, change)

    async def _shown(self: MemoryFace, graph: str, change: MemberChange) -> PreparedView:
        return PreparedView(graph, OUTSIDE, "Cy", change, await self.preview_members(graph, change), WORD)

    async def prepared_members(self: MemoryFace, word: str) -> PreparedView:
        self._note("prepared_members", word=word)
        if word != WORD:
            raise MisuseError("this is not a change that was prepared: it is one word that begins p2pmemchange1")
        graph, change = self._prepared_change or (next(iter(self._graphs)), MemberChange(m=1))
        return await self._shown(graph, change)

    async def sign_members(self: MemoryFace, word: str) -> GraphView:
        self._note("sign_members", word=word)
        it = await self.prepared_members(word)
        return await self.change_members(it.graph, it.change)

    async def review(self: MemoryFace, review: str) -> ReviewDetail:
        self._note("review", review=review)
        found = self._reviews.get(review)
        if found is None:
            raise NotFoundError(f"no review {review!r} is open")
        version, content = next(iter(self._versions.values()))
        return ReviewDetail(found, version, content.decode(), "", (), None)

    async def history(self: MemoryFace, graph: str, reference: str) -> HistoryView:
        self._note("history", graph=graph, reference=reference)
        version, _ = self._version(graph, reference)
        step = HistoryStep(version.version, "promote", version.author, version.root, version.seal, version.issued_ms)
        back = RetractView(1, version.author, False, False, None, "a mistake", version.issued_ms)
        return HistoryView(graph, version.reference, (step,), (version,), (back,))

    async def diff(self: MemoryFace, graph: str, reference: str, *, other: str | None) -> DiffView:
        self._note("diff", graph=graph, reference=reference, other=other)
        version, content = self._version(graph, reference)
        return DiffView(f"{version.reference}-before", version.reference, tuple(content.decode().splitlines()), ())

    async def explain(self: MemoryFace, graph: str, reference: str) -> Explanation:
        self._note("explain", graph=graph, reference=reference)
        version, _ = self._version(graph, reference)
        signed = SignatureView(
            "0x01", "share", version.author, "me", version.author, "", "", "", "", "", "0x" + "00" * 65
        )
        said = [
            SignatureView(
                "0x02",
                "verdict",
                it.address,
                it.label,
                it.address,
                it.decision,
                it.method,
                it.reason,
                "0x03",
                "",
                "0x04",
            )
            for it in version.trust.signers
        ]
        return Explanation(
            version,
            version.trust.level,
            "",
            0,
            (),
            (version.author,),
            (),
            1,
            "one more",
            False,
            0,
            (signed, *said),
            (),
            (),
        )

    async def attest(self: MemoryFace, graph: str, reference: str) -> JobView:
        self._note("attest", graph=graph, reference=reference)
        return await self._start("attest", graph, reference, {"approvals": 2})

    async def roster(self: MemoryFace, graph: str) -> bytes:
        self._note("roster", graph=graph)
        await self.graph(graph)
        return b"\x80"

    async def agents(self: MemoryFace) -> tuple[AgentView, ...]:
        self._note("agents")
        return tuple(self._agents.values())

    async def add_agent(self: MemoryFace, address: str, *, label: str) -> AgentView:
        self._note("add_agent", address=address, label=label)
        self._agents[address] = AgentView(address, label, True)
        return self._agents[address]

    async def sign_prepare(self: MemoryFace, request: SignRequest) -> SignView:
        self._note("sign_prepare", request=request)
        if request.action not in ("endorse", "share"):
            raise MisuseError(f"{request.action!r} is nothing to sign")
        view = SignView("0xabc", request.action, request.agent, {"primaryType": "Endorsement"}, 1_800_000_000_000)
        self._prepared[view.id] = replace(view)
        return view

    async def sign_submit(self: MemoryFace, id: str, *, signature: str) -> SignedView:
        self._note("sign_submit", id=id, signature=signature)
        view = self._prepared.pop(id, None)
        if view is None:
            raise NotFoundError("nothing of that id waits for a signature")
        return SignedView(id, view.action, "")
