"""Members of a context graph: founding it, and what its owner's node signs afterwards."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.keys import Signer
from p2pmem_protocol.names import Address, GraphId, GraphName
from p2pmem_protocol.roster import Access, Body, Limits, Member, Quorum, Role, Roster, sign_roster
from p2pmem_protocol.rosters_change import AddMember, Change, Mend, RosterPlan, SetRoles, next_roster

from p2pmem.exchange.holdings import OWN
from p2pmem.face import NoRightError
from p2pmem.keyring import Keyring
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.rosters import Rosters
from p2pmem.services.may_sign import MaySign

log = logging.getLogger(__name__)

TOGETHER_S: Final = 5.0
"""Joins within this time are one change."""


@dataclass(frozen=True, slots=True)
class Founding:
    """What a graph begins with. `m` None: a majority of the verifiers other than the owner."""

    slug: str
    members: tuple[Member, ...]
    access: Access = Access.GATED
    m: int | None = None
    ttl_default_ms: int | None = None
    ttl_max_ms: int | None = None
    acks_min: int = 0
    chain: int = 0
    contract: Address | None = None
    label: str = ""


class Membership:
    """Signs rosters, as the owner of a graph. One change at a time."""

    def __init__(
        self, ledger: Ledger, admission: Admission, rosters: Rosters, keyring: Keyring, may_sign: MaySign
    ) -> None:
        self._may_sign = may_sign
        self._ledger = ledger
        self._admission = admission
        self._rosters = rosters
        self._keyring = keyring
        self._signing = trio.Lock()
        self._listing = trio.Lock()
        self._waiting: dict[GraphId, dict[Address, Member]] = {}
        self._listed_s: dict[GraphId, float] = {}

    async def found(self, founding: Founding) -> LedgerGraph:
        """Found a graph with this node's agent as its creator and owner."""
        key = self._keyring.default
        name, make = self.first(founding, key.address)
        return await self.adopt(name, make(key))

    def first(self, founding: Founding, creator: Address) -> tuple[GraphName, Callable[[Signer], Roster]]:
        """The name of a new graph, and its first roster for whoever signs it. Raises `MisuseError` as `found`."""
        name = GraphName(creator, founding.slug)
        if name.id in self._ledger.graphs:
            raise MisuseError(f"{name} exists already; choose another slug")
        members = _with_owner(founding, creator, self._ledger.clock.now_ms())
        body = first_body(name, members, founding, creator)

        def make(signer: Signer) -> Roster:
            return sign_roster(
                name,
                self._ledger.network,
                version=1,
                term=1,
                parent=ZERO_HASH,
                parent_term=0,
                owner=creator,
                body=body,
                signer=signer,
            )

        return name, make

    def is_owner_here(self, graph: LedgerGraph) -> bool:
        return graph.head is not None and graph.head.header.owner in self._keyring

    def waits(self, graph: LedgerGraph) -> bool:
        """Whether no roster is signed for the moment."""
        return bool(self._may_sign.why_not(graph, dated=False))

    def check_owner(self, graph: LedgerGraph) -> Roster:
        """The head, when this node may sign the next one. Raises `MisuseError` otherwise."""
        if graph.head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        if not self.is_owner_here(graph):
            raise NoRightError(f"{graph.head.header.owner} owns {graph.name}; only its node can do that")
        if graph.headers.head().forked:
            raise MisuseError(f"{graph.name} is forked, so nothing may follow its head: {graph.trouble}")
        return graph.head

    def plan(self, graph: LedgerGraph, changes: Sequence[Change]) -> RosterPlan:
        """The roster that would follow, unsigned. Raises `MisuseError` for what cannot be, and `SigningWaitsError`
        while what would follow is not known: after a restore the head may be an old one."""
        self._may_sign.check(graph, dated=False)
        if not changes:
            raise MisuseError("nothing is to change: name a member to set or to remove, an M, a limit or an owner")
        if not graph.headers.head().forked and any(isinstance(change, Mend) for change in changes):
            raise MisuseError(f"{graph.name} is not forked: there is nothing to mend")
        plan = next_roster(graph.set, changes, self._ledger.clock.now_ms())
        if graph.headers.head().forked and not plan.is_root_act:
            raise MisuseError(
                f"{graph.name} is forked, so nothing may follow its head but what the root key, {graph.name.creator}, "
                f"signs: mend it. {graph.trouble}"
            )
        return plan

    async def change(self, graph: LedgerGraph, changes: Sequence[Change]) -> LedgerGraph:
        """One signed step. What a removed member said so far is kept, unless the change says otherwise.

        Where everything is so already, nothing is signed: who asks again after a crash gets what he asked for.
        """
        async with self._signing:
            plan = self.plan(graph, changes)
            if plan.body == plan.head.body and not plan.is_root_act:
                return graph
            if plan.signer not in self._keyring:
                whose = "the root key" if plan.is_root_act else "the owner"
                raise NoRightError(
                    f"only the node of {whose}, {plan.signer}, signs that for {graph.name}; a wallet can, through "
                    "`p2pmem sign`"
                )
            return await self.adopt_signed(graph, plan, self._keyring.get(plan.signer))

    async def adopt_signed(self, graph: LedgerGraph, plan: RosterPlan, signer: Signer) -> LedgerGraph:
        """Sign a plan and make it the head. Raises `MisuseError` when the head has moved on since it was planned."""
        if graph.head is None or plan.head.id != graph.head.id:
            raise MisuseError(f"the roster of {graph.name} has changed meanwhile; prepare the change again")
        roster = plan.sign(signer, term=graph.headers.next_term if plan.is_root_act else None)
        roster.signed.check()
        for note in plan.notes:
            log.info("roster.note", extra={"graph": str(graph.name), "note": note})
        return await self.adopt(graph.name, roster)

    async def list_member(self, graph: LedgerGraph, member: Member) -> LedgerGraph:
        """Add a member, or add to the roles of one. Nothing is new: nothing is signed.

        Who is listed within `TOGETHER_S` of the last ones is listed together with all others who come in that time: a
        crowd makes few rosters. Cancelled, this one is not listed, and the others are.
        """
        self.check_owner(graph)
        waiting = self._waiting.setdefault(graph.id, {})
        known = waiting.get(member.address)
        waiting[member.address] = replace(member, roles=member.roles | known.roles) if known else member
        try:
            async with self._listing:
                if member.address in waiting:
                    await trio.sleep_until(self._listed_s.get(graph.id, -inf) + TOGETHER_S)
                    await self._list_all(graph, waiting)
        finally:
            waiting.pop(member.address, None)
        return graph

    async def _list_all(self, graph: LedgerGraph, waiting: dict[Address, Member]) -> None:
        head = self.check_owner(graph)
        changes: list[Change] = []
        for address, member in sorted(waiting.items()):
            listed = head.body.by_address.get(address)
            if listed is None:
                changes.append(AddMember(address, member.roles | Role.READER, member.label))
            elif member.roles | listed.roles != listed.roles:
                changes.append(SetRoles(address, member.roles | listed.roles))
        with trio.CancelScope(shield=True):
            if changes:
                await self.change(graph, changes)
                self._listed_s[graph.id] = trio.current_time()
            waiting.clear()

    async def adopt(self, name: GraphName, roster: Roster) -> LedgerGraph:
        """Make a roster that was signed here the head. Returns when it is on disk."""
        with trio.CancelScope(shield=True):
            batch = self._admission.new_batch(OWN)
            graph = self._rosters.prepare(name, [roster.signed], roster.body.parts, batch)

            def rows(connection: sqlite3.Connection) -> None:
                self._ledger.join_rows(connection, graph)

            self._ledger.database.crash_point("roster/before")
            await self._ledger.commit(batch, rows)
        assert graph.head is not None
        assert graph.head.id == roster.id
        return graph


