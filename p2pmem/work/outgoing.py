"""From a job into the set: what this node's agents say, admitted once and in one transaction with the job's step."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from p2pmem_jobs import Context, ErrorClass, RetryPolicy, classify
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import BugError, MisuseError, OutsideError, Reason, RefusedError
from p2pmem_protocol.evidence import Evidence
from p2pmem_protocol.names import AssetKey, GraphId
from p2pmem_protocol.records import evidence_record

from p2pmem.exchange.holdings import OWN
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import Transition

RETRY = RetryPolicy(first_s=0.5, cap_s=60.0)


class NotAdmittedError(MisuseError):
    """The graph's rules do not let this in; it was signed and went nowhere."""


def classify_error(error: BaseException) -> ErrorClass:
    """Which errors of this project are worth another try."""
    if isinstance(error, MisuseError | RefusedError):
        return ErrorClass.PERMANENT
    if isinstance(error, OutsideError):
        return ErrorClass.TRANSIENT
    return classify(error)


@dataclass(frozen=True, slots=True)
class Ready:
    """Something signed: the item, content too large to be inline, and rows that belong into the same transaction."""

    item: Item
    attachment: bytes | None = None
    rows: Callable[[sqlite3.Connection], object] | None = None
    steps: tuple[tuple[GraphId, AssetKey, int, Transition, bytes | None], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class InSet:
    """The result of a step that admitted something."""

    id: bytes
    position: int


class Outgoing:
    """Takes what jobs sign into the set."""

    def __init__(self, ledger: Ledger, admission: Admission) -> None:
        self._ledger = ledger
        self._admission = admission

    async def admit_step(self, ctx: Context, name: str, make: Callable[[], Ready]) -> InSet:
        """Sign by `make` and admit, as the step `name`. In a later run nothing is made and the stored result returns.

        Deciding changes the memory and writing the disk, so nothing may come between them: a cancellation waits. What
        was said before stands as it was said then, and its id is the result. Raises `NotAdmittedError` when the rules
        of the graph refuse it; nothing has changed then.
        """
        if ctx.is_done(name):
            return await ctx.step_rows(name, _never, returns=InSet)
        with trio.CancelScope(shield=True):
            ready = make()
            batch = self._admission.new_batch(OWN)
            stands = self._take(ready.item, batch, ready.attachment)
            for graph, key, version, transition, root in ready.steps:
                batch.step(graph, key, version, transition, key.author, root)

            def write(connection: sqlite3.Connection) -> InSet:
                if ready.rows is not None:
                    ready.rows(connection)
                return InSet(stands, self._ledger.write_rows(connection, batch))

            in_set = await ctx.step_rows(
                name, write, returns=InSet, after=lambda done: self._ledger.tell(batch, done.position)
            )
        return in_set

    async def admit(self, item: Item) -> None:
        """Admit what was signed outside of any job; returns when it is on disk.

        Raises `NotAdmittedError` when the rules of the graph refuse it.
        """
        with trio.CancelScope(shield=True):
            batch = self._admission.new_batch(OWN)
            self._take(item, batch)
            await self._ledger.commit(batch)

    def _take(self, item: Item, batch: Batch, attachment: bytes | None = None) -> bytes:
        """Admit into the set in memory; returns the id of what stands there, which may be what was said before."""
        try:
            self._admission.take(item, item.encode(), batch, attachment)
        except RefusedError as refused:
            stands = self._said_before(item, refused)
            if stands is None:
                raise NotAdmittedError(explain(refused)) from refused
            return stands
        return item.id

    def _said_before(self, item: Item, refused: RefusedError) -> bytes | None:
        """The same statement, or of evidence one that means the same, when it is in the set already."""
        graph = self._ledger.graph(item.graph)
        if refused.reason is Reason.DUPLICATE and item.id in graph.set:
            return item.id
        if refused.reason is Reason.SUPERSEDED and isinstance(item, Evidence):
            version = graph.set.version(item.subject)
            slot = evidence_record(item).slot
            same = [record.id for record in version.evidence_in_set() if record.slot == slot] if version else []
            return min(same, default=None)
        return None


_EXPLAINED = {
    Reason.NOT_LISTED: "the agent has no right to this in the graph; the owner gives it with `p2pmem graph members`",
    Reason.OVER_QUOTA: "the agent's quota in this graph is used up; let something expire or retract it",
    Reason.LIFE_TOO_LONG: "the life asked for is longer than the graph allows",
    Reason.NO_HEAD: "the graph has no roster here yet; wait until a member is connected",
    Reason.WRONG_QUORUM: "the graph has no quorum, or the agent is not among its verifiers",
    Reason.ERASED: "this version was retracted and erased; make a new one",
    Reason.SUBJECT_NOT_HELD: "the version is not held here any more; it has expired or was retracted",
}


def explain(refused: RefusedError) -> str:
    """A refusal of our own words, for who said them."""
    hint = _EXPLAINED.get(refused.reason)
    return f"{refused}; {hint}" if hint else str(refused)


def _never(_: sqlite3.Connection) -> InSet:
    raise BugError("a step that was done is never done again")
