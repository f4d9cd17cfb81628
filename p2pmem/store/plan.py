"""From what the store holds and what it shall hold, to the quads that leave and the quads that come. No IO of its own.

How it is laid out:

* the triples of each asset are in one *aggregate*;
* the *membership* graph says which aggregate an asset's graph is in, and what it holds: its content, as one literal. A
  graph of its own would be twice the quads, and a quad costs more than anything else that is done with a share;
* a triple that several assets of an aggregate hold stands once in the aggregate, and the aggregate's *tally* says by
  how many it is held, from two on. (To find the others by looking through all graphs that hold the triple would cost as
  much as there are such graphs, in any aggregate; one hot triple would stop the writer.)
* the *state* graph says up to which position of the ledger this is true.

All of it changes in one transaction, so the tally is never wrong; `derived_tally` says what it must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyoxigraph as ox
from p2pmem_protocol.errors import BugError, MisuseError

from p2pmem.store.content import asset_triples, held_lines, meta_triples, named, plain_lines, triples_of
from p2pmem.store.placement import MAX_CHANGES_PER_APPLY, MetaChange, Placement

INTERNAL = "urn:p2pmem:store:"
"""Graphs under this prefix are the store's own; nobody else may write or read them."""

MEMBERSHIP = ox.NamedNode(INTERNAL + "membership")
STATE = ox.NamedNode(INTERNAL + "state")
IN_AGGREGATE = ox.NamedNode(INTERNAL + "in")
HOLDS = ox.NamedNode(INTERNAL + "holds")
TALLY_OF = ox.NamedNode(INTERNAL + "of")
_IN_AGGREGATE_TEXT = str(IN_AGGREGATE)
_HOLDS_TEXT = str(HOLDS)
_TALLY = INTERNAL + "tally:"
_COUNT = INTERNAL + "count:"


class Holdings(Protocol):
    """What the store holds before the change. Only the one writer plans, so nothing moves in between."""

    def aggregate_of(self, graph: ox.NamedNode) -> ox.NamedNode | None: ...

    def content_of(self, graph: ox.NamedNode) -> bytes | None: ...

    def triples_of(self, graph: ox.NamedNode) -> set[ox.Triple]: ...

    def triples_about(self, graph: ox.NamedNode, subject: ox.NamedNode) -> set[ox.Triple]: ...

    def has_about(self, graph: ox.NamedNode, subject: ox.NamedNode | ox.BlankNode | ox.Triple) -> bool: ...

    def holders(self, aggregate: ox.NamedNode, triple: ox.Triple) -> int: ...


@dataclass(slots=True)
class Plan:
    """Quads that leave, quads that come; to be done in this order, together or not at all.

    `texts` are triples that come, by graph, as they are written: what is new in every respect is most of all, and to
    make quads of it costs more than to store it.
    """

    delete: list[ox.Quad] = field(default_factory=list)
    insert: list[ox.Quad] = field(default_factory=list)
    texts: dict[ox.NamedNode, list[str]] = field(default_factory=dict)
    assets_gained: int = 0

    def add_texts(self, graph: ox.NamedNode, texts: Iterable[str]) -> None:
        self.texts.setdefault(graph, []).extend(texts)

    @property
    def inserted(self) -> int:
        """How many quads come."""
        return len(self.insert) + sum(map(len, self.texts.values()))


def plan_change(holdings: Holdings, put: Sequence[Placement], drop: Sequence[str], meta: Sequence[MetaChange]) -> Plan:
    """What must be done so that these assets stand as told, those are gone, and `_meta` says so.

    A graph may be named once, in `put` or in `drop`; to drop one that is not held is no error, for a change may be told
    again after a crash. `MisuseError` for anything else, before anything is planned.
    """
    _check(put, drop, meta)
    plan = Plan()
    tally = _Tally(holdings)
    for iri in drop:
        _plan_drop(plan, holdings, tally, named(iri))
    for placement in put:
        _plan_put(plan, holdings, tally, placement)
    tally.settle(plan)
    _plan_meta(plan, holdings, meta)
    return plan


