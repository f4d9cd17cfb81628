"""Reading at a floor: a least trust and a least M, the same on queries of any shape, on lists and on recall."""

from __future__ import annotations

from itertools import product

import pytest
from p2pmem_devnet.cluster import days
from p2pmem_devnet.cluster_node import Asset, ClusterNode
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import Layer, MemberChange
from tests.p2pmem.trust.scene import Scene, scene

SHAPES = {
    "select": "SELECT ?o { ?s <http://example.org/says> ?o }",
    "optional": "SELECT ?o { ?s <http://example.org/about> ?x OPTIONAL { ?s <http://example.org/says> ?o } }",
    "union": "SELECT ?o { { ?s <http://example.org/says> ?o } UNION { ?s <http://example.org/none> ?o } }",
    "path": "SELECT ?o { ?s (<http://example.org/says>|<http://example.org/none>)+ ?o }",
    "sub-query": "SELECT ?o { { SELECT ?s { ?s <http://example.org/about> ?x } } ?s <http://example.org/says> ?o }",
    "aggregate": "SELECT (SAMPLE(?x) AS ?o) { ?s <http://example.org/says> ?x } GROUP BY ?s",
    "not exists": (
        "SELECT ?o { ?s <http://example.org/says> ?o FILTER NOT EXISTS { ?s <http://example.org/says> "
        "<http://example.org/nothing> } }"
    ),
}


async def says(node: ClusterNode, trust: Trust, min_m: int, shape: str, layer: Layer | None = None) -> set[str]:
    answer = await node.face.query(
        SHAPES[shape], graph=node.cluster.graph, layer=layer, min_trust=trust.word, at_least=0, min_m=min_m
    )
    return {str(row[0]).rpartition("/")[2].rstrip(">") for row in answer.rows}


async def said(it: Scene, word: str, name: str | None = None) -> Asset:
    text = f"<http://example.org/{name or word}> ex:says ex:{word} ; ex:about ex:thing ."
    asset = await it.ada.share(text, name=name or word, ttl=days(3))
    await it.cluster.settled()
    return asset


async def approved(it: Scene, asset: Asset, *nodes: ClusterNode) -> None:
    for node in nodes:
        assert await it.offered(it.verdict(node, asset).encode()) == {None}
    await it.cluster.settled()


