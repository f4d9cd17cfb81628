"""A signed ask that is said again, by who passed it on or at once on many streams, takes no more than one use."""

from __future__ import annotations

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.join import Answer, Ask, Invite, Reply
from p2pmem_protocol.keys import Key

from p2pmem.net.memory import MemoryNetwork
from p2pmem.net.seam import PeerId
from p2pmem.services.join_once import Once
from tests.devnet.asking import answer_to, ask_of, key_of, raw_peers

USES = 5


async def token_of(owner: ClusterNode, graph: str, *, ask: bool) -> bytes:
    word = await owner.face.invite(graph, roles=("writer",), uses=USES, life_ms=3_600_000, ask=ask)
    return Invite.parse(word).token


def uses_left(owner: ClusterNode) -> int:
    return int(owner.inside.ledger.database.read(lambda it: it.execute("SELECT uses FROM invite").fetchone()[0]))


async def ask_at_once(network: MemoryNetwork, owner: ClusterNode, ask: Ask, times: int) -> list[Answer | None]:
    answers: list[Answer | None] = []

    async def one() -> None:
        answers.append(await answer_to(network, owner, ask))

    async with trio.open_nursery() as nursery:
        for _ in range(times):
            nursery.start_soon(one)
    return answers


@pytest.mark.cluster(n=2)
@pytest.mark.parametrize("ask_a_person", [False, True])
async def test_an_ask_that_is_said_many_times_at_once_takes_one_use(
    cluster: Cluster, ask_a_person: bool, caplog: pytest.LogCaptureFixture
) -> None:
    owner, _ = cluster.nodes
    token = await token_of(owner, cluster.graph, ask=ask_a_person)
    async with raw_peers(cluster, "newcomer") as (network,):
        ask = ask_of(key_of("newcomer"), network.peer_id, owner.graph.id, owner.clock.now_ms(), token)
        answers = await ask_at_once(network, owner, ask, 4)
    replies = [it.reply for it in answers if it is not None]
    assert len(replies) == 4
    assert set(replies) == {Reply.NO, Reply.WAITING if ask_a_person else Reply.LISTED}
    assert uses_left(owner) == USES - 1
    assert len(await owner.face.join_requests(cluster.graph)) == ask_a_person
    assert "net.handler.failed" not in caplog.text


@pytest.mark.cluster(n=2)
async def test_who_loses_his_connection_while_he_is_listed_and_asks_again_takes_no_second_use(cluster: Cluster) -> None:
    owner, _ = cluster.nodes
    token = await token_of(owner, cluster.graph, ask=False)
    last = key_of("somebody listed just before"), key_of("newcomer")
    async with raw_peers(cluster, "before", "newcomer") as (before, network):
        # Who is listed right after another waits until others may be listed with it.
        ask = ask_of(last[0], before.peer_id, owner.graph.id, owner.clock.now_ms(), token)
        assert (await ask_at_once(before, owner, ask, 1))[0] is not None

        def ask_now() -> Ask:
            return ask_of(last[1], network.peer_id, owner.graph.id, owner.clock.now_ms(), token)

        with trio.move_on_after(1):
            await ask_at_once(network, owner, ask_now(), 1)
        await network.disconnect(PeerId(owner.inside.network.peer_id), "a cut wire")
        (again,) = await ask_at_once(network, owner, ask_now(), 1)
        assert again is not None
        assert again.reply is Reply.WAITING
        await trio.sleep(5)
        (again,) = await ask_at_once(network, owner, ask_now(), 1)
        assert again is not None
        assert again.reply is Reply.LISTED
    assert uses_left(owner) == USES - 2


@pytest.mark.cluster(n=2)
async def test_who_was_refused_by_a_person_is_not_asked_for_again_by_who_passed_it_on(cluster: Cluster) -> None:
    owner, _ = cluster.nodes
    token = await token_of(owner, cluster.graph, ask=True)
    async with raw_peers(cluster, "newcomer") as (network,):
        now_ms = owner.clock.now_ms()
        ask = ask_of(key_of("newcomer"), network.peer_id, owner.graph.id, now_ms, token)
        assert await answer_to(network, owner, ask) == Answer(Reply.WAITING)
        (request,) = owner.inside.services.joining.requests(None)
        await owner.inside.services.joining.decide(request.id, approve=False)
        await trio.sleep(60)
        assert await answer_to(network, owner, ask) == Answer(Reply.NO)
        assert uses_left(owner) == USES - 1
        # He himself may ask anew.
        anew = ask_of(key_of("newcomer"), network.peer_id, owner.graph.id, owner.clock.now_ms(), token)
        assert await answer_to(network, owner, anew) == Answer(Reply.WAITING)


@pytest.mark.cluster(n=2)
async def test_who_asks_many_times_at_once_without_a_good_entry_hears_no_each_time(cluster: Cluster) -> None:
    owner, _ = cluster.nodes
    async with raw_peers(cluster, "mallory") as (network,):
        ask = ask_of(key_of("mallory"), network.peer_id, owner.graph.id, owner.clock.now_ms(), bytes(16))
        assert await ask_at_once(network, owner, ask, 4) == [Answer(Reply.NO)] * 4


def test_what_nobody_can_say_again_is_forgotten() -> None:
    once, invite, agent = Once(), Key(b"\1" * 32).address, Key(b"\2" * 32).address
    assert once.take(invite, agent, 1_000_000, 1_000_000)
    assert not once.take(invite, agent, 1_000_000, 1_000_000)
    assert once.take(agent, agent, 1_000_000, 1_000_000)
    assert once.take(invite, agent, 1_300_000, 1_300_000)
    assert not once.take(invite, agent, 1_000_000, 1_300_000), "it is five minutes old and would be heard"
    assert once.take(invite, agent, 1_300_001, 1_300_001)
    assert len(once._taken) == 2
    once.give_back(invite, agent, 1_300_001)
    assert once.take(invite, agent, 1_300_001, 1_300_001)
