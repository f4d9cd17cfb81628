"""Two contents that an author let go as one version: none of them ever stands, or is signed for, as the other."""

from __future__ import annotations

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
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewMember, SignRequest
from tests.p2pmem.trust.scene import Scene, scene


def _below(asset: Asset) -> Content:
    """Content whose root stands before that of `asset`, where no more than the roots decides."""
    lines = (f'<http://example.org/drug> <http://example.org/dose> "{n}" .\n' for n in range(1_000))
    return next(it for it in (check_canonical(line.encode()) for line in lines) if "0x" + it.root.hex() < asset.root)


async def _twin(it: Scene, asset: Asset) -> Asset:
    """Another content by ada as the same version, which all hold."""
    graph, now_ms, content = it.ada.graph, it.ada.clock.now_ms(), _below(asset)
    seal = Seal(
        graph.network, graph.id, "", asset.name, 1, content.root, content.line_count, NO_PREVIOUS, it.ada.address
    )
    body = Sealed(seal.sign(it.ada.key), ContentRef.of(content.data))
    share = Unsigned(graph.network, graph.id, Kind.SHARE, it.ada.address, None, 1, now_ms, now_ms + DAY_MS, body)
    assert await it.offered(share.sign(it.ada.key).encode()) == {None}
    await it.cluster.settled()
    return replace(asset, root="0x" + content.root.hex())


async def test_the_name_of_a_verified_version_gives_what_was_verified(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset, _ = await it.proposed()
        await it.bo.decide(approve=True)
        await it.cluster.settled()
        content = await it.cy.content(asset)
        await _twin(it, asset)
        for node in it.awake:
            (listed,) = await node.versions(min_trust=Trust.CONSENSUS_VERIFIED)
            assert listed.reference == asset.reference
            assert await node.content(asset) == content
            explained = await node.face.explain(asset.graph, asset.reference)
            assert (explained.version.root, explained.version.trust.level) == (asset.root, "ConsensusVerified")
            assert (await node.certificate(asset)).statement["root"] == asset.root


async def test_nobody_endorses_a_content_that_he_was_not_shown(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        await it.bo.endorse(asset)
        twin = await _twin(it, asset)
        with pytest.raises(MisuseError, match="2 contents in conflict"):
            await it.cy.endorse(asset)
        await it.bo.endorse(asset, withdraw=True)
        for each in (asset, twin):
            view = await it.agreed(each)
            assert view is not None
            assert (view.trust.level, view.trust.endorsements) == (Trust.SELF_ATTESTED, ())


async def test_a_wallet_is_given_no_verdict_to_sign_on_one_of_two_contents(autojump_clock: MockClock) -> None:
    async with scene() as it:
        wallet = Key(bytes([7]) * 32)
        roles = ("writer", "endorser", "verifier")
        await it.change(MemberChange(set=(NewMember(str(wallet.address), roles, "wallet"),)))
        await it.bo.face.add_agent(str(wallet.address), label="wallet")
        asset, _ = await it.proposed()
        await _twin(it, asset)
        for action in ("verdict", "endorse"):
            request = SignRequest(
                action, str(wallet.address), graph=asset.graph, reference=asset.reference, decision="approve"
            )
            with pytest.raises(MisuseError, match="2 contents in conflict"):
                await it.bo.face.sign_prepare(request)


async def test_a_newer_version_is_compared_with_what_was_verified(autojump_clock: MockClock) -> None:
    async with scene(quorum=1) as it:
        asset, _ = await it.proposed()
        await it.bo.decide(approve=True)
        await it.cluster.settled()
        twin = await _twin(it, asset)
        newer = await it.ada.share("ex:trial ex:lowers ex:ldl ; ex:in ex:men .", name=asset.name, ttl=days(10))
        await it.cluster.settled()
        assert twin.root < asset.root
        await it.ada.start_verify(newer)
        await it.cluster.settled()
        (review,) = [each for each in await it.cy.face.reviews() if each.reference == newer.reference]
        shown = await it.cy.face.review(review.id)
        assert [each.root for each in shown.earlier] == [asset.root, twin.root]
        for diff in (shown.diff, await it.cy.face.diff(asset.graph, newer.reference, other=None)):
            assert diff is not None
            assert (len(diff.added), diff.removed) == (1, ())
