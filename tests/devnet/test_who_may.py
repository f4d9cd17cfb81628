"""Gated graphs move to members and to nobody else, whatever a stranger does. Each test has its positive control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import trio
from p2pmem_devnet.cluster import STARTS_MS, Cluster, minutes
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol import frames
from p2pmem_protocol.credential import Carry, SignedCarry
from p2pmem_protocol.errors import OutsideError, Reason, RefusedError
from p2pmem_protocol.frames import (
    AskHeaders,
    Fetch,
    FetchPart,
    Frame,
    GraphState,
    Heads,
    Peers,
    RoundMessage,
    RoundOpen,
)
from p2pmem_protocol.hello import (
    JOIN_PROTOCOL,
    MEMBER_PROTOCOL,
    PROTOCOL_VERSION,
    RELAY_PROTOCOL,
    SYNC_PROTOCOL,
    Greeting,
    Proof,
    Speakers,
)
from p2pmem_protocol.join import Ask, Chain
from p2pmem_protocol.keys import Key
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import GraphId, GraphName, network_id
from p2pmem_protocol.negentropy import Initiator
from p2pmem_protocol.roster import Header, Parts, SignedHeader
from p2pmem_protocol.snapshot import Snapshot

from p2pmem.face import MemberChange
from p2pmem.net.framing import FrameDecoder, FrameReader, encode_frames
from p2pmem.net.greet import NotWelcomeError, greet_as_opener
from p2pmem.net.limits import PeerLimits
from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.seam import PeerId, Stream

THREE = pytest.mark.cluster(n=3)
MALLORY = Key(b"\x66" * 32)
NETWORK = network_id("cluster")
KINDS = tuple(sorted(int(kind) for kind in Kind))
HELLO_S = 5.0


@asynccontextmanager
async def raw_peer(cluster: Cluster, name: str = "mallory") -> AsyncIterator[MemoryNetwork]:
    """A peer on the cluster's network that is no node: it says what the test says."""
    async with cluster.fabric.network(name) as network:
        yield network


async def dial(network: MemoryNetwork, node: ClusterNode) -> PeerId:
    return await network.connect(node.inside.network.addresses()[0], expected=None)


def now_ms(node: ClusterNode) -> int:
    return node.clock.now_ms()


def credential(key: Key, peer: PeerId, until_ms: int) -> SignedCarry:
    return Carry(NETWORK, key.address, peer, 1, until_ms).sign(key)


async def listen(stream: Stream, quiet_s: float = 10.0) -> bytes:
    """All that comes until the other side ends, or says nothing for so long."""
    heard = b""
    try:
        with trio.move_on_after(quiet_s):
            while data := await stream.receive_some():
                heard += data
    except OutsideError:
        pass
    finally:
        await stream.reset()
    return heard


async def say(network: MemoryNetwork, peer: PeerId, protocol: str, *said: bytes) -> bytes:
    """Say frames on a stream of its own, and hear what comes."""
    stream = await network.open_stream(peer, protocol)
    try:
        await stream.send_all(encode_frames(said))
    except OutsideError:
        return b""
    return await listen(stream)


def questions(graph: GraphId, ids: tuple[bytes, ...], content: bytes, at_ms: int) -> Iterator[bytes]:
    """Everything that may be asked on a sync stream, about one graph."""
    start = Initiator(Snapshot.build().view()).start()
    for question in (
        Heads(at_ms, (GraphState(graph),)),
        AskHeaders(graph),
        RoundOpen(graph, bytes(32), at_ms, KINDS, start),
        RoundMessage(start),
        Fetch(graph, ids),
        FetchPart(graph, content),
        FetchPart(graph, content, is_roster=True),
        Peers(graph, ("/ip4/127.0.0.1/tcp/9",)),
    ):
        yield frames.encode(question)


def chains_of_nothing() -> list[Chain]:
    """A roster that nobody signed, with parts that are none: who looks at it knows the graph."""
    header = Header(
        NETWORK,
        GraphName(MALLORY.address, "any"),
        1,
        1,
        bytes(32),
        0,
        MALLORY.address,
        bytes(32),
        0,
        *(bytes(32) for _ in range(4)),
        MALLORY.address,
    )
    signed = SignedHeader(header, bytes(65))
    return [Chain((signed,), Parts(*[junk] * 4)) for junk in (b"\xff", b"\xa0")]


