"""A node of a home directory, over libp2p: inside a program of one's own, or as `p2pmem run` has it, with HTTP.

    from p2pmem.home import Home
    from p2pmem.home_node import open_home

    async with open_home(Home.find()) as node:
        await node.face.recall("trial", graph=None, min_trust=None, min_m=0, limit=10)

The home is one that `p2pmem init` made. One process at a time has it.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from p2pmem import crash_points
from p2pmem.config import Config, load
from p2pmem.home import Home, read_seed, read_token
from p2pmem.kept_port import keep_port, read_port
from p2pmem.keyring import Keyring
from p2pmem.net.limits import PeerLimits
from p2pmem.net.reach import worth_telling
from p2pmem.net.seam import Network
from p2pmem.node import Node, NodeSettings, OpenChain, Places, Surroundings, open_node
from p2pmem.services.agent_face import face_of_agent
from p2pmem.services.disk_watch import free_bytes_of
from p2pmem.store.native_memory import share_arenas

CALLS_END_S: Final = 3.0
"""So long calls go on after a node was told to stop, before what they wait for is given up."""


@asynccontextmanager
async def open_home(home: Home, config: Config | None = None) -> AsyncIterator[Node]:
    """Run the node of a home directory with libp2p until the block ends; without `config`, with the one in the home.

    It has no HTTP: its user is the program that opened it, by `Node.face`. On leaving it is drained; cancelled, it
    stops at once. Raises as `open_node` does, and `MisuseError` for a home that is none.
    """
    home.need()
    home.need_ledger()
    from p2pmem.chain.opening import open_configured
    from p2pmem.net.gossipsub import open_gossip
    from p2pmem.net.libp2p_host import Libp2pNetwork

    config = config or load(home.config_file)
    keyring = Keyring.load(home)
    seed = read_seed(home)
    limits = PeerLimits()
    network = Libp2pNetwork(
        identity_seed=seed,
        listen=(config.listen,),
        announce=config.announce,
        limits=limits.network,
        usual_port=read_port(home.port_file),
    )
    settings = NodeSettings(
        config.network,
        config.label,
        config.announce,
        config.bootstrap,
        config.review,
        renews_own_shares=config.share_renew,
        free_disk_min_bytes=config.free_disk_min_mb * 1_000_000,
        limits=limits,
    )
    surroundings = Surroundings(
        crash_point=crash_points.from_environment(), free_bytes=partial(free_bytes_of, home.data_dir)
    )
    topics = partial(open_gossip, identity_seed=seed, limits=limits.gossip)
    async with (
        open_configured(config, keyring.default.secret) as chain,
        open_node(
            settings, keyring, network, Places.of(home), surroundings, OpenChain(*chain) if chain else None, topics
        ) as node,
        _open_discovery(config, node),
    ):
        keep_port(home.port_file, node.network.addresses())
        yield node


async def run_node(
    home: Home,
    config: Config,
    *,
    stop: trio.Event | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the node of a home directory with libp2p and HTTP until `stop` is set. Reports its HTTP address when ready.

    Stopped, it answers what was asked and brings running jobs to a good place, within seconds. Cancelled, it ends at
    once. Nothing that was acknowledged is lost either way.
    """
    stopping = trio.Event() if stop is None else stop
    share_arenas()
    home.need()
    from p2pmem.api.server import serve_http

    token = read_token(home)
    async with open_home(home, config) as node, _open_letting_go(node, stopping), trio.open_nursery() as nursery:
        at = (config.http_host, config.http_port)
        of_agent = partial(face_of_agent, node.services)
        serve = partial(serve_http, node.face, token, *at, stop=stopping, of_agent=of_agent)
        url: str = await nursery.start(serve)
        tune_garbage_collection()
        _write_run_file(home, url, node.network)
        try:
            task_status.started(url)
            await stopping.wait()
        finally:
            home.run_file.unlink(missing_ok=True)


@asynccontextmanager
async def _open_letting_go(node: Node, stopping: trio.Event) -> AsyncIterator[None]:
    """While the disk is full a call that owes a write waits for room, also when it is cancelled: once those that are
    being answered have had their time it is told, so that the block ends."""

    async def let_go() -> None:
        try:
            await stopping.wait()
            await trio.sleep(CALLS_END_S)
        finally:
            node.ledger.database.let_go()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_go)
        yield
        nursery.cancel_scope.cancel()


def _write_run_file(home: Home, url: str, network: Network) -> None:
    """Tell commands on this machine where the node listens."""
    text = json.dumps(
        {"pid": os.getpid(), "http": url, "peer": network.peer_id, "addresses": list(network.addresses())}
    )
    partial = home.run_file.with_suffix(".new")
    partial.write_text(text)
    partial.replace(home.run_file)


def tune_garbage_collection() -> None:
    """For a process that is one node. Records of the set live long and hold no cycles: the collector need not look at
    those that are there at the start, and for the others not after every 700 objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@asynccontextmanager
async def _open_discovery(config: Config, node: Node) -> AsyncIterator[None]:
    """Members on the same network find this node, and it them, when the configuration wants it."""
    if not config.mdns:
        yield
        return
    from p2pmem.net.mdns import open_mdns

    async with open_mdns(worth_telling(node.network.addresses()), node.exchange.meeting.hear_of, os.urandom):
        yield
