"""The writes that wait, from their callers to the commit.

    queued --taken into a group--> begun --committed, or failed--> ended
    queued --caller cancelled--> withdrawn
    begun --refused by the disk, and owed--> queued, before all others

They are taken in the order in which they were asked for. There is no bound on how many wait, because each of them is a
task that waits: who wants fewer has fewer tasks that write.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum, unique
from typing import Any, Generic, TypeVar

import trio

from .errors import BugError, DiskError, OutsideError

T = TypeVar("T")
Write = Callable[[sqlite3.Connection], T]


@unique
class _State(Enum):
    QUEUED = "queued"
    BEGUN = "begun"
    ENDED = "ended"
    WITHDRAWN = "withdrawn"


class Operation(Generic[T]):
    """A write. `alone` ones run outside a transaction (checkpoint, compact); `owed` ones are tried again where the disk
    refuses; with `shield` it is not withdrawn when its caller is cancelled."""

    __slots__ = ("after", "alone", "error", "fn", "owed", "result", "shield", "state", "task")

    def __init__(
        self,
        fn: Write[T],
        after: Callable[[T], object] | None = None,
        *,
        alone: bool = False,
        owed: bool = False,
        shield: bool = False,
    ) -> None:
        self.fn = fn
        self.after = after
        self.alone = alone
        self.owed = owed
        self.shield = shield or owed
        self.state = _State.QUEUED
        self.task: trio.lowlevel.Task | None = None
        self.error: BaseException | None = None
        self.result: T

    @property
    def is_refused(self) -> bool:
        """Whether it is owed, and the disk does not take it now. Not where it would not take it later either: a file
        that is damaged stays so. Nor is it the disk that refuses where the write itself raises, say that a queue is
        full: it would hold up those that make room."""
        return self.owed and type(self.error) in (DiskError, OutsideError)

    def call_after(self) -> None:
        if self.after is not None:
            self.after(self.result)


class Operations:
    """The queue of operations. Belongs to the event loop's thread."""

    def __init__(self, in_group_max: int) -> None:
        self._in_group_max = in_group_max
        self._waiting: OrderedDict[Operation[Any], None] = OrderedDict()
        self._alone: OrderedDict[Operation[Any], None] = OrderedDict()
        self._comes_again = False  # what is first was refused before
        self._writer: trio.lowlevel.Task | None = None  # while it has nothing to do

    def __len__(self) -> int:
        return len(self._waiting) + len(self._alone)

    # For callers

    async def perform(self, operation: Operation[T]) -> T:
        """Queues an operation and waits for its end. Errors: its own.

        Cancellation: one that waits is withdrawn, unless it has a shield; one that has begun is waited for.
        """
        queue = self._alone if operation.alone else self._waiting
        operation.task = trio.lowlevel.current_task()
        queue[operation] = None
        self.wake_writer()

        def withdraw(_: object) -> trio.lowlevel.Abort:
            if operation.shield or operation.state is not _State.QUEUED:
                return trio.lowlevel.Abort.FAILED
            operation.state = _State.WITHDRAWN
            del queue[operation]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(withdraw)
        assert operation.state is _State.ENDED
        if operation.error is not None:
            raise operation.error
        return operation.result

    # For the writer

    @property
    def writer_is_idle(self) -> bool:
        return self._writer is not None

    async def wait(self) -> None:
        """Sleeps until `wake_writer`. Not cancellable: whoever closes the database wakes it."""
        self._writer = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def wake_writer(self) -> None:
        if self._writer is not None:
            task, self._writer = self._writer, None
            trio.lowlevel.reschedule(task)

    def take_group(self) -> list[Operation[Any]]:
        """The next operations, which have begun now: one that runs alone, or so many writes.

        What runs alone stores nothing of its own, so it need not wait behind writes for which the disk has no room: it
        may be the checkpoint that makes some, or the backup that is wanted then. Writes that come again come without
        others, one of which may be what there is no room for.
        """
        if self._alone:
            return [self._begin(self._alone)]
        group: list[Operation[Any]] = []
        while self._waiting and len(group) < self._in_group_max:
            if self._comes_again and not next(iter(self._waiting)).owed:
                break
            group.append(self._begin(self._waiting))
        self._comes_again = False
        return group

    def _begin(self, queue: OrderedDict[Operation[Any], None]) -> Operation[Any]:
        operation, _ = queue.popitem(last=False)
        assert operation.state is _State.QUEUED
        operation.state = _State.BEGUN
        return operation

    def put_back(self, refused: list[Operation[Any]]) -> None:
        """First again in the queue, in their order. Who waits behind them and owes nothing is told of the disk."""
        error = refused[0].error
        for operation in reversed(refused):
            operation.state, operation.error = _State.QUEUED, None
            self._waiting[operation] = None
            self._waiting.move_to_end(operation, last=False)
        self._comes_again = True
        self._tell_waiting(lambda: DiskError(str(error)), [it for it in self._waiting if not it.owed])

    def end(self, group: Iterable[Operation[Any]]) -> None:
        """Tells everybody who still waits. An `after` that raises is a bug; it is raised once all callers can go on."""
        bugs: list[BaseException] = []
        begun = [operation for operation in group if operation.state is _State.BEGUN]
        for operation in begun:
            operation.state = _State.ENDED
            if operation.error is None:
                try:
                    operation.call_after()
                except Exception as error:
                    bugs.append(error)
        for operation in begun:
            assert operation.task is not None
            trio.lowlevel.reschedule(operation.task)
        if bugs:
            raise BugError(f"a function that was to run after a commit raised {bugs[0]!r}") from bugs[0]

    def turn_away(self, make_error: Callable[[], BaseException]) -> None:
        """Whoever waits is told, and hangs nowhere."""
        self._tell_waiting(make_error, [*self._alone, *self._waiting])

    def _tell_waiting(self, make_error: Callable[[], BaseException], operations: list[Operation[Any]]) -> None:
        for operation in operations:
            del (self._alone if operation.alone else self._waiting)[operation]
            operation.state = _State.BEGUN
            operation.error = make_error()  # one object per caller: a traceback grows with every raise
        self.end(operations)
