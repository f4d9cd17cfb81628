"""Members of a context graph: founding it, and what its owner's node signs afterwards."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass, replace

import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.names import Address, GraphName
from p2pmem_protocol.roster import Access, Body, Limits, Member, Quorum, Role, Roster, sign_roster
from p2pmem_protocol.rosters_change import AddMember, Change, RemoveMember, SetQuorum, SetRoles, next_roster

from p2pmem.exchange.holdings import OWN
from p2pmem.keyring import Keyring
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.rosters import Rosters

log = logging.getLogger(__name__)


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

    def __init__(self, ledger: Ledger, admission: Admission, rosters: Rosters, keyring: Keyring) -> None:
        self._ledger = ledger
        self._admission = admission
        self._rosters = rosters
        self._keyring = keyring
        self._signing = trio.Lock()

    async def found(self, founding: Founding) -> LedgerGraph:
        """Found a graph with this node's agent as its creator and owner."""
        key = self._keyring.default
        name = GraphName(key.address, founding.slug)
        existing = self._ledger.graphs.get(name.id)
        if existing is not None:
            raise MisuseError(f"{name} exists already; choose another slug")
        members = _with_owner(founding, key.address, self._ledger.clock.now_ms())
        body = first_body(name, members, founding, key.address)
        roster = sign_roster(
            name,
            self._ledger.network,
            version=1,
            term=1,
            parent=ZERO_HASH,
            parent_term=0,
            owner=key.address,
            body=body,
            signer=key,
        )
        return await self._adopt(name, roster)

    def is_owner_here(self, graph: LedgerGraph) -> bool:
        return graph.head is not None and graph.head.header.owner in self._keyring

    def check_owner(self, graph: LedgerGraph) -> Roster:
        """The head, when this node may sign the next one. Raises `MisuseError` otherwise."""
        if graph.head is None:
            raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
        if not self.is_owner_here(graph):
            raise MisuseError(f"{graph.head.header.owner} owns {graph.name}; only its node can do that")
        if graph.headers.head().forked:
            raise MisuseError(f"{graph.name} is forked, so nothing may follow its head: {graph.trouble}")
        return graph.head

    async def change(
        self, graph: LedgerGraph, *, set_: tuple[Member, ...], remove: tuple[Address, ...], m: int | None
    ) -> LedgerGraph:
        """One signed step: members in and out, roles, the quorum. What a removed member said so far is kept."""
        async with self._signing:
            head = self.check_owner(graph)
            changes: list[Change] = [RemoveMember(address) for address in remove]
            for member in set_:
                if member.address in head.body.by_address:
                    changes.append(SetRoles(member.address, member.roles))
                else:
                    changes.append(AddMember(member.address, member.roles, member.label))
            if m is not None:
                changes.append(SetQuorum(m))
            if not changes:
                raise MisuseError("nothing is to change: name a member to set or to remove, or an M")
            plan = next_roster(graph.set, changes, self._ledger.clock.now_ms())
            for note in plan.notes:
                log.info("roster.note", extra={"graph": str(graph.name), "note": note})
            return await self._adopt(graph.name, plan.sign(self._keyring.get(plan.signer)))

    async def list_member(self, graph: LedgerGraph, member: Member) -> LedgerGraph:
        """Add a member, or add to the roles of one. Nothing is new: nothing is signed."""
        head = self.check_owner(graph)
        known = head.body.by_address.get(member.address)
        if known is not None and member.roles | known.roles == known.roles:
            return graph
        roles = member.roles | (known.roles if known else Role.READER)
        return await self.change(graph, set_=(replace(member, roles=roles),), remove=(), m=None)

    async def _adopt(self, name: GraphName, roster: Roster) -> LedgerGraph:
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
            f"M = {m} can never be reached: {len(others)} members other than the owner are verifiers. Name more "
            "of them now, or set M when they have joined"
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
