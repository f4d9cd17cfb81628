"""Peers that speak half-valid bytes above the connection: hello, join, comparisons, and the frames of members.

Longer with P2PMEM_FUZZ_ROUNDS. Below the connection: `tests/p2pmem/net/test_host_fuzz.py`.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol import frames
from p2pmem_protocol.credential import Carry, SignedCarry
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.frames import (
    AskHeaders,
    Fetch,
    FetchPart,
    Frame,
    GraphState,
    Heads,
    ListChange,
    Peers,
    RoundMessage,
    RoundOpen,
)
from p2pmem_protocol.hello import JOIN_PROTOCOL, MEMBER_PROTOCOL, SYNC_PROTOCOL, Greeting, Proof
from p2pmem_protocol.join import Ask
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import GraphId, network_id
from p2pmem_protocol.negentropy import Initiator
from p2pmem_protocol.snapshot import Snapshot

from p2pmem.net.framing import encode_frames
from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.seam import PeerId

TWO = pytest.mark.cluster(n=2)
ROUNDS = int(os.environ.get("P2PMEM_FUZZ_ROUNDS", "40"))
NETWORK = network_id("cluster")
STRANGER = Key(b"\x66" * 32)
KINDS = tuple(sorted(int(kind) for kind in Kind))
QUIET_S = 0.5
MEMORY_GROWTH_MAX_BYTES = 8_000_000


class Hostile:
    """One peer with a key, which may be a member's, and what it says to a node."""

    def __init__(self, cluster: Cluster, network: MemoryNetwork, node: ClusterNode, key: Key, random: Random) -> None:
        (graph,) = node.inside.ledger.graphs.values()
        self.graph: GraphId = graph.id
        self.items = tuple(item_id for _, item_id in graph.set.reconciled(node.clock.now_ms()))[:5]
        self._network, self._node, self._random, self._key = network, node, random, key

    @property
    def now_ms(self) -> int:
        return self._node.clock.now_ms()

    def greeting(self) -> bytes:
        return Greeting.ours(NETWORK, self.now_ms).encode()

    def proof(self) -> Proof:
        return Proof((self._credential(),))

    def _credential(self) -> SignedCarry:
        carry = Carry(NETWORK, self._key.address, self._network.peer_id, 1, self.now_ms + DAY_MS)
        return carry.sign(self._key)

    def _questions(self) -> list[bytes]:
        start = Initiator(Snapshot.build().view()).start()
        content = self.items[0] if self.items else bytes(32)
        return [
            frames.encode(question)
            for question in (
                Heads(self.now_ms, (GraphState(self.graph),)),
                AskHeaders(self.graph),
                RoundOpen(self.graph, bytes(32), self.now_ms, KINDS, start),
                RoundMessage(start),
                Fetch(self.graph, self.items),
                FetchPart(self.graph, content, is_roster=self._random.random() < 0.5),
                Peers(self.graph, ("/ip4/127.0.0.1/tcp/9", "nonsense")),
            )
        ]

    def _frame(self) -> bytes:
        random, raw = self._random, self._node.inside.ledger.raw(self.items[0])
        envelopes = [self._changed(raw) if random.random() < 0.5 else raw] if raw else []
        short_ids = tuple(random.randbytes(8) for _ in range(random.randint(0, 3)))
        lists = (ListChange(self.graph, is_whole=random.random() < 0.5, added=short_ids),)
        return frames.encode(
            Frame(
                seq=random.randint(0, 3),
                ack=random.choice((0, 0, 1, 9)),
                envelopes=tuple(envelopes * random.randint(0, 1)),
                announced=short_ids,
                asked=short_ids,
                lists=lists,
                reconcile=(self.graph,) * random.randint(0, 1),
            )
        )

    def _changed(self, data: bytes) -> bytes:
        """The same with a few bits, its end or its length another."""
        random, out = self._random, bytearray(data)
        for _ in range(random.choice((0, 0, 1, 1, 2, 8))):
            if out:
                out[random.randrange(len(out))] ^= 1 << random.randrange(8)
        if random.random() < 0.2:
            del out[random.randint(0, len(out)) :]
        if random.random() < 0.1:
            out += random.randbytes(random.randint(1, 40))
        return bytes(out)

    async def attack(self) -> None:
        """Half a conversation of one kind, with something wrong in it more often than not."""
        random = self._random
        protocol = random.choice((MEMBER_PROTOCOL, SYNC_PROTOCOL, JOIN_PROTOCOL))
        if protocol == MEMBER_PROTOCOL:
            said = [self.greeting(), self.proof().encode(), *(self._frame() for _ in range(random.randint(0, 3)))]
        elif protocol == SYNC_PROTOCOL:
            said = random.choices(self._questions(), k=random.randint(1, 6))
        else:
            token = random.choice((b"", bytes(16)))
            greeting = Greeting.ours(NETWORK, self.now_ms)
            ask = Ask(greeting, self.proof(), self.graph, "x").enter(token, self._network.peer_id)
            said = [ask.encode()]
        if random.random() < 0.8:
            at = random.randrange(len(said))
            said[at] = self._changed(said[at])
        data = encode_frames(said)
        if random.random() < 0.2:
            data = self._changed(data)
        with suppress(OutsideError):
            await self._say(protocol, data)

    async def _say(self, protocol: str, data: bytes) -> None:
        address = self._node.inside.network.addresses()[0]
        peer: PeerId = await self._network.connect(address, expected=None)
        stream = await self._network.open_stream(peer, protocol)
        try:
            await stream.send_all(data)
            if self._random.random() < 0.5:
                await stream.close_write()
            with trio.move_on_after(QUIET_S):
                while await stream.receive_some():
                    pass
        finally:
            await stream.reset()


