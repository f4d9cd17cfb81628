"""js-libp2p, another implementation by other people, and our host understand each other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_devnet.js_peer import OLD_NODE

from p2pmem.net.gossipsub import open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import PeerId
from p2pmem.net.topics import Verdict
from tests.node_tools import NodeTools

from .helpers import ask, echo, until

pytestmark = [pytest.mark.node, pytest.mark.processes, pytest.mark.slow]
HERE = Path(__file__).parent


@pytest.fixture
def folder(node_tools: NodeTools, tmp_path: Path) -> Path:
    return node_tools.lay_out(tmp_path, OLD_NODE, HERE / "js_peer.mjs")


@asynccontextmanager
async def js_peer(node: str, folder: Path, address: str) -> AsyncIterator[trio.MemoryReceiveChannel[dict[str, Any]]]:
    """The other implementation as a process; what it says comes through the channel."""
    send, receive = trio.open_memory_channel[dict[str, Any]](100)

    async def read_lines() -> None:
        rest = b""
        assert process.stdout is not None
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                await send.send(json.loads(line))

    process = await trio.lowlevel.open_process(
        [node, "--import", "./old_node.mjs", "js_peer.mjs", address],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_lines)
        try:
            yield receive
        finally:
            nursery.cancel_scope.cancel()
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                assert process.stdin is not None
                assert process.stdout is not None
                await process.stdin.aclose()
                await process.stdout.aclose()
                await receive.aclose()


async def test_streams_and_gossip_with_js_libp2p(node_tools: NodeTools, folder: Path) -> None:
    seed, got = os.urandom(32), list[bytes]()

    async def take(peer: PeerId, data: bytes) -> Verdict:
        got.append(data)
        return Verdict.ACCEPT

    async with (
        Libp2pNetwork(identity_seed=seed, listen=("/ip4/127.0.0.1/tcp/0",)) as ours,
        open_gossip(ours, identity_seed=seed) as topics,
    ):
        ours.set_handler("/echo/1", echo)
        await topics.subscribe("open", take)
        with trio.fail_after(60):
            async with js_peer(node_tools.program, folder, ours.addresses()[0]) as says:
                address = (await says.receive())["address"]
                peer = PeerId(address.rpartition("/p2p/")[2])
                # It dialled us, and its megabyte came back whole.
                assert await says.receive() == {"echoed": 1_000_000, "same": True}
                # A stream of ours over the connection it made; then over one we make.
                assert await ask(ours, peer, os.urandom(10) + b"over theirs") != b""
                await ours.disconnect(peer, "to dial it ourselves")
                await ours.connect(address, expected=None)
                content = os.urandom(200_000)
                assert await ask(ours, peer, content) == content
                await until(lambda: bool(got) and bool(topics.neighbours("open")))
                assert got[0] == b"from js"
                await topics.publish("open", b"from us")
                assert await says.receive() == {"heard": "from us", "size": 7}
                await topics.publish("open", b"x" * 300_000)
                assert (await says.receive())["size"] == 300_000
        assert ours.statistics().refused == {}
