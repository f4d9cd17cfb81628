"""The owner's side: the next roster of a context graph, from what is to change and what counts now.

A roster that takes a right away lists what still counts (rules K1, K2, K3): everything that is in the set at this
moment and to which the new members and roles alone would give no right. That is, of a member that is removed or
demoted, and of every agent that acts for it, its words with its retracts, revokes and withdrawals; of an old owner, the
retracts of others' words; and what earlier rosters listed, as long as it is in the set and still needs to be listed.
Of a changed quorum every complete certificate is kept, beside those of the same version that are kept already: the one
of the greatest M counts, and where it turns out to rest on a leaked key, the next one.

`RemoveMember(..., keeps_words=False)` is for a key that leaked: nothing of it is listed, and no certificate that rests
on it.

Several changes make one roster. Only the root key changes the owner, or mends a fork; everything else the owner signs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from p2pmem_protocol import cbor
from p2pmem_protocol.errors import BugError, MisuseError, Reason, RefusedError, counted
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.keys import Signer
from p2pmem_protocol.limits import (
    CERTIFICATES_KEPT_MAX,
    KEPT_IDS_MAX,
    LABEL_CHARS_MAX,
    ROSTER_PART_BYTES_MAX,
    UINT32_MAX,
)
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.records import EvidenceRecord
from p2pmem_protocol.rights import Rights
from p2pmem_protocol.roster import (
    Access,
    Body,
    KeptCertificate,
    Limits,
    Member,
    Quorum,
    Quotas,
    Role,
    Roster,
    sign_roster,
)
from p2pmem_protocol.trust import assess, greatest_first
from p2pmem_protocol.view import AssetView, asset_view


@dataclass(frozen=True, slots=True)
class AddMember:
    address: Address
    roles: Role
    label: str = ""


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """`keeps_words`: what it said and still counts now goes on to count; False for a key that leaked."""

    address: Address
    keeps_words: bool = True


@dataclass(frozen=True, slots=True)
class SetRoles:
    """`label`: another one for people; None leaves the one that it has."""

    address: Address
    roles: Role
    label: str | None = None


@dataclass(frozen=True, slots=True)
class SetQuorum:
    """M approvals of the members with the verifier's role; 0 for no quorum."""

    m: int


@dataclass(frozen=True, slots=True)
class SetLimits:
    """What is None stays as it is."""

    access: Access | None = None
    ttl_default_ms: int | None = None
    ttl_max_ms: int | None = None
    acks_min: int | None = None
    chain: int | None = None
    contract: Address | None = None
    quotas: Quotas | None = None


@dataclass(frozen=True, slots=True)
class DropCertificate:
    """A version is no longer kept as verified under an earlier quorum."""

    subject: VersionKey


@dataclass(frozen=True, slots=True)
class SetOwner:
    """Signed by the root key."""

    owner: Address


@dataclass(frozen=True, slots=True)
class Mend:
    """Signed by the root key: go on from the head as it is, above every branch of a fork."""


CERTIFICATES_OF_VERSION_MAX: Final = 4
"""So many of one version are kept. Where the list would be too long, fewer."""

Change: TypeAlias = AddMember | RemoveMember | SetRoles | SetQuorum | SetLimits | DropCertificate | SetOwner | Mend


@dataclass(frozen=True)
class RosterPlan:
    """A roster before it is signed. `notes` say what it will do, for people."""

    head: Roster
    body: Body
    owner: Address
    is_root_act: bool
    notes: tuple[str, ...]

    @property
    def signer(self) -> Address:
        """Whose signature it needs."""
        return self.head.header.name.creator if self.is_root_act else self.head.header.owner

    def sign(self, signer: Signer, *, term: int | None = None) -> Roster:
        """The roster. `term` is for a root act: `HeadChain.next_term`; without it, one above the head's."""
        if signer.address != self.signer:
            whose = "the root key" if self.is_root_act else "the owner"
            raise MisuseError(f"this roster is signed by {whose}, {self.signer}, not by {signer.address}")
        header = self.head.header
        return sign_roster(
            header.name,
            header.network,
            version=header.version + 1,
            term=(term or header.term + 1) if self.is_root_act else header.term,
            parent=header.id,
            parent_term=header.term,
            owner=self.owner,
            body=self.body,
            signer=signer,
        )


