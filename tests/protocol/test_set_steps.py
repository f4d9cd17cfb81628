"""The steps of the set, one change at a time: what comes back, what is pushed out, what leaves no trace."""

from __future__ import annotations

import pytest
from p2pmem_protocol.bodies import RetractMode, Revoke
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import Item, decode_item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.holdings import Changes, Departure, Statistics
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CUT_KEPT_ASIDE_MS
from p2pmem_protocol.records import EvidenceRecord, SealedRecord, State
from p2pmem_protocol.roster import Quotas, Role

from tests.protocol.set_world import HEAD, HELPER, MEMBERS, WITHOUT_ALICE, Q, ids, limited, removed
from tests.protocol.test_rules_set import KeyOf
from tests.protocol.world import (
    DAY,
    HOUR,
    MINUTE,
    T0,
    E,
    Peer,
    W,
    ack,
    act_for,
    address,
    anchor,
    endorse,
    envelope,
    propose,
    publish,
    retract,
    revoke,
    root_of,
    roster,
    share,
    size_of,
    subject,
    verdict,
)


def test_the_place_of_a_thing_in_a_round_is_told_while_it_moves_no_other() -> None:
    first, longer, other = share("alice"), share("alice", life=2 * DAY), share("bob", life=HOUR)
    said = endorse("bob", subject("alice"))
    peer = Peer(HEAD, T0, first, other, publish("bob", 2), said)
    places = {item_id: place for place, item_id in peer.set.reconciled(T0)}
    for item in (other, publish("bob", 2), said):
        assert peer.set.place_of(item.id) == places[item.id]
    assert peer.set.place_of(said.id) == T0 + DAY
    assert peer.set.place_of(first.id) is None
    peer.admit(longer)
    assert peer.set.place_of(said.id) == T0 + 2 * DAY
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert peer.set.state_of(said.id) is State.LONE
    assert peer.set.place_of(said.id) is None


def test_a_set_is_crowded_while_somebody_has_more_than_his_quota() -> None:
    peer = Peer(roster(MEMBERS, 2, quotas=Quotas(live_items=1)), T0, share("alice"), share("bob", issued=T0 + 1))
    assert not peer.set.is_crowded
    peer.admit(share("bob", 2, life=HOUR))
    assert peer.set.is_crowded
    peer.set.sweep(T0 + HOUR)
    assert not peer.set.is_crowded


def test_up_to_which_serial_a_delegation_is_ended_is_told() -> None:
    peer = Peer(HEAD, T0, revoke("alice", "helper", 3))
    assert peer.set.revoked_agent_serial(address("alice"), address("helper")) == 3
    assert peer.set.revoked_agent_serial(address("alice"), address("other")) == 0


def test_what_a_roster_lists_comes_back_when_a_revoke_that_cut_it_counts_no_more() -> None:
    item, ended = share("helper", act=HELPER), revoke("alice", "helper")
    peer = Peer(HEAD, T0, item, ended)
    assert not peer.has(item)
    peer.set.set_head(removed(item), T0)
    assert ids(peer) == {item.id}
    peer.set.set_head(removed(item, ended), T0)
    assert ids(peer) == {ended.id}
    peer.set.set_head(removed(item), T0)
    assert peer.set.revoked_agent_serial(address("alice"), address("helper")) == 0


def test_d1_a_revoked_peer_beside_a_revoked_agent_ends_no_less() -> None:
    carrier = envelope(Kind.REVOKE, "alice", Revoke(None, "12D3", 1, ()), T0 - MINUTE, 0)
    peer = Peer(HEAD, T0, carrier, revoke("alice", "helper"), revoke("alice", "other"))
    assert peer.give(share("helper", act=HELPER)) is Reason.REVOKED
    assert peer.give(share("other", act=act_for("alice", "other"))) is Reason.REVOKED


def test_h3_evidence_goes_with_a_subject_that_was_aside_too_long() -> None:
    peer = Peer(HEAD, T0, share("alice", life=5 * DAY), endorse("bob", subject("alice")))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert peer.set.statistics().aside == 2
    gone = peer.set.sweep(T0 + CUT_KEPT_ASIDE_MS)
    assert {departure.state for departure in gone.aside} == {State.FORGOTTEN}
    after = peer.set.statistics()
    assert (after.known, after.aside, after.assets, after.principals) == (0, 0, 0, 0)


