"""What reaches a model in words is clean of control characters and of bounded length; a bad argument is told as one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pyoxigraph as ox
import pytest
from mcp import Client

from p2pmem.api.problems import BadRequestError
from p2pmem.face import (
    DraftView,
    Face,
    GraphView,
    JobView,
    Layer,
    MemberView,
    QueryAnswer,
    RecallAnswer,
    RecallHit,
    SignerView,
    TrustView,
    VersionView,
)
from p2pmem.mcp.answers import LISTED_MAX, escaped, graphs, job, recalled, rows, written
from p2pmem.mcp.server import make_server

HOSTILE = "a\u202eb\x1b[2Jc"
CLEAN = "a\ufffdb\ufffd[2Jc"


class Refusing:
    """A face that refuses each call with a text that holds control characters."""

    def __getattr__(self, name: str) -> Any:
        async def call(*_: Any, **__: Any) -> Any:
            raise BadRequestError(HOSTILE)

        return call


@asynccontextmanager
async def open_refusing() -> AsyncIterator[Face]:
    yield cast("Face", Refusing())


async def told(tool: str, /, **arguments: Any) -> str:
    async with Client(make_server(open_refusing, of_agent=False)) as client:
        answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    text: str = answer.content[0].text  # type: ignore[union-attr]
    return text


async def test_an_error_reaches_the_model_without_control_characters() -> None:
    assert CLEAN in await told("status")


@pytest.mark.parametrize("hours", ["inf", "nan"])
async def test_a_lifetime_that_is_no_finite_number_is_told_as_a_bad_argument(hours: str) -> None:
    assert "finite" in await told("share", name="a", graph="a/b", ttl_hours=hours)


async def test_a_lifetime_shorter_than_any_clock_shows_is_told_as_a_bad_argument() -> None:
    assert "greater than or equal to 0.01" in await told("share", name="a", graph="a/b", ttl_hours=1e-9)


@pytest.mark.parametrize("tool", ["share", "draft"])
async def test_half_a_character_is_told_as_what_it_is(tool: str) -> None:
    assert "lone surrogate" in await told(tool, name="a", graph="a/b", statements="\ud800")


async def test_what_a_passage_is_about_holds_no_control_characters() -> None:
    blank: dict[str, Any] = {it.name: None for it in dataclasses.fields(RecallHit)}
    hit = RecallHit(**blank | {"text": "said", "subject": HOSTILE, "note": ""})
    blank = {it.name: None for it in dataclasses.fields(RecallAnswer)}
    answer = RecallAnswer(**blank | {"hits": (hit,), "policy": ""})
    assert recalled(answer, characters_max=500).passages[0].about == CLEAN


def test_the_warnings_of_a_draft_and_of_a_job_hold_no_control_characters() -> None:
    blank: dict[str, Any] = {it.name: None for it in dataclasses.fields(DraftView)}
    assert written(DraftView(**blank | {"warnings": (HOSTILE,)})).warnings == (CLEAN,)
    words: dict[str, Any] = {it.name: "" for it in dataclasses.fields(JobView)}
    assert job(JobView(**words | {"result": None, "warnings": (HOSTILE,)})).warnings == (CLEAN,)


def test_the_words_of_the_first_passage_are_cut_to_what_the_answer_may_hold() -> None:
    blank: dict[str, Any] = {it.name: None for it in dataclasses.fields(RecallHit)}
    hit = RecallHit(**blank | {"text": "s" * 4_000, "subject": "", "note": ""})
    blank = {it.name: None for it in dataclasses.fields(RecallAnswer)}
    answer = RecallAnswer(**blank | {"hits": (hit,), "policy": ""})
    assert recalled(answer, characters_max=500).passages[0].said == "s" * 500 + " [...]"


LONG = "word " * 10_000
SIGNERS = tuple(SignerView(f"0x{number:040x}", LONG, "endorse", "manual", LONG, counts=True) for number in range(90))


def test_what_stands_beside_the_words_is_bounded_however_much_members_say() -> None:
    trust = TrustView("Endorsed", 1, 1, 0, 0, 90, (), SIGNERS, "", conflict=False)
    version: dict[str, Any] = {it.name: "" for it in dataclasses.fields(VersionView)}
    version |= {"trust": trust, "author_label": LONG, "expires_ms": 0, "layer": Layer.SHARED, "retracted": False}
    blank: dict[str, Any] = {it.name: None for it in dataclasses.fields(RecallHit)}
    hit = RecallHit(**blank | {"text": LONG, "subject": LONG, "note": LONG, "version": VersionView(**version)})
    blank = {it.name: None for it in dataclasses.fields(RecallAnswer)}
    answer = RecallAnswer(**blank | {"hits": (hit, hit), "policy": ""})
    found = recalled(answer, characters_max=500)
    assert found.left_out == 1
    (passage,) = found.passages
    assert passage.signers[-1] == "and 82 more"
    assert len(json.dumps(vars(passage))) < 8_000


def test_of_many_members_and_warnings_the_first_are_told_and_how_many_more_there_are() -> None:
    members = tuple(MemberView(f"0x{number:040x}", LONG, ("reader",), 0, online=False) for number in range(1_000))
    blank: dict[str, Any] = {it.name: "" for it in dataclasses.fields(GraphView)}
    view = GraphView(**blank | {"members": members, "quorum_m": 0, "trouble": LONG})
    (graph,) = graphs([view]).graphs
    assert graph.members[-1] == f"and {1_000 - LISTED_MAX} more"
    assert len(json.dumps(vars(graph))) < (LISTED_MAX + 3) * 600
    blank = {it.name: None for it in dataclasses.fields(DraftView)}
    warnings = written(DraftView(**blank | {"warnings": (LONG,) * 60})).warnings
    assert (len(warnings), warnings[-1], warnings[0].endswith(" [...]")) == (LISTED_MAX + 1, "and 10 more", True)


def test_the_terms_of_a_query_escape_what_cannot_be_printed_and_say_the_same() -> None:
    blank: dict[str, Any] = {it.name: None for it in dataclasses.fields(QueryAnswer)}
    found = QueryAnswer(**blank | {"rows": (('"a\u202eb\U000e0041"', None),), "triples": '<a> <b> "\u202e" .\n'})
    told = rows(found, characters_max=500)
    assert told.rows == ((r'"a\u202Eb\U000E0041"', None),)
    assert told.triples == r'<a> <b> "\u202E" .' + "\n"


def test_statements_that_were_escaped_are_read_as_those_that_were_sealed() -> None:
    sealed = '<urn:a> <urn:b> "\u202e \x1b \U000e0041 \\\\u202E" .\n'
    read = [[str(it) for it in ox.parse(text, ox.RdfFormat.N_QUADS)] for text in (sealed, escaped(sealed))]
    assert read[0] == read[1]
    assert escaped(sealed).replace("\n", "").isprintable()