def tally_graph(aggregate: ox.NamedNode) -> ox.NamedNode:
    """The graph that says which triples of the aggregate more than one asset holds."""
    return ox.NamedNode(_TALLY + aggregate.value)


def tally_quad(aggregate: ox.NamedNode, triple: ox.Triple, holders: int) -> ox.Quad:
    assert holders >= 2
    return ox.Quad(ox.NamedNode(f"{_COUNT}{holders}"), TALLY_OF, triple, tally_graph(aggregate))


def tally_count(quad: ox.Quad) -> int:
    """How many hold the triple, as the quad says."""
    assert isinstance(quad.subject, ox.NamedNode)
    return int(quad.subject.value.removeprefix(_COUNT))


def derived_tally(contents: Iterable[set[ox.Triple]]) -> Counter[ox.Triple]:
    """How many of one aggregate's assets hold each triple, counted from their graphs."""
    return Counter(triple for triples in contents for triple in triples)


def _check(put: Sequence[Placement], drop: Sequence[str], meta: Sequence[MetaChange]) -> None:
    count = len(put) + len(drop) + len(meta)
    if count > MAX_CHANGES_PER_APPLY:
        raise MisuseError(f"{count} changes in one call, at most {MAX_CHANGES_PER_APPLY}; split them over positions")
    graphs = [placement.graph_iri for placement in put]
    graphs += drop
    if len(set(graphs)) != len(graphs):
        twice = next(iri for iri, times in Counter(graphs).items() if times > 1)
        raise MisuseError(f"<{twice}> is named twice in one change; tell only how it stands in the end")
    aggregates = {placement.aggregate_iri for placement in put}
    for iri in aggregates.intersection(graphs):
        raise MisuseError(f"<{iri}> is named as an asset's graph and as an aggregate; they are different graphs")
    metas = {change.graph_iri for change in meta}
    for iri in metas.intersection([*graphs, *aggregates]):
        raise MisuseError(f"<{iri}> is named as a meta graph and as an asset's or aggregate; they are different graphs")
    for iri in [*graphs, *aggregates, *metas]:
        if iri.startswith(INTERNAL):
            raise MisuseError(f"<{iri}> is a graph of the store's own; choose a name outside {INTERNAL}")


def check_meta_graph(holdings: Holdings, graph: ox.NamedNode) -> None:
    """`MisuseError` if the graph is an asset's, or one of the store's own."""
    if holdings.aggregate_of(graph) is not None:
        raise MisuseError(f"<{graph.value}> is the graph of an asset; change it by a placement")
    if graph.value.startswith(INTERNAL):
        raise MisuseError(f"<{graph.value}> is a graph of the store's own; choose a name outside {INTERNAL}")


def _plan_drop(plan: Plan, holdings: Holdings, tally: _Tally, graph: ox.NamedNode) -> None:
    aggregate = holdings.aggregate_of(graph)
    if aggregate is None:
        return
    content = _content(holdings, graph)
    tally.leave(aggregate, asset_triples(graph.value, content))
    plan.delete += [ox.Quad(graph, IN_AGGREGATE, aggregate, MEMBERSHIP), _content_quad(graph, content)]
    plan.assets_gained -= 1


def _content(holdings: Holdings, graph: ox.NamedNode) -> bytes:
    content = holdings.content_of(graph)
    if content is None:
        raise BugError(f"<{graph.value}> is in an aggregate, and its content is not held; rebuild the store")
    return content


def _content_quad(graph: ox.NamedNode, content: bytes) -> ox.Quad:
    return ox.Quad(graph, HOLDS, ox.Literal(content.decode()), MEMBERSHIP)


