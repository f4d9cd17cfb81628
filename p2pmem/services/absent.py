"""Whom a waiting job waits for, and when they were last here."""

from __future__ import annotations

from p2pmem_jobs import JobRecord, State, codec
from p2pmem_protocol.names import Address, AssetKey, GraphId
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import asset_view, copies

from p2pmem.face import AbsentView
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.sessions import Sessions
from p2pmem.services.signing import Signing
from p2pmem.work.sharing import PublishArgs
from p2pmem.work.verifying import VerifyArgs, version_view


class Absent:
    """A verification waits for verifiers, a publication for members who promise to keep it."""

    def __init__(self, ledger: Ledger, sessions: Sessions, signing: Signing) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._signing = signing

    def of(self, record: JobRecord) -> tuple[AbsentView, ...]:
        """Those from whom something may still come, in the order of their addresses; none unless the job waits."""
        if record.state is not State.WAITING:
            return ()
        if record.kind == "verify":
            verify: VerifyArgs = codec.decode(record.args, VerifyArgs)
            graph = self._ledger.graphs.get(GraphId(verify.subject.graph))
            agents = self._verifiers(graph, verify) if graph is not None else set()
        elif record.kind == "publish":
            publish: PublishArgs = codec.decode(record.args, PublishArgs)
            graph = self._ledger.graphs.get(GraphId(publish.graph))
            agents = self._keepers(graph, publish) if graph is not None else set()
        else:
            return ()
        return tuple(self._view(graph, agent) for agent in sorted(agents)) if graph is not None else ()

    def _verifiers(self, graph: LedgerGraph, args: VerifyArgs) -> set[Address]:
        view = version_view(graph, args.subject.key, self._ledger.clock.now_ms())
        if view is None or view.trust.level in (Trust.CONSENSUS_VERIFIED, Trust.REJECTED):
            return set()
        return set(view.trust.missing)

    def _keepers(self, graph: LedgerGraph, args: PublishArgs) -> set[Address]:
        if graph.head is None:
            return set()
        now_ms = self._ledger.clock.now_ms()
        versions = asset_view(graph.set, AssetKey(Address(args.agent), args.name), now_ms).versions
        newest = max((it for it in versions if it.published), key=lambda it: it.key.version, default=None)
        if newest is None:
            return set()
        promised = {agent for agent in copies(graph.set, newest.key.root, now_ms) if not self._signing.holds(agent)}
        if len(promised) >= graph.head.body.limits.acks_min:
            return set()
        members = {it.address for it in graph.head.body.members if not self._signing.holds(it.address)}
        return members - promised

    def _view(self, graph: LedgerGraph, agent: Address) -> AbsentView:
        online = self._signing.holds(agent) or self._sessions.is_online(agent)
        return AbsentView(str(agent), graph.label_of(agent), online, self._sessions.last_seen_ms(agent))
