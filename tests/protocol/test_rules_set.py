"""The set: rules H3, H4, K1, K2, Q1 to Q3, R1, R2, D1, A1 and A2, each in a test that bears its name."""

from __future__ import annotations

import itertools

import pytest
from p2pmem_protocol.bodies import RetractMode, Revoke
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import Item, Unsigned
from p2pmem_protocol.errors import BugError, MisuseError, Reason
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import ACK_MS_MAX, CUT_KEPT_ASIDE_MS, DEADLINE_MS_MAX
from p2pmem_protocol.names import AssetKey, network_id
from p2pmem_protocol.records import FOREVER, State
from p2pmem_protocol.roster import Quotas, Role
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import asset_view, copies, deadline, explain

from tests.protocol import world
from tests.protocol.world import (
    DAY,
    GRAPH,
    HOUR,
    MINUTE,
    NETWORK,
    SECOND,
    T0,
    E,
    Peer,
    V,
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
    withdraw,
)

MEMBERS = {"alice": W, "bob": W | E, "v1": V, "v2": V}
HEAD = roster(MEMBERS, 2)
Q = HEAD.quorum
WITHOUT_ALICE = {name: roles for name, roles in MEMBERS.items() if name != "alice"}
HELPER = act_for("alice", "helper")


def ids(peer: Peer) -> set[bytes]:
    return {record.id for record in peer.set.records()}


# H3, H4


def test_h3_what_a_head_change_cuts_is_kept_aside_a_day_and_then_goes() -> None:
    peer = Peer(HEAD, T0, share("alice", life=5 * DAY))
    changes = peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert [departure.state for departure in changes.left] == [State.CUT]
    assert ids(peer) == set()
    assert peer.set.reconciled(T0) == []
    assert not peer.set.sweep(T0 + CUT_KEPT_ASIDE_MS - 1)
    gone = peer.set.sweep(T0 + CUT_KEPT_ASIDE_MS)
    assert [departure.state for departure in gone.aside] == [State.FORGOTTEN]
    assert list(peer.set.known()) == []


def test_h3_it_comes_back_when_a_head_change_restores_the_right() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    changes = peer.set.set_head(HEAD, T0 + HOUR)
    assert changes.entered == (share("alice").id,)


def test_h3_while_the_graph_is_forked_nothing_that_was_cut_goes() -> None:
    peer = Peer(HEAD, T0, share("alice", life=5 * DAY))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0 + HOUR, forked=True)
    peer.set.sweep(T0 + 3 * DAY)
    assert peer.set.state_of(share("alice", life=5 * DAY).id) is State.CUT
    gone = peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0 + 3 * DAY)
    assert [departure.state for departure in gone.aside] == [State.FORGOTTEN]


def test_h3_without_a_head_nothing_is_in_the_set_and_nothing_goes() -> None:
    peer = Peer(HEAD, T0, share("alice", life=5 * DAY))
    peer.set.set_head(None, T0)
    peer.set.sweep(T0 + 2 * DAY)
    assert len(peer.set) == 0
    assert peer.give(share("bob")) is Reason.NO_HEAD
    peer.set.set_head(HEAD, T0 + 2 * DAY)
    assert len(peer.set) == 1


def test_h3_what_ends_while_it_is_aside_goes_at_its_end() -> None:
    peer = Peer(HEAD, T0, share("alice", life=HOUR))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert peer.set.sweep(T0 + HOUR).aside[0].state is State.EXPIRED


def test_h4_while_forked_whom_a_branch_removed_has_the_parents_rights_also_for_new_words() -> None:
    chain = HeadChain(GRAPH, NETWORK)
    left = roster(WITHOUT_ALICE, 2, parent=HEAD)
    right = roster({**MEMBERS, "carol": W}, 2, parent=HEAD)
    chain.add(HEAD.signed)
    chain.add(left.signed)
    peer = Peer(HEAD, T0, share("alice"))
    peer.set.set_head(left, T0)
    assert peer.give(share("alice", 2)) is Reason.NOT_LISTED
    chain.add(right.signed)
    state = chain.head()
    assert state.header == HEAD.signed
    peer.set.set_head(HEAD, T0 + HOUR, forked=state.forked)
    assert peer.has(share("alice"))
    assert peer.give(share("alice", 2), T0 + HOUR) is None


