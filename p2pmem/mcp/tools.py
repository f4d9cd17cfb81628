"""The tools that a model has: the calls of a `Face` that remember, recall and judge.

What is for people is not here. Nobody becomes a member, no graph is founded, no review is decided by a model that just
read what asks for it: a verdict is a policy's or a person's.

A tool ends with its answer or an error that says what to do. Cancelled, it may have been carried out; a job goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Final, Literal

from p2pmem_protocol.errors import BugError, P2pmemError
from p2pmem_protocol.limits import HOUR_MS
from pydantic import Field

from p2pmem.face import Face, JobView, Layer
from p2pmem.face_names import graph_of
from p2pmem.mcp import answers

CHARACTERS_DEFAULT: Final = 12_000
CHARACTERS_MAX: Final = 200_000
WAIT_S_MAX: Final = 60

Level = Literal["SelfAttested", "Endorsed", "PartiallyVerified", "ConsensusVerified"]
Layers = Literal["working", "shared", "published"]
Format = Literal["turtle", "trig", "n-triples", "n-quads", "json-ld", "rdf/xml"]

GraphName = Annotated[
    str | None,
    Field(description="The context graph, `<address>/<slug>` or its slug; may be left out where it is the only one"),
]
Reference = Annotated[
    str, Field(description="`<author address>/<name>`, with `@<version>` after it for one version; the newest without")
]
Statements = Annotated[str, Field(description="RDF; by itself Turtle. Name things by IRIs that others use, too")]
AssetName = Annotated[str, Field(description="A name for what is said, `trial-12`; said again, it is the next version")]
Floor = Annotated[Level | None, Field(description="Leave out what is less attested than this")]
LeastM = Annotated[int, Field(ge=0, le=255, description="Leave out what fewer verifiers than this were needed for")]
Budget = Annotated[
    int, Field(ge=500, le=CHARACTERS_MAX, description="How many characters the answer may hold of what members said")
]
Wait = Annotated[int, Field(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the job to end; it goes on after")]


class ToolProblem(Exception):
    """What a caller is told of an error, in words. What is a mistake of ours is not among them."""


class Tools:
    """The tools. Each is a method whose signature and docstring a model sees."""

    def __init__(self, open_face: Callable[[], AbstractAsyncContextManager[Face]]) -> None:
        """`open_face` gives the node for one call: it may be another process by the next one."""
        self._open_face = open_face

    async def recall(
        self,
        question: Annotated[str, Field(description="Words to look for; they need not be a sentence")],
        graph: GraphName = None,
        min_trust: Floor = None,
        min_m: LeastM = 0,
        limit: Annotated[int, Field(ge=1, le=100)] = 10,
        characters_max: Budget = CHARACTERS_DEFAULT,
    ) -> answers.Recalled:
        """What the shared memory knows about something: passages, best first, each with who said it and who stands
        behind it. Without a floor it also returns what only its author attests."""
        async with self._face() as face:
            named = await graph_of(face, graph) if graph else None
            found = await face.recall(question, graph=named, min_trust=min_trust, min_m=min_m, limit=limit)
            return answers.recalled(found, characters_max=characters_max)

    async def query(
        self,
        sparql: Annotated[str, Field(description="A SPARQL 1.1 query that reads")],
        graph: GraphName = None,
        layer: Layers | None = None,
        min_trust: Floor = None,
        min_m: LeastM = 0,
        characters_max: Budget = CHARACTERS_DEFAULT,
    ) -> answers.Rows:
        """SPARQL over what is current in a context graph, at the floor that you give."""
        async with self._face() as face:
            found = await face.query(
                sparql,
                graph=await graph_of(face, graph),
                layer=Layer(layer) if layer else None,
                min_trust=min_trust,
                at_least=0,
                min_m=min_m,
            )
            return answers.rows(found, characters_max=characters_max)

    async def show(
        self, reference: Reference, graph: GraphName = None, characters_max: Budget = CHARACTERS_DEFAULT
    ) -> answers.Shown:
        """One version in full: its statements, who signed what about it, and what would raise its trust."""
        async with self._face() as face:
            named = await graph_of(face, graph)
            explained = await face.explain(named, reference)
            version = explained.version
            content = await face.content(named, version.reference) if version.held else b""
            return answers.shown(version, explained, content, characters_max=characters_max)

    async def graphs(self) -> answers.Graphs:
        """The context graphs that you may see, and who is in them: each is a memory of its own, with its members."""
        async with self._face() as face:
            return answers.graphs(await face.graphs())

    async def draft(
        self,
        name: AssetName,
        statements: Statements,
        graph: GraphName = None,
        format: Format = "turtle",
        replace: Annotated[bool, Field(description="In place of what the draft says so far, not beside it")] = False,
    ) -> answers.Written:
        """Note statements privately. Nobody else sees a draft, until you share or publish it by its name."""
        async with self._face() as face:
            named, data = await graph_of(face, graph), _data(statements)
            return answers.written(
                await face.draft(named, name, data, format=format, base=None, subgraph="", replace=replace)
            )

    async def share(
        self,
        name: AssetName,
        statements: Annotated[
            str | None, Field(description="RDF, by itself Turtle; without it, the draft of that name")
        ] = None,
        graph: GraphName = None,
        format: Format = "turtle",
        ttl_hours: Annotated[
            float | None, Field(ge=0.01, allow_inf_nan=False, description="How long it lives; or the graph's default")
        ] = None,
        wait_s: Wait = 10,
    ) -> answers.Job:
        """Sign statements and share them with the members of a context graph, as the next version of an asset. What is
        shared expires; share it again to renew it, or publish it. It cannot be unsaid, only retracted."""
        async with self._face() as face:
            named = await graph_of(face, graph)
            ttl_ms = round(ttl_hours * HOUR_MS) if ttl_hours is not None else None
            if statements is None:
                job = await face.share(named, name, ttl_ms=ttl_ms)
            else:
                data = _data(statements)
                job = await face.share_data(named, name, data, format=format, base=None, subgraph="", ttl_ms=ttl_ms)
            return await _after(face, job, wait_s)

    async def publish(self, reference: Reference, graph: GraphName = None, wait_s: Wait = 10) -> answers.Job:
        """Publish a draft of yours, or what you shared, for good. It does not expire and cannot be taken out of the
        world again."""
        async with self._face() as face:
            return await _after(face, await face.publish(await graph_of(face, graph), reference), wait_s)

    async def endorse(
        self,
        reference: Reference,
        reason: Annotated[str, Field(description="Why, in a sentence")] = "",
        withdraw: Annotated[bool, Field(description="Take your endorsement back, for good")] = False,
        graph: GraphName = None,
        wait_s: Wait = 10,
    ) -> answers.Job:
        """Sign that you find what somebody else said good. Do so for what you checked, not for what sounds right."""
        async with self._face() as face:
            named = await graph_of(face, graph)
            job = await face.endorse(named, reference, reason=reason, withdraw=withdraw)
            return await _after(face, job, wait_s)

    async def verify(self, reference: Reference, graph: GraphName = None, wait_s: Wait = 0) -> answers.Job:
        """Ask the verifiers of the context graph to check a version. They answer when they do, in days perhaps: look
        at the job again. It ends ConsensusVerified, rejected, or at its deadline."""
        async with self._face() as face:
            job = await face.verify(await graph_of(face, graph), reference, deadline_ms=None)
            return await _after(face, job, wait_s)

    async def retract(
        self,
        reference: Reference,
        reason: Annotated[str, Field(description="Why, in a sentence")] = "",
        successor: Annotated[int | None, Field(ge=1, description="The version that stands in its place")] = None,
        erase: Annotated[bool, Field(description="Members also drop its bytes")] = False,
        graph: GraphName = None,
    ) -> answers.Shown:
        """Take a version of yours back: from now on members leave it and lower ones out."""
        async with self._face() as face:
            named = await graph_of(face, graph)
            view = await face.retract(named, reference, reason=reason, successor=successor, erase=erase)
            return answers.shown(view, None, b"", characters_max=0)

    async def job(self, id: str, wait_s: Wait = 0) -> answers.Job:
        """How a job stands that another tool began."""
        async with self._face() as face:
            return answers.job(await face.job(id, wait_ms=wait_s * 1_000))

    async def status(self) -> answers.Stands:
        """How the node stands: who speaks through it, who is connected, and what is wrong, if anything is."""
        async with self._face() as face:
            return answers.stands(await face.status())

    @asynccontextmanager
    async def _face(self) -> AsyncIterator[Face]:
        """The node, its errors in words. A bug, here or there, is passed on: its text may hold anything."""
        try:
            async with self._open_face() as face:
                yield face
        except BugError:
            raise
        except P2pmemError as error:
            raise ToolProblem(answers.words(str(error), answers.PROBLEM_CHARACTERS_MAX)) from error


def _data(statements: str) -> bytes:
    try:
        return statements.encode()
    except UnicodeEncodeError:
        raise ToolProblem("the statements hold half a character (a lone surrogate), which is no Unicode text") from None


async def _after(face: Face, job: JobView, wait_s: int) -> answers.Job:
    """The job, waited for a while. What was said of the data when they were handed in is said once, so it is kept."""
    later = await face.job(job.id, wait_ms=wait_s * 1_000)
    return answers.job(dataclasses.replace(later, warnings=job.warnings))
