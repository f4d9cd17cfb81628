"""Who has not the right to something is told so at once, in one way, and no job is made that must fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import Asset, ClusterNode

from p2pmem.api.problems import Exit, row_of
from p2pmem.face import MemberChange, NewMember, NoRightError

pytestmark = pytest.mark.cluster(n=3, quorum=1)

TURTLE = b"<urn:a> <urn:b> <urn:c> ."
HOW: dict[str, Any] = {"format": "turtle", "base": None, "subgraph": ""}
Call = Callable[[ClusterNode, str, Asset], Awaitable[object]]

OF_A_WRITER: dict[str, Call] = {
    "share": lambda bo, graph, of: bo.face.share(graph, "mine", ttl_ms=None),
    "share data": lambda bo, graph, of: bo.face.share_data(graph, "other", TURTLE, ttl_ms=None, **HOW),
    "publish": lambda bo, graph, of: bo.face.publish(graph, "mine"),
    "propose": lambda bo, graph, of: bo.face.verify(graph, of.reference, deadline_ms=None),
}
OF_AN_ENDORSER: dict[str, Call] = {
    "endorse": lambda bo, graph, of: bo.face.endorse(graph, of.reference, reason="", withdraw=False),
    "withdraw": lambda bo, graph, of: bo.face.endorse(graph, of.reference, reason="", withdraw=True),
}
OF_OTHERS: dict[str, Call] = {
    "publish what is another's": lambda bo, graph, of: bo.face.publish(graph, of.reference),
    "retract": lambda bo, graph, of: bo.face.retract(graph, of.reference, reason="", successor=None, erase=False),
    "change members": lambda bo, graph, of: bo.face.change_members(graph, MemberChange(remove=(str(of.author),))),
    "prepare": lambda bo, graph, of: bo.face.prepare_members(graph, MemberChange(remove=(str(of.author),))),
    "invite": lambda bo, graph, of: bo.face.invite(graph, roles=("reader",), uses=1, life_ms=60_000),
}


@pytest.mark.parametrize("name", [*OF_A_WRITER, *OF_AN_ENDORSER, *OF_OTHERS])
async def test_who_may_not_is_told_so_before_there_is_a_job(cluster: Cluster, name: str) -> None:
    ada, bo, cy = cluster.nodes
    asset = await cy.share("ex:a ex:b ex:c .")
    await bo.draft("ex:a ex:b ex:d .", name="mine")
    await ada.change_members(MemberChange(set=(NewMember(str(bo.address), ("verifier",)),)))
    await cluster.settled()
    call = {**OF_A_WRITER, **OF_AN_ENDORSER, **OF_OTHERS}[name]
    before = await bo.face.jobs(state=None, limit=100)
    with pytest.raises(NoRightError) as refused:
        await call(bo, cluster.graph, asset)
    assert row_of(refused.value).exit is Exit.NOT_ALLOWED
    assert await bo.face.jobs(state=None, limit=100) == before
    (draft,) = await bo.face.drafts(cluster.graph)
    assert not draft.sealed, "nothing was signed"
    if name not in OF_OTHERS:
        said = "ask for verification" if name == "propose" else name.split()[0].replace("withdraw", "endorse")
        assert f"{bo.address} has not the right to {said} in {cluster.graph}, which is for" in str(refused.value)
        assert "`p2pmem graph members --set ADDRESS=ROLES`" in str(refused.value)
        await ada.change_members(MemberChange(set=(NewMember(str(bo.address), ("writer", "endorser")),)))
        await cluster.settled()
        await call(bo, cluster.graph, asset)


async def test_who_acts_for_somebody_is_told_which_right_it_was_not_given(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    agent = await cluster.add("agent")
    given = await bo.face.delegate(str(agent.address), label="agent", rights=("share",))
    await agent.face.accept_delegation(given.word)
    await agent.face.join(await ada.face.invite(cluster.graph, roles=(), uses=1, life_ms=60_000), label="")
    await agent.draft("ex:a ex:b ex:c .", name="mine")
    for call in (OF_A_WRITER["publish"], OF_AN_ENDORSER["endorse"]):
        asset = await cy.share("ex:a ex:b ex:c .")
        await cluster.settled()
        with pytest.raises(NoRightError, match=f"{agent.address}, for {bo.address}, has not the right to") as refused:
            await call(agent, cluster.graph, asset)
        assert "`p2pmem acting allow`" in str(refused.value)
    await agent.face.share(cluster.graph, "mine", ttl_ms=None)
