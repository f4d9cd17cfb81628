"""Versions: rules V1 to V4, and what an author's node refuses to sign."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from p2pmem_protocol import view as view_module
from p2pmem_protocol.authoring import (
    EndsTooEarlyError,
    EndsTooLateError,
    OtherSealError,
    RetractedVersionError,
    StaleVersionError,
    may_publish,
    may_seal,
    may_share,
)
from p2pmem_protocol.bodies import Retract, RetractMode
from p2pmem_protocol.envelope import Envelope, Item, decode_item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.names import VersionKey
from p2pmem_protocol.records import SealedRecord
from p2pmem_protocol.roster import Roster
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.trust import Floor, Trust, assess
from p2pmem_protocol.view import Anchored, AssetView, asset_view, explain

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
    act_for,
    address,
    anchor,
    endorse,
    publish,
    reject,
    retract,
    root_of,
    roster,
    share,
    signer,
    subject,
    verdict,
)

MEMBERS = {"alice": W, "bob": W | E, "carol": W, "v1": V, "v2": V}
HEAD = roster(MEMBERS, 1)
Q = HEAD.quorum
ASSET = subject("alice").asset
ANY = Floor()


def viewed(*items: Item, t_ms: int = T0, head: Roster = HEAD) -> AssetView:
    return asset_view(Peer(head, T0, *items).set, ASSET, t_ms)


def numbers(view: AssetView, floor: Floor = ANY) -> list[int]:
    return [version.key.version for version in view.current(floor)]


def visible(view: AssetView) -> list[int]:
    return [version.key.version for version in view.visible()]


# Which content is that of a version


def test_content_is_that_of_the_lowest_id_that_is_not_known_to_name_other_content() -> None:
    low, high = sorted((share("alice", size=10), share("alice", size=20)), key=lambda it: it.id)
    held = Peer(HEAD, T0, low, high).set

    def shown() -> tuple[bytes, int]:
        (version,) = asset_view(held, ASSET, T0).visible()
        return version.content_hash, version.content_length

    def names(item: Item) -> SealedRecord:
        record = held.record(item.id)
        assert isinstance(record, SealedRecord)
        return record

    assert shown() == (names(low).content_hash, names(low).content_length)
    names(low).content_is_other = True
    assert shown() == (names(high).content_hash, names(high).content_length)
    names(high).content_is_other = True
    assert shown() == (bytes(32), 0), "the version is there, and has no content"


# V1


def test_v1_a_share_that_ends_before_a_lower_versions_does_not_count() -> None:
    view = viewed(share("alice", 1, life=DAY), share("alice", 2, life=HOUR))
    assert numbers(view) == [1]
    assert [version.barred for version in view.versions] == [True, False]
    assert numbers(viewed(share("alice", 1, life=DAY), share("alice", 2, life=DAY))) == [2]


def test_v1_it_is_no_admission_test() -> None:
    for order in itertools.permutations([share("alice", 1, life=DAY), share("alice", 2, life=HOUR)]):
        peer = Peer(HEAD, T0, *order)
        assert len(peer.set) == 2


def test_v1_each_root_is_judged_by_its_latest_end() -> None:
    lower = share("alice", 1, life=DAY)
    early, late = share("alice", 2, "b", life=HOUR), share("alice", 2, "c", life=2 * DAY)
    view = viewed(lower, early, late)
    assert {version.key.root: version.barred for version in view.versions if version.key.version == 2} == {
        root_of("b"): True,
        root_of("c"): False,
    }
    assert numbers(viewed(lower, early, share("alice", 2, "b", issued=T0 + 1, life=DAY))) == [2]


def test_v1_a_publish_is_outside_it() -> None:
    assert numbers(viewed(publish("alice", 1), share("alice", 2, life=HOUR))) == [2]
    assert numbers(viewed(share("alice", 1, life=DAY), publish("alice", 2))) == [2]
    both = viewed(share("alice", 1, life=DAY), share("alice", 2, life=HOUR), publish("alice", 2))
    assert numbers(both) == [2]
    assert both.versions[0].shared_until_ms is None
    assert both.versions[0].shares_end_ms == T0 + HOUR


def test_v1_the_author_is_refused_in_either_direction() -> None:
    view = viewed(share("alice", 1, life=DAY))
    seal = next_seal(2)
    with pytest.raises(EndsTooEarlyError):
        may_share(view, seal, T0 + HOUR)
    may_share(view, seal, T0 + DAY)
    view = viewed(share("alice", 1, life=DAY), share("alice", 2, life=2 * DAY))
    with pytest.raises(EndsTooLateError):
        may_share(view, first_seal(), T0 + 3 * DAY)
    may_share(view, first_seal(), T0 + 2 * DAY)
    may_share(view, next_seal(2), T0 + HOUR)


# V2


def test_v2_a_retract_covers_all_roots_of_a_version_also_later_ones() -> None:
    items = [retract("alice"), share("alice", 1, "a"), share("alice", 1, "b")]
    for order in itertools.permutations(items):
        assert visible(viewed(*order)) == []


def test_v2_the_authors_retract_hides_lower_versions_too() -> None:
    shares = [share("alice", number, life=DAY + number) for number in (1, 2, 3)]
    assert visible(viewed(*shares, retract("alice", version=2))) == [3]


def test_v2_a_successor_that_is_lower_stays_and_no_other_comes_back() -> None:
    shares = [share("alice", number, life=DAY + number) for number in (1, 2, 3)]
    assert visible(viewed(*shares, retract("alice", version=3, successor=1))) == [1]
    assert visible(viewed(*shares, retract("alice", version=3, successor=4))) == []


def test_v2_a_principal_takes_back_what_was_said_for_it() -> None:
    for_bob = share("alice", act=act_for("bob", "alice"))
    lower = share("alice", 2, act=act_for("bob", "alice"), life=2 * DAY)
    taken_back = retract("bob", "alice", 2, shown=act_for("bob", "alice"))
    assert visible(viewed(for_bob, lower, taken_back)) == []


def test_v2_a_delegation_that_only_the_principal_signed_takes_back_nothing() -> None:
    """Whoever is listed could hide anybody's words, if the delegation that he signs himself were enough."""
    peer = Peer(HEAD, T0, share("alice"), share("alice", 2, life=2 * DAY))
    claimed = retract("bob", "alice", 2, shown=act_for("bob", "alice"), mode=RetractMode.ERASE)
    peer.admit(claimed)
    assert visible(asset_view(peer.set, ASSET, T0)) == [2, 1]
    assert peer.give(retract("bob", "alice", 2)) is Reason.NOT_LISTED