def _plan_put(plan: Plan, holdings: Holdings, tally: _Tally, placement: Placement) -> None:
    graph, aggregate = named(placement.graph_iri), named(placement.aggregate_iri)
    if not tally.knows(aggregate) and holdings.aggregate_of(aggregate) is not None:
        raise MisuseError(f"<{aggregate.value}> is the graph of an asset; an aggregate is a graph of its own")
    before = holdings.aggregate_of(graph)
    if before is None and (texts := held_lines(placement.content)) is not None:
        tally.join_new(aggregate, texts)
        plan.assets_gained += 1
        written = ox.Literal(placement.content.decode())
        plan.add_texts(MEMBERSHIP, (f"{graph} {_IN_AGGREGATE_TEXT} {aggregate}", f"{graph} {_HOLDS_TEXT} {written}"))
        return
    triples = asset_triples(placement.graph_iri, placement.content)
    if not triples:
        raise MisuseError(f"<{graph.value}> has no statement; an empty asset is dropped, not put")
    old = _content(holdings, graph) if before is not None else None
    if old != placement.content:
        plan.insert.append(_content_quad(graph, placement.content))
        if old is not None:
            plan.delete.append(_content_quad(graph, old))
    if before is not None and old is not None:
        tally.leave(before, asset_triples(graph.value, old))
    tally.join(aggregate, triples)
    if before == aggregate:
        return
    if before is not None:
        plan.delete.append(ox.Quad(graph, IN_AGGREGATE, before, MEMBERSHIP))
    else:
        plan.assets_gained += 1
    plan.insert.append(ox.Quad(graph, IN_AGGREGATE, aggregate, MEMBERSHIP))


def _plan_meta(plan: Plan, holdings: Holdings, changes: Sequence[MetaChange]) -> None:
    reset = [(change.graph_iri, subject) for change in changes for subject in change.reset_subjects]
    if len(set(reset)) == len(reset) and not any(change.remove or change.clear for change in changes):
        _plan_meta_growing(plan, holdings, changes)
    else:
        _plan_meta_changing(plan, holdings, changes)


def _plan_meta_growing(plan: Plan, holdings: Holdings, changes: Sequence[MetaChange]) -> None:
    """Each change says all of its own subjects, and takes nothing away that another one says."""
    for change in changes:
        graph = named(change.graph_iri)
        if graph not in plan.texts:
            check_meta_graph(holdings, graph)
        texts = plain_lines(change.add)
        coming = dict.fromkeys(map(str, meta_triples(change.graph_iri, change.add)) if texts is None else texts)
        for iri in change.reset_subjects:
            # Most of what is said of an asset stays as it is: that is neither taken away nor written again.
            for triple in holdings.triples_about(graph, named(iri)):
                text = str(triple)
                if text in coming:
                    del coming[text]
                else:
                    plan.delete.append(ox.Quad(triple.subject, triple.predicate, triple.object, graph))
        plan.add_texts(graph, coming)


def _plan_meta_changing(plan: Plan, holdings: Holdings, changes: Sequence[MetaChange]) -> None:
    come: dict[ox.NamedNode, _Coming] = {}
    gone: dict[ox.NamedNode, set[ox.Triple]] = {}
    for change in changes:
        graph = named(change.graph_iri)
        if graph not in come:
            check_meta_graph(holdings, graph)
        coming = come.setdefault(graph, {})
        going = _meta_leaving(holdings, change, graph, coming)
        gone.setdefault(graph, set()).update(going)
        for triple in meta_triples(change.graph_iri, change.add):
            coming.setdefault(triple.subject, set()).add(triple)
    for graph, coming in come.items():
        arrived = {triple for triples in coming.values() for triple in triples}
        plan.delete += [ox.Quad(t.subject, t.predicate, t.object, graph) for t in gone[graph] - arrived]
        plan.insert += [ox.Quad(t.subject, t.predicate, t.object, graph) for t in arrived]


