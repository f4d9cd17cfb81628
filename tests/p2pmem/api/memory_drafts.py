"""The part of `MemoryFace` that is about drafts, and what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import check_name

from p2pmem.face import (
    DraftView,
    JobView,
    NotFoundError,
    ReviewView,
    VersionView,
)

from .memory_values import AGENT, NOW_MS, ROOT, make_version

if TYPE_CHECKING:
    from .memory_face import MemoryFace


class MemoryDrafts:
    """Mixed into `MemoryFace`, which holds drafts and versions."""

    async def draft(
        self: MemoryFace,
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
        self._note(
            "draft",
            graph=graph,
            name=name,
            data=data,
            format=format,
            base=base,
            subgraph=subgraph,
            replace=replace,
            merge_graphs=merge_graphs,
            file=file,
        )
        found = await self.graph(graph)
        check_name(name)
        before = b"" if replace else self._drafts.get((graph, name), (None, b""))[1]
        content = before + data
        view = DraftView(
            graph,
            f"{AGENT}/{name}",
            f"{found.iri}/assertion/{AGENT}/{name}",
            subgraph,
            content.count(b"\n"),
            False,
            False,
            0,
            "",
            NOW_MS,
            (f"{file}: \x1b[1mlook at it",) if merge_graphs else (),
        )
        self._drafts[graph, name] = (view, content)
        await self._changed("draft", graph, view.reference)
        return view

    async def drafts(self: MemoryFace, graph: str | None) -> tuple[DraftView, ...]:
        self._note("drafts", graph=graph)
        return tuple(view for (of, _), (view, _) in self._drafts.items() if graph in (None, of))

    async def discard(self: MemoryFace, graph: str, name: str) -> None:
        self._note("discard", graph=graph, name=name)
        await self.graph(graph)
        self._draft(graph, name)
        del self._drafts[graph, name]

    async def seal(self: MemoryFace, graph: str, name: str) -> DraftView:
        self._note("seal", graph=graph, name=name)
        await self.graph(graph)
        view, content = self._draft(graph, name)
        view = replace(view, sealed=True, version=1, root=ROOT)
        self._drafts[graph, name] = (view, content)
        return view

    def _draft(self: MemoryFace, graph: str, name: str) -> tuple[DraftView, bytes]:
        if (graph, name) not in self._drafts:
            raise NotFoundError(f"there is no draft {name!r} in {graph}")
        return self._drafts[graph, name]

    async def share(self: MemoryFace, graph: str, name: str, *, ttl_ms: int | None) -> JobView:
        self._note("share", graph=graph, name=name, ttl_ms=ttl_ms)
        found = await self.graph(graph)
        if ttl_ms is not None and ttl_ms > found.ttl_max_ms:
            raise MisuseError("the TTL is over the maximum of this graph")
        view, content = self._draft(graph, name)
        reference = f"{view.reference}@1"
        self.add_version(make_version(graph, reference), content)
        await self._changed("shared", graph, reference)
        return await self._start("share", graph, reference, {"reference": reference, "version": 1})

    async def share_data(
        self: MemoryFace,
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
        self._note(
            "share_data",
            graph=graph,
            name=name,
            data=data,
            format=format,
            base=base,
            subgraph=subgraph,
            ttl_ms=ttl_ms,
            merge_graphs=merge_graphs,
            file=file,
        )
        await self.graph(graph)
        if (graph, name) in self._drafts:
            raise MisuseError(f"there is a draft {name!r} already")
        reference = f"{AGENT}/{check_name(name)}@1"
        self.add_version(make_version(graph, reference), data)
        await self._changed("shared", graph, reference)
        return await self._start("share", graph, reference, {"reference": reference, "version": 1})

    async def publish(self: MemoryFace, graph: str, reference: str) -> JobView:
        self._note("publish", graph=graph, reference=reference)
        view = await self.version(graph, reference)
        return await self._start("publish", graph, view.reference)

    async def endorse(self: MemoryFace, graph: str, reference: str, *, reason: str, withdraw: bool) -> JobView:
        self._note("endorse", graph=graph, reference=reference, reason=reason, withdraw=withdraw)
        view = await self.version(graph, reference)
        return await self._start("endorse", graph, view.reference)

    async def verify(self: MemoryFace, graph: str, reference: str, *, deadline_ms: int | None) -> JobView:
        self._note("verify", graph=graph, reference=reference, deadline_ms=deadline_ms)
        view = await self.version(graph, reference)
        result = {"reference": view.reference, "level": "ConsensusVerified", "shown": "3 of 4", "missing": ""}
        return await self._start("verify", graph, view.reference, result)

    async def retract(
        self: MemoryFace, graph: str, reference: str, *, reason: str, successor: int | None, erase: bool
    ) -> VersionView:
        self._note("retract", graph=graph, reference=reference, reason=reason, successor=successor, erase=erase)
        view = await self.version(graph, reference)
        return replace(view, retracted=True, current=False)

    async def reviews(self: MemoryFace, *, graph: str | None = None) -> tuple[ReviewView, ...]:
        self._note("reviews", graph=graph)
        return tuple(it for it in self._reviews.values() if graph in (None, it.graph))

    async def decide_review(self: MemoryFace, review: str, *, approve: bool, reason: str) -> JobView:
        self._note("decide_review", review=review, approve=approve, reason=reason)
        if review not in self._reviews:
            raise NotFoundError(f"no review {review} is open")
        view = self._reviews[review]
        return await self._start("review", view.graph, view.reference)
