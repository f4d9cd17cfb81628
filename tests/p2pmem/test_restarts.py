"""Nodes of real homes that stop and come back, all of them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from p2pmem_devnet.fleet import make_home
from p2pmem_protocol.errors import MisuseError

from p2pmem.api.client import HttpFace
from p2pmem.config import load
from p2pmem.face import NewGraph
from p2pmem.home import Home, read_secret
from p2pmem.home_node import run_node
from p2pmem.kept_port import keep_port, read_port


@pytest.fixture
def homes(tmp_path: Path) -> list[Home]:
    made = [Home.find(str(tmp_path / name)) for name in ("ada", "bo")]
    for home in made:
        make_home(home, home.data_dir.name, "restarts")
    return made


@asynccontextmanager
async def running(*homes: Home) -> AsyncIterator[list[HttpFace]]:
    """The nodes of these homes, over libp2p and HTTP on loopback."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        faces = []
        stop = trio.Event()
        for home in homes:
            url: str = await nursery.start(partial(run_node, home, load(home.config_file), stop=stop))
            faces.append(await stack.enter_async_context(HttpFace(url, read_secret(home.token_file).decode())))
        yield faces
        stop.set()


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(30):
        while not await what():
            await trio.lowlevel.checkpoint()


async def test_two_that_were_both_stopped_meet_again_where_they_were(homes: list[Home]) -> None:
    async with running(*homes) as (ada, bo):
        made = await ada.found(NewGraph("lab"))
        await bo.join(await ada.invite(made.graph, roles=("writer",), uses=1, life_ms=60_000), label="bo")
    ports = [read_port(home.port_file) for home in homes]
    assert all(ports)
    async with running(*homes) as (_, bo):

        async def is_connected() -> bool:
            return bool(await bo.peers())

        await until(is_connected)
    assert [read_port(home.port_file) for home in homes] == ports


async def test_a_port_that_somebody_else_has_by_now_is_given_up_for_another(homes: list[Home]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keep_port(homes[0].port_file, [f"/ip4/127.0.0.1/tcp/{port}/p2p/x"])
        async with running(homes[0]):
            assert read_port(homes[0].port_file) not in (0, port)


async def test_who_finds_nobody_at_the_known_addresses_says_so_and_what_helps(homes: list[Home]) -> None:
    async with running(*homes) as (ada, bo):
        made = await ada.found(NewGraph("lab"))
        await bo.join(await ada.invite(made.graph, roles=("writer",), uses=1, life_ms=60_000), label="bo")
    async with running(homes[1]) as (bo,):

        async def is_told() -> bool:
            return any(
                "no answer from the one known peer at /ip4/127.0.0.1/tcp/" in warning
                for warning in (await bo.status()).warnings
            )

        await until(is_told)


@pytest.mark.parametrize("text", [b"", b"x", b"-4", b"65536", b"99999999999999999999", b"\xff\xfe", b"\xc2\xb2"])
def test_a_port_file_that_says_anything_else_is_as_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "peer.port"
    path.write_bytes(text)
    assert read_port(path) == 0
    assert read_port(tmp_path / "none") == 0


def test_a_port_that_cannot_be_kept_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep_port(tmp_path / "missing" / "peer.port", ["/ip4/127.0.0.1/tcp/4001/p2p/x"])
    assert [record.message for record in caplog.records] == ["peer.port_not_kept"]


@pytest.mark.parametrize("token", [b"", b" \n", b"short"])
async def test_a_node_whose_token_would_let_anybody_in_does_not_start(homes: list[Home], token: bytes) -> None:
    homes[0].token_file.write_bytes(token)
    with pytest.raises(MisuseError, match="does not hold a token"):
        await run_node(homes[0], load(homes[0].config_file))
