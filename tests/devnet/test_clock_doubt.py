"""A clock that has jumped is in doubt until it is back, members confirm it, or the operator says that it is right."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, days, hours, minutes
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_jobs import DiskError
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import GraphId

from p2pmem.face import ClockView, MemberChange, NewMember
from p2pmem.ledger import audit
from p2pmem.services.clock_watch import Word, is_confirmed
from p2pmem.services.keeper import Keeper

ALL = "SELECT * { ?s ?p ?o }"
TRUST = "SELECT * { GRAPH ?g { ?asset <http://dkg.io/ontology/trustLevel> ?level } }"
OURS, OTHER = GraphId(bytes(32)), GraphId(b"\1" * 32)


def clock_lines(node: ClusterNode) -> list[str | None]:
    entries = node.inside.ledger.database.read(lambda connection: audit.read(connection, 0, 1_000))
    return [entry.payload for entry in entries if entry.what == "clock"]


async def start_with_wrong_clock(cluster: Cluster, node: ClusterNode) -> None:
    """It starts with a clock that is seven minutes behind, and meets the others with that."""
    cluster.skew(node, minutes(-7))
    await cluster.restart(node)
    await cluster.advance(minutes=1)


@pytest.mark.cluster(n=1)
async def test_a_doubt_that_was_shown_outlives_a_restart_a_moment_later(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=days(7))
    await cluster.advance(minutes=3, seconds=30)  # between two looks of the keeper
    cluster.skew(ada, days(10))
    assert (await ada.face.status()).clock.doubted
    await cluster.advance(seconds=0.01)
    await cluster.restart(ada)
    assert (await ada.face.status()).clock.doubted
    await cluster.advance(minutes=3)
    cluster.skew(ada, days(0))
    await cluster.advance(minutes=1)
    assert ada.sees(asset)


@pytest.mark.cluster(n=3)
async def test_a_clock_that_is_set_right_is_confirmed_by_members_who_told_the_time_before(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=hours(1))
    await cluster.settled()
    await start_with_wrong_clock(cluster, bo)
    warnings = (await bo.face.status()).warnings
    assert sum("+420 s away" in it for it in warnings) == 2, warnings
    cluster.skew(bo, minutes(0))
    assert (await bo.face.status()).clock == ClockView(True, 420_000, members=2, agreeing=2)
    await cluster.advance(minutes=2)
    status = await bo.face.status()
    assert status.clock == ClockView()
    assert not [it for it in status.warnings if "clock" in it], "their clocks are as far away as they are now"
    assert clock_lines(bo) == ["confirmed by members, +420000 ms"]
    await cluster.advance(hours=1)
    assert not bo.sees(asset)
    assert len(bo.graph.set) == 0


@pytest.mark.cluster(n=2)
async def test_one_member_alone_confirms_no_clock_and_the_operator_does(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await ada.share("ex:a ex:b ex:c .", ttl=minutes(5))
    await cluster.settled()
    await start_with_wrong_clock(cluster, bo)
    cluster.skew(bo, minutes(0))
    await cluster.advance(minutes=5)
    status = await bo.face.status()
    assert status.clock == ClockView(True, 420_000, members=1, agreeing=1)
    (warning,) = (it for it in status.warnings if "in doubt" in it)
    assert "nothing is signed that bears a time. If the clock is wrong, set it right; if" in warning, "or start again"
    assert "jumped by +420 s" in warning
    assert "1 of 1 connected member agree" in warning
    assert "p2pmem clock confirm" in warning
    with pytest.raises(OutsideError, match="p2pmem clock confirm"):
        await bo.query(ALL)
    assert await bo.face.confirm_clock() == ClockView()
    assert (await bo.query(ALL)).rows == ()
    assert len(bo.graph.set) == 0
    assert await bo.face.confirm_clock() == ClockView(), "no doubt, nothing to do"
    assert clock_lines(bo) == ["confirmed by the operator, +420000 ms"]


@pytest.mark.cluster(n=3)
async def test_a_whole_site_that_jumps_to_2036_and_back_loses_nothing(cluster: Cluster) -> None:
    """They all agree with each other there, by what they told after the jump."""
    asset = await cluster.nodes[0].share("ex:a ex:b ex:c .", ttl=hours(6))
    await cluster.settled()
    for node in cluster.nodes:
        cluster.skew(node, days(3650))
    await cluster.advance(minutes=30)
    for node in cluster.nodes:
        assert (await node.face.status()).clock.agreeing == 0
        assert node.inside.services.keeper.paused
        cluster.skew(node, days(0))
    await cluster.advance(minutes=30)
    await cluster.settled()
    for node in cluster.nodes:
        assert (await node.face.status()).clock == ClockView()
        assert node.sees(asset)
        assert clock_lines(node) == []


@pytest.mark.cluster(n=1)
async def test_what_is_made_anew_in_doubt_has_everything_when_the_clock_is_back(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=hours(6))
    described = await ada.query(TRUST)
    assert len(described.rows) == 1
    cluster.skew(ada, days(3650))
    await cluster.advance(minutes=2)
    await ada.face.compact()
    with pytest.raises(OutsideError, match="in doubt"):
        await ada.query(ALL)
    assert not ada.sees(asset)
    cluster.skew(ada, days(0))
    await cluster.advance(minutes=2)
    assert ada.sees(asset)
    assert len((await ada.query(ALL)).rows) == 1
    assert (await ada.query(TRUST)).rows == described.rows
    await cluster.advance(hours=6)
    assert (await ada.query(ALL)).rows == ()


@pytest.mark.cluster(n=2)
async def test_a_node_signs_nothing_by_itself_by_a_clock_in_doubt(cluster: Cluster) -> None:
    """What it signed in 2036 would be in its own set alone until then, and stand for what is due before."""
    ada, bo = cluster.nodes
    shared, published = await ada.share("ex:a ex:b ex:c .", ttl=days(7)), "published"
    await ada.publish(published, text="ex:a ex:b ex:d .")
    await cluster.settled()
    ids = {record.id for record in bo.graph.set.records()}
    for lifetimes in (it.inside.services.lifetimes for it in cluster.nodes):
        lifetimes.renews = True
    cluster.skew(ada, days(6))
    cluster.skew(bo, days(3650))
    await cluster.advance(hours=14)
    for node in cluster.nodes:
        assert node.inside.services.keeper.paused
        assert {record.id for record in node.graph.set.records()} == ids
        cluster.skew(node, days(0))
    await cluster.advance(days=6)
    await cluster.settled()
    assert ada.inside.services.lifetimes.renewed == 1, "when it is due"
    assert bo.sees(shared)


@pytest.mark.cluster(n=2)
async def test_what_is_published_in_doubt_is_promised_when_the_clock_is_right(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    cluster.skew(bo, minutes(6))
    await ada.publish("published", text="ex:a ex:b ex:c .")
    await cluster.advance(minutes=5)
    assert [record.kind for record in bo.graph.set.records()] == [Kind.PUBLISH]
    cluster.skew(bo, minutes(0))
    await cluster.advance(minutes=10)
    await cluster.settled()
    assert {record.kind for record in ada.graph.set.records()} == {Kind.PUBLISH, Kind.ACK}


@pytest.mark.cluster(n=1)
async def test_chores_go_on_after_a_clock_that_was_in_2036(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    done_s: list[float] = []

    async def purge_now_and_then(_: Keeper) -> None:
        done_s.append(trio.current_time())

    monkeypatch.setattr(Keeper, "purge_now_and_then", purge_now_and_then)
    await cluster.restart(*cluster.nodes)
    cluster.skew(cluster.nodes[0], days(3650))
    await cluster.advance(minutes=12)
    cluster.skew(cluster.nodes[0], days(0))
    begun_s = trio.current_time()
    await cluster.advance(minutes=11)
    assert sum(it > begun_s for it in done_s) == 2, "every five minutes"


@pytest.mark.cluster(n=3)
async def test_a_node_that_starts_in_2036_loses_nothing(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=days(2))
    await cluster.settled()
    cluster.skew(bo, days(3650))
    for _ in range(2):
        await cluster.restart(bo)
        await cluster.advance(hours=2)
        status = await bo.face.status()
        assert status.clock.doubted
        assert days(3649) < timedelta(milliseconds=status.clock.jumped_ms) < days(3651)
        assert len(bo.graph.set) == 1
        with pytest.raises(OutsideError, match="p2pmem clock confirm"):
            await bo.query(ALL)
    cluster.skew(bo, days(0))
    await cluster.restart(bo)
    await cluster.settled()
    assert (await bo.face.status()).clock == ClockView()
    assert bo.sees(asset)
    assert len((await bo.query(ALL)).rows) == 1


@pytest.mark.cluster(n=1)
async def test_a_machine_that_is_told_the_time_after_its_start_is_not_in_doubt_any_more(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=days(7))
    await cluster.stop(ada)
    await cluster.advance(days=3)
    cluster.skew(ada, days(3650))
    await cluster.restart(ada)
    await cluster.advance(minutes=2)
    assert (await ada.face.status()).clock.doubted
    cluster.skew(ada, days(0))
    assert (await ada.face.status()).clock == ClockView()
    assert ada.sees(asset)
    cluster.skew(ada, minutes(6))
    assert (await ada.face.status()).clock.doubted, "five minutes are what it may jump from now on"


@pytest.mark.cluster(n=2)
async def test_a_node_that_did_not_run_for_months_asks_its_operator_once(cluster: Cluster) -> None:
    _, bo = cluster.nodes
    await cluster.stop(bo)
    cluster.skew(bo, days(91))
    await cluster.restart(bo)
    assert any("off for so long" in it for it in (await bo.face.status()).warnings)
    assert (await bo.face.status()).clock.doubted
    assert await bo.face.confirm_clock() == ClockView()
    await cluster.restart(bo)
    assert (await bo.face.status()).clock == ClockView()


@pytest.mark.cluster(n=2)
async def test_a_machine_that_starts_in_1970_is_not_in_doubt_when_it_starts_with_the_right_time(
    cluster: Cluster,
) -> None:
    _, bo = cluster.nodes
    cluster.skew(bo, days(-20_000))
    await cluster.restart(bo)
    await cluster.advance(hours=2)
    cluster.skew(bo, days(0))
    await cluster.restart(bo)
    assert (await bo.face.status()).clock == ClockView()


@pytest.mark.cluster(n=3)
async def test_members_who_disagree_leave_a_clock_in_doubt(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    await start_with_wrong_clock(cluster, bo)
    cluster.skew(bo, minutes(2))
    await cluster.advance(minutes=5)
    assert (await bo.face.status()).clock == ClockView(True, 540_000, members=2, agreeing=0)
    cluster.skew(bo, minutes(-7))
    await cluster.advance(minutes=1)
    assert (await bo.face.status()).clock == ClockView(), "it is back where it was certain"
    assert ada.inside.services.keeper.paused is cy.inside.services.keeper.paused is False


@pytest.mark.cluster(n=2)
async def test_a_clock_that_cannot_be_confirmed_on_disk_stays_in_doubt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bo = cluster.nodes
    cluster.skew(bo, minutes(7))

    async def refuse(*_: object, **__: object) -> None:
        raise DiskError("database or disk is full")

    with monkeypatch.context() as full:
        full.setattr(bo.inside.ledger.database, "write", refuse)
        with pytest.raises(DiskError):
            await bo.face.confirm_clock()
    assert (await bo.face.status()).clock.doubted
    assert await bo.face.confirm_clock() == ClockView()


@pytest.mark.parametrize(
    ("words", "is_enough"),
    [
        ((), False),
        (((OURS, True),), False),
        (((OURS, True), (OURS, True)), True),
        (((OURS, True), (OURS, True), (OURS, False)), True),
        (((OURS, True), (OURS, True), (OURS, False), (OURS, False)), False),
        (((OURS, True), (OTHER, True)), True),
        # However many keys the owner of another graph lists there, ours has its own word.
        (((OURS, False), *((OTHER, True),) * 1_000), False),
    ],
)
def test_a_clock_is_confirmed_by_two_and_by_most_of_each_graph(
    words: tuple[tuple[GraphId, bool], ...], is_enough: bool
) -> None:
    assert is_confirmed([Word(frozenset((graph,)), agrees) for graph, agrees in words]) is is_enough


@pytest.mark.cluster(n=2)
async def test_by_a_clock_in_doubt_a_person_shares_nothing_and_is_told_what_to_do(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await ada.draft("ex:a ex:b ex:p .", name="p")
    cluster.skew(ada, hours(2))
    for share in (ada.share, ada.publish):
        with pytest.raises(OutsideError, match="p2pmem clock confirm"):
            await share("ex:a ex:b ex:c ." if share == ada.share else "p")
    cluster.skew(ada, hours(0))
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    await bo.endorse(asset)
    cluster.skew(bo, hours(2))
    await bo.endorse(asset, withdraw=True)
    assert bo.inside.services.clock_watch.is_doubted, "what bears no time is signed"
    cluster.skew(bo, hours(0))


@pytest.mark.cluster(n=1)
async def test_a_doubt_outlives_a_restart_and_ends_when_the_clock_is_set_right_before_one(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=days(2))
    cluster.skew(ada, days(3))
    await cluster.advance(minutes=2)
    for _ in range(2):
        await cluster.restart(ada)
        await cluster.advance(minutes=2)
        status = await ada.face.status()
        assert status.clock.doubted
        assert len(ada.graph.set) == 1
    await cluster.stop(ada)
    cluster.skew(ada, days(0))
    await cluster.advance(hours=1)
    await cluster.restart(ada)
    assert (await ada.face.status()).clock == ClockView()
    assert ada.sees(asset)
    await cluster.advance(minutes=2)
    await cluster.restart(ada)
    assert (await ada.face.status()).clock == ClockView()


@pytest.mark.cluster(n=1)
async def test_compacting_purges_nothing_by_a_clock_in_doubt(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    await ada.share("ex:a ex:b ex:d .", ttl=minutes(5))
    await cluster.advance(minutes=6)
    kept = rows_of(ada)
    assert kept
    cluster.skew(ada, days(30))
    await ada.face.compact()
    assert rows_of(ada) == kept, "what ended a moment ago is still there"
    cluster.skew(ada, days(0))


@pytest.mark.cluster(n=2)
async def test_what_a_head_cut_refuses_no_query_in_doubt_and_outlives_another_head(cluster: Cluster) -> None:
    """It is aside for a day, and nobody reads it there."""
    ada, bo = cluster.nodes
    asset = await bo.share("ex:a ex:b ex:c .", ttl=days(20))
    await cluster.settled()
    await ada.change_members(MemberChange(remove=(str(bo.address),), leaked=True, m=0))
    assert not ada.sees(asset)
    cluster.skew(ada, days(3))
    assert (await ada.query(ALL)).rows == ()
    await ada.change_members(MemberChange((NewMember(f"0x{'5e' * 20}", ("reader",)),)))
    cluster.skew(ada, days(0))
    await ada.change_members(MemberChange((NewMember(str(bo.address), ("writer",)),)))
    assert ada.sees(asset)
    await cluster.settled()


def rows_of(node: ClusterNode) -> int:
    """How many items the disk holds that have ended."""
    count: int = node.inside.ledger.database.read(
        lambda it: it.execute("SELECT count(*) FROM item WHERE place = 'expired'").fetchone()
    )[0]
    return count