# K1, K2


def removed(*kept: Item) -> world.Roster:
    return roster(WITHOUT_ALICE, 2, parent=HEAD, kept=tuple(item.id for item in kept))


def test_k1_a_listed_id_stands_in_for_the_role() -> None:
    old, new = share("alice"), share("alice", 2)
    peer = Peer(removed(old))
    assert peer.give(old) is None
    assert peer.give(new) is Reason.NOT_LISTED


def test_k1_a_listed_id_does_not_stand_in_for_its_end_or_its_longest_life() -> None:
    old, long = share("alice"), share("alice", 2, life=31 * DAY)
    peer = Peer(removed(old, long))
    assert peer.give(long) is Reason.LIFE_TOO_LONG
    assert peer.give(old, T0 + DAY) is Reason.EXPIRED


def test_k1_a_listed_id_can_be_revoked_retracted_and_erased() -> None:
    by_agent = share("helper", act=HELPER)
    ended = revoke("alice", "helper")
    peer = Peer(removed(by_agent, ended), T0, by_agent, ended)
    assert ids(peer) == {ended.id}
    old, erased = share("alice"), retract("owner", "alice", mode=RetractMode.ERASE)
    peer = Peer(removed(old), T0, old, erased)
    assert ids(peer) == {erased.id}


def test_k1_a_listed_endorsement_can_be_withdrawn_by_a_listed_withdrawal() -> None:
    said, taken_back = endorse("bob", subject("v1")), withdraw("bob", subject("v1"))
    head = roster({"v1": W}, 0, parent=HEAD, kept=(said.id, taken_back.id))
    peer = Peer(head, T0, share("v1"), said)
    report = explain(peer.set, subject("v1"), T0)
    assert report is not None
    assert report.level is Trust.ENDORSED
    peer.admit(taken_back)
    report = explain(peer.set, subject("v1"), T0)
    assert report is not None
    assert report.level is Trust.SELF_ATTESTED
    assert peer.give(endorse("bob", subject("v1"), reason="new")) is Reason.NOT_LISTED


def test_k1_a_listed_proposal_is_still_for_the_heads_quorum_only() -> None:
    asked = propose("alice", subject("alice"), Q)
    changed = roster(MEMBERS, 1, parent=HEAD, kept=(asked.id,))
    assert Peer(changed).give(asked) is Reason.WRONG_QUORUM


def test_k2_a_new_owner_lists_the_old_owners_retracts_of_others_words() -> None:
    moderation = retract("owner", "alice")
    without = roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2)
    listing = roster(MEMBERS, 2, parent=HEAD, owner="owner-2", term=2, kept=(moderation.id,))
    peer = Peer(HEAD, T0, share("alice"), moderation)
    peer.set.set_head(without, T0)
    assert not peer.has(moderation)
    peer.set.set_head(listing, T0)
    assert peer.has(moderation)
    (version,) = asset_view(peer.set, subject("alice").asset, T0).versions
    assert version.hidden_by == moderation.id


def test_k2_listing_a_principals_retract_does_not_make_it_moderation() -> None:
    """Bob names as his agent whom he likes. His retract covers what was said for him, listed or not."""
    claimed = retract("bob", "alice", shown=act_for("bob", "alice"))
    head = roster({"alice": W}, 0, parent=HEAD, kept=(claimed.id,))
    peer = Peer(head, T0, share("alice"), claimed)
    (version,) = asset_view(peer.set, subject("alice").asset, T0).versions
    assert version.is_visible


# Q1 to Q3


def limited(**quotas: int) -> world.Roster:
    return roster(MEMBERS, 2, quotas=Quotas(**quotas))


