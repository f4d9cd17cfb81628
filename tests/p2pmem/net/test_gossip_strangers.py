"""Gossip with strangers, and with people who do not keep to the rules."""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import partial
from random import Random

import pytest
import trio
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2

from p2pmem.net.framing import encode_frames
from p2pmem.net.gossipsub import MESHSUB, open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import NetworkLimits, Stream, StreamClosedError
from p2pmem.net.secure import Identity
from p2pmem.net.topics import Verdict

from .attacker import secured, victim
from .conftest import MemoryNetworks, Networks
from .gossip import Inbox, nodes, published
from .helpers import read_to_end, until


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


@pytest.mark.parametrize("is_signed", [True, False], ids=["rejected", "not signed"])
async def test_an_rpc_full_of_faults_is_held_against_its_sender_once(is_signed: bool) -> None:
    networks = MemoryNetworks()
    async with nodes(networks, 1) as (node,), networks.network("attacker") as attacker:
        inbox = Inbox(Verdict.REJECT)
        await node.topics.subscribe("open", inbox)
        peer = await attacker.connect(node.network.addresses()[0], expected=None)
        rpc = published(40)
        if not is_signed:
            for message in rpc.publish:
                message.signature = bytes(64)
        stream = await attacker.open_stream(peer, MESHSUB)
        await stream.send_all(encode_frames([rpc.SerializeToString()]))
        with trio.fail_after(10), pytest.raises(StreamClosedError):
            await read_to_end(stream)
        assert len(node.blamed) == 1
        assert len(inbox.got) == is_signed
