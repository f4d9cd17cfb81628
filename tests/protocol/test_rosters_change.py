"""The next roster, as the owner's node plans it: what still counts is listed, what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from p2pmem_protocol import rosters_change
from p2pmem_protocol.bodies import RetractMode
from p2pmem_protocol.errors import BugError, MisuseError, Reason
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.limits import UINT32_MAX
from p2pmem_protocol.names import AssetKey, VersionKey
from p2pmem_protocol.roster import Access, Quorum, Quotas, Role, Roster
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
    default_m,
    needs,
    next_roster,
)
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import AssetView, asset_view, explain

from tests.protocol.world import (
    DAY,
    GRAPH,
    HOUR,
    NETWORK,
    T0,
    E,
    Peer,
    V,
    W,
    ack,
    act_for,
    address,
    endorse,
    propose,
    publish,
    retract,
    revoke,
    roster,
    share,
    signer,
    subject,
    verdict,
    withdraw,
)

MEMBERS = {"alice": W, "bob": W | E, "v1": V, "v2": V, "v3": V}
HEAD = roster(MEMBERS, 2)
Q = HEAD.quorum
ABOUT = subject("alice")


def plan(peer: Peer, *changes: Change, t_ms: int = T0) -> RosterPlan:
    return next_roster(peer.set, changes, t_ms)


def adopt(peer: Peer, *changes: Change, t_ms: int = T0) -> Roster:
    planned = plan(peer, *changes, t_ms=t_ms)
    by = "root" if planned.is_root_act else "owner"
    new = planned.sign(signer(by))
    chain = HeadChain(GRAPH, NETWORK)
    head = peer.set.head
    assert head is not None
    # The head stands here for all that came before it.
    chain._hold(head.signed, 2)
    chain._root_acts.setdefault(head.header.term, [head.id])
    chain.add(new.signed)
    peer.named |= chain.quorums_of(new.id)
    peer.set.set_head(new, t_ms, named=peer.named)
    return new


def level(peer: Peer, about: VersionKey = ABOUT, t_ms: int = T0) -> Trust:
    found = explain(peer.set, about, t_ms)
    assert found is not None
    return found.level


def explain_level(peer: Peer) -> Quorum | None:
    found = explain(peer.set, ABOUT, T0)
    assert found is not None
    assert found.level is Trust.CONSENSUS_VERIFIED
    return found.quorum


def test_k1_removing_a_member_keeps_what_counts_of_it_and_of_every_agent_acting_for_it() -> None:
    helper = act_for("alice", "helper")
    items = [
        share("alice"),
        publish("alice"),
        share("helper", act=helper),
        retract("alice", version=7),
        revoke("alice", "other"),
    ]
    peer = Peer(HEAD, T0, *items, share("bob"))
    new = adopt(peer, RemoveMember(address("alice")))
    assert set(new.body.kept) == {item.id for item in items}
    assert all(peer.has(item) for item in items)
    assert peer.give(share("alice", 2)) is Reason.NOT_LISTED
    assert peer.give(share("helper", 2, act=helper)) is Reason.NOT_LISTED


def test_k1_what_does_not_count_at_that_moment_is_not_listed() -> None:
    cut = share("other", act=act_for("alice", "other"))
    over = share("alice", 3, issued=T0 + 5)
    head = roster(MEMBERS, 2, quotas=Quotas(live_items=1))
    peer = Peer(head, T0, cut, revoke("alice", "other"), over, share("alice", life=DAY))
    assert not peer.has(over)
    planned = plan(peer, RemoveMember(address("alice")), t_ms=T0 + HOUR)
    assert set(planned.body.kept) == {share("alice", life=DAY).id, revoke("alice", "other").id}
    assert plan(peer, RemoveMember(address("alice")), t_ms=T0 + DAY).body.kept == (revoke("alice", "other").id,)


def test_k1_endorsements_and_withdrawals_of_who_loses_the_role_are_kept() -> None:
    said, taken_back = endorse("bob", ABOUT), withdraw("bob", subject("v1x"))
    peer = Peer(HEAD, T0, share("alice"), said)
    assert peer.give(taken_back) is Reason.SUBJECT_NOT_HELD
    new = adopt(peer, SetRoles(address("bob"), Role.READER))
    assert new.body.kept == (said.id,)
    assert level(peer) is Trust.ENDORSED
    assert peer.give(endorse("bob", ABOUT, reason="new")) is Reason.NOT_LISTED


def test_k1_kept_ids_are_carried_forward_until_they_end_or_are_not_needed() -> None:
    peer = Peer(HEAD, T0, share("alice"), publish("alice"))
    adopt(peer, RemoveMember(address("alice")))
    second = adopt(peer, AddMember(address("carol"), W))
    assert set(second.body.kept) == {share("alice").id, publish("alice").id}
    peer.set.sweep(T0 + DAY)
    third = adopt(peer, RemoveMember(address("carol")), t_ms=T0 + DAY)
    assert third.body.kept == (publish("alice").id,)
    assert adopt(peer, AddMember(address("alice"), W), t_ms=T0 + DAY).body.kept == ()
    assert peer.has(publish("alice"))


def test_k1_of_a_leaked_key_nothing_is_kept() -> None:
    peer = Peer(HEAD, T0, share("alice"), share("helper", act=act_for("alice", "helper")), share("bob"))
    new = adopt(peer, RemoveMember(address("alice"), keeps_words=False))
    assert new.body.kept == ()
    assert len(peer.set) == 1


def test_k1_what_a_leaked_agent_key_said_for_a_removed_principal_is_not_kept() -> None:
    head = roster({**MEMBERS, "helper": W}, 2)
    peer = Peer(head, T0, share("alice"), share("helper", act=act_for("alice", "helper")))
    changes = (RemoveMember(address("alice")), RemoveMember(address("helper"), keeps_words=False))
    assert plan(peer, *changes).body.kept == (share("alice").id,)


def test_k2_a_change_of_owner_lists_the_old_owners_retracts_of_others_words() -> None:
    moderation = retract("owner", "alice", mode=RetractMode.KEEP)
    peer = Peer(HEAD, T0, share("alice"), moderation)
    planned = plan(peer, SetOwner(address("owner-2")))
    assert planned.is_root_act
    assert planned.signer == address("root")
    with pytest.raises(MisuseError):
        planned.sign(signer("owner"))
    new = adopt(peer, SetOwner(address("owner-2")))
    assert new.header.term == 2
    assert new.body.kept == (moderation.id,)
    assert not list(asset_view(peer.set, ABOUT.asset, T0).visible())


def consensus() -> Peer:
    return Peer(HEAD, T0, share("alice"), *(verdict(name, ABOUT, Q) for name in ("v1", "v2", "v3")))


def test_k3_a_changed_quorum_keeps_complete_certificates_and_no_incomplete_one() -> None:
    peer = consensus()
    peer.admit(share("bob"))
    peer.admit(verdict("v1", subject("bob"), Q))
    new = adopt(peer, RemoveMember(address("v3")))
    assert new.quorum.serial == Q.serial + 1
    assert {each.subject for each in new.body.certificates} == {ABOUT}
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    assert level(peer, subject("bob")) is Trust.SELF_ATTESTED
    assert peer.set.statistics().in_set == 5, "two shares, and the three verdicts on one"


def test_k3_kept_certificates_are_carried_forward_until_dropped_or_retracted() -> None:
    peer = consensus()
    first = adopt(peer, RemoveMember(address("v3")))
    second = adopt(peer, AddMember(address("v4"), V))
    assert second.body.certificates == first.body.certificates
    assert second.quorum.serial == first.quorum.serial + 1
    third = adopt(peer, AddMember(address("carol"), W))
    assert third.body.certificates == first.body.certificates
    assert third.quorum == second.quorum
    dropped = plan(peer, DropCertificate(ABOUT))
    assert dropped.body.certificates == ()
    peer.admit(retract("alice"))
    assert plan(peer, AddMember(address("dan"), W)).body.certificates == ()


def test_k3_a_certificate_that_rests_on_a_leaked_key_is_not_kept() -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    assert plan(peer, RemoveMember(address("v1"))).body.certificates
    assert not plan(peer, RemoveMember(address("v1"), keeps_words=False)).body.certificates
    more = consensus()
    kept = plan(more, RemoveMember(address("v1"), keeps_words=False)).body.certificates
    assert kept[0].verdicts == tuple(sorted(verdict(name, ABOUT, Q).id for name in ("v2", "v3")))


def test_k3_a_kept_certificate_goes_when_a_key_that_it_rests_on_turns_out_to_have_leaked() -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    assert adopt(peer, SetQuorum(1)).body.certificates
    assert not plan(peer, RemoveMember(address("v1"), keeps_words=False)).body.certificates
    assert plan(peer, RemoveMember(address("v3"), keeps_words=False)).body.certificates


def test_b4_a_version_verified_again_under_the_new_quorum_needs_no_list() -> None:
    peer = consensus()
    new = adopt(peer, SetQuorum(1))
    peer.admit(verdict("v1", ABOUT, new.quorum))
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    # Both are complete and stay; the one of the greatest M comes first and counts: a reader may ask for so much.
    assert new.quorum.m < Q.m
    kept = adopt(peer, SetQuorum(3)).body.certificates
    assert [it.quorum for it in kept[:2]] == [Q, new.quorum]
    assert explain_level(peer) == Q


def test_k3_of_two_complete_certificates_the_one_without_whom_is_mistrusted_is_kept() -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    new = adopt(peer, SetQuorum(1))
    peer.admit(verdict("v3", ABOUT, new.quorum))
    (kept,) = adopt(peer, RemoveMember(address("v1"), keeps_words=False)).body.certificates
    assert kept.quorum == new.quorum


def test_k3_every_complete_certificate_is_kept_so_that_one_stays_when_a_key_turns_out_to_have_leaked() -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    of_one = adopt(peer, SetQuorum(1))
    peer.admit(verdict("v3", ABOUT, of_one.quorum))
    kept = adopt(peer, SetQuorum(2)).body.certificates
    assert [it.quorum for it in kept] == [Q, of_one.quorum]
    assert adopt(peer, AddMember(address("v4"), V)).body.certificates == kept
    (left,) = adopt(peer, RemoveMember(address("v2"), keeps_words=False)).body.certificates
    assert left.quorum == of_one.quorum
    assert explain_level(peer) == of_one.quorum


@pytest.mark.parametrize("leaked", ["v1", "v2", "v3"])
def test_k3_approvals_beyond_m_stand_in_for_one_of_a_key_that_turns_out_to_have_leaked(leaked: str) -> None:
    peer = consensus()
    kept = adopt(peer, SetQuorum(1)).body.certificates
    assert [len(it.verdicts) for it in kept] == [2, 2]
    assert {each for it in kept for each in it.verdicts} == {verdict(f"v{n}", ABOUT, Q).id for n in (1, 2, 3)}
    assert explain_level(peer) == Q
    assert adopt(peer, AddMember(address("v4"), V)).body.certificates == kept
    (left,) = adopt(peer, RemoveMember(address(leaked), keeps_words=False)).body.certificates
    assert verdict(leaked, ABOUT, Q).id not in left.verdicts
    assert explain_level(peer) == Q


def test_k3_so_many_certificates_of_one_version_are_kept_those_of_the_greatest_m() -> None:
    peer = consensus()
    quorums = [Q]
    for number in range(rosters_change.CERTIFICATES_OF_VERSION_MAX):
        head = adopt(peer, SetQuorum(1), AddMember(address(f"w{number}"), V))
        peer.admit(verdict("v3", ABOUT, head.quorum))
        quorums.append(head.quorum)
    kept = adopt(peer, SetQuorum(2)).body.certificates
    assert len(kept) == rosters_change.CERTIFICATES_OF_VERSION_MAX < len(quorums)
    assert kept[0].quorum == Q
    assert len({it.quorum for it in kept}) == len(kept), "one of each, before more of one"
    assert {it.quorum for it in kept} < set(quorums)


@pytest.mark.parametrize("limit", ["CERTIFICATES_KEPT_MAX", "ROSTER_PART_BYTES_MAX"])
def test_k3_the_lesser_certificates_go_first_where_a_list_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    of_one = adopt(peer, SetQuorum(1))
    peer.admit(verdict("v3", ABOUT, of_one.quorum))
    whole = plan(peer, SetQuorum(2)).body
    assert len(whole.certificates) == 2
    monkeypatch.setattr(
        rosters_change, limit, 1 if limit == "CERTIFICATES_KEPT_MAX" else len(whole.parts.certificates) - 1
    )
    (kept,) = plan(peer, SetQuorum(2)).body.certificates
    assert kept.quorum == Q


@pytest.mark.parametrize("room", [1, 2])
def test_k3_of_as_many_as_there_is_room_for_the_greatest_m_is_kept_also_when_it_came_last(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    peer = Peer(roster(MEMBERS, 1), T0, share("alice"))
    for m, signers in ((1, ("v1",)), (2, ("v1", "v2")), (3, ("v1", "v2", "v3"))):
        head = peer.set.head if m == 1 else adopt(peer, SetQuorum(m))
        assert head is not None
        for signer_ in signers:
            peer.admit(verdict(signer_, ABOUT, head.quorum))
    assert [it.quorum.m for it in plan(peer, SetQuorum(1)).body.certificates] == [3, 2, 1]
    monkeypatch.setattr(rosters_change, "CERTIFICATES_KEPT_MAX", room)
    assert [it.quorum.m for it in plan(peer, SetQuorum(1)).body.certificates] == [3, 2][:room]


def test_k3_a_kept_certificate_stays_beside_the_one_that_verifies_again() -> None:
    peer = consensus()
    changed = adopt(peer, SetQuorum(1))
    peer.admit(verdict("v3", ABOUT, changed.quorum))
    assert explain_level(peer) == Q
    new = adopt(peer, AddMember(address("carol"), W))
    assert new.body.certificates == changed.body.certificates
    assert adopt(peer, AddMember(address("dan"), W)).body.certificates == changed.body.certificates


def test_k3_a_kept_certificate_whose_verdicts_are_gone_is_not_carried_beside_a_new_one() -> None:
    first = consensus()
    kept = adopt(first, SetQuorum(1)).body.certificates
    head = roster(MEMBERS, 1, serial=2, certificates=kept)
    half = kept[0].verdicts[0]
    held = [each for each in (verdict(name, ABOUT, Q) for name in ("v1", "v2", "v3")) if each.id == half]
    peer = Peer(head, T0, share("alice"), *held, verdict("v3", ABOUT, head.quorum))
    assert plan(peer, AddMember(address("carol"), W)).body.certificates == ()


def test_b4_a_roster_that_leaves_the_quorum_alone_leaves_its_id_alone() -> None:
    peer = consensus()
    peer.admit(propose("alice", ABOUT, Q))
    new = adopt(peer, AddMember(address("carol"), W, "Carol"), SetLimits(quotas=Quotas(live_items=50), acks_min=2))
    assert new.quorum == Q
    assert new.body.certificates == ()
    assert new.body.limits.acks_min == 2
    assert new.body.by_address[address("carol")].label == "Carol"
    assert peer.has(propose("alice", ABOUT, Q))
    assert level(peer) is Trust.CONSENSUS_VERIFIED


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (AddMember(address("alice"), W),),
        (RemoveMember(address("stranger")),),
        (SetRoles(address("stranger"), W),),
        (SetRoles(address("alice"), Role(0)),),
        (SetQuorum(4),),
        (SetQuorum(-1),),
        (RemoveMember(address("v1")), RemoveMember(address("v2"))),
        (SetLimits(ttl_max_ms=31 * DAY),),
        (SetLimits(acks_min=100_000),),
        (SetLimits(chain=2**64),),
        (SetLimits(quotas=Quotas(content_bytes=2**40)),),
        (AddMember(address("carol"), W, "c" * 65),),
        (SetRoles(address("bob"), W, "b" * 65),),
        (SetLimits(ttl_default_ms=8 * DAY, ttl_max_ms=7 * DAY),),
    ],
)
def test_what_cannot_be_is_refused(changes: tuple[Change, ...]) -> None:
    with pytest.raises(MisuseError):
        plan(Peer(HEAD), *changes)


def test_more_acknowledgements_than_other_members_can_give_are_refused() -> None:
    head = adopt(Peer(HEAD), SetLimits(acks_min=4))
    assert len(head.body.members) == 5
    for changes in (
        (SetLimits(acks_min=5),),
        (RemoveMember(address("bob")),),
        (SetLimits(acks_min=6), AddMember(address("carol"), W)),
    ):
        with pytest.raises(MisuseError, match=r"acknowledgements of . members"):
            plan(Peer(head), *changes)
    assert adopt(Peer(head), RemoveMember(address("bob")), SetLimits(acks_min=3)).body.limits.acks_min == 3
    assert adopt(Peer(head), SetLimits(acks_min=5), AddMember(address("carol"), W)).body.limits.acks_min == 5


def test_a_roster_that_asks_for_too_many_acknowledgements_keeps_nobody_from_joining() -> None:
    body = replace(HEAD.body, limits=replace(HEAD.body.limits, acks_min=9))
    head = replace(HEAD, body=body)
    planned = plan(Peer(head), AddMember(address("carol"), W), SetLimits(ttl_default_ms=HOUR))
    assert planned.body.limits.acks_min == 9


def test_an_m_that_no_writers_thing_could_reach_is_refused() -> None:
    head = roster({"alice": W | V, "bob": V}, 1)
    with pytest.raises(MisuseError, match="an author does not verify itself"):
        plan(Peer(head), SetQuorum(2))
    both = roster({"alice": W | V, "bob": V, "carol": W}, 1)
    planned = plan(Peer(both), SetQuorum(2))
    assert "a thing by alice needs 2 and only 1 may verify it: PartiallyVerified at most" in planned.notes
    assert "a thing by carol needs 2 of 2" in planned.notes


def test_a_quorum_can_be_given_up_and_taken_again() -> None:
    peer = consensus()
    without = adopt(peer, SetQuorum(0))
    assert without.quorum.is_none
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    again = adopt(peer, SetQuorum(2))
    assert again.quorum.serial == Q.serial + 2
    assert again.quorum.verifiers == Q.verifiers


def test_the_owner_cannot_be_removed_before_the_root_names_another() -> None:
    head = roster({**MEMBERS, "owner": W}, 2)
    with pytest.raises(MisuseError, match="is the owner"):
        plan(Peer(head), RemoveMember(address("owner")))
    planned = plan(Peer(head), RemoveMember(address("owner")), SetOwner(address("alice")))
    assert planned.owner == address("alice")


def test_the_serials_of_quorums_are_not_begun_anew() -> None:
    last = roster(MEMBERS, 2, serial=UINT32_MAX)
    with pytest.raises(BugError):
        plan(Peer(last), SetQuorum(1))
    before = roster(MEMBERS, 2, serial=UINT32_MAX - 1)
    assert plan(Peer(before), SetQuorum(1)).body.limits.quorum.serial == UINT32_MAX


def test_the_root_names_an_owner_among_other_changes() -> None:
    planned = plan(Peer(HEAD), SetOwner(address("alice")), AddMember(address("carol"), W, "c" * 64))
    assert planned.is_root_act
    assert planned.signer == address("root")
    assert planned.body.by_address[address("carol")].label == "c" * 64


def test_a_change_of_some_limits_leaves_the_others() -> None:
    contract = address("contract")
    first = adopt(Peer(HEAD), SetLimits(contract=contract, chain=5, access=Access.OPEN, ttl_default_ms=HOUR))
    limits = first.body.limits
    assert (limits.contract, limits.chain, limits.access, limits.ttl_default_ms) == (contract, 5, Access.OPEN, HOUR)
    assert adopt(Peer(first), SetLimits(acks_min=1)).body.limits == replace(limits, acks_min=1)


def test_a_plan_says_what_it_does() -> None:
    peer = consensus()
    assert not any("quorum changes" in note or "still counting" in note for note in plan(peer, Mend()).notes)
    notes = plan(peer, RemoveMember(address("alice")), SetQuorum(1)).notes
    (note,) = [it for it in notes if "quorum changes" in it]
    assert "the quorum changes from 2 of 3 to 1 of 3; open requests to verify are made again;" in note
    assert "still counting, of what members that lose a right have said: 1 thing" in notes
    assert [note for note in notes if note.startswith("a thing by ")] == ["a thing by bob needs 1 of 3"]
    notes = plan(peer, SetQuorum(0)).notes
    assert any("from 2 of 3 to none; open requests to verify wait for the next one;" in note for note in notes)
    assert not any("a thing by" in note for note in notes)
    (note,) = [it for it in plan(Peer(roster(MEMBERS, 0)), SetQuorum(2)).notes if "quorum changes" in it]
    assert "from none to 2 of 3; open requests to verify are made again;" in note
    nameless = plan(Peer(HEAD), AddMember(address("carol"), W)).notes
    assert f"a thing by {address('carol')} needs 2 of 3" in nameless


def test_more_than_the_lists_of_a_roster_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(HEAD, T0, share("alice"), publish("alice"), share("bob"))
    for name in ("v1", "v2"):
        peer.admit(verdict(name, ABOUT, Q))
        peer.admit(verdict(name, subject("bob"), Q))
    for limit in ("KEPT_IDS_MAX", "CERTIFICATES_KEPT_MAX"):
        monkeypatch.setattr(f"p2pmem_protocol.rosters_change.{limit}", 2)
    planned = plan(peer, RemoveMember(address("alice")), SetQuorum(1))
    assert (len(planned.body.kept), len(planned.body.certificates)) == (2, 2)
    for limit, change in (("KEPT_IDS_MAX", RemoveMember(address("alice"))), ("CERTIFICATES_KEPT_MAX", SetQuorum(1))):
        monkeypatch.setattr(f"p2pmem_protocol.rosters_change.{limit}", 1)
        with pytest.raises(MisuseError, match="at most 1 can be"):
            plan(peer, change)
        monkeypatch.setattr(f"p2pmem_protocol.rosters_change.{limit}", 2)


def test_k2_what_the_new_owner_may_say_need_not_be_listed() -> None:
    peer = Peer(HEAD, T0, share("bob"), retract("owner", "bob"), ack("owner"))
    kept = plan(peer, SetOwner(address("alice"))).body.kept
    assert set(kept) == {retract("owner", "bob").id, ack("owner").id}
    assert plan(peer, SetOwner(address("owner"))).body.kept == ()


def test_several_changes_make_one_roster() -> None:
    peer = Peer(HEAD)
    new = adopt(peer, AddMember(address("x"), W), AddMember(address("y"), V), SetLimits(access=Access.OPEN))
    assert new.header.version == HEAD.header.version + 1
    assert new.body.limits.access is Access.OPEN
    assert new.quorum.serial == Q.serial + 1


def test_a_fork_is_mended_by_the_root_above_every_branch() -> None:
    chain = HeadChain(GRAPH, NETWORK)
    one, two = roster(MEMBERS, 2, parent=HEAD, term=2), roster({"alice": W}, 0, parent=HEAD, term=2)
    chain.add_all([HEAD.signed, one.signed, two.signed])
    peer = Peer(HEAD)
    assert chain.head().header == HEAD.signed
    mended = plan(peer, Mend()).sign(signer("root"), term=chain.next_term)
    chain.add(mended.signed)
    assert chain.head().header == mended.signed
    assert not chain.head().forked
    assert mended.body == HEAD.body


def test_without_a_head_nothing_can_follow() -> None:
    with pytest.raises(MisuseError):
        plan(Peer(), Mend())


def test_m_is_proposed_as_a_majority_of_the_others() -> None:
    assert [default_m(count) for count in range(7)] == [0, 1, 1, 2, 2, 3, 3]


def test_what_a_thing_needs_is_told_per_author() -> None:
    m, able = needs(roster({"alice": W | V, "bob": V}, 1).body, address("alice"))
    assert (m, able) == (1, (address("bob"),))


def test_k3_certificates_are_listed_in_the_order_of_their_subjects() -> None:
    peer = Peer(HEAD)
    for number in range(1, 8):
        peer.admit(share("alice", number, name=f"asset-{number * 5 % 7}", life=DAY))
        about = subject("alice", number, name=f"asset-{number * 5 % 7}")
        for name in ("v1", "v2"):
            peer.admit(verdict(name, about, Q))
    certificates = plan(peer, SetQuorum(1)).body.certificates
    assert len(certificates) == 7
    assert [each.subject for each in certificates] == sorted(each.subject for each in certificates)


def test_k3_a_certificate_by_who_turns_out_to_have_an_interest_is_not_carried_forward() -> None:
    head = roster({**MEMBERS, "v1": V | W}, 2)
    peer = Peer(head, T0, share("alice"), *(verdict(name, ABOUT, head.quorum) for name in ("v1", "v2")))
    assert adopt(peer, SetQuorum(1)).body.certificates
    assert plan(peer, AddMember(address("carol"), W)).body.certificates
    peer.admit(share("alice", act=act_for("v1", "alice")))
    assert plan(peer, AddMember(address("carol"), W)).body.certificates == ()


def test_each_asset_is_looked_at_once_however_many_of_its_versions_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Peer(HEAD)
    for version in range(1, 6):
        for item in (share("alice", version), *(verdict(who, subject("alice", version), Q) for who in ("v1", "v2"))):
            assert peer.give(item) is None
    looked_at: list[AssetKey] = []

    def counted(graph_set: GraphSet, key: AssetKey, t_ms: int) -> AssetView:
        looked_at.append(key)
        return asset_view(graph_set, key, t_ms)

    monkeypatch.setattr(rosters_change, "asset_view", counted)
    assert len(plan(peer, SetQuorum(1)).body.certificates) == 5
    assert looked_at == [ABOUT.asset]


def test_what_has_ended_is_not_kept_also_before_it_is_swept() -> None:
    peer = consensus()
    assert plan(peer, SetQuorum(1)).body.certificates
    assert not plan(peer, SetQuorum(1), t_ms=T0 + DAY).body.certificates
