"""Receivers and routers that fail, and gossip that begins anew."""

from __future__ import annotations

import hashlib

import pytest
import trio
from trio.testing import MockClock

from p2pmem.net.gossipsub import open_gossip
from p2pmem.net.seam import PeerId
from p2pmem.net.topics import Verdict

from .conftest import MemoryNetworks, Networks
from .gossip import Inbox, nodes
from .helpers import until


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
