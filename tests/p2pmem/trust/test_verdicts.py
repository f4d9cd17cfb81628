"""Who counts, and for what: verdicts and endorsements in a cluster, each seen alike by everybody and in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import coincurve
import pytest
from p2pmem_devnet.cluster_node import Asset
from p2pmem_protocol.bodies import ContentRef, Sealed
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.credential import ActFor, Right
from p2pmem_protocol.envelope import Unsigned
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.evidence import Decision, Evidence, Method, Verdict
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import VersionKey, hex_id, network_id
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewGraph, NewMember, NoRightError
from tests.p2pmem.trust.scene import Scene, addresses, scene, subject

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def agent(name: str) -> Key:
    return Key(hashlib.sha256(name.encode()).digest())


async def test_m_approvals_verify_a_version_everywhere(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, job = await it.proposed()
        await it.bo.decide(approve=True, reason="I read the paper")
        assert await it.level(asset) is Trust.PARTIALLY_VERIFIED
        await it.cy.decide(approve=True)
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.n) == (Trust.CONSENSUS_VERIFIED, 2, 3)
        assert addresses(view) == {it.bo.address, it.cy.address}
        ended = await it.ada.job(job)
        assert ended.state == "succeeded"
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"
        statements = [(await node.certificate(asset)).statement for node in it.awake]
        assert all(each == statements[0] for each in statements)


async def test_one_signer_counts_once_however_often_it_signs(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for reason in ("once", "twice", "thrice"):
            for method in (Method.MANUAL, Method.AUTO):
                await it.offered(it.verdict(it.bo, asset, method=method, reason=reason).encode())
        view = await it.agreed(asset)
        assert view is not None
        assert view.trust.level is Trust.PARTIALLY_VERIFIED
        (line,) = view.trust.approvals
        assert line.signer == it.bo.address
        # of each meaning one is kept, and the strongest method is shown
        assert line.method is Method.MANUAL
        assert len(view.trust.ignored) == 1


async def test_two_agents_of_one_principal_are_one_author_and_bar_it(autojump_clock: MockClock) -> None:
    async with scene() as it:
        graph = it.bo.graph
        now_ms = it.bo.clock.now_ms()
        content = check_canonical(b"<http://example.org/a> <http://example.org/b> <http://example.org/c> .\n")
        assets: list[Asset] = []
        for helper in (agent("bo's first"), agent("bo's second")):
            acts = ActFor(graph.network, it.bo.address, helper.address, 1, "assistant", Right.all()).sign(it.bo.key)
            seal = Seal(
                graph.network, graph.id, "", "note", 1, content.root, content.line_count, NO_PREVIOUS, helper.address
            )
            body = Sealed(seal.sign(helper), ContentRef.of(content.data))
            unsigned = Unsigned(
                graph.network, graph.id, Kind.SHARE, helper.address, acts, 1, now_ms, now_ms + 86_400_000, body
            )
            assert await it.offered(unsigned.sign(helper).encode()) == {None}
            (mine,) = [each for each in await it.ada.versions() if each.author == str(helper.address)]
            about = _verdicts(it, seal.key)
            # neither the principal nor another of its agents verifies it
            assert await it.offered(about(it.bo.key).encode()) == {None}
            assert await it.offered(about(agent("bo's second")).encode()) == {Reason.NOT_LISTED}
            assert await it.offered(about(it.cy.key).encode()) == {None}
            (mine,) = [each for each in await it.ada.versions() if each.author == str(helper.address)]
            assert mine.principal == str(it.bo.address)
            assert (mine.trust.level, mine.trust.n, mine.trust.approvals) == ("PartiallyVerified", 2, 1)
            assert await it.offered(about(it.dan.key).encode()) == {None}
            assets.append(Asset(it.cluster.graph, helper.address, "note", 1, hex_id(seal.root), hex_id(seal.digest)))
        for asset in assets:
            assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        for node in it.awake:
            shown = await node.versions()
            assert [(each.trust.level, each.trust.n) for each in shown] == [("ConsensusVerified", 2)] * 2


def _verdicts(it: Scene, about: VersionKey) -> Callable[[Key], Evidence]:
    """Approvals of a version."""
    graph = it.bo.graph
    assert graph.head is not None
    quorum = graph.head.quorum.id

    def verdict(key: Key) -> Evidence:
        made = Verdict(graph.network, graph.id, quorum, about, Decision.APPROVE, Method.MANUAL, "", key.address)
        return Evidence.sign(made, key)

    return verdict


async def test_a_high_s_twin_and_v_of_0_or_1_are_no_signatures(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        good = it.verdict(it.bo, asset)
        r, s, v = good.signature[:32], int.from_bytes(good.signature[32:64]), good.signature[64]
        twin = r + (ORDER - s).to_bytes(32) + bytes([27 + 28 - v])
        for bad in (twin, good.signature[:64] + bytes([v - 27]), good.signature[:64] + bytes([v + 27])):
            # other libraries recover the signer from the twin: it is a signature of the same words by the same key
            if bad == twin:
                recovered = coincurve.PublicKey.from_signature_and_message(
                    bad[:64] + bytes([bad[64] - 27]), good.id, hasher=None
                )
                assert recovered.format() == coincurve.PrivateKey(it.bo.key.secret).public_key.format()
            assert await it.offered(Evidence(good.statement, bad).encode()) == {Reason.BAD_SIGNATURE}
        assert await it.level(asset) is Trust.SELF_ATTESTED
        assert await it.offered(good.encode()) == {None}
        assert await it.level(asset) is Trust.PARTIALLY_VERIFIED


async def test_who_is_not_in_the_quorum_verifies_nothing(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for stranger in (it.eve.key, it.ada.key, agent("nobody")):
            assert await it.offered(it.verdict(stranger, asset).encode()) == {Reason.NOT_LISTED}
        assert await it.level(asset) is Trust.SELF_ATTESTED


@pytest.mark.parametrize("first", ["what counts", "what does not"])
async def test_a_verdict_about_something_else_counts_for_nothing_here(first: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        about, good = subject(asset), it.verdict(it.bo, asset).encode()
        if first == "what counts":
            assert await it.offered(good) == {None}
        elsewhere: list[tuple[dict[str, object], Reason]] = [
            ({"network": network_id("another")}, Reason.WRONG_NETWORK),
            ({"subject": replace(about, version=2)}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, root=bytes(32))}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, seal=bytes(32))}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, author=it.cy.address)}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, name="other")}, Reason.SUBJECT_NOT_HELD),
            ({"quorum": bytes(32)}, Reason.WRONG_QUORUM),
        ]
        for change, reason in elsewhere:
            assert await it.offered(it.verdict(it.bo, asset, **change).encode()) == {reason}
        # and a signature moved from one statement to another is by nobody who counts
        other = it.verdict(it.bo, asset, subject=replace(about, version=2))
        moved = Evidence(it.verdict(it.bo, asset).statement, other.signature)
        if first == "what counts":
            # of a statement that is held no other signature is looked at, and none takes the place of the good one
            assert await it.offered(moved.encode()) == {None}
            assert {node.inside.ledger.raw(moved.id) for node in it.awake} == {good}
        else:
            assert await it.offered(moved.encode()) <= {Reason.WRONG_SIGNER, Reason.BAD_SIGNATURE}
        if first == "what does not":
            assert await it.level(asset) is Trust.SELF_ATTESTED
            assert await it.offered(good) == {None}
        view = await it.agreed(asset)
        assert addresses(view) == {it.bo.address}
        assert await it.level(asset) is Trust.PARTIALLY_VERIFIED


async def test_a_verdict_of_another_graph_counts_there_and_not_here(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset, _ = await it.proposed()
        # the same agents, the same words under the same name: all that is other is the graph
        elsewhere = (await it.ada.face.found(NewGraph("elsewhere"))).graph
        invite = await it.ada.face.invite(elsewhere, roles=("verifier",), uses=1, life_ms=60_000)
        await it.bo.face.join(invite, label="bo")
        await it.ada.face.change_members(elsewhere, MemberChange(m=1))
        there = await it.ada.share("ex:trial ex:lowers ex:ldl .", name=asset.name, graph=elsewhere)
        await it.ada.face.verify(elsewhere, there.reference, deadline_ms=None)
        await it.cluster.settled()
        assert (there.name, there.root) == (asset.name, asset.root)
        (review,) = [each for each in await it.bo.face.reviews() if each.graph == elsewhere]
        await it.bo.face.decide_review(review.id, approve=True, reason="")
        await it.cluster.settled()
        view = it.ada.view(there)
        assert view is not None
        assert view.trust.level is Trust.CONSENSUS_VERIFIED
        data = it.ada.inside.ledger.raw(view.trust.approvals[0].id)
        assert data is not None
        for node in (it.cy, it.dan):
            assert await it.offer(node, data) is Reason.UNKNOWN_GRAPH
        # nor does the signature count under any of the names that are its own here
        said = Evidence.decode(data)
        here = it.verdict(it.bo, asset).statement
        for change in ({"graph": here.graph}, {"graph": here.graph, "subject": here.subject}):
            moved = replace(said.statement, **change)  # type: ignore[arg-type]  # fields of a verdict
            assert await it.offered(Evidence(moved, said.signature).encode()) <= {
                Reason.WRONG_QUORUM,
                Reason.SUBJECT_NOT_HELD,
                Reason.WRONG_SIGNER,
            }
        assert await it.offered(Evidence(here, said.signature).encode()) <= {Reason.WRONG_SIGNER, Reason.BAD_SIGNATURE}
        assert await it.level(asset) is Trust.SELF_ATTESTED


@pytest.mark.parametrize("first", [Decision.APPROVE, Decision.REJECT])
async def test_who_approved_and_rejected_has_approved(autojump_clock: MockClock, first: Decision) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        second = Decision.REJECT if first is Decision.APPROVE else Decision.APPROVE
        for decision in (first, second):
            assert await it.offered(it.verdict(it.bo, asset, decision).encode()) == {None}
        view = await it.agreed(asset)
        assert view is not None
        assert view.trust.level is Trust.PARTIALLY_VERIFIED
        assert addresses(view) == {it.bo.address}
        assert not view.trust.rejections


async def test_an_author_does_not_verify_itself(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset = await it.bo.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        await it.bo.start_verify(asset)
        await it.cluster.settled()
        assert await it.bo.decide(approve=True) == 0
        assert await it.offered(it.verdict(it.bo, asset).encode()) == {None}
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.n) == (Trust.SELF_ATTESTED, 2, 2)
        assert await it.cy.decide(approve=True) + await it.dan.decide(approve=True) == 2
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED


async def test_two_roots_of_one_version_are_two_subjects_in_conflict(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        graph = it.ada.graph
        now_ms = it.ada.clock.now_ms()
        content = check_canonical(b"<http://example.org/a> <http://example.org/b> <http://example.org/c> .\n")
        seal = Seal(
            graph.network, graph.id, "", asset.name, 1, content.root, content.line_count, NO_PREVIOUS, it.ada.address
        )
        body = Sealed(seal.sign(it.ada.key), ContentRef.of(content.data))
        twin = Unsigned(
            graph.network, graph.id, Kind.SHARE, it.ada.address, None, 1, now_ms, now_ms + 86_400_000, body
        ).sign(it.ada.key)
        assert await it.offered(twin.encode()) == {None}
        await it.bo.decide(approve=True)
        await it.cy.decide(approve=True)
        other = replace(asset, root=hex_id(seal.root), seal=hex_id(seal.digest))
        verified, bare = await it.agreed(asset), await it.agreed(other)
        assert verified is not None
        assert bare is not None
        assert verified.conflict
        assert bare.conflict
        assert (verified.trust.level, bare.trust.level) == (Trust.CONSENSUS_VERIFIED, Trust.SELF_ATTESTED)
        for node in it.awake:
            (current,) = await node.versions(min_trust=Trust.CONSENSUS_VERIFIED)
            assert (current.root, current.trust.conflict) == (asset.root, True)


async def test_an_endorsement_that_is_withdrawn_is_gone_for_good(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.bo.endorse(asset, reason="good work")
        assert await it.level(asset) is Trust.ENDORSED
        await it.bo.endorse(asset, reason="I was wrong", withdraw=True)
        assert await it.level(asset) is Trust.SELF_ATTESTED
        await it.bo.endorse(asset, reason="or was I")
        assert await it.level(asset) is Trust.SELF_ATTESTED
        await it.cy.endorse(asset)
        assert await it.level(asset) is Trust.ENDORSED


async def test_a_member_without_the_role_endorses_nothing(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.change(MemberChange(set=(NewMember(str(it.cy.address), ("writer", "verifier"), "cy"),)))
        with pytest.raises(NoRightError, match="has not the right to endorse"):
            await it.cy.endorse(asset)
        assert await it.level(asset) is Trust.SELF_ATTESTED
