"""How far a sealed version is to be trusted: a function of kept signatures, the same for everybody (rule T1).

    level                 when, tested in this order
    ConsensusVerified     M approvals of the head's quorum, or listed by the head as complete under an earlier quorum;
                          of several such quorums the one with the greatest M is shown
    Rejected              at least one rejection, and more than N - M of them
    PartiallyVerified     at least one approval
    Endorsed              a listed endorser's endorsement that was not withdrawn
    SelfAttested          the author's seal

N is the quorum's verifiers without those who are *barred*: the author, and every principal named in any share or
publish of the version. The barred do not endorse either. A verifier that approved and rejected has approved (E4). With
N < M the version is at most PartiallyVerified, and that is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum, unique

from p2pmem_protocol.errors import MisuseError, counted
from p2pmem_protocol.evidence import Decision, Endorse, Method
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.records import EvidenceRecord
from p2pmem_protocol.roster import KeptCertificate, Quorum


@unique
class Trust(IntEnum):
    """Levels in order. `REJECTED` is below every floor."""

    REJECTED = 0
    SELF_ATTESTED = 1
    ENDORSED = 2
    PARTIALLY_VERIFIED = 3
    CONSENSUS_VERIFIED = 4

    @property
    def word(self) -> str:
        """As users write it: `ConsensusVerified`."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def parse(cls, word: str) -> Trust:
        """Raises `MisuseError` for a word that names no level."""
        for level in cls:
            if word in (level.word, level.name, level.name.lower()):
                return level
        known = ", ".join(level.word for level in cls if level is not cls.REJECTED)
        raise MisuseError(f"{word[:40]!r} is no trust level; those to ask for are {known}")


@dataclass(frozen=True, slots=True)
class Floor:
    """What a reader asks for: a least level and, where a quorum is needed, a least M. 0 asks for no M."""

    level: Trust = Trust.SELF_ATTESTED
    least_m: int = 0

    def __post_init__(self) -> None:
        if self.level is Trust.REJECTED:
            raise MisuseError("Rejected is below every floor; ask for SelfAttested or more")
        if self.least_m < 0:
            raise MisuseError(f"a least M of {self.least_m}; it is 0 or more")


@dataclass(frozen=True, slots=True)
class Line:
    """One kept signature about a version: by whom, what it says, and why it does not count, empty when it does."""

    id: bytes
    kind: Kind
    signer: Address
    decision: Endorse | Decision
    method: Method | None
    quorum: bytes
    ignored: str

    @property
    def counts(self) -> bool:
        return not self.ignored


@dataclass(frozen=True, slots=True)
class TrustReport:
    """Everything that stands behind a level.

    `m` and `n` are those of the quorum under which the level stands, `quorum` that quorum; (0, 0) and None when the
    graph has none. `certificate` is set when that is not the head's but one under which the head lists the version as
    complete. `missing` are verifiers that may still say something; `would_raise` says in words what would raise the
    level.
    """

    subject: VersionKey
    level: Trust
    m: int
    n: int
    quorum: Quorum | None
    approvals: tuple[Line, ...]
    rejections: tuple[Line, ...]
    endorsements: tuple[Line, ...]
    ignored: tuple[Line, ...]
    barred: tuple[Address, ...]
    missing: tuple[Address, ...]
    certificate: KeptCertificate | None
    would_raise: str

    @property
    def shown(self) -> str:
        """For people: `ConsensusVerified, 3 of 4, two manual, one shacl` in figures."""
        if self.quorum is None:
            return self.level.word
        counts = f"{len(self.approvals)} of {self.n}" if self.n else "nobody else can verify it"
        parts = [self.level.word, f"{counts}, {self.m} needed"]
        counted = self.methods
        parts += [f"{counted[method]} {method.word}" for method in sorted(counted, reverse=True)]
        if self.rejections:
            parts.append(f"{len(self.rejections)} rejected")
        return ", ".join(parts)

    @property
    def has_evidence(self) -> bool:
        """Whether anybody has said something about it that is kept, counting or not."""
        return bool(self.approvals or self.rejections or self.endorsements or self.ignored)

    @property
    def methods(self) -> dict[Method, int]:
        return dict(Counter(line.method for line in self.approvals if line.method is not None))

    def reaches(self, floor: Floor) -> bool:
        return self.level >= floor.level and self.m >= floor.least_m