def test_q1_in_the_order_of_issue_each_that_still_fits_counts() -> None:
    shares = [share("alice", name=f"asset-{number}", issued=T0 + number) for number in range(4)]
    for order in itertools.permutations(shares):
        peer = Peer(limited(live_items=2))
        for item in order:
            assert peer.give(item) in (None, Reason.OVER_QUOTA)
        assert ids(peer) == {shares[0].id, shares[1].id}


def test_q1_what_does_not_fit_is_passed_over_and_smaller_ones_after_it_count() -> None:
    first = share("alice", name="first", size=1_000)
    large = share("alice", name="large", issued=T0 + 1, size=2_000)
    small = share("alice", name="small", issued=T0 + 2)
    room = size_of(first) + size_of(small)
    peer = Peer(limited(live_bytes=room), T0, first)
    assert peer.give(large) is Reason.OVER_QUOTA
    assert peer.give(small) is None


def test_q1_a_late_older_one_pushes_out_a_younger_one_which_comes_back_where_room_appears() -> None:
    older, younger = share("alice", issued=T0, life=HOUR), share("alice", 2, issued=T0 + 1)
    peer = Peer(limited(live_items=1), T0, younger)
    changes = peer.admit(older)
    assert changes.entered == (older.id,)
    assert [(departure.id, departure.state) for departure in changes.left] == [(younger.id, State.OVER)]
    assert peer.give(younger) is Reason.DUPLICATE
    changes = peer.set.sweep(T0 + HOUR)
    assert changes.entered == (younger.id,)


