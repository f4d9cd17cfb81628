"""Users' queries: what they may see, what they may cost, and what they cannot do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import pyoxigraph as ox
import pytest
import trio
from p2pmem_jobs.blocking import Blocking
from p2pmem_protocol.errors import MisuseError

from p2pmem.store.placement import MetaChange, Placement
from p2pmem.store.projection import OxigraphProjection
from p2pmem.store.query import (
    AnswerKind,
    QueryBusy,
    QueryLimits,
    QueryRefused,
    QuerySyntax,
    QueryTimeout,
    QueryTooLarge,
    StoreBehind,
)
from p2pmem.store.query_process import Request, pack
from p2pmem.store.query_worker import InlineQueries, Queries, QueryWorkers, _Worker, open_query_workers
from p2pmem.store.terms import Iri, Literal, TripleTerm

OPEN, SECRET = "urn:cg:open", "urn:cg:secret"
GRAPHS = {"default_graphs": [OPEN], "named_graphs": ["urn:open:meta"]}


async def fill(projection: OxigraphProjection) -> None:
    public = b'<urn:a> <urn:p> "public" .\n<urn:a> <urn:knows> <urn:b> .\n<urn:b> <urn:knows> <urn:a> .\n'
    secret = b'<urn:a> <urn:p> "secret" .\n<urn:a> <urn:knows> <urn:hidden> .\n<urn:hidden> <urn:p> "secret" .\n'
    await projection.apply(
        1,
        [Placement("urn:open:1", OPEN, public), Placement("urn:secret:1", SECRET, secret)],
        meta=[MetaChange("urn:open:meta", add=public), MetaChange("urn:secret:meta", add=secret)],
    )


@pytest.fixture
async def workers(disk_projection: OxigraphProjection, inline: Blocking, tmp_path: Path) -> AsyncIterator[QueryWorkers]:
    await fill(disk_projection)
    async with open_query_workers(
        disk_projection, tmp_path / "snapshots", inline, workers=1, max_waiting=2, min_interval_ms=1_000_000
    ) as opened:
        yield opened


@pytest.fixture(params=["workers", "inline"])
async def queries(
    request: pytest.FixtureRequest, workers: QueryWorkers, disk_projection: OxigraphProjection
) -> Queries:
    return workers if request.param == "workers" else InlineQueries(disk_projection)


ESCAPES = [
    "SELECT * { GRAPH ?g { ?s ?p ?o } }",
    f"SELECT * {{ GRAPH <{SECRET}> {{ ?s ?p ?o }} }}",
    "SELECT * { GRAPH <urn:secret:meta> { ?s ?p ?o } }",
    f"SELECT * {{ VALUES ?g {{ <{SECRET}> <urn:secret:meta> }} GRAPH ?g {{ ?s ?p ?o }} }}",
    "SELECT * { BIND(IRI('urn:secret:meta') AS ?g) GRAPH ?g { ?s ?p ?o } }",
    "SELECT * { { SELECT * { GRAPH ?g { ?s ?p ?o } } } UNION { ?s ?p ?o } }",
    "SELECT * { ?s ?p ?o OPTIONAL { GRAPH ?g { ?s ?q ?r } } }",
    "SELECT ?s ?o { ?s (!<urn:none>|!^<urn:none>)* ?o }",
    "SELECT ?s ?o { GRAPH ?g { ?s (<urn:p>|<urn:knows>)* ?o } }",
    "SELECT * { <urn:hidden> <urn:p>* ?o . ?s ?p ?o }",
    "SELECT ?x { ?x ?p ?o FILTER EXISTS { GRAPH <urn:secret:meta> { ?a ?b ?x } } }",
    "SELECT * { ?s ?p ?o . LATERAL { GRAPH ?g { ?a ?b ?c } } }",
    "SELECT * { GRAPH ?g {} }",
    "SELECT * { GRAPH ?h { GRAPH ?g { ?s ?p ?o } } }",
    "CONSTRUCT { ?s ?p ?o } { GRAPH ?g { ?s ?p ?o } }",
    "CONSTRUCT WHERE { ?s ?p ?o }",
    "DESCRIBE <urn:a>",
    "DESCRIBE <urn:hidden>",
    "DESCRIBE ?s { ?s ?p ?o }",
    "SELECT * { GRAPH <urn:p2pmem:store:membership> { ?s ?p ?o } }",
    "SELECT (GROUP_CONCAT(STR(?o)) AS ?all) { { ?s ?p ?o } UNION { GRAPH ?g { ?s ?p ?o } } }",
]
REFUSED = [
    f"SELECT * FROM <{SECRET}> {{ ?s ?p ?o }}",
    f"SELECT * FROM NAMED <{SECRET}> {{ GRAPH ?g {{ ?s ?p ?o }} }}",
    "PREFIX s: <urn:cg:> SELECT * #\nfrom s:secret { ?s ?p ?o }",
    "SELECT * { SERVICE <http://127.0.0.1:1/> { ?s ?p ?o } }",
    "SELECT * { SERVICE\nSILENT ?x { ?s ?p ?o } }",
    "ASK { { service<http://127.0.0.1:1/> {} } }",
]


async def test_no_query_sees_a_graph_it_was_not_given(queries: Queries) -> None:
    for sparql in ESCAPES:
        answer = await queries.query(sparql, **GRAPHS)
        for word in (b"secret", b"hidden", b"urn:p2pmem"):
            assert word not in answer.body, sparql


async def test_the_attempts_to_escape_would_succeed_over_an_open_dataset(disk_projection: OxigraphProjection) -> None:
    """The control: the same texts, over a dataset that has the secret, find it."""
    await fill(disk_projection)
    found = 0
    for sparql in ESCAPES:
        answer = await disk_projection.query(sparql, [OPEN, SECRET], ["urn:open:meta", "urn:secret:meta", SECRET])
        found += b"secret" in answer.body or b"hidden" in answer.body
    assert found >= len(ESCAPES) - 1


async def test_a_query_that_reaches_outside_its_dataset_is_refused(queries: Queries) -> None:
    for sparql in REFUSED:
        with pytest.raises(QueryRefused, match="not available"):
            await queries.query(sparql, **GRAPHS)


async def test_an_update_is_not_a_query(queries: Queries) -> None:
    updates = ["CLEAR ALL", "LOAD <http://127.0.0.1:1/>", "INSERT DATA { <urn:x> <urn:x> 1 }", f"DROP GRAPH <{OPEN}>"]
    for sparql in updates:
        with pytest.raises(QuerySyntax):
            await queries.query(sparql, **GRAPHS)
    assert (await queries.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean


async def test_words_inside_strings_names_and_comments_are_no_keywords(queries: Queries) -> None:
    sparql = """
        PREFIX ex: <urn:from/service#> # FROM here SERVICE there ((((
        SELECT ?from ?service { ?from ex:from|<urn:p> ?service
          FILTER(?service != "FROM (((" && ?service != 'SERVICE {{{' && 3 < 5) }
    """
    answer = await queries.query(sparql, **GRAPHS)
    assert answer.variables == ("from", "service")
    assert answer.rows() == ((Iri("urn:a"), Literal("public")),)


async def test_answers_of_every_form(queries: Queries) -> None:
    answer = await queries.query("SELECT ?s ?none { ?s <urn:p> ?o }", **GRAPHS)
    assert (answer.kind, answer.row_count, answer.truncated) == (AnswerKind.SELECT, 1, False)
    assert answer.rows() == ((Iri("urn:a"), None),)
    assert answer.position == 1
    terms = await queries.query(
        'SELECT (1 AS ?a) ("x"@en AS ?b) (STRLANGDIR("y", "ar", "rtl") AS ?c) (TRIPLE(<urn:a>, <urn:p>, "z") AS ?d) {}',
        **GRAPHS,
    )
    assert [term.value for term in terms.rows()[0][:3] if isinstance(term, Literal)] == ["1", "x", "y"]
    assert terms.rows()[0][3] == TripleTerm(Iri("urn:a"), Iri("urn:p"), Literal("z"))
    graph = await queries.query("CONSTRUCT { ?s <urn:says> ?o } { ?s <urn:p> ?o }", **GRAPHS)
    assert graph.n_triples == '<urn:a> <urn:says> "public" .\n'
    assert not (await queries.query("ASK { ?s <urn:none> ?o }", **GRAPHS)).boolean
    with pytest.raises(MisuseError, match="graph query"):
        graph.rows()


async def test_nothing_is_seen_when_no_graph_is_given(queries: Queries) -> None:
    for sparql in ("SELECT * { ?s ?p ?o }", "SELECT * { GRAPH ?g { ?s ?p ?o } }"):
        assert (await queries.query(sparql, default_graphs=[], named_graphs=None)).row_count == 0


async def test_the_stores_own_graphs_cannot_be_given(queries: Queries) -> None:
    with pytest.raises(QueryRefused, match="store's own"):
        await queries.query("ASK { ?s ?p ?o }", default_graphs=["urn:p2pmem:store:state"])
    with pytest.raises(MisuseError, match="IRI"):
        await queries.query("ASK { ?s ?p ?o }", default_graphs=["no iri"])


async def test_a_syntax_error_says_where(queries: Queries) -> None:
    with pytest.raises(QuerySyntax) as caught:
        await queries.query("SELECT *\n{ ?s ?p }", **GRAPHS)
    assert (caught.value.line, caught.value.column) == (2, 10)


FORMS = "after its prefixes a query begins with one of SELECT, ASK, CONSTRUCT, DESCRIBE; "


@pytest.mark.parametrize(
    ("sparql", "says"),
    [
        ("SELEC * {", FORMS + "this one with 'SELEC'"),
        ("# c\nPREFIX ex: <http://e/> INSERT DATA {}", FORMS + "this one with 'INSERT'"),
        ("", FORMS + "there is none of them"),
        ("SELECT * {\n ?s ?p ", "line 2, column 8: something is missing here"),
        ("SELECT * { ?s ?p ?o } LIMIT x", "line 1, column 29: it cannot go on with 'x'"),
        ("ASK { ?s foo:bar ?o }", "line 1, column 10: the prefix foo: is not declared; begin with PREFIX foo: <...>"),
        ("SELECT ?x {\n ex:a ?x ?y }", "line 2, column 2: the prefix ex: is not declared; begin with PREFIX ex: <...>"),
        ("ASK { ?s :p ?o }", "line 1, column 10: the prefix : is not declared; begin with PREFIX : <...>"),
        (
            "PREFIX e: <http://e/> ASK { e:a <b:c> 'd:e \\' f:g', _:h # i:j\n , }",
            "line 2, column 5: something is missing here",
        ),
    ],
)
async def test_a_syntax_error_is_one_line_that_says_what_is_wrong(queries: Queries, sparql: str, says: str) -> None:
    with pytest.raises(QuerySyntax) as caught:
        await queries.query(sparql, **GRAPHS)
    assert str(caught.value) == f"not a SPARQL query: {says}"


async def test_answers_are_cut_at_their_limits_and_say_so(queries: Queries) -> None:
    values = "SELECT * { VALUES ?x { 1 2 3 4 5 } }"
    whole = await queries.query(values, **GRAPHS, limits=QueryLimits(max_rows=5))
    assert (whole.row_count, whole.truncated) == (5, False)
    rows = await queries.query(values, **GRAPHS, limits=QueryLimits(max_rows=4))
    assert (len(rows.rows()), rows.truncated) == (4, True)
    size = await queries.query(values, **GRAPHS, limits=QueryLimits(max_bytes=300))
    assert 0 < size.row_count < 5
    assert size.truncated
    with pytest.raises(QueryTooLarge, match="one row"):
        await queries.query(values, **GRAPHS, limits=QueryLimits(max_bytes=10))


async def test_brackets_beyond_the_limit_are_refused_and_one_fewer_is_not(queries: Queries) -> None:
    for bracket in "{([":
        with pytest.raises(QueryRefused, match="nest deeper"):
            await queries.query("ASK " + bracket * 101, **GRAPHS)
        with pytest.raises(QuerySyntax):
            await queries.query("ASK " + bracket * 100, **GRAPHS)


async def test_a_long_query_is_refused(queries: Queries) -> None:
    with pytest.raises(QueryRefused, match="bytes long"):
        await queries.query("ASK {} #" + "x" * 64 * 1024, **GRAPHS)


BOMBS = {
    "cross product": "SELECT (COUNT(*) AS ?n) { " + " ".join(f"?a{i} ?b{i} ?c{i} ." for i in range(30)) + " }",
    "planner": "ASK { " + " . ".join(f"?v <urn:p{i}> ?o{i}" for i in range(250)) + " }",
}


@pytest.mark.processes
@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_stopped_at_its_deadline_and_the_next_query_is_answered(
    workers: QueryWorkers, name: str
) -> None:
    with pytest.raises(QueryTimeout):
        await workers.query(BOMBS[name], **GRAPHS, limits=QueryLimits(time_ms=300))
    assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean
    assert workers.statistics().timed_out == 1


@pytest.mark.processes
async def test_a_query_that_eats_memory_dies_alone(workers: QueryWorkers) -> None:
    doubling = "x" * 1_000
    binds = f'BIND("{doubling}" AS ?s0) ' + " ".join(f"BIND(CONCAT(?s{i}, ?s{i}) AS ?s{i + 1})" for i in range(24))
    with pytest.raises(QueryTooLarge, match="memory"):
        await workers.query(
            f"SELECT (STRLEN(?s24) AS ?n) {{ {binds} }}",
            **GRAPHS,
            limits=QueryLimits(memory_bytes=500 * 1024 * 1024, time_ms=20_000),
        )
    assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean


@pytest.mark.processes
async def test_a_query_that_crashes_the_engine_dies_alone(workers: QueryWorkers) -> None:
    with pytest.raises((QueryTooLarge, QuerySyntax)):
        await workers.query("ASK { FILTER(" + "!" * 60_000 + "true) }", **GRAPHS, limits=QueryLimits(time_ms=20_000))
    assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean


@pytest.mark.processes
async def test_a_worker_opens_no_socket_even_for_a_service_that_slips_through(
    workers: QueryWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pmem.store.query_worker.screen", lambda sparql: None)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for silent in ("", "SILENT "):
            sparql = f"SELECT * {{ SERVICE {silent}<http://127.0.0.1:{port}/sparql> {{ ?s ?p ?o }} }}"
            try:
                answer = await workers.query(sparql, **GRAPHS)
                assert all(term is None for row in answer.rows() for term in row)
            except QueryRefused:
                assert not silent
        with pytest.raises(BlockingIOError):
            listener.accept()


CONFINED = """
import os, socket, subprocess, sys, threading
from p2pmem.store.confine import forbid_network
assert forbid_network()
said = []
def attempt():
    for act in (socket.socket, socket.socketpair, lambda: os.execv(sys.executable, [sys.executable, "-V"])):
        try:
            act()
            said.append("done")
        except PermissionError:
            said.append("refused")
