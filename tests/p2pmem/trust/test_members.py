"""Who is in a graph: changes with their preview, limits, the root key, forks, and crowds that join."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, minutes
from p2pmem_devnet.cluster_node import ClusterNode, JobFailedError
from p2pmem_protocol.errors import MisuseError, Reason
from p2pmem_protocol.roster import Role
from p2pmem_protocol.rosters_change import AddMember, SetQuorum, next_roster
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import GraphView, LimitsChange, MemberChange, NewMember, TrustChange
from tests.p2pmem.trust.scene import Scene, scene

ALL = ("writer", "endorser", "verifier")


async def view(node: ClusterNode) -> GraphView:
    return await node.face.graph(node.cluster.graph)


async def everybody(it: Scene, *without: ClusterNode) -> list[GraphView]:
    """The graph as all members see it, once all agree."""
    await it.wake()
    views = [await view(node) for node in it.awake if node not in without]
    assert len({each.head for each in views}) == 1
    return views


async def test_a_change_is_told_before_it_is_made(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        await it.cluster.settled()
        before = await view(it.ada)
        change = MemberChange(remove=(str(it.cy.address), str(it.dan.address)), m=1)
        preview = await it.ada.face.preview_members(it.cluster.graph, change)
        assert (preview.version, preview.quorum_m, preview.verifiers) == (before.version + 1, 1, (str(it.bo.address),))
        assert (preview.signer, preview.signs_here) == (str(it.ada.address), True)
        notes = "\n".join(preview.notes)
        assert "the quorum changes from 2 of 3 to 1 of 1" in notes
        assert "1 version kept as verified" in notes
        assert "a thing by bo needs 1 and only 0 may verify it" in notes
        assert preview.trust == (), "what is verified stays"
        assert (await view(it.ada)).head == before.head, "nothing was signed"
        await it.change(change)
        assert it.bo.trust(asset) is Trust.CONSENSUS_VERIFIED
        after = await view(it.ada)
        assert (after.version, after.quorum_m) == (preview.version, preview.quorum_m)


async def test_what_cannot_be_reached_is_refused_before_anything_is_signed(autojump_clock: MockClock) -> None:
    async with scene() as it:
        before = await view(it.ada)
        wrong = [
            (MemberChange(m=4), "nothing could reach it"),
            (MemberChange(remove=(str(it.bo.address), str(it.cy.address))), "nothing could reach it"),
            (MemberChange(leaked=True), "whose key leaked"),
            (MemberChange(), "nothing is to change"),
            (MemberChange(set=(NewMember(str(it.bo.address), ("boss",)),)), "is no role"),
            (MemberChange(limits=LimitsChange(access="secret")), "gated or open"),
            (MemberChange(limits=LimitsChange(live_bytes=-1)), "0 or more"),
            (MemberChange(limits=LimitsChange(chain=True)), "has no chain"),
            (MemberChange(drop=(f"{it.bo.address}/x@1",)), "is not kept"),
        ]
        for change, words in wrong:
            for call in (it.ada.face.preview_members, it.ada.face.change_members):
                with pytest.raises(MisuseError, match=words):
                    await call(it.cluster.graph, change)
        with pytest.raises(MisuseError, match="only the node of the owner"):
            await it.bo.change_members(MemberChange(m=1))
        assert (await view(it.ada)).head == before.head


async def test_limits_and_quotas_are_changed_and_hold_everywhere(autojump_clock: MockClock) -> None:
    async with scene() as it:
        limits = LimitsChange(ttl_default_ms=3_600_000, ttl_max_ms=7_200_000, acks_min=2, live_items=2, access="open")
        await it.change(MemberChange(limits=limits))
        for each in await everybody(it):
            assert (each.ttl_default_ms, each.ttl_max_ms, each.acks_min) == (3_600_000, 7_200_000, 2)
            assert (each.access, each.quotas and each.quotas.live_items) == ("open", 2)
        for number in range(2):
            await it.bo.share(f"ex:a ex:is {number} .")
            await it.cluster.advance(seconds=1)
        with pytest.raises((MisuseError, JobFailedError), match="quota"):
            await it.bo.share("ex:a ex:is ex:over .")
        with pytest.raises((MisuseError, JobFailedError), match="is not possible"):
            await it.cy.share("ex:b ex:c ex:d .", ttl=minutes(180))


async def test_a_certificate_that_the_owner_drops_verifies_no_more(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        await it.cluster.settled()
        await it.change(MemberChange(m=1))
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        await it.change(MemberChange(drop=(asset.reference,)))
        assert await it.level(asset) is Trust.SELF_ATTESTED


async def test_the_root_key_names_another_owner_and_only_it_can(autojump_clock: MockClock) -> None:
    async with scene() as it:
        with pytest.raises(MisuseError, match="the root key"):
            await it.bo.change_members(MemberChange(owner=str(it.bo.address)))
        await it.change(MemberChange(owner=str(it.bo.address)))
        for each in await everybody(it):
            assert (each.owner, each.root, each.term) == (str(it.bo.address), str(it.ada.address), 2)
        with pytest.raises(MisuseError, match="only the node of the owner"):
            await it.ada.change_members(MemberChange(m=1))
        await it.bo.change_members(MemberChange(m=1))
        await it.cluster.settled()
        assert {each.quorum_m for each in await everybody(it)} == {1}


async def test_the_drill_for_a_stolen_owner_key(autojump_clock: MockClock) -> None:
    """As `docs/members.md` tells it: the root key names a new owner, takes the stolen key out as leaked, and puts back
    in the same step what the thief took away."""
    async with scene() as it:
        asset, _ = await it.proposed()
        for node in (it.cy, it.dan):
            assert await it.offered(it.verdict(node, asset).encode()) == {None}
        await it.change(MemberChange(owner=str(it.bo.address)))
        # Whoever has bo's key throws the others out and verifies what it likes.
        thief = NewMember(str(it.eve.address), ALL, "eve")
        await it.bo.change_members(MemberChange(set=(thief,), remove=(str(it.cy.address), str(it.dan.address)), m=1))
        await it.cluster.settled()
        lie = await it.bo.share("ex:trial ex:raises ex:ldl .")
        await it.bo.retract(asset, reason="never heard of it")
        await it.cluster.settled()
        assert not it.ada.sees(asset)
        again = tuple(NewMember(str(node.address), ALL, node.name) for node in (it.cy, it.dan))
        reader = NewMember(str(it.eve.address), ("reader",), "eve")
        await it.change(
            MemberChange(
                owner=str(it.ada.address), set=(*again, reader), remove=(str(it.bo.address),), leaked=True, m=2
            )
        )
        views = await everybody(it, it.bo)
        assert {(each.owner, each.term, each.quorum_m) for each in views} == {(str(it.ada.address), 3, 2)}
        for node in (it.ada, it.cy, it.dan, it.eve):
            assert not node.sees(lie)
            assert node.sees(asset), "the retract of a stolen key takes nothing away"
            assert str(it.bo.address) not in {each.address for each in (await view(node)).members}
        assert await it.offer(it.cy, it.verdict(it.bo, asset).encode()) is Reason.NOT_LISTED
        await it.ada.start_verify(asset)
        await it.cluster.settled()
        assert await it.cy.decide(approve=True) + await it.dan.decide(approve=True) == 2
        await it.cluster.settled()
        assert it.eve.trust(asset) is Trust.CONSENSUS_VERIFIED


async def test_a_fork_shows_both_sides_and_the_root_key_mends_it(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await it.change(MemberChange(owner=str(it.bo.address)))
        parent = await view(it.cy)
        now_ms = it.bo.clock.now_ms()
        # Two machines have the owner's key: one lists a guest, the other wants one approval.
        guest = AddMember(it.ada.address.__class__(b"\x07" * 20), Role.READER, "guest")
        for node, change in ((it.cy, guest), (it.dan, SetQuorum(1))):
            plan = next_roster(node.graph.set, [change], now_ms)
            roster = plan.sign(it.bo.key)
            rosters = node.inside.services.joining._rosters
            await rosters.adopt(node.graph.name, [roster.signed], roster.body.parts)
        views = await everybody(it)
        for each in views:
            assert each.head == parent.head, "the head is the parent, for everybody"
            assert len(each.branches) == 2
            assert {branch.owner for branch in each.branches} == {str(it.bo.address)}
            assert "forked" in each.trouble
            assert "have the rights of the roster before the fork again" in each.trouble
        with pytest.raises(MisuseError, match="mend it"):
            await it.bo.change_members(MemberChange(m=1))
        with pytest.raises(MisuseError, match="the root key"):
            await it.bo.change_members(MemberChange(mend=True))
        assert (await it.ada.face.preview_members(it.cluster.graph, MemberChange(mend=True, m=1))).signs_here
        await it.ada.change_members(MemberChange(mend=True, m=1))
        await it.cluster.settled()
        for each in await everybody(it):
            assert (each.term, each.quorum_m, each.trouble, each.branches) == (parent.term + 1, 1, "", ())
        # asked once more, there is nothing to mend, and nothing is signed
        for ask in (it.ada.face.preview_members, it.ada.face.change_members):
            with pytest.raises(MisuseError, match="is not forked: there is nothing to mend"):
                await ask(it.cluster.graph, MemberChange(mend=True, m=2))
        assert {each.term for each in await everybody(it)} == {parent.term + 1}


async def test_a_crowd_that_joins_within_five_seconds_makes_two_rosters(autojump_clock: MockClock) -> None:
    async with Cluster(2, seed=5) as cluster:
        ada, _ = cluster.nodes
        await cluster.settled()
        before = (await view(ada)).version
        invite = await ada.face.invite(cluster.graph, roles=("writer",), uses=6, life_ms=600_000)
        crowd = [await cluster.add(f"guest-{number}") for number in range(6)]

        async def join(number: int, node: ClusterNode) -> None:
            await trio.sleep(number / 2)
            await node.face.join(invite, label=node.name)

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number, node in enumerate(crowd):
                nursery.start_soon(join, number, node)
        assert trio.current_time() - started < 10
        await cluster.settled()
        after = await view(ada)
        assert after.version == before + 2, "the first at once, all others together"
        assert {node.name for node in crowd} <= {it.label for it in after.members}
        late = await cluster.add("too-late")
        with pytest.raises(MisuseError, match="nobody lets this node into"):
            await late.face.join(invite, label="too-late")


async def test_a_change_that_changes_nothing_signs_nothing(autojump_clock: MockClock) -> None:
    async with scene() as it:
        m = (await view(it.ada)).quorum_m
        head = it.ada.graph.head
        for change in (MemberChange(m=m), MemberChange(set=(NewMember(str(it.bo.address), ALL, "bo"),))):
            await it.ada.change_members(change)
        assert it.ada.graph.head is head


async def test_a_label_that_is_given_to_a_member_is_its_label(autojump_clock: MockClock) -> None:
    async with scene() as it:
        roles, who = ("reader", "writer", "verifier"), str(it.dan.address)
        change = MemberChange(set=(NewMember(who, roles, "the auditor"),))
        told = (await it.ada.face.preview_members(it.cluster.graph, change)).differences
        assert [each.what for each in told] == [f"member {who}"]
        assert "called 'the auditor'" in told[0].after
        await it.change(change)
        assert it.bo.graph.label_of(it.dan.address) == "the auditor"
        await it.change(MemberChange(set=(NewMember(who, ("reader",)),), m=1))
        assert it.bo.graph.label_of(it.dan.address) == "the auditor", "without a label it keeps the one that it has"


async def test_a_change_that_shows_again_what_a_former_owner_hid_says_so(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset = await it.bo.share("ex:spam ex:is ex:bad .")
        await it.cluster.settled()
        await it.ada.retract(asset, reason="moderated")
        await it.cluster.settled()
        await it.change(MemberChange(owner=str(it.cy.address)))
        assert not it.dan.sees(asset)
        kept = MemberChange(remove=(str(it.ada.address),))
        assert (await it.cy.face.preview_members(it.cluster.graph, kept)).trust == ()
        change = replace(kept, leaked=True)
        told = await it.cy.face.preview_members(it.cluster.graph, change)
        assert told.trust == (TrustChange(asset.reference, "not shown", "SelfAttested, 0 of 2, 1 needed"),)
        assert "not shown now, and shown by this change: 1 version" in told.notes
        await it.cy.change_members(change)
        await it.cluster.settled()
        assert it.dan.sees(asset)


@pytest.mark.parametrize("way", ["dropped", "leaked"])
async def test_a_change_by_which_a_version_stays_verified_but_by_fewer_says_so(
    way: str, autojump_clock: MockClock
) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.proposed("ex:other ex:is ex:open .")
        for node in (it.bo, it.cy):
            assert await it.offered(it.verdict(node, asset).encode()) == {None}
        lower = MemberChange(m=1)
        told = await it.ada.face.preview_members(it.cluster.graph, lower)
        assert told.trust == (), "what is verified stays so, by as many; of the other it is the quorum that is other"
        await it.change(lower)
        assert await it.offered(it.verdict(it.bo, asset).encode()) == {None}
        change = MemberChange(drop=(asset.reference,))
        if way == "leaked":
            change = MemberChange(remove=(str(it.cy.address),), leaked=True)
        told = await it.ada.face.preview_members(it.cluster.graph, change)
        then = "ConsensusVerified, 1 of 3, 1 needed, 1 manual"
        assert told.trust == (TrustChange(asset.reference, "ConsensusVerified, 2 of 3, 2 needed, 2 manual", then),)
        await it.change(change)
        view = it.dan.view(asset)
        assert view is not None
        assert view.trust.shown == then