def test_v2_a_retract_shows_a_delegation_by_its_signer_to_the_author_of_the_words() -> None:
    good = retract("bob", "alice", shown=act_for("bob", "alice"))
    assert decode_item(good.encode()) == good
    with pytest.raises(RefusedError):
        decode_item(retract("bob", "alice", shown=act_for("carol", "alice")).encode())
    body = good.body
    assert isinstance(body, Retract)
    assert body.shown is not None
    forged = replace(body, shown=replace(body.shown, signature=act_for("carol", "alice").signature))
    from p2pmem_protocol.kinds import Kind

    from tests.protocol.world import envelope

    assert Peer(HEAD).give(envelope(Kind.RETRACT, "bob", forged, T0, 0)) is Reason.WRONG_SIGNER


def test_v2_the_owners_retract_hides_only_that_version() -> None:
    shares = [share("alice", number, life=DAY + number) for number in (1, 2, 3)]
    assert visible(viewed(*shares, retract("owner", "alice", 2))) == [3, 1]


def test_v2_an_agent_acting_for_a_principal_retracts_only_its_own_words() -> None:
    act = act_for("bob", "alice")
    assert visible(viewed(share("alice", act=act), retract("alice", act=act))) == []
    peer = Peer(HEAD)
    assert peer.give(retract("alice", "carol", act=act)) is Reason.NOT_LISTED
    owner = retract("alice", "carol", act=act_for("owner", "alice"))
    assert peer.give(owner) is Reason.NOT_LISTED