attempt()
thread = threading.Thread(target=attempt)
thread.start()
thread.join()
open(sys.executable, "rb").close()
print(*said)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_a_confined_process_gets_no_socket_and_no_program_in_any_thread() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run([sys.executable, "-c", CONFINED], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * 6


@pytest.mark.processes
async def test_a_store_of_many_files_is_read_whole_by_a_worker(tmp_path: Path) -> None:
    """RocksDB opens a file when it first reads it, so a worker must be able to."""
    store = ox.Store(tmp_path / "store")
    for number in range(60):
        subject, graph = ox.NamedNode(f"urn:s{number}"), ox.NamedNode(f"urn:g{number % 7}")
        store.extend(
            [
                ox.Quad(subject, ox.NamedNode("urn:p"), ox.Literal(str(number)), graph),
                ox.Quad(subject, ox.NamedNode("urn:p"), ox.Literal(str(number)), ox.DefaultGraph()),
            ]
        )
        store.flush()
    store.backup(tmp_path / "copy")
    files = await trio.to_thread.run_sync(lambda: len(list((tmp_path / "copy").glob("*.sst"))))
    assert files > 30, "else this tests nothing"
    worker = await _Worker.start()
    try:
        graphs = [f"urn:g{number}" for number in range(7)]
        patterns = ("?s ?p ?o", "?s <urn:p> ?o", "?s ?p '9'", "<urn:s9> ?p ?o", "GRAPH ?g { ?s ?p ?o }")
        counts = []
        for pattern in patterns:
            request = Request(
                str(tmp_path / "copy"), f"SELECT * {{ {pattern} }}", graphs, graphs, 1_000, 1_000_000, 9_000, 2**30
            )
            reply, _ = await worker.ask(request)
            assert not reply.error, reply.text
            counts.append(reply.row_count)
        assert counts == [60, 60, 1, 1, 60]
    finally:
        await worker.kill()


@pytest.mark.processes
async def test_an_answer_has_seen_what_was_asked_for_and_otherwise_may_be_a_moment_old(
    workers: QueryWorkers, disk_projection: OxigraphProjection
) -> None:
    count = "SELECT ?s { ?s <urn:later> ?o }"
    assert (await workers.query(count, **GRAPHS)).row_count == 0
    await disk_projection.apply(2, [Placement("urn:open:2", OPEN, b'<urn:a> <urn:later> "x" .\n')])
    stale = await workers.query(count, **GRAPHS)
    assert (stale.position, stale.row_count) == (1, 0)
    fresh = await workers.query(count, **GRAPHS, at_least=2)
    assert (fresh.position, fresh.row_count) == (2, 1)
    assert (await workers.query(count, **GRAPHS, at_least=1)).position == 2
    assert workers.statistics().snapshots == 2


@pytest.mark.processes
async def test_what_was_dropped_is_not_found_once_the_drop_is_asked_for(
    workers: QueryWorkers, disk_projection: OxigraphProjection, tmp_path: Path
) -> None:
    assert (await workers.query("ASK { ?s ?p 'public' }", **GRAPHS)).boolean
    await disk_projection.apply(2, drop=["urn:open:1"])
    assert not (await workers.query("ASK { ?s ?p 'public' }", **GRAPHS, at_least=2)).boolean
    assert len(list((tmp_path / "snapshots").iterdir())) == 1, "the old snapshot is gone"


@pytest.mark.processes
async def test_a_store_that_was_cleared_is_not_answered_for_by_an_old_snapshot(
    workers: QueryWorkers, disk_projection: OxigraphProjection
) -> None:
    assert (await workers.query("ASK { ?s ?p 'public' }", **GRAPHS)).boolean
    await disk_projection.clear()
    answer = await workers.query("ASK { ?s ?p 'public' }", **GRAPHS)
    assert (answer.boolean, answer.position) == (False, 0)


async def test_a_position_the_store_never_reaches_is_an_error_that_says_so(queries: Queries) -> None:
    with pytest.raises(StoreBehind) as caught:
        await queries.query("ASK {}", **GRAPHS, at_least=9, limits=QueryLimits(wait_ms=1))
    assert (caught.value.wanted, caught.value.position) == (9, 1)


@pytest.mark.processes
async def test_a_query_waits_for_the_store_to_come(workers: QueryWorkers, disk_projection: OxigraphProjection) -> None:
    answers: list[int] = []

    async def ask() -> None:
        answers.append((await workers.query("ASK {}", **GRAPHS, at_least=2)).position)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        await disk_projection.apply(2)
    assert answers == [2]


@pytest.mark.processes
async def test_queries_beyond_the_waiting_room_are_turned_away(workers: QueryWorkers) -> None:
    outcomes: list[type[Exception]] = []

    async def ask(limits: QueryLimits) -> None:
        try:
            await workers.query(BOMBS["cross product"], **GRAPHS, limits=limits)
        except (QueryBusy, QueryTimeout) as error:
            outcomes.append(type(error))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask, QueryLimits(time_ms=1_000, wait_ms=100))
    assert sorted(outcome.__name__ for outcome in outcomes) == ["QueryBusy"] * 3 + ["QueryTimeout"]


