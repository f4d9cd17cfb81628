"""Becoming a member: founding, invites, and both sides of the join stream."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.hello import JOIN_PROTOCOL, RELAY_PROTOCOL, Greeting, Proof, may_speak
from p2pmem_protocol.join import ADDRESSES_MAX, ANSWER_BYTES_MAX, TOKEN_BYTES, Answer, Ask, Chain, Invite, Reply
from p2pmem_protocol.names import Address, GraphId, GraphName
from p2pmem_protocol.roster import Access, Member, Role

from p2pmem.exchange.holdings import OWN
from p2pmem.face import NotFoundError
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.rosters import Rosters
from p2pmem.net.dialer import Dialer
from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.limits import PeerLimits
from p2pmem.net.seam import Network, PeerId, Stream
from p2pmem.net.sessions import Sessions
from p2pmem.services.join_streams import ANSWER_S_MAX, RELAY_S, Places, ask_owner, hear_relayed
from p2pmem.services.membership import Membership
from p2pmem.services.papers import OwnPapers

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 2.0
JOIN_S_MAX: Final = 60.0
USES_MAX: Final = 1_000
_WORTH: Final = {Reply.NO: 0, Reply.OPEN: 1, Reply.WAITING: 2, Reply.LISTED: 3}


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Somebody with a good invite who waits for the owner."""

    id: bytes
    graph: GraphId
    agent: Address
    label: str
    roles: Role
    peer: str
    asked_ms: int


