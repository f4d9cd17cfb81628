"""The server before callers that are wrong, slow, large, or from elsewhere."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing
from p2pmem_protocol.errors import MisuseError, OutsideError, Reason, RefusedError

from p2pmem.api import endpoints
from p2pmem.api.client import HttpFace
from p2pmem.api.problems import NodeBugError, NodeMisuseError, NodeOutsideError, UnreachableError
from p2pmem.api.routes import BODY_BYTES_MAX, CALLS, FILE_BYTES_MAX
from p2pmem.api.server import serve_http
from p2pmem.face import ChangeEvent, NewGraph, NotFoundError

from .conftest import TOKEN, Served
from .memory_face import MemoryFace
from .memory_values import AGENT

GRAPH = f"{AGENT}/findings"


def code_of(answer: httpx.Response) -> str:
    body = answer.json()
    assert set(body) == {"error"}
    assert answer.headers["content-type"] == "application/json"
    return str(body["error"]["code"])


async def exchange(served: Served, request: bytes) -> bytes:
    """What comes back for bytes that no HTTP library would send."""
    stream = await trio.open_tcp_stream("127.0.0.1", httpx.URL(served.url).port or 0)
    answer = b""
    async with stream:
        await stream.send_all(request)
        with trio.fail_after(10):
            while piece := await stream.receive_some():
                answer += piece
    return answer


# Who may ask


async def test_no_call_answers_without_the_token(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as stranger:
        for authorization in (None, "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer"):
            headers = {} if authorization is None else {"authorization": authorization}
            for call in CALLS.values():
                answer = await stranger.request(call.verb, call.path.format(job="j", peer="p"), headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert code_of(answer) == "not-authorised"
    assert served.face.calls == []


async def test_a_stranger_does_not_learn_which_paths_there_are(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as stranger:
        assert {(await stranger.get(path)).status_code for path in ("/v1/status", "/v1/nothing", "/")} == {401}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", ""])
async def test_another_host_is_turned_away_also_with_the_token(served: Served, host: str) -> None:
    answer = await served.raw.get("/v1/status", headers={"host": host})
    assert answer.status_code == 403
    assert code_of(answer) == "forbidden"
    assert (await served.raw.get("/healthz", headers={"host": host})).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:9", "LOCALHOST"])
async def test_this_machine_has_several_names(served: Served, host: str) -> None:
    assert (await served.raw.get("/v1/status", headers={"host": host})).status_code == 200


async def test_a_page_of_another_origin_is_turned_away(served: Served) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1", served.url.replace("http", "https")):
        answer = await served.raw.get("/v1/status", headers={"origin": origin})
        assert answer.status_code == 403
    assert (await served.raw.get("/v1/status", headers={"origin": served.url})).status_code == 200


async def test_probes_need_no_token_and_tell_nothing() -> None:
    ready = False
    async with trio.open_nursery() as nursery:
        url = await nursery.start(
            lambda task_status: serve_http(MemoryFace(), TOKEN, ready=lambda: ready, task_status=task_status)
        )
        async with httpx.AsyncClient(base_url=url, trust_env=False) as stranger:
            assert (await stranger.get("/healthz")).json() == {"alive": True}
            answer = await stranger.get("/readyz")
            assert (answer.status_code, code_of(answer)) == (503, "not-ready")
            ready = True
            assert (await stranger.get("/readyz")).json() == {"ready": True}
        nursery.cancel_scope.cancel()


# What is asked


async def test_unknown_paths_and_verbs_are_problems(served: Served) -> None:
    answer = await served.raw.get("/v1/nothing")
    assert (answer.status_code, code_of(answer)) == (404, "no-such-route")
    answer = await served.raw.put("/v1/graphs")
    assert (answer.status_code, code_of(answer)) == (405, "wrong-method")
    with pytest.raises(NotFoundError, match="there is no job 'a/b'"):
        await served.client._request("job", job="a/b", wait_ms=0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "slug is missing"),
        (b"[]", "not a JSON object"),
        (b"{", "line 1, column 2"),
        (b'{"slug": "x", "slug": "y"}', "'slug' comes twice"),
        (b'{"slug": "x", "colour": "red"}', "'colour'"),
        (b'{"slug": 7}', "slug is 7"),
        (b'{"slug": "\\ud800"}', "surrogate"),
        (b'{"slug": "x", "m": 1e3}', "m is 1000.0"),
        (b'{"slug": "x", "ttl_max_ms": 9007199254740993}', "beyond"),
        (b'{"slug": "x", "members": [{"address": "0x", "roles": "all"}]}', "members\\[0\\].roles"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 200_000, "deep"),
    ],
)
async def test_a_bad_body_is_refused_by_what_is_wrong(served: Served, body: bytes, says: str) -> None:
    answer = await served.raw.post("/v1/graphs", content=body)
    assert (answer.status_code, code_of(answer)) == (400, "bad-request")
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(answer.json()["error"]["message"])
    assert served.face.calls == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "graph is missing"),
        ("?graph=a&graph=b", "'graph' comes twice"),
        ("?graph=a&x=1", "no parameter 'x'"),
        ("?graph=%ff", "UTF-8"),
        ("?" + "&".join(f"a{i}=1" for i in range(100)), "does not parse"),
    ],
)
async def test_a_bad_query_is_refused_by_what_is_wrong(served: Served, query: str, says: str) -> None:
    answer = await served.raw.get(f"/v1/graph{query}")
    assert (answer.status_code, code_of(answer)) == (400, "bad-request")
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/drafts", b'{"graph": "g", "name": "x"}', "the body is the file itself, and all else goes into "
         "/v1/drafts?graph=...&name=..."),
        ("/v1/share/data?graph=g", b"", "name is missing in the query: the body is the file itself"),
        ("/v1/share", b"", "graph is missing in the JSON object that is the body"),
    ],
)  # fmt: skip
async def test_what_is_missing_is_said_with_the_place_where_it_is_looked_for(
    served: Served, path: str, body: bytes, says: str
) -> None:
    answer = await served.raw.post(path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, code_of(answer)) == (400, "bad-request")
    assert says in answer.json()["error"]["message"]
    assert served.face.calls == []


async def test_a_body_over_the_limit_is_refused_before_it_is_read(served: Served) -> None:
    for path, limit in (("/v1/graphs", BODY_BYTES_MAX), ("/v1/drafts?graph=a&name=b", FILE_BYTES_MAX)):
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Length: {limit + 1}\r\n\r\n"
        )
        answer = await exchange(served, head.encode())
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"body-too-large" in answer
    assert (await served.raw.request("GET", "/v1/graphs", content=b"x")).status_code == 413


async def test_a_body_that_does_not_say_its_length_is_cut_at_the_limit(served: Served) -> None:
    chunk, sent_bytes, answer = b"10000\r\n" + bytes(65_536) + b"\r\n", 0, b""
    stream = await trio.open_tcp_stream("127.0.0.1", httpx.URL(served.url).port or 0)

    async def read() -> None:
        nonlocal answer
        while not answer.endswith(b"}}"):
            answer += await stream.receive_some()
        nursery.cancel_scope.cancel()

    head = f"POST /v1/graphs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await stream.send_all(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        while sent_bytes < 64 * 1024 * 1024:
            await stream.send_all(chunk)
            sent_bytes += len(chunk)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body-too-large" in answer
    assert sent_bytes < 32 * 1024 * 1024


async def test_a_body_of_the_limit_is_taken(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    draft = await served.client.draft(
        GRAPH, "big", b"\n" * FILE_BYTES_MAX, format=None, base=None, subgraph="", replace=False
    )
    assert draft.statements == FILE_BYTES_MAX


async def test_a_body_that_never_comes_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pmem.api.requests.BODY_TIME_MAX_S", 0.01)
    head = f"POST /v1/graphs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\n"
    answer = await exchange(served, head.encode())
    assert answer.startswith(b"HTTP/1.1 408")


async def test_bytes_that_are_no_http_end_the_connection_and_nothing_else(served: Served) -> None:
    await exchange(served, b"\x16\x03\x01\x02\x00\x01\x00" * 100)
    await exchange(served, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n")
    assert (await served.raw.get("/v1/status")).status_code == 200


async def test_too_many_at_once_are_told_to_come_later(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pmem.api.server.REQUESTS_MAX", 0)
    answer = await served.raw.get("/v1/status")
    assert (answer.status_code, code_of(answer)) == (503, "outside")


# What is answered


async def test_an_answer_is_not_kept_by_caches(served: Served) -> None:
    answer = await served.raw.get("/v1/status")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers


async def test_a_refusal_comes_with_its_reason(served: Served) -> None:
    served.face.fail["status"] = RefusedError(Reason.OVER_QUOTA, "too much")
    answer = await served.raw.get("/v1/status")
    assert answer.status_code == 422
    assert answer.json() == {"error": {"code": "refused", "message": "too much", "reason": "over-quota"}}
    served.face.fail["status"] = RefusedError(Reason.OVER_QUOTA, "too much")
    with pytest.raises(RefusedError, match="over-quota: too much") as raised:
        await served.client.status()
    assert raised.value.reason is Reason.OVER_QUOTA


async def test_an_error_out_of_a_nursery_is_what_it_was(served: Served) -> None:
    served.face.fail["status"] = ExceptionGroup("nursery", [MisuseError("not so")])
    with pytest.raises(NodeMisuseError, match=r"^not so$"):
        await served.client.status()


async def test_a_bug_is_logged_here_and_not_told_there(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.face.fail["status"] = KeyError("hunter2")
    with caplog.at_level(logging.ERROR):
        answer = await served.raw.get("/v1/status")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    assert [it.message for it in caplog.records] == ["api.bug"]
    served.face.fail["status"] = KeyError("hunter2")
    with pytest.raises(NodeBugError):
        await served.client.status()


async def test_a_job_that_goes_on_is_accepted_and_one_that_ended_is_done(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    await served.client.draft(GRAPH, "x", b"a\n", format=None, base=None, subgraph="", replace=False)
    body = {"graph": GRAPH, "name": "x"}
    assert (await served.raw.post("/v1/share", json=body)).status_code == 200
    served.face.hold = True
    assert (await served.raw.post("/v1/share", json=body)).status_code == 202


async def test_a_list_of_jobs_says_where_the_next_page_begins(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    await served.client.draft(GRAPH, "x", b"a\n", format=None, base=None, subgraph="", replace=False)
    ids = [(await served.client.share(GRAPH, "x", ttl_ms=None)).id for _ in range(3)]
    first = (await served.raw.get("/v1/jobs?limit=2")).json()
    assert [it["id"] for it in first["jobs"]] == ids[:0:-1]
    second = (await served.raw.get(f"/v1/jobs?limit=2&before={first['next']}")).json()
    assert [it["id"] for it in second["jobs"]] == ids[:1]
    assert second["next"] is None


async def test_the_caller_of_a_read_that_goes_away_is_not_worked_for(served: Served) -> None:
    job = await held_job(served)
    ended = trio.Event()
    method = served.face.job

    async def job_until_cancelled(job: str, *, wait_ms: int = 0) -> Any:
        try:
            return await method(job, wait_ms=wait_ms)
        finally:
            ended.set()

    endpoint = endpoints.Endpoint(CALLS["job"], served.face, trio.Event())
    endpoint._method = job_until_cancelled
    send_disconnect, receive = trio.open_memory_channel[dict[str, Any]](2)
    await send_disconnect.send({"type": "http.request", "body": b"", "more_body": False})
    scope = {"path_params": {"job": job}, "query_string": b"wait_ms=600000", "headers": [], "method": "GET"}
    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint, scope, receive.receive, send)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        await send_disconnect.send({"type": "http.disconnect"})
    assert ended.is_set()
    assert sent == []


# Streams


async def held_job(served: Served) -> str:
    await served.client.found(NewGraph("findings"))
    await served.client.draft(GRAPH, "x", b"a\n", format=None, base=None, subgraph="", replace=False)
    served.face.hold = True
    return (await served.client.share(GRAPH, "x", ttl_ms=None)).id


async def test_a_job_is_followed_to_its_end(served: Served) -> None:
    job = await held_job(served)
    seen = []
    async with aclosing(cast("Any", served.client.watch_job(job))) as states:
        async for state in states:
            seen.append((state.state, state.waiting_for))
            if len(seen) == 1:
                await served.face.progress(job, "2 of 3")
            elif len(seen) == 2:
                await served.face.finish(job, result={"n": 1})
    assert seen == [("running", ""), ("waiting", "2 of 3"), ("succeeded", "")]


async def test_events_are_in_the_form_that_browsers_read(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    await served.client.draft(GRAPH, "x", b"a\n", format=None, base=None, subgraph="", replace=False)
    request = f"GET /v1/changes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    stream = await trio.open_tcp_stream("127.0.0.1", httpx.URL(served.url).port or 0)
    async with stream:
        await stream.send_all(f"{request}Last-Event-ID: 1\r\n\r\n".encode())
        data = b""
        while b"data:" not in data:
            data += await stream.receive_some()
    assert b"content-type: text/event-stream" in data.lower()
    assert b"id: 2\nevent: change\ndata: {" in data
    assert b"id: 1\n" not in data


async def test_a_stream_of_what_is_not_there_is_a_problem_and_no_stream(served: Served) -> None:
    answer = await served.raw.get("/v1/jobs/nothing/events")
    assert (answer.status_code, code_of(answer)) == (404, "not-found")
    assert (await served.raw.get("/v1/changes", headers={"last-event-id": "x"})).status_code == 400


async def test_an_error_within_a_stream_reaches_who_listens(served: Served) -> None:
    served.face.fail["changes"] = OutsideError("the disk is gone")
    with pytest.raises(NodeOutsideError, match="the disk is gone"):
        async with aclosing(cast("Any", served.client.changes(0))) as events:
            await anext(events)


async def test_an_idle_stream_says_that_it_is_alive(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "KEEP_ALIVE_S", 0.01)
    request = f"GET /v1/changes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    stream = await trio.open_tcp_stream("127.0.0.1", httpx.URL(served.url).port or 0)
    async with stream:
        await stream.send_all(request.encode())
        data = b""
        while data.count(b": still here") < 3:
            data += await stream.receive_some()


# The end


async def test_stopping_ends_streams_and_takes_no_more(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    async with aclosing(cast("Any", served.client.changes(0))) as events:
        await anext(events)
        served.stop.set()
        with trio.fail_after(10), pytest.raises(StopAsyncIteration):
            await anext(events)
    await served.ended.wait()
    with pytest.raises(UnreachableError, match="p2pmem run"):
        await HttpFace(served.url, TOKEN).status()


async def test_a_caller_who_reads_nothing_is_cut_off_and_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("p2pmem.api.server.UNSENT_MS_MAX", 300)
    face = MemoryFace()
    face.add_events(ChangeEvent(number, "x" * 100_000, GRAPH, "", 0) for number in range(1, 1_000))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            url = await nursery.start(lambda task_status: serve_http(face, TOKEN, task_status=task_status))
            stream = await trio.open_tcp_stream("127.0.0.1", httpx.URL(url).port or 0)
            head = f"GET /v1/changes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            await stream.send_all(head.encode())
            assert await stream.receive_some()
            # until the server is in the middle of a write that nobody takes
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        await stream.aclose()


async def test_a_port_in_use_is_said_in_one_line(served: Served) -> None:
    port = httpx.URL(served.url).port or 0
    with pytest.raises(OutsideError, match=f"cannot listen at 127.0.0.1:{port} .*http.port"):
        await serve_http(MemoryFace(), TOKEN, port=port)


async def test_nobody_there_is_said_with_what_to_do() -> None:
    async with HttpFace("http://127.0.0.1:1", TOKEN) as client:
        with pytest.raises(UnreachableError, match="p2pmem run"):
            await client.status()
        with pytest.raises(UnreachableError, match="p2pmem run"):
            async with aclosing(cast("Any", client.changes(0))) as events:
                await anext(events)


async def test_something_else_that_answers_is_no_node(served: Served) -> None:
    async def other(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}')

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, other, listeners)
        async with HttpFace(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", TOKEN) as client:
            with pytest.raises(OutsideError, match="no node of this version"):
                await client.status()
        nursery.cancel_scope.cancel()


# SPARQL 1.1 protocol


async def test_sparql_clients_get_standard_results(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    answer = await served.raw.get("/v1/sparql", params={"query": "SELECT * { ?s ?p ?o }"})
    assert answer.headers["content-type"] == "application/sparql-results+json"
    assert answer.headers["p2pmem-truncated"] == "true"
    assert answer.json() == {
        "head": {"vars": ["s", "o"]},
        "results": {
            "bindings": [
                {"s": {"type": "uri", "value": "x:s"}, "o": {"type": "literal", "value": "grün", "xml:lang": "de"}},
                {
                    "o": {
                        "type": "literal",
                        "value": "1",
                        "datatype": "http://www.w3.org/2001/XMLSchema#integer",
                    }
                },
                {"s": {"type": "bnode", "value": "b"}, "o": {"type": "literal", "value": "a\nb"}},
            ]
        },
    }


async def test_sparql_queries_come_in_three_ways(served: Served) -> None:
    await served.client.found(NewGraph("findings"))
    iri = f"did:dkg:context-graph:{GRAPH}"
    ways = [
        await served.raw.get("/v1/sparql", params={"query": "ASK {}", "default-graph-uri": iri}),
        await served.raw.post("/v1/sparql", data={"query": "ASK {}", "graph": GRAPH, "layer": "shared"}),
        await served.raw.post(
            "/v1/sparql?at_least=1", content=b"ASK {}", headers={"content-type": "application/sparql-query"}
        ),
    ]
    assert [way.json() for way in ways] == [{"head": {}, "boolean": True}] * 3
    triples = await served.raw.get("/v1/sparql", params={"query": "CONSTRUCT WHERE { ?s ?p ?o }"})
    assert (triples.headers["content-type"], triples.text) == ("application/n-triples", "<x:s> <x:p> <x:o> .\n")


async def test_bad_sparql_requests_are_refused(served: Served) -> None:
    for parameters in ({}, {"query": "ASK {}"}, {"query": "ASK {}", "update": "x"}, {"query": "A", "at_least": "-"}):
        answer = await served.raw.get("/v1/sparql", params=parameters)
        assert (answer.status_code, code_of(answer)) == (400, "bad-request")
    answer = await served.raw.post("/v1/sparql", content=b"ASK {}", headers={"content-type": "text/plain"})
    assert answer.status_code == 400
    answer = await served.raw.post("/v1/sparql?query=x", data={"query": "ASK {}"})
    assert answer.status_code == 400


# The table


def test_the_documented_table_is_the_table() -> None:
    import p2pmem.api.routes as routes

    assert routes.__doc__ is not None
    rows = [line.split() for line in routes.__doc__.splitlines() if " /v1/" in line and line.startswith("    ")]
    documented = {(verb, path, name) for verb, path, name, *_ in rows}
    assert documented == {(call.verb, call.path, call.name) for call in CALLS.values()}


def test_every_method_of_the_face_has_a_call_and_every_call_a_method() -> None:
    from p2pmem.face import Face

    methods = {name for name in vars(Face) if not name.startswith("_")}
    assert methods == set(CALLS)
    for call in CALLS.values():
        assert call.in_path or call.arguments.keys() == {*call.in_query, *call.in_body, call.file} - {""}