@pytest.mark.processes
async def test_a_cancelled_query_stops_its_worker_and_leaves_no_snapshot_behind(
    disk_projection: OxigraphProjection, inline: Blocking, tmp_path: Path
) -> None:
    await fill(disk_projection)
    directory = tmp_path / "mine"
    async with open_query_workers(disk_projection, directory, inline, workers=1, min_interval_ms=1) as workers:
        assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: workers.query(BOMBS["cross product"], **GRAPHS))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean
        assert len(list(directory.iterdir())) == 1
    assert list(directory.iterdir()) == []


async def test_a_store_in_memory_has_no_workers(
    projection: OxigraphProjection, inline: Blocking, tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match="InlineQueries"):
        async with open_query_workers(projection, tmp_path / "s", inline):
            pass


def test_limits_that_make_no_sense_are_refused() -> None:
    for bad in ({"time_ms": 0}, {"max_rows": -1}, {"max_bytes": 1 << 40}):
        with pytest.raises(MisuseError):
            QueryLimits(**bad)


def start_in_a_thread_that_ends(command: list[str]) -> subprocess.Popen[bytes]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return started[0]


@pytest.mark.processes
def test_a_worker_outlives_the_thread_that_started_it_and_ends_with_its_stdin() -> None:
    with start_in_a_thread_that_ends([sys.executable, "-m", "p2pmem.store.query_process"]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(9) == pack(b"ready")
        process.stdin.write(
            pack(json.dumps(asdict(Request("/nowhere", "ASK {}", [], [], 1, 1, 1_000, 2**30))).encode())
        )
        process.stdin.flush()
        assert process.stdout.read(4) != b""
        process.stdin.close()
        assert process.wait(timeout=10) in (0, -signal.SIGKILL)


@pytest.mark.processes
async def test_a_worker_that_died_while_it_had_nothing_to_do_is_replaced(workers: QueryWorkers) -> None:
    assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean
    process = workers._idle[0]._process
    process.kill()
    await process.wait()
    assert (await workers.query("ASK { ?s ?p ?o }", **GRAPHS)).boolean
    assert workers.statistics().crashed == 0
