"""The lifecycle of knowledge assets as RDF: what `_meta` says of them, with one PROV event a transition.

    transition   state        layer                  event
    create       created      working                AssertionCreated
    update       created      working                AssertionUpdated    prov:wasRevisionOf the version before
    promote      promoted     shared                 AssertionPromoted
    publish      published    verifiable             AssertionPublished
    finalize     finalized    verifiable             AssertionFinalized
    discard      discarded    none                   AssertionDiscarded

History outlives content: rows are only ever added, and creating a name again sweeps nothing away. Source: PROV-O, W3C
Recommendation of 30 April 2013.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, unique
from typing import Final

from p2pmem_protocol.names import DKG, Address, GraphName, hex_id

PROV: Final = "http://www.w3.org/ns/prov#"
RDF_TYPE: Final = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#type>"
XSD: Final = "http://www.w3.org/2001/XMLSchema#"


@unique
class Transition(Enum):
    """What happened to an asset; the value is the word in the ledger."""

    CREATE = "create"
    UPDATE = "update"
    PROMOTE = "promote"
    PUBLISH = "publish"
    FINALIZE = "finalize"
    DISCARD = "discard"

    @property
    def state(self) -> str:
        return _STATES[self][0]

    @property
    def layer(self) -> str:
        return _STATES[self][1]

    @property
    def event(self) -> str:
        return _STATES[self][2]


_STATES: Final = {
    Transition.CREATE: ("created", "working", "AssertionCreated"),
    Transition.UPDATE: ("created", "working", "AssertionUpdated"),
    Transition.PROMOTE: ("promoted", "shared", "AssertionPromoted"),
    Transition.PUBLISH: ("published", "verifiable", "AssertionPublished"),
    Transition.FINALIZE: ("finalized", "verifiable", "AssertionFinalized"),
    Transition.DISCARD: ("discarded", "none", "AssertionDiscarded"),
}


@dataclass(frozen=True, slots=True)
class LifecycleStep:
    """One transition as the ledger keeps it. `root` is None while nothing is sealed."""

    step: int
    graph: GraphName
    author: Address
    name: str
    version: int
    transition: Transition
    agent: Address
    root: bytes | None
    at_ms: int


def statements(step: LifecycleStep, previous: LifecycleStep | None) -> bytes:
    """The N-Triples lines of one transition's event, and of the asset as it stands after it.

    `previous` is the step before of the same asset; an update links to its revision.
    """
    return "".join(f"{line} .\n" for line in _lines(step, previous)).encode()


def subject_of(step: LifecycleStep) -> str:
    """The subject whose triples describe the asset as it stands now: they are replaced at each step."""
    return step.graph.lifecycle_iri(step.author, step.name)


def _lines(step: LifecycleStep, previous: LifecycleStep | None) -> Iterator[str]:
    asset = f"<{subject_of(step)}>"
    event = f"<{_event_iri(step)}>"
    yield f"{asset} {RDF_TYPE} <{PROV}Entity>"
    yield f"{asset} {RDF_TYPE} <{DKG}Assertion>"
    yield f"{asset} <{PROV}wasAttributedTo> <{step.author.iri}>"
    yield f"{asset} <{PROV}wasGeneratedBy> {event}"
    yield f"{asset} <{DKG}contextGraph> <{step.graph.iri}>"
    yield f'{asset} <{DKG}assertionName> "{step.name}"'
    yield f'{asset} <{DKG}state> "{step.transition.state}"'
    yield f'{asset} <{DKG}memoryLayer> "{step.transition.layer}"'
    yield f'{asset} <{DKG}version> "{step.version}"^^<{XSD}integer>'
    yield f"{event} {RDF_TYPE} <{PROV}Activity>"
    yield f"{event} {RDF_TYPE} <{DKG}{step.transition.event}>"
    yield f"{event} <{PROV}wasAssociatedWith> <{step.agent.iri}>"
    yield f'{event} <{PROV}startedAtTime> "{_iso(step.at_ms)}"^^<{XSD}dateTime>'
    used = "wasInvalidatedBy" if step.transition is Transition.DISCARD else "used"
    yield f"{asset} <{PROV}{used}> {event}" if used == "wasInvalidatedBy" else f"{event} <{PROV}used> {asset}"
    if step.root is not None:
        yield f'{asset} <{DKG}merkleRoot> "{hex_id(step.root)}"'
        yield f'{event} <{DKG}merkleRoot> "{hex_id(step.root)}"'
    if previous is not None and step.transition is Transition.UPDATE:
        yield f"{event} <{PROV}wasRevisionOf> <{_event_iri(previous)}>"


def _event_iri(step: LifecycleStep) -> str:
    return f"{subject_of(step)}/event/{step.version}-{step.transition.value}-{step.at_ms}"


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03}Z"


def chained(steps: Iterable[LifecycleStep]) -> Iterator[tuple[LifecycleStep, LifecycleStep | None]]:
    """Each step with the one before it of the same asset; `steps` in order."""
    last: dict[tuple[GraphName, Address, str], LifecycleStep] = {}
    for step in steps:
        key = (step.graph, step.author, step.name)
        yield step, last.get(key)
        last[key] = step