_Coming = dict[ox.NamedNode | ox.BlankNode | ox.Triple, set[ox.Triple]]
"""What the changes of one call bring to a graph, by subject: a reset must not look through everything."""


def _meta_leaving(holdings: Holdings, change: MetaChange, graph: ox.NamedNode, coming: _Coming) -> set[ox.Triple]:
    """What the change takes away of what is held. What earlier changes of the same call bring goes at once."""
    going = meta_triples(change.graph_iri, change.remove) if change.remove else set()
    for triple in going:
        coming.get(triple.subject, set()).discard(triple)
    if change.clear:
        going |= holdings.triples_of(graph)
        coming.clear()
    for iri in change.reset_subjects:
        subject = named(iri)
        going |= holdings.triples_about(graph, subject)
        coming.pop(subject, None)
    return going


_Subject = ox.NamedNode | ox.BlankNode | ox.Triple


class _Tally:
    """By how much the number of holders of each triple of each aggregate changes, over the whole plan."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._change: dict[ox.NamedNode, Counter[ox.Triple]] = {}
        # Triples of subjects of which an aggregate says nothing yet: nobody holds them, so nobody need be asked.
        self._counted: dict[ox.NamedNode, set[_Subject]] = {}
        self._new: dict[ox.NamedNode, dict[_Subject, list[str]]] = {}

    def knows(self, aggregate: ox.NamedNode) -> bool:
        """Whether something joined this aggregate in this plan already."""
        return aggregate in self._new or aggregate in self._counted

    def join(self, aggregate: ox.NamedNode, triples: set[ox.Triple]) -> None:
        change = self._change.setdefault(aggregate, Counter())
        counted = self._counted.setdefault(aggregate, set())
        new = self._new.get(aggregate, {})
        for triple in triples:
            change[triple] += 1
            subject = triple.subject
            counted.add(subject)
            # What was new is not any more, when another asset of this call speaks of it.
            earlier = new.pop(subject, None)
            if earlier is not None:
                change.update(set(triples_of(earlier)))

    def join_new(self, aggregate: ox.NamedNode, texts: list[str]) -> None:
        """As `join`, for an asset that is in no aggregate, with its triples as they are written."""
        by_subject: dict[str, list[str]] = {}
        for text in texts:
            by_subject.setdefault(text[1 : text.index(">")], []).append(text)
        new = self._new.setdefault(aggregate, {})
        for iri, its in by_subject.items():
            subject = ox.NamedNode(iri)
            known = subject in new or subject in self._counted.get(aggregate, ())
            if known or self._holdings.has_about(aggregate, subject):
                self.join(aggregate, set(triples_of(its)))
            else:
                new[subject] = its

    def leave(self, aggregate: ox.NamedNode, triples: set[ox.Triple]) -> None:
        change = self._change.setdefault(aggregate, Counter())
        for triple in triples:
            change[triple] -= 1

    def settle(self, plan: Plan) -> None:
        """Write into the plan what the aggregates and their tallies gain and lose."""
        for aggregate, subjects in self._new.items():
            plan.add_texts(aggregate, (text for its in subjects.values() for text in its))
        for aggregate, changes in self._change.items():
            for triple, change in changes.items():
                if change != 0:
                    self._settle_one(plan, aggregate, triple, change)

    def _settle_one(self, plan: Plan, aggregate: ox.NamedNode, triple: ox.Triple, change: int) -> None:
        before = self._holdings.holders(aggregate, triple)
        after = before + change
        assert after >= 0, f"{-after} more assets leave a triple of <{aggregate.value}> than hold it"
        quad = ox.Quad(triple.subject, triple.predicate, triple.object, aggregate)
        if before == 0:
            plan.insert.append(quad)
        elif after == 0:
            plan.delete.append(quad)
        if before >= 2:
            plan.delete.append(tally_quad(aggregate, triple, before))
        if after >= 2:
            plan.insert.append(tally_quad(aggregate, triple, after))
