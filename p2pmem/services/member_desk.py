"""Members as users see them: who may what, what a change would do, and changing it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from p2pmem_jobs import Clock
from p2pmem_protocol.errors import MisuseError, counted
from p2pmem_protocol.names import ZERO_ADDRESS, Address, VersionKey
from p2pmem_protocol.roster import Access, Member, Quotas, Role
from p2pmem_protocol.rosters_change import (
    AddMember,
    Change,
    DropCertificate,
    Mend,
    RemoveMember,
    RosterPlan,
    SetLimits,
    SetOwner,
    SetQuorum,
    SetRoles,
)

from p2pmem.face import ChangePreview, LimitsChange, MemberChange, NewGraph, NewMember, NotFoundError, TrustChange
from p2pmem.keyring import Keyring
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.references import full_reference, parse_reference
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.finding import reference_in, said_in
from p2pmem.services.foreseeing import Foreseen, foresee
from p2pmem.services.membership import Founding, Membership
from p2pmem.services.telling_changes import asked_for, bounded, differences

TRUST_CHANGES_MAX: Final = 1_000
"""A preview names so many versions at most."""
KEPT_LISTED_MAX: Final = 8


class MemberDesk:
    """The part of the face that changes who is in a graph."""

    def __init__(self, membership: Membership, facts: ChainFacts, keyring: Keyring, clock: Clock) -> None:
        self._membership = membership
        self._facts = facts
        self._keyring = keyring
        self._clock = clock

    async def change(self, graph: LedgerGraph, change: MemberChange) -> LedgerGraph:
        return await self._membership.change(graph, self.changes(graph, change))

    def plan(self, graph: LedgerGraph, change: MemberChange) -> RosterPlan:
        """The roster that would follow, for whoever signs it."""
        return self._membership.plan(graph, self.changes(graph, change))

    def preview(self, graph: LedgerGraph, change: MemberChange) -> ChangePreview:
        return self.preview_of(graph, change, self.plan(graph, change))

    def preview_of(self, graph: LedgerGraph, change: MemberChange, plan: RosterPlan) -> ChangePreview:
        """What `change` would do, which `plan` was made of."""
        now_ms = self._clock.now_ms()
        foreseen = list(islice(foresee(graph, plan, now_ms), TRUST_CHANGES_MAX + 1))
        before, owner_before = plan.head.body, plan.head.header.owner
        other, more = bounded(differences(before, plan.body, owner_before, plan.owner, partial(said_in, graph)))
        notes = (*plan.notes, *more)
        if len(foreseen) > TRUST_CHANGES_MAX:
            notes = (*notes, f"more than {TRUST_CHANGES_MAX} versions would stand otherwise; the first are listed")
        shown_again = sum(it.now is None for it in foreseen[:TRUST_CHANGES_MAX])
        if shown_again:
            notes = (*notes, f"not shown now, and shown by this change: {counted(shown_again, 'version')}")
        quorum = plan.body.limits.quorum
        return ChangePreview(
            graph=str(graph.name),
            version=plan.head.header.version + 1,
            signer=str(plan.signer),
            signs_here=plan.signer in self._keyring,
            quorum_m=quorum.m,
            verifiers=tuple(map(str, quorum.verifiers)),
            members=tuple(NewMember(str(it.address), it.roles.words, it.label) for it in plan.body.members),
            asked=asked_for(change),
            differences=other,
            notes=notes,
            trust=tuple(_told(graph, it) for it in foreseen[:TRUST_CHANGES_MAX]),
        )

    def changes(self, graph: LedgerGraph, change: MemberChange) -> list[Change]:
        """What is asked for, in the words of the protocol. Raises `MisuseError` for a word that is none."""
        if change.leaked and not change.remove:
            raise MisuseError("say with `remove` whose key leaked")
        for what, named in (
            ("member to set", [Address.parse(it.address) for it in change.set]),
            ("member to remove", [Address.parse(it) for it in change.remove]),
            ("version to drop", list(change.drop)),
        ):
            if len(set(named)) < len(named):
                raise MisuseError(f"a {what} is named twice in one change")
        head = graph.head
        listed = head.body.by_address if head is not None else {}
        changes: list[Change] = [RemoveMember(Address.parse(it), not change.leaked) for it in change.remove]
        for member in change.set:
            address, roles = Address.parse(member.address), roles_of(member.roles)
            if address in listed:
                changes.append(SetRoles(address, roles | Role.READER, member.label or None))
            else:
                changes.append(AddMember(address, roles | Role.READER, member.label))
        if change.m is not None:
            changes.append(SetQuorum(change.m))
        if change.limits is not None:
            changes.append(self._limits(graph, change.limits))
        changes += [DropCertificate(_kept(graph, reference)) for reference in change.drop]
        if change.owner is not None:
            changes.append(SetOwner(Address.parse(change.owner)))
        if change.mend:
            changes.append(Mend())
        return changes

    def _limits(self, graph: LedgerGraph, change: LimitsChange) -> SetLimits:
        chain, contract = None, None
        if change.chain is not None:
            chain, contract = self._facts.chain_and_contract() if change.chain else (0, ZERO_ADDRESS)
            if change.chain and not chain:
                raise MisuseError("this node has no chain: set chain.rpc and chain.contract in its configuration")
        if change.acks_min is not None and change.acks_min < 0:
            raise MisuseError("the least number of acknowledgements is 0 or more")
        return SetLimits(
            access=access_of(change.access) if change.access is not None else None,
            ttl_default_ms=change.ttl_default_ms,
            ttl_max_ms=change.ttl_max_ms,
            acks_min=change.acks_min,
            chain=chain,
            contract=contract,
            quotas=_quotas(graph, change),
        )


def _quotas(graph: LedgerGraph, change: LimitsChange) -> Quotas | None:
    names = ("live_bytes", "live_items", "durable_items", "content_bytes")
    given = {name: value for name in names if (value := getattr(change, name)) is not None}
    if not given:
        return None
    if any(value < 0 for value in given.values()):
        raise MisuseError("quotas are 0 or more")
    now = graph.head.body.limits.quotas if graph.head is not None else Quotas()
    return replace(now, **given)


def _kept(graph: LedgerGraph, reference: str) -> VersionKey:
    """The one version that is named, of those that the head keeps. Without an author none is: what the owner signs is
    about the words of an author who was named."""
    named = parse_reference(reference, ZERO_ADDRESS)
    has_author = "/" in reference
    certificates = graph.head.body.certificates if graph.head is not None else ()
    kept = dict.fromkeys(it.subject for it in certificates)
    found = [it for it in kept if (named.names(it) if has_author else it.name == named.key.name)]
    if not found:
        raise NotFoundError(f"{reference} is not kept as verified under an earlier quorum of {graph.name}")
    if len(found) > 1 or not has_author:
        listed = " or ".join(map(full_reference, found[:KEPT_LISTED_MAX]))
        raise MisuseError(
            f"{reference!r} does not name one version with its author. Name the one that you mean: {listed}"
        )
    return found[0]


def founding_of(new: NewGraph, now_ms: int, label: str, chain: int = 0, contract: Address | None = None) -> Founding:
    """What a graph begins with, in the words of the protocol."""
    return Founding(
        slug=new.slug,
        members=tuple(
            Member(Address.parse(it.address), roles_of(it.roles) | Role.READER, it.label, now_ms) for it in new.members
        ),
        access=access_of(new.access),
        m=new.m,
        ttl_default_ms=new.ttl_default_ms,
        ttl_max_ms=new.ttl_max_ms,
        acks_min=new.acks_min,
        chain=chain,
        contract=contract,
        label=label,
    )


def roles_of(words: tuple[str, ...]) -> Role:
    """Roles by their words."""
    roles = Role(0)
    for word in words:
        try:
            roles |= Role[word.upper()]
        except KeyError:
            known = ", ".join(str(role.name).lower() for role in Role)
            raise MisuseError(f"{word!r} is no role; the roles are {known}") from None
    return roles


def access_of(word: str) -> Access:
    try:
        return Access[word.upper()]
    except KeyError:
        raise MisuseError(f"access is gated or open, not {word!r}") from None


def _told(graph: LedgerGraph, it: Foreseen) -> TrustChange:
    now = it.now.shown if it.now is not None else "not shown"
    return TrustChange(reference_in(graph, it.version), now, it.then.shown if it.then is not None else "gone")
