"""kill -9 at any moment: nothing that was acknowledged is lost, and the projections are what a rebuild would make."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_protocol.names import AssetKey

from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, open_node
from p2pmem.recall.text_index import open_text_index
from p2pmem.services.projector import Projector
from p2pmem.store.plan import STATE
from p2pmem.store.projection import OxigraphProjection, open_projection
from tests.p2pmem.ledger.victim_node import KEY, graph_name, places, surroundings

SEED = int(os.environ.get("P2PMEM_FIRST_SEED", "1"))
ROOT = Path(__file__).parents[3]


async def run_and_kill(directory: Path, first: int, after_acks: int, pause_s: float) -> list[int]:
    """What it had acknowledged when it was killed: so many, and what came in the moment until then."""
    path = os.pathsep.join(str(ROOT / name) for name in (".", "protocol", "jobs", "devnet"))
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.p2pmem.ledger.victim_node", str(directory), str(first)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    said = b""
    try:
        with trio.fail_after(120):
            while said.count(b"\n") < after_acks:
                piece = await process.stdout.receive_some()
                assert piece, "the victim ended by itself"
                said += bytes(piece)
            await trio.sleep(pause_s)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    while piece := await process.stdout.receive_some():
        said += bytes(piece)
    *whole, _ = said.split(b"\n")
    return [int(line) for line in whole]


def quads_of(store: OxigraphProjection) -> set[str]:
    return {str(quad) for quad in store._store if quad.graph_name != STATE}


async def check(node: Node, acknowledged: list[int]) -> None:
    ledger, graph = node.ledger, node.ledger.named(graph_name())
    await node.services.projector.described(ledger.position)
    for number in acknowledged:
        asset = graph.set.asset(AssetKey(KEY.address, f"n{number}"))
        assert asset is not None, f"n{number} was acknowledged and is lost"
        assert bool(graph.set.retracts(asset.key)) == (number % 5 == 0)
    shown = {it.name for it in await node.face.versions(graph_name(), layer=None, min_trust=None)}
    assert {f"n{number}" for number in acknowledged if number % 5} <= shown
    succeeded = ledger.database.read(
        lambda connection: connection.execute("SELECT count(*) FROM job WHERE state = 'succeeded'").fetchone()[0]
    )
    assert succeeded >= len(acknowledged)
    await node.store.check()


async def check_rebuilt(node: Node) -> None:
    blocking = surroundings().blocking
    async with open_projection(None, blocking) as store, open_text_index(None, blocking) as text:
        rebuilt = Projector(node.ledger, store, text, Keyring.of(KEY), now_ms=node.ledger.clock.now_ms)
        await rebuilt.rebuild()
        await rebuilt.describer.write()
        assert quads_of(node.store) == quads_of(store)
        assert sorted(text.placed()) == sorted(store.placed())


async def survive(directory: Path, kills: int) -> None:
    chance = random.Random(SEED)
    acknowledged: list[int] = []
    first = 0
    for number in range(kills):
        came = await run_and_kill(directory, first, chance.randint(1, 40), chance.random() * 0.05)
        acknowledged += came
        first = max(acknowledged) + 100
        network = MemoryFabric(seed=1).network("victim")
        opened = open_node(NodeSettings("kill"), Keyring.of(KEY), network, places(directory), surroundings())
        async with opened as node:
            await check(node, acknowledged)
            if number % 5 == kills % 5 or number == kills - 1:
                await check_rebuilt(node)


async def test_a_few_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    await survive(tmp_path, 6)


@pytest.mark.slow
async def test_many_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    await survive(tmp_path, int(os.environ.get("P2PMEM_KILLS", "30")))