async def meet(cluster: Cluster, number: int, node: ClusterNode, key: Key, random: Random) -> None:
    """A new peer comes, is hostile, and goes: with an id of its own, because its last one is kept out by now."""
    async with cluster.fabric.network(f"mallory{number}") as network:
        await Hostile(cluster, network, node, key, random).attack()


def tasks_and_memory() -> tuple[int, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return trio.lowlevel.current_statistics().tasks_living, pages * os.sysconf("SC_PAGE_SIZE")


@TWO
@pytest.mark.parametrize("insider", [False, True], ids=["a stranger", "a member's key"])
async def test_half_valid_words_above_the_connection_harm_nobody(
    cluster: Cluster, insider: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ada, bo = cluster.nodes
    first = await bo.share("ex:one ex:is ex:here .")
    await cluster.until_seen(first, ada)
    random = Random(f"{cluster.seed}/{insider}")
    key = bo.key if insider else STRANGER
    for number in range(ROUNDS):
        await meet(cluster, number, ada, key, random)
    assert "net.handler.failed" not in caplog.text
    assert ada.inside.penalties.reasons, "some of it was refused"
    second = await bo.share("ex:two ex:is ex:here .")
    await cluster.until_seen(second, ada)
    await cluster.settled()
    cluster.audit()


@pytest.mark.slow
@TWO
async def test_tasks_and_memory_are_flat_over_an_hour_of_hostile_traffic(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody new every second of an hour, in virtual time, after ten minutes to grow to size.

    What is left is what a node remembers of each peer on purpose, some 1.4 kB: a ban (of 10,000 peers at most), traffic
    (4,096), an allowance (1,024).
    """
    ada, bo = cluster.nodes
    await cluster.until_seen(await bo.share("ex:one ex:is ex:here ."), ada)
    random = Random(cluster.seed)

    async def come(begin_s: int, end_s: int) -> None:
        for number in range(begin_s, end_s):
            with trio.move_on_after(1):
                await meet(cluster, number, ada, random.choice((STRANGER, bo.key)), random)
                await trio.sleep_forever()
            # What the test itself would keep: the lines between two names, and what was logged.
            for key in [key for key in cluster.fabric._wires if f"mallory{number}" in key]:
                del cluster.fabric._wires[key]
            caplog.clear()

    await come(0, 600)
    tasks, memory = tasks_and_memory()
    await come(600, 3_600)
    tasks_after, memory_after = tasks_and_memory()
    assert abs(tasks_after - tasks) <= 5
    assert memory_after - memory < MEMORY_GROWTH_MAX_BYTES
    print(f"{memory_after - memory} bytes and {tasks_after - tasks} tasks more after another 50 minutes")
    await cluster.until_seen(await bo.share("ex:two ex:is ex:here ."), ada)
