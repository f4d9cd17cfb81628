"""The importer with its worker processes: files, limits, deaths, cancellation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import p2pmem_protocol
import pyoxigraph
import pytest
import sha3
import trio
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import Reason

from p2pmem.importing import importer as importer_module, wire
from p2pmem.importing.errors import (
    EmptyInputError,
    EncodingError,
    InputRefusedError,
    InputSyntaxError,
    InputTooHardError,
    InputTooLargeError,
    NoSuchFormatError,
    NoSuchInputError,
    NotAFileError,
    RemoteContextError,
    WorkerUnavailableError,
    XmlEntityError,
)
from p2pmem.importing.formats import Format
from p2pmem.importing.importer import MIB, Importer, ImportLimits, InlineImporter
from p2pmem.importing.parsing import Request

pytestmark = pytest.mark.processes

REPO = Path(__file__).parents[3]
ONE = b'<http://example.org/s> <http://example.org/p> "x"@en .\n'
SMALL = ImportLimits(input_bytes=4 * MIB, memory_bytes=400 * MIB, cpu_seconds=1, wall_seconds=30)

NESTED_JSON_LD = b'{"@context": {"a": "http://a/a"}, "a": ' * 5_000 + b"1" + b"}" * 5_000
NESTED_N_QUADS = b"<a:s> <a:p> " + b"<<( <a:s> <a:p> " * 25_000 + b"<a:o>" + b" )>>" * 25_000 + b" .\n"
RDF = b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://e/">'
SLOW_XML = RDF + b"<rdf:Description><e:p>" * 60_000 + b"</e:p></rdf:Description>" * 60_000 + b"</rdf:RDF>"
GROWING_XML = (
    b'<!DOCTYPE rdf:RDF [<!ENTITY a "' + b"a" * 4_000 + b'">]>'
    + RDF + b"<rdf:Description><e:p>" + b"&a;" * 600_000 + b"</e:p></rdf:Description></rdf:RDF>"
)  # fmt: skip


@pytest.fixture
async def importer() -> AsyncIterator[Importer]:
    async with Importer(SMALL) as opened:
        yield opened
    assert children() == []


def children() -> list[int]:
    """The workers that this process started and that have not ended. (Others' tests leave other children.)"""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return [pid for pid in found if b"/importing/worker.py" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_file_is_read_by_its_extension(importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "a.ttl"
    path.write_bytes(b'@prefix e: <http://example.org/> . e:s e:p "x"@EN .')
    for source in (path, str(path)):
        said = await importer.load(source)
        assert said.content.data == ONE
        assert said.format is Format.TURTLE


async def test_bytes_are_read_by_a_name_or_a_format_or_their_first_words(importer: Importer) -> None:
    assert (await importer.load(ONE, format="nt")).format is Format.N_TRIPLES
    assert (await importer.load(ONE, format=Format.TURTLE)).format is Format.TURTLE
    assert (await importer.load(ONE, name="x.nq")).format is Format.N_QUADS
    assert (await importer.load(ONE)).format is Format.TRIG
    with pytest.raises(NoSuchFormatError):
        await importer.load(ONE, format="csv")


async def test_one_warm_worker_serves_what_comes_one_after_the_other_also_after_refusals(importer: Importer) -> None:
    for _ in range(5):
        await importer.load(ONE)
        with pytest.raises(InputSyntaxError):
            await importer.load(b"<a:s> <a:p> nonsense .")
        with pytest.raises(EmptyInputError):
            await importer.load(b"# words")
    now = importer.statistics()
    assert (now.started, now.imported, now.refused, now.died) == (1, 5, 10, 0)
    assert (now.idle, now.busy, now.waiting) == (1, 0, 0)


async def test_a_worker_says_what_this_process_would_say(importer: Importer, shared_data: Path) -> None:
    async with InlineImporter(SMALL) as inline:
        for path in sorted((shared_data / "rdf").iterdir()):
            assert await importer.load(path, base="urn:x:") == await inline.load(path, base="urn:x:")


async def test_errors_keep_their_type_and_fields_across_the_processes(importer: Importer) -> None:
    with pytest.raises(InputSyntaxError) as syntax:
        await importer.load(ONE + b"<a:s> <a:p> nonsense .", format="nt", name="a.nt")
    assert syntax.value.line == 2
    with pytest.raises(InputRefusedError) as refused:
        await importer.load(b'<a:s> <http://dkg.io/ontology/trustLevel> "4" .')
    assert refused.value.reason is Reason.CONTENT_RESERVED_PREDICATE


async def test_an_error_at_the_end_leaves_nothing(importer: Importer) -> None:
    good = b"".join(b'<a:s> <a:p> "%d" .\n' % n for n in range(5_000))
    with pytest.raises(InputSyntaxError) as caught:
        await importer.load(good + b"<a:s> <a:p>", format="nt")
    assert caught.value.line == 5_001
    assert (await importer.load(ONE)).content.data == ONE


async def test_what_is_no_file_is_refused_in_words(importer: Importer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ttl")
    (tmp_path / "empty.ttl").touch()
    (tmp_path / "loop.ttl").symlink_to(tmp_path / "loop.ttl")
    for path, error, words in (
        (tmp_path / "missing.ttl", NoSuchInputError, "no such file"),
        (tmp_path, NotAFileError, "a directory"),
        (tmp_path / "pipe.ttl", NotAFileError, "not a regular file"),
        (Path("/dev/zero"), NotAFileError, "not a regular file"),
        (tmp_path / "empty.ttl", EmptyInputError, "empty"),
        (tmp_path / "loop.ttl", NoSuchInputError, "cannot be read"),
        (tmp_path / "nul\0.ttl", NoSuchInputError, "cannot be read"),
        (tmp_path / ("x" * 300), NoSuchInputError, "cannot be read"),
    ):
        with pytest.raises(error, match=words):
            await importer.load(path)


async def test_a_file_over_the_limit_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "large.nt"
    with path.open("wb") as file:
        file.truncate(2 * MIB)
    async with Importer(ImportLimits(input_bytes=MIB)) as importer:
        for source in (path, bytes(2 * MIB)):
            with pytest.raises(InputTooLargeError, match=str(MIB)):
                await importer.load(source)
        assert importer.statistics().started == 0


@pytest.mark.parametrize(
    ("data", "form", "words"),
    [
        pytest.param(NESTED_JSON_LD, "jsonld", "memory|too deep", id="nested JSON-LD"),
        pytest.param(NESTED_N_QUADS, "nq", "too deep", id="nested triple terms"),
        pytest.param(GROWING_XML, "rdf", "400 MiB of memory", id="XML that grows"),
        pytest.param(SLOW_XML, "rdf", "1 s of processor time", id="XML that takes for ever"),
    ],
)
async def test_what_kills_or_holds_the_parser_is_refused_and_the_next_file_is_read(
    importer: Importer, data: bytes, form: str, words: str
) -> None:
    with pytest.raises(InputTooHardError, match=words):
        await importer.load(data, format=form)
    assert importer.statistics().idle == 0
    assert (await importer.load(ONE)).content.data == ONE
    assert importer.statistics().died == 1


async def test_a_worker_that_does_not_answer_in_time_is_ended() -> None:
    async with Importer(ImportLimits(wall_seconds=0.3)) as importer:
        with pytest.raises(InputTooHardError, match=r"more than 0\.3 s"):
            await importer.load(SLOW_XML, format="rdf")
        assert children() == []


async def test_a_warm_worker_that_died_meanwhile_is_replaced(importer: Importer) -> None:
    await importer.load(ONE)
    (pid,) = children()
    os.kill(pid, 9)
    await trio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (await importer.load(ONE)).content.data == ONE
    assert importer.statistics().started == 2


async def test_a_worker_is_kept_however_large_the_node_itself_is(importer: Importer) -> None:
    """A process inherits the peak of its parent; that must not count as its own."""
    held = b"x" * (2 * ImportLimits().keep_bytes)
    await importer.load(ONE)
    assert importer.statistics().idle == 1
    del held


async def test_a_worker_that_grew_is_not_kept() -> None:
    async with Importer(ImportLimits(keep_bytes=MIB)) as importer:
        await importer.load(ONE)
        assert importer.statistics().idle == 0
        assert children() == []


async def test_cancelling_ends_the_worker_at_once(importer: Importer) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_load_slowly, importer)
        while not children():
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert children() == []
    assert importer.statistics().busy == 0
    assert (await importer.load(ONE)).content.data == ONE


async def _load_slowly(importer: Importer) -> None:
    await importer.load(SLOW_XML, format="rdf")


async def test_at_most_so_many_workers_run_at_once() -> None:
    most = 0

    async def load_and_look(importer: Importer) -> None:
        nonlocal most
        await importer.load(ONE)
        most = max(most, len(children()))

    async with Importer(ImportLimits(workers=2, idle=2)) as importer:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(load_and_look, importer)
        assert importer.statistics().imported == 8
        assert importer.statistics().started == 2
    assert most <= 2


async def test_nothing_is_fetched(importer: Importer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(RemoteContextError, match=address):
            await importer.load(f'{{"@context": "{address}", "a": "x"}}'.encode(), format="jsonld")
        entity = f'<!DOCTYPE rdf:RDF SYSTEM "{address}" [<!ENTITY a SYSTEM "{address}">]>'
        with pytest.raises(XmlEntityError):
            await importer.load(entity.encode() + RDF + b"&a;</rdf:RDF>", format="rdf")
        await importer.load(f'@base <{address}> . <s> <p> "x" .'.encode())
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_a_process_that_cannot_be_started_is_an_outside_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with Importer() as importer:
        with pytest.raises(WorkerUnavailableError, match="retry"):
            await importer.load(ONE)
        assert importer.statistics().busy == 0


async def test_a_worker_that_speaks_otherwise_counts_as_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("print('x' * 100_000)")
    monkeypatch.setattr(importer_module, "__file__", str(tmp_path / "importer.py"))
    async with Importer() as importer:
        with pytest.raises(InputTooHardError, match="a frame over the limit"):
            await importer.load(ONE)
        assert children() == []


async def test_the_inline_importer_has_the_same_face(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path = tmp_path / "a.nt"
    path.write_bytes(ONE)
    async with InlineImporter(ImportLimits(input_bytes=len(ONE))) as inline:
        assert (await inline.load(path)).content.data == ONE
        assert (await inline.load(ONE)).content.data == ONE
        with pytest.raises(InputTooLargeError):
            await inline.load(ONE * 2)
        with pytest.raises(EncodingError):
            await inline.load(b"\x1f\x8b")
        with pytest.raises(NotAFileError):
            await inline.load(tmp_path)


def in_a_worker(script: str) -> str:
    """What a script prints in a process that was started as a worker is."""
    paths = {REPO, Path(p2pmem_protocol.__file__).parents[1], Path(pyoxigraph.__file__).parents[1]}
    paths.add(Path(sha3.__file__).parent)
    code = f"import sys\nsys.path[:0] = {[str(path) for path in paths]!r}\n{script}"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return run.stdout


def test_a_worker_can_open_no_file_no_socket_and_no_process() -> None:
    script = """
import os, socket
from p2pmem.importing import worker
worker._give_up(1 << 30)
for attempt in (lambda: open("/etc/passwd"), socket.socket, os.pipe, lambda: open("/dev/null", "w")):
    try:
        attempt()
    except OSError:
        print("refused")
    else:
        print("ALLOWED")
"""
    assert in_a_worker(script).split() == ["refused"] * 4


def test_a_worker_loads_neither_event_loop_nor_sockets_nor_keys() -> None:
    script = """
import p2pmem.importing.wire, p2pmem.importing.worker, p2pmem.importing.parsing
print(*sys.modules)
"""
    loaded = {name.partition(".")[0] for name in in_a_worker(script).split()}
    assert "pyoxigraph" in loaded
    assert not loaded & {"trio", "asyncio", "socket", "ssl", "coincurve", "eth_account", "web3", "libp2p", "sqlite3"}


@given(head=st.binary(max_size=80), payload=st.binary(max_size=20))
def test_an_answer_that_no_worker_gives_is_not_understood(head: bytes, payload: bytes) -> None:
    with pytest.raises(wire.BadFrameError):
        wire.parse_answer(head, payload)


@pytest.mark.parametrize(
    "head",
    [
        b'{"line_count": 2, "format": "TURTLE", "base": "", "warnings": [], "resident_bytes": 1}',
        b'{"line_count": 0, "format": "TURTLE", "base": "", "warnings": [], "resident_bytes": 1}',
        b'{"line_count": 1, "format": "NONE", "base": "", "warnings": [], "resident_bytes": 1}',
        b'{"failure": {"error": "ImportError", "text": ""}}',
        b'{"failure": {"error": "P2pmemError", "text": ""}}',
        b'{"failure": {"error": "InputRefusedError", "text": "", "reason": 9999}}',
        b'{"failure": {"error": "InputRefusedError", "text": ""}}',
        b'{"failure": []}',
    ],
)
def test_an_answer_that_does_not_fit_is_not_understood(head: bytes) -> None:
    with pytest.raises(wire.BadFrameError):
        wire.parse_answer(head, ONE)


def test_a_frame_over_its_limits_is_not_read() -> None:
    with pytest.raises(wire.BadFrameError):
        wire.lengths(b"\xff" * 8, 100)
    with pytest.raises(wire.BadFrameError):
        wire.lengths(b"\0\0\0\1\0\0\0\x65", 100)
    with pytest.raises(wire.BadFrameError):
        wire.frame({"x": "x" * wire.HEAD_BYTES_MAX}, b"")


@pytest.mark.parametrize("form", [None, *Format])
def test_a_request_arrives_as_it_was_sent(form: Format | None) -> None:
    request = Request("naïve.ttl", form, "urn:x", True)
    sent = wire.frame(wire.request_head(request, 7), b"12345")
    head_bytes, payload_bytes = wire.lengths(sent[:8], 5)
    assert payload_bytes == 5
    assert len(sent) == 8 + head_bytes
    assert wire.parse_request(sent[8:]) == (request, 7)
