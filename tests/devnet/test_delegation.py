"""Principals, the agents that act for them, and how one command shuts a stolen machine out."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.kinds import Kind

from p2pmem.face import MemberChange, NoRightError

THREE = pytest.mark.cluster(n=3)


async def assistant(cluster: Cluster, principal: ClusterNode, *, rights: tuple[str, ...] = ("share",)) -> ClusterNode:
    """A node whose agent nobody listed, and that acts for a member."""
    helper = await cluster.add("helper")
    made = await principal.face.delegate(str(helper.address), label="reads papers", rights=rights)
    held = await helper.face.accept_delegation(made.word)
    assert (held.agent, held.principal, held.held) == (str(helper.address), str(principal.address), True)
    await helper.face.join(await cluster.nodes[0].face.invite(cluster.graph, roles=(), uses=1, life_ms=1), label="")
    await cluster.advance(seconds=5)
    return helper


def is_connected(one: ClusterNode, other: ClusterNode) -> bool:
    return other.inside.network.peer_id in {it.peer for it in one.inside.services.sessions.all()}


@THREE
async def test_an_agent_works_for_its_principal_without_a_roster_change(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    version = (await ada.face.graph(cluster.graph)).version
    helper = await assistant(cluster, bo)
    asset = await helper.share("ex:paper ex:says ex:so .")
    await cluster.until_seen(asset, ada, bo, cy, helper)
    shown = await cy.face.version(cluster.graph, asset.reference)
    assert (shown.author, shown.principal) == (str(helper.address), str(bo.address))
    assert shown.author_label == "reads papers"
    assert (await ada.face.graph(cluster.graph)).version == version
    # It hears of what others say, too.
    other = await cy.share("ex:more ex:of ex:it .")
    await cluster.until_seen(other, helper)


@THREE
async def test_without_the_delegation_the_same_agent_gets_in_nowhere(cluster: Cluster) -> None:
    """The control of the test above."""
    ada, *_ = cluster.nodes
    helper = await cluster.add("helper")
    invite = await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=1)
    with pytest.raises(MisuseError, match="nobody lets this node into"):
        await helper.face.join(invite, label="")


@THREE
async def test_an_invite_lets_nobody_in_on_the_node_that_made_it(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    invite = await ada.face.invite(cluster.graph, roles=("reader",), uses=1, life_ms=1)
    with pytest.raises(MisuseError, match="this node made the invite"):
        await ada.face.join(invite, label="")


@THREE
async def test_an_agent_may_do_what_its_principal_gave_and_nothing_else(cluster: Cluster) -> None:
    _, bo, _ = cluster.nodes
    helper = await assistant(cluster, bo, rights=("share",))
    asset = await helper.share("ex:paper ex:says ex:so .")
    with pytest.raises(NoRightError, match="has not the right to publish"):
        await helper.publish(asset)
    other = await bo.share("ex:a ex:b ex:c .")
    await cluster.until_seen(other, helper)
    with pytest.raises(NoRightError, match="has not the right to endorse"):
        await helper.endorse(other)


@THREE
async def test_a_delegation_outlives_a_restart(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    helper = await assistant(cluster, bo)
    await cluster.restart(helper, bo)
    assert [it.agent for it in await bo.face.delegations()] == [str(helper.address)]
    asset = await helper.share("ex:paper ex:says ex:so .")
    await cluster.until_seen(asset, ada)


@THREE
async def test_one_command_shuts_a_stolen_machine_out_on_every_member(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    stolen = await assistant(cluster, bo)
    before = await stolen.share("ex:paper ex:says ex:so .")
    await cluster.until_seen(before, ada, bo, cy)
    assert any(is_connected(member, stolen) for member in cluster.nodes[:3])
    done = await bo.face.revoke(str(stolen.address))
    assert (done.graphs, done.kept) == ((cluster.graph,), 1)
    await cluster.advance(seconds=2)
    # Out at once, everywhere, and it does not come back.
    for _ in range(3):
        assert not any(is_connected(member, stolen) for member in (ada, bo, cy))
        await cluster.advance(minutes=10)
    after = await cy.share("ex:after ex:the ex:theft .")
    await cluster.until_seen(after, ada, bo)
    await cluster.advance(minutes=10)
    assert not stolen.sees(after)
    # What it said before still counts; what it says now does not.
    assert all(member.sees(before) for member in (ada, bo, cy))
    assert (await bo.face.delegations())[0].revoked
    # Its own node cannot know why, and shows nobody as equal whom it does not compare with any more.
    assert not any(it.connected for it in (await stolen.face.status()).sync)


@THREE
async def test_a_machine_that_was_shut_out_says_so_in_its_status(cluster: Cluster) -> None:
    _, bo, _ = cluster.nodes
    helper = await assistant(cluster, bo)
    assert (await helper.face.status()).warnings == ()
    await bo.face.revoke(str(helper.address))
    await cluster.advance(minutes=5)
    (warning,) = (await helper.face.status()).warnings
    assert "let in nowhere there: whoever it speaks for may have been removed or revoked" in warning
    assert (await bo.face.status()).warnings == ()


@THREE
async def test_what_a_stolen_machine_said_goes_too_when_its_principal_says_so(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    stolen = await assistant(cluster, bo)
    before = await stolen.share("ex:paper ex:says ex:lies .")
    await cluster.until_seen(before, ada, bo, cy)
    await bo.face.revoke(str(stolen.address), keep=False)
    await cluster.advance(seconds=5)
    assert not any(member.sees(before) for member in (ada, bo, cy))


@THREE
async def test_a_revoked_agent_that_asks_to_join_gets_the_same_answer_as_a_stranger(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    stolen = await assistant(cluster, bo)
    await bo.face.revoke(str(stolen.address))
    await cluster.advance(seconds=5)
    with pytest.raises(MisuseError, match="nobody lets this node into"):
        await stolen.face.join(await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=1), label="")


@THREE
async def test_a_member_whose_machine_is_stolen_is_taken_out_by_the_owner_with_the_same_command(
    cluster: Cluster,
) -> None:
    ada, bo, cy = cluster.nodes
    done = await ada.face.revoke(str(cy.address))
    assert done.removed_from == (cluster.graph,)
    await cluster.advance(seconds=2)
    assert not is_connected(ada, cy)
    assert not is_connected(bo, cy)
    after = await bo.share("ex:after ex:the ex:theft .")
    await cluster.advance(minutes=20)
    assert not cy.sees(after)
    assert ada.sees(after)
    # Two of two verifiers cannot be reached without her; the quorum follows in the same roster.
    assert (await ada.face.graph(cluster.graph)).quorum_m == 1


@THREE
async def test_an_agent_takes_its_words_off_a_peer(cluster: Cluster) -> None:
    """Bo's agent says that this peer carries its words no more; the agent itself stays a member."""
    ada, bo, cy = cluster.nodes
    await bo.face.revoke(bo.inside.network.peer_id)
    await cluster.advance(seconds=2)
    assert not is_connected(ada, bo)
    assert not is_connected(cy, bo)
    assert str(bo.address) in {it.address for it in (await ada.face.graph(cluster.graph)).members}
    assert [it.kind for it in ada.graph.set.records() if it.kind is Kind.REVOKE] == [Kind.REVOKE]


