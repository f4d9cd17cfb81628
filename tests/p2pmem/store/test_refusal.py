"""A disk that refuses for a while: what is to be written waits, reads go on, and nothing is lost or told twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyoxigraph as ox
import pytest
import trio
from p2pmem_jobs.blocking import Blocking
from p2pmem_jobs.errors import DiskError
from p2pmem_protocol.errors import MisuseError, OutsideError
from trio.testing import MockClock

from p2pmem.recall.passages import Passage
from p2pmem.recall.text_index import TextEntry, TextFilter, TextIndex, open_text_index
from p2pmem.store import opening, projection as module
from p2pmem.store.opening import ProjectionUnusable
from p2pmem.store.placement import Placement
from p2pmem.store.projection import OxigraphProjection, open_projection
from p2pmem.store.query_worker import InlineQueries
from p2pmem.store.transaction import Transaction

FULL = "IO error: No space left on device"


def placed(number: int) -> Placement:
    return Placement(f"urn:g{number}", "urn:all", f"<urn:{number}> <urn:p> <urn:o> .\n".encode())


async def held(projection: OxigraphProjection) -> set[str]:
    found = await projection.lookup(None, None, None, ["urn:all"])
    return {it.subject.value.removeprefix("urn:") for it in found}  # type: ignore[union-attr]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Let the store refuse what is written as long as the condition holds, and for good until it is opened anew."""

    def begin(condition: Callable[[], bool]) -> None:
        run, open_store = Transaction.run, opening.open_store
        has_refused = False

        def refusing(transaction: Transaction, store: ox.Store) -> None:
            nonlocal has_refused
            has_refused |= condition()
            if has_refused:
                raise OSError(FULL)
            run(transaction, store)

        def opened(path: Path | None) -> ox.Store:
            nonlocal has_refused
            has_refused = False
            return open_store(path)

        monkeypatch.setattr(Transaction, "run", refusing)
        monkeypatch.setattr(opening, "open_store", opened)

    return begin


async def test_what_is_refused_is_tried_again_and_reads_go_on_meanwhile(
    disk_projection: OxigraphProjection,
    refuse: Callable[[Callable[[], bool]], None],
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    await disk_projection.apply(1, [placed(1)])
    refuse(lambda: trio.current_time() < 20)
    came_s: list[float] = []

    async def write(position: int) -> None:
        assert await disk_projection.apply(position, [placed(position)])
        came_s.append(trio.current_time())

    queries = InlineQueries(disk_projection)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, 2)
        await trio.sleep(0.1)
        nursery.start_soon(write, 3)
        await trio.sleep(15)
        assert FULL in (disk_projection.refusal.said or "")
        assert await held(disk_projection) == {"1"}
        asked_s = trio.current_time()
        with pytest.raises(DiskError, match="free some space"):
            await queries.query("ASK { ?s ?p ?o }", default_graphs=["urn:all"], at_least=2)
        assert trio.current_time() == asked_s
    assert came_s == [25.0, 25.0]  # tried at 0, 1, 3, 7, 15 and 25 seconds
    assert disk_projection.refusal.said is None
    assert await held(disk_projection) == {"1", "2", "3"}
    assert [it.getMessage() for it in caplog.records] == ["store.refused", "store.refuses_no_more"]
    await disk_projection.check()


async def test_who_waits_for_the_disk_can_be_cancelled_and_has_then_changed_nothing(
    inline: Blocking, tmp_path: Path, refuse: Callable[[Callable[[], bool]], None], autojump_clock: MockClock
) -> None:
    async with open_projection(tmp_path / "s", inline) as projection:
        await projection.apply(1, [placed(1)])
        refuse(lambda: True)
        with trio.move_on_after(60) as scope:
            await projection.apply(2, [placed(2)])
        assert scope.cancelled_caught
        assert projection.position == 1
    async with open_projection(tmp_path / "s", inline) as projection:
        assert (projection.position, await held(projection)) == (1, {"1"})


async def test_a_read_waits_for_a_store_that_is_being_opened_anew_and_is_told_when_that_takes_long(
    disk_projection: OxigraphProjection,
    refuse: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    await disk_projection.apply(1, [placed(1)])
    refuse(lambda: trio.current_time() < 0.5)
    open_store = module.open_when_let_go

    def no_room_to_open(path: Path) -> ox.Store:
        if trio.current_time() < 10:
            raise DiskError(FULL)
        return open_store(path)

    monkeypatch.setattr(module, "open_when_let_go", no_room_to_open)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk_projection.apply, 2, [placed(2)])
        await trio.sleep(2)
        with pytest.raises(DiskError, match=FULL):
            await held(disk_projection)
        assert trio.current_time() == 7
        await trio.sleep_until(14)
        assert await held(disk_projection) == {"1", "2"}
        assert trio.current_time() == 15


