"""Every signature by a wallet that the node never sees: typed data out, a signature in. The wallet is eth-account."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from eth_account import Account
from p2pmem_devnet.cluster import days
from p2pmem_devnet.cluster_node import Asset, ClusterNode
from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.errors import MisuseError, RefusedError
from p2pmem_protocol.limits import UINT32_MAX
from p2pmem_protocol.names import Address
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import copies
from trio.testing import MockClock

from p2pmem.face import (
    LimitsChange,
    MemberChange,
    NewGraph,
    NewMember,
    NoRightError,
    NotFoundError,
    SignedView,
    SignRequest,
)
from p2pmem.face_peers import DelegationView
from tests.p2pmem.trust.scene import Scene, scene

ALL = ("writer", "endorser", "verifier")


class Wallet:
    """A key that no node holds."""

    def __init__(self, name: str) -> None:
        self._secret = hashlib.sha256(f"wallet of {name}".encode()).digest()
        self.address: str = Account.from_key(self._secret).address

    def sign(self, typed_data: dict[str, Any]) -> str:
        return "0x" + bytes(Account.sign_typed_data(self._secret, full_message=typed_data).signature).hex()

    async def does(self, node: ClusterNode, action: str, **fields: Any) -> SignedView:
        """Prepare at a node, sign here, submit there."""
        view = await node.face.sign_prepare(SignRequest(action, self.address, **fields))
        return await node.face.sign_submit(view.id, signature=self.sign(view.typed_data))


@asynccontextmanager
async def with_wallet() -> AsyncIterator[tuple[Scene, Wallet]]:
    """A member whose key is outside, and who speaks through bo's node."""
    async with scene() as it:
        it_wallet = Wallet("wanda")
        await it.change(MemberChange(set=(NewMember(it_wallet.address, ALL, "wanda"),)))
        await it.bo.face.add_agent(it_wallet.address, label="wanda")
        yield it, it_wallet


async def shared(it: Scene, wallet: Wallet, name: str = "from-a-wallet", **fields: Any) -> Asset:
    graph = it.cluster.graph
    data = "<http://example.org/a> <http://example.org/b> <http://example.org/c> .\n"
    sealed = await wallet.does(it.bo, "seal", graph=graph, name=name, data=data, format="nt")
    said = await wallet.does(it.bo, "share", graph=graph, name=name, **fields)
    assert sealed.reference == said.reference
    await it.cluster.settled()
    (view,) = [each for each in await it.ada.versions() if each.name == name]
    return Asset(graph, Address.parse(wallet.address), name, view.version, view.root, view.seal)


