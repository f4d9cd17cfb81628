"""Jobs as users see them, over a whole node and a queue whose jobs do what a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from p2pmem_devnet.cluster import Cluster
from p2pmem_jobs import (
    Context,
    Database,
    Happened,
    InlineBlocking,
    Looked,
    PermanentError,
    Queue,
    SystemClock,
    TransientError,
    open_database,
)
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address
from trio.testing import MockClock

from p2pmem.cli.views import show_story
from p2pmem.face import JobView, NewGraph, NewMember, NotFoundError
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from p2pmem.services.absent import Absent
from p2pmem.services.job_desk import JobDesk

ADA, BOB = Key(b"\x17" * 32), Key(b"\x18" * 32)
TURTLE = b"<http://example.org/s> <http://example.org/p> <http://example.org/o> .\n"


@dataclass(frozen=True)
class Order:
    agent: bytes
    text: str


@dataclass(frozen=True)
class Receipt:
    number: int


class World:
    def __init__(self) -> None:
        self.bank_tells = False
        self.answers = False
        self.payments = 0

    def register(self, queue: Queue) -> None:
        @queue.handler("order", version=1)
        async def order(context: Context, args: Order) -> Receipt:
            if args.text == "waits":
                context.progress(1, 3, "1 of 3")
                await context.wait_until("never", lambda: None, timeout_s=3_600, detail="2 of 3; waiting for bob")
            if args.text == "fails":
                raise TransientError("the door is shut")

            async def try_() -> int:
                if not self.answers:
                    raise PermanentError("no answer")
                self.payments += 1
                return 1

            async def look_up() -> Happened[int] | Looked:
                if not self.bank_tells:
                    return Looked.CANNOT_TELL
                return Happened(1) if self.payments else Looked.NOT_HAPPENED

            return Receipt(await context.effect("pay", try_, look_up, note="transaction 0x77"))


@dataclass
class Desk:
    """A desk, its queue, and how to order something in somebody's name."""

    desk: JobDesk
    queue: Queue
    world: World
    database: Database

    async def order(self, text: str, agent: Key = ADA) -> str:
        job = await self.queue.submit("order", Order(bytes(agent.address), text))
        with trio.move_on_after(5):
            async for event in self.queue.watch(job.id):
                if event.state.value in ("outcome_unknown", "waiting") or "door" in event.reason:
                    break
        return job.id


@asynccontextmanager
async def real_node(*keys: Key) -> AsyncIterator[Node]:
    surroundings = Surroundings(blocking=InlineBlocking(), inline=True)
    network = MemoryFabric(seed=1).network("ada")
    async with open_node(NodeSettings("desk", "Ada"), Keyring.of(*keys), network, Places(), surroundings) as node:
        yield node


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    world = World()
    async with (
        real_node(ADA) as node,
        open_database(":memory:", blocking=InlineBlocking()) as database,
    ):
        queue = Queue(database, clock=SystemClock())
        world.register(queue)
        services = node.services
        absent = Absent(services.ledger, services.sessions, services.signing)
        async with queue.run(drain_s=0):
            yield Desk(JobDesk(queue, services.showing, absent), queue, world, database)


async def watched(desk: Desk, job: str, since: int = 0) -> list[JobView]:
    with trio.fail_after(10):
        return [view async for view in desk.desk.watch(job, since)]


# A person's word


@pytest.mark.parametrize(
    ("outcome", "state"), [("succeeded", "succeeded"), ("failed", "failed"), ("retry", "succeeded")]
)
async def test_a_person_says_what_came_of_a_job_whatever_its_handler_returns(
    desk: Desk, outcome: str, state: str
) -> None:
    job = await desk.order("pay")
    assert (await desk.desk.job(job, 0)).state == "outcome_unknown"
    desk.world.bank_tells = desk.world.answers = True
    said = await desk.desk.resolve(job, outcome)
    if outcome != "retry":
        assert said.state == state
    ended = await desk.desk.job(job, 10_000)
    assert (ended.state, ended.result) == (state, {"number": 1} if outcome == "retry" else None)
    for word in ("succeeded", "failed", "retry"):
        with pytest.raises(MisuseError, match="only a job whose outcome is unknown"):
            await desk.desk.resolve(job, word)