async def test_the_store_is_opened_anew_once_all_have_let_go_of_it(
    disk_projection: OxigraphProjection,
    refuse: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    monkeypatch.setattr(opening, "_LETS_GO_S", 0.05)
    await disk_projection.apply(1, [placed(1)])
    refuse(lambda: trio.current_time() < 0.5)
    reading = disk_projection._store.quads_for_pattern(None, None, None, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk_projection.apply, 2, [placed(2)])
        await trio.sleep(30)
        assert "let go" in (disk_projection.refusal.said or "")
        del reading
    assert await held(disk_projection) == {"1", "2"}


async def test_a_store_that_lost_what_was_written_is_never_gone_on_with(
    disk_projection: OxigraphProjection,
    refuse: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
) -> None:
    await disk_projection.apply(7, [placed(1)])
    refuse(lambda: trio.current_time() < 0.5)
    monkeypatch.setattr(module, "open_when_let_go", lambda _: opening.open_store(None))
    with pytest.raises(ProjectionUnusable, match=r"is at position 0, and was at 7; nothing is lost: .*rm -rf"):
        await disk_projection.apply(8, [placed(2)])


async def test_what_the_disk_had_taken_when_it_said_no_is_not_made_twice(
    disk_projection: OxigraphProjection, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    run, runs = Transaction.run, 0

    def taken_but_refused(transaction: Transaction, store: ox.Store) -> None:
        nonlocal runs
        runs += 1
        run(transaction, store)
        if runs == 1:
            raise OSError(FULL)

    monkeypatch.setattr(Transaction, "run", taken_but_refused)
    await disk_projection.apply(1, [placed(1)])
    assert runs == 1
    await disk_projection.apply(2, [placed(2)], drop=["urn:g1"])
    assert await held(disk_projection) == {"2"}
    await disk_projection.check()


@pytest.mark.parametrize("how", ["clear", "renew"])
async def test_a_rebuild_that_meets_a_full_disk_goes_on_where_it_was(
    inline: Blocking,
    tmp_path: Path,
    refuse: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    how: str,
) -> None:
    async with open_projection(tmp_path / "s", inline) as projection:
        await projection.apply(5, [placed(1), placed(2)])
        open_store = module.open_when_let_go

        def no_room_to_open(path: Path) -> ox.Store:
            if trio.current_time() < 5:
                raise DiskError(FULL)
            return open_store(path)

        monkeypatch.setattr(module, "open_when_let_go", no_room_to_open)
        await (projection.clear() if how == "clear" else projection.renew())
        await projection.fill([placed(3)])
        full_until_s = trio.current_time() + 5
        refuse(lambda: trio.current_time() < full_until_s)
        await projection.fill([placed(4)])
        assert (projection.position, projection.statistics().assets) == (0, 2)
        await projection.apply(9)
        assert await held(projection) == {"3", "4"}
        await projection.check()


async def test_half_a_clearing_is_known_as_one_after_a_stop(
    inline: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    def no_stamp(_: ox.Store) -> None:
        raise OSError(FULL)

    async with open_projection(tmp_path / "s", inline) as projection:
        await projection.apply(5, [placed(1)])
        with monkeypatch.context() as context, trio.move_on_after(30):
            context.setattr(module, "stamp", no_stamp)
            await projection.clear()
    async with open_projection(tmp_path / "s", inline) as projection:
        assert projection.position == 0


async def test_damage_is_no_refusal(disk_projection: OxigraphProjection, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_: Transaction, __: ox.Store) -> None:
        raise RuntimeError("Corruption: block checksum mismatch")

    monkeypatch.setattr(Transaction, "run", damaged)
    with pytest.raises(OutsideError, match="checksum"):
        await disk_projection.apply(1, [placed(1)])


async def test_old_diaries_of_the_native_store_take_up_no_room(inline: Blocking, tmp_path: Path) -> None:
    for _ in range(4):
        async with open_projection(tmp_path / "s", inline):
            assert len([*(tmp_path / "s").glob("LOG*")]) <= 2


# The text index

LONG = "word " * 2_000


def entry(number: int, text: str) -> TextEntry:
    return TextEntry(
        f"urn:g{number}", "urn:graph", "a/n", 1, b"", "a", "shared", 1, 0, (Passage("urn:s", f"number{number} {text}"),)
    )


async def found(text: TextIndex, number: int) -> int:
    return len(await text.search(f"number{number}", 10, TextFilter(("urn:graph",), now_ms=1)))


def limit_pages(text: TextIndex, pages: int) -> None:
    text._connections._writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()


async def test_the_text_index_waits_for_room_and_finds_what_it_has_meanwhile(
    inline: Blocking, tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with open_text_index(tmp_path / "text.sqlite", inline) as text:
        await text.apply(1, [entry(1, "short")])
        limit_pages(text, 1)  # it can not become less than it has
        caplog.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(text.apply, 2, [entry(2, LONG)])
            await trio.sleep(20)
            assert "database or disk is full" in (text.refusal.said or "")
            assert (text.position, await found(text, 1), await found(text, 2)) == (1, 1, 0)
            limit_pages(text, 1_000_000)
        assert text.refusal.said is None
        assert (text.position, await found(text, 1), await found(text, 2)) == (2, 1, 1)
        assert [it.getMessage() for it in caplog.records] == ["text_index.refused", "text_index.refuses_no_more"]


async def test_compacting_the_text_index_is_refused_at_once_where_there_is_no_room(
    inline: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_text_index(tmp_path / "text.sqlite", inline) as text:
        await text.apply(1, [entry(number, LONG) for number in range(20)])

        def full() -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        monkeypatch.setattr("p2pmem.recall.text_index.index_text", lambda _: full())
        with pytest.raises(DiskError, match="free some space"):
            await text.compact()
        monkeypatch.undo()
        assert await found(text, 3) == 1
        await text.compact()


async def test_a_text_that_is_too_long_is_no_refusal(inline: Blocking) -> None:
    async with open_text_index(None, inline) as text:
        many = TextEntry("urn:g", "urn:graph", "a/n", 1, b"", "a", "shared", 1, 0, (Passage("urn:s", "x"),) * 100_000)
        with pytest.raises(MisuseError, match="passages"):
            await text.apply(1, [many])
