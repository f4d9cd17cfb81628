"""Delivery in whole nodes: nothing is lost, nothing outlives its time, and what is not needed is not sent."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster, days, hours, minutes, seconds
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.ledger import admission, audit

IDLE_ROUND_BYTES_MAX = 320
"""Question and answer of one comparison of one graph, both ways, with their frames."""


def sent_bytes(node: ClusterNode) -> int:
    return sum(it.stream_sent_bytes for it in node.inside.network.statistics().peers.values())


async def share_many(
    node: ClusterNode, count: int, *, first: int = 0, ttl_ms: int | None = None, every_ms: int = 0, subgraph: str = ""
) -> None:
    """Share so many one after the other; each lives `every_ms` longer than the one before."""
    for number in range(first, first + count):
        life_ms = None if ttl_ms is None else ttl_ms + every_ms * number
        data = f'<http://ex.org/{number}> <http://ex.org/says> "{"word " * 40}{number}" .\n'.encode()
        await node.face.share_data(
            node.cluster.graph, f"a{number}", data, format="nt", base=None, subgraph=subgraph, ttl_ms=life_ms
        )


@pytest.mark.cluster(n=2)
async def test_an_idle_minute_costs_some_hundred_bytes(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await share_many(ada, 300)
    await cluster.settled()
    await cluster.advance(minutes=3)
    before = sent_bytes(ada) + sent_bytes(bo)
    await cluster.advance(minutes=20)
    # Each compares with the other once a minute, give or take a fifth.
    assert sent_bytes(ada) + sent_bytes(bo) - before < 2 * 26 * IDLE_ROUND_BYTES_MAX


@pytest.mark.cluster(n=2)
async def test_rounds_stay_idle_while_fifty_end_each_second_and_clocks_are_twenty_seconds_apart(
    cluster: Cluster,
) -> None:
    ada, bo = cluster.nodes
    cluster.skew(bo, seconds(20))
    await share_many(ada, 500, ttl_ms=300_000, every_ms=20)
    await cluster.settled()
    await cluster.advance(seconds=290)
    before = sent_bytes(ada) + sent_bytes(bo)
    fetched: list[int] = []
    for _ in range(40):
        await cluster.advance(seconds=1)
        ada.inside.exchange.compare_now()
        bo.inside.exchange.compare_now()
        for node in (ada, bo):
            fetched += [last.comparison.fetched for last in node.inside.exchange.last_comparisons().values()]
    assert len(ada.graph.set) == 0
    assert set(fetched) == {0}
    # Whoever is behind is answered with a set as of the later clock, which then is compared once more.
    assert sent_bytes(ada) + sent_bytes(bo) - before < 2 * 2 * 42 * IDLE_ROUND_BYTES_MAX


@pytest.mark.cluster(n=2)
async def test_who_comes_late_gets_everything_and_little_besides(cluster: Cluster) -> None:
    ada, _ = cluster.nodes
    for number, subgraph in enumerate(("", "one", "two")):
        await share_many(ada, 70, first=70 * number, subgraph=subgraph, ttl_ms=3_600_000)
    published = await ada.publish(text="ex:what ex:stays ex:published .")
    await cluster.settled()
    payload_bytes = sum(len(ada.inside.ledger.raw(record.id) or b"") for record in ada.graph.set.records())
    late = await cluster.join("late")
    await cluster.settled()
    assert late.sees(published)
    assert {it.id: it.ends_at_ms for it in late.graph.set.records()} == {
        it.id: it.ends_at_ms for it in ada.graph.set.records()
    }
    received = sum(it.stream_received_bytes for it in late.inside.network.statistics().peers.values())
    assert received < 1.3 * payload_bytes + 60_000, "what is fetched, and rosters, lists and hellos"


@pytest.mark.cluster(n=3)
async def test_who_stops_half_way_goes_on_and_the_owner_need_not_be_there(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    await cluster.stop(cy)
    await share_many(ada, 200)
    await cluster.settled()
    await cluster.crash(ada)
    await cluster.restart(cy)

    def on_disk() -> int:
        sql = "SELECT count(*) FROM item WHERE place = 'in'"
        return int(cy.inside.ledger.database.read(lambda connection: connection.execute(sql).fetchone()[0]))

    # The memory may be ahead of the disk by one commit, which a crash takes back.
    await cy.inside.ledger.until(lambda: on_disk() > 0)
    had = on_disk()
    await cluster.crash(cy)
    await cluster.restart(cy)
    assert len(cy.graph.set) >= had
    await cluster.settled()
    assert len(cy.graph.set) == len(bo.graph.set) == 200


@pytest.mark.cluster(n=2)
async def test_what_ends_together_is_returned_by_no_face_and_swept_in_pieces(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SWEPT_AT_ONCE", 50)
    ada, bo = cluster.nodes
    count = 120
    await share_many(ada, count, ttl_ms=3_600_000)
    kept = await ada.share("ex:this ex:lives ex:longer .", ttl=hours(3))
    ends_ms = max(it.ends_at_ms for it in ada.graph.set.records() if it.ends_at_ms < ada.clock.now_ms() + 3_700_000)
    await cluster.settled()
    await cluster.advance(seconds=(ends_ms - ada.clock.now_ms()) / 1000)
    for node in (ada, bo):
        assert [it.reference for it in await node.versions()] == [kept.reference]
        answer = await node.query("SELECT ?s WHERE { ?s <http://ex.org/says> ?o }")
        assert answer.rows == ()
        assert await node.recall("word") == []
        assert len(node.graph.set) == 1
        entries = node.inside.ledger.database.read(lambda connection: audit.read(connection, 0, 10_000))
        sweeps = [it for it in entries if it.what == "sweep"]
        assert sum(int((it.payload or "0").split()[0]) for it in sweeps) == count
    # The last instant ends those that were shared in it; a sweep of more than a piece is one line all the same.
    await cluster.advance(minutes=20)
    for node in (ada, bo):
        left = node.inside.ledger.database.read(
            lambda connection: connection.execute("SELECT count(*) FROM item WHERE place = 'expired'").fetchone()[0]
        )
        assert left == 0, "ten minutes after their end the bytes are gone"


@pytest.mark.cluster(n=2)
@pytest.mark.parametrize("life_ms", [0, -1, 2**63, 253_402_300_799_000])
async def test_lives_that_cannot_be_are_refused(cluster: Cluster, life_ms: int) -> None:
    ada, _ = cluster.nodes
    with pytest.raises(MisuseError, match="life"):
        await ada.face.share_data(
            cluster.graph,
            "a",
            b"<http://a> <http://b> <http://c> .\n",
            format="nt",
            base=None,
            subgraph="",
            ttl_ms=life_ms,
        )
    assert len(ada.graph.set) == 0
    await ada.draft("ex:a ex:b ex:c .", name="b")
    with pytest.raises(MisuseError, match="life"):
        await ada.face.share(cluster.graph, "b", ttl_ms=life_ms)
    assert len(ada.graph.set) == 0


@pytest.mark.cluster(n=2)
async def test_a_clock_ten_minutes_off_is_refused_and_shown_and_thirty_seconds_are_harmless(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    cluster.skew(bo, seconds(30))
    asset = await bo.share("ex:a ex:b ex:c .")
    await cluster.settled()
    assert ada.sees(asset)
    cluster.skew(bo, minutes(10))
    await cluster.restart(bo)
    await cluster.advance(minutes=2)
    status = await ada.face.status()
    assert any("+600 s away" in it for it in status.warnings), status.warnings
    assert any(it.clock_apart_ms == 600_000 for it in status.peers)
    cluster.skew(bo, seconds(0))
    await cluster.restart(bo)
    later = await bo.share("ex:a ex:b ex:d .")
    await cluster.settled()
    assert ada.sees(later)
    assert not (await ada.face.status()).warnings


@pytest.mark.cluster(n=2)
async def test_a_clock_that_goes_to_2036_and_back_loses_nothing(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await share_many(ada, 20, ttl_ms=3_600_000)
    await cluster.settled()
    cluster.skew(bo, days(3650))
    await cluster.advance(minutes=3)
    assert await bo.versions() == [], "nothing that has ended by this clock is returned"
    assert bo.inside.services.keeper.paused
    assert any("clock jumped" in it for it in (await bo.face.status()).warnings)
    with pytest.raises(OutsideError, match="something has ended that a query would still find"):
        await bo.query("SELECT * { ?s ?p ?o }")
    cluster.skew(bo, days(0))
    await cluster.advance(minutes=3)
    assert not bo.inside.services.keeper.paused
    assert len(await bo.versions()) == len((await bo.query("SELECT * { ?s ?p ?o }")).rows) == 20
    await cluster.settled()


@pytest.mark.cluster(n=2)
async def test_what_ended_does_not_come_back(cluster: Cluster) -> None:
    """By a round, by a restart, by a clock that steps back a little."""
    ada, bo = cluster.nodes
    await share_many(ada, 5, ttl_ms=600_000)
    await cluster.settled()
    await cluster.advance(minutes=9)
    cluster.skew(ada, seconds(-20))
    await cluster.advance(seconds=70)
    assert len(bo.graph.set) == 0
    for node in (ada, bo):
        await cluster.restart(node)
        await cluster.advance(minutes=3)
    assert len(ada.graph.set) == len(bo.graph.set) == 0
    assert await ada.versions() == await bo.versions() == []


@pytest.mark.cluster(n=2)
async def test_j3_a_disk_that_is_nearly_full_takes_in_nothing_of_others_and_goes_on_by_itself(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    first = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    disk = bo.inside.services.disk
    room = disk.free_bytes
    disk.free_bytes = lambda: 1_000
    disk.look()
    second = await ada.share("ex:a ex:b ex:d .")
    own = await bo.share("ex:still ex:shares ex:itself .")
    await cluster.advance(minutes=5)
    status = await bo.face.status()
    assert status.partial
    assert any("of disk are free" in it for it in status.warnings)
    assert bo.sees(first)
    assert not bo.sees(second)
    assert ada.sees(own), "its rounds send"
    disk.free_bytes = room
    disk.look()
    await cluster.settled()
    assert bo.sees(second)
    assert not (await bo.face.status()).partial


@pytest.mark.cluster(n=2, ttl=hours(24))
async def test_what_one_relies_on_is_told_of_before_it_ends_and_renewed_if_that_is_wished(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    endorsed = await ada.share("ex:a ex:b ex:c .", ttl=hours(20))
    await ada.share("ex:nobody ex:relies ex:onThis .", ttl=hours(20))
    await cluster.settled()
    await bo.endorse(endorsed)
    await cluster.advance(hours=10)
    assert not (await bo.face.status()).warnings
    ada.inside.services.lifetimes.renews = True
    await cluster.advance(hours=5)
    assert ada.inside.services.lifetimes.renewed == 2
    assert not (await ada.face.status()).warnings
    assert not (await bo.face.status()).warnings, "its author renewed it, so it does not end soon"
    ada.inside.services.lifetimes.renews = False
    await cluster.advance(hours=20)
    (warning,) = (await bo.face.status()).warnings
    assert warning.startswith("1 version ")
    (warning,) = (await ada.face.status()).warnings
    assert warning.startswith("2 versions")
    await cluster.advance(hours=6)
    assert await bo.versions() == []
    assert not (await bo.face.status()).warnings


@pytest.mark.cluster(n=2, ttl=hours(8))
async def test_a_renewal_does_not_share_what_is_drafted_meanwhile(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", name="one", ttl=hours(4))
    await ada.draft("ex:not ex:ready ex:yet .", name="one")
    ada.inside.services.lifetimes.renews = True
    await cluster.advance(hours=5)
    assert ada.inside.services.lifetimes.renewed == 1
    await cluster.settled()
    (version,) = await bo.versions()
    assert version.reference == asset.reference
    assert [it.reference for it in await ada.face.drafts(cluster.graph)] == [f"{ada.address}/one"]


@pytest.mark.cluster(n=2, keep_projections=True)
async def test_what_was_erased_is_gone_from_every_node_and_compact_removes_it_from_the_files(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    secret = "Zweiundvierzigtausend"
    kept = await ada.share("ex:this ex:stays ex:here .")
    erased = await ada.share(f'ex:this ex:goes "{secret}" .')
    await cluster.settled()
    assert all(files_with(node, secret) for node in (ada, bo))
    await ada.retract(erased, erase=True)
    await cluster.settled()
    await cluster.advance(seconds=5)
    for node in (ada, bo):
        contents = node.inside.ledger.database.read(
            lambda connection: connection.execute("SELECT data FROM content UNION SELECT data FROM item").fetchall()
        )
        assert not [1 for (data,) in contents if secret.encode() in data]
        view = await node.face.compact()
        assert view.after_bytes > 0
        assert files_with(node, secret) == []
        assert node.sees(kept)
        assert node.inside.services.projector.position == node.inside.ledger.position
        await node.inside.store.check()
        assert len((await node.query("SELECT ?o WHERE { ?s <http://ex.org/stays> ?o }")).rows) <= 1
    again = await ada.share("ex:it ex:goes ex:on .")
    await cluster.settled()
    assert bo.sees(again)


def files_with(node: ClusterNode, text: str) -> list[str]:
    """The files of a node that hold a text."""
    directory = node.disk.places().ledger
    assert directory is not None
    return [str(it) for it in directory.parent.rglob("*") if it.is_file() and text.encode() in it.read_bytes()]