def test_what_is_gone_leaves_no_trace() -> None:
    about = subject("alice")
    items = [share("alice"), publish("alice", 2), endorse("bob", about), ack("bob"), propose("alice", about, Q)]
    peer = Peer(HEAD, T0, *items, share("bob"))
    before = peer.set.statistics()
    assert (before.known, before.in_set, before.aside, before.assets, before.principals) == (6, 6, 0, 2, 2)
    peer.admit(retract("owner", "alice", 2, mode=RetractMode.ERASE))
    peer.set.sweep(T0 + DAY)
    after = peer.set.statistics()
    assert (after.known, after.in_set, after.assets, after.principals) == (1, 1, 0, 1)
    assert list(peer.set.proposed()) == []
    assert peer.set.next_end_ms() is None


def test_e3_a_head_that_gives_a_right_back_leaves_of_one_meaning_the_lowest_id() -> None:
    twins = sorted((endorse("bob", subject("alice"), reason=str(n)) for n in range(2)), key=lambda item: item.id)
    for first, second in (twins, twins[::-1]):
        peer = Peer(HEAD, T0, share("alice"), first)
        members = {**MEMBERS, "bob": Role.READER}
        peer.set.set_head(roster(members, 2, parent=HEAD, kept=(second.id,)), T0)
        assert peer.set.state_of(first.id) is State.CUT
        peer.admit(second)
        changes = peer.set.set_head(HEAD, T0)
        assert peer.has(twins[0])
        assert peer.set.state_of(twins[1].id) is None
        assert State.DISPLACED in {departure.state for departure in (*changes.left, *changes.aside)}


def test_r1_what_will_be_pushed_out_in_a_minute_is_not_in_the_reconciled_set() -> None:
    items: dict[str, list[Item]] = {}
    for who in ("alice", "bob"):
        ending = share(who, name="ending", issued=T0 - 2, life=MINUTE, size=1_000)
        large = share(who, name="large", issued=T0 - 1, size=2_000)
        small = share(who, name="small", issued=T0, size=100)
        items[who] = [large, ending, small]
    room = size_of(items["alice"][0]) + 50
    peer = Peer(roster(MEMBERS, 2, quotas=Quotas(live_bytes=room)), T0, *items["alice"], *items["bob"])
    for large, ending, small in items.values():
        assert peer.set.state_of(large.id) is State.OVER
        assert peer.has(ending)
        assert peer.has(small)
    assert {item_id for _, item_id in peer.set.reconciled(T0)} == {items[who][0].id for who in items}
    peer.set.sweep(T0 + MINUTE)
    assert ids(peer) == {items[who][0].id for who in items}


def test_v3_what_a_head_pushes_out_and_an_erasure_lets_in_again_has_not_changed() -> None:
    erased, stays = share("alice"), share("alice", 2, issued=T0 + 1)
    moderation = retract("owner-2", "alice", mode=RetractMode.ERASE)
    second = roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2)
    peer = Peer(second, T0, moderation)
    peer.set.set_head(HEAD, T0)
    assert peer.set.state_of(moderation.id) is State.CUT
    peer.admit(erased)
    peer.admit(stays)
    third = roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2, quotas=Quotas(live_items=1))
    changes = peer.set.set_head(third, T0)
    assert changes.entered == (moderation.id,)
    assert [(gone.id, gone.state) for gone in changes.left] == [(erased.id, State.ERASED)]
    assert changes.aside == ()
    assert ids(peer) == {moderation.id, stays.id}
    peer.set.set_head(HEAD, T0)
    assert peer.give(erased) is None


def test_what_was_cut_and_is_forgotten_leaves_no_principal() -> None:
    peer = Peer(HEAD, T0, retract("alice", version=4), revoke("alice", "helper"))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert peer.set.statistics().principals == 1
    peer.set.sweep(T0 + CUT_KEPT_ASIDE_MS)
    assert peer.set.statistics().principals == 0


def test_what_many_records_name_is_one_object() -> None:
    said = [share("alice"), publish("alice"), share("alice", 2), endorse("bob", subject("alice"))]
    peer = Peer(HEAD, T0, *(decode_item(item.encode()) for item in said))
    one, other, third, evidence = (peer.set.record(item.id) for item in said)
    assert isinstance(one, SealedRecord)
    assert isinstance(other, SealedRecord)
    assert isinstance(third, SealedRecord)
    assert isinstance(evidence, EvidenceRecord)
    assert one.key is other.key is evidence.subject
    assert one.principal is one.author is third.principal is third.author


def test_a_promise_that_has_ended_is_not_kept_in_mind() -> None:
    peer = Peer(HEAD, T0, ack("alice"), ack("bob", life=2 * DAY))
    peer.set.sweep(T0 + DAY)
    assert [record.author for record in peer.set.acks(root_of("a"))] == [address("bob")]


