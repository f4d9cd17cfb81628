"""The set: quotas, Q1 to Q3, and what is reconciled, R1 and R2, each in a test that bears its name."""

from __future__ import annotations

import itertools

from p2pmem_protocol.bodies import RetractMode
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import ACK_MS_MAX, DEADLINE_MS_MAX
from p2pmem_protocol.records import FOREVER, State
from p2pmem_protocol.roster import Quotas
from p2pmem_protocol.view import asset_view

from tests.protocol.set_world import HEAD, HELPER, MEMBERS, Q, ids, limited
from tests.protocol.world import (
    DAY,
    HOUR,
    MINUTE,
    T0,
    Peer,
    ack,
    anchor,
    endorse,
    propose,
    publish,
    retract,
    revoke,
    roster,
    share,
    size_of,
    subject,
)

# Q1 to Q3


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
