"""Who signs a change sees all of it: what is asked for, and what is other in the roster, in no field left out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import pytest
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address, GraphId, VersionKey
from p2pmem_protocol.roster import Access, Body, KeptCertificate, Limits, Member, Quorum, Quotas, Role
from trio.testing import MockClock

from p2pmem.cli.views_trust import show_prepared_change, show_preview
from p2pmem.face import ChangePreview, Difference, LimitsChange, MemberChange, NewGraph, NewMember, SignRequest
from p2pmem.references import full_reference
from p2pmem.services.telling_changes import (
    DIFFERENCES_MAX,
    KEPT_NAMED_MAX,
    asked_for,
    bounded,
    differences,
    lines_of,
)
from tests.p2pmem.trust.scene import scene
from tests.p2pmem.trust.test_preparing import listed, with_approver
from tests.p2pmem.trust.test_wallets import Wallet, with_wallet

ANN, BEN = (Key(bytes([it]) * 32).address for it in (1, 2))
GRAPH = GraphId(b"g" * 32)

# Each field with a value that is not its default, and what must be told of it. Who adds a field adds it here.
ASKED: Final[dict[str, tuple[Any, str]]] = {
    "set": (
        (NewMember(str(ANN), ("writer", "verifier"), "Ann"),),
        f"{ANN} is a member, called 'Ann', with the roles w",
    ),
    "remove": ((str(ANN), str(BEN)), f"{BEN} is removed"),
    "m": (0, "M is 0: there is no quorum"),
    "leaked": (True, "the keys of those removed leaked"),
    "limits": (LimitsChange(access="open"), "access is open: anybody reads"),
    "drop": (("x@1", "y@2"), "y@2 is no longer kept as verified"),
    "owner": (str(BEN), f"{BEN} is the owner"),
    "mend": (True, "above every branch of a fork"),
}
LIMITS_ASKED: Final[dict[str, tuple[Any, str]]] = {
    "access": ("gated", "access is gated"),
    "ttl_default_ms": (3_600_001, "by default"),
    "ttl_max_ms": (7_200_001, "7200001 ms) at most"),
    "acks_min": (3, "hold what is published: 3"),
    "chain": (False, "no chain is used any more"),
    "live_bytes": (0, "bytes of what is shared: 0"),
    "live_items": (17, "number of what is shared: 17"),
    "durable_items": (18, "number of what stays: 18"),
    "content_bytes": (19, "largest content, bytes: 19"),
}


def names(of: type) -> set[str]:
    return {field.name for field in fields(of)}


@pytest.mark.parametrize("name", sorted(names(MemberChange)))
def test_everything_that_a_change_asks_for_is_told(name: str) -> None:
    value, told = ASKED[name]
    assert asked_for(MemberChange()) == ()
    assert any(told in line for line in asked_for(replace(MemberChange(), **{name: value})))


@pytest.mark.parametrize("name", sorted(names(LimitsChange)))
def test_every_limit_that_a_change_asks_for_is_told(name: str) -> None:
    value, told = LIMITS_ASKED[name]
    (line,) = asked_for(MemberChange(limits=replace(LimitsChange(), **{name: value})))
    assert told in line


QUORUM = Quorum(GRAPH, 1, 1, (ANN,))
BODY = Body((Member(ANN, Role.READER | Role.VERIFIER, "Ann", 5),), Limits(Access.GATED, QUORUM))
CERTIFICATE = KeptCertificate(VersionKey(BEN, "trial", 4, b"r" * 32, b"s" * 32), QUORUM, (b"v" * 32,))
OTHER_BODY: Final[dict[str, tuple[Any, str]]] = {
    "members": (
        (*BODY.members, Member(BEN, Role.READER, "Ben", 6)),
        f"member {BEN}: none now, reader, called 'Ben' then",
    ),
    "limits": (replace(BODY.limits, acks_min=7), "others that must hold what is published: 0 now, 7 then"),
    "kept": ((b"k" * 32, b"l" * 32), f"0x{'6b' * 32}: not listed now, listed: it counts without a role then"),
    "certificates": ((CERTIFICATE,), f"{BEN}/trial@4:0x{'73' * 32} kept as verified: none now, 1 of 1: {ANN} then"),
}
OTHER_LIMITS: Final[dict[str, tuple[Any, str]]] = {
    "access": (Access.OPEN, "access: gated now, open then"),
    "quorum": (Quorum(GRAPH, 2, 0, ()), f"quorum: 1 of 1: {ANN} now, none then"),
    "ttl_default_ms": (604_800_001, "by default: 7 days (604800000 ms) now, 7 days (604800001 ms) then"),
    "ttl_max_ms": (604_800_002, "at most: 30 days (2592000000 ms) now, 7 days (604800002 ms) then"),
    "acks_min": (1, ": 0 now, 1 then"),
    "chain": (31_337, "chain: 0 now, 31337 then"),
    "contract": (BEN, f"now, {BEN} then"),
    "quotas": (Quotas(live_items=1), "quota, number of what is shared: 100000 now, 1 then"),
}


def told_of(after: Body) -> list[str]:
    asked, (said, more) = ("one thing",), bounded(differences(BODY, after, ANN, ANN))
    preview = ChangePreview("g", 2, str(ANN), True, 1, (), (), asked, said, more, ())
    shown = show_preview(preview)
    for line in asked:
        assert line in shown
    for it in said:
        assert all(part in shown for part in (it.what, it.before or "none", it.after or "none"))
    return list(lines_of(preview))


@pytest.mark.parametrize("name", sorted(names(Body)))
def test_every_part_of_a_roster_that_is_other_is_told(name: str) -> None:
    value, told = OTHER_BODY[name]
    assert told_of(BODY) == ["asked for: one thing"]
    assert any(told in line for line in told_of(replace(BODY, **{name: value})))


@pytest.mark.parametrize("name", sorted(names(Limits)))
def test_every_limit_that_is_other_is_told(name: str) -> None:
    value, told = OTHER_LIMITS[name]
    lines = told_of(replace(BODY, limits=replace(BODY.limits, **{name: value})))
    assert any(told in line for line in lines)


@pytest.mark.parametrize("name", sorted(names(Quotas)))
def test_every_quota_that_is_other_is_told(name: str) -> None:
    lines = told_of(replace(BODY, limits=replace(BODY.limits, quotas=replace(Quotas(), **{name: 4321}))))
    assert any("4321 then" in line for line in lines)


def test_who_goes_and_whose_roles_are_other_is_told() -> None:
    both = replace(BODY, members=(*BODY.members, Member(BEN, Role.READER | Role.WRITER, "Ben", 6)))
    found = {it.what: it for it in differences(both, BODY, ANN, BEN)}
    assert found[f"member {BEN}"] == Difference(f"member {BEN}", "reader writer, called 'Ben'", "")
    assert found["owner"] == Difference("owner", str(ANN), str(BEN))
    less = replace(both, members=(BODY.members[0], Member(BEN, Role.READER, "Ben", 6)))
    (one,) = differences(both, less, ANN, ANN)
    assert (one.before, one.after) == ("reader writer, called 'Ben'", "reader, called 'Ben'")


def test_no_more_is_told_than_a_person_reads() -> None:
    crowd = tuple(Member(Address(it.to_bytes(20)), Role.READER, "", 1) for it in range(1, DIFFERENCES_MAX))
    said, more = bounded(differences(None, Body(crowd, Limits(Access.GATED, Quorum(GRAPH, 0, 0, ()))), None, ANN))
    assert len(said) == DIFFERENCES_MAX
    assert "the first are listed" in more[0]


def test_what_is_listed_is_named_and_hides_nothing_else_by_being_much() -> None:
    many = tuple(number.to_bytes(32) for number in range(KEPT_NAMED_MAX + 5))
    before, after = replace(BODY, kept=many[:2]), replace(BODY, kept=many[2:], certificates=(CERTIFICATE,))
    found = {it.what: (it.before, it.after) for it in differences(before, after, ANN, ANN, lambda it: f"no. {it[-1]}")}
    assert found["no. 1"][1] == found["no. 2"][0] == "not listed"
    assert found["and 3 more"] == found["no. 2"]
    assert len(found) == 2 + KEPT_NAMED_MAX + 1 + 1
    assert any("kept as verified" in what for what in found)


async def test_what_still_counts_of_who_loses_a_right_is_named(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        mine = await it.bo.share("ex:a ex:b ex:c .")
        await it.bo.endorse(asset)
        await it.cluster.settled()
        removed = MemberChange(remove=(str(it.bo.address),))
        preview = await it.ada.face.preview_members(it.cluster.graph, removed)
        listed_now = [each.what for each in preview.differences if each.before == "not listed"]
        assert listed_now == [
            f"endorse of {full_reference(asset.key)} by {it.bo.address} (bo)",
            f"share of {full_reference(mine.key)} by {it.bo.address} (bo)",
        ]
        await it.change(removed)
        again = MemberChange(set=(listed(it.bo, "writer", "endorser"),))
        preview = await it.ada.face.preview_members(it.cluster.graph, again)
        assert len([each for each in preview.differences if each.after == "not listed"]) == 2


async def test_an_approver_hides_nothing_from_the_owner_who_signs(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await with_approver(it)
        change = MemberChange(
            set=(listed(it.eve, "writer", "approver"),),
            remove=(str(it.dan.address),),
            leaked=True,
            m=1,
            limits=LimitsChange(access="open", live_items=5),
        )
        word = (await it.bo.face.prepare_members(it.cluster.graph, change)).word
        read = await it.ada.face.prepared_members(word)
        text = show_prepared_change(read, with_word=False)
        for told in (
            f"{it.dan.address} is removed",
            "the keys of those removed leaked",
            "access is open: anybody reads",
            "M is 1",
            "number of what is shared: 5",
        ):
            assert told in text
            assert any(told in line for line in read.preview.asked)
        other = {each.what: (each.before, each.after) for each in read.preview.differences}
        assert other["access"] == ("gated", "open")
        assert other["quota, number of what is shared"] == ("100000", "5")
        assert other[f"member {it.dan.address}"][1] == ""
        assert other[f"member {it.eve.address}"] == ("reader, called 'eve'", "reader writer approver, called 'eve'")
        assert other["quorum"][0].startswith("2 of 3")
        assert other["quorum"][1].startswith("1 of 2")


async def test_a_wallet_is_told_what_the_hashes_that_it_signs_change(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        graph = it.cluster.graph
        change = MemberChange(remove=(str(it.dan.address),), limits=LimitsChange(access="open"))
        owner = Wallet("olga")
        await it.ada.face.add_agent(owner.address, label="olga")
        member = NewMember(wanda.address, ("approver",), "wanda")
        await it.change(MemberChange(set=(member,), owner=owner.address))
        asked = {
            "roster": (it.ada, SignRequest("roster", owner.address, graph, change=change)),
            "prepare": (it.bo, SignRequest("prepare", wanda.address, graph, change=change)),
        }
        for node, request in asked.values():
            told = (await node.face.sign_prepare(request)).told
            assert f"asked for: {it.dan.address} is removed" in told
            assert "access: gated now, open then" in told
        new = NewGraph("more", (NewMember(str(it.dan.address), ("writer",), "dan"),), access="open", acks_min=1)
        told = (await it.ada.face.sign_prepare(SignRequest("found", owner.address, new=new))).told
        assert "access: none now, open then" in told
        assert f"member {it.dan.address}: none now, reader writer, called 'dan' then" in told
        assert f"owner: none now, {owner.address.lower()} then" in told


async def test_a_wallet_is_told_what_the_bytes_that_it_signs_say(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        about = {"graph": it.cluster.graph, "reference": f"{wanda.address}/trial"}
        said = {"seal": {"name": "trial", "data": "<urn:a> <urn:b> <urn:c> ."}, "share": {"name": "trial"}}
        for action, more in said.items():
            await wanda.does(it.bo, action, graph=it.cluster.graph, **more)
        name, where = f"{wanda.address.lower()}/trial@1", f"in {it.cluster.graph}"
        asked: dict[str, tuple[dict[str, object], str]] = {
            "share": ({"name": "trial"}, f"shares {name} {where}, until 2"),
            "publish": ({"name": "trial"}, f"publishes {name} {where}"),
            "propose": ({}, f"asks the verifiers about {name} {where}, until 2"),
            "ack": ({}, f"promises to keep the content of {name} {where}, until 2"),
            "retract": (
                {"erase": True},
                f"takes back {name}, and erases its content at every member {where}",
            ),
        }
        for action, (more, expected) in asked.items():
            request = SignRequest(action, wanda.address, **{**about, **more})  # type: ignore[arg-type]
            (told,) = (await it.bo.face.sign_prepare(request)).told
            assert told.startswith(expected), told
