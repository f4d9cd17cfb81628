"""Who asks to be let in is kept out by nobody, and nobody learns what others ask."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.hello import JOIN_PROTOCOL
from p2pmem_protocol.join import ANSWER_BYTES_MAX, Answer, Invite, Reply
from p2pmem_protocol.names import GraphId

from p2pmem.face import MemberChange, NewGraph, NewMember
from p2pmem.net.framing import FrameReader, send_frames
from p2pmem.net.limits import AskLimits, PeerLimits
from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.memory_wire import Link
from p2pmem.net.seam import Stream
from p2pmem.services.join_streams import RELAY_S
from tests.devnet.asking import answer_to, ask_of, dial, ended_at_s, key_of, open_join, owner_behind_nat, raw_peers

ALONE = pytest.mark.cluster(n=1)
BARE = pytest.mark.cluster(n=1, found=False)
PLACES = 16
LIMITS = AskLimits()


async def token_for(owner: ClusterNode, cluster: Cluster, *, ask: bool = False) -> bytes:
    """Of an invite that can be used once."""
    word = await owner.face.invite(cluster.graph, roles=("writer",), uses=1, life_ms=3_600_000, ask=ask)
    return Invite.parse(word).token


# Keeping out


@ALONE
@pytest.mark.parametrize("says", [False, True], ids=["and says nothing", "and asks"])
async def test_one_peer_that_opens_400_streams_a_second_keeps_nobody_out(cluster: Cluster, says: bool) -> None:
    (ada,) = cluster.nodes
    opened = 0
    async with cluster.fabric.network("mallory") as network, trio.open_nursery() as nursery:
        peer = await dial(network, ada)
        said = ask_of(key_of("mallory"), network.peer_id, ada.graph.id, ada.clock.now_ms(), bytes(16)).encode()

        async def occupy() -> None:
            nonlocal opened
            stream = await network.open_stream(peer, JOIN_PROTOCOL)
            opened += 1
            if says:
                await send_frames(stream, said)
            await ended_at_s(stream)

        async def attack() -> None:
            while True:
                nursery.start_soon(occupy)
                await trio.sleep(1 / 400)

        nursery.start_soon(attack)
        await cluster.advance(seconds=1)
        # The ask is a while on its way: who asks has to keep his place for so long.
        cluster.fabric.set_link("new", "ada", Link(delay_s=0.1))
        began = trio.current_time()
        await cluster.join("new")
        assert trio.current_time() - began < RELAY_S, "at the first ask"
        nursery.cancel_scope.cancel()
    assert opened > 400


@ALONE
async def test_who_is_being_listed_when_his_place_is_lost_is_listed_and_told_so(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    await cluster.join("bo")
    token = await token_for(ada, cluster)
    answers: list[Answer | None] = []
    names = [f"stranger{number}" for number in range(2 * PLACES)]
    async with raw_peers(cluster, "cy", *names) as (network, *strangers), trio.open_nursery() as nursery:
        ask = ask_of(key_of("cy"), network.peer_id, ada.graph.id, ada.clock.now_ms(), token, label="cy")

        async def asks() -> None:
            answers.append(await answer_to(network, ada, ask))

        nursery.start_soon(asks)
        await trio.sleep(0.1)
        assert not answers, "bo was listed a moment ago: the next ones wait for each other"
        for stranger in strangers:
            await open_join(stranger, ada)
        for _ in range(LIMITS.per_peer_at_once + 1):
            await open_join(network, ada)
    (answer,) = answers
    assert answer is not None
    assert answer.reply is Reply.LISTED
    assert "cy" in {member.label for member in (await ada.face.graph(cluster.graph)).members}


# Learning what others ask


async def what_an_outsider_sees(
    cluster: Cluster, node: ClusterNode, name: str, graph: GraphId, token: bytes
) -> list[float]:
    """When each stream of an outsider ends, who holds all places from many addresses, opens more, and counts, while
    somebody else asks something. In seconds from the begin, silent ones being let go by then."""
    began = trio.current_time()
    ends: dict[int, float] = {}

    async def watch(number: int, stream: Stream) -> None:
        ends[number] = round(await ended_at_s(stream) - began, 6)

    names = [f"watcher{number}" for number in range(3 * PLACES)]
    async with raw_peers(cluster, name, *names) as (asker, *watchers), trio.open_nursery() as nursery:
        for number in range(PLACES):
            nursery.start_soon(watch, number, await open_join(watchers[number], node))
        await trio.sleep_until(began + 0.5)
        ask = ask_of(key_of(name), asker.peer_id, graph, node.clock.now_ms(), token)
        nursery.start_soon(answer_to, asker, node, ask)
        for number in range(PLACES, 3 * PLACES):
            await trio.sleep_until(began + 0.6 + 0.1 * (number - PLACES))
            nursery.start_soon(watch, number, await open_join(watchers[number], node))
    await trio.sleep_until(began + 60)
    return [ends[number] for number in sorted(ends)]


async def assert_all_asks_look_the_same(cluster: Cluster, node: ClusterNode, owner: ClusterNode) -> None:
    graph = next(iter(node.inside.ledger.graphs))
    member = NewMember(str(key_of("member").address), ("reader",), "member")
    await owner.face.change_members(cluster.graph, MemberChange(set=(member,)))
    await cluster.advance(seconds=30)
    asks = {
        "bystander": (graph, b""),
        "member": (graph, b""),
        "wrong": (graph, bytes(16)),
        "elsewhere": (GraphId(bytes(32)), bytes(16)),
        "nowhere": (GraphId(bytes(32)), b""),
        "good": (graph, await token_for(owner, cluster)),
        "waits": (graph, await token_for(owner, cluster, ask=True)),
    }
    seen = {name: await what_an_outsider_sees(cluster, node, name, *it) for name, it in asks.items()}
    assert len({tuple(ends) for ends in seen.values()}) == 1, seen
    # The positive control: asks are seen, they only look the same.
    assert min(seen["wrong"]) == 0.5


@ALONE
async def test_what_others_ask_an_owner_cannot_be_told_from_who_loses_a_place(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    await assert_all_asks_look_the_same(cluster, ada, ada)


@BARE
async def test_what_a_member_passes_on_cannot_be_told_from_who_loses_a_place(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    cluster.fabric.set_link("ada", "owner", Link(delay_s=0.3))
    await assert_all_asks_look_the_same(cluster, middle, owner)


@BARE
@pytest.mark.parametrize("token", [b"", bytes(16)], ids=["without a token", "with one"])
async def test_which_ask_loses_its_place_does_not_depend_on_what_is_known_of_its_graph(
    cluster: Cluster, token: bytes
) -> None:
    middle, _ = await owner_behind_nat(cluster)
    cluster.fabric.set_link("ada", "owner", Link(delay_s=0.3))
    (known,) = middle.inside.ledger.graphs
    heard: dict[int, tuple[Answer | None, float]] = {}
    began = trio.current_time()

    async def asks(number: int, network: MemoryNetwork) -> None:
        graph = known if number % 2 else GraphId(bytes(32))
        ask = ask_of(key_of(f"asker{number}"), network.peer_id, graph, middle.clock.now_ms(), token)
        heard[number] = await answer_to(network, middle, ask), round(trio.current_time() - began, 6)

    names = [f"peer{number}" for number in range(PLACES + PLACES // 2)]
    async with raw_peers(cluster, *names) as peers, trio.open_nursery() as nursery:
        for number in range(PLACES):
            nursery.start_soon(asks, number, peers[number])
            await trio.sleep(0.001)
        for other in peers[PLACES:]:
            await open_join(other, middle)
    lost = {number: it for number, it in heard.items() if it[0] is None}
    assert sorted(lost) == list(range(PLACES // 2)), "the oldest"
    assert max(at_s for _, at_s in lost.values()) < 0.02, "at once"
    no = Answer(Reply.NO)
    assert [it for number, it in sorted(heard.items()) if number not in lost] == [
        (no, round(RELAY_S + 0.001 * number, 6)) for number in range(PLACES // 2, PLACES)
    ]


@BARE
@pytest.mark.parametrize("token", [b"", bytes(16)], ids=["without a token", "with one"])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
async def test_every_no_comes_at_the_same_moment(cluster: Cluster, token: bytes, known: bool) -> None:
    middle, _ = await owner_behind_nat(cluster)
    graph = next(iter(middle.inside.ledger.graphs)) if known else GraphId(bytes(32))
    async with cluster.fabric.network("mallory") as network:
        began = trio.current_time()
        ask = ask_of(key_of("mallory"), network.peer_id, graph, middle.clock.now_ms(), token)
        assert await answer_to(network, middle, ask) == Answer(Reply.NO)
        assert trio.current_time() - began == pytest.approx(RELAY_S, abs=1e-6)


# Answers that are not taken in


@BARE
async def test_many_who_read_slowly_hold_up_one_roster_and_keep_nobody_from_another(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    graph = await found_large(ada)
    async with raw_peers(cluster, *(f"slow{number}" for number in range(3 * PLACES))) as slow:
        for network in slow:
            await ask_and_do_not_read(network, ada, graph)
        under_way = ada.inside.services.joining._answers._under_way
        assert len(under_way) == 1
        new = await cluster.add("new")
        await new.face.follow(str(ada.inside.ledger.graph(graph).name), addresses=ada.inside.network.addresses())
        await cluster.advance(seconds=20)
        assert not under_way, "what nobody is sent is not kept"


@pytest.mark.cluster(n=1, found=False, limits=PeerLimits(asks=AskLimits(per_peer_at_once=3)))
async def test_one_peer_has_so_many_answers_under_way_and_no_more(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    graph = await found_large(ada)
    async with cluster.fabric.network("slow") as network:
        streams = [await ask_and_do_not_read(network, ada, graph) for _ in range(4)]
        whole = [await has_whole_answer(stream) for stream in streams]
    assert whole == [False] + [True] * 3


async def found_large(node: ClusterNode) -> GraphId:
    """An open graph whose roster does not fit into what may be on its way in a stream."""
    members = tuple(
        NewMember(str(key_of(f"m{number}").address), ("reader",), "\U0001f600" * 64) for number in range(999)
    )
    view = await node.face.found(NewGraph("large", members=members, access="open"))
    return GraphId(bytes.fromhex(view.id.removeprefix("0x")))


async def ask_and_do_not_read(network: MemoryNetwork, node: ClusterNode, graph: GraphId) -> Stream:
    stream = await open_join(network, node)
    ask = ask_of(key_of("reader"), network.peer_id, graph, node.clock.now_ms())
    await send_frames(stream, ask.encode())
    await trio.sleep(0.01)
    return stream


async def has_whole_answer(stream: Stream) -> bool:
    try:
        data = await FrameReader(stream, frame_max_bytes=ANSWER_BYTES_MAX).receive()
    except OutsideError:
        return False
    assert data is not None
    assert Answer.decode(data).reply is Reply.OPEN
    return True
