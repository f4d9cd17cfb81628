"""What an RPC of gossip may hold, how many are taken in, and of whom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import trio
from libp2p.pubsub.pb import rpc_pb2
from trio.testing import MockClock

from p2pmem.net.framing import encode_frames
from p2pmem.net.gossipsub import BYTES_OF_ONE_RPC, MESHSUB, RPCS_OF_ONE_JOIN, RPCS_OF_ONE_MESSAGE
from p2pmem.net.limits import GossipLimits
from p2pmem.net.seam import PeerId, Standing, Stream, StreamClosedError
from p2pmem.net.secure import Identity
from p2pmem.net.topics import Verdict
from tests.attacks.raw import signed_message

from .conftest import MemoryNetworks, Networks
from .gossip import AUTHOR, Inbox, controlled, nodes, padded, published, subscribed
from .helpers import read_to_end, until


@pytest.mark.parametrize("write", [bytes.hex, lambda it: it.hex().upper(), lambda it: it.hex(" ")])
async def test_what_a_peer_asks_for_by_id_it_is_given_once(networks: Networks, write: Callable[[bytes], str]) -> None:
    async with nodes(networks, 1) as (node,), networks.network("attacker") as attacker:
        heard = bytearray()

        async def overhear(stream: Stream) -> None:
            while data := await stream.receive_some():
                heard.extend(data)

        attacker.set_handler(MESHSUB, overhear)
        await node.topics.subscribe("open", Inbox())
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        stream = await attacker.open_stream(peer, MESHSUB)
        pubsub = node.topics._pubsub
        assert pubsub is not None
        await until(lambda: len(pubsub.peers) == 1)
        await node.topics.publish("open", b"a needle")
        (message_id,) = pubsub.router.mcache.msgs  # type: ignore[attr-defined]
        for _ in range(3):
            asked = [message_id.hex().encode()] * 3 + [write(message_id).encode()] * 3
            rpc = rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant(messageIDs=asked)] * 2))
            await stream.send_all(encode_frames([rpc.SerializeToString()]))
        await until(lambda: b"a needle" in heard)
        await trio.sleep(0.2)
        assert heard.count(b"a needle") == 1
        assert node.blamed == []


FEW = GossipLimits(
    rpc_max_bytes=2_000,
    subscriptions_per_rpc_max=3,
    messages_per_rpc_max=3,
    controls_per_rpc_max=3,
    ids_per_control_max=3,
    receive_timeout_s=1,
)


@pytest.mark.parametrize(
    ("at_the_limit", "one_past_it"),
    [
        (padded(2_000), padded(2_001)),
        (subscribed(3), subscribed(4)),
        (published(3), published(4)),
        *((controlled(kind, 3), controlled(kind, 4)) for kind in ("ihave", "iwant", "graft", "prune")),
        *((controlled(kind, 1, ids=3), controlled(kind, 1, ids=4)) for kind in ("ihave", "iwant")),
    ],
    ids=["bytes", "subscriptions", "messages", "ihave", "iwant", "graft", "prune", "ids in ihave", "ids in iwant"],
)
async def test_limits_on_an_rpc_hold_at_the_limit_and_one_past_it(
    at_the_limit: rpc_pb2.RPC, one_past_it: rpc_pb2.RPC
) -> None:
    networks = MemoryNetworks()
    async with nodes(networks, 1, limits=FEW) as (node,), networks.network("attacker") as attacker:
        await node.topics.subscribe("open", Inbox())
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        for rpc, blamed in ((at_the_limit, 0), (one_past_it, 1)):
            stream = await attacker.open_stream(peer, MESHSUB)
            await stream.send_all(encode_frames([rpc.SerializeToString()]))
            await stream.close_write()
            with contextlib.suppress(StreamClosedError):
                await read_to_end(stream)
            assert len(node.blamed) == blamed


async def test_on_so_many_streams_one_peer_speaks_at_once_and_one_more_ends() -> None:
    networks = MemoryNetworks()
    limits = GossipLimits(streams_per_peer_max=2)
    async with nodes(networks, 1, limits=limits) as (node,), networks.network("attacker") as attacker:
        await node.topics.subscribe("open", Inbox())
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        streams = [await attacker.open_stream(peer, MESHSUB) for _ in range(3)]
        with pytest.raises(StreamClosedError):
            await read_to_end(streams[2])
        await streams[0].reset()
        await trio.testing.wait_all_tasks_blocked()
        again = await attacker.open_stream(peer, MESHSUB)
        for stream in (streams[1], again):
            await stream.send_all(encode_frames([published(1).SerializeToString()]))
        await trio.testing.wait_all_tasks_blocked()
        assert node.blamed == []


async def test_of_one_address_so_many_rpcs_are_taken_in_at_once_and_the_others_one_a_second(
    autojump_clock: MockClock,
) -> None:
    networks = MemoryNetworks()
    limits = GossipLimits(rpcs_per_address_per_minute=60, addresses_max=2)
    got: list[float] = []

    async def note(peer: PeerId, data: bytes) -> Verdict:
        got.append(trio.current_time())
        return Verdict.ACCEPT

    async with (
        nodes(networks, 1, limits=limits) as (node,),
        networks.network("attacker") as attacker,
        networks.network("other") as other,
    ):
        await node.topics.subscribe("open", note)
        for network in (attacker, other):
            peer = await network.connect(node.network.addresses()[0], expected=None)
        await trio.sleep(1)
        stream = await attacker.open_stream(peer, MESHSUB)
        last = published(2)
        last.publish[0].CopyFrom(last.publish[1])
        del last.publish[1:]
        began = trio.current_time()
        empty = rpc_pb2.RPC().SerializeToString()
        await stream.send_all(encode_frames([*[empty] * 59, published(1).SerializeToString()]))
        await stream.send_all(encode_frames([*[empty] * 9, last.SerializeToString()]))
        elsewhere = await other.open_stream(peer, MESHSUB)
        mine = signed_message(Identity(b"\x18" * 32), "open", b"y", 1)
        await elsewhere.send_all(encode_frames([rpc_pb2.RPC(publish=[mine]).SerializeToString()]))
        await trio.sleep(60)
        assert len(got) == 3
        assert [round(at - began) for at in got] == [0, 0, 10 + RPCS_OF_ONE_MESSAGE], (
            "nobody waits for what another address sends"
        )
        assert node.blamed == []


async def test_peers_of_one_member_have_one_account_and_others_at_their_address_another(
    autojump_clock: MockClock,
) -> None:
    networks = MemoryNetworks()
    got: dict[bytes, float] = {}

    async def note(peer: PeerId, data: bytes) -> Verdict:
        got[data] = trio.current_time()
        return Verdict.ACCEPT

    async with (
        nodes(networks, 1, limits=GossipLimits(rpcs_per_address_per_minute=60)) as (node,),
        networks.network("laptop") as laptop,
        networks.network("phone") as phone,
        networks.network("other") as other,
    ):
        own = Standing("ada", frozenset({b"graph"}))
        node.network.set_standing(lambda peer: own if peer in (laptop.peer_id, phone.peer_id) else None)
        await node.topics.subscribe("open", note)
        began = trio.current_time()
        for number, network in enumerate((laptop, phone, other)):
            peer = await network.connect(node.network.addresses()[0], expected=None)
            stream = await network.open_stream(peer, MESHSUB)
            words = signed_message(Identity(b"\x18" * 32), "open", network.peer_id.encode(), number)
            empty = [] if network is other else [rpc_pb2.RPC().SerializeToString()] * 60
            await stream.send_all(encode_frames([*empty, rpc_pb2.RPC(publish=[words]).SerializeToString()]))
            await trio.sleep(0.01)
        await trio.sleep(100)
        waited = [round(got[network.peer_id.encode()] - began) for network in (laptop, phone, other)]
        assert waited == [1, 62 + RPCS_OF_ONE_MESSAGE, 0]


async def test_rpcs_that_somebody_left_behind_who_is_gone_are_not_taken_in_for_hours(autojump_clock: MockClock) -> None:
    networks = MemoryNetworks()
    limits = GossipLimits(rpcs_per_address_per_minute=60)
    async with nodes(networks, 1, limits=limits) as (node,):
        await node.topics.subscribe("open", Inbox())
        pubsub = node.topics._pubsub
        assert pubsub is not None
        async with networks.network("attacker") as attacker:
            peer = await attacker.connect(node.network.addresses()[0], expected=None)
            stream = await attacker.open_stream(peer, MESHSUB)
            await stream.send_all(encode_frames([rpc_pb2.RPC().SerializeToString()] * 10_000))
            await trio.sleep(5)
            assert len(pubsub._inbound) == 1
        await trio.sleep(5)
        assert pubsub._inbound == set()


@pytest.mark.parametrize(("thinks_s", "passed_on"), [(0.9, True), (1.1, False)])
async def test_who_decides_in_time_passes_on_and_who_takes_longer_does_not(
    autojump_clock: MockClock, thinks_s: float, passed_on: bool
) -> None:
    async def think(peer: PeerId, data: bytes) -> Verdict:
        await trio.sleep(thinks_s)
        return Verdict.ACCEPT

    async with nodes(MemoryNetworks(), 3, limits=FEW) as line:
        inbox = Inbox()
        for node, receiver in zip(line, (Inbox(), think, inbox), strict=True):
            await node.topics.subscribe("open", receiver)
        await until(lambda: sum(len(node.topics.neighbours("open")) for node in line) == 4)
        await line[0].topics.publish("open", b"well?")
        await trio.sleep(5)
        assert inbox.got == ([b"well?"] if passed_on else [])


def words(number: int) -> rpc_pb2.RPC:
    return rpc_pb2.RPC(publish=[signed_message(AUTHOR, "open", b"%d" % number, number)])


@pytest.mark.parametrize("standing", [Standing("", frozenset({b"theirs"})), None], ids=["members", "strangers"])
async def test_all_of_one_graph_and_all_strangers_have_one_account_however_many_keys_they_have(
    autojump_clock: MockClock, standing: Standing | None
) -> None:
    networks, names = MemoryNetworks(), [f"sybil {number}" for number in range(40)]
    limits = GossipLimits(rpcs_per_address_per_minute=60, rpcs_per_graph_per_minute=600)
    got: dict[bytes, float] = {}

    async def note(peer: PeerId, data: bytes) -> Verdict:
        got[data] = trio.current_time()
        return Verdict.ACCEPT

    async with nodes(networks, 1, limits=limits) as (node,), AsyncExitStack() as stack:
        member = await stack.enter_async_context(networks.network("member"))
        own = Standing("ada", frozenset({b"ours"}))

        def standing_of(peer: PeerId) -> Standing | None:
            if peer == member.peer_id:
                return own
            return standing and replace(standing, member=peer)

        node.network.set_standing(standing_of)
        node.network.account_of = lambda peer: peer  # type: ignore[method-assign]  # each at an address of its own
        await node.topics.subscribe("open", note)
        began = trio.current_time()
        for number, name in enumerate(names):
            sybil = await stack.enter_async_context(networks.network(name))
            peer = await sybil.connect(node.network.addresses()[0], expected=None)
            stream = await sybil.open_stream(peer, MESHSUB)
            await stream.send_all(encode_frames([words(60 * number + at).SerializeToString() for at in range(60)]))
        peer = await member.connect(node.network.addresses()[0], expected=None)
        stream = await member.open_stream(peer, MESHSUB)
        await stream.send_all(encode_frames([words(9_999).SerializeToString()]))
        await trio.sleep(59)
        assert got.pop(b"9999") - began < 1, "nobody waits for what is of others"
        assert len(got) <= 2 * 600 / (1 + RPCS_OF_ONE_MESSAGE) + len(names)
        assert node.blamed == []


def unused(size_bytes: int) -> rpc_pb2.RPC:
    """Peers that a PRUNE recommends, who are not dialled; the last is as long as it takes."""
    rpc = controlled("prune", 1)
    rpc.control.prune[0].peers.extend([rpc_pb2.PeerInfo()] * 1_000)
    rpc.control.prune[0].peers.add(peerID=b"x" * 1_000)
    rpc.control.prune[0].peers[-1].peerID += b"x" * (size_bytes - rpc.ByteSize())
    assert rpc.ByteSize() == size_bytes
    return rpc


async def test_an_rpc_counts_as_all_that_is_in_it(autojump_clock: MockClock) -> None:
    networks = MemoryNetworks()
    limits = GossipLimits(rpcs_per_address_per_minute=60)
    async with nodes(networks, 1, limits=limits) as (node,), networks.network("attacker") as attacker:
        inbox = Inbox()
        await node.topics.subscribe("open", inbox)
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        joins, twice = rpc_pb2.RPC(), published(10)
        with_content = rpc_pb2.RPC(publish=[signed_message(AUTHOR, "open", bytes(10 * BYTES_OF_ONE_RPC), 500)])
        joins.subscriptions.add(subscribe=True, topicid="open")
        twice.publish.extend(published(10).publish)
        costs = {
            "an empty one": (rpc_pb2.RPC(), 1),
            "one with 31 entries": (controlled("ihave", 1, 30), 1),
            "one with 32 entries": (controlled("ihave", 1, 31), 2),
            "one with a byte less that nobody uses than counts": (unused(BYTES_OF_ONE_RPC - 1), 1),
            "one with as many as count": (unused(BYTES_OF_ONE_RPC), 2),
            "one whose bytes are content": (with_content, 1 + RPCS_OF_ONE_MESSAGE),
            "one that joins": (joins, 1 + RPCS_OF_ONE_JOIN),
            "the same again": (joins, 1),
            "one with 10 messages, each twice": (twice, 1 + 10 * RPCS_OF_ONE_MESSAGE),
        }
        for number, (name, (rpc, cost)) in enumerate(costs.items()):
            await trio.sleep(120)
            stream = await attacker.open_stream(peer, MESHSUB)
            empty = [rpc_pb2.RPC().SerializeToString()] * (60 - cost)
            last = words(1_000 + number).SerializeToString()
            await stream.send_all(encode_frames([rpc.SerializeToString(), *empty, last]))
            await trio.sleep(0.9)
            assert b"%d" % (1_000 + number) not in inbox.got, name
            await trio.sleep(0.2)
            assert b"%d" % (1_000 + number) in inbox.got, name
            await stream.reset()


async def test_of_each_topic_the_last_word_counts_and_who_changes_his_mind_makes_no_work() -> None:
    networks = MemoryNetworks()
    async with nodes(networks, 1) as (node,), networks.network("attacker") as attacker:
        await node.topics.subscribe("open", Inbox())
        pubsub = node.topics._pubsub
        assert pubsub is not None
        heard: list[bool] = []
        handle, pubsub.handle_subscription = pubsub.handle_subscription, lambda peer, one: heard.append(one.subscribe)  # type: ignore[method-assign]
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        rpc = rpc_pb2.RPC()
        for number in range(1_000):
            rpc.subscriptions.add(subscribe=number % 2 == 0, topicid="open")
        stream = await attacker.open_stream(peer, MESHSUB)
        await stream.send_all(encode_frames([rpc.SerializeToString()]))
        await until(lambda: bool(heard))
        assert heard == [False]
        pubsub.handle_subscription = handle  # type: ignore[method-assign]


async def test_an_rpc_full_of_what_is_wrong_writes_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    rpc = controlled("ihave", 100, 500)
    for one in rpc.control.ihave:
        one.messageIDs[:] = [b"no id"] * 500
    rpc.control.iwant.extend(controlled("iwant", 100, 1).control.iwant)
    networks = MemoryNetworks()
    async with nodes(networks, 1) as (node,), networks.network("attacker") as attacker:
        inbox = Inbox()
        await node.topics.subscribe("open", inbox)
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        stream = await attacker.open_stream(peer, MESHSUB)
        await stream.send_all(encode_frames([rpc.SerializeToString(), words(1).SerializeToString()]))
        await until(lambda: bool(inbox.got))
    assert [it for it in caplog.records if it.name.startswith("libp2p")] == []
