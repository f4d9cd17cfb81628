"""A disk that is really full, for a while, ends no node: what is made from the ledger waits, and goes on by itself."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from p2pmem_devnet.fleet import make_home
from p2pmem_jobs import DiskError, ThreadBlocking
from p2pmem_protocol.errors import P2pmemError

from p2pmem.api.client import HttpFace
from p2pmem.config import load
from p2pmem.face import NewGraph
from p2pmem.home import Home, read_token
from p2pmem.home_node import CALLS_END_S, run_node
from p2pmem.keyring import Keyring
from p2pmem.ledger import audit
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import DRAIN_S, Node, NodeSettings, Places, Surroundings, open_node
from p2pmem.services.disk_watch import free_bytes_of
from p2pmem.store.opening import destroy_projection
from tests.p2pmem.ledger.victim_node import KEY

SIZE_MB = 24
SHARES = 150
FILLINGS_MAX = 1_000
ROOM_TO_START_BYTES = 1024 * 1024
COUNT = "SELECT (COUNT(DISTINCT ?s) AS ?n) { ?s <urn:says> ?o }"
DESCRIBED = """
    PREFIX dkg: <http://dkg.io/ontology/>
    SELECT ?name { GRAPH ?g { ?a dkg:assertionName ?name } }
"""


class SmallDisk:
    """A file system of its own, which is filled and emptied again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "filling"

    def fill(self, leaving_bytes: int = 0) -> None:
        """Fill it to the last page but for so many bytes, though a node that runs on it writes meanwhile."""
        for _ in range(FILLINGS_MAX):
            too_many_bytes = free_bytes_of(self.path) - leaving_bytes
            if too_many_bytes == 0:
                return
            size_bytes = self._filling.stat().st_size if self._filling.exists() else 0
            with self._filling.open("ab") as file:
                if too_many_bytes < 0:
                    file.truncate(size_bytes + too_many_bytes)
                    continue
                try:
                    os.posix_fallocate(file.fileno(), size_bytes, too_many_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        raise AssertionError(f"{free_bytes_of(self.path)} bytes are free, and not {leaving_bytes}, time and again")

    def empty(self) -> None:
        self._filling.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=700", "p2pmem-test", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of its own can be mounted here ({error})")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


@asynccontextmanager
async def opened(apart: Path, disk: SmallDisk) -> AsyncIterator[Node]:
    """A node whose projections are on the small disk, and its ledger on another one."""
    places = Places(apart / "ledger.sqlite", disk.path / "store", disk.path / "text.sqlite", disk.path / "snapshots")
    surroundings = Surroundings(blocking=ThreadBlocking())
    network = MemoryFabric(seed=1).network("ada")
    async with open_node(NodeSettings("full"), Keyring.of(KEY), network, places, surroundings) as node:
        yield node


def text_of(number: int) -> bytes:
    """Long enough that a few do not fit into what files have left in their last pages."""
    return f'<urn:{number}> <urn:says> "word{number} {"of many, " * 300}" .\n'.encode()


async def share(node: Node, graph: str, number: int) -> None:
    await node.face.share_data(graph, f"n{number}", text_of(number), format="nt", base=None, subgraph="", ttl_ms=None)


async def count(node: Node, graph: str) -> int:
    answer = await node.face.query(COUNT, graph=graph, layer=None, min_trust=None, at_least=0)
    ((found,),) = answer.rows
    return int((found or "").split('"')[1])


async def recalled(node: Node, number: int) -> int:
    answer = await node.face.recall(f"word{number}", graph=None, min_trust=None, min_m=0, limit=10)
    return len(answer.hits)


async def until_refused(node: Node, graph: str, numbers: Iterator[int]) -> int:
    """Share until the disk refuses; how many shares it took."""
    shared = 0
    while not node.services.projector.refusals():
        await share(node, graph, next(numbers))
        shared += 1
        await trio.lowlevel.checkpoint()
    return shared


def shown(caplog: pytest.LogCaptureFixture, end: str) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.getMessage().endswith(end)]


