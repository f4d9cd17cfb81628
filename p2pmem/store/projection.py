"""The triple store of a node: a projection of its ledger, which tells each change with its position.

The rules:

* One call of `apply` is one transaction: content, aggregates and position change together, or nothing does. After a
  crash the store is at some earlier position; the ledger tells the changes since then again. A position already
  reached changes nothing.
* What is said *about* assets, in `_meta` graphs, follows by `describe`, with a position of its own. Nobody needs it at
  once, and many descriptions together cost a third of what they cost one by one.
* A store at position 0 is empty or was left in the middle of a rebuild: the ledger clears it, tells everything by
  `fill`, and ends with `apply`, which sets the position.
* One writer at a time. Readers see whole transactions only.
* A loss of power may take the last transactions, and their position with them. What was acknowledged is in the ledger.
* While the disk refuses, what is to be written waits and is tried again; `refusal` says so. Reads go on, but for the
  moment in which the store is opened anew, which it needs before it takes anything again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar, TypeVarTuple

import pyoxigraph as ox
import trio
from p2pmem_jobs.blocking import Blocking
from p2pmem_jobs.errors import DiskError
from p2pmem_protocol.errors import BugError, MisuseError

from p2pmem.home import made_anew
from p2pmem.store.answering import DESCRIBED, POSITION, answer, stored_position
from p2pmem.store.content import asset_triples, named, plain_lines
from p2pmem.store.held import Held
from p2pmem.store.holding import hold
from p2pmem.store.native_memory import give_back
from p2pmem.store.opening import (
    ASSETS,
    ProjectionUnusable,
    check_room,
    destroy_projection,
    disk_errors,
    number_quad,
    open_store,
    open_when_let_go,
    stamp,
    stored_number,
)
from p2pmem.store.placement import MetaChange, Placement, StoreChange
from p2pmem.store.plan import (
    IN_AGGREGATE,
    MEMBERSHIP,
    Plan,
    check_meta_graph,
    derived_tally,
    plan_change,
)
from p2pmem.store.query import QueryAnswer, QueryLimits
from p2pmem.store.refusal import Refusal
from p2pmem.store.terms import Iri, Statement, Term, from_oxigraph, to_oxigraph
from p2pmem.store.transaction import compile_plan

log = logging.getLogger(__name__)

_FLUSH_QUADS = 20_000
"""Quads written before they are flushed to files. RocksDB would keep far more in memory, some 10 KB for an asset of
five statements, and what it keeps there it also searches. Flushed more often they are merged more often: with 8,000 it
is 9 MB less, and an asset costs a third more once there are some ten thousand."""

_BULK_DESCRIPTIONS = 200
"""New descriptions from which on they are loaded in bulk: some 40 ms, and then 0.1 ms each instead of 0.4."""

_READS_WAIT_S: Final = 5.0
"""So long a read waits for a store that is being opened anew."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class ProjectionStatistics:
    """What the store holds and what it has done since it was opened."""

    position: int
    assets: int
    """Assets placed, in all aggregates."""
    transactions: int
    placements: int
    drops: int
    meta_changes: int
    quads_inserted: int
    quads_deleted: int


class Projection(Protocol):
    """What the ledger and the node's own reads need of a triple store.

    Every async method: cancelled before it begins, nothing happens; once begun, it is done to the end. Those that write
    wait while the disk refuses, and can be cancelled then. Those that read raise `DiskError` when it refuses them.
    """

    @property
    def position(self) -> int:
        """Up to which position of the ledger the store is true; 0 means that it must be rebuilt."""
        ...

    async def apply(
        self,
        position: int,
        put: Sequence[Placement] = (),
        drop: Sequence[str] = (),
        meta: Sequence[MetaChange] = (),
    ) -> bool: ...

    async def apply_made(self, position: int, make: Callable[[], StoreChange]) -> bool: ...

    @property
    def described(self) -> int:
        """Up to which position `describe` has told what is said about assets."""
        ...

    async def describe(self, position: int, make: Callable[[], Sequence[MetaChange]]) -> None: ...

    async def fill(self, put: Sequence[Placement] = (), meta: Sequence[MetaChange] = ()) -> None: ...

    async def clear(self) -> None: ...

    async def reached(self, position: int) -> None: ...

    async def lookup(
        self,
        subject: Term | None,
        predicate: Iri | None,
        object_: Term | None,
        graphs: Sequence[str],
        limit: int = 1_000,
    ) -> tuple[Statement, ...]: ...

    async def query(
        self,
        sparql: str,
        default_graphs: Sequence[str],
        named_graphs: Sequence[str] = (),
        bind: Mapping[str, Term] | None = None,
        limits: QueryLimits | None = None,
    ) -> QueryAnswer: ...

    async def backup(self, target: Path) -> int: ...

    def statistics(self) -> ProjectionStatistics: ...


