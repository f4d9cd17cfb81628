"""Small handlers and readers that several tests here share."""

from __future__ import annotations

from collections.abc import Callable

import trio

from p2pmem.net.seam import Network, PeerEventKind, PeerId, Stream


async def echo(stream: Stream) -> None:
    while data := await stream.receive_some():
        await stream.send_all(data)


async def read_to_end(stream: Stream) -> bytes:
    out = bytearray()
    while data := await stream.receive_some():
        out += data
    return bytes(out)


async def ask(network: Network, peer: PeerId, question: bytes, protocol: str = "/echo/1") -> bytes:
    """Send a question on a stream of its own, and return the whole answer."""
    stream = await network.open_stream(peer, protocol)
    await stream.send_all(question)
    await stream.close_write()
    answer = await read_to_end(stream)
    await stream.aclose()
    return answer


async def until_gone(network: Network, peer: PeerId) -> None:
    """Wait until `peer` is no longer connected."""
    events = network.peer_events()
    while peer in network.connected():
        async for event in events:
            if event.peer == peer and event.kind is PeerEventKind.DISCONNECTED:
                break


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something that nobody tells us has become true; a test that waits in vain fails."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - counters have no event
            await trio.sleep(0.001)
