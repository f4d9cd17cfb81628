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
from p2pmem_protocol.envelope import Envelope, Unsigned
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Method, Verdict
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import VersionKey, hex_id, network_id
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewGraph, NewMember, NoRightError
from tests.p2pmem.trust.scene import Order, Scene, addresses, scene, subject

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def agent(name: str) -> Key:
    return Key(hashlib.sha256(name.encode()).digest())


async def test_m_approvals_verify_a_version_everywhere(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, job = await it.proposed()
        async with it.apart(*it.sides()):
            for node in (it.bo, it.cy):
                assert await node.decide(approve=True, reason=f"{node.name} read the paper") == 1
            await it.cluster.settled()
            assert {node.trust(asset) for node in it.awake} == {Trust.PARTIALLY_VERIFIED}
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.n) == (Trust.CONSENSUS_VERIFIED, 2, 3)
        assert addresses(view) == {it.bo.address, it.cy.address}
        ended = await it.ada.job(job)
        assert ended.state == "succeeded"
        assert isinstance(ended.result, dict)
        assert ended.result["level"] == "ConsensusVerified"
        assert (await it.told(asset)).missing == (str(it.dan.address),)


async def test_one_signer_counts_once_however_often_it_signs(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        again = await it.cluster.twin(it.bo, "bo's other")
        await it.cluster.settled()
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, [*of_cy, again]):
            # each of its nodes asks bo, and neither has heard what bo said at the other
            for node, reason in ((it.bo, "once"), (again, "twice")):
                assert await node.decide(approve=True, reason=reason) == 1
            await it.cluster.settled()
            (once,), (twice,) = (it.said_by(it.bo, asset, held_by=node) for node in (it.bo, again))
            for node, method in ((it.bo, Method.AUTO), (again, Method.SHACL)):
                assert await it.offer(node, it.verdict(it.bo, asset, method=method).encode()) is None
        view = await it.agreed(asset)
        assert view is not None
        assert view.trust.level is Trust.PARTIALLY_VERIFIED
        (line,) = view.trust.approvals
        assert line.signer == it.bo.address
        # of each meaning one is kept, whichever came first, and the strongest method is shown
        assert (line.method, line.id) == (Method.MANUAL, min(once, twice))
        assert {each.method for each in view.trust.ignored} == {Method.AUTO, Method.SHACL}
        assert len(view.trust.ignored) == 2
        assert str(it.bo.address) not in (await it.told(asset)).missing