async def transcript(network: MemoryNetwork, node: ClusterNode, graph: GraphId, ids: tuple[bytes, ...]) -> list[bytes]:
    """All that a stranger who knows ids and names hears from one node, stream by stream, clocks set to one instant."""
    peer = await dial(network, node)
    heard: list[bytes] = []
    content = ids[0] if ids else bytes(32)
    for question in questions(graph, ids, content, now_ms(node)):
        heard.append(await say(network, peer, SYNC_PROTOCOL, question))
    greeting = Greeting.ours(NETWORK, now_ms(node))
    proof = Proof((credential(MALLORY, network.peer_id, now_ms(node) + DAY_MS),))
    heard.append(await say(network, peer, MEMBER_PROTOCOL, greeting.encode(), proof.encode()))
    heard.append(await say(network, peer, MEMBER_PROTOCOL, greeting.encode()))
    heard.append(await say(network, peer, MEMBER_PROTOCOL))
    for token in (b"", bytes(16)):
        ask = Ask(greeting, proof, graph, "mallory").enter(token, network.peer_id)
        heard.append(await say(network, peer, JOIN_PROTOCOL, ask.encode()))
    for chain in chains_of_nothing():
        ask = Ask(greeting, proof, graph, "mallory", chain=chain)
        heard.append(await say(network, peer, JOIN_PROTOCOL, ask.encode()))
    still = b"connected" if peer in network.connected() else b"disconnected"
    heard.append(await say(network, peer, RELAY_PROTOCOL, b"12D3KooWsomebody", ask.encode()))
    return [*(b"".join(map(without_clock, frames_in(data))) for data in heard), still]


def frames_in(data: bytes) -> list[bytes]:
    decoder = FrameDecoder(frame_max_bytes=1 << 20)
    decoder.feed(data)
    found: list[bytes] = []
    while (frame := decoder.next_frame()) is not None:
        found.append(frame)
    assert decoder.buffered_bytes == 0
    return found


def without_clock(frame: bytes) -> bytes:
    """The clock is public, and all that may differ."""
    with suppress(RefusedError):
        return replace(Greeting.decode(frame), clock_ms=STARTS_MS).encode()
    with suppress(RefusedError):
        message = frames.decode(frame)
        return frames.encode(replace(message, clock_ms=STARTS_MS)) if isinstance(message, Heads) else frame
    return frame


