"""A context graph and the peers that share it: what both tellings of the main job begin with, and wait for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_protocol.names import Address

from p2pmem.face import Face, GraphView, JobView, NewGraph, NewMember
from p2pmem_devnet.errors import StoryError
from p2pmem_devnet.fleet import Fleet, NodeProcess, one_error

PATIENCE_S: Final = 60.0
INVITE_LIFE_MS: Final = 3_600_000
ENDED: Final = frozenset(("succeeded", "failed", "cancelled", "outcome_unknown"))


@dataclass(frozen=True, slots=True)
class Group:
    """The founder, the other members, and their graph."""

    fleet: Fleet
    founder: NodeProcess
    others: tuple[NodeProcess, ...]
    graph: str
    graph_id: str
    m: int

    @property
    def members(self) -> tuple[NodeProcess, ...]:
        return (self.founder, *self.others)

    def names(self, nodes: Sequence[NodeProcess] | None = None) -> list[str]:
        return [node.name for node in (self.members if nodes is None else nodes)]

    def name_of(self, address: str) -> str:
        """The name behind an agent's address; the address itself for a stranger."""
        return next((node.name for node in self.members if node.agent == Address.parse(address)), address)


async def found(fleet: Fleet, slug: str, m: int, *, chain: bool) -> Group:
    """Found a gated graph with everybody in it, and let everybody in; returns when each is connected to each."""
    founder, *others = fleet
    members = tuple(NewMember(str(node.agent), ("writer", "endorser", "verifier"), node.name) for node in others)
    graph = await founder.face.found(NewGraph(slug, members=members, m=m, acks_min=m, chain=chain))
    invite = await founder.face.invite(graph.graph, roles=(), uses=1, life_ms=INVITE_LIFE_MS)
    await on_all(others, lambda node: node.face.join(invite, label=node.name))
    group = Group(fleet, founder, tuple(others), graph.graph, graph.id, m)
    await on_all(group.members, lambda node: connected(node, group))
    return group


async def connected(node: NodeProcess, group: Group) -> None:
    """Wait until every member's node is connected to this one."""

    async def everybody() -> bool:
        view: GraphView = await node.face.graph(group.graph)
        return all(member.online for member in view.members)

    await poll(everybody, f"{node.name} is not connected to everybody")


async def on_all(nodes: Sequence[NodeProcess], act: Callable[[NodeProcess], Awaitable[object]]) -> None:
    """Do the same with each, at once. The first error ends the others'."""
    async with one_error(), trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(act, node)


async def until(face: Face, holds: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Wait until something holds that a change in the node's ledger brings about. `StoryError` after a minute."""
    with trio.move_on_after(PATIENCE_S):
        position = (await face.status()).position
        if await holds():
            return
        async with aclosing(face.changes(position)) as changes:  # type: ignore[type-var]
            async for _ in changes:
                if await holds():
                    return
    raise StoryError(f"{otherwise}, after {PATIENCE_S:.0f} s of waiting")


async def poll(holds: Callable[[], Awaitable[bool]], otherwise: str, every_s: float = 0.05) -> None:
    """Wait for what no ledger tells, such as connections and the clock. `StoryError` after a minute."""
    with trio.move_on_after(PATIENCE_S):
        while True:
            if await holds():
                return
            await trio.sleep(every_s)
    raise StoryError(f"{otherwise}, after {PATIENCE_S:.0f} s of waiting")


async def finished(face: Face, job: JobView) -> JobView:
    """Wait for the end of a job. `StoryError` unless it succeeded."""
    if job.state not in ENDED:
        job = await face.job(job.id, wait_ms=round(PATIENCE_S * 1000))
    if job.state != "succeeded":
        why = job.error or job.waiting_for or job.progress or "no reason is given"
        raise StoryError(f"{job.kind} of {job.reference} is {job.state}: {why}")
    return job


def result_of(job: JobView) -> dict[str, object]:
    """What a job that succeeded brought, by name."""
    if not isinstance(job.result, dict):
        raise StoryError(f"{job.kind} of {job.reference} has no result")
    return job.result
