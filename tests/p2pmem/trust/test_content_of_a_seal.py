"""A share names content by a hash that its seal does not bear: who lies there gains nothing and hinders nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from p2pmem_devnet.cluster_node import Asset, ClusterNode, JobFailedError
from p2pmem_protocol.bodies import ContentRef, Sealed
from p2pmem_protocol.certificate import Certificate
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.envelope import Envelope, Unsigned, decode_item
from p2pmem_protocol.evidence import Method
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import hex_id
from p2pmem_protocol.seal import NO_PREVIOUS, Seal, SignedSeal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.cli.views_trust import show_review
from p2pmem.face import NotFoundError
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.references import full_reference
from tests.p2pmem.trust.scene import Scene, scene, subject

LONG = "".join(f"ex:good ex:n {n} .\n" for n in range(2000))
"""More than fits beside a share: attached, and fetched by its hash."""
OTHER = "".join(f'<http://example.org/evil> <http://example.org/n> "{n:04}" .\n' for n in range(2000)).encode()


def sealed(it: Scene, by: ClusterNode, name: str, content: bytes) -> tuple[SignedSeal, Asset]:
    real = check_canonical(content)
    graph = it.ada.graph
    seal = Seal(graph.network, graph.id, "", name, 1, real.root, real.line_count, NO_PREVIOUS, by.address)
    return seal.sign(by.key), Asset(it.cluster.graph, by.address, name, 1, hex_id(seal.root), hex_id(seal.digest))


def share_of(it: Scene, by: ClusterNode, seal: SignedSeal, named: ContentRef, earlier_ms: int = 0) -> Envelope:
    """A share by `by` of what is sealed, which says that the content is what `named` names."""
    graph, now_ms = it.ada.graph, by.clock.now_ms()
    unsigned = Unsigned(
        network=graph.network,
        graph=graph.id,
        kind=Kind.SHARE,
        author=by.address,
        delegation=None,
        roster=graph.head.header.version if graph.head else 0,
        issued_at_ms=now_ms - earlier_ms,
        expires_at_ms=now_ms + DAY_MS,
        body=Sealed(seal, named),
    )
    return unsigned.sign(by.key)


async def test_a_verified_version_keeps_its_words_whatever_its_author_shares_under_its_seal(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        asset = await it.dan.share("ex:aspirin ex:dose 100 .")
        await it.cluster.settled()
        await it.dan.start_verify(asset)
        await it.cluster.settled()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        await it.cluster.settled()
        words = await it.ada.content(asset)
        other = await it.dan.share(LONG, name="noise")
        await it.cluster.settled()
        named = ContentRef.of(await it.dan.content(other))
        (record,) = it.ada.graph.set.version(subject(asset)).sealed  # type: ignore[union-attr]
        item = decode_item(it.dan.inside.ledger.raw(record.id) or b"")
        assert isinstance(item, Envelope)
        assert isinstance(item.body, Sealed)
        lie = next(
            found
            for earlier_ms in range(1_000)
            if (found := share_of(it, it.dan, item.body.seal, named, earlier_ms)).id < record.id
        )
        assert await it.offered(lie.encode()) == {None}
        await it.cluster.settled()
        for node in it.awake:
            assert node.trust(asset) is Trust.CONSENSUS_VERIFIED
            assert await node.content(asset) == words
        for restarted in (False, True):
            if restarted:
                await it.cluster.restart(it.ada)
            found = await it.ada.query(
                "SELECT ?o { ?s <http://example.org/dose> ?o }", min_trust=Trust.CONSENSUS_VERIFIED
            )
            assert "100" in str(found)
            found = await it.ada.query("SELECT ?o { ?s <http://example.org/n> ?o }", min_trust=Trust.CONSENSUS_VERIFIED)
            assert "1999" not in str(found)


async def test_nobody_endorses_what_was_sealed_by_reading_other_words(autojump_clock: MockClock) -> None:
    async with scene() as it:
        read = await it.bo.share(LONG)
        await it.cluster.settled()
        seal, asset = sealed(it, it.dan, "trick", OTHER)
        lie = share_of(it, it.dan, seal, ContentRef.of(await it.bo.content(read)))
        assert await it.offered(lie.encode()) == {None}
        await it.cluster.settled()
        for node in it.awake:
            with pytest.raises(NotFoundError, match="not held"):
                await node.content(asset)
        with pytest.raises(Exception, match="not held"):
            await it.cy.endorse(asset, reason="I read it")
        assert it.ada.trust(asset) is Trust.SELF_ATTESTED


@pytest.mark.parametrize("what", ["another seal", "a length too small"])
async def test_who_names_the_content_of_others_keeps_it_from_nobody(autojump_clock: MockClock, what: str) -> None:
    async with scene() as it:  # eve is away
        read = await it.bo.share(LONG)
        await it.cluster.settled()
        words = await it.bo.content(read)
        seal, _ = sealed(it, it.dan, "poison", OTHER)
        named = ContentRef.of(words)
        if what == "a length too small":
            named = ContentRef(61_441, None, named.hash)
        assert await it.offered(share_of(it, it.dan, seal, named).encode()) == {None}
        await it.cluster.settled()
        await it.cluster.restart(it.eve)
        await it.cluster.settled()
        assert await it.eve.content(read) == words
        assert not it.eve.inside.penalties.reasons
        assert keccak256(words) in it.eve.inside.ledger.held


@pytest.mark.parametrize("wrong_first", [True, False])
async def test_of_two_seals_over_one_root_that_of_its_content_is_judged_and_certified_everywhere(
    wrong_first: bool, autojump_clock: MockClock
) -> None:
    async with scene() as it:
        right, asset = sealed(it, it.dan, "twice", OTHER)
        wrong = replace(right.seal, leaves=5).sign(it.dan.key)
        named = ContentRef.of(OTHER)
        shares = [share_of(it, it.dan, seal, named).encode() for seal in (wrong, right)]
        for data in shares if wrong_first else shares[::-1]:
            assert await it.offered(data) == {None}
        async with trio.open_nursery() as nursery:
            for node in it.awake:
                nursery.start_soon(
                    node.inside.services.admission.keep_attachment, it.ada.graph.id, OTHER, keccak256(OTHER)
                )
        await it.ada.face.verify(asset.graph, full_reference(asset.key), deadline_ms=None)
        await it.cluster.settled()
        for node in (it.bo, it.cy):
            await node.decide(approve=True)
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        for node in it.awake:
            certificate = Certificate.decode(bytes.fromhex((await node.certificate(asset)).cbor))
            assert certificate.seal.seal.leaves == 2_000


@pytest.mark.parametrize("policy", ["manual", "auto"])
async def test_what_is_not_what_was_sealed_is_approved_by_nobody_who_holds_it(
    policy: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No share brings such bytes; a disk may."""
    async with scene(policy=policy) as it:
        damaged, content = it.bo.inside.ledger, Ledger.content

        def read(self: Ledger, graph: LedgerGraph, content_hash: bytes) -> bytes | None:
            return b"<urn:a> <urn:b> <urn:c> .\n" if self is damaged else content(self, graph, content_hash)

        monkeypatch.setattr(Ledger, "content", read)
        asset, _ = await it.proposed()
        if policy == "manual":
            (review,) = await it.bo.face.reviews()
            shown = await it.bo.face.review(review.id)
            assert shown.problem == "the content has another root than was sealed"
            assert f"WRONG: {shown.problem}" in show_review(shown)
            with pytest.raises(JobFailedError, match="cannot be approved: the content has another root"):
                await it.bo.decide(approve=True)
            assert not it.said_by(it.bo, asset)
            await it.bo.decide(approve=False, reason="my disk is broken")
        view = await it.agreed(asset)
        assert view is not None
        (line,) = view.trust.rejections
        assert (line.signer, line.method) == (it.bo.address, Method.MANUAL if policy == "manual" else Method.AUTO)