def test_v2_who_acts_for_another_does_not_use_its_own_rights_over_others_words() -> None:
    peer = Peer(HEAD, T0, share("carol"))
    assert peer.give(retract("owner", "carol", act=act_for("bob", "owner"))) is Reason.NOT_LISTED
    shown = act_for("bob", "carol")
    assert peer.give(retract("bob", "carol", act=act_for("alice", "bob"), shown=shown)) is Reason.NOT_LISTED


def test_v2_nobody_else_retracts() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    assert peer.give(retract("bob", "alice")) is Reason.NOT_LISTED
    assert peer.give(retract("stranger")) is Reason.NOT_LISTED


def test_v2_what_hides_is_the_retract_of_the_highest_version_and_at_a_tie_the_lowest_id() -> None:
    shares = [share("alice", number, life=DAY + number) for number in (1, 2, 3)]
    twins = sorted((retract("alice", version=2, issued=T0 - n) for n in range(4)), key=lambda item: item.id)
    lower = retract("alice", version=1)
    for order in ((lower, *twins), (*reversed(twins), lower)):
        hidden = {version.key.version: version.hidden_by for version in viewed(*shares, *order).versions}
        assert hidden == {3: None, 2: twins[0].id, 1: twins[0].id}


def test_v2_a_principal_hides_a_version_that_was_also_said_for_others() -> None:
    items = [share("alice"), share("alice", act=act_for("bob", "alice"))]
    assert visible(viewed(*items, retract("bob", "alice", shown=act_for("bob", "alice")))) == []


# V3


ERASING = retract("alice", mode=RetractMode.ERASE)


def test_v3_an_erased_version_is_out_of_the_set_with_its_evidence_now_and_whenever_it_comes_again() -> None:
    peer = Peer(HEAD, T0, share("alice"), publish("alice"), endorse("bob", subject("alice")), share("alice", 2))
    changes = peer.admit(ERASING)
    assert len(changes.left) == 3
    assert {record.id for record in peer.set.records()} == {ERASING.id, share("alice", 2).id}
    assert peer.give(share("alice")) is Reason.ERASED
    assert peer.give(share("alice", 1, "b")) is Reason.ERASED
    assert peer.give(endorse("bob", subject("alice"))) is Reason.SUBJECT_NOT_HELD


def test_v3_bytes_go_unless_another_version_in_the_set_has_the_same() -> None:
    peer = Peer(HEAD, T0, share("alice", size=30), share("bob", name="copy", size=30))
    (content_hash,) = peer.set.contents()
    peer.admit(ERASING)
    assert peer.set.holders(content_hash) == 1
    peer.admit(retract("owner", "bob", name="copy", mode=RetractMode.ERASE))
    assert peer.set.holders(content_hash) == 0


def test_v3_erasing_reaches_what_is_aside() -> None:
    peer = Peer(HEAD, T0, share("alice"))
    without = roster({name: roles for name, roles in MEMBERS.items() if name != "alice"}, 1, parent=HEAD)
    peer.set.set_head(without, T0)
    peer.admit(retract("owner", "alice", mode=RetractMode.ERASE))
    peer.set.set_head(HEAD, T0)
    assert peer.set.state_of(share("alice").id) is None


def test_v3_a_principal_erases_what_was_said_for_it_and_nothing_else() -> None:
    own, for_bob = share("alice"), share("alice", act=act_for("bob", "alice"))
    peer = Peer(HEAD, T0, own, for_bob)
    peer.admit(retract("bob", "alice", shown=act_for("bob", "alice"), mode=RetractMode.ERASE))
    assert peer.has(own)
    assert not peer.has(for_bob)


