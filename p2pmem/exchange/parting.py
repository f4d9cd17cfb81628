"""Parting with members where more are connected than there is room for: `crowd` decides, this looks and acts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Final

import trio
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.crowd import Neighbour, further_peers, room_for, whom_to_leave
from p2pmem.exchange.holdings import Holdings
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import Network, PeerId
from p2pmem.net.sessions import Session, Sessions

log = logging.getLogger(__name__)

LISTS_COME_S: Final = 5.0
"""After so long a member has said with whom it is connected, and a look is worth while."""


class Parting:
    """`run` it beside the sessions, and say who comes and goes."""

    def __init__(
        self,
        network: Network,
        sessions: Sessions,
        holdings: Holdings,
        list_length: Callable[[PeerId, GraphId], int],
        announce: Callable[[], tuple[str, ...]],
        unhear: Callable[[PeerId], None],
        part: Callable[[PeerId, float], Awaitable[None]],
        limits: PeerLimits,
    ) -> None:
        """`list_length`: with how many members of a graph a peer says it is connected. `unhear` ends dialling a peer
        that was only heard of; `part` ends the connection to it, and keeps it ended for some seconds."""
        self._network, self._sessions, self._holdings = network, sessions, holdings
        self._list_length, self._announce, self._unhear, self._part = list_length, announce, unhear, part
        self._limits = limits
        self._since: dict[PeerId, float] = {}
        self._came = trio.Event()

    def came(self, peer: PeerId) -> None:
        """A session with this peer is served from now on."""
        self._since[peer] = trio.current_time()
        self._came.set()

    def went(self, peer: PeerId) -> None:
        """It is not served any more."""
        del self._since[peer]

    def spare(self, heard: Collection[PeerId]) -> PeerId | None:
        """Which of these to give up for somebody new: a further peer of a member that we are connected with anyhow."""
        further = further_peers(self._neighbours(), self._limits)
        return next((peer for peer in further if peer in heard), None)

    async def run(self) -> None:
        """Where more members are connected than there is room for, leave those that need us least. Until cancelled."""
        again_s = inf
        while True:
            with trio.move_on_after(again_s):
                await self._came.wait()
            self._came = trio.Event()
            await trio.sleep(LISTS_COME_S)
            room = room_for(self._limits, reachable=bool(self._announce()))
            while len(self._since) > room:
                peer = whom_to_leave(self._neighbours(), room, self._limits, trio.current_time())
                if peer is None:
                    break
                log.info("peer.left_for_room", extra={"peer": peer})
                self._unhear(peer)
                await self._part(peer, self._limits.member_hold_off_s)
            again_s = self._limits.member_hold_off_s if len(self._since) > room else inf

    def _neighbours(self) -> list[Neighbour]:
        connected = self._network.connected()
        return [
            self._neighbour(session)
            for session in self._sessions.all()
            if session.peer in self._since and session.peer in connected
        ]

    def _neighbour(self, session: Session) -> Neighbour:
        peer, member = session.peer, self._sessions.member_of(session)
        shared = self._sessions.graphs_of(session)
        streamed = [graph for graph in shared if not self._sessions.is_open(graph)]
        return Neighbour(
            peer=peer,
            member=str(member) if member is not None else peer,
            reaches=min((self._list_length(peer, graph) for graph in streamed), default=0),
            since_s=self._since[peer],
            graphs=shared,
            dialled=session.opened_by_us,
            in_small=any(self._holdings.member_count(graph) <= self._limits.members_all_max for graph in shared),
        )