async def test_a_word_that_is_none_is_refused(desk: Desk) -> None:
    job = await desk.order("pay")
    for word in ("", "queued", "cancelled", "\ud800"):
        with pytest.raises(MisuseError, match="succeeded, failed or retry"):
            await desk.desk.resolve(job, word)
    assert (await desk.desk.job(job, 0)).state == "outcome_unknown"


# Watching


async def test_who_watches_a_job_that_asks_for_a_person_is_not_kept(desk: Desk) -> None:
    job = await desk.order("pay")
    with trio.fail_after(10):
        assert (await desk.desk.job(job, 60_000)).state == "outcome_unknown"
    (view,) = await watched(desk, job)
    assert view.state == "outcome_unknown"
    assert await watched(desk, job, view.position) == []
    desk.world.bank_tells = desk.world.answers = True
    await desk.desk.resolve(job, "retry")
    assert (await watched(desk, job, view.position))[-1].state == "succeeded"


async def test_a_watch_tells_what_is_and_not_once_for_each_thing_that_was(desk: Desk) -> None:
    desk.world.answers = True
    job = await desk.order("pay")
    (view,) = await watched(desk, job)
    assert (view.state, view.position) == ("succeeded", desk.queue.position(job))
    assert await watched(desk, job, view.position) == []
    assert await watched(desk, job, view.position - 1) == [view]


async def test_a_job_that_is_not_there_cannot_be_watched(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="there is no job"):
        await watched(desk, "nothing")


async def test_who_cancels_is_answered_with_the_end(desk: Desk) -> None:
    for text in ("waits", "fails"):
        job = await desk.order(text)
        assert (await desk.desk.cancel(job)).state == "cancelled"


# Lists


@pytest.mark.parametrize("args", [b"{\xff}", b"[]", b"{", b'{"agent": {"$bytes": "="}, "subject": 7}'])
async def test_a_job_that_is_damaged_is_listed_among_the_others(desk: Desk, args: bytes) -> None:
    job, other = [await desk.order("waits") for _ in range(2)]
    sql = "UPDATE job SET args = CAST(? AS TEXT) WHERE id = ?"
    await desk.database.write(lambda c: c.execute(sql, (args, job)).rowcount)
    first, second = await desk.desk.jobs(None, 10, None, None)
    assert (first.id, first.agent) == (other, str(ADA.address))
    assert (second.id, second.agent, second.state) == (job, "", "waiting")
    assert [it.id for it in await desk.desk.of_agent(ADA.address).jobs(None, 10, None, None)] == [other]


@pytest.mark.parametrize("limit", [0, -1, 1_001])
async def test_a_page_has_bounds_that_are_said(desk: Desk, limit: int) -> None:
    with pytest.raises(MisuseError, match="a page has 1 to 1000 jobs"):
        await desk.desk.jobs(None, limit, None, None)


@pytest.mark.parametrize("before", ["nothing", "1", "' OR 1=1 --", "\x00", "9" * 300])
async def test_a_cursor_that_is_no_job_is_not_found(desk: Desk, before: str) -> None:
    with pytest.raises(NotFoundError):
        await desk.desk.jobs(None, 10, before, None)


async def test_a_list_filters_by_kind_and_state(desk: Desk) -> None:
    job = await desk.order("waits")
    assert [it.id for it in await desk.desk.jobs("waiting", 10, None, "order")] == [job]
    assert await desk.desk.jobs("waiting", 10, None, "other") == ()
    with pytest.raises(MisuseError, match="is no state of a job"):
        await desk.desk.jobs("sleeping", 10, None, None)


# Scope


async def test_an_agent_knows_of_its_own_jobs_alone(desk: Desk) -> None:
    own = await desk.order("waits", BOB)
    other = await desk.order("waits", ADA)
    bob = desk.desk.of_agent(BOB.address)
    assert [it.id for it in await bob.jobs(None, 10, None, None)] == [own]
    with pytest.raises(NotFoundError) as missing:
        await bob.job("0" * len(other), 0)
    calls = (
        lambda: bob.job(other, 0),
        lambda: bob.cancel(other),
        lambda: bob.retry(other),
        lambda: bob.resolve(other, "failed"),
        lambda: bob.jobs(None, 10, other, None),
        lambda: anext(bob.watch(other)),
    )
    for call in calls:
        with pytest.raises(NotFoundError) as refused:
            await call()
        # one answer for what is not there and for what is somebody else's
        assert str(refused.value) == str(missing.value).replace("0" * len(other), other)
    with pytest.raises(NotFoundError):
        bob.story(other)
    assert (await desk.desk.job(other, 0)).state == "waiting"
    assert bob.story(own).job.agent == str(BOB.address)
    await bob.cancel(own)
    assert (await bob.job(own, 10_000)).state == "cancelled"
    assert len(await desk.desk.jobs(None, 10, None, None)) == 2, "the operator sees all"


