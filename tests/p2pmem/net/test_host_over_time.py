"""What a host does for long, or under a system that fails: nothing is left behind, and it comes back."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
from pathlib import Path

import pytest
import trio

from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NetworkLimits, Standing, Stream, StreamClosedError
from p2pmem.net.secure import Identity
from p2pmem.net.wire import WireError
from tests.attacks.raw import DATA, SYN, WINDOW, frame, negotiate

from .attacker import assert_serves, dial, secured, until_closed, victim
from .helpers import ask, until, until_gone


async def test_three_hundred_connections_in_turn_leave_nothing_behind() -> None:
    async with victim() as network:
        await assert_serves(network)
        await trio.testing.wait_all_tasks_blocked()
        tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            channel = await secured(network)
            channel.wire.close()
        for peer in network.connected():
            await until_gone(network, peer)
        await assert_serves(network)
        for peer in network.connected():
            await until_gone(network, peer)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert network.statistics().inbound_connections == 0


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (NetworkLimits(connections_max=3), "connections"),
        (NetworkLimits(inbound_connections_max=3), "inbound-connections"),
        (NetworkLimits(connections_per_address_max=3), "connections-per-address"),
        (NetworkLimits(connections_per_peer_max=3), "connections-per-peer"),
    ],
)
async def test_limits_on_connections_hold_at_the_limit_and_one_past_it(limits: NetworkLimits, name: str) -> None:
    same = Identity(os.urandom(32)) if name == "connections-per-peer" else None
    async with victim(limits) as network:
        network.set_standing(lambda peer: Standing(peer, frozenset({b"graph"})))
        channels = [await secured(network, same) for _ in range(3)]
        await until(lambda: network.statistics().connections == 3)
        await until_closed((await secured(network, same)).wire)
        assert network.statistics().connections == 3
        assert network.statistics().refused == {name: 1}
        channels[0].wire.close()
        await until(lambda: network.statistics().connections < 3)
        channels.append(await secured(network, same))
        await until(lambda: network.statistics().connections == 3)
        for channel in channels:
            channel.wire.close()


async def test_a_peer_that_gives_no_sign_of_life_is_dropped_and_one_that_does_is_kept() -> None:
    async with victim(NetworkLimits(unheard_timeout_s=0.8)) as network:
        async with Libp2pNetwork(identity_seed=os.urandom(32)) as quiet:
            await quiet.connect(network.addresses()[0], expected=None)
            channel = await secured(network)
            await until(lambda: "unheard" in network.statistics().refused)
            await until(lambda: network.connected() == {quiet.peer_id})
            channel.wire.close()
        await assert_serves(network)


async def test_a_listener_that_fails_listens_again_on_its_port(caplog: pytest.LogCaptureFixture) -> None:
    async with victim() as network, Libp2pNetwork(identity_seed=os.urandom(32)) as other:
        address = network.addresses()[0]
        peer = await other.connect(address, expected=None)
        network._listeners[0].socket.close()
        await until(lambda: network.statistics().restarts == 1)
        assert await ask(other, peer, b"connections stand") == b"connections stand"
        await until(lambda: network._listeners[0].socket.fileno() != -1)
        await assert_serves(network)
        assert network.addresses()[0] == address
    assert "net.listener.failed" in caplog.text


async def test_a_machine_out_of_descriptors_accepts_again_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = trio.SocketListener.accept, [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]

    async def failing(self: trio.SocketListener) -> trio.SocketStream:
        if failures:
            await trio.lowlevel.checkpoint()
            raise OSError(failures.pop(), "as if")
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)
    async with victim() as network:
        await assert_serves(network)
        assert network.statistics().restarts == 0
    assert not failures
    assert caplog.text.count("net.listener.few_descriptors") == 2


async def test_the_port_is_free_as_soon_as_the_network_is_left() -> None:
    async with victim() as network, Libp2pNetwork(identity_seed=os.urandom(32)) as other:
        await other.connect(network.addresses()[0], expected=None)
        host, port = network.addresses()[0].split("/")[2], int(network.addresses()[0].split("/")[4])
        tasks = trio.lowlevel.current_statistics().tasks_living
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(host, port)
    async with Libp2pNetwork(identity_seed=os.urandom(32), listen=(f"/ip4/127.0.0.1/tcp/{port}",)) as again:
        again.set_handler("/echo/1", _echo_once)
        await assert_serves(again)
    assert trio.lowlevel.current_statistics().tasks_living < tasks


async def _echo_once(stream: Stream) -> None:
    await stream.send_all(await stream.receive_some())


FLAT_CONNECTIONS = int(os.environ.get("P2PMEM_FLAT_CONNECTIONS", "2000"))


@pytest.mark.slow
async def test_memory_tasks_and_descriptors_are_flat_over_thousands_of_hostile_connections() -> None:
    """Ten thousand with P2PMEM_FLAT_CONNECTIONS=10000, in some three minutes."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def one(index: int) -> None:
        if index % 4 == 0:
            stream = await dial(network)
            await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n" + os.urandom(index % 300))
            await stream.aclose()
            return
        channel = await secured(network)
        with contextlib.suppress(WireError):
            if index % 4 == 1:
                await channel.write(negotiate(1, "/echo/1") + frame(DATA, 0, 1, 30_000, bytes(30_000)))
            elif index % 4 == 2:
                await channel.write(frame(WINDOW, SYN, 1, 0) * 2)
            else:
                await channel.write(b"".join(negotiate(stream_id, "/hold/1") for stream_id in range(1, 160, 2)))
        channel.wire.close()

    # No limit by address would be reached in earnest: all come from one, one after the other.
    limits = NetworkLimits(
        connections_per_address_max=1000,
        handshakes_per_address_per_minute=1_000_000,
        work_per_address_per_minute=1_000_000_000,
    )
    async with victim(limits) as network:

        async def until_reset(stream: Stream) -> None:
            with contextlib.suppress(StreamClosedError):
                await stream.receive_some()

        network.set_handler("/hold/1", until_reset)

        async def rounds(begin: int, end: int) -> None:
            for index in range(begin, end):
                await one(index)
            await until(lambda: network.statistics().connections == 0 and network.statistics().half_open == 0)
            await trio.testing.wait_all_tasks_blocked(0.01)
            gc.collect()

        await rounds(0, 200)
        tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))
        resident = resident_bytes()
        await rounds(200, FLAT_CONNECTIONS)
        assert trio.lowlevel.current_statistics().tasks_living <= tasks
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        # Of 4,096 peers at most the counters remember four numbers each.
        assert resident_bytes() - resident < 8_000_000
        print(f"{resident_bytes() - resident} bytes more after {FLAT_CONNECTIONS} connections, {tasks} tasks")
        await assert_serves(network)


@pytest.mark.parametrize("where", ["/ip6/::1/tcp/0", "/dns/localhost/tcp/0"])
async def test_other_kinds_of_address_can_be_listened_at_and_dialled(where: str) -> None:
    try:
        async with Libp2pNetwork(identity_seed=os.urandom(32), listen=(where,)) as network:
            network.set_handler("/echo/1", _echo_once)
            await assert_serves(network)
    except OSError as error:
        pytest.skip(f"this machine has no {where}: {error}")
