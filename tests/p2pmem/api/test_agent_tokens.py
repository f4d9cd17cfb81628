"""What the token of one agent opens: what is its own, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import httpx
import pytest
import trio
from p2pmem_jobs import InlineBlocking
from p2pmem_protocol.keys import Key

from p2pmem.api.client import HttpFace
from p2pmem.api.guard import agent_token
from p2pmem.api.problems import NodeMisuseError, NodeNotFoundError
from p2pmem.api.routes import AGENT_CALLS, CALLS
from p2pmem.api.server import serve_http
from p2pmem.face import NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from p2pmem.services.agent_face import face_of_agent

from .memory_face import MemoryFace

TOKEN = "the-node's-own"
TURTLE = b"<http://example.org/s> <http://example.org/p> <http://example.org/o> .\n"
ADA, BOB, EVE = (Key(bytes([number]) * 32) for number in (0x21, 0x22, 0x23))
ANYBODY = Key(b"\x29" * 32)


@dataclass
class Served:
    """A node with three agents: ada founded a graph in which bob writes, and eve has no part."""

    node: Node
    url: str
    graph: str
    operator: HttpFace
    bob: HttpFace
    eve: HttpFace


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    surroundings = Surroundings(blocking=InlineBlocking(), inline=True)
    network = MemoryFabric(seed=1).network("ada")
    async with AsyncExitStack() as stack:
        opened = open_node(NodeSettings("tokens", "Ada"), Keyring.of(ADA, BOB, EVE), network, Places(), surroundings)
        node = await stack.enter_async_context(opened)
        nursery = await stack.enter_async_context(trio.open_nursery())
        of_agent = partial(face_of_agent, node.services)
        url: str = await nursery.start(partial(serve_http, node.face, TOKEN, of_agent=of_agent))
        tokens = (TOKEN, agent_token(TOKEN, str(BOB.address)), agent_token(TOKEN, str(EVE.address)))
        faces = [await stack.enter_async_context(HttpFace(url, token)) for token in tokens]
        member = NewMember(str(BOB.address), ("writer", "endorser", "verifier"), "Bob")
        graph = (await faces[0].found(NewGraph("findings", (member,), m=1, acks_min=1))).graph
        yield Served(node, url, graph, *faces)
        nursery.cancel_scope.cancel()


async def share(face: HttpFace, graph: str, name: str) -> str:
    options: dict[str, Any] = {"format": "turtle", "base": None, "subgraph": "", "ttl_ms": None}
    return (await face.share_data(graph, name, TURTLE, **options)).id


async def test_an_agent_speaks_as_itself(served: Served) -> None:
    job = await served.bob.job(await share(served.bob, served.graph, "x"))
    assert (job.state, job.agent, job.reference) == ("succeeded", str(BOB.address), f"{BOB.address}/x")
    version = await served.operator.version(served.graph, f"{BOB.address}/x@1")
    assert version.author == str(BOB.address)
    await share(served.operator, served.graph, "y")
    with pytest.raises(NodeMisuseError, match="only the author publishes"):
        await served.bob.publish(served.graph, f"{ADA.address}/y")
    assert (await served.bob.publish(served.graph, "x")).agent == str(BOB.address)
    endorsed = await served.bob.endorse(served.graph, f"{ADA.address}/y", reason="seen", withdraw=False)
    assert (endorsed.state, endorsed.agent) == ("succeeded", str(BOB.address))


async def test_an_agent_sees_and_cancels_its_own_jobs_and_the_operator_all(served: Served) -> None:
    await share(served.operator, served.graph, "y")
    other = await served.operator.publish(served.graph, "y")
    own_share = await share(served.bob, served.graph, "x")
    own = await served.bob.publish(served.graph, "x")
    assert own.state == other.state == "waiting"
    assert [it.id for it in await served.bob.jobs(state=None, limit=10)] == [own.id, own_share]
    assert {own.id, other.id} < {it.id for it in await served.operator.jobs(state=None, limit=10)}
    for call in (
        lambda: served.bob.job(other.id),
        lambda: served.bob.job_story(other.id),
        lambda: served.bob.cancel_job(other.id),
        lambda: served.bob.retry_job(other.id),
        lambda: served.eve.job(own.id),
        lambda: served.bob.jobs(state=None, limit=10, before=other.id),
    ):
        with pytest.raises(NodeNotFoundError, match="there is no job"):
            await call()
    with pytest.raises(NodeNotFoundError):
        async with aclosing(cast("Any", served.bob.watch_job(other.id))) as states:
            await anext(states)
    assert (await served.operator.job(other.id)).state == "waiting"
    await served.bob.cancel_job(own.id)
    assert (await served.operator.job(own.id, wait_ms=10_000)).state == "cancelled"
    await served.operator.cancel_job(other.id)


@pytest.mark.parametrize("number", ["\u00b2", "\u0663", "0", "9" * 5_000, "-1", ""])
async def test_a_version_that_is_no_number_is_refused(served: Served, number: str) -> None:
    await share(served.bob, served.graph, "x")
    with pytest.raises(NodeMisuseError, match="after @ comes a version number"):
        await served.operator.verify(served.graph, f"{BOB.address}/x@{number}", deadline_ms=None)


async def test_an_agents_token_opens_nothing_that_is_not_named(served: Served) -> None:
    headers = {"authorization": f"Bearer {agent_token(TOKEN, str(BOB.address))}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, trust_env=False) as bob:
        assert (await bob.get("/v1/sparql", params={"query": "ASK {}"})).status_code == 403
        for call in CALLS.values():
            if call.name in AGENT_CALLS:
                continue
            # with arguments or without: nothing is done, and nothing is told
            answer = await bob.request(call.verb, call.path.format(job="j", peer="p"))
            assert answer.status_code in (400, 403, 422), call.name
            arguments = dict.fromkeys((*call.in_query, *call.in_body), "x")
            more = {"json": arguments} if call.in_body else {"params": arguments}
            answer = await bob.request(call.verb, call.path.format(job="j", peer="p"), **more)  # type: ignore[arg-type]
            assert answer.status_code in (400, 403, 422), call.name
        assert (await bob.get("/v1/status")).json()["error"]["code"] == "forbidden"


async def test_an_agent_does_not_learn_of_graphs_and_drafts_that_are_not_its_own(served: Served) -> None:
    options: dict[str, Any] = {"format": "turtle", "base": None, "subgraph": "", "replace": False}
    await served.operator.draft(served.graph, "secret", TURTLE, **options)
    mine = await served.bob.draft(served.graph, "mine", TURTLE, **options)
    assert await served.bob.drafts(None) == await served.bob.drafts(served.graph) == (mine,)
    with pytest.raises(NodeNotFoundError) as unknown:
        await served.eve.drafts(served.graph.replace("findings", "nothing"))
    for call in (
        lambda: served.eve.draft(served.graph, "x", TURTLE, **options),
        lambda: served.eve.drafts(served.graph),
        lambda: share(served.eve, served.graph, "x"),
        lambda: served.eve.endorse(served.graph, f"{BOB.address}/x", reason="", withdraw=False),
    ):
        with pytest.raises(NodeNotFoundError) as refused:
            await call()
        assert str(refused.value) == str(unknown.value).replace("nothing", "findings")
    await served.bob.discard(served.graph, "mine")
    with pytest.raises(NodeNotFoundError):
        await served.bob.seal(served.graph, "secret")


async def test_an_agent_reads_and_recalls_what_it_takes_part_in_and_no_draft_of_another(served: Served) -> None:
    options: dict[str, Any] = {"format": "turtle", "base": None, "subgraph": "", "replace": False}
    told = b'<http://example.org/tea> <http://example.org/is> "warm tea" .'
    await served.operator.draft(served.graph, "secret", told, **options)
    await served.bob.draft(served.graph, "mine", told, **options)
    await share(served.operator, served.graph, "y")
    how: dict[str, Any] = {"min_trust": None, "min_m": 0, "limit": 10}
    for graph in (None, served.graph):
        found = (await served.bob.recall("warm tea", graph=graph, **how)).hits
        assert [it.draft.reference for it in found if it.draft is not None] == [f"{BOB.address}/mine"]
        assert len((await served.operator.recall("warm tea", graph=graph, **how)).hits) == 2
    assert [it.graph for it in await served.bob.graphs()] == [served.graph]
    (version,) = await served.bob.versions(served.graph, layer=None, min_trust=None)
    assert await served.bob.version(served.graph, "y") == version
    assert await served.bob.content(served.graph, "y") == TURTLE
    assert (await served.bob.explain(served.graph, "y")).version == version
    with pytest.raises(NodeNotFoundError, match="is not in"):
        await served.bob.version(served.graph, "secret")
    assert (await served.eve.recall("warm tea", graph=None, **how)).hits == ()
    assert await served.eve.graphs() == ()
    for call in (
        lambda: served.eve.recall("warm tea", graph=served.graph, **how),
        lambda: served.eve.graph(served.graph),
        lambda: served.eve.versions(served.graph, layer=None, min_trust=None),
        lambda: served.eve.content(served.graph, f"{ADA.address}/y"),
    ):
        with pytest.raises(NodeNotFoundError, match="is not a context graph that this node takes part in"):
            await call()


async def test_an_agent_reads_an_open_graph_of_its_node_as_anybody_may(served: Served) -> None:
    board = (await served.operator.found(NewGraph("board", access="open"))).graph
    await share(served.operator, board, "news")
    (version,) = await served.eve.versions(board, layer=None, min_trust=None)
    assert version.name == "news"
    with pytest.raises(NodeNotFoundError):
        await share(served.eve, board, "mine")


@pytest.mark.parametrize(
    "token",
    [
        str(BOB.address),
        f"{BOB.address}.",
        f"{BOB.address}.{'0' * 64}",
        f"{EVE.address}.{agent_token(TOKEN, str(BOB.address)).partition('.')[2]}",
        agent_token("another node's", str(BOB.address)),
        agent_token(TOKEN, str(BOB.address)) + "0",
        agent_token(TOKEN, str(ANYBODY.address)),
        agent_token(TOKEN, ""),
        f".{TOKEN}",
        "\xff.\xff",
    ],
)
async def test_a_token_of_nobody_opens_nothing(served: Served, token: str) -> None:
    headers = {b"authorization": f"Bearer {token}".encode("latin-1")}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as somebody:
        for path in ("/v1/jobs", "/v1/status"):
            answer = await somebody.get(path, headers=headers)  # type: ignore[arg-type]  # bytes are fine
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "not-authorised"


async def test_without_agents_only_the_nodes_own_token_opens_anything() -> None:
    async with trio.open_nursery() as nursery:
        url = await nursery.start(lambda task_status: serve_http(MemoryFace(), TOKEN, task_status=task_status))
        headers = {"authorization": f"Bearer {agent_token(TOKEN, str(BOB.address))}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as bob:
            assert (await bob.get("/v1/jobs")).status_code == 401
        nursery.cancel_scope.cancel()


# What cannot be done with a job


async def test_what_cannot_be_done_with_a_job_is_said_by_its_code(served: Served) -> None:
    job = await share(served.operator, served.graph, "y")
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, trust_env=False) as operator:
        for word, body in (("cancel", {}), ("retry", {}), ("resolve", {"outcome": "failed"})):
            answer = await operator.post(f"/v1/jobs/{job}/{word}", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "job-ended")
        answer = await operator.post(f"/v1/jobs/{job}/resolve", json={"outcome": "maybe"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "misuse")
        for limit in ("0", "-1", "1001"):
            answer = await operator.get(f"/v1/jobs?limit={limit}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "misuse")
        for path in ("/v1/jobs/%ED%A0%80", "/v1/jobs/%00", f"/v1/jobs/{'x' * 5_000}", "/v1/jobs?before=%00"):
            assert (await operator.get(path)).status_code in (400, 404), path


# Streams of jobs


async def events(url: str, job: str, *, last: str | None = None, query: str = "") -> list[tuple[str, str]]:
    """The ids and the states that a browser reads until the stream ends."""
    headers = {"authorization": f"Bearer {TOKEN}"} | ({} if last is None else {"last-event-id": last})
    found: list[tuple[str, str]] = []
    with trio.fail_after(20):
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as browser:
            answer = await browser.get(f"/v1/jobs/{job}/events{query}")
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("id", ""), fields["data"].partition('"state":"')[2].partition('"')[0]))
    return found


async def test_a_stream_that_is_opened_again_goes_on_where_it_was(served: Served) -> None:
    await share(served.operator, served.graph, "y")
    job = await served.operator.publish(served.graph, "y")
    await served.operator.cancel_job(job.id)
    await served.operator.job(job.id, wait_ms=10_000)
    ((number, state),) = await events(served.url, job.id)
    assert state == "cancelled"
    assert await events(served.url, job.id, last=number) == []
    assert await events(served.url, job.id, last=str(int(number) - 1)) == [(number, "cancelled")]
    assert await events(served.url, job.id, query=f"?since={number}") == []
    # a number of a file that was put back since: told again rather than not at all, or at the end at least
    assert await events(served.url, job.id, last=str(2**50)) in ([], [(number, "cancelled")])


@pytest.mark.parametrize("last", ["x", "-1", "1e3", "9" * 40, "\u00b2"])
async def test_a_last_event_that_is_none_is_refused(served: Served, last: str) -> None:
    job = await share(served.operator, served.graph, "y")
    headers = {b"authorization": f"Bearer {TOKEN}".encode(), b"last-event-id": last.encode("latin-1")}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as browser:
        answer = await browser.get(f"/v1/jobs/{job}/events", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 400