# V4


def test_v4_two_roots_of_one_version_are_marked_and_both_shown() -> None:
    view = viewed(share("alice", 1, "a"), publish("alice", 1, "b"))
    assert [version.conflict for version in view.current(ANY)] == [True, True]
    assert not viewed(share("alice", 1, "a"), publish("alice", 1, "a")).versions[0].conflict


def test_v4_at_a_floor_those_roots_are_current_that_reach_it() -> None:
    b = subject("alice", root="b")
    view = viewed(share("alice", 1, "a"), share("alice", 1, "b"), endorse("bob", b))
    assert {version.key for version in view.current(Floor(Trust.ENDORSED))} == {b}
    assert len(view.current(ANY)) == 2
    assert [version.conflict for version in view.current(Floor(Trust.ENDORSED))] == [True]


RESEALED = {
    "in another sub-graph": share("alice", 2, subgraph="elsewhere", life=2 * DAY),
    "after another root": share("alice", 2, previous=root_of("c"), life=2 * DAY),
}


@pytest.mark.parametrize("other", RESEALED.values(), ids=list(RESEALED))
def test_v4_one_root_that_is_sealed_twice_is_two_versions_in_conflict(other: Envelope) -> None:
    first, about = share("alice", 2, life=DAY), subject("alice", 2)
    for order in itertools.permutations((first, other)):
        # Renewed again and again: whatever its id is, it has nothing of what was said about the other one.
        again = [replace(other.unsigned, issued_at_ms=T0 - n).sign(signer("alice")) for n in range(1, 9)]
        view = viewed(*order, *again, verdict("v1", about, Q), endorse("bob", about))
        assert [(version.conflict, len(version.trust.endorsements)) for version in view.versions] in (
            [(True, 1), (True, 0)],
            [(True, 0), (True, 1)],
        )
        (verified,) = view.current(Floor(Trust.CONSENSUS_VERIFIED))
        assert (verified.key, verified.subgraph, verified.previous) == (about, "", root_of("before"))
        (bare,) = (version for version in view.versions if version.key != about)
        assert (bare.key.root, bare.trust.level) == (about.root, Trust.SELF_ATTESTED)


def test_v4_a_barred_root_makes_no_conflict() -> None:
    view = viewed(share("alice", 1, life=DAY), share("alice", 2, "b", life=HOUR), share("alice", 2, "c", life=DAY))
    assert not any(version.conflict for version in view.versions)


def test_v4_beside_a_conflict_of_others_a_barred_root_is_not_marked() -> None:
    conflicting = [share("alice", 2, root, life=DAY) for root in ("c", "d")]
    view = viewed(share("alice", 1, life=DAY), share("alice", 2, "b", life=HOUR), *conflicting)
    marks = {version.key.root: version.conflict for version in view.versions}
    assert marks == {root_of(root): root in ("c", "d") for root in ("a", "b", "c", "d")}


def test_v4_without_a_floor_both_roots_of_a_conflict_are_shown() -> None:
    conflict = [share("alice", 1, "a"), share("alice", 1, "b")]
    assert len(viewed(*conflict).current_at_any_floor()) == 2
    higher = viewed(*conflict, share("alice", 2, life=2 * DAY), *(endorse("bob", subject("alice", 1, r)) for r in "ab"))
    assert [version.key.version for version in higher.current_at_any_floor()] == [2, 1, 1]


# Supersession per floor


def test_a_newer_less_attested_version_never_hides_an_attested_one() -> None:
    view = viewed(share("alice"), verdict("v1", subject("alice"), Q), share("alice", 2, life=2 * DAY))
    assert numbers(view) == [2]
    assert numbers(view, Floor(Trust.CONSENSUS_VERIFIED)) == [1]
    assert [version.key.version for version in view.current_at_any_floor()] == [2, 1]
    assert [version.key.version for version in view.superseded(ANY)] == [1]
    assert view.superseded(Floor(Trust.CONSENSUS_VERIFIED)) == ()