@THREE
async def test_a_stranger_hears_the_same_bytes_from_a_member_and_from_who_is_in_no_graph(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    asset = await ada.share("ex:secret ex:is ex:this .")
    await ada.publish(asset)
    await cluster.settled()
    bystander = await cluster.add("bystander")
    graph, ids = ada.graph.id, tuple(record.id for record in ada.graph.set.records())
    assert ids
    async with raw_peer(cluster) as mallory:
        of_a_member = await transcript(mallory, ada, graph, ids)
        of_a_bystander = await transcript(mallory, bystander, graph, ids)
        of_nothing = await transcript(mallory, ada, GraphId(bytes(32)), ids)
    assert of_a_member == of_a_bystander == of_nothing
    assert any(of_a_member)
    secret = [b"secret", graph, *ids, bytes(ada.address), cluster.graph.encode(), ada.graph.head_id]
    assert not [word for word in secret for said in of_a_member if word in said]
    assert ada.inside.penalties.reasons == bystander.inside.penalties.reasons


@THREE
async def test_the_same_questions_bring_a_member_everything(cluster: Cluster) -> None:
    """The positive control of the test above: the questions are right, only who asks is not."""
    ada, bo, _ = cluster.nodes
    await ada.share("ex:secret ex:is ex:this .")
    await cluster.settled()
    graph, ids = ada.graph.id, tuple(record.id for record in ada.graph.set.records())
    peer = ada.inside.network.peer_id
    heard = b""
    for question in questions(graph, ids, ids[0], now_ms(ada)):
        stream = await bo.inside.network.open_stream(peer, SYNC_PROTOCOL)
        await stream.send_all(encode_frames([question]))
        heard += await listen(stream)
    assert b"secret" in heard
    assert bytes(ada.address) in heard


@THREE
async def test_a_member_credential_from_another_peer_opens_nothing_and_is_punished(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    (stolen,) = bo.inside.services.sessions._papers.credentials()
    async with raw_peer(cluster) as mallory:
        peer = await dial(mallory, ada)
        greeting = Greeting.ours(NETWORK, now_ms(ada))
        heard = await say(mallory, peer, MEMBER_PROTOCOL, greeting.encode(), Proof((stolen,)).encode())
        assert len(frames_in(heard)) == 1, "the public greeting and nothing else"
        assert (
            ada.inside.penalties.reasons[Reason.WRONG_SIGNER] + ada.inside.penalties.reasons[Reason.BAD_SIGNATURE] == 1
        )
        await trio.sleep(0.1)
        assert mallory.connected() == frozenset()
        with pytest.raises(OutsideError):
            await dial(mallory, ada)
    # The one whose it is was not harmed.
    assert bo.inside.network.peer_id in {it.peer for it in ada.inside.services.sessions.all()}


@THREE
@pytest.mark.parametrize("said", [0, 1], ids=["says nothing", "greets and says nothing more"])
async def test_half_a_hello_is_over_in_five_seconds(cluster: Cluster, said: int) -> None:
    ada, *_ = cluster.nodes
    async with raw_peer(cluster) as mallory:
        stream = await mallory.open_stream(await dial(mallory, ada), MEMBER_PROTOCOL)
        began = trio.current_time()
        if said:
            await stream.send_all(encode_frames([Greeting.ours(NETWORK, now_ms(ada)).encode()]))
        await listen(stream, quiet_s=60)
        assert trio.current_time() - began == pytest.approx(HELLO_S, abs=0.01)


@THREE
async def test_five_seconds_bind_whoever_answers_too(cluster: Cluster) -> None:
    """A node that dialled a peer which never answers goes on with its life."""
    ada, *_ = cluster.nodes

    async def say_nothing(stream: Stream) -> None:
        await trio.sleep_forever()

    async with raw_peer(cluster) as mallory:
        mallory.set_handler(MEMBER_PROTOCOL, say_nothing)
        peer = await ada.inside.network.connect(mallory.addresses()[0], expected=None)
        began = trio.current_time()
        with pytest.raises(NotWelcomeError):
            await ada.inside.services.sessions.open(peer)
        assert trio.current_time() - began == pytest.approx(HELLO_S, abs=0.01)


@THREE
async def test_a_thousand_hellos_of_a_stranger_hold_up_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo, cy = cluster.nodes
    checked: list[Proof] = []
    check = Proof.check
    monkeypatch.setattr(Proof, "check", lambda proof, at_ms: checked.append(proof) or check(proof, at_ms))
    async with raw_peer(cluster) as mallory:
        peer = await dial(mallory, ada)
        greeting = Greeting.ours(NETWORK, now_ms(ada)).encode()
        proof = Proof((credential(MALLORY, mallory.peer_id, now_ms(ada) + DAY_MS),)).encode()
        began_ms = now_ms(ada)
        sizes: set[int] = set()
        streams: set[int] = set()
        for number in range(1_000):
            sizes.add(len(await say(mallory, peer, MEMBER_PROTOCOL, greeting, proof)))
            if number % 250 == 0:
                asset = await bo.share(f"ex:number ex:is {number} .")
                await cluster.until_seen(asset, ada, cy)
                streams.add(len(ada.inside.services.sessions.all()))
        assert len(sizes) == 1, "and those that come too often hear the same"
        assert streams == {2}
        passed_ms = now_ms(ada) - began_ms
        assert len(checked) <= PeerLimits().hellos_per_address_per_minute * (1 + passed_ms / 60_000), (
            "signatures cost, so of many hellos few are looked at"
        )
    assert MALLORY.address not in {s.agent for it in ada.inside.services.sessions.all() for s in it.speakers.speakers}


@THREE
@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (lambda at: Greeting.ours(network_id("another"), at), Reason.WRONG_NETWORK),
        (lambda at: replace(Greeting.ours(NETWORK, at), version=PROTOCOL_VERSION - 1), Reason.BAD_VERSION),
    ],
    ids=["another network", "another version"],
)
async def test_who_cannot_be_understood_is_told_the_greeting_and_refused(
    cluster: Cluster, greeting: object, reason: Reason
) -> None:
    ada, bo, _ = cluster.nodes
    assert callable(greeting)
    async with raw_peer(cluster) as mallory:
        peer = await dial(mallory, ada)
        proof = Proof((credential(bo.key, mallory.peer_id, now_ms(ada) + DAY_MS),))
        heard = await say(mallory, peer, MEMBER_PROTOCOL, greeting(now_ms(ada)).encode(), proof.encode())
        assert len(frames_in(heard)) == 1
        assert ada.inside.penalties.reasons[reason] == 1
        status = await ada.face.status()
        word = reason.name.lower().replace("_", "-")
        assert [(it.where, it.count) for it in status.refused if it.reason == word] == [("peer", 1)]
    # The same credential under the right greeting is welcome.
    async with raw_peer(cluster, "other") as second:
        session = await member_hello(second, ada, bo.key, now_ms(ada) + DAY_MS)
        assert {it.agent for it in session[1].speakers} == {ada.address}


