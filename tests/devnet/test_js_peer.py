"""A member written in JavaScript, from other people's libp2p, CBOR and Ethereum packages, and a node of ours."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_devnet.js_peer import OLD_NODE, PEER
from p2pmem_protocol.keys import Key

from p2pmem.face import NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.gossipsub import open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from tests.node_tools import NodeTools

pytestmark = [pytest.mark.node, pytest.mark.processes, pytest.mark.slow]

JS_KEY = Key(b"\x07" * 32)
Says = trio.MemoryReceiveChannel[Any]
SAID = (
    '<http://example.org/js> <http://example.org/says> "hello" .\n'
    '<http://example.org/js> <http://example.org/writes> "JavaScript" .\n'
)


@asynccontextmanager
async def running_node() -> AsyncIterator[Node]:
    seed = os.urandom(32)
    async with open_node(
        NodeSettings("test"),
        Keyring.of(Key(os.urandom(31) + b"\x01")),
        Libp2pNetwork(identity_seed=seed, listen=("/ip4/127.0.0.1/tcp/0",)),
        Places(),
        Surroundings(),
        topics=partial(open_gossip, identity_seed=seed),
    ) as node:
        yield node


@asynccontextmanager
async def js_peer(
    tools: NodeTools, folder: Path, told: dict[str, str]
) -> AsyncIterator[trio.MemoryReceiveChannel[Any]]:
    """The peer as a process; what it says comes through the channel."""
    send, receive = trio.open_memory_channel[Any](1_000)
    tools.lay_out(folder, OLD_NODE, PEER)
    process = await trio.lowlevel.open_process(
        [tools.program, "--import", "./old_node.mjs", PEER.name, json.dumps(told)],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def listen(stdout: trio.abc.ReceiveStream) -> None:
        rest = b""
        async for data in stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                await send.send(json.loads(line))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, process.stdout)
            yield receive
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()
            await receive.aclose()
            await send.aclose()


async def heard(says: Says, word: str) -> Any:
    """The next line that has this word; another one about an error fails."""
    async for line in says:
        assert "error" not in line, line
        if word in line:
            return line[word]
    raise AssertionError(f"the peer ended before it said {word}")


async def test_a_member_in_javascript_says_hello_and_exchanges_envelopes_both_ways(
    node_tools: NodeTools, tmp_path: Path
) -> None:
    async with running_node() as node:
        member = NewMember(str(JS_KEY.address), ("writer",), "javascript")
        graph = (await node.face.found(NewGraph("open", (member,), access="open"))).graph
        creator, slug = graph.split("/")
        told = {
            "address": node.network.addresses()[0],
            "network": "0x" + node.ledger.network.hex(),
            "creator": creator,
            "slug": slug,
            "secret": "0x" + JS_KEY.secret.hex(),
            "name": "from-js",
            "content": SAID,
        }
        with trio.fail_after(60):
            async with js_peer(node_tools, tmp_path, told) as says:
                # hello: it has checked our credential, and we have its.
                assert await heard(says, "hello") == [str(node.services.signing.default_agent)]
                (session,) = node.services.sessions.all()
                assert {it.agent for it in session.speakers.speakers} == {JS_KEY.address}

                # From JavaScript: admitted by the same rules as everything else.
                shared = bytes.fromhex((await heard(says, "shared"))[2:])
                await node.ledger.until(lambda: node.ledger.raw(shared) is not None)
                (version,) = await node.face.versions(graph, layer=None, min_trust=None)
                assert (version.author, version.name, version.statements) == (str(JS_KEY.address), "from-js", 2)
                assert await node.face.content(graph, version.reference) == SAID.encode()

                # To JavaScript: it has computed id, root and signers for itself.
                await node.face.draft(
                    graph,
                    "from-python",
                    b"<http://example.org/py> <http://example.org/says> 'hello', 'again' .",
                    format="turtle",
                    base=None,
                    subgraph="",
                    replace=False,
                )
                job = await node.face.share(graph, "from-python", ttl_ms=None)
                assert job.state == "succeeded"
                got = await heard(says, "heard")
                assert got["good"]
                (ours,) = [it for it in await node.face.versions(graph, layer=None, min_trust=None) if it != version]
                assert (got["name"], got["root"], got["author"]) == ("from-python", ours.root, ours.author)
                assert got["content"].encode() == await node.face.content(graph, ours.reference)
                assert bytes.fromhex(got["id"][2:]) in node.ledger.named(graph).set
        assert node.penalties.reasons == {}


async def test_a_stranger_in_javascript_is_not_welcome_and_hears_of_an_open_graph_all_the_same(
    node_tools: NodeTools, tmp_path: Path
) -> None:
    async with running_node() as node:
        graph = (await node.face.found(NewGraph("open", access="open"))).graph
        creator, slug = graph.split("/")
        told = {
            "address": node.network.addresses()[0],
            "network": "0x" + node.ledger.network.hex(),
            "creator": creator,
            "slug": slug,
            "secret": "0x" + JS_KEY.secret.hex(),
            "name": "from-js",
            "content": SAID,
        }
        with trio.fail_after(60):
            async with js_peer(node_tools, tmp_path, told) as says:
                said = [await says.receive(), await says.receive()]
                assert {"error": "not welcome"} in said
                assert any("shared" in it for it in said)
                await node.face.draft(
                    graph, "note", b"<a:b> <a:c> 'd' .", format="turtle", base=None, subgraph="", replace=False
                )
                await node.face.share(graph, "note", ttl_ms=None)
                got = await heard(says, "heard")
                assert got["good"]
                assert got["name"] == "note"
                # What the stranger said was not for the set, and is nobody's fault.
                assert len(node.ledger.named(graph).set) == 1
                assert node.penalties.reasons == {}
