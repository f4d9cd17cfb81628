"""A member who passes an ask on to the owner can do so, and nothing else with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.hello import MEMBER_PROTOCOL, RELAY_PROTOCOL, Greeting
from p2pmem_protocol.join import Answer, Ask, Invite, Reply, invite_key
from p2pmem_protocol.limits import CREDENTIAL_MS_MAX

from p2pmem.net.framing import FrameDecoder, FrameReader
from p2pmem.net.greet import greet_as_opener
from p2pmem.net.limits import AskLimits, PeerLimits
from p2pmem.net.seam import PeerId, Stream
from p2pmem.services.join_streams import RELAY_S, Turn
from tests.devnet.asking import NETWORK, answer_to, ask_of, dial, key_of, owner_behind_nat, raw_peers, said_on, sessions

BARE = pytest.mark.cluster(n=1, found=False)
LIMITS = AskLimits()
NO = Answer(Reply.NO).encode()


async def token_for(owner: ClusterNode, cluster: Cluster, *, uses: int = 1) -> bytes:
    word = await owner.face.invite(cluster.graph, roles=("writer",), uses=uses, life_ms=3_600_000)
    return Invite.parse(word).token


async def passed_on(member: ClusterNode, owner: ClusterNode, asker: PeerId, ask: Ask) -> list[bytes]:
    """What the owner's node says when a member passes this on as that peer's."""
    stream = await member.inside.network.open_stream(owner.inside.network.peer_id, RELAY_PROTOCOL)
    decoder = FrameDecoder(frame_max_bytes=1 << 20)
    decoder.feed(await said_on(stream, asker.encode(), ask.encode()))
    frames: list[bytes] = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@BARE
async def test_a_member_cannot_use_what_he_passes_on(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    token = await token_for(owner, cluster)
    asker, thief = cluster.fabric.peer_id_of("asker"), middle.inside.network.peer_id
    honest = ask_of(key_of("asker"), asker, owner.graph.id, owner.clock.now_ms(), token, label="asker")
    own = ask_of(key_of("thief"), thief, owner.graph.id, owner.clock.now_ms())
    of_friend = ask_of(key_of("thief"), asker, owner.graph.id, owner.clock.now_ms())
    assert await passed_on(middle, owner, thief, replace(own, entry=honest.entry)) == [NO]
    assert await passed_on(middle, owner, asker, replace(of_friend, entry=honest.entry)) == [NO]
    assert await passed_on(middle, owner, asker, replace(honest, label="another")) == [NO]
    # The control: as it stands it is good, and still was after all that.
    good, answer = await passed_on(middle, owner, asker, honest)
    assert (good, Answer.decode(answer).reply) == (b"", Reply.LISTED)
    assert "asker" in {member.label for member in (await owner.face.graph(cluster.graph)).members}


@BARE
@pytest.mark.parametrize(("minutes", "replies"), [(5, [b"", Reply.LISTED]), (6, [Reply.NO])])
async def test_an_ask_is_good_for_five_minutes(cluster: Cluster, minutes: int, replies: list[bytes | Reply]) -> None:
    middle, owner = await owner_behind_nat(cluster)
    asker = cluster.fabric.peer_id_of("asker")
    token = await token_for(owner, cluster, uses=2)
    ask = ask_of(key_of("asker"), asker, owner.graph.id, owner.clock.now_ms(), token)
    cluster.skew(owner, timedelta(minutes=minutes))
    said = await passed_on(middle, owner, asker, ask)
    assert [Answer.decode(it).reply if it else it for it in said] == replies


@BARE
async def test_a_member_hears_no_token_and_the_owner_keeps_none(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    token = await token_for(owner, cluster)
    heard: list[bytes] = []
    joining = middle.inside.services.joining
    pass_on = joining._pass_on

    async def listen(graph: object, name: object, asker: object, question: bytes, turn: object) -> object:
        heard.append(question)
        return await pass_on(graph, name, asker, question, turn)  # type: ignore[arg-type]

    joining._pass_on = listen  # type: ignore[method-assign,assignment]
    async with raw_peers(cluster, "asker") as (network,):
        ask = ask_of(key_of("asker"), network.peer_id, owner.graph.id, middle.clock.now_ms(), token)
        answer = await answer_to(network, middle, ask)
    assert answer is not None
    assert answer.reply is Reply.LISTED
    (question,) = heard
    key = invite_key(token)
    await cluster.stop(owner)
    ledger = owner.disk.places().ledger
    assert ledger is not None
    with closing(sqlite3.connect(ledger)) as database:
        kept = [value for row in database.execute("SELECT * FROM invite") for value in row]
    assert bytes(key.address) in kept
    for secret in (token, key.secret, keccak256(token)):
        assert secret not in question
        assert secret not in kept


@BARE
async def test_a_member_does_not_pay_for_a_credential_that_is_too_long_by_the_clock_of_the_owner(
    cluster: Cluster,
) -> None:
    middle, owner = await owner_behind_nat(cluster)
    cluster.skew(owner, timedelta(seconds=-2))
    async with raw_peers(cluster, "asker") as (network,):
        now_ms = middle.clock.now_ms()
        ask = ask_of(key_of("asker"), network.peer_id, owner.graph.id, now_ms, bytes(16), life_ms=CREDENTIAL_MS_MAX)
        assert await answer_to(network, middle, ask) == Answer(Reply.NO)
    await cluster.advance(seconds=5)
    assert owner.inside.penalties.reasons.total() == 0
    assert sessions(owner) == {middle.inside.network.peer_id}


# How much is passed on


@BARE
async def test_one_peer_makes_a_member_pass_on_so_much_and_no_more(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    heard = 0
    answer_relayed = owner.inside.services.joining._answer_relayed

    async def count(stream: Stream, member: str, turn: Turn) -> None:
        nonlocal heard
        heard += 1
        await answer_relayed(stream, member, turn)

    owner.inside.services.joining._answer_relayed = count  # type: ignore[method-assign]
    async with raw_peers(cluster, "mallory") as (network,), trio.open_nursery() as nursery:
        for _ in range(LIMITS.per_peer_per_minute + 20):
            ask = ask_of(key_of("mallory"), network.peer_id, owner.graph.id, middle.clock.now_ms(), bytes(16))
            nursery.start_soon(answer_to, network, middle, ask)
            await trio.sleep(0.01)
    assert heard == LIMITS.per_peer_per_minute


@BARE
async def test_past_what_a_member_passes_on_in_all_the_no_is_the_same(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    token = await token_for(owner, cluster)
    now_s = trio.current_time()
    while middle.inside.services.joining._allowances.may_pass_on(now_s):
        pass
    async with raw_peers(cluster, "asker") as (network,):
        ask = ask_of(key_of("asker"), network.peer_id, owner.graph.id, middle.clock.now_ms(), token)
        began = trio.current_time()
        assert await answer_to(network, middle, ask) == Answer(Reply.NO)
        assert trio.current_time() - began == pytest.approx(RELAY_S, abs=1e-6)
        await cluster.advance(seconds=60)
        again = ask_of(key_of("asker"), network.peer_id, owner.graph.id, middle.clock.now_ms(), token)
        answer = await answer_to(network, middle, again)
    assert answer is not None
    assert answer.reply is Reply.LISTED


@BARE
async def test_an_owner_hears_so_many_asks_of_one_peer_from_a_member_and_no_more(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    asker = cluster.fabric.peer_id_of("asker")
    ask = ask_of(key_of("asker"), asker, owner.graph.id, owner.clock.now_ms(), bytes(16))
    said = [await passed_on(middle, owner, asker, ask) for _ in range(LIMITS.per_peer_per_minute + 2)]
    assert said == [[NO]] * LIMITS.per_peer_per_minute + [[], []]
    assert owner.inside.penalties.reasons.total() == 0
    assert sessions(owner) == {middle.inside.network.peer_id}


FEW_AT_ONCE = PeerLimits(asks=AskLimits(relayed_at_once=3, relayed_per_member_at_once=2))


@pytest.mark.cluster(n=3, limits=FEW_AT_ONCE)
async def test_an_owner_hears_so_many_at_once_from_all_members(cluster: Cluster) -> None:
    owner, bo, cy = cluster.nodes
    peer = owner.inside.network.peer_id
    streams = [await it.inside.network.open_stream(peer, RELAY_PROTOCOL) for it in (bo, cy, cy)]
    await trio.sleep(0.1)
    for stream in streams:
        with trio.move_on_after(0.1):
            assert await stream.receive_some() == b"never"
    # One more: the oldest of who has most loses its place.
    streams.append(await bo.inside.network.open_stream(peer, RELAY_PROTOCOL))
    await trio.sleep(0.1)
    assert await said_on(streams[0]) == b""
    for stream in streams[1:]:
        with trio.move_on_after(0.1):
            assert await stream.receive_some() == b"never"


@pytest.mark.cluster(n=1, found=False, limits=PeerLimits(asks=AskLimits(relayed_per_member_at_once=3)))
async def test_an_owner_hears_so_many_at_once_from_one_member(cluster: Cluster) -> None:
    middle, owner = await owner_behind_nat(cluster)
    network = middle.inside.network
    most = 3
    streams = [await network.open_stream(owner.inside.network.peer_id, RELAY_PROTOCOL) for _ in range(most + 1)]
    await trio.sleep(0.1)
    with trio.move_on_after(0):
        assert await streams[1].receive_some() == b"never"
    assert await said_on(streams[0]) == b""
    asker = cluster.fabric.peer_id_of("asker")
    ask = ask_of(key_of("asker"), asker, owner.graph.id, owner.clock.now_ms(), bytes(16))
    assert NO in await said_on(streams[-1], asker.encode(), ask.encode())


@pytest.mark.cluster(n=2)
async def test_all_peers_of_a_member_have_the_places_of_one(cluster: Cluster) -> None:
    owner, bo = cluster.nodes
    async with raw_peers(cluster, "another node of bo") as (network,):
        peer = await dial(network, owner)
        hello = await network.open_stream(peer, MEMBER_PROTOCOL)
        proof = ask_of(bo.key, network.peer_id, owner.graph.id, owner.clock.now_ms()).proof
        ours = Greeting.ours(NETWORK, owner.clock.now_ms())
        reader = FrameReader(hello, frame_max_bytes=1 << 20)
        await greet_as_opener(hello, reader, ours=ours, proof=proof, now_ms=ours.clock_ms)
        most = LIMITS.relayed_per_member_at_once
        streams = [await bo.inside.network.open_stream(peer, RELAY_PROTOCOL) for _ in range(most)]
        await trio.sleep(0.1)
        with trio.move_on_after(1):
            assert await streams[0].receive_some() == b"never"
        await network.open_stream(peer, RELAY_PROTOCOL)
        await trio.sleep(0.1)
        assert await said_on(streams[0]) == b""
        with trio.move_on_after(1):
            assert await streams[1].receive_some() == b"never"