def _with_owner(founding: Founding, owner: Address, now_ms: int) -> tuple[Member, ...]:
    listed = {member.address: replace(member, since_ms=now_ms) for member in founding.members}
    if len(listed) != len(founding.members):
        raise MisuseError("a member is named twice")
    mine = listed.get(owner)
    everything = Role.all() & ~Role.VERIFIER
    if mine is None:
        mine = Member(owner, everything, founding.label, now_ms)
    listed[owner] = replace(mine, roles=mine.roles | everything)
    return tuple(listed[address] for address in sorted(listed))


def first_body(name: GraphName, members: tuple[Member, ...], founding: Founding, owner: Address) -> Body:
    """The parts of a first roster. Raises `MisuseError` for a quorum that could never be met."""
    verifiers = tuple(member.address for member in members if Role.VERIFIER in member.roles)
    others = [verifier for verifier in verifiers if verifier != owner]
    m = founding.m if founding.m is not None else (len(others) // 2 + 1 if others else 0)
    if founding.m is not None and founding.m < 1:
        raise MisuseError("M = 0 would verify everything; leave the verifiers out for a graph without a quorum")
    if m > len(others):
        raise MisuseError(
            f"M = {m} can never be reached: of the verifiers, {len(others)} other than the owner. Name more of them "
            "now, or set M when they have joined"
        )
    quorum = Quorum(name.id, 1 if m else 0, m, verifiers if m else ())
    base = Limits(founding.access, quorum)
    limits = replace(
        base,
        ttl_default_ms=founding.ttl_default_ms or min(base.ttl_default_ms, founding.ttl_max_ms or base.ttl_max_ms),
        ttl_max_ms=founding.ttl_max_ms or base.ttl_max_ms,
        acks_min=founding.acks_min,
        chain=founding.chain,
        contract=founding.contract or base.contract,
    )
    if founding.acks_min > len(members) - 1:
        raise MisuseError(f"{founding.acks_min} acknowledgements need as many members besides the author")
    return Body(members, limits)