def test_changes_are_something_as_soon_as_one_thing_changed() -> None:
    asset = subject("alice").asset
    gone = Departure(b"i" * 32, State.OVER)
    assert not Changes()
    for changes in (
        Changes((b"i" * 32,)),
        Changes(left=(gone,)),
        Changes(aside=(gone,)),
        Changes(assets=frozenset({asset})),
    ):
        assert changes
    assert Peer().set.statistics() == Statistics(0, 0, 0, 0, 0, 0)


def test_q1_what_waits_for_room_and_ends_meanwhile_waits_no_more() -> None:
    older, waiting = share("alice", issued=T0 - 1), share("alice", 2, life=HOUR)
    peer = Peer(limited(live_items=1), T0, waiting, older)
    assert peer.set.is_crowded
    peer.set.sweep(T0 + HOUR)
    assert not peer.set.is_crowded
    assert ids(peer) == {older.id}
    assert peer.give(share("alice", 3, issued=T0 - 2), T0 + HOUR) is None
    assert peer.set.is_crowded


def test_a_smaller_quota_keeps_aside_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("graphset", "deciding"):
        monkeypatch.setattr(f"p2pmem_protocol.{module}.ASIDE_KEPT_MAX", 3)
    shares = [share("alice", number, issued=T0 + number) for number in range(1, 10)]
    for room, known in ((2, 5), (5, 8), (6, 9), (7, 9)):
        peer = Peer(HEAD, T0, *shares)
        changes = peer.set.set_head(roster(MEMBERS, 2, parent=HEAD, quotas=Quotas(live_items=room)), T0)
        assert ids(peer) == {item.id for item in shares[:room]}
        assert {record.id for record in peer.set.known()} == {item.id for item in shares[:known]}
        assert [gone.state for gone in changes.left].count(State.FORGOTTEN) == 9 - known


def test_a_set_begins_without_a_head() -> None:
    peer = Peer()
    assert peer.set.head is None
    assert peer.set.rights is None
    assert not peer.set.is_forked
    peer.set.set_head(HEAD, T0, forked=True)
    assert peer.set.head is HEAD
    assert peer.set.is_forked


def test_a_head_that_judges_evidence_alike_changes_no_view() -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", subject("alice"), Q))
    members = {**MEMBERS, "bob": W}
    assert not peer.set.set_head(roster(members, 2, parent=HEAD), T0)
    peer.set.set_head(HEAD, T0)
    peer.admit(endorse("bob", subject("alice")))
    assert peer.set.set_head(roster(members, 2, parent=HEAD), T0).assets == {subject("alice").asset}


def test_a_head_that_lists_the_same_settles_no_account_of_it_again() -> None:
    kept = share("alice")
    listing = removed(kept)
    peer = Peer(listing, T0, kept, share("bob"))
    before = peer.set.statistics().settled
    more = roster({**WITHOUT_ALICE, "carol": W}, 2, parent=listing, kept=(kept.id,))
    assert not peer.set.set_head(more, T0)
    assert peer.set.statistics().settled == before
    assert peer.set.set_head(roster({**WITHOUT_ALICE, "carol": W}, 2, parent=listing), T0).left
    assert peer.set.statistics().settled == before + 1


def test_testing_refuses_what_admitting_would() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    for item, reason in ((share("stranger"), Reason.NOT_LISTED), (share("alice"), Reason.DUPLICATE)):
        with pytest.raises(RefusedError) as refused:
            peer.set.test(item, size_of(item), T0)
        assert refused.value.reason is reason


def test_what_stands_in_for_the_check_of_signatures_comes_after_all_tests_and_can_keep_a_thing_out() -> None:
    peer = Peer(HEAD)
    asked: list[str] = []

    def refuse() -> None:
        asked.append("refuse")
        raise RefusedError(Reason.WRONG_SIGNER, "no")

    forged = share("alice").unsigned.sign(KeyOf("alice"))
    with pytest.raises(RefusedError):
        peer.set.admit(share("stranger"), 1, T0, check_rest=lambda: asked.append("too soon"))
    with pytest.raises(RefusedError):
        peer.set.admit(forged, size_of(forged), T0, check_rest=refuse)
    assert list(peer.set.known()) == []
    peer.set.admit(forged, size_of(forged), T0, check_rest=lambda: asked.append("good"))
    assert asked == ["refuse", "good"]
    assert peer.has(forged)