@THREE
async def test_a_new_delegation_after_a_revocation_counts_again(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    helper = await assistant(cluster, bo)
    await bo.face.revoke(str(helper.address))
    await cluster.advance(seconds=5)
    again = await bo.face.delegate(str(helper.address), label="found again", rights=("share",))
    assert again.serial == 2
    await helper.face.accept_delegation(again.word)
    await cluster.advance(minutes=2)
    asset = await helper.share("ex:back ex:at ex:work .")
    await cluster.until_seen(asset, ada)


@THREE
async def test_what_is_no_delegation_for_this_node_is_refused(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    made = await bo.face.delegate(str(cy.address), label="", rights=("share",))
    for node, word, why in (
        (ada, made.word, "whose key this node does not hold"),
        (cy, made.word[:-4], "damaged"),
        (cy, "p2pmem1abc", "not a delegation"),
    ):
        with pytest.raises(MisuseError, match=why):
            await node.face.accept_delegation(word)
    with pytest.raises(MisuseError, match="is no right that can be given"):
        await bo.face.delegate(str(cy.address), label="", rights=("endorse",))
    with pytest.raises(MisuseError, match="is to be ended here"):
        await cy.face.revoke(str(ada.address))


@pytest.mark.cluster(n=3, quorum=1)
async def test_the_principal_leaves_the_graph_and_its_agent_with_it(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    helper = await assistant(cluster, bo)
    await ada.change_members(MemberChange(remove=(str(bo.address),)))
    await cluster.advance(seconds=5)
    assert not any(is_connected(member, helper) for member in (ada, cy))