async def member_hello(
    network: MemoryNetwork, node: ClusterNode, key: Key, until_ms: int
) -> tuple[FrameReader, Speakers, Stream]:
    """Say hello as the agent of `key`; returns what to read frames from, and who the node speaks for."""
    peer = await dial(network, node)
    stream = await network.open_stream(peer, MEMBER_PROTOCOL)
    reader = FrameReader(stream, frame_max_bytes=1 << 20)
    ours = Greeting.ours(NETWORK, now_ms(node))
    proof = Proof((credential(key, network.peer_id, until_ms),))
    _, speakers = await greet_as_opener(stream, reader, ours=ours, proof=proof, now_ms=now_ms(node))
    return reader, speakers, stream


async def pushed(reader: FrameReader, within_s: float) -> list[bytes]:
    """Envelopes that come over a member stream, until it ends or time is up."""
    found: list[bytes] = []
    with trio.move_on_after(within_s):
        try:
            while (data := await reader.receive()) is not None:
                message = frames.decode(data)
                if isinstance(message, Frame):
                    found += message.envelopes
        except OutsideError:
            pass
    return found


@THREE
async def test_a_credential_that_ends_ends_the_session_at_that_instant(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    async with raw_peer(cluster) as second:
        reader, _, _ = await member_hello(second, ada, bo.key, now_ms(ada) + 60_000)
        await ada.share("ex:before ex:the ex:end .")
        got = await pushed(reader, 5.0)
        assert any(b"before" in it for it in got)
        began = now_ms(ada)
        assert [it for it in await pushed(reader, 120.0) if b"after" in it] == []
        assert now_ms(ada) - began <= 60_000, "the stream ended with the credential"
        assert second.peer_id not in {it.peer for it in ada.inside.services.sessions.all()}
        await ada.share("ex:after ex:the ex:end .")
        with pytest.raises(NotWelcomeError):
            await member_hello(second, ada, MALLORY, now_ms(ada) + 60_000)


@THREE
async def test_a_credential_that_has_ended_or_lasts_too_long_is_none(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    for until_ms in (0, 1, 90 * DAY_MS + 1):
        async with raw_peer(cluster) as second:
            with pytest.raises(OutsideError):
                await member_hello(
                    second, ada, bo.key, now_ms(ada) + until_ms if until_ms > 1 else now_ms(ada) - until_ms
                )
        await ada.face.unban_peer(second.peer_id) if ada.inside.penalties.banned() else None
    async with raw_peer(cluster) as second:
        assert await member_hello(second, ada, bo.key, now_ms(ada) + 90 * DAY_MS)


@THREE
async def test_a_member_that_is_removed_gets_nothing_from_that_instant_on(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    control = await ada.share("ex:before ex:is ex:shared .")
    await cluster.until_seen(control, cy)
    async with raw_peer(cluster) as second:
        reader, _, _ = await member_hello(second, ada, cy.key, now_ms(ada) + DAY_MS)
        async with trio.open_nursery() as nursery:
            got: list[bytes] = []

            async def collect() -> None:
                got.extend(await pushed(reader, 3_600))

            nursery.start_soon(collect)
            await ada.change_members(MemberChange(remove=(str(cy.address),), m=1))
            after = await ada.share("ex:after ex:is ex:not .")
            await bo.inside.ledger.until(lambda: bo.graph.head_id == ada.graph.head_id)
            also = await bo.share("ex:nor ex:is ex:this .")
            await cluster.advance(minutes=30)
            nursery.cancel_scope.cancel()
    assert not [it for it in got if b"after" in it or b"nor" in it]
    assert cy.sees(control)
    assert not cy.sees(after)
    assert not cy.sees(also)
    assert bo.sees(after)


@THREE
async def test_a_clock_that_is_far_off_is_seen_by_others_and_nothing_is_reconciled(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    cluster.skew(bo, minutes(7))
    await cluster.restart(bo)
    await cluster.advance(seconds=30)
    detail = await ada.face.peer(bo.inside.network.peer_id)
    assert detail.state == "member"
    assert detail.clock_apart_ms == pytest.approx(420_000, abs=1_000)
    assert any("+420 s away" in warning for warning in (await ada.face.status()).warnings)
    cluster.skew(bo, minutes(0))
    await cluster.restart(bo)
    await cluster.advance(seconds=30)
    assert abs((await ada.face.peer(bo.inside.network.peer_id)).clock_apart_ms) < 1_000