def next_roster(graph_set: GraphSet, changes: Sequence[Change], now_ms: int) -> RosterPlan:
    """Plan the roster that follows the head of `graph_set`.

    Raises `MisuseError` for what cannot be: a member twice, an unknown one, an M that nobody's things can reach, more
    acknowledgements than others can give, lists that are too long; then nothing was planned.
    """
    head = graph_set.head
    if head is None:
        raise MisuseError("the context graph has no head here; nothing can follow it")
    if not changes:
        raise MisuseError("no change was named")
    members = dict(head.body.by_address)
    limits = head.body.limits
    m = limits.quorum.m
    owner = head.header.owner
    mistrusted: set[Address] = set()
    dropped: set[VersionKey] = set()
    for change in changes:
        match change:
            case AddMember(address, roles, label):
                if address in members:
                    raise MisuseError(f"{address} is a member already; change its roles instead")
                members[address] = Member(address, _roles(roles), _label(label), now_ms)
            case RemoveMember(address, keeps_words):
                _known(members, address)
                del members[address]
                if not keeps_words:
                    mistrusted.add(address)
            case SetRoles(address, roles, new_label):
                member = _known(members, address)
                label = member.label if new_label is None else _label(new_label)
                members[address] = replace(member, roles=_roles(roles), label=label)
            case SetQuorum(new_m):
                m = new_m
            case SetLimits():
                limits = _limits(limits, change)
            case DropCertificate(subject):
                dropped.add(subject)
            case SetOwner(new_owner):
                owner = new_owner
            case Mend():
                pass
    if owner in head.body.by_address and owner not in members:
        raise MisuseError(f"{owner} is the owner and cannot be removed; let the root key name another owner first")
    quorum = _quorum(head, members.values(), m)
    _check_acks(head, len(members), limits)
    listing = _Listing(graph_set, head, now_ms, mistrusted, dropped)
    body = listing.fill(
        Body(tuple(sorted(members.values(), key=lambda member: member.address)), replace(limits, quorum=quorum)), owner
    )
    _check_readable(body, head)
    is_root_act = any(isinstance(change, SetOwner | Mend) for change in changes)
    return RosterPlan(head, body, owner, is_root_act, _notes(head, body))


def default_m(verifiers: int) -> int:
    """The M that is proposed: a majority of the verifiers other than the author of a thing; 0 without verifiers."""
    others = max(verifiers - 1, min(verifiers, 1))
    return others // 2 + 1 if others else 0


def needs(body: Body, author: Address) -> tuple[int, tuple[Address, ...]]:
    """Of a thing by `author`: how many approvals make it ConsensusVerified, and who can give them."""
    quorum = body.limits.quorum
    return quorum.m, tuple(verifier for verifier in quorum.verifiers if verifier != author)


def _known(members: dict[Address, Member], address: Address) -> Member:
    member = members.get(address)
    if member is None:
        raise MisuseError(f"{address} is not a member")
    return member


def _check_readable(body: Body, head: Roster) -> None:
    """What is signed must be read by every member: a roster with a number out of its range would stop the graph."""
    try:
        body.parts.decode(head.graph)
    except RefusedError as refused:
        raise MisuseError(f"no member could read this roster: {refused}") from None


def _check_acks(head: Roster, members: int, limits: Limits) -> None:
    """A promise to hold the bytes comes from others than the author: more than there are never come."""
    before = head.body.limits.acks_min
    # What an earlier roster has wrong does not keep anybody from joining.
    if limits.acks_min >= members and (limits.acks_min > before or members < len(head.body.members)):
        raise MisuseError(
            f"{counted(limits.acks_min, 'acknowledgement')} of {counted(members, 'member')}: an author does not "
            "acknowledge its own, so nothing could be published. Lower the number or add members in the same change"
        )


