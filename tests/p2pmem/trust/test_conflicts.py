"""Two seals that an author let go as one version: none of them ever stands, or is signed for, as the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from p2pmem_devnet.cluster import days
from p2pmem_devnet.cluster_node import Asset
from p2pmem_protocol.bodies import ContentRef, Sealed
from p2pmem_protocol.content import Content, check_canonical
from p2pmem_protocol.envelope import Unsigned
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import GraphId, hex_id
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.cli.views_trust import show_diff, show_review
from p2pmem.face import Difference, MemberChange, NewMember, NotFoundError, SignRequest
from tests.p2pmem.trust.scene import Scene, scene

CONTENT, SUBGRAPH = "another content", "the same content in a sub-graph"
TWINS = pytest.mark.parametrize("kind", [CONTENT, SUBGRAPH])


def _others(kind: str, content: Content) -> Iterator[tuple[str, Content]]:
    for number in range(1_000):
        if kind == SUBGRAPH:
            yield f"approved-{number}", content
        else:
            line = f'<http://example.org/drug> <http://example.org/dose> "{number}" .\n'
            yield "", check_canonical(line.encode())


async def _twin(it: Scene, asset: Asset, kind: str) -> Asset:
    """Another seal by ada of the same version, which all hold: it stands before `asset` where nothing else decides."""
    graph, now_ms = it.ada.graph, it.ada.clock.now_ms()
    content = check_canonical(await it.ada.content(asset))
    seals = (
        (
            Seal(graph.network, graph.id, sub, asset.name, 1, each.root, each.line_count, NO_PREVIOUS, asset.author),
            each,
        )
        for sub, each in _others(kind, content)
    )
    seal, content = next((seal, of) for seal, of in seals if hex_id(seal.digest) < asset.seal)
    first = _unsigned(it, seal, content)
    # renewed more than once: what is shown of a version does not hang on the id of a share
    for earlier in range(4):
        share = replace(first, issued_at_ms=now_ms - earlier).sign(it.ada.key)
        assert await it.offered(share.encode()) == {None}
    await it.cluster.settled()
    return replace(asset, root=hex_id(seal.root), seal=hex_id(seal.digest))


def _unsigned(it: Scene, seal: Seal, content: Content) -> Unsigned:
    """A share as another node of ada would make it."""
    body, now_ms = Sealed(seal.sign(it.ada.key), ContentRef.of(content.data)), it.ada.clock.now_ms()
    return Unsigned(
        seal.network, GraphId(seal.graph), Kind.SHARE, it.ada.address, None, 1, now_ms, now_ms + DAY_MS, body
    )


def _named(asset: Asset, digits: int = 64) -> str:
    return f"{asset.reference}:{asset.seal[: 2 + digits]}"


async def _verified(it: Scene) -> Asset:
    asset, _ = await it.proposed()
    await it.bo.decide(approve=True)
    await it.cluster.settled()
    return asset


@TWINS
async def test_the_name_of_a_verified_version_gives_what_was_verified(kind: str, autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset = await _verified(it)
        content = await it.cy.content(asset)
        twin = await _twin(it, asset, kind)
        for each, level in ((asset, Trust.CONSENSUS_VERIFIED), (twin, Trust.SELF_ATTESTED)):
            view = await it.agreed(each)
            assert view is not None
            assert (view.trust.level, view.conflict) == (level, True)
        for node in it.awake:
            (listed,) = await node.versions(min_trust=Trust.CONSENSUS_VERIFIED)
            assert (listed.reference, listed.seal, listed.subgraph) == (_named(asset), asset.seal, "")
            assert await node.content(asset) == content
            explained = await node.face.explain(asset.graph, asset.reference)
            assert (explained.version.seal, explained.version.trust.level) == (asset.seal, "ConsensusVerified")
            assert explained.conflicts == (_named(twin),)
            said = (await node.certificate(asset)).statement
            assert (said["root"], said["seal"], said["subgraph"]) == (asset.root, asset.seal, "")
            with pytest.raises(MisuseError, match="is SelfAttested and not ConsensusVerified"):
                await node.face.certificate(asset.graph, _named(twin))


@TWINS
async def test_at_a_floor_a_query_reads_what_was_verified_and_nothing_of_the_other(
    kind: str, autojump_clock: MockClock
) -> None:
    async with scene(quorum=1) as it:
        asset = await _verified(it)
        twin = await _twin(it, asset, kind)
        for node in (it.ada, it.cy):
            by_seal = {each.seal: each for each in await node.versions()}
            assert set(by_seal) == {asset.seal, twin.seal}
            plain = by_seal[asset.seal].iri
            assert by_seal[twin.seal].iri.endswith(f"@1-{twin.seal[2:]}")
            # each has a named graph of its own, and in the aggregate of the floor is what was verified
            assert {each for each in node.inside.store.placed() if "_shared_memory" in each} == {
                plain,
                by_seal[twin.seal].iri,
            }
            rows = (await node.query("SELECT ?s { ?s ?p ?o }", min_trust=Trust.CONSENSUS_VERIFIED)).rows
            assert rows == (("<http://example.org/trial>",),)
            hits = await node.recall("trial lowers ldl drug dose", min_trust=Trust.CONSENSUS_VERIFIED)
            assert [hit.version and hit.version.seal for hit in hits] == [asset.seal]
            either = await node.recall("trial lowers ldl drug dose")
            assert {hit.version.seal: hit.version.trust.level for hit in either if hit.version} == {
                asset.seal: "ConsensusVerified",
                twin.seal: "SelfAttested",
            }
            dkg = "http://dkg.io/ontology/"
            described = f"SELECT ?seal {{ GRAPH ?g {{ ?a <{dkg}trustLevel> ?level ; <{dkg}seal> ?seal }} }}"
            assert (await node.query(described)).rows == ((f'"{asset.seal}"',),)


@TWINS
async def test_nobody_endorses_a_seal_that_he_was_not_shown(kind: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.bo.endorse(asset)
        twin = await _twin(it, asset, kind)
        with pytest.raises(MisuseError, match="2 seals in conflict") as refused:
            await it.cy.endorse(asset)
        assert _named(asset) in str(refused.value)
        assert _named(twin) in str(refused.value)
        await it.bo.endorse(asset, withdraw=True)
        for each in (asset, twin):
            view = await it.agreed(each)
            assert view is not None
            assert (view.trust.level, view.trust.endorsements) == (Trust.SELF_ATTESTED, ())


@TWINS
async def test_one_of_them_is_named_by_how_its_seal_begins(kind: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        twin = await _twin(it, asset, kind)
        graph, face = asset.graph, it.cy.face
        for each in (asset, twin):
            for reference in (_named(each), _named(each, 8)):
                assert (await face.version(graph, reference)).seal == each.seal
            assert (await face.explain(graph, _named(each, 8))).version.seal == each.seal
            line = (await face.content(graph, _named(each, 8))).decode()
            assert (await face.proof(graph, _named(each, 8), line))["seal"] == each.seal
            history = await face.history(graph, _named(each, 8))
            assert {step.seal for step in history.steps if step.what == "promote"} == {asset.seal, twin.seal}
        with pytest.raises(MisuseError, match="2 seals in conflict"):
            await it.ada.face.verify(graph, asset.reference, deadline_ms=None)
        await face.endorse(graph, _named(twin, 8), reason="the other", withdraw=False)
        await it.ada.face.verify(graph, _named(twin, 8), deadline_ms=None)
        await it.cluster.settled()
        assert [len(it.bo.view(each).trust.endorsements) for each in (asset, twin)] == [0, 1]
        assert {review.reference for review in await it.bo.face.reviews()} == {_named(asset), _named(twin)}
        for review in await it.bo.face.reviews():
            if review.seal == twin.seal:
                await it.bo.face.decide_review(review.id, approve=True, reason="")
        await it.cluster.settled()
        levels = [(await it.agreed(each)) for each in (asset, twin)]
        assert [view and view.trust.level for view in levels] == [Trust.SELF_ATTESTED, Trust.PARTIALLY_VERIFIED]


async def test_a_seal_that_is_not_there_or_badly_written_is_refused_in_words(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        twin = await _twin(it, asset, SUBGRAPH)
        with pytest.raises(NotFoundError, match=r"no seal of .* begins with 0x00000000; known here: ") as unknown:
            await it.cy.face.version(asset.graph, f"{asset.reference}:0x00000000")
        assert _named(twin) in str(unknown.value)
        for bad in ("", "0x", "0x123", "12ab", "0x12ag", "0x" + "0" * 65):
            with pytest.raises(MisuseError, match="after : comes how a seal begins"):
                await it.cy.face.version(asset.graph, f"{asset.reference}:{bad}")


@TWINS
async def test_a_wallet_is_given_no_verdict_to_sign_on_one_of_two_seals(kind: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        wallet = Key(bytes([7]) * 32)
        roles = ("writer", "endorser", "verifier")
        await it.change(MemberChange(set=(NewMember(str(wallet.address), roles, "wallet"),)))
        await it.bo.face.add_agent(str(wallet.address), label="wallet")
        asset, _ = await it.proposed()
        twin = await _twin(it, asset, kind)
        for action, word in (("verdict", "approves"), ("endorse", "endorses"), ("propose", "asks the verifiers about")):
            request = SignRequest(
                action, str(wallet.address), graph=asset.graph, reference=asset.reference, decision="approve"
            )
            with pytest.raises(MisuseError, match="2 seals in conflict"):
                await it.bo.face.sign_prepare(request)
            shown = await it.bo.face.sign_prepare(replace(request, reference=_named(twin)))
            (told,) = shown.told
            assert told.startswith(f"{word} {_named(twin)}")
            if action != "propose":
                message = shown.typed_data["message"]
                assert isinstance(message, dict)
                assert (message["root"], message["seal"]) == (twin.root, twin.seal)
                assert ": 1 statement in " in told
                assert ("in the sub-graph approved-" in told) == (kind == SUBGRAPH)
            await it.bo.face.sign_submit(shown.id, signature=wallet.sign(bytes.fromhex(shown.id[2:])).hex())
        await it.cluster.settled()
        bare, said = await it.agreed(asset), await it.agreed(twin)
        assert bare is not None
        assert said is not None
        assert (len(bare.trust.approvals), len(said.trust.approvals)) == (0, 1)


async def test_a_newer_version_is_compared_with_what_was_verified(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset = await _verified(it)
        twin = await _twin(it, asset, CONTENT)
        newer = await it.ada.share("ex:trial ex:lowers ex:ldl ; ex:in ex:men .", name=asset.name, ttl=days(10))
        await it.cluster.settled()
        assert twin.seal < asset.seal
        await it.ada.start_verify(newer)
        await it.cluster.settled()
        (review,) = [each for each in await it.cy.face.reviews() if each.reference == newer.reference]
        shown = await it.cy.face.review(review.id)
        assert [each.seal for each in shown.earlier] == [asset.seal, twin.seal]
        assert f"earlier versions: 1:{asset.seal} 1:{twin.seal}" in show_review(shown)
        for diff in (shown.diff, await it.cy.face.diff(asset.graph, newer.reference, other=None)):
            assert diff is not None
            assert (len(diff.added), diff.removed) == (1, ())


async def test_what_is_said_of_one_of_them_names_its_seal(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        twin = await _twin(it, asset, CONTENT)
        diff = await it.cy.face.diff(asset.graph, _named(asset), other="1")
        assert {diff.older, diff.newer} == {_named(asset), _named(twin)}
        asked = await it.ada.face.verify(asset.graph, _named(twin), deadline_ms=None)
        assert asked.reference == _named(twin)
        await it.cluster.settled()
        await it.bo.decide(approve=True)
        ended = await it.ada.job(asked)
        assert isinstance(ended.result, dict)
        assert ended.result["reference"] == _named(twin)
        assert ended.result["level"] == "ConsensusVerified"
        await it.ada.retract(asset)
        await it.cluster.settled()
        for each in (asset, twin):
            assert await it.level(each) is None, "a retract takes back every seal of its number"


@TWINS
async def test_what_a_version_is_compared_with_is_named_as_everywhere(kind: str, autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        twin = await _twin(it, asset, kind)
        newer = await it.ada.share("ex:trial ex:lowers ex:ldl ; ex:in ex:men .", name=asset.name, ttl=days(10))
        await it.ada.draft("ex:trial ex:lowers ex:ldl ; ex:in ex:women .", name=asset.name)
        await it.cluster.settled()
        face, graph = it.cy.face, asset.graph
        for each in (asset, twin):
            digits = _named(each, 8).partition("@")[2]
            for name in (digits, f"@{digits}", f"{asset.name}@{digits}", _named(each)):
                assert (await face.diff(graph, newer.reference, other=name)).older == _named(each)
                assert (await it.ada.face.diff(graph, asset.name, other=name)).older == _named(each)
        for one, other in ((asset, twin), (twin, asset)):
            found = await face.diff(graph, _named(one), other=_named(other, 8))
            assert {found.older, found.newer} == {_named(asset), _named(twin)}
        with pytest.raises(NotFoundError, match=r"no version .* to compare with"):
            await face.diff(graph, _named(asset), other=_named(asset))
        for bad in (asset.name, "", "@", "1:", "2:0x12", "0", f"{it.cy.address}/{asset.name}@1", "another@1"):
            with pytest.raises(MisuseError):
                await face.diff(graph, newer.reference, other=bad)


async def test_a_difference_says_in_what_two_seals_of_the_same_statements_differ(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        in_subgraph = await _twin(it, asset, SUBGRAPH)
        face, graph = it.cy.face, asset.graph
        shown = await face.version(graph, _named(in_subgraph))
        found = await face.diff(graph, _named(asset), other=_named(in_subgraph))
        assert (found.added, found.removed) == ((), ())
        assert found.sealed == (Difference("sub-graph", shown.subgraph, ""),)
        assert show_diff(found).splitlines()[2:] == [
            f"- sub-graph: {shown.subgraph}",
            "+ sub-graph: none",
            "the same statements",
        ]
        # a second version, by one node of ada after the one seal, by another after some other one
        newer = await it.ada.share("ex:trial ex:lowers ex:ldl ; ex:in ex:men .", name=asset.name, ttl=days(10))
        content = check_canonical(await it.ada.content(newer))
        seal = Seal(
            it.ada.graph.network,
            it.ada.graph.id,
            "",
            asset.name,
            2,
            content.root,
            content.line_count,
            b"p" * 32,
            asset.author,
        )
        late = replace(_unsigned(it, seal, content), expires_at_ms=it.ada.clock.now_ms() + 10 * DAY_MS)
        assert await it.offered(late.sign(it.ada.key).encode()) == {None}
        found = await face.diff(graph, f"{asset.reference[:-1]}2:{hex_id(seal.digest)}", other="2")
        assert (found.added, found.removed) == ((), ())
        assert {(each.what, each.before, each.after) for each in found.sealed} <= {
            ("previous root", asset.root, hex_id(b"p" * 32)),
            ("previous root", hex_id(b"p" * 32), asset.root),
        }
        assert len(found.sealed) == 1
        # of two numbers the one before is other anyhow
        assert (await face.diff(graph, newer.reference, other=_named(asset))).sealed == ()


async def test_the_owner_stops_keeping_the_one_that_he_names(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset = await _verified(it)
        twin = await _twin(it, asset, SUBGRAPH)
        for verifier in (it.bo, it.cy):
            assert await it.offered(it.verdict(verifier, twin).encode()) == {None}
        await it.change(MemberChange(m=2))
        for name in (asset.reference, f"{asset.author}/{asset.name}", asset.name, f"{asset.name}:{twin.seal}"):
            with pytest.raises(MisuseError) as refused:
                await it.change(MemberChange(drop=(name,)))
            if ":" not in name:
                assert {_named(asset), _named(twin)} <= set(str(refused.value).split())
        await it.change(MemberChange(drop=(_named(twin, 8),)))
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        assert await it.level(twin) is Trust.SELF_ATTESTED


async def test_what_another_node_of_the_author_let_go_meanwhile_leads_to_the_next_version(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        face, graph = it.ada.face, it.ada.graph
        name = await it.ada.draft("ex:trial ex:lowers ex:ldl .")
        first = await face.seal(it.cluster.graph, name)
        assert first.version == 1
        (_, other) = next(_others(CONTENT, check_canonical(b"<urn:a> <urn:b> <urn:c> .\n")))
        seal = Seal(graph.network, graph.id, "", name, 1, other.root, other.line_count, NO_PREVIOUS, it.ada.address)
        assert await it.offered(_unsigned(it, seal, other).sign(it.ada.key).encode()) == {None}
        with pytest.raises(MisuseError, match="seal the next version"):
            await it.ada.share(name=name)
        again = await face.seal(it.cluster.graph, name)
        assert again.version == 2
        asset = await it.ada.share(name=name)
        view = await it.agreed(asset)
        assert view is not None
        assert (view.key.version, view.previous, view.conflict) == (2, other.root, False)


async def test_who_endorsed_both_of_them_takes_back_the_one_that_he_names_and_then_the_other(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.bo.endorse(asset)
        twin = await _twin(it, asset, SUBGRAPH)
        face, graph = it.bo.face, asset.graph
        await it.bo.job(await face.endorse(graph, _named(twin), reason="", withdraw=False))
        with pytest.raises(MisuseError, match="endorses 2 seals"):
            await it.bo.endorse(asset, withdraw=True)
        await it.bo.job(await face.endorse(graph, _named(twin), reason="", withdraw=True))
        assert await it.level(asset) is Trust.ENDORSED
        assert await it.level(twin) is Trust.SELF_ATTESTED
        await it.bo.endorse(asset, withdraw=True)
        assert await it.level(asset) is Trust.SELF_ATTESTED
