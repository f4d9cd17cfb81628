"""Gossip among three and more, over both networks, with strangers and with people who do not keep to the rules."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from p2pmem_protocol.errors import MisuseError
from trio.testing import MockClock

from p2pmem.net.framing import encode_frames
from p2pmem.net.gossipsub import IDENTIFY, MESHSUB, GossipTopics, open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.limits import GossipLimits
from p2pmem.net.seam import Network, NetworkLimits, PeerId, Standing, Stream, StreamClosedError
from p2pmem.net.secure import Identity
from p2pmem.net.topics import TOPIC_DATA_MAX_BYTES, Verdict
from tests.attacks.raw import signed_message

from .attacker import secured, victim
from .conftest import MemoryNetworks, Networks
from .helpers import read_to_end, until


class Inbox:
    """A receiver that takes everything, or answers as told."""

    def __init__(self, verdict: Verdict = Verdict.ACCEPT) -> None:
        self.got: list[bytes] = []
        self.verdict = verdict

    async def __call__(self, peer: PeerId, data: bytes) -> Verdict:
        self.got.append(data)
        return self.verdict


class Node:
    def __init__(self, network: Network, topics: GossipTopics, blamed: list[str]) -> None:
        self.network, self.topics, self.blamed = network, topics, blamed


@asynccontextmanager
async def nodes(
    networks: Networks, count: int, secret: frozenset[str] = frozenset(), limits: GossipLimits | None = None
) -> AsyncIterator[list[Node]]:
    """So many nodes in a line; `secret` topics are spoken of only among the first two."""
    async with AsyncExitStack() as stack:
        line: list[Node] = []
        insiders = {networks.peer_id_of(f"node {index}") for index in range(2)}
        for index in range(count):
            name = f"node {index}"
            network = await stack.enter_async_context(networks.network(name))
            blamed: list[str] = []
            topics = await stack.enter_async_context(
                open_gossip(
                    network,
                    identity_seed=hashlib.sha256(name.encode()).digest(),
                    may_speak=lambda peer, topic: topic not in secret or peer in insiders,
                    blame=lambda peer, why, blamed=blamed: blamed.append(why),  # type: ignore[misc]
                    limits=limits,
                )
            )
            line.append(Node(network, topics, blamed))
        for left, right in itertools.pairwise(line):
            await left.network.connect(right.network.addresses()[0], expected=None)
        yield line


async def test_what_one_publishes_all_who_joined_receive_once(networks: Networks) -> None:
    async with nodes(networks, 4) as line:
        inboxes = [Inbox() for _ in line]
        for node, inbox in zip(line, inboxes, strict=True):
            await node.topics.subscribe("open", inbox)
        await until(lambda: sum(len(node.topics.neighbours("open")) for node in line) == 6)
        await line[0].topics.publish("open", b"hello")
        await until(lambda: all(inbox.got for inbox in inboxes[1:]))
        assert [inbox.got for inbox in inboxes] == [[], [b"hello"], [b"hello"], [b"hello"]]
        assert [node.blamed for node in line] == [[], [], [], []]


@pytest.mark.parametrize(("verdict", "blamed"), [(Verdict.IGNORE, 0), (Verdict.REJECT, 1)])
async def test_what_is_not_accepted_goes_no_further(networks: Networks, verdict: Verdict, blamed: int) -> None:
    async with nodes(networks, 3) as line:
        inboxes = [Inbox(), Inbox(verdict), Inbox()]
        for node, inbox in zip(line, inboxes, strict=True):
            await node.topics.subscribe("open", inbox)
        await until(lambda: sum(len(node.topics.neighbours("open")) for node in line) == 4)
        await line[0].topics.publish("open", b"one")
        await until(lambda: bool(inboxes[1].got))
        await line[1].topics.publish("open", b"two")
        await until(lambda: bool(inboxes[2].got))
        assert inboxes[2].got == [b"two"]
        assert len(line[1].blamed) == blamed


async def test_a_receiver_that_raises_or_hangs_harms_nobody(autojump_clock: MockClock) -> None:
    async def bad(peer: PeerId, data: bytes) -> Verdict:
        if data == b"hang":
            await trio.sleep_forever()
        raise RuntimeError("a fault in a receiver")

    async with nodes(MemoryNetworks(), 2) as line:
        await line[0].topics.subscribe("open", Inbox())
        await line[1].topics.subscribe("open", bad)
        await until(lambda: bool(line[0].topics.peers("open")))
        await line[0].topics.publish("open", b"raise")
        await line[0].topics.publish("open", b"hang")
        await trio.sleep(20)
        inbox = Inbox()
        await line[1].topics.subscribe("open", inbox)
        await line[0].topics.publish("open", b"fine")
        await until(lambda: inbox.got == [b"fine"])
        assert line[1].topics.restarts == 0


async def test_a_stranger_who_does_everything_learns_nothing_of_a_topic_that_is_not_for_him(networks: Networks) -> None:
    async with nodes(networks, 3, secret=frozenset({"secret"})) as line:
        member, other, stranger = line
        inboxes = [Inbox(), Inbox()]
        for node, inbox in zip((member, other), inboxes, strict=True):
            await node.topics.subscribe("secret", inbox)
            await node.topics.subscribe("open", Inbox())
        heard = bytearray()

        async def overhear(stream: Stream) -> None:
            while data := await stream.receive_some():
                heard.extend(data)

        stranger.network.set_handler(MESHSUB, overhear)
        await stranger.network.connect(member.network.addresses()[0], expected=None)
        await until(lambda: bool(member.topics.peers("secret")) and bool(other.topics.peers("secret")))
        for victim in (member, other):
            rpc = rpc_pb2.RPC()
            for topic in ("secret", "open"):
                rpc.subscriptions.add(subscribe=True, topicid=topic)
                rpc.control.graft.add(topicID=topic)
                rpc.control.ihave.add(topicID=topic, messageIDs=[b"00" * 46])
            rpc.control.iwant.add(messageIDs=[b"00" * 46])
            stream = await stranger.network.open_stream(victim.network.peer_id, MESHSUB)
            await stream.send_all(encode_frames([rpc.SerializeToString()]))
        await until(lambda: stranger.network.peer_id in member.topics.peers("open"))
        for index in range(5):
            await member.topics.publish("secret", b"secret content %d" % index)
        await member.topics.publish("open", b"open content")
        await until(lambda: len(inboxes[1].got) == 5)
        # The positive control: of the open topic the stranger gets all there is.
        await until(lambda: b"open content" in heard)
        assert b"secret" not in heard
        assert stranger.network.peer_id not in member.topics.peers("secret")


BAD_RPCS = {
    "garbage": b"\xff" * 30,
    "no signature": rpc_pb2.RPC(
        publish=[rpc_pb2.Message(from_id=bytes.fromhex("002408011220") + bytes(32), seqno=b"1", topicIDs=["open"])]
    ).SerializeToString(),
    "bad key": rpc_pb2.RPC(
        publish=[rpc_pb2.Message(from_id=b"\x12\x20" + bytes(32), seqno=b"1", topicIDs=["open"], key=b"\xff" * 40)]
    ).SerializeToString(),
    "no author": rpc_pb2.RPC(
        publish=[rpc_pb2.Message(from_id=b"", data=b"x", topicIDs=["open"], key=b"\xff")]
    ).SerializeToString(),
    "ten thousand subscriptions": rpc_pb2.RPC(
        subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=str(index)) for index in range(10_000)]
    ).SerializeToString(),
    "bad ids": rpc_pb2.RPC(
        control=rpc_pb2.ControlMessage(
            ihave=[rpc_pb2.ControlIHave(topicID="open", messageIDs=[b"zz", b"", b"\xff"])],
            iwant=[rpc_pb2.ControlIWant(messageIDs=[b"not hex", b"0", b"\xff"])],
            graft=[rpc_pb2.ControlGraft(topicID="unknown"), rpc_pb2.ControlGraft(topicID="open")],
            prune=[rpc_pb2.ControlPrune(topicID="open", backoff=2**63)],
        )
    ).SerializeToString(),
    "too many controls": rpc_pb2.RPC(
        control=rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID="open")] * 101)
    ).SerializeToString(),
}  # fmt: skip


@pytest.mark.parametrize("raw", [*BAD_RPCS.values(), None], ids=[*BAD_RPCS.keys(), "oversize"])
async def test_an_rpc_that_breaks_the_rules_harms_only_its_stream(networks: Networks, raw: bytes | None) -> None:
    async with nodes(networks, 2) as line, networks.network("attacker") as attacker:
        inbox = Inbox()
        await line[0].topics.subscribe("open", Inbox())
        await line[1].topics.subscribe("open", inbox)
        peer = await attacker.connect(line[1].network.addresses()[0], expected=None)
        stream = await attacker.open_stream(peer, MESHSUB)
        try:
            await stream.send_all(encode_frames([raw]) if raw is not None else b"\x81\x80\x40")
            await stream.close_write()
            await read_to_end(stream)
        except StreamClosedError:
            pass
        await until(lambda: bool(line[0].topics.peers("open")))
        await line[0].topics.publish("open", b"still here")
        await until(lambda: inbox.got == [b"still here"])
        assert line[1].topics.restarts == 0
        if raw != BAD_RPCS["bad ids"]:
            assert len(line[1].blamed) == 1


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
AUTHOR = Identity(b"\x17" * 32)


def subscribed(count: int) -> rpc_pb2.RPC:
    return rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid="open")] * count)


def published(count: int) -> rpc_pb2.RPC:
    return rpc_pb2.RPC(publish=[signed_message(AUTHOR, "open", b"x", number) for number in range(count)])


def controlled(kind: str, count: int, ids: int = 0) -> rpc_pb2.RPC:
    entry = {"topicID": "open"} if kind != "iwant" else {}
    if kind in ("ihave", "iwant"):
        entry["messageIDs"] = [f"{number:04x}".encode() for number in range(ids)]  # type: ignore[assignment]
    rpc = rpc_pb2.RPC()
    for _ in range(count):
        getattr(rpc.control, kind).add(**entry)
    return rpc


def padded(size_bytes: int) -> rpc_pb2.RPC:
    rpc = rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * 1_900)])
    rpc.subscriptions[0].topicid += "x" * (size_bytes - rpc.ByteSize())
    assert rpc.ByteSize() == size_bytes
    return rpc


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
        assert [round(at - began) for at in got] == [0, 0, 10], "nobody waits for what another address sends"
        assert node.blamed == []


async def test_nothing_is_kept_for_peers_that_gossip_and_have_not_joined() -> None:
    async def drain(stream: Stream) -> None:
        await read_to_end(stream)

    networks = MemoryNetworks()
    async with nodes(networks, 1) as (node,), networks.network("attacker") as attacker:
        await node.topics.subscribe("open", Inbox())
        attacker.set_handler(MESHSUB, drain)
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        pubsub = node.topics._pubsub
        assert pubsub is not None
        await attacker.open_stream(peer, MESHSUB)
        await until(lambda: len(pubsub.peers) == 1)
        for number in range(20):
            await node.topics.publish("open", b"%d" % number)
        assert isinstance(pubsub.router, GossipSub)
        assert pubsub.router._pending_messages == {}


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
        assert waited == [1, 62, 0]


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


async def test_a_router_that_fails_is_started_anew_with_its_topics(networks: Networks) -> None:
    async with nodes(networks, 2) as line:
        inbox = Inbox()
        await line[0].topics.subscribe("open", Inbox())
        await line[1].topics.subscribe("open", inbox)
        await until(lambda: bool(line[0].topics.peers("open")))

        async def fail() -> None:
            raise RuntimeError("a fault in the router")

        broken = line[1].topics._pubsub
        assert broken is not None
        broken.manager.run_task(fail)
        await until(lambda: line[1].topics.restarts == 1 and line[1].topics._pubsub is not broken)
        await until(lambda: bool(line[1].topics.peers("open")) and bool(line[1].topics.neighbours("open")))
        await line[0].topics.publish("open", b"again")
        await until(lambda: inbox.got == [b"again"])


@pytest.mark.parametrize("turns", range(12))
async def test_a_router_that_has_failed_when_it_is_closed_harms_nobody(networks: Networks, turns: int) -> None:
    begun = trio.Event()

    async def fail() -> None:
        begun.set()
        raise RuntimeError("a fault in the router")

    async with nodes(networks, 2) as line:
        for node in line:
            await node.topics.subscribe("open", Inbox())
        await until(lambda: bool(line[0].topics.peers("open")))
        (await line[0].topics._running()).manager.run_task(fail)
        await begun.wait()
        for _ in range(turns):
            await trio.lowlevel.checkpoint()


async def test_what_is_said_after_a_restart_is_new_however_much_was_said_before(networks: Networks) -> None:
    """Peers tell messages apart by author and number. Numbers that begin anew with the second would repeat some."""
    seed = hashlib.sha256(b"sender").digest()
    async with nodes(networks, 1) as (receiver,):
        inbox = Inbox()
        await receiver.topics.subscribe("open", inbox)
        for life in range(2):
            async with networks.network("sender") as network, open_gossip(network, identity_seed=seed) as topics:
                await network.connect(receiver.network.addresses()[0], expected=None)
                await topics.subscribe("open", Inbox())
                await until(lambda topics=topics: bool(topics.neighbours("open")))  # type: ignore[misc]
                said = [b"life %d, number %d" % (life, number) for number in range(20)]
                for words in said:
                    await topics.publish("open", words)
                await until(lambda said=said: inbox.got[-1:] == said[-1:])  # type: ignore[misc]
            assert inbox.got[-20:] == said


async def test_whoever_comes_and_goes_under_ever_new_ids_leaves_nothing(networks: Networks) -> None:
    async with nodes(networks, 2) as line:
        inboxes = [Inbox(), Inbox()]
        for node, inbox in zip(line, inboxes, strict=True):
            await node.topics.subscribe("open", inbox)
        for number in range(20):
            gone = hashlib.sha256(f"gone {number}".encode()).digest()
            await line[0].topics.announce(Identity(gone).peer_id)
        pubsub = await line[0].topics._running()
        assert pubsub._announcing == {}
        await line[0].topics.publish("open", b"still here")
        await until(lambda: inboxes[1].got == [b"still here"])


async def test_peers_that_answer_nothing_hold_up_no_gossip_with_others() -> None:
    limits, seeds = NetworkLimits(open_stream_timeout_s=60), [hashlib.sha256(it).digest() for it in (b"victim", b"bo")]
    with trio.fail_after(20):
        async with (
            victim(limits) as network,
            Libp2pNetwork(identity_seed=seeds[1]) as other,
            open_gossip(network, identity_seed=seeds[0]) as topics,
            open_gossip(other, identity_seed=seeds[1]) as theirs,
        ):
            strangers = [await secured(network) for _ in range(3)]
            await until(lambda: len(network.connected()) == 3)
            inbox = Inbox()
            await topics.subscribe("open", Inbox())
            await theirs.subscribe("open", inbox)
            await other.connect(network.addresses()[0], expected=None)
            await until(lambda: other.peer_id in topics.peers("open") and network.peer_id in theirs.peers("open"))
            await topics.publish("open", b"to who listens")
            await until(lambda: inbox.got == [b"to who listens"])
            assert len(network.connected()) == len(strangers) + 1
            for stranger in strangers:
                stranger.wire.close()


async def test_misuse_is_told_before_anything_is_sent(networks: Networks) -> None:
    async with nodes(networks, 1) as (node,):
        with pytest.raises(MisuseError):
            await node.topics.publish("open", b"not joined")
        await node.topics.subscribe("open", Inbox())
        await node.topics.publish("open", bytes(TOPIC_DATA_MAX_BYTES))
        with pytest.raises(MisuseError):
            await node.topics.publish("open", bytes(TOPIC_DATA_MAX_BYTES + 1))
        with pytest.raises(MisuseError):
            await node.topics.subscribe("not\nprintable", Inbox())
        await node.topics.unsubscribe("open")
        with pytest.raises(MisuseError):
            await node.topics.publish("open", b"left")


async def test_identify_tells_the_key_and_gossip_and_nothing_else(networks: Networks) -> None:
    from libp2p.identity.identify.pb.identify_pb2 import Identify

    async with nodes(networks, 1) as (node,), networks.network("curious") as curious:
        node.network.set_handler("/something/else", Inbox.__call__)  # type: ignore[arg-type]
        peer = await curious.connect(node.network.addresses()[0], expected=None)
        told = Identify.FromString((await read_to_end(await curious.open_stream(peer, IDENTIFY)))[1:])
        assert list(told.protocols) == [MESHSUB]
        assert {field.name for field, _ in told.ListFields()} == {"public_key", "protocols"}


FUZZ_RPCS = int(os.environ.get("P2PMEM_FUZZ_ROUNDS", "40")) * 10


def half_valid_rpc(random: Random) -> bytes:
    """An RPC whose fields are mostly legal, so that it gets far; sometimes cut or changed."""
    topics = ["open", "open", "other", "", "\u00fc" * 100, "x" * 300]
    ids = [b"", b"zz", bytes(8), random.randbytes(20), random.randbytes(200)]
    key = bytes.fromhex("08011220") + random.randbytes(32)

    def topic() -> str:
        return random.choice(topics)

    def some_ids() -> list[bytes]:
        return [random.choice(ids) for _ in range(random.randint(0, 5))]

    rpc = rpc_pb2.RPC()
    for _ in range(random.randint(0, 3)):
        rpc.subscriptions.add(subscribe=random.random() < 0.7, topicid=topic())
    for _ in range(random.randint(0, 3)):
        rpc.publish.add(
            from_id=random.choice((b"", b"\x00\x24" + key, random.randbytes(38))),
            seqno=random.choice((b"", random.randbytes(8), random.randbytes(40))),
            topicIDs=[topic() for _ in range(random.choice((0, 1, 1, 1, 2)))],
            data=random.randbytes(random.choice((0, 10, 5_000))),
            signature=random.randbytes(random.choice((0, 64, 65))),
            key=random.choice((b"", key, random.randbytes(36))),
        )
    if random.random() < 0.7:
        control = rpc.control
        for _ in range(random.randint(0, 4)):
            control.ihave.add(topicID=topic(), messageIDs=some_ids())
            control.iwant.add(messageIDs=some_ids())
            control.graft.add(topicID=topic())
            control.prune.add(topicID=topic(), backoff=random.choice((0, 1, 60, 2**32, 2**64 - 1)))
    data = bytearray(rpc.SerializeToString())
    if data and random.random() < 0.3:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data[: random.randint(0, len(data))] if random.random() < 0.1 else data)


async def test_half_valid_rpcs_harm_nobody_but_who_sends_them(caplog: pytest.LogCaptureFixture) -> None:
    seed = 20_261_130
    print("seed", seed)
    random, networks = Random(seed), MemoryNetworks()
    async with nodes(networks, 2) as line, networks.network("attacker") as attacker:
        inbox = Inbox()
        await line[0].topics.subscribe("open", Inbox())
        await line[1].topics.subscribe("open", inbox)
        await until(lambda: bool(line[0].topics.peers("open")))
        peer = await attacker.connect(line[1].network.addresses()[0], expected=None)
        for number in range(FUZZ_RPCS):
            with contextlib.suppress(StreamClosedError):
                stream = await attacker.open_stream(peer, MESHSUB)
                await stream.send_all(encode_frames([half_valid_rpc(random) for _ in range(random.randint(1, 5))]))
                await stream.close_write()
                with trio.move_on_after(0.002):
                    await read_to_end(stream)
                await stream.reset()
            if number % 100 == 0:
                words = f"still here {number}".encode()
                await line[0].topics.publish("open", words)
                await until(partial(inbox.got.__contains__, words))
        assert line[1].topics.restarts == line[0].topics.restarts == 0
        assert all(it.startswith(b"still here ") for it in inbox.got)
        assert "net.gossip.restarted" not in caplog.text
        assert line[1].blamed
