"""Evidence, merging and trust: rules E1 to E4, M1, T1, T2 and K3, each in a test that bears its name."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from p2pmem_protocol.bodies import Sealed
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import MisuseError, Reason
from p2pmem_protocol.evidence import Decision, Evidence, Method
from p2pmem_protocol.names import VersionKey
from p2pmem_protocol.records import FOREVER, State
from p2pmem_protocol.rights import kept_under
from p2pmem_protocol.roster import Quorum, Roster
from p2pmem_protocol.rosters_change import SetLimits, next_roster
from p2pmem_protocol.trust import Floor, Trust, TrustReport
from p2pmem_protocol.view import asset_view, explain

from tests.protocol.world import (
    DAY,
    GRAPH,
    HOUR,
    MINUTE,
    T0,
    E,
    Peer,
    V,
    W,
    act_for,
    address,
    certificate,
    endorse,
    publish,
    reject,
    retract,
    roster,
    share,
    subject,
    verdict,
    withdraw,
)

JUDGES = {"v1": V | E, "v2": V, "v3": V, "v4": V}
MEMBERS = {"alice": W, "bob": E, "carol": E, **JUDGES}
HEAD = roster(MEMBERS, 2)
Q = HEAD.quorum
ABOUT = subject("alice")


def report(peer: Peer, about: VersionKey = ABOUT, t_ms: int = T0) -> TrustReport:
    found = explain(peer.set, about, t_ms)
    assert found is not None
    return found


def level(peer: Peer, about: VersionKey = ABOUT, t_ms: int = T0) -> Trust:
    return report(peer, about, t_ms).level


def sharing(*items: Item, head: Roster = HEAD) -> Peer:
    return Peer(head, T0, share("alice"), *items, named=(Q.id,))


# E1


def test_e1_evidence_is_in_the_set_exactly_while_its_subject_is() -> None:
    peer = sharing(endorse("bob", ABOUT))
    assert peer.has(endorse("bob", ABOUT))
    peer.set.sweep(T0 + DAY)
    assert len(peer.set) == 0
    assert list(peer.set.known()) == []


def test_e1_evidence_whose_subject_is_not_held_is_dropped() -> None:
    peer = Peer(HEAD)
    assert peer.give(endorse("bob", ABOUT)) is Reason.SUBJECT_NOT_HELD
    assert peer.give(share("alice")) is None
    assert peer.give(endorse("bob", subject("alice", root="b"))) is Reason.SUBJECT_NOT_HELD
    assert peer.give(endorse("bob", subject("alice", version=2))) is Reason.SUBJECT_NOT_HELD
    assert peer.give(endorse("bob", ABOUT)) is None


def test_e1_evidence_has_no_end_of_its_own_so_a_renewed_share_keeps_it() -> None:
    peer = sharing(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q), share("alice", life=3 * DAY))
    peer.set.sweep(T0 + DAY)
    assert level(peer, t_ms=T0 + 2 * DAY) is Trust.CONSENSUS_VERIFIED


def test_e1_evidence_gathered_while_shared_counts_once_published() -> None:
    peer = sharing(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q), publish("alice"))
    peer.set.sweep(T0 + DAY)
    assert level(peer, t_ms=T0 + 300 * DAY) is Trust.CONSENSUS_VERIFIED


def test_e1_in_a_round_evidence_stands_at_the_latest_end_of_its_subject() -> None:
    said = endorse("bob", ABOUT)
    peer = sharing(said, share("alice", life=3 * DAY))
    assert (T0 + 3 * DAY, said.id) in peer.set.reconciled(T0)
    peer.admit(publish("alice"))
    assert (FOREVER, said.id) in peer.set.reconciled(T0)


def test_e1_evidence_is_charged_to_nobody() -> None:
    from p2pmem_protocol.roster import Quotas

    head = roster(MEMBERS, 2, quotas=Quotas(live_items=1, durable_items=0, live_bytes=600))
    peer = sharing(endorse("bob", ABOUT), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q), head=head)
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_e1_anybody_may_hand_evidence_on() -> None:
    said = endorse("bob", ABOUT)
    copied = Evidence.decode(said.encode())
    peer = sharing(copied)
    assert peer.has(said)


# E2


def test_e2_a_share_carries_no_evidence() -> None:
    body = share("alice").body
    assert isinstance(body, Sealed)
    assert set(body.to_value()) == {0, 1}


# E3


def test_e3_a_withdrawal_ends_the_endorsement_for_good() -> None:
    for order in itertools.permutations(
        [endorse("bob", ABOUT), withdraw("bob", ABOUT), endorse("bob", ABOUT, reason="again")]
    ):
        peer = sharing()
        for item in order:
            peer.give(item)
        assert level(peer) is Trust.SELF_ATTESTED


def test_e3_a_withdrawal_ends_no_endorsement_of_another_signer_or_version() -> None:
    next_version = subject("alice", 2)
    peer = sharing(share("alice", 2, life=2 * DAY), endorse("bob", ABOUT), withdraw("bob", ABOUT))
    peer.admit(endorse("carol", ABOUT))
    peer.admit(endorse("bob", next_version))
    assert level(peer) is Trust.ENDORSED
    assert level(peer, next_version) is Trust.ENDORSED


def test_e3_of_one_signer_and_subject_the_lowest_id_of_each_meaning_is_in_the_set() -> None:
    said = [endorse("bob", ABOUT, reason=str(number)) for number in range(4)]
    taken_back = [withdraw("bob", ABOUT, reason=str(number)) for number in range(4)]
    for order in ((*said, *taken_back), (*taken_back[::-1], *said[::-1])):
        peer = sharing()
        for item in order:
            assert peer.give(item) in (None, Reason.SUPERSEDED)
        held = {record.id for record in peer.set.records()} - {share("alice").id}
        assert held == {min(item.id for item in said), min(item.id for item in taken_back)}
        assert len(list(peer.set.known())) == 3


# E4


def test_e4_approve_wins_over_reject_by_the_same_verifier() -> None:
    for order in itertools.permutations([verdict("v1", ABOUT, Q), reject("v1", ABOUT, Q)]):
        peer = sharing(*order)
        assert [line.signer for line in report(peer).approvals] == [address("v1")]
        assert report(peer).rejections == ()


def test_e4_the_strongest_method_is_shown() -> None:
    methods = [Method.AUTO, Method.SHACL, Method.EXEC, Method.MANUAL]
    for first in range(1, 5):
        peer = sharing(*(verdict("v1", ABOUT, Q, method=method) for method in methods[:first]))
        assert report(peer).methods == {methods[first - 1]: 1}


def test_e4_the_lowest_id_of_each_meaning_is_in_the_set() -> None:
    said = [
        verdict("v1", ABOUT, Q, decision, method, reason)
        for decision in Decision
        for method in Method
        for reason in ("", "a", "b")
    ]
    lowest = {
        min(item.id for item in group)
        for _, group in itertools.groupby(said, key=lambda item: (item.statement.decision, item.statement.method))
    }
    for order in (said, said[::-1]):
        peer = sharing()
        for item in order:
            assert peer.give(item) in (None, Reason.SUPERSEDED)
        assert {record.id for record in peer.set.records()} - {share("alice").id} == lowest


def test_e4_a_deadline_never_limits_a_verdict() -> None:
    from tests.protocol.world import propose

    peer = sharing(share("alice", life=5 * DAY), propose("alice", ABOUT, Q, life=HOUR))
    peer.set.sweep(T0 + 2 * HOUR)
    assert peer.give(verdict("v1", ABOUT, Q), T0 + 2 * HOUR) is None


def test_e4_a_verdict_that_a_kept_certificate_names_is_never_displaced() -> None:
    said = sorted((verdict("v1", ABOUT, Q, reason=str(number)) for number in range(3)), key=lambda item: item.id)
    other = verdict("v2", ABOUT, Q)
    kept = certificate(ABOUT, Q, said[1], other)
    changed = roster(MEMBERS, 3, parent=HEAD, kept=(said[0].id, said[2].id), certificates=(kept,))
    for order in itertools.permutations(said):
        peer = sharing(other, head=changed)
        for item in order:
            assert peer.give(item) in (None, Reason.SUPERSEDED)
        assert level(peer) is Trust.CONSENSUS_VERIFIED
        assert peer.set.state_of(said[1].id) is State.IN
        assert not peer.has(said[0])


# M1


def test_m1_renewals_stay_in_the_set_and_the_latest_end_is_shown() -> None:
    renewals = [share("alice", issued=T0 + number, life=DAY + number * HOUR) for number in range(3)]
    for order in itertools.permutations(renewals):
        peer = Peer(HEAD, T0, *order)
        assert all(peer.has(item) for item in renewals)
        (version,) = asset_view(peer.set, ABOUT.asset, T0).versions
        assert version.shared_until_ms == T0 + DAY + 2 * HOUR + 2


def test_m1_rights_are_tested_before_the_lowest_id_is_taken() -> None:
    said = sorted((verdict("v1", ABOUT, Q, reason=str(number)) for number in range(2)), key=lambda item: item.id)
    changed = roster(
        {**MEMBERS, "v1": W}, 2, parent=HEAD, certificates=(certificate(ABOUT, Q, said[1], verdict("v2", ABOUT, Q)),)
    )
    peer = sharing(*said[::-1], verdict("v2", ABOUT, Q))
    assert not peer.has(said[1])
    peer.set.set_head(changed, T0, named=(Q.id,))
    assert not peer.has(said[0])
    assert peer.give(said[1]) is None
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_m1_every_key_includes_the_signer() -> None:
    peer = sharing(endorse("bob", ABOUT), endorse("carol", ABOUT), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    assert len(peer.set) == 5


# T1


def test_t1_levels_rise_with_evidence() -> None:
    peer = sharing()
    assert level(peer) is Trust.SELF_ATTESTED
    peer.admit(endorse("bob", ABOUT))
    assert level(peer) is Trust.ENDORSED
    peer.admit(verdict("v1", ABOUT, Q))
    assert level(peer) is Trust.PARTIALLY_VERIFIED
    peer.admit(verdict("v2", ABOUT, Q, method=Method.MANUAL))
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    assert report(peer).shown == "ConsensusVerified, 2 of 4, 2 needed, 1 manual, 1 auto"


def test_t1_the_author_never_counts_and_n_is_without_it() -> None:
    head = roster({**MEMBERS, "alice": W | V | E}, 2)
    peer = sharing(verdict("alice", ABOUT, head.quorum), endorse("alice", ABOUT), head=head)
    assert level(peer) is Trust.SELF_ATTESTED
    assert report(peer).n == 4
    assert {line.ignored for line in report(peer).ignored} == {
        "the author and the principals of a version do not verify it",
        "the author and the principals of a version do not endorse it",
    }
    peer.admit(verdict("v1", ABOUT, head.quorum))
    assert level(peer) is Trust.PARTIALLY_VERIFIED


def test_t1_every_principal_of_the_version_is_barred() -> None:
    head = roster({**MEMBERS, "v1": V | W | E}, 2)
    about = subject("helper")
    peer = Peer(head, T0, share("helper", act=act_for("alice", "helper")))
    peer.admit(share("helper", act=act_for("v1", "helper"), issued=T0 + 1))
    peer.admit(verdict("v1", about, head.quorum))
    peer.admit(endorse("v1", about))
    assert level(peer, about) is Trust.SELF_ATTESTED
    assert report(peer, about).n == 3
    assert set(report(peer, about).barred) == {address("helper"), address("alice"), address("v1")}


def test_t1_rejected_needs_a_rejection_and_more_than_n_less_m() -> None:
    peer = sharing(endorse("bob", ABOUT), reject("v1", ABOUT, Q), reject("v2", ABOUT, Q))
    assert level(peer) is Trust.ENDORSED
    peer.admit(reject("v3", ABOUT, Q))
    assert level(peer) is Trust.REJECTED
    assert asset_view(peer.set, ABOUT.asset, T0).current(Floor()) == ()


def test_t1_consensus_is_tested_before_rejected() -> None:
    head = roster({"alice": W, "v1": V, "v2": V}, 1)
    peer = sharing(reject("v1", ABOUT, head.quorum), head=head)
    assert level(peer) is Trust.SELF_ATTESTED
    peer.admit(reject("v2", ABOUT, head.quorum))
    assert level(peer) is Trust.REJECTED
    peer.admit(verdict("v2", ABOUT, head.quorum))
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_t1_with_n_below_m_it_is_partially_verified_at_most_and_shown_so() -> None:
    head = roster({"alice": W | V, "v1": V}, 2)
    peer = sharing(head=head)
    assert report(peer).n < report(peer).m
    peer.admit(verdict("v1", ABOUT, head.quorum))
    assert level(peer) is Trust.PARTIALLY_VERIFIED
    assert "PartiallyVerified at most" in report(peer).would_raise
    rejected = sharing(reject("v1", ABOUT, head.quorum), head=head)
    assert level(rejected) is Trust.REJECTED


@pytest.mark.parametrize(("m", "verifiers"), [(0, ("v1",)), (2, ("v1",)), (1, ()), (-1, ("v1",))])
def test_t1_a_quorum_has_m_from_one_to_its_verifiers_or_there_is_none(m: int, verifiers: tuple[str, ...]) -> None:
    with pytest.raises(MisuseError):
        Quorum(GRAPH, 1, m, tuple(sorted(address(name) for name in verifiers)))


def test_t1_without_a_quorum_nothing_is_verified() -> None:
    head = roster({"alice": W, "bob": E}, 0)
    peer = sharing(endorse("bob", ABOUT), head=head)
    assert level(peer) is Trust.ENDORSED
    assert report(peer).quorum is None
    assert (report(peer).m, report(peer).n) == (0, 0)


# T2


def test_t2_a_verdict_names_the_heads_quorum_and_its_signer_is_in_it() -> None:
    other = Quorum(GRAPH, 7, 1, (address("v1"),))
    peer = sharing()
    assert peer.give(verdict("v1", ABOUT, other)) is Reason.WRONG_QUORUM
    assert peer.give(verdict("bob", ABOUT, Q)) is Reason.NOT_LISTED
    assert peer.give(verdict("v1", ABOUT, Q)) is None


def test_t2_a_listed_verdict_is_admitted_and_counts_for_nothing_but_its_certificate() -> None:
    said = verdict("v1", ABOUT, Q)
    changed = roster(MEMBERS, 1, parent=HEAD, kept=(said.id,))
    peer = sharing(said, head=changed)
    assert level(peer) is Trust.SELF_ATTESTED
    assert [line.ignored for line in report(peer).ignored] == ["given under another quorum"]


# K3


def kept_peer(*listed: Evidence, head_m: int = 3) -> Peer:
    kept = certificate(ABOUT, Q, verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    return sharing(*listed, head=roster(MEMBERS, head_m, parent=HEAD, certificates=(kept,)))


def test_k3_a_kept_certificate_stays_consensus_verified_and_shows_its_own_m_of_n() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    assert report(peer).m == 2
    assert report(peer).certificate is not None


def test_k3_a_kept_certificate_counts_only_if_all_its_verdicts_are_in_the_set() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q))
    assert level(peer) is Trust.SELF_ATTESTED
    peer.admit(verdict("v2", ABOUT, Q))
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_k3_a_kept_certificate_counts_only_under_a_quorum_that_a_header_names() -> None:
    mine = Quorum(GRAPH, 1_000, 1, (address("dan"),))
    said = verdict("dan", ABOUT, mine)
    head = roster(MEMBERS, 3, parent=HEAD, certificates=(certificate(ABOUT, mine, said),))
    peer = sharing(said, head=head)
    assert peer.has(said)
    assert level(peer) is Trust.SELF_ATTESTED
    assert report(peer).certificate is None
    assert next_roster(peer.set, [SetLimits(acks_min=1)], T0).body.certificates == ()


def test_k3_a_certificate_counts_once_the_header_that_names_its_quorum_is_held() -> None:
    said = (verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    head = roster(MEMBERS, 3, parent=HEAD, certificates=(certificate(ABOUT, Q, *said),))
    peer = Peer(head, T0, share("alice"), *said)
    assert level(peer) is Trust.SELF_ATTESTED
    assert peer.set.set_head(head, T0, named=(Q.id,)).assets == {ABOUT.asset}
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_k3_a_certificate_under_the_quorum_of_the_head_itself_counts() -> None:
    said = (verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    head = roster(MEMBERS, 2, certificates=(certificate(ABOUT, Q, *said),))
    assert head.quorum.id == Q.id
    assert kept_under(head, ()) == {ABOUT: head.body.certificates}


def test_k3_rejections_under_the_new_quorum_are_shown_beside_it() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q), head_m=1)
    now = peer.set.head
    assert now is not None
    for name in ("v1", "v2", "v3", "v4"):
        peer.admit(reject(name, ABOUT, now.quorum))
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    assert [line.signer for line in report(peer).rejections] == sorted(map(address, JUDGES))


def test_k3_a_retract_ends_it() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    peer.admit(retract("alice"))
    assert asset_view(peer.set, ABOUT.asset, T0).current(Floor()) == ()


def test_k3_the_owner_drops_it_with_the_next_roster() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    peer.set.set_head(roster(MEMBERS, 3, parent=peer.set.head), T0)
    assert level(peer) is Trust.SELF_ATTESTED


@pytest.mark.parametrize(
    "listed",
    [
        (verdict("v1", ABOUT, Q), reject("v2", ABOUT, Q)),
        (verdict("v1", ABOUT, Q), verdict("v1", ABOUT, Q, method=Method.MANUAL)),
        (verdict("v1", ABOUT, Q), verdict("bob", ABOUT, Q)),
        (verdict("v1", ABOUT, Q), verdict("alice", ABOUT, Q)),
        (verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Quorum(GRAPH, 9, 1, (address("v2"),)))),
    ],
)
def test_k3_a_list_keeps_what_has_its_signatures_and_never_makes_one(listed: tuple[Evidence, ...]) -> None:
    head = roster(MEMBERS, 3, parent=HEAD, certificates=(certificate(ABOUT, Q, *listed),))
    assert level(sharing(*listed, head=head)) < Trust.CONSENSUS_VERIFIED


def test_k3_a_kept_certificate_of_one_root_says_nothing_of_another() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    other = subject("alice", root="b")
    peer.admit(share("alice", root="b"))
    assert level(peer, other) is Trust.SELF_ATTESTED


def test_k3_a_kept_certificate_of_one_seal_says_nothing_of_another_of_its_root() -> None:
    peer = kept_peer(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    other = subject("alice", subgraph="elsewhere")
    peer.admit(share("alice", subgraph="elsewhere"))
    assert other.root == ABOUT.root
    assert (level(peer), level(peer, other)) == (Trust.CONSENSUS_VERIFIED, Trust.SELF_ATTESTED)


def test_e1_evidence_names_a_seal_and_goes_with_that_seal_alone() -> None:
    peer, other = sharing(), subject("alice", subgraph="elsewhere")
    said, endorsed = verdict("v1", other, Q), endorse("bob", other)
    mixed = replace(other, root=subject("alice", root="b").root)
    for item in (said, endorsed, endorse("bob", mixed)):
        assert peer.give(item) is Reason.SUBJECT_NOT_HELD
    peer.admit(share("alice", subgraph="elsewhere", life=HOUR))
    assert peer.give(endorse("bob", mixed)) is Reason.SUBJECT_NOT_HELD
    for item in (said, endorsed, verdict("v1", ABOUT, Q)):
        assert peer.give(item) is None
    places = {item_id: place for place, item_id in peer.set.reconciled(T0)}
    assert (places[said.id], places[endorsed.id]) == (T0 + HOUR, T0 + HOUR)
    assert places[verdict("v1", ABOUT, Q).id] == T0 + DAY
    peer.set.sweep(T0 + HOUR)
    assert not peer.has(said)
    assert peer.has(verdict("v1", ABOUT, Q))


def test_floors_ask_for_a_level_and_for_a_least_m() -> None:
    peer = sharing(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    view = asset_view(peer.set, ABOUT.asset, T0)
    assert view.current(Floor(Trust.CONSENSUS_VERIFIED, 2))
    assert not view.current(Floor(Trust.CONSENSUS_VERIFIED, 3))
    with pytest.raises(MisuseError):
        Floor(Trust.REJECTED)


def test_what_would_raise_the_level_is_said() -> None:
    peer = sharing()
    assert report(peer).would_raise == "2 more of the 4 verifiers that have not approved"
    peer.admit(reject("v1", ABOUT, Q))
    peer.admit(verdict("v2", ABOUT, Q))
    assert report(peer).would_raise == "1 more of the 3 verifiers that have not approved"
    assert report(peer).missing == tuple(sorted((address("v3"), address("v4"))))
    peer.admit(verdict("v3", ABOUT, Q))
    assert report(peer).would_raise == ""


def test_levels_are_written_as_users_write_them() -> None:
    assert [level.word for level in Trust] == [
        "Rejected",
        "SelfAttested",
        "Endorsed",
        "PartiallyVerified",
        "ConsensusVerified",
    ]
    assert Trust.parse("PartiallyVerified") is Trust.PARTIALLY_VERIFIED
    with pytest.raises(MisuseError):
        Trust.parse("Verified")


def test_evidence_comes_back_with_its_subject() -> None:
    peer = sharing(verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    without = roster({name: roles for name, roles in MEMBERS.items() if name != "alice"}, 2, parent=HEAD)
    peer.set.set_head(without, T0)
    assert len(peer.set) == 0
    assert peer.set.state_of(verdict("v1", ABOUT, Q).id) is State.LONE
    peer.set.set_head(HEAD, T0 + MINUTE)
    assert level(peer) is Trust.CONSENSUS_VERIFIED
