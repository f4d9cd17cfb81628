"""From a job into the set: what this node's agents say, admitted once and in one transaction with the job's step."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio
from p2pmem_jobs import Context, ErrorClass, JobRecord, RetryPolicy, Submission, classify
from p2pmem_protocol.content import Content
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import BugError, MisuseError, OutsideError, Reason, RefusedError
from p2pmem_protocol.evidence import Evidence
from p2pmem_protocol.records import evidence_record

from p2pmem.exchange.holdings import OWN
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.may_sign import MaySign
from p2pmem.services.rights import no_right

RETRY = RetryPolicy(first_s=0.5, cap_s=60.0)
ASK_AGAIN_S = 1.0
"""After a job that the node asks for by itself could not be stored."""


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
    """Something signed: the item, the content it was made over, and rows that belong into the same transaction."""

    item: Item
    content: Content | None = None
    rows: Callable[[sqlite3.Connection], object] | None = None


@dataclass(frozen=True, slots=True)
class Stands:
    """What a job was to say stands in the set already: its id, and rows that belong into the transaction all the same.

    A job that was asked before the node was put back from a copy finds what it said since, as members gave it back; or
    somebody asked twice. Nothing is signed.
    """

    id: bytes
    rows: Callable[[sqlite3.Connection], object] | None = None


@dataclass(frozen=True, slots=True)
class InSet:
    """The result of a step that admitted something."""

    id: bytes
    position: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Something that is in the set in memory and is to be on disk in a moment."""

    ledger: Ledger
    rows: Callable[[sqlite3.Connection], object] | None
    batch: Batch
    stands: bytes
    """The id of what stands in the set: of the item, or of one that said the same before."""

    def write(self, connection: sqlite3.Connection) -> InSet:
        """Its rows, for a write of the database; `tell` is due after the commit."""
        if self.rows is not None:
            self.rows(connection)
        return InSet(self.stands, self.ledger.write_rows(connection, self.batch))

    def tell(self, done: InSet) -> None:
        self.ledger.tell(self.batch, done.position)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What was taken and has nothing to wait for, with the job that tells of it when there is one.

    It and the job, which has then succeeded, are written together: nothing of it can be left half done.
    """

    taken: Taken
    job: Submission | None = None
    result: object = None

    def write(self, connection: sqlite3.Connection) -> tuple[InSet, JobRecord | None]:
        in_set = self.taken.write(connection)
        return in_set, self.job.insert_done(connection, self.result) if self.job is not None else None

    def tell(self, done: tuple[InSet, JobRecord | None]) -> None:
        in_set, record = done
        self.taken.tell(in_set)
        if self.job is not None and record is not None:
            self.job.announce_done(record)


class Outgoing:
    """Takes what jobs sign into the set."""

    def __init__(self, ledger: Ledger, admission: Admission, may_sign: MaySign) -> None:
        self._ledger = ledger
        self._admission = admission
        self._may_sign = may_sign

    async def until_may_sign(self, ctx: Context, graph: LedgerGraph, name: str, *, dated: bool = True) -> None:
        """Wait, as the wait `name` of a job that says what for, until the node signs in a graph."""
        await ctx.wait_until(
            name,
            lambda: not self._may_sign.why_not(graph, dated=dated),
            on=self._ledger.changed,
            detail=lambda: self._may_sign.why_not(graph, dated=dated),
        )

    async def admit_step(
        self, ctx: Context, name: str, graph: LedgerGraph, make: Callable[[], Ready | Stands], *, dated: bool = True
    ) -> InSet:
        """Sign by `make` and admit, as the step `name`. In a later run nothing is made and the stored result returns.

        Waits until the node signs in the graph; `dated` says whether what it makes bears a time.
        Deciding changes the memory and writing the disk, so nothing may come between them: a cancellation waits. Where
        the disk refuses, it is asked until it takes it; of a job that was cancelled in between, what it took is written
        without it. What was said before stands as it was said then, and its id is the result. Raises
        `NotAdmittedError` when the rules of the graph refuse it; nothing has changed then.
        """
        if ctx.is_done(name):
            return await ctx.step_rows(name, _never, returns=InSet)
        await self.until_may_sign(ctx, graph, f"{name}-may-sign", dated=dated)
        with trio.CancelScope(shield=True):
            taken = self.take(make())
            in_set = await ctx.step_rows(name, taken.write, returns=InSet, after=taken.tell, owed=True)
        return in_set

    def take(self, ready: Ready | Stands) -> Taken:
        """Take what was signed into the set in memory. The caller writes and tells in a moment, whatever happens.

        What stands there already only has its rows to be written.
        Raises `NotAdmittedError` when the rules of the graph refuse it, `NoRightError` when by them the agent may not
        say it; nothing has changed then.
        """
        batch = self._admission.new_batch(OWN)
        if isinstance(ready, Stands):
            return Taken(self._ledger, ready.rows, batch, ready.id)
        stands = ready.item.id
        try:
            self._admission.take(ready.item, ready.item.encode(), batch, ready.content, is_own=True)
        except RefusedError as refused:
            before = self._said_before(ready.item, refused)
            if before is None:
                raise self._error_of(ready.item, refused) from refused
            stands = before
        return Taken(self._ledger, ready.rows, batch, stands)

    async def admit(self, ready: Ready) -> None:
        """Admit what was signed outside of any job, with its rows; returns when it is on disk.

        Raises `NotAdmittedError` when the rules of the graph refuse it, and `DiskError` while the disk takes nothing.
        """
        self._ledger.database.check_takes()
        await self.write_all([AtOnce(self.take(ready))])

    async def write_all(self, taken: Sequence[AtOnce]) -> None:
        """Write what was taken in one transaction, and tell of each in this order. A cancellation waits."""

        def write(connection: sqlite3.Connection) -> list[tuple[InSet, JobRecord | None]]:
            return [it.write(connection) for it in taken]

        def tell(done: list[tuple[InSet, JobRecord | None]]) -> None:
            for it, what in zip(taken, done, strict=True):
                it.tell(what)

        await self._ledger.database.write(write, tell, owed=True)

    def _error_of(self, item: Item, refused: RefusedError) -> MisuseError:
        if refused.reason is Reason.NOT_LISTED:
            signer = item.signer if isinstance(item, Evidence) else item.author
            acting = None if isinstance(item, Evidence) else item.delegation
            return no_right(self._ledger.graph(item.graph), signer, item.kind, acting)
        return NotAdmittedError(explain(refused))

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
    Reason.OVER_QUOTA: "the agent's quota in this graph is used up; let something expire or retract it",
    Reason.LIFE_TOO_LONG: "the life asked for is longer than the graph allows",
    Reason.NO_HEAD: "the graph has no roster here yet; wait until a member is connected",
    Reason.WRONG_QUORUM: "the graph has no quorum, or the agent is not among its verifiers",
    Reason.ERASED: "this version was retracted and erased; make a new one",
    Reason.SUBJECT_NOT_HELD: "the version is not held here any more; it has expired or was retracted",
}


def explain(refused: RefusedError) -> str:
    """A refusal of our own words, for who said them: without the word that peers have for it."""
    text = str(refused).partition(": ")[2]
    hint = _EXPLAINED.get(refused.reason)
    return f"{text}; {hint}" if hint else text


def _never(_: sqlite3.Connection) -> InSet:
    raise BugError("a step that was done is never done again")
