"""A host in a process of its own, to be attacked: py-libp2p as it comes, or ours.

    python -m tests.attacks.victim stock|ours [TIMES]

With a number, its clock runs so many times as fast, and it may use as much CPU as that takes. It says in one line of
JSON where it listens, and answers each line on its input with one line of facts, until its input ends. It serves
`/echo/1`; `/hold/1`, which never reads; `/fail/1`, which raises; `/cancel/1`, which gives up large writes half way.
It gossips about `open`; about `raise` and `hang`, whose validators do that.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Protocol

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import trio
from libp2p import new_host
from libp2p.abc import INetStream, ISubscriptionAPI
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr
from trio.testing import MockClock

from p2pmem.net.gossipsub import open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import PeerId, Stream, StreamClosedError
from p2pmem.net.topics import Verdict

from .raw import MESHSUB

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
MEMORY_MAX_BYTES: Final = 2 << 30
CPU_MAX_S: Final = 120
FAST_CPU_MAX_S: Final = 3_600
CANCELLED_BYTES: Final = 8_000_000
HEARD_MAX: Final = 1_000


@dataclass(slots=True)
class Running:
    """A host that runs: where, and what is asked about it."""

    address: str
    connected: Callable[[], list[str]]
    heard: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, object]:
        return {
            "tasks": trio.lowlevel.current_statistics().tasks_living,
            "connected": self.connected(),
            "heard": self.heard[-HEARD_MAX:],
        }


class Bytes(Protocol):
    """What a stream of either host can do."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


async def echo(stream: Bytes) -> None:
    while data := await stream.read():
        await stream.write(data)


async def hold(stream: Bytes) -> None:
    await trio.sleep_forever()


async def fail(stream: Bytes) -> None:
    raise RuntimeError("a fault in a handler")


async def cancel(stream: Bytes) -> None:
    """Begin a large write, and give it up after as many milliseconds as the first bytes say."""
    wait_ms = int(await stream.read())
    with trio.move_on_after(wait_ms / 1000):
        await stream.write(bytes(CANCELLED_BYTES))


HANDLERS: Final[dict[str, Callable[[Bytes], Awaitable[None]]]] = {
    "/echo/1": echo,
    "/hold/1": hold,
    "/fail/1": fail,
    "/cancel/1": cancel,
}


class StockBytes:
    def __init__(self, stream: INetStream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        return await self._stream.read(65_536)

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)


class OurBytes:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        return await self._stream.receive_some()

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)


def stock_handler(work: Callable[[Bytes], Awaitable[None]]) -> Callable[[INetStream], Awaitable[None]]:
    """What an application does about py-libp2p's own errors: end its stream. Its own faults are let out."""

    async def handle(stream: INetStream) -> None:
        try:
            await work(StockBytes(stream))
            await stream.close()
        except RuntimeError:
            raise
        except Exception:
            await stream.reset()

    return handle


@asynccontextmanager
async def stock() -> AsyncIterator[Running]:
    """py-libp2p with what `new_host` and the examples of its manual give."""
    host = new_host(key_pair=create_new_key_pair(os.urandom(32)))
    for protocol, work in HANDLERS.items():
        host.set_stream_handler(TProtocol(protocol), stock_handler(work))
    router = GossipSub(protocols=[TProtocol(MESHSUB)], degree=6, degree_low=4, degree_high=12, heartbeat_interval=1)
    pubsub = Pubsub(host, router, strict_signing=True)
    swarm = host.get_network()
    assert isinstance(swarm, Swarm)
    async with (
        host.run(listen_addrs=[Multiaddr(LISTEN)]),
        background_trio_service(pubsub),
        background_trio_service(router),
        trio.open_nursery() as nursery,
    ):
        await pubsub.wait_until_ready()
        (where,) = host.get_addrs()
        running = Running(str(where), lambda: [str(peer) for peer in swarm.connections])

        async def hear(subscription: ISubscriptionAPI) -> None:
            while True:
                running.heard.append((await subscription.get()).data.decode())

        def raising(forwarder: ID, message: rpc_pb2.Message) -> bool:
            raise RuntimeError("a fault in a validator")

        async def hanging(forwarder: ID, message: rpc_pb2.Message) -> bool:
            await trio.sleep_forever()
            return False

        pubsub.set_topic_validator("raise", raising, is_async_validator=False)
        pubsub.set_topic_validator("hang", hanging, is_async_validator=True)
        nursery.start_soon(hear, await pubsub.subscribe("open"))
        for topic in ("raise", "hang"):
            await pubsub.subscribe(topic)
        yield running
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ours() -> AsyncIterator[Running]:
    """The host of a node, with gossip."""
    seed = os.urandom(32)
    async with (
        Libp2pNetwork(identity_seed=seed, listen=(LISTEN,)) as network,
        open_gossip(network, identity_seed=seed) as topics,
    ):
        for protocol, work in HANDLERS.items():
            network.set_handler(protocol, our_handler(work))
        running = Running(network.addresses()[0], lambda: sorted(network.connected()))

        async def hear(peer: PeerId, data: bytes) -> Verdict:
            running.heard.append(data.decode())
            return Verdict.ACCEPT

        async def raising(peer: PeerId, data: bytes) -> Verdict:
            raise RuntimeError("a fault in a validator")

        async def hanging(peer: PeerId, data: bytes) -> Verdict:
            await trio.sleep_forever()
            return Verdict.IGNORE

        for topic, receiver in (("open", hear), ("raise", raising), ("hang", hanging)):
            await topics.subscribe(topic, receiver)
        yield running


def our_handler(work: Callable[[Bytes], Awaitable[None]]) -> Callable[[Stream], Awaitable[None]]:
    async def handle(stream: Stream) -> None:
        try:
            await work(OurBytes(stream))
        except StreamClosedError:
            await stream.reset()

    return handle


async def main(which: str) -> None:
    async with {"stock": stock, "ours": ours}[which]() as running:
        tell(address=running.address)
        async with trio.lowlevel.FdStream(os.dup(0)) as questions:
            while await questions.receive_some():
                tell(**running.facts())


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def first_cause(error: BaseException) -> str:
    """The name of the error that began it, in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__


def run(which: str, times: float = 0.0) -> NoReturn:
    cpu_s = FAST_CPU_MAX_S if times else CPU_MAX_S
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    try:
        trio.run(main, which, clock=MockClock(rate=times) if times else None)
    except BaseException as error:
        tell(died=first_cause(error))
        os._exit(1)
    # py-libp2p leaves threads and sockets behind that would keep the process.
    os._exit(0)


if __name__ == "__main__":
    run(sys.argv[1], *map(float, sys.argv[2:]))