async def test_a_floor_of_trust_and_m_holds_in_any_shape_of_query(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await approved(it, await said(it, "verified"), it.bo, it.cy)
        await approved(it, await said(it, "partial"), it.bo)
        await said(it, "bare")
        # the same asset: verified by 2 of 3, then a newer version that nobody looked at
        await approved(it, await said(it, "old", "twice"), it.bo, it.dan)
        await said(it, "new", "twice")
        expected = {
            (Trust.SELF_ATTESTED, 0): {"verified", "partial", "bare", "new"},
            (Trust.SELF_ATTESTED, 2): {"verified", "partial", "bare", "new"},
            (Trust.PARTIALLY_VERIFIED, 0): {"verified", "partial", "old"},
            (Trust.CONSENSUS_VERIFIED, 0): {"verified", "old"},
            (Trust.CONSENSUS_VERIFIED, 2): {"verified", "old"},
            (Trust.CONSENSUS_VERIFIED, 3): set(),
        }
        await it.wake()
        for node, shape in product((it.ada, it.eve), SHAPES):
            for (trust, min_m), words in expected.items():
                assert await says(node, trust, min_m, shape) == words, (trust, min_m)
                assert await says(node, trust, min_m, shape, Layer.SHARED) == words
                assert await says(node, trust, min_m, shape, Layer.PUBLISHED) == set()


async def test_a_least_m_finds_what_an_earlier_and_larger_quorum_verified(autojump_clock: MockClock) -> None:
    async with scene(quorum=3) as it:
        await approved(it, await said(it, "by-three", "kept"), it.bo, it.cy, it.dan)
        await it.change(MemberChange(m=1))
        await approved(it, await said(it, "by-one", "kept"), it.bo)
        await approved(it, await said(it, "single"), it.cy)
        await it.wake()
        await it.cluster.wipe_projection(it.cy)
        await it.cluster.settled()
        for node in (it.ada, it.cy, it.eve):
            for shape in SHAPES:
                assert await says(node, Trust.CONSENSUS_VERIFIED, 0, shape) == {"by-one", "single"}
                assert await says(node, Trust.CONSENSUS_VERIFIED, 1, shape) == {"by-one", "single"}
                for min_m in (2, 3):
                    assert await says(node, Trust.CONSENSUS_VERIFIED, min_m, shape) == {"by-three"}, (
                        "newer hides it not"
                    )
                assert await says(node, Trust.CONSENSUS_VERIFIED, 4, shape) == set()
            listed = await node.face.versions(node.cluster.graph, layer=None, min_trust="ConsensusVerified", min_m=3)
            assert [(each.name, each.version, each.trust.m) for each in listed] == [("kept", 1, 3)]
            hits = await node.recall("kept says", min_trust=Trust.CONSENSUS_VERIFIED, min_m=3)
            assert [hit.version and hit.version.version for hit in hits] == [1]
            hits = await node.recall("kept says", min_trust=Trust.CONSENSUS_VERIFIED)
            assert {hit.version and (hit.version.name, hit.version.version) for hit in hits} == {
                ("kept", 2),
                ("single", 1),
            }
            assert len(hits) == 2
        # once M is what it was, all stand under one quorum again
        await it.change(MemberChange(m=3))
        for node in (it.ada, it.cy):
            assert await says(node, Trust.CONSENSUS_VERIFIED, 3, "select") == {"by-three"}
            assert await says(node, Trust.CONSENSUS_VERIFIED, 0, "select") == {"by-one", "single"}


async def test_a_version_that_is_verified_again_by_fewer_keeps_its_greater_m(autojump_clock: MockClock) -> None:
    async with scene(quorum=3) as it:
        asset = await said(it, "by-three")
        await approved(it, asset, it.bo, it.cy, it.dan)
        await it.change(MemberChange(m=1))
        await approved(it, asset, it.bo)
        view = await it.agreed(asset)
        assert view is not None
        assert (view.trust.level, view.trust.m, len(view.trust.approvals)) == (Trust.CONSENSUS_VERIFIED, 3, 3)
        for m in (1, 2):
            await it.change(MemberChange(m=m))
            for node in it.awake:
                for shape in SHAPES:
                    assert await says(node, Trust.CONSENSUS_VERIFIED, 3, shape) == {"by-three"}
                    assert await says(node, Trust.CONSENSUS_VERIFIED, 4, shape) == set()
                (listed,) = await node.face.versions(asset.graph, layer=None, min_trust="ConsensusVerified", min_m=3)
                assert (listed.seal, listed.trust.m, listed.trust.approvals) == (asset.seal, 3, 3)
                (hit,) = await node.recall("by three says", min_trust=Trust.CONSENSUS_VERIFIED, min_m=3)
                assert hit.version is not None
                assert hit.version.trust.m == 3
                statement = (await node.certificate(asset)).statement
                assert (statement["m"], statement["n"]) == (3, 3)
                explained = await node.face.explain(asset.graph, asset.reference)
                assert (explained.kept, explained.version.trust.m) == (True, 3)


async def test_inside_graph_there_is_no_content_of_any_floor(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        await approved(it, await said(it, "verified"), it.bo)
        await said(it, "bare")
        await it.wake()
        content = "SELECT ?o { GRAPH ?g { ?s <http://example.org/says> ?o } }"
        where = "SELECT DISTINCT ?g { GRAPH ?g { ?s ?p ?o } }"
        for node, floor in product((it.ada, it.eve), (None, Trust.SELF_ATTESTED, Trust.CONSENSUS_VERIFIED)):
            assert (await node.query(content, min_trust=floor)).rows == ()
            ((graph,),) = (await node.query(where, min_trust=floor)).rows
            assert graph == f"<{it.ada.graph.name.meta_iri}>"


async def test_trust_stands_in_the_meta_graph_with_its_m_of_n(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await approved(it, await said(it, "verified"), it.bo, it.cy)
        await it.wake()
        question = (
            "PREFIX dkg: <http://dkg.io/ontology/> SELECT ?level ?approvals ?m ?shown { GRAPH ?g { "
            "?a dkg:trustLevel ?level ; dkg:approvals ?approvals ; dkg:quorum ?m ; dkg:verificationStatus ?shown } }"
        )
        number = "^^<http://www.w3.org/2001/XMLSchema#integer>"
        for node in (it.ada, it.eve):
            (row,) = (await node.query(question)).rows
            shown = '"ConsensusVerified, 2 of 3, 2 needed, 2 manual"'
            assert row == ('"ConsensusVerified"', f'"2"{number}', f'"2"{number}', shown)


async def test_the_meta_graph_says_the_same_on_every_node_after_each_change_of_the_quorum(
    autojump_clock: MockClock,
) -> None:
    question = (
        "PREFIX dkg: <http://dkg.io/ontology/> SELECT ?name ?shown ?m { GRAPH ?g { "
        "?a dkg:assertionName ?name ; dkg:verificationStatus ?shown OPTIONAL { ?a dkg:quorum ?m } } }"
    )
    async with scene() as it:
        await said(it, "bare")
        await approved(it, await said(it, "partial"), it.bo)
        await it.bo.endorse(await said(it, "endorsed"))
        await approved(it, await said(it, "verified"), it.bo, it.cy)
        for m in (1, 3, 0, 2):
            await it.change(MemberChange(m=m))
            await it.cluster.wipe_projection(it.cy)
            await it.cluster.settled()
            rows, anew = [sorted((await node.query(question)).rows) for node in (it.ada, it.cy)]
            assert rows == anew, "what is written anew is what is written step by step"
            shown = {str(name).strip('"'): str(words).strip('"') for name, words, _ in rows}
            needed = f", 0 of 3, {m} needed" if m else ""
            assert shown == {
                "bare": "SelfAttested",
                "partial": "SelfAttested",
                "endorsed": f"Endorsed{needed}",
                "verified": "ConsensusVerified, 2 of 3, 2 needed, 2 manual",
            }


async def test_a_floor_below_all_floors_is_refused(autojump_clock: MockClock) -> None:
    async with scene() as it:
        for trust, min_m in (("Rejected", 0), ("SelfAttested", -1), ("Certain", 0)):
            with pytest.raises(MisuseError):
                await it.ada.face.versions(it.cluster.graph, layer=None, min_trust=trust, min_m=min_m)
            with pytest.raises(MisuseError):
                await it.ada.face.query(
                    SHAPES["select"], graph=it.cluster.graph, layer=None, min_trust=trust, at_least=0, min_m=min_m
                )
