"""Addresses that others tell: names lead nowhere that an address may not, and what is no address ends nothing."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable

import pytest
import trio
from p2pmem_protocol.errors import MisuseError
from trio.testing import MockClock

from p2pmem.net.dialer import Dialer
from p2pmem.net.libp2p_host import Libp2pNetwork, peer_id_of_seed
from p2pmem.net.memory import MemoryFabric
from p2pmem.net.names import PLACES_MAX, places_on_hearsay, system_resolve
from p2pmem.net.seam import PeerId, PeerUnreachableError

from .attacker import victim
from .helpers import until

WORLD = "/ip4/1.1.1.1/tcp/4001"
STANDS_FOR = {
    "loopback": ["127.0.0.1", "::1"],
    "cloud": ["169.254.169.254", "fe80::1"],
    "everywhere": ["0.0.0.0", "::"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:169.254.169.254"],
    "lan": ["192.168.1.9"],
    "world": ["8.8.8.8", "2001:4860:4860::8888"],
    "both": ["127.0.0.1", "8.8.4.4", "8.8.4.4"],
    "many": [f"8.8.4.{number}" for number in range(20)],
}


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


async def resolve(name: str, family: socket.AddressFamily) -> Iterable[str]:
    await trio.lowlevel.checkpoint()
    kinds = {socket.AF_INET: ".", socket.AF_INET6: ":", socket.AF_UNSPEC: ""}
    return [ip for ip in STANDS_FOR.get(name, ()) if kinds[family] in ip]


@pytest.mark.parametrize(
    ("address", "places"),
    [
        ("/dns/loopback/tcp/4001", []),
        ("/dns/cloud/tcp/4001", []),
        ("/dns/everywhere/tcp/4001", []),
        ("/dns/mapped/tcp/4001", []),
        ("/dns/unknown/tcp/4001", []),
        ("/dns/lan/tcp/4001", []),
        ("/dns/world/tcp/22", []),
        ("/dns/world/tcp/4001", ["/ip4/8.8.8.8/tcp/4001", "/ip6/2001:4860:4860::8888/tcp/4001"]),
        ("/dns4/world/tcp/4001", ["/ip4/8.8.8.8/tcp/4001"]),
        ("/dns6/world/tcp/4001", ["/ip6/2001:4860:4860::8888/tcp/4001"]),
        ("/dns/both/tcp/4001", ["/ip4/8.8.4.4/tcp/4001"]),
        ("/dns/many/tcp/4001", [f"/ip4/8.8.4.{number}/tcp/4001" for number in range(PLACES_MAX)]),
        ("/ip4/8.8.8.8/tcp/4001", ["/ip4/8.8.8.8/tcp/4001"]),
        ("/ip4/127.0.0.1/tcp/4001", []),
    ],
)
async def test_a_name_leads_where_an_address_may_and_nowhere_else(address: str, places: list[str]) -> None:
    found = await places_on_hearsay(f"{address}/p2p/x", [WORLD], resolve)
    assert found == tuple(f"{place}/p2p/x" for place in places)


async def test_a_name_for_a_private_address_is_for_nodes_that_have_one_of_its_range() -> None:
    own = [WORLD, "/ip4/192.168.7.7/tcp/4001"]
    assert await places_on_hearsay("/dns/lan/tcp/4001/p2p/x", own, resolve) == ("/ip4/192.168.1.9/tcp/4001/p2p/x",)
    assert await places_on_hearsay("/dns/lan/tcp/4001/p2p/x", [*own, "/ip4/192.168.1.9/tcp/1"], resolve) == ()


async def test_a_name_for_loopback_is_for_nodes_that_are_only_there() -> None:
    own = ["/ip4/127.0.0.1/tcp/1"]
    assert await places_on_hearsay("/dns4/loopback/tcp/4001/p2p/x", own, resolve) == ("/ip4/127.0.0.1/tcp/4001/p2p/x",)


@pytest.mark.parametrize("address", ["/dnsaddr/world/p2p/x", "/dns/world/tcp/99999/p2p/x", "/dns/world/udp/1/p2p/x"])
async def test_a_name_in_another_form_of_address_is_refused(address: str) -> None:
    with pytest.raises(MisuseError):
        await places_on_hearsay(address, [WORLD], resolve)


@pytest.mark.parametrize("name", ["a..b", "a" * 70, "a b"])
async def test_what_is_no_name_stands_for_nothing(name: str) -> None:
    assert list(await system_resolve(name, socket.AF_INET)) == []


async def test_this_machine_resolves_its_own_name() -> None:
    assert list(await system_resolve("localhost", socket.AF_INET)) == ["127.0.0.1"]


async def test_what_was_judged_is_what_is_dialled_and_a_name_from_a_person_is_left_to_the_network(
    clock: MockClock,
) -> None:
    del clock
    fabric, tries = MemoryFabric(seed=1), list[str]()
    answers = [["8.8.8.8"], ["127.0.0.1"]]

    async def rebinding(name: str, family: socket.AddressFamily) -> Iterable[str]:
        await trio.lowlevel.checkpoint()
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect(address: str, *, expected: PeerId | None) -> PeerId:
        tries.append(address.partition("/p2p/")[0])
        await trio.lowlevel.checkpoint()
        raise PeerUnreachableError("nobody")

    async def met(peer: PeerId) -> None:
        raise AssertionError(f"{peer} was met")

    async with fabric.network("me") as me, trio.open_nursery() as nursery:
        me.connect = connect  # type: ignore[method-assign]
        dialer = Dialer(me, met, random.Random(1), own=lambda: (WORLD,), resolve=rebinding)
        await nursery.start(dialer.run)
        heard = dialer.hear(f"/dns/evil/tcp/4001/p2p/{fabric.peer_id_of('you')}")
        await trio.sleep(60)
        assert tries == ["/ip4/8.8.8.8/tcp/4001"], "and at the later tries nowhere"
        assert heard not in dialer.wanted(), "given up as any other that does not answer"
        dialer.want(f"/dns/home/tcp/4001/p2p/{fabric.peer_id_of('home')}")
        await trio.sleep(0.05)
        assert tries[1:] == ["/dns/home/tcp/4001"]
        # Once a person has said it too, it is his.
        dialer.hear(f"/dns/late/tcp/4001/p2p/{fabric.peer_id_of('late')}")
        dialer.want(f"/dns/late/tcp/4001/p2p/{fabric.peer_id_of('late')}")
        await trio.sleep(1)
        assert "/dns/late/tcp/4001" in tries
        nursery.cancel_scope.cancel()


NONSENSE = (
    "/dnsaddr/example.org",
    "/ip4/8.8.8.8/udp/1/quic",
    "/ip4/8.8.8.8/tcp/99999",
    "/ip4/8.8.8.8",
    "/ip6/2001:db8::1%\x00/tcp/1",
    "/dns/a..b/tcp/1",
    f"/dns/{'a' * 70}.example/tcp/1",
    "/dns/\x00/tcp/1",
    "/unix/tmp/x",
)


@pytest.mark.parametrize("by_a_person", [False, True])
async def test_an_address_that_is_none_ends_nothing_and_others_are_dialled_on(by_a_person: bool) -> None:
    async with (
        victim() as network,
        Libp2pNetwork(identity_seed=os.urandom(32)) as me,
        trio.open_nursery() as nursery,
    ):

        async def met(peer: PeerId) -> None:
            await trio.sleep_forever()

        dialer = Dialer(me, met, random.Random(1), own=network.addresses)
        await nursery.start(dialer.run)
        say = dialer.want if by_a_person else dialer.hear
        for place in NONSENSE:
            say(f"{place}/p2p/{peer_id_of_seed(os.urandom(32))}")
        say("/ip4/127.0.0.1/tcp/1/p2p/nobody")
        await until(lambda: len(dialer.unanswered()) == len(NONSENSE) + 1)
        say(network.addresses()[0])
        await until(lambda: network.peer_id in me.connected())
        nursery.cancel_scope.cancel()