async def test_two_agents_of_one_principal_are_one_author_and_bar_it(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        sides = it.sides()
        (first, shared_first), (second, shared_second) = (_by_agent_of_bo(it, agent(name)) for name in ("one", "two"))
        # neither the principal nor another of its agents verifies what an agent of it wrote
        async with it.apart(*sides):
            for side, seal, shared in zip(sides, (first, second), (shared_first, shared_second), strict=True):
                assert await it.offered(shared.encode(), *side) == {None}
                about = _verdicts(it, seal.key)
                assert await it.offered(about(it.bo.key).encode(), *side) == {None}
                other = agent("two" if seal is first else "one")
                assert await it.offered(about(other).encode(), *side) == {Reason.NOT_LISTED}
        for asset in (_asset(it, first), _asset(it, second)):
            view = await it.agreed(asset)
            assert view is not None
            assert (view.principals, view.trust.level) == ((it.bo.address,), Trust.SELF_ATTESTED)
            assert (view.trust.n, view.trust.approvals) == (2, ())
            about = _verdicts(it, asset.key)
            async with it.apart(*sides):
                for side, verifier in zip(sides, (it.cy, it.dan), strict=True):
                    assert await it.offered(about(verifier.key).encode(), *side) == {None}
                    assert {node.trust(asset) for node in side} == {Trust.PARTIALLY_VERIFIED}
            view = await it.agreed(asset)
            assert addresses(view) == {it.cy.address, it.dan.address}
            assert str(it.bo.address) in (await it.told(asset)).barred
        for node in it.awake:
            shown = await node.versions()
            assert [(each.trust.level, each.trust.n) for each in shown] == [("ConsensusVerified", 2)] * 2


def _by_agent_of_bo(it: Scene, helper: Key) -> tuple[Seal, Envelope]:
    """What an agent that acts for bo seals and shares."""
    graph, now_ms = it.bo.graph, it.bo.clock.now_ms()
    content = check_canonical(b"<http://example.org/a> <http://example.org/b> <http://example.org/c> .\n")
    acts = ActFor(graph.network, it.bo.address, helper.address, 1, "assistant", Right.all()).sign(it.bo.key)
    seal = Seal(graph.network, graph.id, "", "note", 1, content.root, content.line_count, NO_PREVIOUS, helper.address)
    body = Sealed(seal.sign(helper), ContentRef.of(content.data))
    unsigned = Unsigned(graph.network, graph.id, Kind.SHARE, helper.address, acts, 1, now_ms, now_ms + DAY_MS, body)
    return seal, unsigned.sign(helper)


def _asset(it: Scene, seal: Seal) -> Asset:
    return Asset(it.cluster.graph, seal.author, seal.name, seal.version, hex_id(seal.root), hex_id(seal.digest))


def _verdicts(it: Scene, about: VersionKey) -> Callable[[Key], Evidence]:
    """Approvals of a version."""
    graph = it.bo.graph
    assert graph.head is not None
    quorum = graph.head.quorum.id

    def verdict(key: Key) -> Evidence:
        made = Verdict(graph.network, graph.id, quorum, about, Decision.APPROVE, Method.MANUAL, "", key.address)
        return Evidence.sign(made, key)

    return verdict


async def test_a_high_s_twin_and_v_of_0_or_1_are_no_signatures(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        good = it.verdict(it.bo, asset)
        r, s, v = good.signature[:32], int.from_bytes(good.signature[32:64]), good.signature[64]
        twin = r + (ORDER - s).to_bytes(32) + bytes([27 + 28 - v])
        # other libraries recover the signer from the twin: it is a signature of the same words by the same key
        recovered = coincurve.PublicKey.from_signature_and_message(
            twin[:64] + bytes([twin[64] - 27]), good.id, hasher=None
        )
        assert recovered.format() == coincurve.PrivateKey(it.bo.key.secret).public_key.format()
        bad = [
            Evidence(good.statement, signature).encode()
            for signature in (twin, good.signature[:64] + bytes([v - 27]), good.signature[:64] + bytes([v + 27]))
        ]
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, of_cy):
            for data in bad:
                assert await it.offered(data, *of_bo) == {Reason.BAD_SIGNATURE}
            assert await it.offered(good.encode(), *of_cy) == {None}
            assert {node.trust(asset) for node in of_bo} == {Trust.SELF_ATTESTED}
        for data in bad:
            # of a statement that is held no other signature is looked at, and none takes the place of the good one
            assert await it.offered(data) == {None}
        await it.wake()
        assert {node.inside.ledger.raw(good.id) for node in it.awake} == {good.encode()}
        view = await it.agreed(asset)
        assert addresses(view) == {it.bo.address}
        assert (await it.told(asset)).version.trust.level == "PartiallyVerified"


async def test_who_is_not_in_the_quorum_verifies_nothing(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        strangers = [it.verdict(key, asset).encode() for key in (it.eve.key, it.ada.key, agent("nobody"))]
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, of_cy):
            assert await it.bo.decide(approve=True) == 1
            for data in strangers:
                assert await it.offered(data, *of_cy) == {Reason.NOT_LISTED}
        for data in strangers:
            assert await it.offered(data) == {Reason.NOT_LISTED}
        view = await it.agreed(asset)
        assert addresses(view) == {it.bo.address}
        assert await it.level(asset) is Trust.PARTIALLY_VERIFIED


async def test_a_verdict_about_something_else_counts_for_nothing_here(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        about, good = subject(asset), it.verdict(it.bo, asset).encode()
        elsewhere: list[tuple[dict[str, object], Reason]] = [
            ({"network": network_id("another")}, Reason.WRONG_NETWORK),
            ({"subject": replace(about, version=2)}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, root=bytes(32))}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, seal=bytes(32))}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, author=it.cy.address)}, Reason.SUBJECT_NOT_HELD),
            ({"subject": replace(about, name="other")}, Reason.SUBJECT_NOT_HELD),
            ({"quorum": bytes(32)}, Reason.WRONG_QUORUM),
        ]
        # and a signature moved from one statement to another is by nobody who counts
        other = it.verdict(it.bo, asset, subject=replace(about, version=2))
        moved = Evidence(it.verdict(it.bo, asset).statement, other.signature)
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, of_cy):
            assert await it.offered(good, *of_cy) == {None}
            for change, reason in elsewhere:
                assert await it.offered(it.verdict(it.bo, asset, **change).encode(), *of_bo) == {reason}
            assert await it.offered(moved.encode(), *of_bo) <= {Reason.WRONG_SIGNER, Reason.BAD_SIGNATURE}
            assert {node.trust(asset) for node in of_bo} == {Trust.SELF_ATTESTED}
        for change, reason in elsewhere:
            assert await it.offered(it.verdict(it.bo, asset, **change).encode()) == {reason}
        # of a statement that is held no other signature is looked at, and none takes the place of the good one
        assert await it.offered(moved.encode()) == {None}
        await it.wake()
        assert {node.inside.ledger.raw(moved.id) for node in it.awake} == {good}
        view = await it.agreed(asset)
        assert addresses(view) == {it.bo.address}
        assert await it.level(asset) is Trust.PARTIALLY_VERIFIED