class Joining:
    """Invites, requests, and the join stream."""

    def __init__(
        self,
        *,
        network: Network,
        ledger: Ledger,
        rosters: Rosters,
        membership: Membership,
        papers: OwnPapers,
        dialer: Dialer,
        announce: Callable[[], tuple[str, ...]],
        sessions: Sessions,
        penalise: Callable[[PeerId, RefusedError], None],
        limits: PeerLimits,
    ) -> None:
        self._names_of = sessions.names_of
        self._peers_of = sessions.peers_of
        self._may_have = sessions.may_have
        self._session_of = sessions.get
        self._network = network
        self._ledger = ledger
        self._rosters = rosters
        self._membership = membership
        self._papers = papers
        self._dialer = dialer
        self._announce = announce
        self._penalise = penalise
        self._limits = limits
        self._places = Places(limits.join_streams_max)
        self._remembered: dict[tuple[GraphId, PeerId], str] = {}

    def start(self) -> None:
        """From now on, answer who opens a join stream, and members that pass a question on."""
        self._network.set_handler(JOIN_PROTOCOL, self._serve)
        self._network.set_handler(RELAY_PROTOCOL, self._serve_relayed)

    # Inviting

    async def invite(self, graph: LedgerGraph, roles: Role, uses: int, life_ms: int, *, ask: bool = False) -> Invite:
        """Make an invite. Only the owner's node can: it is the one that may list somebody.

        `roles` 0 makes one without a token: it leads who is listed already to this node, and gives nobody a right.
        """
        addresses = self._announce()
        if not addresses:
            # Members that can be reached pass on what is asked. Where they are is told only by who cannot be reached.
            addresses = tuple(self.known_addresses(graph.id))[:ADDRESSES_MAX]
        if not addresses:
            raise MisuseError(
                "this node listens nowhere that others could reach, and knows no member that does, so nobody could use "
                "the invite: set peer.listen to an address of this machine, or peer.announce to the one under which a "
                "router passes connections on"
            )
        if graph.head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        if not roles:
            return Invite(self._ledger.network, graph.name, addresses, graph.head.id, b"")
        self._membership.check_owner(graph)
        if not 1 <= uses <= USES_MAX or life_ms <= 0:
            raise MisuseError(f"an invite has 1 to {USES_MAX} uses and a life above 0")
        token = self._ledger.random_bytes(TOKEN_BYTES)
        ends_ms = self._ledger.clock.now_ms() + life_ms
        row = (keccak256(token), graph.id, int(roles | Role.READER), uses, ends_ms, int(ask))
        await self._ledger.database.write(
            lambda connection: connection.execute("INSERT INTO invite VALUES (?, ?, ?, ?, ?, ?)", row)
        )
        return Invite(self._ledger.network, graph.name, addresses, graph.head.id, token)

    # Asking

    async def follow(self, name: GraphName, addresses: tuple[str, ...]) -> LedgerGraph:
        """Read an open graph from now on, without being listed in it: its roster now, its set as soon as it comes.

        Raises as `join`.
        """
        return await self.join(Invite(self._ledger.network, name, addresses, bytes(32), b""), "")

    async def join(self, invite: Invite, label: str) -> LedgerGraph:
        """Ask until this node's agent is listed and the roster is adopted; at most a minute.

        An invite without a token to an open graph makes this node a reader of it. Raises `MisuseError` when nobody lets
        us in, `OutsideError` when nobody can be reached.
        """
        if invite.network != self._ledger.network:
            raise MisuseError("the invite is for another network than this node is configured for (node.network)")
        waiting = False
        with trio.move_on_after(JOIN_S_MAX):
            while True:
                reply = await self._ask_all(invite, label)
                if reply is Reply.LISTED or (reply is Reply.OPEN and not invite.token):
                    return self._ledger.graph(invite.graph.id)
                if reply is Reply.OPEN:
                    raise MisuseError(
                        f"the invite is used up or has ended; {invite.graph} is open, so it can be read without one "
                        "(`p2pmem graph follow`)"
                    )
                waiting = waiting or reply is Reply.WAITING
                if reply is Reply.NO:
                    raise MisuseError(
                        f"nobody lets this node into {invite.graph}: the invite is used up or has ended, "
                        "or its agent is not listed"
                    )
                await trio.sleep(ASK_AGAIN_S)
        if waiting:
            raise OutsideError(f"the owner of {invite.graph} has not decided yet; run the same command again later")
        raise OutsideError(f"no address of the invite answers: {', '.join(invite.addresses)}")

    async def _ask_all(self, invite: Invite, label: str) -> Reply | None:
        """The best answer of all addresses, or None when none answers. A roster that came with it is adopted."""
        best: Reply | None = None
        for address in invite.addresses:
            if address.endswith(f"/p2p/{self._network.peer_id}"):
                continue
            try:
                peer = await self._network.connect(address, expected=None)
                answer = await self._ask(peer, invite, label)
            except OutsideError as error:
                log.info("join.unreachable", extra={"address": address, "why": str(error)})
                continue
            best = answer.reply if best is None else max(best, answer.reply, key=_WORTH.__getitem__)
            if answer.chain is not None and (answer.reply is Reply.LISTED or not invite.token):
                await self._rosters.adopt(invite.graph, answer.chain.headers, answer.chain.parts)
                await self.remember(invite.graph.id, peer, address)
                self._dialer.want(address)
                if answer.reply is Reply.LISTED:
                    break
        return best

    async def _ask(self, peer: PeerId, invite: Invite, label: str) -> Answer:
        stream = await self._network.open_stream(peer, JOIN_PROTOCOL)
        try:
            ask = Ask(
                greeting=Greeting.ours(self._ledger.network, self._ledger.clock.now_ms()),
                proof=Proof(self._papers.credentials(), self._papers.delegations()),
                graph=invite.graph.id,
                token=invite.token,
                label=label,
            )
            await send_frames(stream, ask.encode())
            data = await FrameReader(stream, frame_max_bytes=ANSWER_BYTES_MAX).receive()
        finally:
            await stream.reset()
        if data is None:
            raise OutsideError("the member ended the join stream without an answer")
        return Answer.decode(data)

    async def remember(self, graph: GraphId, peer: PeerId, address: str) -> None:
        """Keep on disk where a member can be dialled: after a restart nobody else may know that we are back."""
        if self._remembered.get((graph, peer)) == address:
            return
        row = (peer, graph, address, self._ledger.clock.now_ms())
        await self._ledger.database.write(
            lambda connection: connection.execute("INSERT OR REPLACE INTO peer_address VALUES (?, ?, ?, ?)", row)
        )
        self._remembered[graph, peer] = address

    def known_addresses(self, graph: GraphId | None = None) -> list[str]:
        """Where members were reached before, of one graph or of all."""
        sql = "SELECT DISTINCT address FROM peer_address WHERE ?1 IS NULL OR graph = ?1 ORDER BY seen_ms DESC"
        return self._ledger.database.read(lambda connection: [row[0] for row in connection.execute(sql, (graph,))])

    def dial_known(self) -> None:
        """Dial those who were met last in each graph, as many as make a small graph whole; they know the others."""
        for graph in self._ledger.graphs:
            for address in self.known_addresses(graph)[: self._limits.members_all_max - 1]:
                try:
                    self._dialer.want(address)
                except MisuseError as error:
                    log.info("join.not_dialled", extra={"address": address, "why": str(error)})

    # Answering

    async def _serve(self, stream: Stream) -> None:
        """Hear one question and answer it. What has no room or takes too long gets no word."""
        try:
            data = await self._hear(stream)
            if data is None:
                return
            heard_s = trio.current_time()
            ask = Ask.decode(data, self._ledger.network, stream.peer)
            answer: Answer | None = None
            with self._places.busy(), trio.move_on_after(RELAY_S + ANSWER_S_MAX):
                answer = await self._answer(ask, stream.peer, question=data)
            if answer is not None and answer.reply is Reply.NO and ask.token:
                answer = await self._no_in_time(heard_s + RELAY_S)
            if answer is not None:
                await self._say(stream, answer)
        except RefusedError as refused:
            self._penalise(stream.peer, refused)
        except OutsideError as error:
            log.info("join.broke", extra={"peer": stream.peer, "why": type(error).__name__})

    async def _hear(self, stream: Stream) -> bytes | None:
        """The question, or None when there is no room for it or it does not come."""
        if not self._places.make_room():
            address = self._network.address_of(stream.peer)
            log.warning("join.refused", extra={"reason": "join-streams", "address": address, "peer": stream.peer})
            return None
        heard: bytes | None = None
        with self._places.idle(self._limits.join_ask_timeout_s):
            heard = await FrameReader(stream, frame_max_bytes=self._limits.join_ask_max_bytes).receive()
        if heard is None:
            log.info("join.silent", extra={"peer": stream.peer})
        return heard

    async def _no_in_time(self, at_s: float) -> Answer | None:
        """The one NO, when it is time for it; None when the place is needed before."""
        answer: Answer | None = None
        with self._places.idle(inf):
            await trio.sleep_until(at_s)
            answer = Answer(Reply.NO)
        return answer

    async def _say(self, stream: Stream, answer: Answer) -> None:
        with trio.move_on_after(ANSWER_S_MAX):
            await send_frames(stream, answer.encode())
            await stream.close_write()

    async def _serve_relayed(self, stream: Stream) -> None:
        """Answer a question that a member passes on, if it is about a graph of both."""
        if self._session_of(stream.peer) is None:
            return
        try:
            with trio.move_on_after(ANSWER_S_MAX):
                heard = await hear_relayed(stream, self._limits.join_ask_max_bytes)
                if heard is None:
                    return
                asker, question = heard
                ask = Ask.decode(question, self._ledger.network, asker)
                is_good = partial(send_frames, stream, b"")
                if self._may_have(stream.peer, ask.graph):
                    await self._say(stream, await self._answer(ask, asker, token_is_good=is_good))
        except RefusedError as refused:
            self._penalise(stream.peer, refused)
        except OutsideError as error:
            log.info("join.relay_broke", extra={"peer": stream.peer, "why": type(error).__name__})

    async def _answer(
        self,
        ask: Ask,
        peer: PeerId,
        *,
        question: bytes | None = None,
        token_is_good: Callable[[], Awaitable[None]] | None = None,
    ) -> Answer:
        """LISTED with the roster, WAITING, OPEN with the roster (rule J2), or the one NO that says nothing.

        `question`: the bytes to pass on to the owner, if it is not here. `token_is_good` is called before listing.
        """
        now_ms = self._ledger.clock.now_ms()
        may_speak(Greeting.ours(self._ledger.network, now_ms), ask.greeting)
        names = self._names_of(ask.proof.check(now_ms), peer)
        graph = self._ledger.graphs.get(ask.graph)
        if graph is not None and ask.chain is not None and await self._adopt_newer(graph, ask.chain, names):
            log.info("join.newer_roster", extra={"graph": str(graph.name), "peer": peer})
        if graph is None or graph.head is None:
            return Answer(Reply.NO)
        if any(graph.is_member(name) for name in names):
            return Answer(Reply.LISTED, self._chain(graph))
        answer = Answer(Reply.NO)
        if ask.token and names and self._membership.is_owner_here(graph):
            answer = await self._use_token(graph, ask, min(names), peer, token_is_good)
        elif ask.token and names and question is not None:
            answer = await self._pass_on(graph, graph.head.header.owner, peer, question)
        if answer.reply is Reply.NO and graph.head.body.limits.access is Access.OPEN:
            return Answer(Reply.OPEN, self._chain(graph))
        return answer

    async def _pass_on(self, graph: LedgerGraph, owner: Address, asker: PeerId, question: bytes) -> Answer:
        """What the owner's node says to it, over a connection that stands. NO when there is none."""
        peer = next((it for it in self._peers_of(owner) if it != asker), None)
        if peer is None:
            return Answer(Reply.NO)
        try:
            answer = await ask_owner(self._network, peer, asker, question)
            if answer is not None and answer.chain is not None:
                await self._rosters.adopt(graph.name, answer.chain.headers, answer.chain.parts)
            log.info("join.passed_on", extra={"graph": str(graph.name), "peer": asker})
            return answer or Answer(Reply.NO)
        except RefusedError as refused:
            self._penalise(peer, refused)
        except OutsideError as error:
            log.info("join.relay_broke", extra={"peer": peer, "why": type(error).__name__})
        return Answer(Reply.NO)

    async def _adopt_newer(self, graph: LedgerGraph, chain: Chain, names: frozenset[Address]) -> bool:
        """Rule J1: a chain that lists the asker and extends what is held here is adopted.

        One that is no good is passed over without a word: it is looked at only where the graph is known, so a penalty
        would tell a stranger that it is. Nor may who passes a question on pay for what the asker put into it.
        """
        try:
            body = chain.parts.decode(graph.id)
            if not any(name in body.by_address for name in names) or chain.headers[-1].header.graph != graph.id:
                return False
            return await self._rosters.adopt(graph.name, chain.headers, chain.parts)
        except RefusedError as refused:
            log.info("join.chain_passed_over", extra={"reason": refused.reason.name})
            return False

    def _chain(self, graph: LedgerGraph) -> Chain:
        assert graph.head is not None
        return Chain(graph.headers.chain_to(graph.head.id), graph.head.body.parts)

    async def _use_token(
        self,
        graph: LedgerGraph,
        ask: Ask,
        agent: Address,
        peer: PeerId,
        is_good: Callable[[], Awaitable[None]] | None,
    ) -> Answer:
        now_ms = self._ledger.clock.now_ms()
        token_hash = keccak256(ask.token)

        def use(connection: sqlite3.Connection) -> tuple[int, bool] | None:
            row = connection.execute(
                "UPDATE invite SET uses = uses - 1 "
                "WHERE token_hash = ? AND graph = ? AND uses > 0 AND expires_ms > ? RETURNING roles, asks",
                (token_hash, graph.id, now_ms),
            ).fetchone()
            return (int(row[0]), bool(row[1])) if row else None

        if self._waits(graph, agent):
            return Answer(Reply.WAITING)
        used = await self._ledger.database.write(use)
        if used is None:
            return Answer(Reply.NO)
        if is_good is not None:
            await is_good()
        roles, asks = Role(used[0]), used[1]
        if asks:
            return await self._note_request(graph, agent, ask.label, roles, peer)
        await self._membership.list_member(graph, Member(agent, roles, ask.label, now_ms))
        log.info("join.listed", extra={"graph": str(graph.name), "agent": str(agent), "peer": peer})
        return Answer(Reply.LISTED, self._chain(graph))

    # Requests that wait for a person

    def _waits(self, graph: LedgerGraph, agent: Address) -> bool:
        return any(request.agent == agent for request in self.requests(graph))

    async def _note_request(self, graph: LedgerGraph, agent: Address, label: str, roles: Role, peer: PeerId) -> Answer:
        if len(self.requests(graph)) >= self._limits.waiting_requests_max:
            return Answer(Reply.NO)
        now_ms = self._ledger.clock.now_ms()
        request_id = keccak256(graph.id + agent + now_ms.to_bytes(8))
        row = (request_id, graph.id, agent, label, int(roles), peer, now_ms)
        await self._ledger.database.write(
            lambda connection: connection.execute("INSERT INTO join_request VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        )
        return Answer(Reply.WAITING)

    def requests(self, graph: LedgerGraph | None) -> list[JoinRequest]:
        """Who waits to be let in, oldest first."""
        rows = self._ledger.database.read(
            lambda connection: connection.execute(
                "SELECT id, graph, agent, label, roles, peer, asked_ms FROM join_request "
                "WHERE ?1 IS NULL OR graph = ?1 ORDER BY asked_ms",
                (graph.id if graph is not None else None,),
            ).fetchall()
        )
        return [
            JoinRequest(row[0], GraphId(row[1]), Address(row[2]), row[3], Role(row[4]), row[5], row[6]) for row in rows
        ]

    async def decide(self, request_id: bytes, *, approve: bool) -> None:
        """Let somebody in, or not. Either way the request is gone."""
        found = next((it for it in self.requests(None) if it.id == request_id), None)
        if found is None:
            raise NotFoundError("there is no such request; `p2pmem graph requests` lists those that wait")
        if approve:
            graph = self._ledger.graph(found.graph)
            now_ms = self._ledger.clock.now_ms()
            await self._membership.list_member(graph, Member(found.agent, found.roles, found.label, now_ms))
        await self._ledger.database.write(
            lambda connection: connection.execute("DELETE FROM join_request WHERE id = ?", (request_id,))
        )

    async def leave(self, graph: LedgerGraph) -> None:
        """Forget a graph here: its roster, its set, what was made from it. Own drafts and own sealed versions stay.

        What was said in it stays with the others.
        """
        if self._membership.is_owner_here(graph):
            raise MisuseError(f"the owner of {graph.name} cannot leave it; its root key names another owner first")
        batch = Batch(self._ledger.clock.now_ms(), OWN)
        batch.heads.add(graph.id)
        batch.event(graph.id, "left", [*sorted(graph.set.assets())] or [None])
        batch.audits.append(("left", str(graph.name)))

        def forget(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE graph SET left_ms = ? WHERE id = ?", (batch.at_ms, graph.id))
            for table in ("item", "header", "part", "peer_address"):
                connection.execute(f"DELETE FROM {table} WHERE graph = ?", (graph.id,))  # noqa: S608

        with trio.CancelScope(shield=True):
            self._ledger.graphs.pop(graph.id, None)
            await self._ledger.commit(batch, forget)
