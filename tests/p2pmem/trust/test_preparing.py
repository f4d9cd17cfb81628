"""Changes of members that an approver prepares and the owner's node signs, each as one step."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import NetworkId
from p2pmem_protocol.prepared import Prepared
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewMember
from tests.p2pmem.trust.scene import Scene, scene
from tests.p2pmem.trust.test_wallets import ALL, Wallet, with_wallet


def listed(node: ClusterNode, *roles: str) -> NewMember:
    return NewMember(str(node.address), roles, node.name)


async def with_approver(it: Scene) -> None:
    """bo is an approver from now on."""
    await it.change(MemberChange(set=(listed(it.bo, *ALL, "approver"),)))


async def test_an_approver_prepares_a_change_and_the_owners_node_signs_it_as_one_step(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        await with_approver(it)
        graph = it.cluster.graph
        before = (await it.ada.face.graph(graph)).version
        await it.cluster.stop(it.dan)
        change = MemberChange(set=(listed(it.eve, "writer", "verifier"),), remove=(str(it.dan.address),), m=1)
        prepared = await it.bo.face.prepare_members(graph, change)
        assert (await it.bo.face.graph(graph)).version == before, "nothing is changed by preparing"
        read = await it.ada.face.prepared_members(prepared.word)
        assert read.change == change
        assert (read.approver, read.label) == (str(it.bo.address), "bo")
        assert (read.preview.version, read.preview.signs_here, read.preview.quorum_m) == (before + 1, True, 1)
        await it.ada.face.sign_members(prepared.word)
        await it.wake()
        for node in (it.ada, it.bo, it.cy, it.eve):
            seen = await node.face.graph(graph)
            assert (seen.version, seen.quorum_m) == (before + 1, 1)
            assert str(it.eve.address) in seen.verifiers
            assert str(it.dan.address) not in {member.address for member in seen.members}


async def test_only_an_approver_prepares_and_only_the_owners_node_signs(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await with_approver(it)
        graph = it.cluster.graph
        change = MemberChange(m=3)
        with pytest.raises(MisuseError, match="is no approver"):
            await it.cy.face.prepare_members(graph, change)
        with pytest.raises(MisuseError, match="nothing is to change"):
            await it.bo.face.prepare_members(graph, MemberChange())
        with pytest.raises(MisuseError, match="M"):
            await it.bo.face.prepare_members(graph, MemberChange(m=9))
        word = (await it.bo.face.prepare_members(graph, change)).word
        for node in (it.bo, it.cy):
            with pytest.raises(MisuseError, match="only the node of the owner"):
                await node.face.sign_members(word)
        head = it.ada.graph.head
        assert head is not None
        forged = Prepared(it.ada.graph.network, it.ada.graph.id, head.id, '{"m":1}', it.cy.address).sign(it.cy.key)
        with pytest.raises(MisuseError, match="is no approver"):
            await it.ada.face.sign_members(str(forged))
        assert (await it.ada.face.graph(graph)).quorum_m == 2


async def test_nobody_prepares_what_the_root_key_alone_may_do(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await with_approver(it)
        graph, head = it.ada.graph, it.ada.graph.head
        assert head is not None
        takes_over = MemberChange(owner=str(it.bo.address))
        for change in (takes_over, MemberChange(mend=True)):
            with pytest.raises(MisuseError, match="nobody prepares that"):
                await it.bo.face.prepare_members(it.cluster.graph, change)
        # ada has the root key too, and is not to lose the graph by a word that she signs
        text = f'{{"owner":"{it.bo.address}"}}'
        word = str(Prepared(graph.network, graph.id, head.id, text, it.bo.address).sign(it.bo.key))
        for ask in (it.ada.face.prepared_members, it.ada.face.sign_members):
            with pytest.raises(MisuseError, match="nobody prepares that"):
                await ask(word)
        assert (await it.ada.face.graph(it.cluster.graph)).owner == str(it.ada.address)


async def test_a_change_is_good_for_the_roster_that_it_was_prepared_on_alone(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await with_approver(it)
        graph = it.cluster.graph
        first = await it.bo.face.prepare_members(graph, MemberChange(m=3))
        second = await it.bo.face.prepare_members(graph, MemberChange(m=1))
        await it.ada.face.sign_members(first.word)
        for word in (first.word, second.word):
            with pytest.raises(MisuseError, match="prepare it again"):
                await it.ada.face.sign_members(word)
        assert (await it.ada.face.graph(graph)).quorum_m == 3


async def test_a_word_that_is_damaged_or_of_elsewhere_or_holds_no_change_is_refused(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await with_approver(it)
        word = (await it.bo.face.prepare_members(it.cluster.graph, MemberChange(m=1))).word
        for damaged in ("", "p2pmemact1aaaa", word[:-9], word.replace(word[40], "b" if word[40] != "b" else "c", 1)):
            with pytest.raises(MisuseError, match=r"damaged|not a change"):
                await it.ada.face.prepared_members(damaged)
        graph, head = it.ada.graph, it.ada.graph.head
        assert head is not None
        for text in ("{}", "[" * 5_000, "no JSON", '{"rob":1}', '{"m":"1"}', '{"set":[["x"]]}', "null"):
            said = Prepared(graph.network, graph.id, head.id, text, it.bo.address).sign(it.bo.key)
            with pytest.raises(MisuseError):
                await it.ada.face.sign_members(str(said))
        elsewhere = Prepared(NetworkId(bytes(32)), graph.id, head.id, '{"m":1}', it.bo.address).sign(it.bo.key)
        with pytest.raises(MisuseError, match="another network"):
            await it.ada.face.sign_members(str(elsewhere))


@pytest.mark.parametrize(
    "text",
    [
        '{"m":3,"m":1}',
        '{"leaked":false,"m":1}',
        '{"m":1,"limits":{"access":"open","access":"gated"}}',
        '{"m":1}' + " " * 4_000,
        '{"m": 1}',
        '{"\\u006d":1}',
    ],
)
async def test_a_change_that_may_be_read_otherwise_than_it_works_is_refused(
    autojump_clock: MockClock, text: str
) -> None:
    async with scene() as it:
        await with_approver(it)
        graph, head = it.ada.graph, it.ada.graph.head
        assert head is not None
        said = Prepared(graph.network, graph.id, head.id, text, it.bo.address).sign(it.bo.key)
        for ask in (it.ada.face.prepared_members, it.ada.face.sign_members):
            with pytest.raises(MisuseError, match="not written as"):
                await ask(str(said))


async def test_who_is_named_twice_in_one_change_is_refused(autojump_clock: MockClock) -> None:
    async with scene() as it:
        await with_approver(it)
        twice = (listed(it.eve, "writer"), listed(it.eve, "reader"))
        for change in (
            MemberChange(set=twice),
            MemberChange(remove=(str(it.dan.address), f"did:dkg:agent:{it.dan.address}")),
            MemberChange(drop=("x@1", "x@1")),
        ):
            with pytest.raises(MisuseError, match="named twice"):
                await it.bo.face.prepare_members(it.cluster.graph, change)
            with pytest.raises(MisuseError, match="named twice"):
                await it.ada.face.change_members(it.cluster.graph, change)


async def test_approver_and_owner_both_sign_with_wallets_outside(autojump_clock: MockClock) -> None:
    async with with_wallet() as (it, wanda):
        graph = it.cluster.graph
        owner = Wallet("olga")
        await it.change(MemberChange(set=(NewMember(wanda.address, ("approver",), "wanda"),), owner=owner.address))
        await it.ada.face.add_agent(owner.address, label="olga")
        prepared = await wanda.does(it.bo, "prepare", graph=graph, change=MemberChange(m=3))
        read = await it.ada.face.prepared_members(prepared.reference)
        assert (read.label, read.preview.signs_here) == ("wanda", False)
        with pytest.raises(MisuseError, match="a wallet can"):
            await it.ada.face.sign_members(prepared.reference)
        await owner.does(it.ada, "roster", prepared=prepared.reference)
        await it.wake()
        for node in it.awake:
            assert (await node.face.graph(graph)).quorum_m == 3