def assess(
    subject: VersionKey,
    evidence: Iterable[EvidenceRecord],
    *,
    principals: Collection[Address],
    quorum: Quorum | None,
    certificates: Iterable[KeptCertificate] = (),
) -> TrustReport:
    """Judge one version from the evidence about it that is in the set.

    `principals`: all that any share or publish of the version names. `quorum`: the head's. `certificates`: those that
    the head lists for this very version.
    """
    barred = {subject.author, *principals}
    quorum = None if quorum is None or quorum.is_none else quorum
    verdicts: list[EvidenceRecord] = []
    endorsing: list[EvidenceRecord] = []
    for record in evidence:
        (verdicts if record.kind is Kind.VERDICT else endorsing).append(record)
    endorsements, ignored = _endorsements(endorsing, barred)
    judged = _judge(quorum, verdicts, barred)
    complete = [each for each in certificates if is_complete(each, verdicts, barred)]
    kept = min(complete, key=greatest_first, default=None)
    if kept and judged.is_complete and judged.m >= kept.quorum.m:
        kept = None
    shown = _judge(kept.quorum, verdicts, barred) if kept else judged
    if kept:
        signers = {record.author for record in verdicts if record.id in kept.verdicts}
        shown.approvals = [line for line in shown.approvals if line.signer in signers]
        shown.rejections = _merge(shown.rejections, judged.rejections)
    return TrustReport(
        subject=subject,
        level=Trust.CONSENSUS_VERIFIED if kept else _level(judged, bool(endorsements)),
        m=shown.m,
        n=shown.n,
        quorum=shown.quorum,
        approvals=tuple(shown.approvals),
        rejections=tuple(shown.rejections),
        endorsements=tuple(endorsements),
        ignored=tuple(sorted(ignored + shown.ignored, key=lambda line: (line.signer, line.id))),
        barred=tuple(sorted(barred)),
        missing=tuple(judged.missing),
        certificate=kept,
        would_raise="" if kept else _would_raise(judged, bool(endorsements)),
    )


def is_complete(certificate: KeptCertificate, verdicts: Iterable[EvidenceRecord], barred: Collection[Address]) -> bool:
    """Rule K3: all verdicts that it lists are in the set, and they are M approvals under its quorum. A list can keep
    what has its M signatures, and never make one."""
    listed = set(certificate.verdicts)
    quorum = certificate.quorum
    signers = {
        record.author
        for record in verdicts
        if record.id in listed
        and record.subject == certificate.subject
        and record.quorum == quorum.id
        and record.decision is Decision.APPROVE
        and record.author in quorum.verifiers
        and record.author not in barred
    }
    return len(signers) == len(listed) == quorum.m


def greatest_first(certificate: KeptCertificate) -> tuple[int, bytes]:
    """Which of several complete certificates of one version counts: the greatest M, at a tie the lowest quorum id.

    Of several under one quorum it is the first in the list of the head.
    """
    return (-certificate.quorum.m, certificate.quorum.id)


class _Judged:
    """Verdicts under one quorum."""

    __slots__ = ("approvals", "ignored", "m", "missing", "n", "quorum", "rejections")

    def __init__(self, quorum: Quorum | None, barred: Collection[Address]) -> None:
        verifiers = [verifier for verifier in quorum.verifiers if verifier not in barred] if quorum else []
        self.quorum = quorum
        self.m = quorum.m if quorum else 0
        self.n = len(verifiers)
        self.missing: list[Address] = verifiers
        self.approvals: list[Line] = []
        self.rejections: list[Line] = []
        self.ignored: list[Line] = []

    @property
    def is_complete(self) -> bool:
        return 0 < self.m <= len(self.approvals)


