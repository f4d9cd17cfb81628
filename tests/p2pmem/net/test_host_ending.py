"""What a peer opens on a connection that is ending here: nothing begins, nothing stays, and nothing spins."""

from __future__ import annotations

from itertools import count

import pytest
import trio

from p2pmem.net.seam import Stream
from tests.attacks.raw import data, negotiate

from .attacker import assert_serves, secured, victim
from .helpers import until, until_gone

PIECE = bytes(4_000)


@pytest.mark.parametrize("waiting_bytes", [1, 128 * 1024], ids=["a little waits", "all that may wait does"])
async def test_a_stream_that_is_opened_while_its_connection_ends_is_not_served(waiting_bytes: int) -> None:
    """The attacker does not read, so that what is said last to him stays unsent for a second, in which he goes on."""
    async with victim() as network, trio.open_nursery() as nursery:
        served: list[Stream] = []

        async def wait(stream: Stream) -> None:
            served.append(stream)
            await stream.receive_some()

        network.set_handler("/wait/1", wait)
        channel = await secured(network)
        await until(lambda: bool(network.connected()))
        (connection,) = network.all_connections()
        stream_ids = count(1, 2)
        while connection._session.output_bytes < waiting_bytes:
            stream_id = next(stream_ids)
            await channel.write(negotiate(stream_id, "/echo/1"))
            for _ in range(60):
                await channel.write(data(stream_id, PIECE))
                await trio.lowlevel.checkpoint()
        nursery.start_soon(network.disconnect, connection.peer, "banned")
        await until(lambda: connection.ended)
        await channel.write(negotiate(next(stream_ids), "/wait/1"))
        await until_gone(network, connection.peer)
        with trio.fail_after(5):
            await connection.gone.wait()
        await until(lambda: all(it.inbound_streams == 0 for it in network.statistics().peers.values()))
        assert not served
        channel.wire.close()
        await assert_serves(network)
