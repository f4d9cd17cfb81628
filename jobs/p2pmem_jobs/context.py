"""What a handler works with: steps that are done once, waits, sleeps, progress, and effects outside."""

from __future__ import annotations

import inspect
import sqlite3
import typing
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum, unique
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import trio

from . import codec, work
from .bounds import span_ms
from .clock import Clock
from .database import CrashPoint, Database
from .errors import MisuseError, NotDoneError, OutcomeUnknownError, StaleAttemptError, WaitedTooLongError
from .handlers import Handler
from .records import SLEEP, WAIT, Claimed, Progress
from .signals import Listener, Signal
from .texts import check_name, told

if TYPE_CHECKING:
    from .job import Submission

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
NAME_CHARACTERS_MAX = 200
_LOOK_AT_THE_CLOCK_EVERY_S = 60.0  # the wall clock may step while we sleep
_TELL_EVERY_S = 1.0  # what a wait tells people is a write each time


@dataclass(frozen=True, slots=True)
class Happened(Generic[T]):
    """What `look_up` returns when the effect did happen, with what `try_` would have returned."""

    result: T


@unique
class Looked(Enum):
    """What `look_up` returns otherwise. NOT_HAPPENED means that it never will, unless it is tried again."""

    NOT_HAPPENED = "not happened"
    CANNOT_TELL = "cannot tell"


class _Telling:
    """What people are told of a wait: its text when it changes, and not more often than every so often."""

    def __init__(self, detail: str | Callable[[], str]) -> None:
        self._detail = detail
        self.text = _text(detail)
        self.may_be_stale = False
        self._told_s = trio.current_time()

    @property
    def wait_s(self) -> float:
        """How long until there may be something to tell."""
        return max(self._told_s + _TELL_EVERY_S - trio.current_time(), 0.001) if self.may_be_stale else inf

    def is_new(self) -> bool:
        """Whether there is another text to tell now. It is made only then: mostly it costs more than the wait."""
        if not self.may_be_stale or trio.current_time() < self._told_s + _TELL_EVERY_S:
            return False
        self.may_be_stale = False
        before, self.text = self.text, _text(self._detail)
        self._told_s = trio.current_time()
        return self.text != before


class RunOfJob(Protocol):
    """What a context asks of the run that it belongs to."""

    claimed: Claimed

    def waiting(
        self, detail: str, also: Callable[[sqlite3.Connection], object] | None = None
    ) -> AbstractAsyncContextManager[Callable[[str], Awaitable[None]]]: ...

    async def ensure_place(self) -> None: ...

    def report(self, progress: Progress) -> None: ...


