"""Peers as a person sees them: who is connected, who is kept out, and what was refused."""

from __future__ import annotations

from collections.abc import Callable

from p2pmem.exchange.exchange import Exchange
from p2pmem.face import NotFoundError
from p2pmem.face_peers import PeerDetail, ReasonCount
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.identity import check_peer_id
from p2pmem.net.penalties import BY_A_PERSON, Penalties
from p2pmem.net.seam import Network, PeerId, PeerStatistics
from p2pmem.net.sessions import Sessions


class Peering:
    """Shows peers, bans them, and lets them in again."""

    def __init__(
        self,
        ledger: Ledger,
        network: Network,
        sessions: Sessions,
        exchange: Exchange,
        penalties: Penalties,
        admission: Admission,
    ) -> None:
        self._ledger = ledger
        self._network = network
        self._sessions = sessions
        self._exchange = exchange
        self._penalties = penalties
        self._admission = admission

    def all(self) -> tuple[PeerDetail, ...]:
        """Everybody who is connected or kept out, by id."""
        return tuple(map(self._detail(), sorted({*self._network.connected(), *self._penalties.banned()})))

    def one(self, peer: str) -> PeerDetail:
        found = PeerId(peer)
        if found not in {*self._network.connected(), *self._penalties.banned()}:
            raise NotFoundError(f"{peer[:80]} is neither connected nor banned; `p2pmem peer list` shows those that are")
        return self._detail()(found)

    def _detail(self) -> Callable[[PeerId], PeerDetail]:
        banned, traffic = self._penalties.banned(), self._network.statistics().peers
        connected = self._network.connected()

        def detail(peer: PeerId) -> PeerDetail:
            session, ban = self._sessions.get(peer), banned.get(peer)
            speakers = session.speakers.speakers if session else ()
            counted = traffic.get(peer, PeerStatistics())
            graphs = self._sessions.graphs_of(session) if session else frozenset()
            state = "member" if session else "connected" if peer in connected else "banned"
            return PeerDetail(
                peer=peer,
                state="banned" if ban is not None else state,
                addresses=self._exchange.client.known_addresses(peer),
                agents=tuple(str(it.agent) for it in speakers),
                principals=tuple(sorted({str(name) for it in speakers for name, _ in it.principals})),
                graphs=tuple(sorted(str(self._ledger.graph(graph).name) for graph in graphs)),
                clock_apart_ms=self._sessions.apart_ms(session) if session else 0,
                banned_until_ms=ban.until_ms if ban is not None else 0,
                reason=_why(ban.reason) if ban is not None else "",
                refusals=self._penalties.refusals[peer],
                sent_bytes=counted.wire_sent_bytes,
                received_bytes=counted.wire_received_bytes,
            )

        return detail

    async def ban(self, peer: str, for_ms: int | None) -> PeerDetail:
        """Keep a peer out for a time, or for good."""
        found = check_peer_id(peer)
        await self._penalties.ban(found, for_ms)
        return self.one(found)

    async def unban(self, peer: str) -> None:
        """Let a peer in again. Raises `NotFoundError` when it is not kept out."""
        if not await self._penalties.pardon(check_peer_id(peer)):
            raise NotFoundError(f"{peer[:80]} is not banned; `p2pmem peer list` shows those that are")

    def refused(self) -> tuple[ReasonCount, ...]:
        """What was refused since the node started, by reason."""
        network = self._network.statistics().refused
        counts = [
            *(ReasonCount("network", reason, count) for reason, count in network.items()),
            *(ReasonCount("peer", _word(it.name), count) for it, count in self._penalties.reasons.items()),
            *(ReasonCount("item", _word(it.name), count) for it, count in self._admission.refusals.items()),
        ]
        return tuple(sorted(counts, key=lambda it: (it.where, it.reason)))


def _word(name: str) -> str:
    return name.lower().replace("_", "-")


def _why(reason: str) -> str:
    """Why somebody is banned, as a person is told."""
    return "by hand" if reason == BY_A_PERSON else reason