def test_q1_two_peers_that_heard_in_other_orders_agree() -> None:
    items = [share("alice", name=f"asset-{n}", issued=T0 + n, size=100 * (n % 3 + 1)) for n in range(6)]
    head = limited(live_bytes=sum(map(size_of, items)) // 2)
    sets = set()
    for order in itertools.islice(itertools.permutations(items), 0, None, 7):
        peer = Peer(head)
        for _ in range(3):
            for item in order:
                peer.give(item)
        sets.add(frozenset(ids(peer)))
    assert len(sets) == 1


def test_q1_durable_things_and_live_ones_have_counts_of_their_own() -> None:
    peer = Peer(limited(live_items=1, durable_items=1), T0, share("alice"), publish("alice"))
    later = T0 + 1
    assert peer.give(share("alice", 2, issued=later)) is Reason.OVER_QUOTA
    assert peer.give(publish("alice", 2, issued=later)) is Reason.OVER_QUOTA
    assert peer.give(anchor("alice", subject("alice"), issued=later)) is Reason.OVER_QUOTA
    assert peer.give(ack("alice", issued=later)) is Reason.OVER_QUOTA
    assert peer.give(retract("alice", issued=later)) is None


def test_q1_attached_content_is_charged_with_its_length() -> None:
    large = share("alice", size=70_000)
    assert size_of(large) < 1_000
    assert Peer(limited(live_bytes=70_000)).give(large) is Reason.OVER_QUOTA
    assert Peer(limited(live_bytes=71_000)).give(large) is None
    assert Peer(limited(content_bytes=69_999)).give(large) is Reason.OVER_QUOTA


def test_q1_what_has_ended_takes_no_room_also_before_it_is_swept() -> None:
    ending, waiting = share("alice", life=HOUR), share("alice", 2, issued=T0 + 2, life=2 * DAY)
    peer = Peer(limited(live_items=1), T0, ending)
    assert peer.give(waiting, T0 + HOUR - 1) is Reason.OVER_QUOTA
    assert peer.give(waiting, T0 + HOUR) is None
    peer.set.sweep(T0 + HOUR)
    assert ids(peer) == {waiting.id}


def test_q1_what_waits_for_room_goes_before_what_comes_when_room_appears_unswept() -> None:
    ending, waiting = share("alice", issued=T0 + 1, life=HOUR), share("alice", 2, issued=T0 + 2)
    younger = share("alice", 3, issued=T0 + 3)
    peer = Peer(limited(live_items=1), T0, waiting, ending)
    assert peer.set.state_of(waiting.id) is State.OVER
    assert peer.give(younger, T0 + 2 * HOUR) is Reason.OVER_QUOTA
    older = share("alice", 4, issued=T0)
    assert peer.give(older, T0 + 2 * HOUR) is None
    peer.set.sweep(T0 + 2 * HOUR)
    assert ids(peer) == {older.id}


def test_q2_when_a_retract_erases_what_waited_for_room_comes_back() -> None:
    erased, waiting = share("alice"), share("alice", 2, issued=T0 + 1)
    peer = Peer(limited(live_items=1), T0, waiting, erased)
    assert not peer.has(waiting)
    changes = peer.admit(retract("owner", "alice", mode=RetractMode.ERASE))
    assert waiting.id in changes.entered


def test_q2_what_an_agent_signs_is_charged_to_its_principal() -> None:
    peer = Peer(limited(live_items=1), T0, share("helper", act=HELPER))
    assert peer.give(share("alice", issued=T0 + 1)) is Reason.OVER_QUOTA
    assert peer.give(share("bob", issued=T0 + 1)) is None


def test_q2_what_retracts_and_revokes_cut_takes_no_room() -> None:
    erased, waiting = share("alice"), share("alice", 2, issued=T0 + 1)
    peer = Peer(limited(live_items=1), T0, erased)
    assert peer.give(waiting) is Reason.OVER_QUOTA
    assert peer.give(retract("alice", mode=RetractMode.ERASE)) is None
    assert peer.give(waiting) is None


def test_q2_cuts_have_a_count_of_their_own() -> None:
    cuts = [retract("alice", version=number, issued=T0 + number) for number in (1, 2, 3)]
    for order in itertools.permutations(cuts):
        peer = Peer(limited(cuts=2))
        for item in order:
            assert peer.give(item) in (None, Reason.OVER_QUOTA)
        assert ids(peer) == {cuts[0].id, cuts[1].id}


def test_q2_an_agent_gone_bad_cannot_use_up_the_count_that_its_principal_needs_to_revoke_it() -> None:
    bad = [
        retract("helper", version=number, issued=T0 - HOUR + number, act=HELPER, name="spam") for number in range(1, 4)
    ]
    ended = revoke("alice", "helper", issued=T0)
    peer = Peer(limited(cuts=2), T0, *bad[:2])
    assert peer.give(bad[2]) is Reason.OVER_QUOTA
    assert peer.give(ended) is None
    assert ids(peer) == {ended.id}


def test_q3_what_the_head_lists_counts_outside_the_quota() -> None:
    listed, other = share("alice"), share("alice", 2, issued=T0 + 1)
    head = roster(MEMBERS, 2, quotas=Quotas(live_items=1), kept=(listed.id,))
    assert ids(Peer(head, T0, listed, other)) == {listed.id, other.id}


def test_q3_a_heads_limits_apply_to_what_exists_as_to_what_comes() -> None:
    first, second = share("alice"), share("alice", 2, issued=T0 + 1, life=2 * DAY)
    peer = Peer(HEAD, T0, first, second)
    changes = peer.set.set_head(roster(MEMBERS, 2, parent=HEAD, quotas=Quotas(live_items=1)), T0)
    assert [(departure.id, departure.state) for departure in changes.left] == [(second.id, State.OVER)]
    changes = peer.set.set_head(roster(MEMBERS, 2, parent=HEAD, ttl_max_ms=DAY), T0)
    assert [(departure.id, departure.state) for departure in changes.aside] == [(second.id, State.CUT)]
    assert ids(peer) == {first.id}
    assert peer.set.set_head(HEAD, T0).entered == (second.id,)


# R1, R2


def test_r1_the_reconciled_set_is_the_set_as_it_will_be_in_a_minute() -> None:
    soon, later = share("alice", life=MINUTE), share("alice", 2, life=MINUTE + 1)
    peer = Peer(HEAD, T0, soon, later, publish("bob"))
    assert peer.set.reconciled(T0) == [(T0 + MINUTE + 1, later.id), (FOREVER, publish("bob").id)]
    assert peer.has(soon)


def test_r1_what_will_find_room_in_a_minute_is_in_the_reconciled_set() -> None:
    ending, waiting = share("alice", life=MINUTE), share("alice", 2, issued=T0 + 1)
    peer = Peer(limited(live_items=1), T0, waiting, ending)
    assert not peer.has(waiting)
    assert peer.set.reconciled(T0) == [(waiting.expires_at_ms, waiting.id)]


def test_r1_only_kinds_that_both_peers_know_are_reconciled() -> None:
    said = endorse("bob", subject("alice"))
    peer = Peer(HEAD, T0, share("alice"), said, ack("alice"))
    assert len(peer.set.reconciled(T0)) == 3
    assert [item_id for _, item_id in peer.set.reconciled(T0, {Kind.ENDORSE})] == [said.id]
    assert peer.set.reconciled(T0, set()) == []


def test_r1_the_order_is_the_end_and_then_the_id() -> None:
    shares = [share("alice", number, life=DAY + number % 2) for number in range(1, 7)]
    peer = Peer(HEAD, T0, *shares)
    assert peer.set.reconciled(T0) == sorted((item.expires_at_ms, item.id) for item in shares)


def test_r2_live_means_before_the_end() -> None:
    item = share("alice")
    assert Peer(HEAD).give(item, T0 + DAY - 1) is None
    assert Peer(HEAD).give(item, T0 + DAY) is Reason.EXPIRED
    peer = Peer(HEAD, T0, item)
    assert asset_view(peer.set, subject("alice").asset, T0 + DAY - 1).versions
    assert not asset_view(peer.set, subject("alice").asset, T0 + DAY).versions


def test_r2_five_minutes_ahead_and_the_longest_life_pass() -> None:
    assert Peer(HEAD).give(share("alice", issued=T0 + 5 * MINUTE)) is None
    assert Peer(HEAD).give(share("alice", issued=T0 + 5 * MINUTE + 1)) is Reason.FROM_THE_FUTURE
    assert Peer(HEAD).give(share("alice", life=30 * DAY)) is None
    assert Peer(HEAD).give(share("alice", life=30 * DAY + 1)) is Reason.LIFE_TOO_LONG
    assert Peer(HEAD).give(propose("alice", subject("alice"), Q, life=DEADLINE_MS_MAX + 1)) is Reason.LIFE_TOO_LONG
    assert Peer(HEAD).give(ack("alice", life=ACK_MS_MAX)) is None
    assert Peer(HEAD).give(ack("alice", life=ACK_MS_MAX + 1)) is Reason.LIFE_TOO_LONG


# D1


def test_d1_a_revoke_cuts_what_was_signed_under_a_serial_not_above_it() -> None:
    first = share("helper", act=act_for("alice", "helper", 1))
    second = share("helper", 2, act=act_for("alice", "helper", 2))
    third = share("helper", 3, act=act_for("alice", "helper", 3))
    for order in itertools.permutations([first, second, third, revoke("alice", "helper", 2)]):
        peer = Peer(HEAD)
        for item in order:
            assert peer.give(item) in (None, Reason.REVOKED)
        assert ids(peer) == {third.id, revoke("alice", "helper", 2).id}


def test_d1_the_ids_that_stay_stay() -> None:
    kept, cut = share("helper", act=HELPER), share("helper", 2, act=HELPER)
    ended = revoke("alice", "helper", 1, (kept.id,))
    assert ids(Peer(HEAD, T0, kept, cut, ended)) == {kept.id, ended.id}
    peer = Peer(HEAD, T0, ended)
    assert peer.give(cut) is Reason.REVOKED
    assert peer.give(kept) is None


def test_d1_the_highest_serial_counts_and_at_a_tie_the_lowest_id() -> None:
    item = share("helper", act=HELPER)
    high, low = revoke("alice", "helper", 2), revoke("alice", "helper", 1, (item.id,))
    for order in itertools.permutations([item, high, low]):
        peer = Peer(HEAD)
        for each in order:
            peer.give(each)
        assert ids(peer) == {high.id, low.id}
    tied = sorted([revoke("alice", "helper", 1, (item.id,)), revoke("alice", "helper", 1)], key=lambda each: each.id)
    peer = Peer(HEAD, T0, *tied)
    keeps = isinstance(tied[0].body, Revoke) and bool(tied[0].body.kept)
    assert (peer.give(item) is None) == keeps


def test_d1_a_later_revoke_that_keeps_more_brings_back_what_is_still_aside() -> None:
    item = share("helper", act=HELPER)
    peer = Peer(HEAD, T0, item, revoke("alice", "helper", 1))
    assert not peer.has(item)
    peer.admit(revoke("alice", "helper", 2, (item.id,)))
    assert peer.has(item)


def test_d1_a_revoke_ends_no_delegation_of_another_principal_or_agent() -> None:
    others = [share("helper", act=act_for("bob", "helper")), share("other", act=act_for("alice", "other"))]
    peer = Peer(HEAD, T0, *others, revoke("alice", "helper", 9))
    assert all(peer.has(item) for item in others)


def test_d1_an_agent_cannot_revoke_in_its_principals_name() -> None:
    ended = envelope(Kind.REVOKE, "helper", Revoke(address("other"), None, 1, ()), T0, 0, HELPER)
    assert Peer(HEAD).give(ended) is Reason.NOT_LISTED


def test_d1_a_revoked_agents_retract_no_longer_hides() -> None:
    item, hidden = share("helper", act=act_for("bob", "helper")), retract("helper", act=HELPER)
    peer = Peer(HEAD, T0, item, hidden)
    (version,) = asset_view(peer.set, subject("helper").asset, T0).versions
    assert not version.is_visible
    changes = peer.admit(revoke("alice", "helper"))
    assert subject("helper").asset in changes.assets
    (version,) = asset_view(peer.set, subject("helper").asset, T0).versions
    assert version.is_visible


def test_d1_role_and_rights_are_the_principals_and_the_delegations() -> None:
    peer = Peer(HEAD)
    assert peer.give(share("helper")) is Reason.NOT_LISTED
    assert peer.give(share("helper", act=act_for("stranger", "helper"))) is Reason.NOT_LISTED
    only_publish = act_for("alice", "helper", rights=Right.PUBLISH)
    assert peer.give(share("helper", act=only_publish)) is Reason.NOT_LISTED
    assert peer.give(publish("helper", act=only_publish)) is None
    assert peer.give(share("helper", act=HELPER)) is None
    assert peer.give(endorse("helper", subject("helper"))) is Reason.NOT_LISTED


def test_d1_an_unsigned_delegation_is_refused() -> None:
    from dataclasses import replace

    forged = replace(HELPER, signature=act_for("bob", "helper").signature)
    assert Peer(HEAD).give(share("helper", act=forged)) is Reason.WRONG_SIGNER


def test_a_revoked_peer_is_known_by_its_highest_serial() -> None:
    peer = Peer(HEAD)
    for serial in (3, 7, 5):
        peer.admit(envelope(Kind.REVOKE, "alice", Revoke(None, "12D3", serial, ()), T0, 0))
    assert peer.set.revoked_peer_serial(address("alice"), "12D3") == 7
    assert peer.set.revoked_peer_serial(address("bob"), "12D3") == 0
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert peer.set.revoked_peer_serial(address("alice"), "12D3") == 0


# A1, A2


def test_a1_any_member_promises_copies_and_the_furthest_date_counts() -> None:
    peer = Peer(HEAD, T0, ack("v1"), ack("v1", life=3 * DAY), ack("alice"), ack("v2", "b"))
    assert peer.give(ack("stranger")) is Reason.NOT_LISTED
    assert copies(peer.set, root_of("a"), T0) == {address("v1"): T0 + 3 * DAY, address("alice"): T0 + DAY}
    assert copies(peer.set, root_of("a"), T0 + 2 * DAY) == {address("v1"): T0 + 3 * DAY}


def test_a1_a_promise_holds_until_its_end_and_a_shorter_one_takes_nothing_back() -> None:
    promises = [ack("bob", life=life) for life in (2 * DAY, DAY, 3 * DAY, HOUR)]
    peer = Peer(HEAD, T0, *promises, ack("alice"))
    assert copies(peer.set, root_of("a"), T0) == {address("bob"): T0 + 3 * DAY, address("alice"): T0 + DAY}
    assert copies(peer.set, root_of("a"), T0 + DAY) == {address("bob"): T0 + 3 * DAY}
    assert copies(peer.set, root_of("a"), T0 + 3 * DAY) == {}


def test_a1_an_ack_enters_no_view() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    before = asset_view(peer.set, subject("alice").asset, T0).versions
    assert peer.admit(ack("v1")).assets == frozenset()
    assert asset_view(peer.set, subject("alice").asset, T0).versions == before


def test_a2_a_writer_proposes_for_the_heads_quorum_and_the_furthest_deadline_counts() -> None:
    about = subject("alice")
    peer = Peer(HEAD, T0, propose("alice", about, Q), propose("bob", about, Q, life=2 * DAY))
    assert deadline(peer.set, about, T0) == T0 + 2 * DAY
    assert deadline(peer.set, about, T0 + 2 * DAY) is None
    assert list(peer.set.proposed()) == [about]
    assert peer.give(propose("v1", about, Q)) is Reason.NOT_LISTED
    other = roster(MEMBERS, 1).quorum
    assert peer.give(propose("alice", about, other)) is Reason.WRONG_QUORUM
    peer.set.set_head(roster(MEMBERS, 1, parent=HEAD), T0)
    assert deadline(peer.set, about, T0) is None


def test_a2_a_writer_claims_an_anchor() -> None:
    peer = Peer(HEAD)
    assert peer.give(anchor("v1", subject("alice"))) is Reason.NOT_LISTED
    assert peer.give(anchor("alice", subject("alice"))) is None


# The machine


def test_a_refusal_changes_nothing_and_the_cheapest_test_comes_first() -> None:
    peer = Peer(HEAD)
    forged = share("alice").unsigned.sign(KeyOf("alice"))
    assert peer.give(forged) is Reason.WRONG_SIGNER
    assert list(peer.set.known()) == []
    stranger = share("stranger").unsigned.sign(KeyOf("stranger"))
    assert peer.give(stranger) is Reason.NOT_LISTED
    assert peer.give(share("alice")) is None
    assert peer.give(forged) is Reason.DUPLICATE


class KeyOf(Key):
    """Claims to be somebody else."""

    def __init__(self, name: str) -> None:
        super().__init__(b"\x07" * 32)
        self.address = address(name)


def test_what_was_signed_for_another_network_or_graph_is_refused() -> None:
    from dataclasses import replace

    from p2pmem_protocol.graphset import GraphSet

    item = share("alice")
    with pytest.raises(Exception, match="wrong-network"):
        GraphSet(GRAPH, network_id("other")).admit(item, 1, T0)
    with pytest.raises(Exception, match="unknown-graph"):
        GraphSet(type(GRAPH)(b"g" * 32), NETWORK).admit(item, 1, T0)
    other = replace(item.unsigned, network=network_id("other"))
    assert isinstance(other, Unsigned)
    assert other.id != item.id


def test_testing_reads_no_signature_and_changes_nothing() -> None:
    peer = Peer(HEAD)
    item = share("alice")
    peer.set.test(item, size_of(item), T0)
    assert list(peer.set.known()) == []
    peer.admit(item)


def test_restored_things_stand_as_they_stood() -> None:
    items = [share("alice"), share("bob"), verdict("v1", subject("bob"), Q), retract("bob", version=9)]
    peer = Peer(HEAD, T0, *items)
    without = roster(WITHOUT_ALICE, 2, parent=HEAD)
    peer.set.set_head(without, T0 + HOUR)
    again = Peer()
    for item in items:
        record = peer.set.record(item.id)
        assert record is not None
        again.set.restore(item, size_of(item), record.state, record.since_ms)
    changes = again.set.set_head(without, T0 + 2 * HOUR)
    assert (changes.entered, changes.left, changes.aside) == ((), (), ())
    assert ids(again) == ids(peer)
    assert again.set.reconciled(T0) == peer.set.reconciled(T0)
    assert again.set.sweep(T0 + HOUR + CUT_KEPT_ASIDE_MS) == peer.set.sweep(T0 + HOUR + CUT_KEPT_ASIDE_MS)
    with pytest.raises(BugError):
        again.set.restore(share("alice", 5), 1, State.IN)


def test_the_content_to_hold_follows_the_set() -> None:
    one, other = share("alice", size=20), share("bob", size=20, life=HOUR)
    peer = Peer(HEAD, T0, one, other)
    (content_hash,) = peer.set.contents()
    assert peer.set.holders(content_hash) == 2
    peer.set.sweep(T0 + HOUR)
    assert peer.set.holders(content_hash) == 1
    peer.admit(retract("alice", mode=RetractMode.ERASE))
    assert list(peer.set.contents()) == []


def test_an_ordinary_admission_settles_no_account_again() -> None:
    peer = Peer(HEAD)
    before = peer.set.statistics().settled
    for number in range(1, 50):
        peer.admit(share("alice", number, issued=T0 + number * SECOND % MINUTE))
    peer.admit(retract("alice", version=3))
    peer.admit(verdict("v1", subject("alice", 5), Q))
    assert peer.set.statistics().settled == before
    assert peer.set.statistics().in_set == len(peer.set) == 51


def test_a_head_that_only_adds_a_member_settles_no_account_again() -> None:
    peer = Peer(HEAD, T0, *(share("alice", number) for number in range(1, 9)), verdict("v1", subject("alice"), Q))
    before = peer.set.statistics().settled
    joined = roster({**MEMBERS, "carol": W}, 2, parent=HEAD)
    assert not peer.set.set_head(joined, T0)
    assert peer.set.statistics().settled == before
    peer.admit(share("carol"))
    assert peer.set.set_head(HEAD, T0).left
    assert peer.set.statistics().settled == before + 1


def test_changes_name_the_assets_whose_view_may_have_changed() -> None:
    peer = Peer(HEAD)
    asset = AssetKey(address("alice"), "asset")
    about = subject("alice")
    for item in (
        share("alice"),
        verdict("v1", about, Q),
        propose("bob", about, Q),
        retract("alice"),
        anchor("bob", about),
    ):
        assert peer.admit(item).assets == {asset}
    assert peer.set.set_head(roster(MEMBERS, 1, parent=HEAD), T0).assets == {asset}
    assert peer.set.sweep(T0 + DAY).assets == {asset}


def test_a_head_that_judges_otherwise_changes_views_also_where_the_set_stays() -> None:
    said = [verdict(name, subject("alice"), Q) for name in ("v1", "v2")]
    kept = tuple(item.id for item in said)
    listing = roster(MEMBERS, 1, parent=HEAD, kept=kept, certificates=(world.certificate(subject("alice"), Q, *said),))
    peer = Peer(HEAD, T0, share("alice"), *said)
    peer.set.set_head(listing, T0)
    changes = peer.set.set_head(roster(MEMBERS, 1, parent=listing, kept=kept), T0)
    assert (changes.entered, changes.left) == ((), ())
    assert changes.assets == {subject("alice").asset}


def test_a_retract_may_come_before_what_it_takes_back() -> None:
    peer = Peer(HEAD, T0, retract("alice", mode=RetractMode.ERASE))
    assert peer.give(share("alice")) is Reason.ERASED


def test_a_reader_may_not_write() -> None:
    peer = Peer(roster({"alice": Role.READER}))
    for item in (share("alice"), publish("alice"), anchor("alice", subject("alice"))):
        assert peer.give(item) is Reason.NOT_LISTED
    assert peer.give(ack("alice")) is None


def test_a_revocation_names_one_of_agent_and_peer() -> None:
    with pytest.raises(MisuseError):
        Revoke(address("alice"), "12D3", 1, ())