def test_a_sweep_of_a_few_lets_go_what_ended_first() -> None:
    shares = [share("alice", number, life=HOUR + number) for number in range(1, 6)]
    peer = Peer(HEAD, T0, *shares)
    peer.set.sweep(T0 + HOUR + 5, 2)
    assert ids(peer) == {item.id for item in shares[2:]}
    assert peer.set.next_end_ms() == T0 + HOUR + 3
    peer.set.sweep(T0 + HOUR + 5, 0)
    assert len(peer.set) == 3
    peer.set.sweep(T0 + HOUR + 4, 5)
    assert ids(peer) == {shares[4].id}
    peer.set.sweep(T0 + HOUR + 5, 5)
    assert len(peer.set) == 0


def test_evidence_is_judged_again_when_an_endorser_comes_or_goes_among_others() -> None:
    said = endorse("bob", subject("alice"))
    peer = Peer(HEAD, T0, share("alice"), said)
    without = roster({**MEMBERS, "bob": W, "carol": W}, 2, parent=HEAD)
    peer.set.set_head(without, T0)
    assert peer.set.state_of(said.id) is State.CUT
    peer.set.set_head(roster({**MEMBERS, "bob": E}, 2, parent=HEAD), T0)
    assert peer.has(said)
    peer.set.set_head(roster(MEMBERS, 2, parent=HEAD), T0)
    assert peer.has(said)


def test_evidence_is_judged_again_when_a_roster_lists_it_or_no_longer_does() -> None:
    said, other = endorse("bob", subject("alice")), share("bob", life=HOUR)
    members = {**MEMBERS, "bob": W}
    peer = Peer(HEAD, T0, share("alice"), said, other)
    peer.set.set_head(roster(members, 2, parent=HEAD, kept=(said.id, other.id)), T0)
    assert peer.has(said)
    peer.set.set_head(roster(members, 2, parent=HEAD), T0)
    assert peer.set.state_of(said.id) is State.CUT
    peer.set.set_head(roster(members, 2, parent=HEAD, kept=(said.id,)), T0)
    assert peer.has(said)


def test_q1_what_waits_for_room_goes_before_what_would_fit_beside_something_that_has_ended() -> None:
    ending = share("alice", name="ending", issued=T0 - 2, life=HOUR, size=2_000)
    waiting = share("alice", name="waiting", issued=T0 - 1, size=3_000)
    small = share("alice", name="small", issued=T0, size=1_000)
    room = size_of(waiting) + size_of(small) - 1
    peer = Peer(limited(live_bytes=room), T0, waiting, ending)
    assert peer.set.state_of(waiting.id) is State.OVER
    assert peer.give(small, T0 + 2 * HOUR) is Reason.OVER_QUOTA
    assert Peer(limited(live_bytes=room), T0, waiting, ending).give(small, T0 + HOUR - 3) is None


def test_q2_retracts_have_the_room_that_revokes_leave() -> None:
    ended = revoke("alice", "helper", issued=T0 - HOUR)
    younger, older = retract("alice", version=1, issued=T0), retract("alice", version=2, issued=T0 - 1)
    peer = Peer(limited(cuts=2), T0, ended, younger, older)
    assert ids(peer) == {ended.id, older.id}
    assert peer.set.state_of(younger.id) is State.OVER


def test_q2_a_cut_counts_as_soon_as_one_that_counts_is_younger() -> None:
    assert Peer(limited(cuts=0)).give(retract("alice")) is Reason.OVER_QUOTA
    peer = Peer(limited(cuts=1), T0, retract("alice", version=1, issued=T0))
    assert peer.give(retract("alice", version=2, issued=T0 + 1)) is Reason.OVER_QUOTA
    assert peer.give(retract("alice", version=3, issued=T0 - 1)) is None
    peer = Peer(limited(cuts=3), T0, *(retract("alice", version=n, issued=T0 + n) for n in (1, 3, 5)))
    assert peer.give(retract("alice", version=6, issued=T0 + 6)) is Reason.OVER_QUOTA
    assert peer.give(retract("alice", version=4, issued=T0 + 4)) is None


def test_the_first_head_after_a_restart_names_all_assets_with_evidence() -> None:
    peer = Peer()
    for item in (share("alice"), verdict("v1", subject("alice"), Q), share("bob")):
        peer.set.restore(item, size_of(item), State.IN)
    changes = peer.set.set_head(HEAD, T0)
    assert (changes.entered, changes.left, changes.aside) == ((), (), ())
    assert changes.assets == {subject("alice").asset}


