"""What every `Face` does: that of a node, the one in memory that stands for it in other tests, and both over HTTP.

`face` gives one that has nothing yet and whose node runs alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, cast

import pytest
import trio
from p2pmem_jobs import EndedError, InlineBlocking
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key

from p2pmem.api.client import HttpFace
from p2pmem.api.server import serve_http
from p2pmem.face import Face, JobView, Layer, MemberChange, NewGraph, NewMember, NotFoundError
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node

from .memory_face import MemoryFace

TURTLE = b"<http://example.org/s> <http://example.org/p> <http://example.org/o> .\n"
SOMEBODY = "0x" + "b2" * 20


@pytest.fixture(params=["memory", "memory over HTTP", "node", "node over HTTP"])
async def face(request: pytest.FixtureRequest) -> AsyncIterator[Face]:
    kind: str = request.param
    async with AsyncExitStack() as stack:
        found: Face = MemoryFace()
        if kind.startswith("node"):
            found = (await stack.enter_async_context(real_node())).face
        if kind.endswith("over HTTP"):
            found = await stack.enter_async_context(over_http(found))
        yield found


@asynccontextmanager
async def real_node() -> AsyncIterator[Node]:
    """A whole node, alone and in memory."""
    settings = NodeSettings("contract", "Alice")
    surroundings = Surroundings(blocking=InlineBlocking(), inline=True)
    keyring = Keyring.of(Key(b"\x17" * 32))
    async with open_node(settings, keyring, MemoryFabric(seed=1).network("alice"), Places(), surroundings) as node:
        yield node


@asynccontextmanager
async def over_http(face: Face) -> AsyncIterator[Face]:
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(lambda task_status: serve_http(face, "token", task_status=task_status))
        async with HttpFace(url, "token") as client:
            yield client
        nursery.cancel_scope.cancel()


async def draft(face: Face, graph: str, name: str = "finding") -> None:
    await face.draft(graph, name, TURTLE, format="turtle", base=None, subgraph="", replace=False)


async def test_a_founded_graph_is_listed_and_found_by_name(face: Face) -> None:
    made = await face.found(NewGraph("findings", (NewMember(SOMEBODY, ("writer", "verifier"), "Bob"),)))
    assert made.graph.endswith("/findings")
    assert [it.graph for it in await face.graphs()] == [made.graph]
    assert await face.graph(made.graph) == made
    assert SOMEBODY in made.verifiers
    assert {it.label for it in made.members} >= {"Bob"}
    status = await face.status()
    assert status.graphs == 1
    assert made.owner in status.agents


async def test_what_an_approver_prepared_is_read_and_signed_as_one_step(face: Face) -> None:
    made = await face.found(NewGraph("findings"))
    change = MemberChange(set=(NewMember(SOMEBODY, ("writer",), "Bob"),))
    prepared = await face.prepare_members(made.graph, change)
    assert prepared.word.startswith("p2pmemchange1")
    assert (prepared.graph, prepared.change) == (made.graph, change)
    assert await face.prepared_members(prepared.word) == prepared
    after = await face.sign_members(prepared.word)
    assert after.version == made.version + 1
    assert SOMEBODY in {it.address for it in after.members}
    with pytest.raises(MisuseError):
        await face.sign_members("p2pmemchange1of-somebody-else")


async def test_a_graph_is_not_founded_twice(face: Face) -> None:
    await face.found(NewGraph("findings"))
    with pytest.raises(MisuseError):
        await face.found(NewGraph("findings"))


async def test_an_unknown_graph_is_not_found(face: Face) -> None:
    with pytest.raises(NotFoundError):
        await face.graph(f"{SOMEBODY}/nothing")
    with pytest.raises(NotFoundError):
        await face.content(f"{SOMEBODY}/nothing", "x")


async def test_a_name_that_is_none_is_refused(face: Face) -> None:
    with pytest.raises(MisuseError):
        await face.graph("findings and more")


async def test_members_come_and_go(face: Face) -> None:
    made = await face.found(NewGraph("findings"))
    more = await face.change_members(made.graph, MemberChange(set=(NewMember(SOMEBODY, ("writer",), "Bob"),)))
    assert more.version == made.version + 1
    assert SOMEBODY in {it.address for it in more.members}
    less = await face.change_members(made.graph, MemberChange(remove=(SOMEBODY,)))
    assert SOMEBODY not in {it.address for it in less.members}


PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"


async def test_a_delegation_is_one_word_and_is_listed(face: Face) -> None:
    await face.found(NewGraph("findings"))
    made = await face.delegate(SOMEBODY, label="helper", rights=("share", "publish"))
    assert made.word.startswith("p2pmemact1")
    assert made.word.split() == [made.word]
    assert (made.agent, made.rights, made.given, made.held) == (SOMEBODY, ("share", "publish"), True, False)
    assert await face.delegations() == (made,)
    done = await face.revoke(SOMEBODY, keep=False)
    assert len(done.graphs) == 1


async def test_nothing_is_revoked_where_nothing_was_given(face: Face) -> None:
    await face.found(NewGraph("findings"))
    with pytest.raises(MisuseError):
        await face.revoke(SOMEBODY)


async def test_a_peer_is_banned_shown_and_let_in_again(face: Face) -> None:
    assert await face.peers() == ()
    with pytest.raises(NotFoundError):
        await face.peer(PEER)
    banned = await face.ban_peer(PEER, for_ms=None)
    assert (banned.state, banned.banned_until_ms) == ("banned", -1)
    assert await face.peers() == (banned,)
    assert await face.peer(PEER) == banned
    await face.unban_peer(PEER)
    with pytest.raises(NotFoundError):
        await face.unban_peer(PEER)


async def test_an_invite_is_one_word(face: Face) -> None:
    made = await face.found(NewGraph("findings"))
    invite = await face.invite(made.graph, roles=("writer",), uses=2, life_ms=60_000)
    assert invite.startswith("p2pmem1")
    assert invite.split() == [invite]


async def test_the_owner_of_a_graph_does_not_leave_it(face: Face) -> None:
    made = await face.found(NewGraph("findings"))
    with pytest.raises(MisuseError, match="owner"):
        await face.leave(made.graph)
    assert len(await face.graphs()) == 1


async def test_a_draft_is_listed_until_it_is_discarded(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    await draft(face, graph)
    (listed,) = await face.drafts(graph)
    assert listed.reference.endswith("/finding")
    assert listed.statements == 1
    assert not listed.sealed
    await face.discard(graph, "finding")
    assert await face.drafts(None) == ()
    with pytest.raises(NotFoundError):
        await face.discard(graph, "finding")


async def test_what_is_not_there_is_not_published_and_makes_no_job(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    with pytest.raises(NotFoundError):
        await face.publish(graph, "nothing")
    assert await face.jobs(state=None, limit=10) == ()


# What only a node does, which reads what it is given


@pytest.fixture(params=["node", "node over HTTP"])
async def reader(request: pytest.FixtureRequest) -> AsyncIterator[Face]:
    async with AsyncExitStack() as stack:
        found: Face = (await stack.enter_async_context(real_node())).face
        if request.param.endswith("over HTTP"):
            found = await stack.enter_async_context(over_http(found))
        yield found


async def test_a_version_that_cannot_be_published_any_more_makes_no_job(reader: Face) -> None:
    graph = (await reader.found(NewGraph("findings"))).graph
    await draft(reader, graph)
    with pytest.raises(MisuseError, match="version 1 of finding, not 2"):
        await reader.publish(graph, "finding@2")
    job = await reader.publish(graph, "finding@1")
    assert (await reader.job(job.id, wait_ms=10_000)).state == "succeeded"
    await reader.retract(graph, "finding@1", reason="", successor=None, erase=False)
    with pytest.raises(MisuseError, match="was retracted"):
        await reader.publish(graph, "finding")
    assert len(await reader.jobs(state=None, limit=10)) == 1


async def test_columns_stand_as_the_query_names_them(reader: Face) -> None:
    graph = (await reader.found(NewGraph("findings"))).graph
    await draft(reader, graph)
    await reader.share(graph, "finding", ttl_ms=60_000)

    async def columns(sparql: str) -> tuple[str, ...]:
        answer = await reader.query(sparql, graph=graph, layer=None, min_trust=None, at_least=0)
        (row,) = answer.rows
        assert [str(it)[-2] for it in row] == list(answer.variables)
        return answer.variables

    assert await columns("SELECT * { ?s ?p ?o }") == ("s", "p", "o")
    assert await columns("SELECT ?o ?s { ?s ?p ?o }") == ("o", "s")


async def test_a_version_that_is_not_there_is_said_with_those_that_are(reader: Face) -> None:
    graph = (await reader.found(NewGraph("findings"))).graph
    await draft(reader, graph)
    await reader.share(graph, "finding", ttl_ms=60_000)
    with pytest.raises(NotFoundError, match=r"has no version 7 in .*; known of it here: @1$"):
        await reader.version(graph, "finding@7")


async def test_relative_iris_are_warned_of_before_anything_is_signed(reader: Face) -> None:
    graph = (await reader.found(NewGraph("findings"))).graph
    data = b"<a> <b> <c> ."
    view = await reader.draft(graph, "x", data, format="turtle", base=None, subgraph="", replace=False)
    (warning,) = view.warnings
    assert f"<https://p2pmem.invalid/{graph}/" in warning
    again = await reader.draft(graph, "y", data, format="turtle", base="http://a.b/", subgraph="", replace=False)
    assert again.warnings == ()
    (listed, _) = await reader.drafts(graph)
    assert listed.warnings == ()
    job = await reader.share_data(graph, "z", data, format="turtle", base=None, subgraph="", ttl_ms=60_000)
    (warning,) = job.warnings
    assert "relative IRIs" in warning


async def test_named_graphs_are_merged_when_that_is_asked_and_only_then(reader: Face) -> None:
    graph = (await reader.found(NewGraph("findings"))).graph
    data = b"<x:s> <x:p> <x:o> <x:g> .\n"
    with pytest.raises(MisuseError, match="--merge-graphs"):
        await reader.draft(graph, "x", data, format="n-quads", base=None, subgraph="", replace=False)
    view = await reader.draft(
        graph, "x", data, format="n-quads", base=None, subgraph="", replace=False, merge_graphs=True
    )
    assert view.statements == 1
    assert "1 named graph was merged" in view.warnings[0]
    job = await reader.share_data(
        graph, "y", data, format="n-quads", base=None, subgraph="", ttl_ms=60_000, merge_graphs=True
    )
    assert "1 named graph was merged" in job.warnings[0]


async def test_a_mistake_in_a_file_names_the_file(reader: Face) -> None:
    graph = (await reader.found(NewGraph("findings"))).graph
    for file, named in (("dir/bad.ttl", "dir/bad.ttl"), (None, "x")):
        with pytest.raises(MisuseError, match=f"^{named}: line 2, column"):
            await reader.draft(
                graph,
                "x",
                b"<x:s> <x:p> <x:o> .\nwhat",
                format="turtle",
                base=None,
                subgraph="",
                replace=False,
                file=file,
            )


async def test_a_sealed_draft_has_a_root(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    await draft(face, graph)
    sealed = await face.seal(graph, "finding")
    assert sealed.sealed
    assert sealed.root.startswith("0x")
    assert len(sealed.root) == 66


async def test_a_draft_that_is_not_there_is_not_sealed(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    with pytest.raises(MisuseError):
        await face.seal(graph, "nothing")


async def test_what_is_shared_can_be_read_by_its_bytes(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    await draft(face, graph)
    job = await face.share(graph, "finding", ttl_ms=60_000)
    ended = await face.job(job.id, wait_ms=10_000)
    assert ended.state == "succeeded"
    assert ended.kind == "share"
    (version,) = await face.versions(graph, layer=Layer.SHARED, min_trust=None)
    assert await face.version(graph, version.reference) == version
    assert await face.content(graph, version.reference) == TURTLE
    assert version.layer is Layer.SHARED
    assert version.trust.n >= 0


async def test_data_is_shared_without_a_draft_and_not_past_one(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph

    async def share(name: str) -> JobView:
        return await face.share_data(graph, name, TURTLE, format="nt", base=None, subgraph="", ttl_ms=60_000)

    ended = await face.job((await share("finding")).id, wait_ms=10_000)
    assert (ended.kind, ended.state) == ("share", "succeeded")
    (version,) = await face.versions(graph, layer=Layer.SHARED, min_trust=None)
    assert await face.content(graph, version.reference) == TURTLE
    assert await face.drafts(graph) == ()
    await draft(face, graph, "other")
    with pytest.raises(MisuseError, match="draft"):
        await share("other")


async def test_a_lifetime_over_the_maximum_is_refused(face: Face) -> None:
    graph = (await face.found(NewGraph("findings", ttl_max_ms=60_000, ttl_default_ms=60_000))).graph
    await draft(face, graph)
    # who asks is told at once, or by the job that was to do it
    try:
        job = await face.share(graph, "finding", ttl_ms=60_001)
    except MisuseError:
        pass
    else:
        assert (await face.job(job.id, wait_ms=10_000)).state == "failed"
    assert await face.versions(graph, layer=None, min_trust=None) == ()


async def test_a_watched_job_is_told_to_its_end(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    await draft(face, graph)
    job = await face.share(graph, "finding", ttl_ms=None)
    async with aclosing(cast("Any", face.watch_job(job.id))) as states:
        told = [it.state async for it in states]
    assert told[-1] == "succeeded"
    story = await face.job_story(job.id)
    assert story.job.id == job.id
    assert story.events


async def test_jobs_are_listed_newest_first_and_by_pages(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    ids = []
    for name in ("one", "two", "three"):
        await draft(face, graph, name)
        ids.append((await face.share(graph, name, ttl_ms=None)).id)
    listed = [it.id for it in await face.jobs(state=None, limit=2)]
    assert listed == ids[:0:-1]
    assert [it.id for it in await face.jobs(state=None, limit=2, before=listed[-1])] == ids[:1]
    assert await face.jobs(state="failed", limit=10) == ()


async def test_a_job_that_is_not_there_is_not_found(face: Face) -> None:
    with pytest.raises(NotFoundError):
        await face.job("no-such-job")
    with pytest.raises(NotFoundError):
        async with aclosing(cast("Any", face.watch_job("no-such-job"))) as states:
            await anext(states)


async def test_a_job_that_has_ended_is_not_cancelled(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    await draft(face, graph)
    job = await face.share(graph, "finding", ttl_ms=None)
    await face.job(job.id, wait_ms=10_000)
    with pytest.raises((MisuseError, EndedError)):
        await face.cancel_job(job.id)


async def test_changes_go_on_from_a_position(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    await draft(face, graph)
    async with aclosing(cast("Any", face.changes(0))) as changes:
        first, second = await anext(changes), await anext(changes)
    assert first.position < second.position
    async with aclosing(cast("Any", face.changes(first.position))) as changes:
        assert await anext(changes) == second


async def test_a_question_states_its_policy(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    answer = await face.recall("what is known?", graph=graph, min_trust=None, min_m=0, limit=5)
    assert answer.question == "what is known?"
    assert answer.policy


async def test_a_query_answers_yes_or_no(face: Face) -> None:
    graph = (await face.found(NewGraph("findings"))).graph
    answer = await face.query("ASK { VALUES ?x { 1 } }", graph=graph, layer=None, min_trust=None, at_least=0)
    assert answer.kind == "boolean"
    assert answer.boolean is True
