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
        members = _with_owner(founding.members, key.address, self._ledger.clock.now_ms())
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

    async def list_member(self, graph: LedgerGraph, member: Member) -> LedgerGraph:
        """Add a member, or change its roles by adding some. The quorum stays as it is."""
        async with self._signing:
            head = self.check_owner(graph)
            known = head.body.by_address.get(member.address)
            if known is not None:
                member = replace(known, roles=known.roles | member.roles)
                if member == known:
                    return graph
            members = {**head.body.by_address, member.address: member}
            body = replace(head.body, members=tuple(members[address] for address in sorted(members)))
            return await self.sign_next(graph, body)

    async def sign_next(self, graph: LedgerGraph, body: Body) -> LedgerGraph:
        """Sign and adopt the roster with `body` that follows the head."""
        head = self.check_owner(graph)
        roster = sign_roster(
            graph.name,
            self._ledger.network,
            version=head.header.version + 1,
            term=head.header.term,
            parent=head.id,
            parent_term=head.header.term,
            owner=head.header.owner,
            body=body,
            signer=self._keyring.get(head.header.owner),
        )
        return await self._adopt(graph.name, roster)

    async def _adopt(self, name: GraphName, roster: Roster) -> LedgerGraph:
        with trio.CancelScope(shield=True):
            batch = self._admission.new_batch(OWN)
            graph = self._rosters.prepare(name, [roster.signed], roster.body.parts, batch)

            def rows(connection: sqlite3.Connection) -> None:
                self._ledger.join_rows(connection, graph)

            await self._ledger.commit(batch, rows)
        assert graph.head is not None
        assert graph.head.id == roster.id
        return graph


def _with_owner(members: tuple[Member, ...], owner: Address, now_ms: int) -> tuple[Member, ...]:
    listed = {member.address: replace(member, since_ms=now_ms) for member in members}
    if len(listed) != len(members):
        raise MisuseError("a member is named twice")
    mine = listed.get(owner)
    everything = Role.all() & ~Role.VERIFIER
    listed[owner] = replace(mine, roles=mine.roles | everything) if mine else Member(owner, everything, "", now_ms)
    return tuple(listed[address] for address in sorted(listed))


def first_body(name: GraphName, members: tuple[Member, ...], founding: Founding, owner: Address) -> Body:
    """The parts of a first roster. Raises `MisuseError` for a quorum that could never be met."""
    verifiers = tuple(member.address for member in members if Role.VERIFIER in member.roles)
    others = [verifier for verifier in verifiers if verifier != owner]
    m = founding.m if founding.m is not None else (len(others) // 2 + 1 if others else 0)
    if founding.m is not None and founding.m < 1:
        raise MisuseError("M = 0 would verify everything; leave the verifiers out for a graph without a quorum")
    if m > len(others):
        raise MisuseError(f"M = {m} can never be reached: {len(others)} members other than the owner are verifiers")
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