async def test_a_verdict_of_another_graph_counts_there_and_not_here(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order, quorum=1) as it:
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
        assert {each.graph for each in await it.bo.face.reviews()} == {it.cluster.graph, elsewhere}
        (review,) = await it.bo.face.reviews(graph=elsewhere)
        await it.bo.face.decide_review(review.id, approve=True, reason="")
        await it.cluster.settled()
        view = it.ada.view(there)
        assert view is not None
        assert view.trust.level is Trust.CONSENSUS_VERIFIED
        data = it.ada.inside.ledger.raw(view.trust.approvals[0].id)
        assert data is not None
        # nor does the signature count under any of the names that are its own here
        said = Evidence.decode(data)
        here = it.verdict(it.bo, asset).statement
        moved = [Evidence(here, said.signature).encode()]
        for change in ({"graph": here.graph}, {"graph": here.graph, "subject": here.subject}):
            statement = replace(said.statement, **change)  # type: ignore[arg-type]  # fields of a verdict
            moved.append(Evidence(statement, said.signature).encode())
        refused = {Reason.WRONG_QUORUM, Reason.SUBJECT_NOT_HELD, Reason.WRONG_SIGNER, Reason.BAD_SIGNATURE}
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, of_cy):
            for each in moved:
                assert await it.offered(each, *of_bo) <= refused
            assert {node.trust(asset) for node in of_bo} == {Trust.SELF_ATTESTED}
            assert await it.cy.decide(approve=True) == 1
        for each in moved:
            assert await it.offered(each) <= refused
        for node in (it.cy, it.dan):
            assert await it.offer(node, data) is Reason.UNKNOWN_GRAPH
        view = await it.agreed(asset)
        assert addresses(view) == {it.cy.address}
        assert (await it.told(asset)).version.trust.level == "ConsensusVerified"


async def test_who_approved_and_rejected_has_approved(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        again = await it.cluster.twin(it.bo, "bo's other")
        await it.cluster.settled()
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, [*of_cy, again]):
            assert await it.bo.decide(approve=True, reason="good") == 1
            assert await again.decide(approve=False, reason="the unit is missing") == 1
            await it.cluster.settled()
            assert {node.trust(asset) for node in of_bo} == {Trust.PARTIALLY_VERIFIED}
            assert {node.trust(asset) for node in of_cy} == {Trust.SELF_ATTESTED}
        view = await it.agreed(asset)
        assert view is not None
        assert view.trust.level is Trust.PARTIALLY_VERIFIED
        assert addresses(view) == {it.bo.address}
        assert not view.trust.rejections
        told = await it.told(asset)
        said = {each.decision: bool(each.ignored) for each in told.signatures if each.kind == "verdict"}
        assert said == {"approve": False, "reject": True}