def _roles(roles: Role) -> Role:
    if not roles:
        raise MisuseError("a member has at least one role; to take all of them away, remove it")
    return roles | Role.READER


def _label(label: str) -> str:
    if len(label) > LABEL_CHARS_MAX:
        raise MisuseError(f"a label has at most {LABEL_CHARS_MAX} characters, this one {len(label)}")
    return label


def _limits(limits: Limits, change: SetLimits) -> Limits:
    def new(value: int | None, old: int) -> int:
        return old if value is None else value

    return replace(
        limits,
        access=change.access or limits.access,
        ttl_default_ms=new(change.ttl_default_ms, limits.ttl_default_ms),
        ttl_max_ms=new(change.ttl_max_ms, limits.ttl_max_ms),
        acks_min=new(change.acks_min, limits.acks_min),
        chain=new(change.chain, limits.chain),
        contract=change.contract or limits.contract,
        quotas=change.quotas or limits.quotas,
    )


def _quorum(head: Roster, members: Iterable[Member], m: int) -> Quorum:
    """The head's quorum when nothing of it changes; otherwise the next serial."""
    listed = list(members)
    verifiers = tuple(sorted(member.address for member in listed if Role.VERIFIER in member.roles)) if m else ()
    if not 0 <= m <= len(verifiers):
        if m < 0:
            raise MisuseError(f"M = {m}: it is the number of verifiers that have to approve, or 0 for no quorum")
        raise MisuseError(
            f"M = {m} and {counted(len(verifiers), 'verifier')}: nothing could reach it. "
            f"Set M to at most {len(verifiers)} or add verifiers in the same change"
        )
    old = head.quorum
    if (m, verifiers) == (old.m, old.verifiers):
        return old
    writers = [member.address for member in listed if Role.WRITER in member.roles]
    reachable = max((_reachable(verifiers, writer) for writer in writers), default=m)
    if reachable < m:
        raise MisuseError(
            f"M = {m} of {counted(len(verifiers), 'verifier')}: an author does not verify itself, so nothing that any "
            f"writer says could reach it. Set M to at most {reachable} or add a verifier"
        )
    if old.serial >= UINT32_MAX:
        raise BugError("the serial numbers of quorums are used up")
    return Quorum(head.graph, old.serial + 1, m, verifiers)


def _reachable(verifiers: tuple[Address, ...], author: Address) -> int:
    return sum(verifier != author for verifier in verifiers)


def _notes(head: Roster, body: Body) -> tuple[str, ...]:
    notes: list[str] = []
    quorum = body.limits.quorum
    if quorum != head.quorum:
        requests = "wait for the next one" if quorum.is_none else "are made again"
        notes.append(
            f"the quorum changes from {_of(head.quorum)} to {_of(quorum)}; open requests to verify {requests}; "
            f"{counted(len({it.subject for it in body.certificates}), 'version')} kept as verified"
        )
    for member in body.members:
        if Role.WRITER in member.roles and quorum.m:
            m, able = needs(body, member.address)
            who = member.label or str(member.address)
            if len(able) < m:
                notes.append(
                    f"a thing by {who} needs {m} and only {len(able)} may verify it: PartiallyVerified at most"
                )
            else:
                notes.append(f"a thing by {who} needs {m} of {len(able)}")
    if body.kept:
        notes.append(f"still counting, of what members that lose a right have said: {counted(len(body.kept), 'thing')}")
    return tuple(notes)


def _of(quorum: Quorum) -> str:
    return "none" if quorum.is_none else f"{quorum.m} of {len(quorum.verifiers)}"