class Context:
    """One run of a job. Names of steps, waits, sleeps and effects share one space; each is used once in a run.

    A handler may be run many times, from its beginning. What is in a step, or an effect, happens once; everything else
    happens in every run, and should neither cost nor change anything.
    """

    def __init__(
        self,
        run: RunOfJob,
        database: Database,
        clock: Clock,
        look_every_s: float,
        crash_point: CrashPoint,
        prepare: Callable[..., Submission],
    ) -> None:
        self._run = run
        self._claimed = run.claimed
        self._database = database
        self._clock = clock
        self._look_every_s = look_every_s
        self._crash_point = crash_point
        self._prepare = prepare
        self._used: set[str] = set()
        self._done = dict(self._claimed.done)

    @property
    def job_id(self) -> str:
        return self._claimed.id

    @property
    def kind(self) -> str:
        return self._claimed.kind

    @property
    def version(self) -> int:
        """The version of the handler that the job was submitted to."""
        return self._claimed.version

    @property
    def owner(self) -> str | None:
        return self._claimed.owner

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._claimed.attempt

    @property
    def deadline_ms(self) -> int | None:
        return self._claimed.deadline_ms

    # Steps

    def is_done(self, name: str) -> bool:
        """Whether a step of this name was done in an earlier run, so that its result is stored."""
        return name in self._done

    async def step(self, name: str, fn: Callable[[], Awaitable[T] | T], *, returns: Any = codec.UNDECLARED) -> T:
        """Runs `fn`, plain or async, and stores its result; in a later run, returns the stored result instead.

        A process that dies between the two runs `fn` again. What makes rows should be a `step_rows`, what changes the
        world an `effect`. The result is stored by the type of `returns`, or of fn's annotation; without one, only plain
        values can be stored. Errors: of `fn`; `MisuseError` when the name was used in this run; `NotSerialisableError`.

        Cancellation: as `fn` does it; a result whose write has begun is stored.
        """
        stored = await self._begin(name)
        declared = _declared(fn, returns)
        if stored is not None:
            return typing.cast(T, codec.decode(stored, declared, _stored(name)))
        self._crash_at(name, "before")
        result = fn()
        if inspect.isawaitable(result):
            result = await result
        text = codec.encode(result, declared)
        self._crash_at(name, "unstored")
        await self._database.write(lambda c: work.store_step(c, self._claimed, name, self._clock.now_ms(), text))
        self._crash_at(name, "after")
        return result

    async def step_rows(
        self,
        name: str,
        fn: Callable[[sqlite3.Connection], T],
        *,
        returns: Any = codec.UNDECLARED,
        after: Callable[[T], object] | None = None,
        owed: bool = False,
    ) -> T:
        """A step that writes rows: they and its result are committed in one transaction, or neither is.

        `fn`, `after` and `owed` are those of `Database.write`; in a later run nothing is called. Otherwise like `step`.
        What is `owed` has happened in memory already: where the run is over, because the job was cancelled meanwhile,
        the rows are stored without the step, and then `StaleAttemptError` is raised.
        """
        stored = await self._begin(name)
        declared = _declared(fn, returns)
        if stored is not None:
            return typing.cast(T, codec.decode(stored, declared, _stored(name)))

        def write(connection: sqlite3.Connection) -> tuple[T, StaleAttemptError | None]:
            try:
                work.require_current(connection, self._claimed)
            except StaleAttemptError as over:
                if not owed:
                    raise
                return fn(connection), over
            result = fn(connection)
            text = codec.encode(result, declared)
            work.store_step(connection, self._claimed, name, self._clock.now_ms(), text)
            return result, None

        def tell(done: tuple[T, StaleAttemptError | None]) -> None:
            if after is not None:
                after(done[0])

        self._crash_at(name, "before")
        result, over = await self._database.write(write, tell, owed=owed)
        if over is not None:
            raise over
        self._crash_at(name, "after")
        return result

    async def submit(self, name: str, kind: Handler[A, R] | str, args: A, **options: Any) -> str:
        """A step that submits another job, once, on behalf of this one and of its owner; returns the id.

        `options` are those of `Queue.submit`. To wait for it, wait for what it does; a handler that awaits its result
        keeps its place meanwhile. Errors: as `Queue.submit`.
        """
        if name in self._done:
            return await self.step(name, lambda: "", returns=str)
        submission = self._prepare(kind, args, **{"parent": self.job_id, "owner": self.owner, **options})
        return await self.step_rows(name, submission.insert, returns=str, after=submission.announce)

    # Waiting

    async def wait_until(
        self,
        name: str,
        predicate: Callable[[], T | None],
        *,
        on: Signal | Iterable[Signal] = (),
        timeout_s: float | None = None,
        detail: str | Callable[[], str] = "",
    ) -> T:
        """Waits until `predicate` returns something true, and returns that. It is tested now, after every signal of
        `on`, and now and then; its results are never stored, so a run after a restart tests the world as it is.

        The job is `waiting` meanwhile and holds no place. `timeout_s` counts from the first time that the job came
        here, restarts or not. `detail` tells people what is missing, and who watches: anew when it changes,
        at most once a second. Errors: `WaitedTooLongError`.

        Cancellation: at any time; nothing is lost.
        """
        until_ms = await self._begin(name)
        with Listener((on,) if isinstance(on, Signal) else on) as listener:
            found = predicate()
            if found:
                return found
            store: Callable[[sqlite3.Connection], object] | None = None
            end_ms = None if until_ms is None else int(until_ms)
            if timeout_s is not None and timeout_s != inf and until_ms is None:
                end_ms = self._clock.now_ms() + span_ms(timeout_s, "a timeout")
                store = partial(self._store_time, name, end_ms, WAIT)
            telling = _Telling(detail)
            async with self._run.waiting(telling.text, store) as tell:
                while not (found := predicate()):
                    if end_ms is not None and self._clock.now_ms() >= end_ms:
                        raise WaitedTooLongError(f"{name} did not come in time: {_text(detail)}")
                    if telling.is_new():
                        await tell(telling.text)
                        continue
                    pause_s = min(self._pause_s(end_ms, self._look_every_s), telling.wait_s)
                    with trio.move_on_after(pause_s):
                        await listener.wait()
                    telling.may_be_stale = True
                return found

    async def sleep(self, name: str, seconds: float) -> None:
        """Sleeps until so long after the job first came here, restarts or not. It is `waiting` meanwhile.

        Cancellation: at any time.
        """
        stored = await self._begin(name)
        store: Callable[[sqlite3.Connection], object] | None = None
        if stored is not None:
            end_ms = int(stored)
        else:
            end_ms = self._clock.now_ms() + span_ms(seconds, "a sleep")
            store = partial(self._store_time, name, end_ms, SLEEP)
        if self._clock.now_ms() >= end_ms:
            return
        async with self._run.waiting("asleep", store):
            while self._clock.now_ms() < end_ms:  # noqa: ASYNC110, it is the wall clock that we wait for
                await trio.sleep(self._pause_s(end_ms, _LOOK_AT_THE_CLOCK_EVERY_S))

    def _store_time(self, name: str, end_ms: int, what: str, connection: sqlite3.Connection) -> None:
        work.store_step(connection, self._claimed, name, self._clock.now_ms(), str(end_ms), what)

    def _pause_s(self, end_ms: int | None, at_most_s: float) -> float:
        if end_ms is None:
            return at_most_s
        return min(at_most_s, max(1, end_ms - self._clock.now_ms()) / 1000)

    def progress(self, done: int, total: int = 0, text: str = "") -> None:
        """Says how far the run is. Costs nothing much: it is told to who watches, and not stored."""
        self._run.report(Progress(done, total, text))

    # Effects

    async def effect(
        self,
        key: str,
        try_: Callable[[], Awaitable[T]],
        look_up: Callable[[], Awaitable[Happened[T] | Looked]],
        *,
        note: str = "",
        returns: Any = codec.UNDECLARED,
    ) -> T:
        """Does something to the world outside, at most once.

        The intent is stored before `try_` is called, its result after. A run that finds the intent alone calls
        `look_up`, and `try_` again only when that says NOT_HAPPENED. `note` tells a person what to look for, say the
        hash of a transaction. `try_` may raise `NotDoneError` when nothing was done for certain.

        Errors: of `try_` and `look_up`, to be looked up in a next run; `OutcomeUnknownError` when looking cannot tell:
        let it pass, the job becomes `outcome_unknown` for a person to resolve.

        Cancellation: as `try_` does it; the effect counts as under way until it was looked up. A result is stored.
        """
        self._use(key)
        await self._run.ensure_place()
        declared = _declared(try_, returns)
        row = None
        if self._claimed.has_work:
            row = self._database.read(lambda c: work.effect_row(c, self._claimed.seq, key))
        if row is not None and row[0] == "done":
            assert row[1] is not None
            return typing.cast(T, codec.decode(row[1], declared, _stored(key)))
        if row is not None or self._claimed.look_first:
            seen = await look_up()
            if isinstance(seen, Happened):
                return await self._effect_done(key, seen.result, declared)
            if seen is Looked.CANNOT_TELL and not (row is not None and row[0] == "cleared"):
                if (
                    row is None
                ):  # after a restore: it is this row that a person then clears, and that tells what to look for
                    await self._intend(key, note)
                raise OutcomeUnknownError(f"it is not known whether {key} happened" + (f" ({note})" if note else ""))
        self._crash_at(key, "before")
        await self._intend(key, note)
        self._crash_at(key, "intended")
        try:
            result = await try_()
        except NotDoneError:
            await self._database.write(lambda c: work.effect_not_done(c, self._claimed, key), shield=True)
            raise
        self._crash_at(key, "tried")
        return await self._effect_done(key, result, declared)

    async def _intend(self, key: str, note: str) -> None:
        now_ms = self._clock.now_ms()
        await self._database.write(lambda c: work.intend_effect(c, self._claimed, key, told(note), now_ms))

    async def _effect_done(self, key: str, result: T, declared: Any) -> T:
        text = codec.encode(result, declared)
        now_ms = self._clock.now_ms()
        await self._database.write(lambda c: work.effect_done(c, self._claimed, key, now_ms, text), shield=True)
        self._crash_at(key, "after")
        return result

    # Names

    async def _begin(self, name: str) -> bytes | None:
        self._use(name)
        await self._run.ensure_place()
        return self._done.pop(name, None)

    def _use(self, name: str) -> None:
        check_name(name, "the name of a step", NAME_CHARACTERS_MAX)
        if name in self._used:
            raise MisuseError(f"{self.kind} used the name {name!r} twice in one run; each step has its own")
        self._used.add(name)

    def _crash_at(self, name: str, point: str) -> None:
        self._crash_point(f"{self.kind}/{name}/{point}")


def _declared(fn: Callable[..., object], returns: Any) -> Any:
    if returns is not codec.UNDECLARED:
        return returns
    if not getattr(fn, "__annotations__", None):
        return codec.UNDECLARED
    try:
        return typing.get_type_hints(fn).get("return", codec.UNDECLARED)
    except NameError:
        return codec.UNDECLARED


def _stored(name: str) -> str:
    return f"the stored result of {name!r}"


def _text(detail: str | Callable[[], str]) -> str:
    return told(detail if isinstance(detail, str) else detail())
