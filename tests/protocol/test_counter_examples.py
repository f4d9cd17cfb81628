"""The attacks and accidents that shaped the rules, each by its name: B1 to B9, B11, S1 to S8.

S3 was about the keys of an epoch: there are none, since what is gated goes only to members, over their own streams.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from p2pmem_protocol.authoring import StaleVersionError, may_seal
from p2pmem_protocol.bodies import Sealed
from p2pmem_protocol.certificate import headers_for, make
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import Penalty, Reason
from p2pmem_protocol.evidence import Evidence, Method
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.names import GraphName, VersionKey
from p2pmem_protocol.roster import Quorum, Quotas, Role
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import Anchored, asset_view, explain

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
    address,
    anchor,
    certificate,
    endorse,
    publish,
    reject,
    retract,
    root_of,
    roster,
    share,
    subject,
    verdict,
)

MEMBERS = {"alice": W, "bob": E, "v1": V, "v2": V, "v3": V, "v4": V}
HEAD = roster(MEMBERS, 3)
Q = HEAD.quorum
ABOUT = subject("alice")


def level(peer: Peer, about: VersionKey = ABOUT, t_ms: int = T0) -> Trust:
    found = explain(peer.set, about, t_ms)
    assert found is not None
    return found.level


def without(*names: str) -> dict[str, Role]:
    return {name: roles for name, roles in MEMBERS.items() if name not in names}


def consensus() -> list[Item]:
    return [share("alice", life=20 * DAY), *(verdict(name, ABOUT, Q) for name in ("v1", "v2", "v3"))]


def test_b1_a_twin_of_an_old_word_with_a_lower_id_rewrites_nothing() -> None:
    peer = Peer(HEAD, T0, *consensus())
    twins = [reject("v1", ABOUT, Q, method, str(number)) for number in range(20) for method in Method]
    for twin in twins:
        assert peer.give(twin) in (None, Reason.SUPERSEDED)
        assert level(peer) is Trust.CONSENSUS_VERIFIED
    removed = roster(without("v1"), 3, parent=HEAD, certificates=(certificate(ABOUT, Q, *_verdicts(consensus())),))
    peer.set.set_head(removed, T0, named=(Q.id,))
    for number in range(20, 40):
        assert peer.give(reject("v1", ABOUT, Q, reason=str(number))) is not None
        assert peer.give(verdict("v1", ABOUT, Q, reason=str(number))) is not None
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_b1_two_contents_of_one_version_are_a_conflict_and_evidence_stays_with_its_root() -> None:
    peer = Peer(HEAD, T0, *consensus(), share("alice", 1, "b", life=HOUR))
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    assert level(peer, subject("alice", 1, "b")) is Trust.SELF_ATTESTED
    assert all(version.conflict for version in asset_view(peer.set, ABOUT.asset, T0).versions)
    peer.set.sweep(T0 + HOUR)
    assert level(peer, t_ms=T0 + HOUR) is Trust.CONSENSUS_VERIFIED


def test_b2_a_removed_member_gets_nothing_in_whatever_date_or_roster_it_names() -> None:
    old, hole = share("alice", 1), share("alice", 2, life=2 * DAY)
    peer = Peer(roster(without("alice"), 3, parent=HEAD, kept=(old.id,)))
    assert peer.give(old) is None
    for issued in (T0 - 20 * DAY, T0 - DAY, T0):
        assert peer.give(share("alice", 3, issued=issued, life=25 * DAY)) is Reason.NOT_LISTED
    assert peer.give(hole) is Reason.NOT_LISTED
    assert Reason.NOT_LISTED.penalty is Penalty.NONE


def test_b2_an_honest_twin_from_a_restored_backup_hurts_nobody() -> None:
    """Two nodes of one agent sign without knowing of each other: both words stay, and the next version names one."""
    peer = Peer(HEAD, T0, share("alice", 1, "a"), share("alice", 1, "b"))
    assert len(asset_view(peer.set, ABOUT.asset, T0).current(Floor())) == 2


def test_b3_a_removed_owner_cannot_win_by_length_or_by_grinding() -> None:
    mended = roster({"alice": W}, 0, parent=HEAD, owner="new-owner", term=2)
    chain = HeadChain(GRAPH, NETWORK)
    chain.add(HEAD.signed)
    chain.add(mended.signed)
    rival = HEAD
    for number in range(5):
        rival = roster({**MEMBERS, f"friend-{number}": W}, 3, parent=rival)
        chain.add(rival.signed)
    assert chain.head().header == mended.signed


def test_b3_two_honest_changes_in_one_minute_freeze_at_the_parent_until_the_root_mends_it() -> None:
    one, two = (roster({**MEMBERS, name: W}, 3, parent=HEAD) for name in ("dan", "eve"))
    for order in itertools.permutations([one, two]):
        chain = HeadChain(GRAPH, NETWORK)
        chain.add_all([HEAD.signed, *(each.signed for each in order)])
        assert chain.head().header == HEAD.signed
        assert chain.head().forked
        chain.add(roster({**MEMBERS, "dan": W, "eve": W}, 3, parent=HEAD, term=chain.next_term).signed)
        assert not chain.head().forked


def test_b4a_verdicts_add_up_when_a_member_joins_meanwhile() -> None:
    peer = Peer(HEAD, T0, share("alice"), verdict("v1", ABOUT, Q), verdict("v2", ABOUT, Q))
    joined = roster({**MEMBERS, "reader": Role.READER}, 3, parent=HEAD)
    assert joined.quorum == Q
    peer.set.set_head(joined, T0)
    peer.admit(verdict("v3", ABOUT, Q))
    assert level(peer) is Trust.CONSENSUS_VERIFIED


def test_b4b_a_verdict_under_an_easier_old_quorum_makes_no_consensus() -> None:
    easy = roster(MEMBERS, 1)
    now = roster(MEMBERS, 3, parent=easy)
    peer = Peer(now, T0, share("alice"))
    assert peer.give(verdict("v1", ABOUT, easy.quorum)) is Reason.WRONG_QUORUM
    assert level(peer) is Trust.SELF_ATTESTED


def test_b4c_leaked_keys_of_former_verifiers_make_nothing() -> None:
    now = roster(without("v1", "v2"), 2, parent=HEAD)
    peer = Peer(now, T0, share("alice"))
    for under in (Q, now.quorum):
        for name in ("v1", "v2"):
            assert peer.give(verdict(name, ABOUT, under)) in (Reason.WRONG_QUORUM, Reason.NOT_LISTED)
    assert level(peer) is Trust.SELF_ATTESTED


def test_b5_what_was_published_is_there_for_who_joins_on_day_31() -> None:
    peer = Peer(HEAD, T0, *consensus(), publish("alice"))
    late = T0 + 31 * DAY
    peer.set.sweep(late)
    joiner = Peer(HEAD, late)
    brought = {item_id for _, item_id in peer.set.reconciled(late)}
    for item in (publish("alice"), *consensus()):
        assert item.id not in brought or joiner.give(item, late) is None
    assert level(joiner, t_ms=late) is Trust.CONSENSUS_VERIFIED
    assert asset_view(joiner.set, ABOUT.asset, late).versions[0].published


def test_b6_only_the_creator_can_found_a_graph_and_a_batch_leaf_is_a_seal_digest() -> None:
    assert GraphName(address("mallory"), "things").id != GRAPH
    body, copied = share("alice").body, share("bob").body
    assert isinstance(body, Sealed)
    assert isinstance(copied, Sealed)
    assert body.seal.seal.root == copied.seal.seal.root
    assert body.seal.seal.digest != copied.seal.seal.digest


def test_b7_one_statement_is_true_with_or_without_a_chain_and_void_in_another_network() -> None:
    body = share("alice").body
    assert isinstance(body, Sealed)
    seal = body.seal.seal
    assert "chainId" not in str(seal.typed_data()["domain"])
    other = replace(seal, network=world.network_id("other"))
    assert other.digest != seal.digest


def test_b8a_clocks_apart_move_nothing_in_idle_rounds_while_much_ends() -> None:
    items = [share("alice", name=f"asset-{n}", life=n * SECOND) for n in range(1, 200)]
    a, b = Peer(HEAD, T0, *items), Peer(HEAD, T0, *items)
    for now in range(T0, T0 + 3 * MINUTE, 7 * SECOND):
        a.set.sweep(now + 20 * SECOND)
        b.set.sweep(now)
        at_ms = max(now + 20 * SECOND, now)
        assert a.set.reconciled(at_ms) == b.set.reconciled(at_ms)


def test_b8b_who_heard_the_removal_first_and_who_heard_it_last_agree() -> None:
    removed = roster(without("alice"), 3, parent=HEAD)
    early, late = Peer(removed), Peer(HEAD, T0, share("alice"))
    assert early.give(share("alice")) is Reason.NOT_LISTED
    late.set.set_head(removed, T0)
    assert early.set.reconciled(T0) == late.set.reconciled(T0) == []


def test_b8c_what_is_not_decidable_yet_is_dropped_without_blame_and_not_parked() -> None:
    peer = Peer(HEAD)
    for item, reason in (
        (verdict("v1", ABOUT, Q), Reason.SUBJECT_NOT_HELD),
        (share("dan"), Reason.NOT_LISTED),
        (verdict("v1", ABOUT, Quorum(GRAPH, 2**31, 1, (address("v1"),))), Reason.WRONG_QUORUM),
    ):
        assert peer.give(item) is reason
        assert reason.penalty is Penalty.NONE
    assert list(peer.set.known()) == []


def test_b9a_an_ended_version_revives_no_older_one() -> None:
    v2, v3 = share("alice", 2, life=30 * DAY), share("alice", 3, life=HOUR)
    peer = Peer(HEAD, T0, v2, v3)
    joiner = Peer(HEAD, T0 + 2 * HOUR, v2)
    for each, now in ((peer, T0), (peer, T0 + 2 * HOUR), (joiner, T0 + 2 * HOUR)):
        assert [it.key.version for it in asset_view(each.set, ABOUT.asset, now).current(Floor())] == [2]


def test_b9b_an_unverified_version_hides_no_verified_one() -> None:
    peer = Peer(HEAD, T0, *consensus(), share("alice", 2, life=21 * DAY))
    view = asset_view(peer.set, ABOUT.asset, T0)
    assert [it.key.version for it in view.current(Floor(Trust.CONSENSUS_VERIFIED))] == [1]
    assert [it.key.version for it in view.current_at_any_floor()] == [2, 1]


def test_b11_quotas_bound_what_one_member_can_store_and_hurt_only_that_member() -> None:
    head = roster(MEMBERS | {"carol": W}, 3, quotas=Quotas(live_items=5, durable_items=2, cuts=3))
    peer = Peer(head, T0, share("carol"))
    rng = random.Random(11)
    for number in range(1, 200):
        made = rng.choice((share, publish, retract))
        peer.give(made("alice", version=number, issued=T0 - rng.randrange(HOUR)))
        peer.give(endorse("stranger", subject("carol"), reason=str(number)))
    assert len(peer.set) == 5 + 2 + 3 + 1
    assert peer.has(share("carol"))
    assert peer.set.statistics().aside < 200


def test_b11_a_second_key_endorses_nothing() -> None:
    peer = Peer(roster(MEMBERS, 3, access=world.Access.OPEN), T0, share("alice"))
    assert peer.give(endorse("alice-2", ABOUT)) is Reason.NOT_LISTED
    assert peer.give(share("anyone")) is Reason.NOT_LISTED


def test_s1_chain_facts_are_an_input_of_the_view_and_never_of_trust_or_layer() -> None:
    peer = Peer(HEAD, T0, publish("alice"), anchor("alice", ABOUT))
    views = [
        asset_view(peer.set, ABOUT.asset, T0, {ABOUT: fact} if fact else None).versions[0]
        for fact in (None, Anchored.CONFIRMED, Anchored.REVERTED)
    ]
    assert len({view.anchored for view in views}) == 3
    assert len({(view.published, view.trust.level, view.is_visible) for view in views}) == 1


def test_s2_evidence_does_not_outlive_its_subject_and_counts_again_when_it_is_shared_again() -> None:
    items = consensus()
    peer = Peer(HEAD, T0, *items)
    peer.set.sweep(T0 + 20 * DAY)
    assert list(peer.set.known()) == []
    again = share("alice", issued=T0 + 21 * DAY)
    now = T0 + 21 * DAY
    peer.admit(again, now)
    for item in _verdicts(items):
        assert peer.give(item, now) is None
    assert level(peer, t_ms=now) is Trust.CONSENSUS_VERIFIED


def test_s4_approval_is_final_the_author_never_counts_and_a_late_verdict_counts() -> None:
    peer = Peer(HEAD, T0, *consensus())
    for name in ("v1", "v2", "v3", "v4"):
        peer.admit(reject(name, ABOUT, Q))
    assert level(peer) is Trust.CONSENSUS_VERIFIED
    late = Peer(HEAD, T0, share("alice", life=20 * DAY), *_verdicts(consensus())[:2])
    assert late.give(verdict("v3", ABOUT, Q), T0 + 19 * DAY) is None
    assert level(late, t_ms=T0 + 19 * DAY) is Trust.CONSENSUS_VERIFIED


def test_s4_peers_with_other_signatures_make_certificates_that_state_the_same() -> None:
    chain = HeadChain(GRAPH, NETWORK)
    chain.add(HEAD.signed)
    body = share("alice").body
    assert isinstance(body, Sealed)
    four = [verdict(name, ABOUT, Q) for name in ("v1", "v2", "v3", "v4")]
    made = [make(body.seal, Q, some, headers_for(chain, Q)) for some in itertools.combinations(four, 3)]
    assert len({each.encode() for each in made}) == 4
    assert len({each.check() for each in made}) == 1


def test_s5_a_certificate_proves_who_the_verifiers_were_without_the_list_of_members() -> None:
    chain = HeadChain(GRAPH, NETWORK)
    chain.add(HEAD.signed)
    body = share("alice").body
    assert isinstance(body, Sealed)
    made = make(body.seal, Q, _verdicts(consensus()), headers_for(chain, Q))
    assert bytes(address("bob")) not in made.encode()
    assert made.check().as_of == HEAD.signed


def test_s6_a_smaller_quorum_is_seen_in_m_of_n_and_a_floor_can_ask_for_a_least_m() -> None:
    small = roster({"alice": W, "owner": V}, 1, parent=HEAD)
    peer = Peer(small, T0, share("alice"), verdict("owner", ABOUT, small.quorum))
    view = asset_view(peer.set, ABOUT.asset, T0)
    assert view.versions[0].trust.shown == "ConsensusVerified, 1 of 1, 1 needed, 1 auto"
    assert view.current(Floor(Trust.CONSENSUS_VERIFIED, least_m=2)) == ()


def test_s7_a_view_asked_for_a_wrong_time_erases_nothing() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    year_2036 = T0 + 10 * 365 * DAY
    assert asset_view(peer.set, ABOUT.asset, year_2036).versions == ()
    assert peer.set.reconciled(year_2036) == []
    assert asset_view(peer.set, ABOUT.asset, T0).versions


def test_s8_compare_and_set_is_checked_where_the_author_signs_and_nowhere_else() -> None:
    unknown = share("alice", 5, previous=root_of("nobody has this"))
    assert Peer(HEAD).give(unknown) is None
    body = unknown.body
    assert isinstance(body, Sealed)
    with pytest.raises(StaleVersionError):
        may_seal([subject("alice", 3)], body.seal.seal)


def _verdicts(items: list[Item]) -> list[Evidence]:
    return [item for item in items if isinstance(item, Evidence)]
