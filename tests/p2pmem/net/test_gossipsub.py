"""Gossip among three and more, over both networks."""

from __future__ import annotations

import pytest
from p2pmem_protocol.errors import MisuseError

from p2pmem.net.gossipsub import IDENTIFY, MESHSUB
from p2pmem.net.topics import TOPIC_DATA_MAX_BYTES, Verdict

from .conftest import Networks
from .gossip import Inbox, nodes
from .helpers import read_to_end, until


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
