"""Meeting other members: members tell each other where they and those can be dialled whom they are connected with."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.frames import Peers
from p2pmem_protocol.names import Address, GraphId

from p2pmem.exchange.crowd import how_many_to_dial, is_short, is_small
from p2pmem.exchange.holdings import Holdings
from p2pmem.exchange.sync_client import SyncClient
from p2pmem.net.dialer import Dialer
from p2pmem.net.limits import PeerLimits
from p2pmem.net.reach import is_same_host, may_dial_on_hearsay
from p2pmem.net.seam import Network, PeerId
from p2pmem.net.sessions import Session, Sessions


class Meeting:
    """What is said and heard of where members are."""

    def __init__(
        self,
        network: Network,
        sessions: Sessions,
        holdings: Holdings,
        client: SyncClient,
        dialer: Dialer,
        chance: random.Random,
        announce: Callable[[], tuple[str, ...]],
        met: Callable[[GraphId, Address, PeerId, str], Awaitable[None]],
        limits: PeerLimits,
    ) -> None:
        """`announce` and `met` as for `Exchange`."""
        self._network, self._sessions, self._holdings = network, sessions, holdings
        self._client, self._dialer, self._chance = client, dialer, chance
        self._announce, self._met, self._limits = announce, met, limits

    def peers_of(self, peer: PeerId, asked: Peers) -> tuple[str, ...]:
        """Note where the asker can be dialled; say where we and the members that we are connected to can be."""
        self._client.note_addresses(peer, asked.addresses, self._announce())
        theirs = [
            address
            for session in self._sessions.all()
            if session.peer != peer and self._sessions.may_have(session.peer, GraphId(asked.graph))
            for address in self._client.known_addresses(session.peer)
        ]
        return (*self._announce(), *theirs)

    def hear_of(self, address: str, graph: GraphId | None = None) -> None:
        """Somebody says that a peer is there: dial it, within the bounds of hearsay; hello decides what it is."""
        if may_dial_on_hearsay(address, self._announce()):
            with suppress(MisuseError):
                self._dialer.hear(address, graph)

    async def meet(self, session: Session, graph: GraphId) -> None:
        """Learn whom else the peer is connected to, and dial as many of them as are wanted."""
        addresses = list(await self._client.ask_peers(session.peer, graph, self._announce()))
        self._chance.shuffle(addresses)
        dialled = self._dialer.wanted() | self._network.connected()
        more = how_many_to_dial(self._limits, self._holdings.member_count(graph), self._members_met(graph))
        for address in addresses:
            if len((self._dialer.wanted() | self._network.connected()) - dialled) >= more:
                break
            self.hear_of(address, graph)
        member, address = self._sessions.member_of(session), self._met_at(session.peer)
        if member is not None and address:
            await self._met(graph, member, session.peer, address)

    def _met_at(self, peer: PeerId) -> str:
        """Where a connected peer was seen to be: where we dialled it, or, of what it says, at the host that it came
        from. Empty when it was not seen where it says."""
        if dialled := self._network.dialled_at(peer):
            return f"{dialled}/p2p/{peer}"
        seen = self._network.address_of(peer)
        return next((it for it in self._client.known_addresses(peer) if is_same_host(it, seen)), "")

    def wants_more(self, graph: GraphId) -> bool:
        """Whether a large graph wants more members than we are connected with."""
        members = self._holdings.member_count(graph)
        # Who is met is counted only where it matters: for that each session is looked at.
        return not is_small(self._limits, members) and is_short(self._limits, members, self._members_met(graph))

    def _members_met(self, graph: GraphId) -> int:
        """With how many members of a graph we are connected: a member's further peers make it no more."""
        sessions = (it for it in self._sessions.all() if self._sessions.may_have(it.peer, graph))
        return len({self._sessions.member_of(session) for session in sessions})