@dataclass(frozen=True)
class _Listing:
    """What the next roster has to list, from what is in the set now."""

    graph_set: GraphSet
    head: Roster
    now_ms: int
    mistrusted: set[Address]
    dropped: set[VersionKey]

    def fill(self, bare: Body, owner: Address) -> Body:
        """`bare` with its lists."""
        certificates = self._certificates(bare.limits.quorum)
        kept = tuple(sorted(self._kept(bare, owner)))
        if len(kept) > KEPT_IDS_MAX:
            raise MisuseError(
                f"{len(kept)} things would have to be listed, at most {KEPT_IDS_MAX} can be. Take the right away from "
                "one member at a time, or without keeping its words"
            )
        if len(certificates) > CERTIFICATES_KEPT_MAX:
            raise MisuseError(
                f"{len(certificates)} certificates would have to be kept, at most {CERTIFICATES_KEPT_MAX} can be. Drop "
                "some, or retract what is superseded"
            )
        return replace(bare, kept=kept, certificates=certificates)

    def _kept(self, bare: Body, owner: Address) -> set[bytes]:
        """Ids in the set to which roles alone give no right under `bare` (rules K1, K2)."""
        rights = Rights(_unsigned(self.head, bare, owner))
        return {
            record.id
            for record in self.graph_set.records()
            if self.now_ms < record.ends_at_ms
            and record.principal not in self.mistrusted
            and record.author not in self.mistrusted
            and rights.problem(record) is Reason.NOT_LISTED
        }

    def _certificates(self, quorum: Quorum) -> tuple[KeptCertificate, ...]:
        """Complete certificates, those of the head's quorum when that changes and those that the head keeps."""
        changes = quorum != self.head.quorum
        subjects = {certificate.subject for certificate in self.head.body.certificates}
        if changes:
            subjects.update(record.subject for record in self.graph_set.records() if isinstance(record, EvidenceRecord))
        # One view of each asset: a view of its own for each version would take as long as all of them, so many times.
        assets = {subject.asset for subject in subjects}
        views = {asset: asset_view(self.graph_set, asset, self.now_ms) for asset in assets}
        found = [self._complete(subject, views[subject.asset], changes) for subject in sorted(subjects - self.dropped)]
        lists = (
            tuple(it for each in found for it in each[:most]) for most in range(CERTIFICATES_OF_VERSION_MAX, 1, -1)
        )
        return next(filter(_fits, lists), tuple(it for each in found for it in each[:1]))

    def _complete(self, subject: VersionKey, of_asset: AssetView, changes: bool) -> list[KeptCertificate]:
        """What is complete of one version without whom is mistrusted. First of each quorum one, the greatest M first: a
        reader may ask for so much. Then, in as many as it takes, the approvals beyond M. All of these stand in for one
        another once a key turns out to have leaked: whatever approvals a list keeps, the next one may join anew.
        """
        view = of_asset.version(subject)
        version, rights = self.graph_set.version(subject), self.graph_set.rights
        if view is None or view.hidden_by is not None or version is None or rights is None:
            return []
        barred = view.trust.barred
        trusted = [it for it in version.evidence_in_set() if it.author not in self.mistrusted]
        quorums = [it.quorum for it in rights.certificates.get(subject, ())]
        found: list[tuple[int, KeptCertificate]] = []
        for quorum in dict.fromkeys([*quorums, self.head.quorum] if changes else quorums):
            ids = [line.id for line in assess(subject, trusted, principals=barred, quorum=quorum).approvals]
            for at in range(0, len(ids), quorum.m) if 0 < quorum.m <= len(ids) else ():
                some = ids[min(at, len(ids) - quorum.m) :][: quorum.m]
                found.append((at, KeptCertificate(subject, quorum, tuple(sorted(some)))))
        return [it for _, it in sorted(found, key=lambda each: (each[0], greatest_first(each[1])))]


def _fits(certificates: Sequence[KeptCertificate]) -> bool:
    """Whether members can read a roster that keeps these."""
    if len(certificates) > CERTIFICATES_KEPT_MAX:
        return False
    return len(cbor.encode([it.to_value() for it in certificates])) <= ROSTER_PART_BYTES_MAX


def _unsigned(head: Roster, body: Body, owner: Address) -> Roster:
    """A roster with this body and owner, to ask for rights; nobody has signed it."""
    header = replace(head.header, owner=owner)
    return Roster(replace(head.signed, header=header), body)
