"""The set: rules H3, H4, K1, K2, D1, A1 and A2, each in a test that bears its name."""

from __future__ import annotations

import itertools

import pytest
from p2pmem_protocol.bodies import RetractMode, Revoke
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import Unsigned
from p2pmem_protocol.errors import BugError, MisuseError, Reason
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CUT_KEPT_ASIDE_MS
from p2pmem_protocol.names import AssetKey, network_id
from p2pmem_protocol.records import State
from p2pmem_protocol.roster import Role
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import asset_view, copies, deadline, explain

from tests.protocol import world
from tests.protocol.set_world import HEAD, HELPER, MEMBERS, WITHOUT_ALICE, Q, ids, removed
from tests.protocol.world import (
    DAY,
    GRAPH,
    HOUR,
    MINUTE,
    NETWORK,
    SECOND,
    T0,
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
    withdraw,
)

# H3, H4


def test_h3_what_a_head_change_cuts_is_kept_aside_a_day_and_then_goes() -> None:
    peer = Peer(HEAD, T0, share("alice", life=5 * DAY))
    changes = peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    assert [departure.state for departure in changes.left] == [State.CUT]
    assert ids(peer) == set()
    assert peer.set.reconciled(T0) == []
    assert peer.set.next_end_ms() == T0 + CUT_KEPT_ASIDE_MS, "nothing else need end for it to go"
    assert not peer.set.sweep(T0 + CUT_KEPT_ASIDE_MS - 1)
    gone = peer.set.sweep(T0 + CUT_KEPT_ASIDE_MS)
    assert [departure.state for departure in gone.aside] == [State.FORGOTTEN]
    assert list(peer.set.known()) == []


def test_h3_what_was_cut_together_goes_piece_by_piece() -> None:
    cut = [share("alice", version, life=5 * DAY) for version in (1, 2, 3)]
    peer = Peer(HEAD, T0, *cut)
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    due_ms = T0 + CUT_KEPT_ASIDE_MS
    assert len(peer.set.sweep(due_ms, 2).aside) == 2
    assert peer.set.next_end_ms() == due_ms
    assert len(peer.set.sweep(due_ms, 2).aside) == 1
    assert list(peer.set.known()) == []


def test_h3_what_the_head_of_a_start_cuts_is_kept_aside_a_day_from_then() -> None:
    graph_set, it = GraphSet(GRAPH, NETWORK), share("alice", life=5 * DAY)
    graph_set.restore(it, size_of(it), State.IN)
    graph_set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0 + DAY, lets_go=False)
    graph_set.sweep(T0 + DAY)
    assert graph_set.state_of(it.id) is State.CUT
    assert graph_set.next_end_ms() == T0 + DAY + CUT_KEPT_ASIDE_MS


def test_h3_it_comes_back_when_a_head_change_restores_the_right() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    changes = peer.set.set_head(HEAD, T0 + HOUR)
    assert changes.entered == (share("alice").id,)


def test_h3_while_the_graph_is_forked_nothing_that_was_cut_goes() -> None:
    peer = Peer(HEAD, T0, share("alice", life=5 * DAY))
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0)
    peer.set.set_head(roster(WITHOUT_ALICE, 2, parent=HEAD), T0 + HOUR, forked=True)
    assert peer.set.next_end_ms() == T0 + 5 * DAY
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
    peer.set.set_head(listing, T0, named=(Q.id,))
    changes = peer.set.set_head(roster(MEMBERS, 1, parent=listing, kept=kept), T0, named=(Q.id,))
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
