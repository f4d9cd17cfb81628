"""What one agent of a node may do through it: speak as itself, read, and see and cancel what it asked for."""

from __future__ import annotations

from p2pmem_protocol.names import Address

from p2pmem.face import DraftView, JobView, NoRightError, NotFoundError
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.references import parse_reference
from p2pmem.services.node_face import NodeFace
from p2pmem.services.node_reading import unknown
from p2pmem.services.parts import Services


class AgentFace(NodeFace):
    """The calls of `p2pmem.face.Face` that `p2pmem.api.routes.AGENT_CALLS` names, on behalf of one agent.

    Its drafts and its jobs are the only ones. It speaks in the context graphs in which what it says would count, and
    reads those and open ones; others are unknown.
    """

    def __init__(self, services: Services, agent: Address) -> None:
        """Errors: `NotFoundError` for somebody for whom this node does not speak."""
        if not services.signing.speaks_for(agent):
            raise NotFoundError(f"{agent} is no agent of this node")
        super().__init__(services)
        self._own = self._drafts_of = agent
        self._desk = self._desk.of_agent(agent)

    @property
    def _agent(self) -> Address:
        return self._own

    def _speaks_in(self, graph: LedgerGraph) -> bool:
        return graph.is_member(self._own) or self._s.signing.acting_in(graph, self._own) is not None

    def _named(self, graph: str) -> LedgerGraph:
        found = super()._named(graph)
        if not self._speaks_in(found):
            raise unknown(found)
        return found

    def _may_read(self, graph: LedgerGraph) -> bool:
        return self._speaks_in(graph) or self._s.ledger.is_open(graph.id)

    async def drafts(self, graph: str | None) -> tuple[DraftView, ...]:
        if graph:
            self._named(graph)
        return tuple(it for it in await super().drafts(graph) if it.reference.startswith(f"{self._own}/"))

    async def publish(self, graph: str, reference: str) -> JobView:
        key = parse_reference(reference, self._own).key
        if key.author != self._own:
            raise NoRightError(f"only the author publishes: {key} is by {key.author}, and this token is of {self._own}")
        return await super().publish(graph, reference)


def face_of_agent(services: Services, agent: str) -> AgentFace:
    """What one agent of a node may call. Errors: `NotFoundError` for somebody who is none."""
    return AgentFace(services, Address.parse(agent))
