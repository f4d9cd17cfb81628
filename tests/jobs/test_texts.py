"""Texts and numbers that the file cannot hold: refused where they name something, escaped where they only tell."""

from __future__ import annotations

import pytest
from p2pmem_jobs import (
    Context,
    JobCancelledError,
    JobFailedError,
    MisuseError,
    NotSerialisableError,
    PermanentError,
    Queue,
    State,
    codec,
)
from p2pmem_jobs.ids import new_id
from p2pmem_jobs.texts import describe
from trio.testing import MockClock

from .conftest import START_MS, Add, Note, Register, Rig, Sum, adding, settle

HALF = "half \ud800 of it"  # as Python reads a file name that is no UTF-8


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


def raising(error: Exception) -> Register:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("bad", version=1)
        async def bad(context: Context, args: Note) -> None:
            raise error

    return register


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermanentError(HALF), r"half \\ud800 of it"),
        (FileNotFoundError(2, "no such file", "\udcff.txt"), r"udcff"),
        (MuteError(), "MuteError: "),
        (PermanentError("x" * 5_000_000), "x{900}"),
    ],
)
async def test_an_error_that_cannot_be_told_as_it_is_ends_its_own_job_and_no_other(
    rig: Rig, autojump_clock: MockClock, error: Exception, reason: str
) -> None:
    async with rig.open(raising(error), memory=True) as queue:
        bad = await queue.submit("bad", Note("x"))
        with pytest.raises(JobFailedError, match=reason):
            await bad.result()
        assert len(bad.record().error or "") < 1_100
        assert await (await queue.submit("add", Add(1, 2))).result() == Sum(3)


async def test_what_is_told_to_people_is_kept_with_an_escape(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        @queue.handler("wait", version=1)
        async def wait(context: Context, args: Note) -> None:
            await context.wait_until("never", lambda: None, detail=HALF)

    async with rig.open(register, memory=True) as queue:
        job = await queue.submit("wait", Note("x"))
        await settle()
        assert job.record().detail == r"half \ud800 of it"
        await queue.cancel(job.id, HALF)
        with pytest.raises(JobCancelledError, match=r"half \\ud800 of it"):
            await job.result()


async def test_a_name_that_cannot_be_stored_is_refused(rig: Rig, autojump_clock: MockClock) -> None:
    def register(queue: Queue) -> None:
        adding(queue)

        @queue.handler("step", version=1)
        async def step(context: Context, args: Note) -> None:
            await context.step(names[args.text], lambda: 1)

    names = {"half": HALF, "empty": "", "long": "x" * 201}

    async with rig.open(register, memory=True) as queue:
        for options in ({"dedupe_key": HALF}, {"owner": HALF}, {"parent": HALF}, {"owner": ""}):
            with pytest.raises(MisuseError, match=r"text of 1 to|half of a character"):
                await queue.submit("add", Add(1, 2), **options)  # type: ignore[arg-type]
        for name in names:
            with pytest.raises(JobFailedError, match="the name of a step"):
                await (await queue.submit("step", Note(name))).result()
        with pytest.raises(NotSerialisableError, match=r"value\.text holds half"):
            await queue.submit("step", Note(HALF))
        assert await queue.list(states={State.QUEUED}) == []


@pytest.mark.parametrize(
    "options",
    [
        {"run_at_ms": 2**80},
        {"run_at_ms": float(START_MS)},
        {"deadline_ms": 2**80},
        {"deadline_ms": START_MS + 0.5},
        {"priority": 10**30},
        {"priority": True},
        {"priority": 1.0},
    ],
)
async def test_a_time_or_a_priority_that_cannot_be_one_is_refused(
    rig: Rig, autojump_clock: MockClock, options: dict[str, int]
) -> None:
    async with rig.open(adding, memory=True) as queue:
        with pytest.raises(MisuseError):
            await queue.submit("add", Add(1, 2), **options)  # type: ignore[arg-type]
        assert queue.statistics().live == 0


@pytest.mark.parametrize(
    ("value", "declared", "place"),
    [
        (HALF, str, "value holds half"),
        ([{"a": HALF}], codec.UNDECLARED, r"value\[0\]\['a'\] holds half"),
        ({HALF: 1}, dict[str, int], "has the key"),
        (10**5_000, int, "more than 4096 bits"),
        (10**400, float, "too large for a float"),
    ],
    ids=["text", "in a list", "key", "int", "float"],
)
def test_a_value_that_json_or_the_file_cannot_hold_is_refused_with_the_place(
    value: object, declared: object, place: str
) -> None:
    with pytest.raises(NotSerialisableError, match=place):
        codec.encode(value, declared)


def test_the_largest_numbers_come_back_as_they_were() -> None:
    for value in (2**4096 - 1, -(2**4096) + 1):
        assert codec.decode(codec.encode(value, int), int) == value


@pytest.mark.parametrize("now_ms", [-1, 0, 2**48, 2**70])
def test_a_clock_that_stands_anywhere_still_makes_ids(now_ms: int) -> None:
    assert len(new_id(now_ms, bytes)) == 28


def test_an_error_that_is_a_group_is_told_with_those_in_it() -> None:
    deep: Exception = ValueError("deep")
    for _ in range(3_000):
        deep = ExceptionGroup("", [deep])
    group = ExceptionGroup("two", [deep, *[OSError(str(number)) for number in range(100)]])
    assert describe(group) == "ExceptionGroup: two (101 sub-exceptions): ValueError: deep; " + "; ".join(
        f"OSError: {number}" for number in range(7)
    )
