"""What is said about assets: it follows their content, many at a time, and a crash leaves nothing half told."""

from __future__ import annotations

from pathlib import Path

import pytest
from p2pmem_jobs.blocking import Blocking
from p2pmem_protocol.errors import MisuseError
from pyoxigraph import Store
from trio.testing import MockClock

from p2pmem.store import projection as module
from p2pmem.store.placement import MetaChange, Placement
from p2pmem.store.plan import INTERNAL
from p2pmem.store.projection import OxigraphProjection, open_projection
from p2pmem.store.query_worker import open_query_workers
from p2pmem.store.transaction import Transaction

META = "urn:meta"
MANY = module._BULK_DESCRIPTIONS + 50


def said(number: int, state: str = "promoted") -> MetaChange:
    subject = f"urn:asset:{number}"
    text = f'<{subject}> <urn:state> "{state}" .\n<{subject}> <urn:version> "1"^^<urn:number> .\n'
    return MetaChange(META, add=text.encode(), reset_subjects=(subject,))


async def told(projection: OxigraphProjection) -> set[str]:
    found = await projection.lookup(None, None, None, [META], limit=10_000)
    return {f"{it.subject.value} {it.predicate.value} {it.object.value}" for it in found}  # type: ignore[union-attr]


def expected(*changes: MetaChange) -> set[str]:
    lines = b"".join(change.add for change in changes).decode().splitlines()
    return {line.replace("<", "").replace(">", "").replace('"', "").split("^^")[0].removesuffix(" .") for line in lines}


@pytest.mark.parametrize("count", [3, MANY])
async def test_few_and_many_descriptions_stand_as_they_were_told(tmp_path: Path, inline: Blocking, count: int) -> None:
    changes = [said(number) for number in range(count)]
    async with open_projection(tmp_path / "store", inline) as opened:
        await opened.describe(7, lambda: changes)
        assert await told(opened) == expected(*changes)
        await opened.describe(7, lambda: changes)
        assert await told(opened) == expected(*changes)
    async with open_projection(tmp_path / "store", inline) as opened:
        assert (opened.described, opened.position) == (7, 0)
        changed = [said(0, "published"), *(said(number) for number in range(1, count)), said(count)]
        await opened.describe(9, lambda: changed)
        assert await told(opened) == expected(*changed)


async def test_of_what_is_told_anew_only_what_is_another_is_taken_away_and_written(
    projection: OxigraphProjection,
) -> None:
    await projection.describe(7, lambda: [said(0), said(1)])
    before = projection.statistics()
    await projection.describe(7, lambda: [said(0, "published"), said(1)])
    after = projection.statistics()
    assert after.quads_inserted - before.quads_inserted == 1
    assert after.quads_deleted - before.quads_deleted == 1
    assert await told(projection) == expected(said(0, "published"), said(1))


async def test_what_the_disk_refused_between_loading_and_the_position_is_told_again(
    disk_projection: OxigraphProjection, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    changes = [said(number) for number in range(MANY)]
    run, refused = Transaction.run, []

    def refuse_once(transaction: Transaction, store: Store) -> None:
        if not refused:
            refused.append(disk_projection.described)
            raise OSError("no room")
        run(transaction, store)

    monkeypatch.setattr(Transaction, "run", refuse_once)
    await disk_projection.describe(7, lambda: changes)
    assert refused == [0]
    assert disk_projection.described == 7
    assert await told(disk_projection) == expected(*changes)


async def test_descriptions_never_go_into_the_graph_of_an_asset_or_of_the_store(projection: OxigraphProjection) -> None:
    await projection.apply(1, [Placement(META, "urn:all", b"<urn:a> <urn:p> <urn:b> .\n")])
    with pytest.raises(MisuseError):
        await projection.describe(1, lambda: [said(1)])
    for count in (1, MANY):
        changes = [MetaChange(INTERNAL + "state", add=said(number).add) for number in range(count)]
        with pytest.raises(MisuseError):
            await projection.describe(1, lambda changes=changes: changes)  # type: ignore[misc]


async def test_a_store_that_is_emptied_has_nothing_described(disk_projection: OxigraphProjection) -> None:
    await disk_projection.describe(3, lambda: [said(1)])
    await disk_projection.clear()
    assert disk_projection.described == 0
    await disk_projection.describe(3, lambda: [said(1)])
    await disk_projection.renew()
    assert disk_projection.described == 0


async def test_a_query_that_asks_for_a_position_sees_its_description_though_a_snapshot_is_newer(
    disk_projection: OxigraphProjection, inline: Blocking, tmp_path: Path
) -> None:
    await disk_projection.apply(1, [Placement("urn:g", "urn:all", b"<urn:a> <urn:p> <urn:b> .\n")])
    async with open_query_workers(
        disk_projection, tmp_path / "snapshots", inline, min_interval_ms=1_000_000
    ) as workers:

        async def count() -> int:
            asked = "SELECT * { GRAPH ?g { ?s ?p ?o } }"
            return len((await workers.query(asked, default_graphs=[], named_graphs=[META], at_least=1)).rows())

        assert await count() == 0
        await disk_projection.describe(1, lambda: [said(1)])
        assert await count() == 2