def test_v3_a_retract_that_a_head_lets_count_erases_what_the_head_judges_as_before() -> None:
    item, moderation = share("alice"), retract("owner-2", "alice", mode=RetractMode.ERASE)
    second = roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2)
    peer = Peer(second, T0, moderation)
    peer.set.set_head(HEAD, T0)
    peer.admit(item)
    changes = peer.set.set_head(second, T0)
    assert [(gone.id, gone.state) for gone in changes.left] == [(item.id, State.ERASED)]
    assert peer.set.state_of(item.id) is None


def test_v3_what_a_head_lets_be_erased_takes_no_room_under_it() -> None:
    erased, stays, younger = share("alice"), share("alice", 2, issued=T0 + 1), share("alice", 3, issued=T0 + 2)
    moderation = retract("owner-2", "alice", mode=RetractMode.ERASE)
    third = roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2, quotas=Quotas(live_items=1))
    peer = Peer(roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2), T0, moderation)
    peer.set.set_head(HEAD, T0)
    peer.admit(erased)
    peer.admit(stays)
    peer.set.set_head(third, T0)
    assert peer.give(younger) is Reason.OVER_QUOTA
    assert not peer.set.is_crowded
    assert ids(peer) == {moderation.id, stays.id}


def test_q1_what_waited_for_room_and_has_just_ended_does_not_come_back_with_a_head() -> None:
    older, waiting = share("alice", issued=T0 - 1), share("alice", 2, life=HOUR)
    peer = Peer(limited(live_items=1), T0, waiting, older)
    assert peer.set.set_head(HEAD, T0 + HOUR).entered == ()
    assert peer.set.state_of(waiting.id) is State.OVER


def test_q1_many_that_end_at_once_leave_their_room() -> None:
    for number in (64, 65, 70):
        peer = Peer(limited(live_items=100))
        for each in range(1, 101):
            peer.set.admit(share("alice", each, life=HOUR if each <= number else DAY), 400, T0, checked=True)
        peer.set.sweep(T0 + HOUR)
        assert len(peer.set) == 100 - number
        for each in range(101, 101 + number):
            peer.set.admit(share("alice", each), 400, T0 + HOUR, checked=True)
        assert peer.give(share("alice", 300, issued=T0 + 1), T0 + HOUR) is Reason.OVER_QUOTA
        assert peer.give(share("alice", 300, issued=T0 - 1), T0 + HOUR) is None


def test_how_often_accounts_are_settled_is_counted() -> None:
    peer = Peer(HEAD, T0, share("alice"), share("bob"))
    assert peer.set.statistics().settled == 0
    peer.set.set_head(roster(MEMBERS, 1, parent=HEAD), T0)
    assert peer.set.statistics().settled == 2


@pytest.mark.parametrize(("aside", "forgotten"), [(1, 1), (2, 0)])
def test_q1_an_older_one_pushes_out_and_lets_in_and_so_many_stay_aside(
    aside: int, forgotten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("graphset", "deciding"):
        monkeypatch.setattr(f"p2pmem_protocol.{module}.ASIDE_KEPT_MAX", aside)
    sizes = {"first": 5_000, "x": 6_000, "y": 5_000, "z": 4_000}
    items = {name: share("alice", name=name, issued=T0 + n, size=size) for n, (name, size) in enumerate(sizes.items())}
    charge = {name: 10 * size for name, size in sizes.items()}
    peer = Peer(limited(live_bytes=100_000))
    for name in ("y", "x", "z"):
        peer.set.admit(items[name], charge[name], T0)
    assert ids(peer) == {items["x"].id, items["z"].id}
    changes = peer.set.admit(items["first"], charge["first"], T0)
    assert ids(peer) == {items["first"].id, items["y"].id}
    assert len(changes.left) == 2
    assert [gone.state for gone in changes.left].count(State.FORGOTTEN) == forgotten
    assert peer.set.is_crowded


@pytest.mark.parametrize("right", list(Right))
def test_d1_a_delegation_gives_the_kinds_of_its_rights_and_no_other(right: Right) -> None:
    act = act_for("alice", "helper", rights=right)
    claimed = anchor("alice", subject("alice")).body
    items = {
        share("helper", act=act): Right.SHARE,
        publish("helper", act=act): Right.PUBLISH,
        envelope(Kind.ANCHOR, "helper", claimed, T0, 0, act): Right.PUBLISH,
        propose("helper", subject("alice"), Q, act=act): Right.PROPOSE,
        retract("helper", act=act): Right.RETRACT,
        envelope(Kind.ACK, "helper", ack("alice").body, T0, T0 + DAY, act): None,
    }
    for item, needed in items.items():
        assert Peer(HEAD).give(item) is (None if right is needed else Reason.NOT_LISTED), item.kind
