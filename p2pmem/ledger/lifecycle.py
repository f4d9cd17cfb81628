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

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, unique
from typing import Final

from p2pmem_protocol.names import DKG, Address, GraphName, hex_id
from p2pmem_protocol.trust import TrustReport

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
    """One transition as the ledger keeps it. `root` and `seal` are None while nothing is sealed."""

    step: int
    graph: GraphName
    author: Address
    name: str
    version: int
    transition: Transition
    agent: Address
    root: bytes | None
    seal: bytes | None
    at_ms: int


def event_statements(step: LifecycleStep, previous: LifecycleStep | None) -> bytes:
    """The N-Triples lines of one transition's event. `previous` is the step before of the same asset."""
    asset = subject_of(step)
    event = _event_iri(asset, step)
    text = (
        f"<{event}> {RDF_TYPE} <{PROV}Activity> .\n"
        f"<{event}> {RDF_TYPE} <{DKG}{step.transition.event}> .\n"
        f"<{event}> <{PROV}wasAssociatedWith> <{step.agent.iri}> .\n"
        f'<{event}> <{PROV}startedAtTime> "{_iso(step.at_ms)}"^^<{XSD}dateTime> .\n'
        f"<{event}> <{PROV}used> <{asset}> .\n"
    )
    if step.root is not None:
        text += f'<{event}> <{DKG}merkleRoot> "{hex_id(step.root)}" .\n'
    if step.seal is not None:
        text += f'<{event}> <{DKG}seal> "{hex_id(step.seal)}" .\n'
    if previous is not None and step.transition is Transition.UPDATE:
        text += f"<{event}> <{PROV}wasRevisionOf> <{_event_iri(asset, previous)}> .\n"
    return text.encode()


def asset_statements(last: LifecycleStep, trust: TrustReport | None) -> bytes:
    """The N-Triples lines of an asset as it stands after its last transition; `trust` is the best of its versions'.

    A level stands with its M of N: `dkg:approvals` were given and `dkg:quorum` are needed; and with what it is of: the
    version with this `dkg:seal`, which may not be the newest one. Where nobody has said anything, it stands alone: how
    many are needed is then a matter of the graph, and a change of its quorum says nothing new of such a version.
    """
    asset = subject_of(last)
    by = "wasInvalidatedBy" if last.transition is Transition.DISCARD else "wasGeneratedBy"
    text = (
        f"<{asset}> {RDF_TYPE} <{PROV}Entity> .\n"
        f"<{asset}> {RDF_TYPE} <{DKG}Assertion> .\n"
        f"<{asset}> <{PROV}wasAttributedTo> <{last.author.iri}> .\n"
        f"<{asset}> <{PROV}{by}> <{_event_iri(asset, last)}> .\n"
        f"<{asset}> <{DKG}contextGraph> <{last.graph.iri}> .\n"
        f'<{asset}> <{DKG}assertionName> "{last.name}" .\n'
        f'<{asset}> <{DKG}state> "{last.transition.state}" .\n'
        f'<{asset}> <{DKG}memoryLayer> "{last.transition.layer}" .\n'
        f'<{asset}> <{DKG}version> "{last.version}"^^<{XSD}integer> .\n'
    )
    if last.root is not None:
        text += f'<{asset}> <{DKG}merkleRoot> "{hex_id(last.root)}" .\n'
    if trust is not None:
        text += (
            f'<{asset}> <{DKG}trustLevel> "{trust.level.word}" .\n'
            f'<{asset}> <{DKG}verificationStatus> "{trust.shown if trust.has_evidence else trust.level.word}" .\n'
            f'<{asset}> <{DKG}approvals> "{len(trust.approvals)}"^^<{XSD}integer> .\n'
            f'<{asset}> <{DKG}seal> "{hex_id(trust.subject.seal)}" .\n'
        )
        if trust.has_evidence:
            text += f'<{asset}> <{DKG}quorum> "{trust.m}"^^<{XSD}integer> .\n'
    return text.encode()


def subject_of(step: LifecycleStep) -> str:
    """The subject whose triples describe the asset as it stands now: they are replaced at each step."""
    return step.graph.lifecycle_iri(step.author, step.name)


def _event_iri(asset: str, step: LifecycleStep) -> str:
    return f"{asset}/event/{step.version}-{step.transition.value}-{step.at_ms}"


def _iso(at_ms: int) -> str:
    """The instant as XML Schema writes it in its canonical form, which has no trailing zeros."""
    text = datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()[:19]
    fraction = f"{at_ms % 1000:03}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"
