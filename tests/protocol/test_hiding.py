"""Which of several retracts hides or erases a version, and how much work it is to tell (rules V2 and V3)."""

from __future__ import annotations

import itertools
import sys
from types import FrameType

import pytest
from p2pmem_protocol.assets import Asset, Version
from p2pmem_protocol.bodies import RetractMode
from p2pmem_protocol.envelope import Envelope
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.names import Address
from p2pmem_protocol.records import RetractRecord
from p2pmem_protocol.roster import Quotas
from p2pmem_protocol.view import asset_view

from tests.protocol.world import DAY, T0, E, Peer, V, W, act_for, publish, retract, roster, share, subject

MEMBERS = {"alice": W, "bob": W | E, "v1": V, "v2": V}
HEAD = roster(MEMBERS, 1)
ASSET = subject("alice").asset
FOR_BOB = act_for("bob", "alice")


def hidden(*items: Envelope) -> dict[int, bytes | None]:
    """By which retract each version is hidden, in whatever order they come."""
    versions = [publish("alice", number, act=FOR_BOB if number < 3 else None) for number in (1, 2, 3)]
    found = []
    for order in itertools.permutations(items):
        view = asset_view(Peer(HEAD, T0, *versions, *order).set, ASSET, T0)
        found.append({version.key.version: version.hidden_by for version in view.versions})
    assert all(each == found[0] for each in found)
    return found[0]


def test_v2_the_highest_version_hides_whoever_signed_it() -> None:
    own = retract("alice", version=1)
    principals = retract("bob", "alice", 2, shown=FOR_BOB)
    owners = retract("owner", "alice", 1)
    assert hidden(own, principals, owners) == {3: None, 2: principals.id, 1: principals.id}
    own = retract("alice", version=3)
    assert hidden(own, principals, owners) == {3: own.id, 2: own.id, 1: own.id}


def test_v2_of_the_owners_retracts_of_one_version_that_of_the_lowest_id_hides() -> None:
    twins = sorted((retract("owner", "alice", 2, issued=T0 - n) for n in range(4)), key=lambda item: item.id)
    assert hidden(*twins) == {3: None, 2: twins[0].id, 1: None}


def test_v2_a_successor_is_passed_by_and_the_next_retract_hides_it() -> None:
    first = retract("alice", version=3, successor=1)
    principals = retract("bob", "alice", 2, shown=FOR_BOB)
    assert hidden(first) == {3: first.id, 2: first.id, 1: None}
    assert hidden(first, principals) == {3: first.id, 2: first.id, 1: principals.id}


def test_v2_a_principal_hides_of_the_lower_versions_what_was_said_for_it_and_nothing_else() -> None:
    principals = retract("bob", "alice", 3, shown=FOR_BOB)
    assert hidden(principals) == {3: None, 2: principals.id, 1: principals.id}


@pytest.mark.parametrize("issued", range(T0 - 4, T0))
def test_v2_the_highest_version_hides_whatever_the_ids(issued: int) -> None:
    low, high = retract("alice", version=1, issued=issued), retract("alice", version=3)
    assert hidden(low, high) == {3: high.id, 2: high.id, 1: high.id}


def test_v2_a_version_is_not_its_own_successor() -> None:
    own = retract("alice", version=2, successor=2)
    assert hidden(own) == {3: None, 2: own.id, 1: own.id}


def test_v2_a_view_looks_at_each_retract_once_however_many_versions_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any member may show a delegation to whom it likes, and retract what nobody said for it."""
    many = 40
    versions = [share("alice", number, life=DAY) for number in range(1, many + 1)]
    shown = act_for("bob", "alice")
    retracts = [retract("bob", "alice", many, shown=shown, issued=T0 - number) for number in range(many)]
    peer = Peer(HEAD, T0, *versions, *retracts)
    looked_at: list[bytes] = []

    def covers(record: RetractRecord) -> Address:
        looked_at.append(record.id)
        return record.author

    monkeypatch.setattr(RetractRecord, "covers", property(covers))
    view = asset_view(peer.set, ASSET, T0)
    assert all(version.is_visible for version in view.versions)
    assert sorted(looked_at) == sorted(item.id for item in retracts)


def test_v3_who_erases_again_has_nothing_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [share("alice", life=DAY + number) for number in range(3)]
    erasing = [
        retract("bob", "alice", shown=FOR_BOB, mode=RetractMode.ERASE, issued=T0 - number) for number in range(5)
    ]
    peer = Peer(HEAD, T0, *shares)
    looked_through: list[int] = []
    numbered = Asset.numbered

    def counted(asset: Asset, number: int) -> list[Version]:
        looked_through.append(number)
        return numbered(asset, number)

    monkeypatch.setattr(Asset, "numbered", counted)
    for item in erasing:
        peer.admit(item)
    assert looked_through == [1]
    assert all(peer.has(item) for item in (*shares, *erasing))
    said_for_bob = share("alice", act=FOR_BOB)
    assert peer.give(said_for_bob) is Reason.ERASED


def test_v3_what_a_principal_erased_may_come_again_once_its_retract_is_over_the_quota() -> None:
    peer = Peer(roster(MEMBERS, 1, quotas=Quotas(cuts=1)), T0)
    erasing = retract("bob", "alice", shown=FOR_BOB, mode=RetractMode.ERASE)
    said_for_bob = share("alice", act=FOR_BOB)
    assert peer.give(erasing) is None
    assert peer.give(said_for_bob) is Reason.ERASED
    assert peer.give(retract("bob", issued=T0 - 1)) is None
    assert not peer.has(erasing)
    assert peer.give(said_for_bob) is None


def test_v4_a_view_of_many_seals_of_one_version_takes_as_long_as_they_are_many() -> None:
    few, many = (calls_to_view(seals) for seals in (20, 80))
    assert many < 5 * few


def calls_to_view(seals: int) -> int:
    """How many functions run, or run on, while each of so many seals of one version is looked at."""
    peer = Peer(HEAD, T0, *(share("alice", root=f"root {number}") for number in range(seals)))
    view = asset_view(peer.set, ASSET, T0)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        versions = view.versions
    finally:
        sys.setprofile(before)
    assert len(versions) == seals
    assert all(version.conflict for version in versions)
    return calls