@pytest.mark.slow
@pytest.mark.processes
async def test_projections_outlast_a_disk_that_is_really_full_and_go_on_by_themselves(
    tmp_path: Path, small_disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    numbers = iter(range(10_000))
    async with opened(tmp_path, small_disk) as node:
        graph = (await node.face.found(NewGraph("full"))).graph
        for _ in range(3):
            await share(node, graph, next(numbers))
        assert await count(node, graph) == 3
        for full in range(1, 3):
            small_disk.fill()
            await until_refused(node, graph, numbers)
            first = next(numbers)
            await share(node, graph, first)  # the ledger takes it
            assert any("the disk refuses" in it for it in (await node.face.status()).warnings)
            assert await recalled(node, 0) == 1  # reads go on
            with pytest.raises(DiskError, match="free some space"):
                await count(node, graph)
            with pytest.raises(DiskError, match="free some space"):
                await node.face.compact()
            small_disk.empty()
            with trio.fail_after(60):
                await node.services.projector.described(node.ledger.position)
            assert not any("the disk refuses" in it for it in (await node.face.status()).warnings)
            assert await count(node, graph) == first + 1
            assert await recalled(node, first) == 1
            answer = await node.face.query(DESCRIBED, graph=graph, layer=None, min_trust=None, at_least=0)
            assert len(answer.rows) == first + 1
            await node.store.check()
            begun, ended = shown(caplog, ".refused"), shown(caplog, ".refuses_no_more")
            assert len(begun) == len(ended)
            assert full <= len(begun) <= 2 * full, begun


@pytest.mark.slow
@pytest.mark.processes
async def test_a_node_stops_while_its_disk_is_full_and_starts_while_a_rebuild_finds_no_room(
    tmp_path: Path, small_disk: SmallDisk
) -> None:
    numbers = iter(range(10_000))
    async with opened(tmp_path, small_disk) as node:
        graph = (await node.face.found(NewGraph("full"))).graph
        for _ in range(SHARES):
            await share(node, graph, next(numbers))
        await node.services.projector.described(node.ledger.position)
        small_disk.fill()
        await until_refused(node, graph, numbers)
        stopping_s = trio.current_time()
    assert trio.current_time() - stopping_s < DRAIN_S
    with pytest.raises(DiskError, match="free some space"):
        async with opened(tmp_path, small_disk):
            pass
    small_disk.empty()
    destroy_projection(small_disk.path / "store")
    small_disk.fill(leaving_bytes=ROOM_TO_START_BYTES)
    async with opened(tmp_path, small_disk) as node:  # everything is to be made anew
        assert node.services.projector.position == 0
        assert node.services.projector.refusals()
        shared = next(numbers)
        await share(node, graph, shared)
        small_disk.empty()
        with trio.fail_after(60):
            await node.services.projector.described(node.ledger.position)
        assert await count(node, graph) == shared + 1
        assert await recalled(node, 0) == await recalled(node, shared) == 1
        await node.store.check()


@pytest.mark.slow
@pytest.mark.processes
async def test_a_node_with_http_stops_though_a_call_waits_for_room_on_the_disk(
    tmp_path: Path, small_disk: SmallDisk
) -> None:
    home = Home.find(str(small_disk.path / "home"))
    make_home(home, "ada", "full")
    stop = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            url: str = await nursery.start(partial(run_node, home, load(home.config_file), stop=stop))
            async with HttpFace(url, read_token(home)) as face:
                graph = (await face.found(NewGraph("full"))).graph
                small_disk.fill()

                async def share_while_full() -> None:
                    with suppress(P2pmemError):
                        await face.share_data(graph, "n", text_of(1), format="nt", base=None, subgraph="", ttl_ms=None)

                with trio.move_on_after(15):
                    nursery.start_soon(share_while_full)
                    while not any("the disk refuses" in it for it in (await face.status()).warnings):
                        await trio.lowlevel.checkpoint()
                stop.set()
                stopping_s = trio.current_time()
    assert trio.current_time() - stopping_s < CALLS_END_S + DRAIN_S + 5


@pytest.mark.slow
@pytest.mark.processes
async def test_reading_goes_on_while_the_disk_of_the_ledger_is_really_full(
    tmp_path: Path, small_disk: SmallDisk
) -> None:
    disk = small_disk.path
    places = Places(disk / "ledger.sqlite", tmp_path / "store", tmp_path / "text.sqlite", tmp_path / "snapshots")
    network = MemoryFabric(seed=1).network("ada")
    settings, surroundings = NodeSettings("full"), Surroundings(blocking=ThreadBlocking())
    async with open_node(settings, Keyring.of(KEY), network, places, surroundings) as node:
        graph = (await node.face.found(NewGraph("full"))).graph
        await share(node, graph, 0)
        small_disk.fill()
        with trio.fail_after(60):
            while not node.services.auditing.waiting:  # until its last page is full
                assert await recalled(node, 0) == 1
            assert [await recalled(node, 0) for _ in range(20)] == [1] * 20
            assert await count(node, graph) == 1
        waiting = node.services.auditing.waiting
        assert waiting >= 20
        assert any(f"{waiting} answers of recall not in the audit" in it for it in (await node.face.status()).warnings)
        with pytest.raises(DiskError):
            await share(node, graph, 1)
        small_disk.empty()
        with trio.fail_after(60):
            while node.services.auditing.waiting:
                await trio.lowlevel.checkpoint()
        entries = node.ledger.database.read(lambda connection: audit.read(connection, 0, 10_000))
        assert sum(entry.what == "recall" for entry in entries) >= waiting
        assert node.ledger.database.read(audit.broken_at) is None
