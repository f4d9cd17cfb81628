"""What the libp2p host costs, beside a bare trio TCP stream in the same process and run.

    python scripts/bench_host.py            one line per figure
    python scripts/bench_host.py --json     the same for machines

Both ends live in one process, so figures per CPU-second are for both ends together. Ratios travel between machines,
absolute figures do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio
from p2pmem_protocol.credential import Carry
from p2pmem_protocol.frames import MESSAGE_BYTES_MAX
from p2pmem_protocol.hello import MEMBER_PROTOCOL, Greeting, Proof
from p2pmem_protocol.keys import Key
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import network_id

from p2pmem.net.framing import FrameReader
from p2pmem.net.greet import greet_as_listener, greet_as_opener
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import PeerId, Stream

NETWORK = network_id("bench")
AGENT = Key(b"\x11" * 32)
CONNECTS = 100
ROUND_TRIPS = 3000
MESSAGE_BYTES = 1024
BULK_BYTES = 64 * 1024 * 1024


class Both(Protocol):
    """What a trio stream and a stream of the seam have in common."""

    async def send_all(self, data: bytes) -> None: ...

    async def receive_some(self, max_bytes: int = 65536) -> bytes | bytearray: ...


async def echo(stream: Both) -> None:
    while data := await stream.receive_some(65536):
        await stream.send_all(bytes(data))


async def sink(stream: Both) -> None:
    received = 0
    while received < BULK_BYTES:
        received += len(await stream.receive_some(65536))
    await stream.send_all(b"!")


async def round_trips_per_s(stream: Both) -> float:
    message = os.urandom(MESSAGE_BYTES)
    begin = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        await stream.send_all(message)
        got = 0
        while got < MESSAGE_BYTES:
            got += len(await stream.receive_some(65536))
    return ROUND_TRIPS / (time.perf_counter() - begin)


async def megabytes_per_cpu_s(stream: Both) -> float:
    piece = os.urandom(65536)
    begin = time.process_time()
    for _ in range(BULK_BYTES // len(piece)):
        await stream.send_all(piece)
    await stream.receive_some(1)
    return BULK_BYTES / 1e6 / (time.process_time() - begin)


async def over_tcp(handler: Callable[[Both], Awaitable[None]], measure: Callable[[Both], Awaitable[float]]) -> float:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        async with await trio.open_tcp_stream(*listener.socket.getsockname()[:2]) as stream:
            result = await measure(stream)
        nursery.cancel_scope.cancel()
    return result


async def over_host(handler: Callable[[Stream], Awaitable[None]], measure: Callable[[Both], Awaitable[float]]) -> float:
    async with (
        Libp2pNetwork(identity_seed=os.urandom(32), listen=("/ip4/127.0.0.1/tcp/0",)) as server,
        Libp2pNetwork(identity_seed=os.urandom(32)) as client,
    ):
        server.set_handler("/bench/1", handler)
        peer = await client.connect(server.addresses()[0], expected=None)
        stream = await client.open_stream(peer, "/bench/1")
        result = await measure(stream)
        await stream.aclose()
    return result


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def proof_of(network: Libp2pNetwork) -> Proof:
    """What a node with one agent shows in hello."""
    carry = Carry(NETWORK, AGENT.address, network.peer_id, 1, now_ms() + DAY_MS)
    return Proof((carry.sign(AGENT),))


async def say_hello(client: Libp2pNetwork, peer: PeerId, proof: Proof) -> None:
    stream = await client.open_stream(peer, MEMBER_PROTOCOL)
    reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
    ours = Greeting.ours(NETWORK, now_ms())
    await greet_as_opener(stream, reader, ours=ours, proof=proof, now_ms=now_ms())
    await stream.aclose()


async def connect_ms(*, with_hello: bool) -> tuple[float, float]:
    """Median time and CPU from `connect` to a proven peer, or until both know who the other speaks for; both ends."""
    times: list[float] = []
    async with (
        Libp2pNetwork(identity_seed=os.urandom(32), listen=("/ip4/127.0.0.1/tcp/0",)) as server,
        Libp2pNetwork(identity_seed=os.urandom(32)) as client,
    ):
        ours, theirs = proof_of(client), proof_of(server)

        async def greet(stream: Stream) -> None:
            reader = FrameReader(stream, frame_max_bytes=MESSAGE_BYTES_MAX)
            greeting = Greeting.ours(NETWORK, now_ms())
            await greet_as_listener(
                stream, reader, ours=greeting, may_prove=lambda: True, prove=lambda _: theirs, now_ms=now_ms()
            )

        server.set_handler(MEMBER_PROTOCOL, greet)
        cpu = time.process_time()
        for _ in range(CONNECTS):
            begin = time.perf_counter()
            peer = await client.connect(server.addresses()[0], expected=None)
            if with_hello:
                await say_hello(client, peer, ours)
            times.append(1000 * (time.perf_counter() - begin))
            await client.disconnect(peer, "bench")
        cpu = 1000 * (time.process_time() - cpu) / CONNECTS
    return statistics.median(times), cpu


async def main(as_json: bool) -> None:
    connect, connect_cpu = await connect_ms(with_hello=False)
    hello, hello_cpu = await connect_ms(with_hello=True)
    tcp_trips, host_trips = await over_tcp(echo, round_trips_per_s), await over_host(echo, round_trips_per_s)
    tcp_bulk, host_bulk = await over_tcp(sink, megabytes_per_cpu_s), await over_host(sink, megabytes_per_cpu_s)
    figures = {
        "connect_ms_median": round(connect, 2),
        "connect_cpu_ms": round(connect_cpu, 2),
        "connect_to_hello_done_ms_median": round(hello, 2),
        "connect_to_hello_done_cpu_ms": round(hello_cpu, 2),
        "round_trips_per_s": round(host_trips),
        "round_trips_ratio_to_tcp": round(host_trips / tcp_trips, 3),
        "megabytes_per_cpu_s": round(host_bulk, 1),
        "megabytes_per_cpu_s_ratio_to_tcp": round(host_bulk / tcp_bulk, 3),
    }
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:34} {value}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    trio.run(main, parser.parse_args().json)
