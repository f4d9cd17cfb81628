"""What the head roster lets each thing be: rights, life spans and limits, one record at a time.

Rights come from the head alone: the role that the kind needs, or the id in the head's lists. A listed id stands in for
the role and nothing else (rule K1): life span, quorum, revocation, retract and withdrawal still act.

    kind        who may, when not listed by id                                        under a delegation
    share       a writer                                                              right share
    publish     a writer                                                              right publish
    anchor      a writer                                                              right publish
    propose     a writer, for the head's quorum only                                  right propose
    retract     a member, of its own words; a principal, of what was said for it;     right retract, own words only
                the owner, of anybody's
    ack         a member                                                              no
    revoke      a member, of what it delegated                                        no
    endorse     an endorser                                                           -
    verdict     a verifier of the head's quorum, under that quorum                    -

A member is who the head lists, and its owner.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from p2pmem_protocol.credential import Right
from p2pmem_protocol.errors import BugError, Reason, RefusedError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import ACK_MS_MAX, DEADLINE_MS_MAX, FUTURE_MS_MAX
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.records import (
    FOREVER,
    EvidenceRecord,
    ProposeRecord,
    Record,
    RetractRecord,
    SealedRecord,
)
from p2pmem_protocol.roster import KeptCertificate, Role, Roster

_RIGHT_OF: Final = {
    Kind.SHARE: Right.SHARE,
    Kind.PUBLISH: Right.PUBLISH,
    Kind.ANCHOR: Right.PUBLISH,
    Kind.PROPOSE: Right.PROPOSE,
}


class Rights:
    """One roster, read for the questions that admission asks.

    `listed`: ids that stand in for a role. `certified`: those among them that a kept certificate names. `certificates`:
    the kept certificates that count, see `kept_under`.
    """

    __slots__ = (
        "_longest_ms",
        "_roles",
        "_verifiers",
        "certificates",
        "certified",
        "listed",
        "owner",
        "quorum_id",
        "quotas",
        "roster",
    )

    def __init__(self, roster: Roster, named: Collection[bytes] = ()) -> None:
        body = roster.body
        self.roster = roster
        self.owner: Address = roster.header.owner
        self.quotas = body.limits.quotas
        self.quorum_id = roster.quorum.id
        self.certified = frozenset(verdict for certificate in body.certificates for verdict in certificate.verdicts)
        self.listed: frozenset[bytes] = body.kept_ids | self.certified
        self.certificates = kept_under(roster, named)
        self._roles = {member.address: member.roles for member in body.members}
        self._verifiers = frozenset(roster.quorum.verifiers)
        self._longest_ms = {
            Kind.SHARE: body.limits.ttl_max_ms,
            Kind.PROPOSE: DEADLINE_MS_MAX,
            Kind.ACK: ACK_MS_MAX,
        }

    def is_member(self, agent: Address) -> bool:
        return agent in self._roles or agent == self.owner

    def whose_rights_differ(self, other: Rights) -> frozenset[Address] | None:
        """The members whose things two heads judge otherwise, by role; None when it may be everybody's.

        Ids that only one of them lists are not looked at.
        """
        if (self.quotas, self.quorum_id, self._longest_ms) != (other.quotas, other.quorum_id, other._longest_ms):
            return None
        named = self._roles.keys() | other._roles.keys()
        differing = {agent for agent in named if self._roles.get(agent) != other._roles.get(agent)}
        return frozenset(differing if self.owner == other.owner else differing | {self.owner, other.owner})

    def is_endorser(self, agent: Address) -> bool:
        return Role.ENDORSER in self._roles.get(agent, Role(0))

    def problem(self, record: Record) -> Reason | None:
        """Why this head does not let `record` be in the set, or None. Says nothing of quotas, revocations, erasure."""
        listed = record.id in self.listed
        if isinstance(record, EvidenceRecord):
            return None if listed else self._evidence_problem(record)
        longest_ms = self._longest_ms.get(record.kind)
        if longest_ms is not None and record.ends_at_ms - record.issued_at_ms > longest_ms:
            return Reason.LIFE_TOO_LONG
        if isinstance(record, ProposeRecord) and record.quorum != self.quorum_id:
            return Reason.WRONG_QUORUM
        if listed:
            return None
        if isinstance(record, SealedRecord) and record.content_length > self.quotas.content_bytes:
            return Reason.OVER_QUOTA
        return None if self._may(record) else Reason.NOT_LISTED

    def _may(self, record: Record) -> bool:
        if isinstance(record, RetractRecord):
            return self._may_retract(record)
        return self.may_say(record.kind, record.principal, record.rights if record.delegated else None)

    def may_say(self, kind: Kind, principal: Address, delegated: Right | None = None) -> bool:
        """Whether the role of `principal` lets in what is said of this kind, by itself or, with these rights, by an
        agent that acts for it. Not for retracts: who may those depends on whose words they take back."""
        if delegated is not None and not delegated & _RIGHT_OF.get(kind, Right(0)):
            return False
        match kind:
            case Kind.SHARE | Kind.PUBLISH | Kind.ANCHOR | Kind.PROPOSE:
                return Role.WRITER in self._roles.get(principal, Role(0))
            case Kind.ACK | Kind.REVOKE:
                return self.is_member(principal)
            case Kind.ENDORSE:
                return self.is_endorser(principal)
            case Kind.VERDICT:
                return principal in self._verifiers
        raise BugError(f"no rule says who may {kind.word}")

    def _may_retract(self, record: RetractRecord) -> bool:
        if record.delegated and not record.rights & Right.RETRACT:
            return False
        if record.of_own_words:
            return self.is_member(record.principal)
        if record.delegated:
            return False
        if record.as_principal:
            return self.is_member(record.author)
        return record.author == self.owner

    def _evidence_problem(self, record: EvidenceRecord) -> Reason | None:
        if record.kind is Kind.VERDICT and record.quorum != self.quorum_id:
            return Reason.WRONG_QUORUM
        return None if self.may_say(record.kind, record.author) else Reason.NOT_LISTED


def kept_under(roster: Roster, named: Collection[bytes]) -> dict[VersionKey, tuple[KeptCertificate, ...]]:
    """The certificates that `roster` keeps and that count: their quorum is its own or `named` by an earlier header.

    Who signs a roster could otherwise write a quorum of its own keys into it that the graph never had.
    """
    kept: dict[VersionKey, tuple[KeptCertificate, ...]] = {}
    for certificate in roster.body.certificates:
        if certificate.quorum.id in named or certificate.quorum.id == roster.quorum.id:
            kept[certificate.subject] = (*kept.get(certificate.subject, ()), certificate)
    return kept


def check_time(record: Record, t_ms: int) -> None:
    """Raises `RefusedError` when `record` comes from the future or has ended (rule R2)."""
    if record.issued_at_ms > t_ms + FUTURE_MS_MAX:
        ahead_ms = record.issued_at_ms - t_ms
        raise RefusedError(Reason.FROM_THE_FUTURE, f"issued {ahead_ms} ms ahead; at most {FUTURE_MS_MAX} are let pass")
    if record.ends_at_ms != FOREVER and t_ms >= record.ends_at_ms:
        raise RefusedError(Reason.EXPIRED, f"a {record.kind.word} that ended {t_ms - record.ends_at_ms} ms ago")