def _judge(quorum: Quorum | None, verdicts: list[EvidenceRecord], barred: Collection[Address]) -> _Judged:
    judged = _Judged(quorum, barred)
    by_signer: dict[Address, list[EvidenceRecord]] = {}
    for record in verdicts:
        if quorum is None or record.quorum != quorum.id:
            judged.ignored.append(_line(record, "given under another quorum"))
        elif record.author in barred:
            judged.ignored.append(_line(record, "the author and the principals of a version do not verify it"))
        elif record.author not in quorum.verifiers:
            judged.ignored.append(_line(record, "its signer is not a verifier of the quorum"))
        else:
            by_signer.setdefault(record.author, []).append(record)
    for signer in sorted(by_signer):
        # Approve before reject, the strongest method first.
        best, *others = sorted(by_signer[signer], key=_weight)
        (judged.approvals if best.decision is Decision.APPROVE else judged.rejections).append(_line(best))
        judged.ignored += [_line(other, "the same signer says it with more weight elsewhere") for other in others]
    judged.missing = [verifier for verifier in judged.missing if verifier not in by_signer]
    return judged


def _endorsements(records: list[EvidenceRecord], barred: Collection[Address]) -> tuple[list[Line], list[Line]]:
    """Those that count, and those that do not. A withdrawal ends its signer's endorsement for good (rule E3)."""
    withdrawn = {record.author for record in records if record.decision is Endorse.WITHDRAW}
    counting: list[Line] = []
    ignored: list[Line] = []
    for record in sorted(records, key=lambda record: (record.author, record.decision)):
        if record.decision is Endorse.WITHDRAW:
            ignored.append(_line(record, "a withdrawal"))
        elif record.author in withdrawn:
            ignored.append(_line(record, "withdrawn by its signer"))
        elif record.author in barred:
            ignored.append(_line(record, "the author and the principals of a version do not endorse it"))
        else:
            counting.append(_line(record))
    return counting, ignored


def _level(judged: _Judged, endorsed: bool) -> Trust:
    approvals, rejections = len(judged.approvals), len(judged.rejections)
    if judged.is_complete:
        return Trust.CONSENSUS_VERIFIED
    if rejections and rejections > judged.n - judged.m:
        return Trust.REJECTED
    if approvals:
        return Trust.PARTIALLY_VERIFIED
    return Trust.ENDORSED if endorsed else Trust.SELF_ATTESTED


def _would_raise(judged: _Judged, endorsed: bool) -> str:
    approvals = len(judged.approvals)
    if judged.is_complete:
        return ""
    if judged.quorum is None:
        return "the graph has no quorum" + ("" if endorsed else "; an endorsement makes it Endorsed")
    if judged.n < judged.m:
        return (
            f"{judged.m} needed, and of the verifiers only {judged.n} neither author nor principal: "
            "it can be PartiallyVerified at most under this quorum"
        )
    needed = judged.m - approvals
    able = len(judged.missing) + len(judged.rejections)
    return f"{needed} more of the {counted(able, 'verifier')} that {'has' if able == 1 else 'have'} not approved"


def _weight(record: EvidenceRecord) -> tuple[int, int, bytes]:
    """Approve before reject, the strongest method first (rule E4)."""
    return (int(record.decision), -int(record.method or 0), record.id)


def _merge(first: list[Line], second: list[Line]) -> list[Line]:
    """One line of each signer."""
    known = {line.signer for line in first}
    return first + [line for line in second if line.signer not in known]


def _line(record: EvidenceRecord, ignored: str = "") -> Line:
    return Line(record.id, record.kind, record.author, record.decision, record.method, record.quorum, ignored)