async def test_an_author_does_not_verify_itself(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset = await it.bo.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        await it.bo.start_verify(asset)
        await it.cluster.settled()
        assert await it.bo.decide(approve=True) == 0
        async with it.apart(*it.sides()):
            assert await it.offer(it.bo, it.verdict(it.bo, asset).encode()) is None
            assert await it.cy.decide(approve=True) == 1
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, view.trust.n) == (Trust.PARTIALLY_VERIFIED, 2, 2)
        assert addresses(view) == {it.cy.address}
        assert await it.dan.decide(approve=True) == 1
        view = await it.agreed(asset)
        assert addresses(view) == {it.cy.address, it.dan.address}
        told = await it.told(asset)
        assert (told.version.trust.level, told.barred) == ("ConsensusVerified", (str(it.bo.address),))


async def test_two_roots_of_one_version_are_two_subjects_in_conflict(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        again = await it.cluster.twin(it.ada, "ada's other")
        await it.cluster.settled()
        # ada is with bo, or with cy in the other order, and what it writes at its two nodes is no one thing
        of_bo, of_cy = it.sides()
        with_ada, with_again = (of_cy, of_bo) if it.ada in of_cy else (of_bo, of_cy)
        async with it.apart(with_ada, [*with_again, again]):
            asset = await it.ada.share("ex:trial ex:lowers ex:ldl .", name="trial")
            other = await again.share("ex:trial ex:raises ex:ldl .", name="trial")
            await it.cluster.settled()
            await it.ada.start_verify(asset)
            await it.cluster.settled()
            assert await with_ada[0].decide(approve=True) == 1
            await with_again[0].endorse(other)
        assert (asset.version, other.version) == (1, 1)
        assert asset.root != other.root
        assert await it.dan.decide(approve=True) == 1
        verified, bare = await it.agreed(asset), await it.agreed(other)
        assert verified is not None
        assert bare is not None
        assert verified.conflict
        assert bare.conflict
        assert (verified.trust.level, bare.trust.level) == (Trust.CONSENSUS_VERIFIED, Trust.ENDORSED)
        assert addresses(verified) == {with_ada[0].address, it.dan.address}
        assert len((await it.told(asset)).conflicts) == 1
        for node in it.awake:
            (current,) = await node.versions(min_trust=Trust.CONSENSUS_VERIFIED)
            assert (current.root, current.trust.conflict) == (asset.root, True)
            assert {each.root for each in await node.versions()} == {asset.root, other.root}


async def test_an_endorsement_that_is_withdrawn_is_gone_for_good(order: Order, autojump_clock: MockClock) -> None:
    async with scene(order) as it:
        asset, _ = await it.proposed()
        graph = it.ada.graph
        of_bo, of_cy = it.sides()
        async with it.apart(of_bo, of_cy):
            await it.bo.endorse(asset, reason="good work")
            # what bo withdrew at another node is heard of here before what it withdraws
            withdrawn = Endorsement(
                graph.network, graph.id, subject(asset), Endorse.WITHDRAW, "I was wrong", it.bo.address
            )
            assert await it.offered(Evidence.sign(withdrawn, it.bo.key).encode(), *of_cy) == {None}
            await it.cluster.settled()
            assert {node.trust(asset) for node in of_bo} == {Trust.ENDORSED}
            assert {node.trust(asset) for node in of_cy} == {Trust.SELF_ATTESTED}
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.endorsements) == (Trust.SELF_ATTESTED, ())
        assert {each.decision for each in (await it.told(asset)).signatures if each.kind == "endorse"} == {
            "endorse",
            "withdraw",
        }
        await it.bo.endorse(asset, reason="or was I")
        assert await it.level(asset) is Trust.SELF_ATTESTED
        await it.cy.endorse(asset)
        assert await it.level(asset) is Trust.ENDORSED


async def test_who_withdraws_an_endorsement_takes_it_back_everywhere(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.bo.endorse(asset, reason="good work")
        assert await it.level(asset) is Trust.ENDORSED
        await it.bo.endorse(asset, reason="I was wrong", withdraw=True)
        assert await it.level(asset) is Trust.SELF_ATTESTED


async def test_a_member_without_the_role_endorses_nothing(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.change(MemberChange(set=(NewMember(str(it.cy.address), ("writer", "verifier"), "cy"),)))
        with pytest.raises(NoRightError, match="has not the right to endorse"):
            await it.cy.endorse(asset)
        assert await it.level(asset) is Trust.SELF_ATTESTED
