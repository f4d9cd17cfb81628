"""What stands behind a level is said in full: each line, the quorum, who is barred and missing, what would raise it."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Decision, Endorse, Evidence, Method
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.records import EvidenceRecord, record_of
from p2pmem_protocol.roster import KeptCertificate, Quorum
from p2pmem_protocol.trust import Floor, Trust, TrustReport, assess

from tests.protocol import world as w

ABOUT = w.subject("alice")
OURS = w.quorum(2, ("v1", "v2", "v3"))
OTHER = w.quorum(1, ("v1",), serial=2)


def judge(
    *evidence: Evidence,
    quorum: Quorum | None = OURS,
    principals: Collection[str] = ("alice",),
    certificates: tuple[KeptCertificate, ...] = (),
) -> TrustReport:
    records = [record for record in (record_of(it, 0) for it in evidence) if isinstance(record, EvidenceRecord)]
    assert len(records) == len(evidence)
    named = [w.address(name) for name in principals]
    return assess(ABOUT, records, principals=named, quorum=quorum, certificates=certificates)


def test_a_line_says_who_said_what_how_and_under_which_quorum() -> None:
    approval = w.verdict("v1", ABOUT, OURS, method=Method.SHACL)
    rejection = w.reject("v2", ABOUT, OURS)
    endorsement = w.endorse("bob", ABOUT)
    report = judge(approval, rejection, endorsement)
    assert report.subject == ABOUT
    (line,) = report.approvals
    assert (line.id, line.kind, line.signer, line.decision) == (
        approval.id,
        Kind.VERDICT,
        w.address("v1"),
        Decision.APPROVE,
    )
    assert (line.method, line.quorum, line.ignored, line.counts) == (Method.SHACL, OURS.id, "", True)
    (line,) = report.rejections
    assert (line.id, line.decision, line.method) == (rejection.id, Decision.REJECT, Method.MANUAL)
    (line,) = report.endorsements
    assert (line.id, line.kind, line.decision, line.method) == (endorsement.id, Kind.ENDORSE, Endorse.ENDORSE, None)
    assert line.quorum == ZERO_HASH
    assert report.quorum == OURS
    assert report.missing == (w.address("v3"),)


def test_what_does_not_count_is_shown_with_the_reason() -> None:
    report = judge(
        w.verdict("alice", ABOUT, w.quorum(1, ("alice", "v1"))),
        w.verdict("v1", ABOUT, OTHER),
        w.verdict("bob", ABOUT, OURS),
        w.verdict("v2", ABOUT, OURS),
        w.reject("v2", ABOUT, OURS),
        w.endorse("carol", ABOUT),
        w.withdraw("carol", ABOUT),
        w.endorse("alice", ABOUT),
    )
    said = sorted((line.signer, line.ignored) for line in report.ignored)
    assert said == sorted(
        [
            (w.address("alice"), "given under another quorum"),
            (w.address("v1"), "given under another quorum"),
            (w.address("bob"), "its signer is not a verifier of the quorum"),
            (w.address("v2"), "the same signer says it with more weight elsewhere"),
            (w.address("carol"), "withdrawn by its signer"),
            (w.address("carol"), "a withdrawal"),
            (w.address("alice"), "the author and the principals of a version do not endorse it"),
        ]
    )
    assert not any(line.counts for line in report.ignored)
    assert report.level is Trust.PARTIALLY_VERIFIED


@pytest.mark.parametrize(
    "said",
    [w.verdict("v1", ABOUT, OURS), w.reject("v1", ABOUT, OURS), w.endorse("bob", ABOUT), w.verdict("v1", ABOUT, OTHER)],
)
def test_whatever_anybody_has_said_is_evidence_counting_or_not(said: Evidence) -> None:
    assert judge(said).has_evidence
    assert not judge().has_evidence


def test_the_author_and_the_principals_are_barred_and_said_to_be() -> None:
    report = judge(w.verdict("v1", ABOUT, OURS), w.verdict("v2", ABOUT, OURS), principals=("v1",))
    assert report.barred == tuple(sorted((w.address("alice"), w.address("v1"))))
    assert (report.level, report.m, report.n) == (Trust.PARTIALLY_VERIFIED, 2, 2)
    assert [line.ignored for line in report.ignored] == ["the author and the principals of a version do not verify it"]
    assert report.missing == (w.address("v3"),)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (judge(quorum=None), "the graph has no quorum; an endorsement makes it Endorsed"),
        (judge(w.endorse("bob", ABOUT), quorum=None), "the graph has no quorum"),
        (judge(), "2 more of the 3 verifiers that have not approved"),
        (judge(w.reject("v1", ABOUT, OURS)), "2 more of the 3 verifiers that have not approved"),
        (judge(w.verdict("v1", ABOUT, OURS)), "1 more of the 2 verifiers that have not approved"),
        (judge(principals=("v1",)), "2 more of the 2 verifiers that have not approved"),
        (
            judge(principals=("v1", "v2")),
            "2 needed, and of the verifiers only 1 neither author nor principal: "
            "it can be PartiallyVerified at most under this quorum",
        ),
        (judge(w.verdict("v1", ABOUT, OURS), w.verdict("v2", ABOUT, OURS)), ""),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_would_raise_the_level_is_said(report: TrustReport, words: str) -> None:
    assert report.would_raise == words


def test_a_report_is_the_same_in_whatever_order_the_evidence_comes() -> None:
    evidence = [w.endorse(name, ABOUT) for name in ("bob", "carol", "dan", "alice", "v1")]
    evidence += [w.verdict(name, ABOUT, under) for name in ("v1", "v2", "bob", "carol") for under in (OURS, OTHER)]
    evidence += [w.withdraw("erin", ABOUT), w.endorse("erin", ABOUT), w.reject("v3", ABOUT, OURS)]
    report = judge(*evidence)
    assert [line.signer for line in report.endorsements] == sorted(line.signer for line in report.endorsements)
    assert [(line.signer, line.id) for line in report.ignored] == sorted(
        (line.signer, line.id) for line in report.ignored
    )
    for number in range(5):
        assert judge(*random.Random(number).sample(evidence, len(evidence))) == report


def test_a_report_is_shown_in_one_line() -> None:
    said = [w.verdict(f"v{n}", ABOUT, OURS, method=method) for n, method in ((1, Method.AUTO), (2, Method.MANUAL))]
    assert judge(*said).shown == "ConsensusVerified, 2 of 3, 2 needed, 1 manual, 1 auto"
    assert judge(w.reject("v1", ABOUT, OURS)).shown == "SelfAttested, 0 of 3, 2 needed, 1 rejected"
    assert judge(quorum=None).shown == "SelfAttested"


def test_a_kept_certificate_is_what_the_level_stands_on() -> None:
    one, two, three = (w.verdict(name, ABOUT, OURS) for name in ("v1", "v2", "v3"))
    kept = w.certificate(ABOUT, OURS, one, two)
    report = judge(one, two, three, w.reject("v1", ABOUT, OTHER), quorum=OTHER, certificates=(kept,))
    assert (report.level, report.certificate, report.quorum) == (Trust.CONSENSUS_VERIFIED, kept, OURS)
    assert (report.m, report.n, report.would_raise) == (2, 3, "")
    assert {line.id for line in report.approvals} == {one.id, two.id}
    # What verifiers say under the new quorum is shown beside, and changes nothing (rule K3).
    assert [(line.signer, line.quorum) for line in report.rejections] == [(w.address("v1"), OTHER.id)]


def test_of_what_is_complete_the_greatest_m_counts() -> None:
    one, two = (w.verdict(name, ABOUT, OURS) for name in ("v1", "v2"))
    small = w.verdict("v1", ABOUT, OTHER)
    of_small, of_ours = w.certificate(ABOUT, OTHER, small), w.certificate(ABOUT, OURS, one, two)
    assert (OTHER.m, OURS.m) == (1, 2)
    report = judge(one, two, small, certificates=(of_small,))
    assert (report.level, report.certificate, report.quorum, report.m) == (Trust.CONSENSUS_VERIFIED, None, OURS, 2)
    for certificates in ((of_small, of_ours), (of_ours, of_small)):
        report = judge(one, two, small, quorum=OTHER, certificates=certificates)
        assert (report.level, report.certificate, report.m) == (Trust.CONSENSUS_VERIFIED, of_ours, 2)
        assert report.reaches(Floor(Trust.CONSENSUS_VERIFIED, 2))


def test_of_what_is_complete_with_one_m_the_heads_quorum_counts_and_then_the_lowest_id() -> None:
    quorums = [w.quorum(2, ("v1", "v2", "v3"), serial) for serial in range(1, 5)]
    said = [[w.verdict(name, ABOUT, it) for name in ("v1", "v2")] for it in quorums]
    certificates = [w.certificate(ABOUT, it, *verdicts) for it, verdicts in zip(quorums, said, strict=True)]
    lowest = min(quorums, key=lambda it: it.id)
    for order in (certificates, certificates[::-1]):
        all_said = [verdict for verdicts in said for verdict in verdicts]
        without = judge(*all_said, quorum=None, certificates=order)
        assert (without.quorum, without.m) == (lowest, 2)
        for head in quorums:
            report = judge(*all_said, quorum=head, certificates=order)
            assert (report.quorum, report.certificate) == (head, None)


@pytest.mark.parametrize("broken", ["missing", "a rejection", "of another version", "of one who is barred"])
def test_a_kept_certificate_that_is_not_complete_keeps_nothing(broken: str) -> None:
    one, two = w.verdict("v1", ABOUT, OURS), w.verdict("v2", ABOUT, OURS)
    given, listed, principals = [one, two], [one, two], ["alice"]
    if broken == "missing":
        given = [one]
    elif broken == "a rejection":
        listed = given = [one, w.reject("v2", ABOUT, OURS)]
    elif broken == "of one who is barred":
        principals = ["v2"]
    about = w.subject("alice", 2) if broken == "of another version" else ABOUT
    kept = w.certificate(about, OURS, *listed)
    report = judge(*given, quorum=OTHER, principals=principals, certificates=(kept,))
    assert report.certificate is None
    assert report.level is Trust.SELF_ATTESTED


def test_a_floor_asks_for_no_m_unless_it_is_told_to() -> None:
    assert Floor() == Floor(Trust.SELF_ATTESTED, 0)
    assert [int(level) for level in Trust] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("level", Trust)
def test_a_level_is_read_as_it_is_written(level: Trust) -> None:
    for word in (level.word, level.name, level.name.lower()):
        assert Trust.parse(word) is level
    with pytest.raises(MisuseError, match="for are SelfAttested, Endorsed, PartiallyVerified, ConsensusVerified"):
        Trust.parse("verified")


def test_a_floor_is_a_level_that_can_be_reached_and_a_least_m() -> None:
    for bad in ({"level": Trust.REJECTED}, {"least_m": -1}):
        with pytest.raises(MisuseError):
            Floor(**bad)
    report = judge(w.verdict("v1", ABOUT, OURS), w.verdict("v2", ABOUT, OURS))
    assert report.reaches(Floor())
    assert report.reaches(Floor(Trust.CONSENSUS_VERIFIED, 2))
    assert not report.reaches(Floor(Trust.CONSENSUS_VERIFIED, 3))
    assert not judge().reaches(Floor(Trust.ENDORSED))


def test_where_the_author_is_the_only_verifier_it_is_said_that_nobody_else_can_verify() -> None:
    own = w.quorum(1, ("alice",))
    assert judge(quorum=own).shown == "SelfAttested, nobody else can verify it, 1 needed"