class OxigraphProjection:
    """The store in Oxigraph, in a directory or in memory. Made by `open_projection`."""

    def __init__(self, store: ox.Store, path: Path | None, blocking: Blocking) -> None:
        self._open_store: ox.Store | None = store
        self._must_reopen = False  # a write was refused, and no other one is taken before
        self._reopened = trio.Event()
        self._path = path
        self.refusal = Refusal("store")
        self._blocking = blocking
        self._writer = trio.Lock()
        self._moved = trio.Event()
        self._position = stored_position(store)
        self._described = stored_number(store, DESCRIBED)
        self._assets = stored_number(store, ASSETS)
        self.emptied = 0
        """How often it was emptied since it was opened: a copy of before holds what is in no file of the store now."""
        self._transactions = self._placements = self._drops = self._meta_changes = 0
        self._inserted = self._deleted = self._unflushed = 0

    @property
    def position(self) -> int:
        """Up to which position of the ledger the store is true; 0 means that it must be rebuilt."""
        return self._position

    @property
    def described(self) -> int:
        """Up to which position `describe` has told what is said about assets."""
        return self._described

    @property
    def is_on_disk(self) -> bool:
        """Whether there is a directory, so that `backup` works."""
        return self._path is not None

    async def apply(
        self,
        position: int,
        put: Sequence[Placement] = (),
        drop: Sequence[str] = (),
        meta: Sequence[MetaChange] = (),
    ) -> bool:
        """Make these changes and move to `position`, in one transaction.

        Tell many changes in one call, with the last one's position: an asset of five statements then costs some 0.3 ms.
        A graph is named once per call, as it stands in the end. Returns False, and changes nothing, if `position` is
        reached already.

        Errors: `MisuseError` before anything is changed; `OutsideError` when the store is damaged, and nothing is
        changed. Cancellation: before it begins, or while the disk refuses, nothing happens; once begun, it is done.
        """
        change = StoreChange(tuple(put), tuple(drop), tuple(meta))
        return await self.apply_made(position, lambda: change)

    async def apply_made(self, position: int, make: Callable[[], StoreChange]) -> bool:
        """The same, with a change that `make` makes where the writing is done, out of the event loop."""
        if position < 1:
            raise MisuseError(f"position {position}: positions of the ledger begin at 1")
        async with hold(self._writer):
            if position <= self._position:
                return False
            await self._change(self._write, position, make)
        moved, self._moved = self._moved, trio.Event()
        moved.set()
        return True

    async def describe(self, position: int, make: Callable[[], Sequence[MetaChange]]) -> None:
        """Make changes of `_meta` graphs, made by `make` where the writing is done, and move `described` to `position`.

        Not one transaction: after a crash some of it may be there, and all of it is told again. So a change must say
        the same when it is made twice. Errors and cancellation as `apply`.
        """
        async with hold(self._writer):
            await self._change(self._describe, position, make)

    async def fill(self, put: Sequence[Placement] = (), meta: Sequence[MetaChange] = ()) -> None:
        """Add to a store that is being rebuilt. The position stays 0, so a rebuild that stops half way starts anew."""
        change = StoreChange(tuple(put), (), tuple(meta))
        await self.fill_made(lambda: change)

    async def fill_made(self, make: Callable[[], StoreChange]) -> None:
        """The same, with a change that `make` makes where the writing is done."""
        async with self._writer:
            if self._position != 0:
                raise MisuseError(f"the store is at position {self._position}; clear it before it is filled")
            await self._change(self._write, 0, make)

    async def clear(self) -> None:
        """Empty the store: position 0. Stopped half way, it is at position 0 and may hold something still."""
        async with self._writer:
            await self._change(self._clear)
        log.info("store.cleared")

    async def renew(self) -> None:
        """Empty the store as `clear` does, and begin with new files: nothing that was deleted is left in any."""
        async with self._writer:
            await self._change(self._renew)
        log.info("store.renewed")

    async def reached(self, position: int) -> None:
        """Return once the store is at `position` or beyond. Waits for as long as it takes; cancel it with a scope."""
        await trio.lowlevel.checkpoint()
        while self._position < position:
            await self._moved.wait()

    async def lookup(
        self,
        subject: Term | None,
        predicate: Iri | None,
        object_: Term | None,
        graphs: Sequence[str],
        limit: int = 1_000,
    ) -> tuple[Statement, ...]:
        """Statements of these graphs that match; None matches everything. At most `limit`, in no order.

        Literals come as the store spells them, see `p2pmem.store.content`.
        """
        if limit < 1:
            raise MisuseError(f"limit {limit}: at least 1")
        await self._until_open()
        return await self._blocking.run(self._lookup, subject, predicate, object_, graphs, limit)

    async def query(
        self,
        sparql: str,
        default_graphs: Sequence[str],
        named_graphs: Sequence[str] = (),
        bind: Mapping[str, Term] | None = None,
        limits: QueryLimits | None = None,
    ) -> QueryAnswer:
        """A query of the node's own, run in process over these graphs, seeing every write that was applied.

        The text must be a constant of the program and cheap by construction: here it can neither be timed out nor
        stopped. What varies goes into `bind`; each bound variable must be in the SELECT clause. Queries of users go to
        `query_worker.QueryWorkers`.
        """
        used = limits or QueryLimits()
        await self._until_open()
        return await self._blocking.run(self._query, sparql, default_graphs, named_graphs, bind, used)

    async def backup(self, target: Path) -> int:
        """Copy the store, as it is at one instant, into a directory that does not exist yet. Returns a position that
        the copy has at least reached. On the same file system the files are linked, which takes some 10 ms at any size.
        """
        if self._path is None:
            raise MisuseError("a store in memory has no files; open it with a directory to back it up")
        await self._until_open()
        return await self._blocking.run(self._backup, target)

    def placed(self) -> Iterator[str]:
        """The named graphs of all assets. Reads the store, in the event loop: for starting, not for serving."""
        for quad in self._store.quads_for_pattern(None, IN_AGGREGATE, None, MEMBERSHIP):
            if isinstance(quad.subject, ox.NamedNode):
                yield quad.subject.value

    async def compact(self) -> None:
        """Rewrite the files. Bytes of deleted text may remain in them; `destroy` and a rebuild is what removes all."""
        async with self._writer:
            await self._blocking.run(self._compact)

    async def check(self) -> None:
        """Count again, from the assets' graphs, what the aggregates and their tallies must hold. Reads everything.

        `BugError` if they hold anything else.
        """
        async with self._writer:
            await self._blocking.run(self._check)

    def statistics(self) -> ProjectionStatistics:
        """Counters since the store was opened, and what it holds."""
        return ProjectionStatistics(
            position=self._position,
            assets=self._assets,
            transactions=self._transactions,
            placements=self._placements,
            drops=self._drops,
            meta_changes=self._meta_changes,
            quads_inserted=self._inserted,
            quads_deleted=self._deleted,
        )

    async def _change(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run what writes, until the disk takes it. The caller holds the writer's lock."""

        async def attempt() -> T:
            try:
                return await self._blocking.run(self._attempt, fn, *args)
            finally:
                if self._open_store is not None:
                    reopened, self._reopened = self._reopened, trio.Event()
                    reopened.set()

        return await self.refusal.outlast(attempt)

    async def _until_open(self) -> None:
        """Wait for a store that is being opened anew. One that stays closed tells the reader itself."""
        if self._open_store is None and self._must_reopen:
            with trio.move_on_after(_READS_WAIT_S):
                await self._reopened.wait()

    # What follows blocks, and runs where `Blocking` says.

    def _attempt(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if self._must_reopen:
            self._reopen()
        try:
            return fn(*args)
        except DiskError:
            self._must_reopen = self._path is not None
            raise

    def _reopen(self) -> None:
        """Let go of the store and open it again: at the position that it had, or at that of the write that failed."""
        assert self._path is not None
        if self._open_store is not None:
            check_room(self._path)
            self._open_store = None
        store = open_when_let_go(self._path)
        before = self._position, self._assets
        position, assets = stored_position(store), stored_number(store, ASSETS)
        described = stored_number(store, DESCRIBED)
        if (position, assets) < before or described < self._described:
            raise ProjectionUnusable(
                f"the store in {self._path} has lost what was written: it is at position {position}, and was at "
                f"{self._position}; {made_anew(self._path)}"
            )
        self._position, self._described, self._assets = position, described, assets
        self._open_store, self._must_reopen = store, False
        self._unflushed = 0

    def _write(self, position: int, make: Callable[[], StoreChange]) -> None:
        if 0 < position <= self._position:
            return  # the disk had taken it when it said that it did not
        change = make()
        plan = plan_change(Held(self._store), change.put, change.drop, change.meta)
        assets = self._assets + plan.assets_gained
        self._set_number(plan, POSITION, self._position, position)
        self._set_number(plan, ASSETS, self._assets, assets)
        with disk_errors("written"):
            compile_plan(plan).run(self._store)
        self._position, self._assets = position, assets
        self._transactions += 1
        self._placements += len(change.put)
        self._drops += len(change.drop)
        self._meta_changes += len(change.meta)
        self._count(plan)

    def _describe(self, position: int, make: Callable[[], Sequence[MetaChange]]) -> None:
        changes = make()
        held = Held(self._store)
        new, others = self._new_descriptions(held, changes)
        plan = plan_change(held, (), (), others)
        self._set_number(plan, DESCRIBED, self._described, position)
        with disk_errors("written"):
            for graph, lines in new.items():
                self._store.bulk_load(b"".join(lines), format=ox.RdfFormat.N_TRIPLES, to_graph=graph)
                self._inserted += sum(line.count(b"\n") for line in lines)
            compile_plan(plan).run(self._store)
        self._described = position
        self._meta_changes += len(changes)
        self._count(plan)

    def _new_descriptions(
        self, held: Held, changes: Sequence[MetaChange]
    ) -> tuple[dict[ox.NamedNode, list[bytes]], Sequence[MetaChange]]:
        """Those that only add and of whose subjects nothing is said yet, by graph, when they are many; and the others.

        Bulk loading is quick because it is no transaction. Told again after a crash, the same lines come again.
        """
        if len(changes) < _BULK_DESCRIPTIONS:
            return {}, changes
        others: list[MetaChange] = []
        new: dict[ox.NamedNode, list[bytes]] = {}
        for change in changes:
            graph = named(change.graph_iri)
            if graph not in new:
                check_meta_graph(held, graph)
            is_new = not (change.clear or change.remove) and plain_lines(change.add) is not None
            if is_new and not any(held.has_about(graph, named(iri)) for iri in change.reset_subjects):
                new.setdefault(graph, []).append(change.add)
            else:
                others.append(change)
        if sum(map(len, new.values())) < _BULK_DESCRIPTIONS:
            return {}, changes
        return new, others

    def _count(self, plan: Plan) -> None:
        self._inserted += plan.inserted
        self._deleted += len(plan.delete)
        self._unflushed += plan.inserted + len(plan.delete)
        if self._unflushed >= _FLUSH_QUADS:
            self._flush()

    def _flush(self) -> None:
        """What is written is written; a flush that fails is no error of the write, and the next write will tell."""
        self._unflushed = 0
        if self._path is not None:
            try:
                self._store.flush()
            except (OSError, RuntimeError) as error:
                log.warning("store.flush_failed", extra={"error": str(error)})
            give_back()

    def _set_number(self, plan: Plan, name: ox.NamedNode, before: int, after: int) -> None:
        if before != after:
            plan.delete.append(number_quad(name, before))
            plan.insert.append(number_quad(name, after))

    def _clear(self) -> None:
        with disk_errors("cleared"):
            self._store.remove(number_quad(POSITION, self._position))  # first, so that half a clearing is known as one
            self._position = self._described = self._assets = 0
            self.emptied += 1
            self._store.clear()
            stamp(self._store)

    def _renew(self) -> None:
        if self._path is None:
            self._clear()
            return
        self._open_store, self._must_reopen = None, True
        self._position = self._described = self._assets = 0
        self.emptied += 1
        destroy_projection(self._path)
        self._reopen()

    def _compact(self) -> None:
        with disk_errors("compacted"):
            self._store.flush()
            self._store.optimize()

    def _query(
        self,
        sparql: str,
        default_graphs: Sequence[str],
        named_graphs: Sequence[str],
        bind: Mapping[str, Term] | None,
        limits: QueryLimits,
    ) -> QueryAnswer:
        with disk_errors("read"):
            return answer(self._store, sparql, default_graphs, named_graphs, limits.max_rows, limits.max_bytes, bind)

    def _lookup(
        self,
        subject: Term | None,
        predicate: Iri | None,
        object_: Term | None,
        graphs: Sequence[str],
        limit: int,
    ) -> tuple[Statement, ...]:
        node, link, value = _pattern(subject), _pattern(predicate), _pattern(object_)
        if isinstance(node, ox.Literal) or (link is not None and not isinstance(link, ox.NamedNode)):
            return ()
        found: list[Statement] = []
        with disk_errors("read"):
            for iri in graphs:
                for quad in self._of_graph(named(iri)).quads_for_pattern(node, link, value, named(iri)):
                    found.append(_statement(quad, iri))
                    if len(found) == limit:
                        return tuple(found)
        return tuple(found)

    def _of_graph(self, graph: ox.NamedNode) -> ox.Store:
        """A store in which a graph can be looked at: of an asset, one that is made of its content."""
        content = Held(self._store).content_of(graph)
        if content is None:
            return self._store
        of_asset = ox.Store()
        of_asset.extend(
            ox.Quad(it.subject, it.predicate, it.object, graph) for it in asset_triples(graph.value, content)
        )
        return of_asset

    def _backup(self, target: Path) -> int:
        if target.exists():
            raise MisuseError(f"{target} exists; a backup goes into a new directory")
        position = self._position
        with disk_errors(f"copied to {target}"):
            self._store.backup(target)
        return position

    def _close(self) -> None:
        """The last reference, with which the files are let go of, must be this one."""
        if self._open_store is not None:
            self._flush()
        self._open_store, self._must_reopen = None, False

    @property
    def _store(self) -> ox.Store:
        store = self._open_store
        if store is None and self._must_reopen:
            raise DiskError(self.refusal.said or "the store is being opened anew; ask again")
        if store is None:
            raise MisuseError("the store is closed")
        return store

    def _check(self) -> None:
        held = Held(self._store)
        members: dict[ox.NamedNode, list[ox.NamedNode]] = {}
        for quad in self._store.quads_for_pattern(None, IN_AGGREGATE, None, MEMBERSHIP):
            assert isinstance(quad.subject, ox.NamedNode)
            assert isinstance(quad.object, ox.NamedNode)
            members.setdefault(quad.object, []).append(quad.subject)
        if sum(map(len, members.values())) != self._assets:
            raise BugError(f"{self._assets} assets counted, {sum(map(len, members.values()))} held; rebuild the store")
        for aggregate, graphs in members.items():
            derived = derived_tally(asset_triples(graph.value, held.content_of(graph) or b"") for graph in graphs)
            if held.triples_of(aggregate) != set(derived):
                raise BugError(f"<{aggregate.value}> holds other triples than its assets; rebuild the store")
            if held.tally_of(aggregate) != {triple: times for triple, times in derived.items() if times > 1}:
                raise BugError(f"the tally of <{aggregate.value}> is not what its assets hold; rebuild the store")


@asynccontextmanager
async def open_projection(path: Path | None, blocking: Blocking) -> AsyncIterator[OxigraphProjection]:
    """Open the store in `path`, made if need be, or in memory when `path` is None.

    `ProjectionUnusable` if another process has it open, if it is damaged, or of another format; the last two are mended
    by `destroy_projection` and a rebuild. `DiskError` if there is no room to open it.
    """
    projection = OxigraphProjection(await blocking.run(open_store, path), path, blocking)
    try:
        yield projection
    finally:
        with trio.CancelScope(shield=True):
            await blocking.run(projection._close)


def _pattern(term: Term | None) -> ox.NamedNode | ox.BlankNode | ox.Literal | ox.Triple | None:
    try:
        return None if term is None else to_oxigraph(term)
    except ValueError as error:
        raise MisuseError(f"not a term: {term!r} ({error})") from None


def _statement(quad: ox.Quad, graph_iri: str) -> Statement:
    predicate = from_oxigraph(quad.predicate)
    assert isinstance(predicate, Iri)
    return Statement(from_oxigraph(quad.subject), predicate, from_oxigraph(quad.object), graph_iri)
