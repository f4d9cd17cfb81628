"""Becoming a member: founding, invites, and both sides of the join stream."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError, RefusedError
from p2pmem_protocol.hello import JOIN_PROTOCOL, RELAY_PROTOCOL, Greeting, Proof, clocks_agree, may_speak
from p2pmem_protocol.join import ADDRESSES_MAX, ANSWER_BYTES_MAX, Answer, Ask, Chain, Invite, Reply
from p2pmem_protocol.names import Address, GraphName
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
from p2pmem.net.room import Origin, origin_of_address
from p2pmem.net.seam import Network, PeerId, Stream
from p2pmem.net.sessions import Sessions
from p2pmem.services.ask_allowance import AskAllowances
from p2pmem.services.invites import Invites, JoinRequest, Use
from p2pmem.services.join_once import Once
from p2pmem.services.join_places import Caller, Place, Places
from p2pmem.services.join_streams import ANSWER_S_MAX, RELAY_S, Answers, Said, Turn, ask_owner, hear_relayed, say
from p2pmem.services.membership import Membership
from p2pmem.services.met import MetMembers
from p2pmem.services.papers import OwnPapers

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 2.0
JOIN_S_MAX: Final = 60.0
USES_MAX: Final = 1_000
_NO: Final = Said.of(Answer(Reply.NO))
_WAITING: Final = Said.of(Answer(Reply.WAITING))
_WORTH: Final = {Reply.NO: 0, Reply.OPEN: 1, Reply.WAITING: 2, Reply.LISTED: 3}


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
        met: MetMembers,
        announce: Callable[[], tuple[str, ...]],
        sessions: Sessions,
        penalise: Callable[[PeerId, RefusedError], None],
        limits: PeerLimits,
    ) -> None:
        self._names_of = sessions.names_of
        self._peers_of = sessions.peers_of
        self._may_have = sessions.may_have
        self._member_at = sessions.member_at
        self._network = network
        self._ledger = ledger
        self._rosters = rosters
        self._membership = membership
        self._papers = papers
        self._dialer = dialer
        self._met = met
        self._announce = announce
        self._penalise = penalise
        self._limits = limits
        asks = limits.asks
        self._allowances = AskAllowances(asks)
        self._places = Places(most=limits.join_streams_max, per_peer_most=asks.per_peer_at_once)
        self._being_said = Places(per_peer_most=asks.per_peer_at_once)
        self._relayed = Places(most=asks.relayed_at_once, per_peer_most=asks.relayed_per_member_at_once)
        self._answers = Answers()
        self._invites = Invites(ledger)
        self._once = Once()
        self._being_listed: set[tuple[Address, Address]] = set()
        """Invites, and agents that they are used for now: whoever lost his connection and asks again takes no second
        use."""

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
            addresses = self._met.addresses(graph.id)
        if not addresses:
            raise MisuseError(
                "this node listens nowhere that others could reach, and knows no member that does, so nobody could use "
                "the invite: set peer.listen to an address of this machine, or peer.announce to the one under which a "
                "router passes connections on"
            )
        if graph.head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        if not roles:
            return Invite(self._ledger.network, graph.name, addresses[:ADDRESSES_MAX], graph.head.id, b"")
        self._membership.check_owner(graph)
        if not 1 <= uses <= USES_MAX or life_ms <= 0:
            raise MisuseError(f"an invite has 1 to {USES_MAX} uses and a life above 0")
        token = await self._invites.make(graph.id, roles, uses, life_ms, ask=ask)
        return Invite(self._ledger.network, graph.name, addresses[:ADDRESSES_MAX], graph.head.id, token)

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
        if all(self._is_own(it) for it in invite.addresses):
            raise MisuseError("this node made the invite: it lets others in; run the command on their node")
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
                    why = (
                        "the invite is used up or has ended" if invite.token else "no graph of that name is open there"
                    )
                    raise MisuseError(
                        f"nobody lets this node into {invite.graph}: {why}, or its agent is not listed, "
                        "or its clock is more than five minutes off"
                    )
                await trio.sleep(ASK_AGAIN_S)
        if waiting:
            raise OutsideError(f"the owner of {invite.graph} has not decided yet; run the same command again later")
        raise OutsideError(f"no address of the invite answers: {', '.join(invite.addresses)}")

    async def _ask_all(self, invite: Invite, label: str) -> Reply | None:
        """The best answer of all addresses, or None when none answers. A roster that came with it is adopted."""
        best: Reply | None = None
        for address in invite.addresses:
            if self._is_own(address):
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
                await self._met.remember(invite.graph.id, None, peer, address)
                self._dialer.want(address)
                if answer.reply is Reply.LISTED:
                    break
        return best

    def _is_own(self, address: str) -> bool:
        return address.endswith(f"/p2p/{self._network.peer_id}")

    async def _ask(self, peer: PeerId, invite: Invite, label: str) -> Answer:
        stream = await self._network.open_stream(peer, JOIN_PROTOCOL)
        try:
            ask = Ask(
                greeting=Greeting.ours(self._ledger.network, self._ledger.clock.now_ms()),
                proof=Proof(self._papers.credentials(), self._papers.delegations()),
                graph=invite.graph.id,
                label=label,
            ).enter(invite.token, self._network.peer_id)
            await send_frames(stream, ask.encode())
            data = await FrameReader(stream, frame_max_bytes=ANSWER_BYTES_MAX).receive()
        finally:
            await stream.reset()
        if data is None:
            raise OutsideError("the member ended the join stream without an answer")
        return Answer.decode(data)

    # Answering

    async def _serve(self, stream: Stream) -> None:
        """Hear one ask and answer it. What loses its place, or takes too long to come, gets no word."""
        caller = Caller(stream.peer, origin_of_address(self._network.address_of(stream.peer)))
        try:
            said: Said | None = None
            with self._places.take(caller) as place:
                said = await self._heard_and_answered(stream, place)
            if place.scope.cancelled_caught:
                self._log_refused("join-streams", stream.peer)
            if said is not None:
                # What was asked is forgotten by now: who reads slowly holds up the answer alone.
                with self._being_said.take(caller):
                    await say(stream, said)
        except RefusedError as refused:
            self._penalise(stream.peer, refused)
        except OutsideError as error:
            log.info("join.broke", extra={"peer": stream.peer, "why": type(error).__name__})

    async def _heard_and_answered(self, stream: Stream, place: Place) -> Said | None:
        """What is to be said, when it is time to say it: every NO `RELAY_S` after the ask."""
        data: bytes | None = None
        with trio.move_on_after(self._limits.join_ask_timeout_s):
            data = await FrameReader(stream, frame_max_bytes=self._limits.join_ask_max_bytes).receive()
        if data is None:
            log.info("join.silent", extra={"peer": stream.peer})
            return None
        no_at_s = place.heard(RELAY_S)
        if not self._allowances.may_ask(stream.peer, place.caller.origin.wide, trio.current_time()):
            self._log_refused("asks", stream.peer)
            return None
        ask = Ask.decode(data, self._ledger.network, stream.peer)
        said = _NO
        with trio.CancelScope(deadline=no_at_s) as scope:
            said = await self._answer(ask, stream.peer, Turn(place, scope), question=data)
        place.release()
        if said.reply is Reply.NO:
            await trio.sleep_until(no_at_s)
        return said

    def _log_refused(self, reason: str, peer: PeerId) -> None:
        self._network.refuse("join.refused", reason, peer)

    async def _serve_relayed(self, stream: Stream) -> None:
        """Answer an ask that a member passes on, if it is about a graph of both. What one member may counts for all of
        its peers together: it makes as many as it likes."""
        member = self._member_at(stream.peer)
        if member is None:
            return
        try:
            with self._relayed.take(Caller(PeerId(member), Origin(member, member))) as place:
                with trio.move_on_after(ANSWER_S_MAX) as scope:
                    await self._answer_relayed(stream, member, Turn(place, scope, stream))
        except RefusedError as refused:
            self._penalise(stream.peer, refused)
        except OutsideError as error:
            log.info("join.relay_broke", extra={"peer": stream.peer, "why": type(error).__name__})

    async def _answer_relayed(self, stream: Stream, member: str, turn: Turn) -> None:
        heard = await hear_relayed(stream, self._limits.join_ask_max_bytes)
        if heard is None:
            return
        asker, question = heard
        if not self._allowances.may_relay(member, asker, trio.current_time()):
            self._log_refused("relayed-asks", stream.peer)
            return
        ask = Ask.decode(question, self._ledger.network, asker)
        if not self._may_have(stream.peer, ask.graph):
            return
        said = _NO
        try:
            said = await self._answer(ask, asker, turn)
        except RefusedError as refused:
            # He read it as we do, but for clocks that differ: who passes an ask on does not pay for what is in it.
            log.info("join.relayed_refused", extra={"reason": refused.reason.name, "peer": stream.peer})
        await say(stream, said)

    async def _answer(self, ask: Ask, peer: PeerId, turn: Turn, *, question: bytes | None = None) -> Said:
        """LISTED with the roster, WAITING, OPEN with the roster (rule J2), or the one NO that says nothing.

        `question`: the bytes to pass on to the owner, if it is not here; None when a member passed them on. Then it is
        he who says OPEN: he holds the roster.
        """
        now_ms = self._ledger.clock.now_ms()
        may_speak(Greeting.ours(self._ledger.network, now_ms), ask.greeting)
        names = self._names_of(ask.proof.check(now_ms), peer)
        chain = _chain_that_lists(names, ask)
        graph = self._ledger.graphs.get(ask.graph)
        if graph is not None and chain is not None and await self._adopt_newer(graph, chain):
            log.info("join.newer_roster", extra={"graph": str(graph.name), "peer": peer})
        if graph is None or graph.head is None:
            return _NO
        if any(graph.is_member(name) for name in names):
            return self._answers.with_roster(Reply.LISTED, graph)
        said = _NO
        if ask.entry and names and self._membership.is_owner_here(graph):
            said = await self._let_in(graph, ask, min(names), peer, turn)
        elif ask.entry and names and question is not None:
            said = await self._pass_on(graph, graph.head.header.owner, peer, question, turn)
        if said is _NO and question is not None and graph.head.body.limits.access is Access.OPEN:
            return self._answers.with_roster(Reply.OPEN, graph)
        return said

    async def _pass_on(self, graph: LedgerGraph, owner: Address, asker: PeerId, question: bytes, turn: Turn) -> Said:
        """What the owner's node says to it, over a connection that stands. NO when there is none."""
        peer = next((it for it in self._peers_of(owner) if it != asker), None)
        if peer is None or not self._allowances.may_pass_on(trio.current_time()):
            return _NO
        try:
            answer = await ask_owner(self._network, peer, asker, question, turn.keep)
            log.info("join.passed_on", extra={"graph": str(graph.name), "peer": asker})
            if answer is not None and answer.reply is Reply.WAITING:
                return _WAITING
            if answer is not None and answer.chain is not None:
                await self._rosters.adopt(graph.name, answer.chain.headers, answer.chain.parts)
                return self._answers.with_roster(answer.reply, graph)
        except RefusedError as refused:
            self._penalise(peer, refused)
        except OutsideError as error:
            log.info("join.relay_broke", extra={"peer": peer, "why": type(error).__name__})
        return _NO

    async def _adopt_newer(self, graph: LedgerGraph, chain: Chain) -> bool:
        """Rule J1: a chain that lists the asker and extends what is held here is adopted.

        One that is no good is passed over without a word: it is looked at only where the graph is known, so a penalty
        would tell a stranger that it is. Nor may who passes a question on pay for what the asker put into it.
        """
        try:
            return await self._rosters.adopt(graph.name, chain.headers, chain.parts)
        except RefusedError as refused:
            log.info("join.chain_passed_over", extra={"reason": refused.reason.name})
            return False

    async def _let_in(self, graph: LedgerGraph, ask: Ask, agent: Address, peer: PeerId, turn: Turn) -> Said:
        """Use the invite of an entry, as the owner. One whose clock is minutes away is not taken: it may be an old one
        that somebody says again. Nor is one twice (`join_once`)."""
        if self._invites.waits(graph.id, agent) or self._membership.waits(graph):
            return _WAITING
        key, asked_ms, now_ms = ask.entry_key(peer), ask.greeting.clock_ms, self._ledger.clock.now_ms()
        if key is None or not clocks_agree(now_ms, asked_ms) or not self._once.take(key, agent, asked_ms, now_ms):
            return _NO
        if (key, agent) in self._being_listed:
            return _WAITING
        turn.keep()
        self._being_listed.add((key, agent))
        try:
            use = await self._invites.use(graph.id, key)
            if use is None:
                self._once.give_back(key, agent, asked_ms)
                turn.place.release()
                return _NO
            await turn.tell_good()
            return await self._use(use, graph, Member(agent, use.roles, ask.label, self._ledger.clock.now_ms()), peer)
        finally:
            self._being_listed.discard((key, agent))

    async def _use(self, use: Use, graph: LedgerGraph, member: Member, peer: PeerId) -> Said:
        """List who has used an invite, or ask a person to."""
        if use.asks_a_person:
            if len(self._invites.requests(graph.id)) >= self._limits.waiting_requests_max:
                return _NO
            await self._invites.note_request(graph.id, member.address, member.label, use.roles, peer)
            return _WAITING
        await self._membership.list_member(graph, member)
        log.info("join.listed", extra={"graph": str(graph.name), "agent": str(member.address), "peer": peer})
        return self._answers.with_roster(Reply.LISTED, graph)

    # Requests that wait for a person

    def requests(self, graph: LedgerGraph | None) -> list[JoinRequest]:
        """Who waits to be let in, oldest first."""
        return self._invites.requests(graph.id if graph is not None else None)

    async def decide(self, request_id: bytes, *, approve: bool) -> None:
        """Let somebody in, or not. Either way the request is gone."""
        found = next((it for it in self.requests(None) if it.id == request_id), None)
        if found is None:
            raise NotFoundError("there is no such request; `p2pmem graph requests` lists those that wait")
        if approve:
            graph = self._ledger.graph(found.graph)
            now_ms = self._ledger.clock.now_ms()
            await self._membership.list_member(graph, Member(found.agent, found.roles, found.label, now_ms))
        await self._invites.forget_request(request_id)

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
            for table in ("item", "header", "part", "peer_address", "attached"):
                connection.execute(f"DELETE FROM {table} WHERE graph = ?", (graph.id,))  # noqa: S608

        with trio.CancelScope(shield=True):
            self._ledger.graphs.pop(graph.id, None)
            self._met.forget(graph.id)
            await self._ledger.commit(batch, forget)


def _chain_that_lists(names: Collection[Address], ask: Ask) -> Chain | None:
    """The chain of an ask, if it begins with a root act of the graph and ends in a roster that lists one of `names`.

    Looked at whether or not the graph is known here: how long that takes is felt by all who talk to this node. What is
    done where it is known, nobody sees who has no root act of the graph to show.
    """
    if ask.chain is None:
        return None
    try:
        first, last = ask.chain.headers[0], ask.chain.headers[-1]
        if not first.header.is_root_act or {first.header.graph, last.header.graph} != {ask.graph}:
            return None
        first.check()
        body = ask.chain.parts.decode(ask.graph)
    except RefusedError as refused:
        log.info("join.chain_passed_over", extra={"reason": refused.reason.name})
        return None
    return ask.chain if any(name in body.by_address for name in names) else None