async def test_seal_share_publish_and_retract(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        asset = await shared(it, wanda, ttl_ms=600_000)
        assert await it.level(asset) is Trust.SELF_ATTESTED
        await wanda.does(it.bo, "publish", graph=asset.graph, name=asset.name)
        await it.cluster.advance(minutes=20)
        view = await it.agreed(asset)
        assert view is not None
        assert view.published
        await wanda.does(it.bo, "retract", graph=asset.graph, reference=asset.reference, reason="a mistake")
        view = await it.agreed(asset)
        assert view is not None
        assert view.hidden_by is not None
        history = await it.eve.face.history(asset.graph, asset.reference)
        assert [(each.reason, each.by_owner, each.erase) for each in history.retracts] == [("a mistake", False, False)]


async def test_propose_verdict_and_endorse(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        about = {"graph": asset.graph, "reference": asset.reference}
        await wanda.does(it.bo, "propose", **about)
        await it.cluster.settled()
        reviews = await it.bo.face.reviews()
        assert {each.verifier for each in reviews} == {str(it.bo.address), wanda.address.lower()}
        mine = next(each for each in reviews if each.verifier == wanda.address.lower())
        assert (await it.bo.face.review(mine.id)).content.count("\n") == 1
        with pytest.raises(MisuseError, match="in a wallet outside"):
            await it.bo.face.decide_review(mine.id, approve=True, reason="")
        await wanda.does(it.bo, "verdict", decision="approve", reason="I read it", **about)
        await it.cy.decide(approve=True)
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        await wanda.does(it.bo, "endorse", reason="fine", **about)
        await it.cluster.settled()
        said = await it.eve.face.explain(asset.graph, asset.reference)
        by_wanda = {each.kind: each.reason for each in said.signatures if each.signer == wanda.address.lower()}
        assert by_wanda == {"propose": "", "verdict": "I read it", "endorse": "fine"}
        await wanda.does(it.bo, "endorse", withdraw=True, **about)
        await it.cluster.settled()
        said = await it.eve.face.explain(asset.graph, asset.reference)
        ignored = {each.ignored for each in said.signatures if each.kind == "endorse"}
        assert ignored == {"a withdrawal", "withdrawn by its signer"}


async def test_rosters_of_an_owner_and_a_root_key_outside(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        new = NewGraph("elsewhere", members=(NewMember(str(it.bo.address), ALL, "bo"),), m=1)
        made = await wanda.does(it.bo, "found", new=new)
        assert made.reference == f"{wanda.address.lower()}/elsewhere"
        change = MemberChange(set=(NewMember(str(it.cy.address), ALL, "cy"),), limits=LimitsChange(acks_min=1))
        with pytest.raises(MisuseError, match="a wallet can"):
            await it.bo.face.change_members(made.reference, change)
        await wanda.does(it.bo, "roster", graph=made.reference, change=change)
        await wanda.does(it.bo, "roster", graph=made.reference, change=MemberChange(owner=str(it.bo.address)))
        graph = await it.bo.face.graph(made.reference)
        assert (graph.owner, graph.term, graph.acks_min, len(graph.members)) == (str(it.bo.address), 2, 1, 3)
        await it.bo.face.change_members(made.reference, MemberChange(m=1, limits=LimitsChange(acks_min=0)))


async def test_what_has_changed_meanwhile_is_prepared_again(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        graph = it.cluster.graph
        await it.change(MemberChange(owner=wanda.address))
        change = SignRequest("roster", wanda.address, graph=graph, change=MemberChange(m=1))
        first, second = (
            await it.bo.face.sign_prepare(change),
            await it.bo.face.sign_prepare(replace(change, change=MemberChange(m=3))),
        )
        await it.bo.face.sign_submit(first.id, signature=wanda.sign(first.typed_data))
        with pytest.raises(MisuseError, match="has changed meanwhile"):
            await it.bo.face.sign_submit(second.id, signature=wanda.sign(second.typed_data))
        data = "<http://example.org/a> <http://example.org/b> <http://example.org/c> .\n"
        seal = SignRequest("seal", wanda.address, graph=graph, name="x", data=data, format="nt")
        view = await it.bo.face.sign_prepare(seal)
        await it.bo.face.sign_prepare(replace(seal, data=data.replace("/c>", "/d>")))
        with pytest.raises(MisuseError, match="seal it again"):
            await it.bo.face.sign_submit(view.id, signature=wanda.sign(view.typed_data))


async def test_who_is_to_sign_is_told_what_became_of_relative_iris_and_may_choose(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        seal = SignRequest("seal", wanda.address, graph=it.cluster.graph, name="x", data="<a> <b> <c> .", format="ttl")
        (warning,) = (await it.bo.face.sign_prepare(seal)).warnings
        assert "relative IRIs" in warning
        assert (await it.bo.face.sign_prepare(replace(seal, base="http://example.org/"))).warnings == ()


async def test_nobody_elses_signature_is_taken(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        request = SignRequest("endorse", wanda.address, graph=asset.graph, reference=asset.reference)
        view = await it.bo.face.sign_prepare(request)
        with pytest.raises(RefusedError):
            await it.bo.face.sign_submit(view.id, signature=Wallet("mallory").sign(view.typed_data))
        other = await it.bo.face.sign_prepare(replace(request, reason="another"))
        with pytest.raises(RefusedError):
            await it.bo.face.sign_submit(view.id, signature=wanda.sign(other.typed_data))
        for text in ("", "0x12", "zz" * 65):
            with pytest.raises(MisuseError, match="65 bytes"):
                await it.bo.face.sign_submit(view.id, signature=text)
        with pytest.raises(NotFoundError):
            await it.bo.face.sign_submit("0x" + "00" * 32, signature="0x" + "00" * 65)
        raw = bytes.fromhex(wanda.sign(view.typed_data)[2:])
        by_a_hardware_wallet = raw[:64] + bytes([raw[64] - 27])
        await it.bo.face.sign_submit(view.id, signature=by_a_hardware_wallet.hex())
        with pytest.raises(NotFoundError):
            await it.bo.face.sign_submit(view.id, signature=raw.hex())
        assert await it.level(asset) is Trust.ENDORSED


async def test_a_wallet_is_asked_for_no_signature_that_would_count_for_nothing(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        asset = await it.bo.share("ex:a ex:b ex:c .")
        await it.cluster.settled()
        await it.change(MemberChange(set=(NewMember(wanda.address, ("reader",)),)))
        of_asset = {"graph": asset.graph, "reference": asset.reference}
        said = {"name": "hers", "data": "<http://example.org/a> <http://example.org/b> 1 .", "format": "turtle"}
        await wanda.does(it.bo, "seal", graph=asset.graph, **said)
        for action, fields in (
            ("share", {"graph": asset.graph, "name": "hers"}),
            ("publish", {"graph": asset.graph, "name": "hers"}),
            ("endorse", of_asset),
            ("verdict", {**of_asset, "decision": "approve"}),
            ("propose", of_asset),
        ):
            with pytest.raises(NoRightError, match=f"{wanda.address.lower()} has not the right to"):
                await wanda.does(it.bo, action, **fields)


async def test_only_agents_that_were_added_are_asked_and_they_are_known_after_a_restart(
    autojump_clock: MockClock,
) -> None:
    async with with_wallet() as (it, wanda):
        for agent, words in ((Wallet("mallory").address, "agent add"), (str(it.bo.address), "agent add")):
            with pytest.raises(MisuseError, match=words):
                await it.bo.face.sign_prepare(SignRequest("carry", agent))
        with pytest.raises(MisuseError, match="holds the key"):
            await it.bo.face.add_agent(str(it.bo.address), label="")
        with pytest.raises(MisuseError, match="is no action"):
            await it.bo.face.sign_prepare(SignRequest("rob", wanda.address))
        await it.cluster.restart(it.bo)
        assert [(each.label, each.outside) for each in await it.bo.face.agents()] == [("bo", False), ("wanda", True)]
        await shared(it, wanda)


async def test_a_node_carries_the_words_of_a_wallet_and_acts_for_it(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        # eve may only read; with wanda's delegation she writes for wanda.
        await it.wake()
        await it.eve.face.add_agent(wanda.address, label="wanda")
        await wanda.does(it.eve, "carry")
        await wanda.does(it.eve, "act_for", label="eve's assistant")
        await it.change(MemberChange(remove=(str(it.eve.address),)))
        await it.cluster.restart(it.eve)
        await it.cluster.advance(minutes=2)
        agents = {agent for peer in (await it.ada.face.status()).peers for agent in peer.agents}
        assert wanda.address.lower() in agents
        asset = await it.eve.share("ex:said ex:by ex:an-assistant .")
        await it.cluster.advance(minutes=2)
        (view,) = [each for each in await it.ada.versions() if each.reference == asset.reference]
        assert (view.author, view.principal) == (str(it.eve.address), wanda.address.lower())


async def joins(it: Scene, helper: ClusterNode, word: str) -> DelegationView:
    """A node whose agent nobody listed, and that acts for a member from now on."""
    held = await helper.face.accept_delegation(word)
    await helper.face.join(await it.ada.face.invite(it.cluster.graph, roles=(), uses=1, life_ms=1), label="")
    await it.cluster.advance(seconds=5)
    return held


async def test_a_principal_outside_takes_back_what_was_said_for_it_and_ends_who_spoke(
    autojump_clock: MockClock,
) -> None:
    async with with_wallet() as (it, wanda):
        helper = await it.cluster.add("helper")
        given = await wanda.does(it.bo, "act_for", subject=str(helper.address), rights=("share",), label="helper")
        held = await joins(it, helper, given.reference)
        assert (held.principal, held.label, held.rights) == (wanda.address.lower(), "helper", ("share",))
        first = await helper.share("ex:said ex:by ex:an-assistant .", ttl=days(1))
        second = await helper.share("ex:said ex:better ex:by-it .", name=first.name, ttl=days(2))
        kept = await helper.share("ex:said ex:well ex:by-it .")
        await it.cluster.until_seen(kept, *it.awake)
        await wanda.does(it.bo, "retract", graph=first.graph, reference=str(second), reason="not what I meant")
        await it.cluster.advance(seconds=5)
        for asset in (first, second):
            assert await it.level(asset) is None, "a principal's retract hides the versions before too"
        history = await it.eve.face.history(first.graph, str(second))
        assert [(each.by, each.by_owner) for each in history.retracts] == [(wanda.address.lower(), False)]
        await wanda.does(it.bo, "revoke", graph=first.graph, subject=str(helper.address))
        await it.cluster.advance(seconds=5)
        assert await it.level(kept) is Trust.SELF_ATTESTED, "what it said so far goes on to count"
        late = await helper.share("ex:said ex:too ex:late .")
        await it.cluster.advance(minutes=2)
        assert not any(node.sees(late) for node in it.awake if node is not helper)
        with pytest.raises(MisuseError, match="is to be ended"):
            await wanda.does(it.bo, "revoke", graph=first.graph, subject=str(helper.address))


async def test_a_revocation_outside_that_keeps_nothing_cuts_what_was_said(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        helper = await it.cluster.add("helper")
        given = await wanda.does(it.bo, "act_for", subject=str(helper.address))
        await joins(it, helper, given.reference)
        asset = await helper.share("ex:said ex:by ex:a-thief .")
        await it.cluster.until_seen(asset, it.ada, it.bo, it.cy, it.dan)
        await wanda.does(it.bo, "revoke", graph=asset.graph, subject=str(helper.address), keep=False)
        await it.cluster.stop(helper)
        assert await it.level(asset) is None
        again = await wanda.does(it.bo, "act_for", subject=str(helper.address))
        assert SignedActFor.parse(again.reference).delegation.serial == 2


async def test_a_wallet_ends_a_peer_that_carried_its_words(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        await wanda.does(it.bo, "carry")
        peer = it.bo.inside.network.peer_id
        await wanda.does(it.bo, "revoke", graph=it.cluster.graph, subject=peer)
        await it.cluster.settled()
        for node in (it.ada, it.cy, it.dan):
            assert node.graph.set.revoked_peer_serial(Address.parse(wanda.address), peer) == UINT32_MAX


async def test_a_wallet_promises_to_keep_what_was_published(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.ada.publish(asset)
        await it.cluster.settled()
        await wanda.does(it.bo, "ack", graph=asset.graph, reference=asset.reference)
        await it.cluster.settled()
        for node in it.awake:
            promised = copies(node.graph.set, bytes.fromhex(asset.root[2:]), node.clock.now_ms())
            assert Address.parse(wanda.address) in promised


async def test_a_principal_with_its_key_in_a_node_takes_back_its_agents_words_as_its_own(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        helper = await it.cluster.add("helper")
        await joins(it, helper, (await it.bo.face.delegate(str(helper.address), label="helper", rights=())).word)
        asset = await helper.share("ex:said ex:by ex:an-assistant .")
        await it.cluster.until_seen(asset, it.ada, it.bo, it.cy, it.dan)
        await it.bo.face.retract(asset.graph, str(asset), reason="wrong", successor=None, erase=False)
        await it.cluster.advance(seconds=5)
        assert await it.level(asset) is None