def test_a_newer_version_as_well_attested_supersedes() -> None:
    view = viewed(
        share("alice"),
        verdict("v1", subject("alice"), Q),
        share("alice", 2, life=2 * DAY),
        verdict("v1", subject("alice", 2), Q),
    )
    assert [version.key.version for version in view.current_at_any_floor()] == [2]


def test_a_rejected_version_supersedes_nothing() -> None:
    view = viewed(
        share("alice"), share("alice", 2, life=2 * DAY), *(reject(v, subject("alice", 2), Q) for v in ("v1", "v2"))
    )
    assert numbers(view) == [1]
    assert [version.key.version for version in view.current_at_any_floor()] == [1]


def test_an_asset_with_thousands_of_versions_is_read_by_judging_few(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(HEAD)
    for number in range(1, 2_001):
        item = share("alice", number, life=DAY + number)
        peer.set.admit(item, 400, T0, checked=True)
    peer.admit(verdict("v1", subject("alice", 700), Q))
    judged: list[VersionKey] = []

    def counted(key: VersionKey, *args: object, **kwargs: object) -> object:
        judged.append(key)
        return assess(key, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(view_module, "assess", counted)
    view = asset_view(peer.set, ASSET, T0)
    assert numbers(view) == [2_000]
    assert [version.key.version for version in view.current_at_any_floor()] == [2_000, 700]
    assert len(judged) <= 4


def test_what_has_ended_is_not_seen_between_sweeps() -> None:
    peer = Peer(HEAD, T0, share("alice", life=HOUR))
    assert asset_view(peer.set, ASSET, T0 + HOUR).versions == ()
    assert explain(peer.set, subject("alice"), T0 + HOUR) is None
    assert len(peer.set) == 1


def test_an_anchor_is_a_claim_until_this_nodes_look_at_the_chain() -> None:
    key = subject("alice")
    peer = Peer(HEAD, T0, publish("alice"), publish("bob"))

    def anchored(facts: dict[VersionKey, Anchored] | None = None) -> Anchored:
        return asset_view(peer.set, ASSET, T0, facts).versions[0].anchored

    assert anchored() is Anchored.NO
    peer.admit(anchor("carol", key))
    assert anchored() is Anchored.CLAIMED
    assert anchored({key: Anchored.CONFIRMED}) is Anchored.CONFIRMED
    assert anchored({key: Anchored.REVERTED}) is Anchored.REVERTED
    assert asset_view(peer.set, ASSET, T0).versions[0].trust.level is Trust.SELF_ATTESTED


def test_of_several_shares_of_one_seal_the_latest_end_is_shown() -> None:
    said = [share("alice", 2, life=DAY + n) for n in range(4)]
    for order in (said, said[::-1]):
        (version,) = viewed(*order).versions
        assert version.previous == root_of("before")
        assert version.lives_until_ms == T0 + DAY + 3
    (published,) = viewed(publish("alice"), share("alice")).versions
    assert published.lives_until_ms is None
    assert published.shared_until_ms == T0 + DAY


def test_the_principals_of_a_version_are_told_in_order() -> None:
    said = [share("alice", act=act_for(name, "alice")) for name in ("bob", "carol")]
    (version,) = viewed(*said, share("alice")).versions
    assert version.principals == tuple(sorted(map(address, ("alice", "bob", "carol"))))


def test_a_view_says_of_what_and_when_it_is() -> None:
    for view in (viewed(), viewed(share("alice"))):
        assert (view.key, view.t_ms) == (ASSET, T0)


def test_a_version_is_judged_once_in_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[VersionKey] = []
    monkeypatch.setattr(
        view_module, "assess", lambda key, *rest, **more: judged.append(key) or assess(key, *rest, **more)
    )
    view = viewed(share("alice"), share("alice", 2, life=2 * DAY))
    for _ in range(3):
        assert len(view.versions) == 2
    assert len(judged) == 2


def test_an_asset_that_is_not_held_has_no_versions() -> None:
    assert viewed().versions == ()
    assert viewed().current(ANY) == ()
    assert viewed().current_at_any_floor() == ()


# At the author's node


def first_seal(root: str = "a") -> Seal:
    return Seal(NETWORK, GRAPH, "", "asset", 1, root_of(root), 1, NO_PREVIOUS, address("alice"))


def next_seal(version: int, root: str = "a", previous: str = "before") -> Seal:
    return Seal(NETWORK, GRAPH, "", "asset", version, root_of(root), 1, root_of(previous), address("alice"))


def test_a_seal_names_the_latest_root_or_is_refused() -> None:
    may_seal([], first_seal())
    for seal in (next_seal(2), next_seal(1), replace(first_seal(), version=2)):
        with pytest.raises(StaleVersionError):
            may_seal([], seal)
    latest = [subject("alice", 1), subject("alice", 2, "b")]
    may_seal(latest, next_seal(3, previous="b"))
    for seal in (next_seal(3, previous="a"), next_seal(2, previous="a"), next_seal(4, previous="b"), first_seal()):
        with pytest.raises(StaleVersionError):
            may_seal(latest, seal)


def test_after_a_conflict_the_next_seal_names_one_of_the_roots() -> None:
    latest = [subject("alice", 1, "a"), subject("alice", 1, "b")]
    may_seal(latest, next_seal(2, previous="a"))
    may_seal(latest, next_seal(2, previous="b"))
    with pytest.raises(StaleVersionError):
        may_seal(latest, next_seal(2, previous="c"))


def test_the_author_does_not_sign_a_conflict_a_late_version_or_a_retracted_one() -> None:
    view = viewed(share("alice", 1), share("alice", 3, life=2 * DAY))
    for check in (may_publish, lambda view, seal: may_share(view, seal, T0 + 2 * DAY)):
        with pytest.raises(OtherSealError):
            check(view, first_seal("b"))
        with pytest.raises(OtherSealError):
            check(view, replace(first_seal(), subgraph="elsewhere"))
        with pytest.raises(StaleVersionError):
            check(view, next_seal(2))
        check(view, next_seal(4))
        check(view, first_seal())
        retracted = viewed(share("alice", 1), share("alice", 2, life=2 * DAY), retract("alice", version=1))
        with pytest.raises(RetractedVersionError):
            check(retracted, first_seal())
        check(retracted, next_seal(2))


def test_renewing_is_sharing_the_same_seal_again() -> None:
    view = viewed(share("alice"))
    may_share(view, first_seal(), T0 + 20 * DAY)


def test_renewing_reads_every_other_version_and_ends_at_the_latest() -> None:
    view = viewed(publish("alice", 5), share("alice", 2, life=3 * DAY), share("alice", 1, life=2 * DAY))
    may_share(view, next_seal(2), T0 + HOUR)
    with pytest.raises(EndsTooEarlyError):
        may_share(view, next_seal(6), T0 + 3 * DAY - 1)
    may_share(view, next_seal(6), T0 + 3 * DAY)
    with pytest.raises(EndsTooLateError):
        may_share(view, first_seal(), T0 + 3 * DAY + 1)
    may_share(view, first_seal(), T0 + 3 * DAY)


def test_other_content_of_a_retracted_version_is_refused_as_retracted() -> None:
    view = viewed(share("alice"), retract("alice"))
    for check in (may_publish, lambda view, seal: may_share(view, seal, T0 + DAY)):
        with pytest.raises(RetractedVersionError):
            check(view, first_seal("b"))


def test_the_first_version_of_an_asset_may_be_signed() -> None:
    may_publish(viewed(), first_seal())
    may_share(viewed(), first_seal(), T0 + DAY)