async def test_an_agent_turns_pages_over_the_jobs_of_others(desk: Desk) -> None:
    desk.world.answers = True
    own = [await desk.order("pay", BOB if number % 3 == 0 else ADA) for number in range(12)][::3]
    bob = desk.desk.of_agent(BOB.address)
    first = await bob.jobs(None, 3, None, None)
    rest = await bob.jobs(None, 3, first[-1].id, None)
    assert [it.id for it in (*first, *rest)] == own[::-1]
    assert await desk.desk.of_agent(Address(bytes(20))).jobs(None, 10, None, None) == ()


# The story


async def test_a_story_says_what_is_missing_how_long_and_what_comes_next(desk: Desk) -> None:
    waits, fails = await desk.order("waits"), await desk.order("fails")
    story = desk.desk.story(waits)
    assert [it.name for it in story.waits] == ["never"]
    assert story.steps == ()
    assert story.open_until_ms == story.waits[0].until_ms
    assert 3_590_000 < story.open_until_ms - story.waits[0].begun_ms <= 3_600_000
    assert "waiting for  2 of 3; waiting for bob" in show_story(story)
    assert "open until" in show_story(story)
    failed = desk.desk.story(fails)
    assert failed.job.next_try_ms > failed.job.created_ms
    assert "next try" in show_story(failed)
    assert "the door is shut" in show_story(failed)
    await desk.desk.cancel(fails)
    await desk.desk.job(fails, 10_000)
    again = await desk.desk.retry(fails)
    assert desk.desk.story(again.id).retry_of == fails
    assert f"retry of  {fails}" in show_story(desk.desk.story(again.id))
    unknown = desk.desk.story(await desk.order("pay"))
    assert "transaction 0x77" in show_story(unknown)
    assert "p2pmem job resolve" in show_story(unknown)


async def test_a_verification_tells_whom_it_waits_for_and_until_when() -> None:
    async with real_node(ADA) as node:
        face = node.face
        member = NewMember(str(BOB.address), ("writer", "verifier"), "Bob")
        graph = (await face.found(NewGraph("findings", (member,), m=1, acks_min=1))).graph
        await face.share_data(graph, "x", TURTLE, format="turtle", base=None, subgraph="", ttl_ms=None)
        deadline_ms = node.services.clock.now_ms() + 3_600_000
        job = await face.verify(graph, "x@1", deadline_ms=deadline_ms)
        story = await face.job_story(job.id)
        assert [(it.label, it.online, it.last_seen_ms) for it in story.absent] == [("Bob", False, 0)]
        assert abs(story.open_until_ms - deadline_ms) < 1_000
        shown = show_story(story)
        assert "nothing yet from  Bob, not seen since this node was started" in shown
        await face.cancel_job(job.id)
        await face.job(job.id, wait_ms=10_000)
        assert (await face.job_story(job.id)).absent == ()
        published = await face.publish(graph, "x")
        assert [it.label for it in (await face.job_story(published.id)).absent] == ["Bob"]
        assert published.waiting_for == "0 members promised to keep it, needed: 1"


async def test_whoever_was_here_and_went_was_last_seen_then(autojump_clock: MockClock) -> None:
    async with Cluster(3, seed=5, quorum=2) as cluster:
        ada, bo, cy = cluster.nodes
        await cluster.settled()
        await cluster.crash(bo)
        await cluster.advance(minutes=90)
        asset = await ada.share("ex:a ex:b ex:c .")
        job = await ada.start_verify(asset)
        story = await ada.call(lambda: ada.face.job_story(job.id))
        absent = {it.agent: it for it in story.absent}
        assert not absent[str(bo.address)].online
        gone_ms = story.job.updated_ms - absent[str(bo.address)].last_seen_ms
        assert 85 * 60_000 < gone_ms < 95 * 60_000
        assert "last seen 1h" in show_story(story)
        assert absent.get(str(cy.address)) is None or absent[str(cy.address)].online
