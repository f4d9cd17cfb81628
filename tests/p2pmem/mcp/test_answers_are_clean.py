"""What reaches a model in words is clean of control characters, and a bad number is told as one."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from mcp import Client

from p2pmem.api.problems import BadRequestError
from p2pmem.face import DraftView, Face, JobView, QueryAnswer, RecallAnswer, RecallHit
from p2pmem.mcp.answers import job, recalled, rows, written
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


def test_the_terms_of_a_query_escape_what_cannot_be_printed_and_say_the_same() -> None:
    blank: dict[str, Any] = {it.name: None for it in dataclasses.fields(QueryAnswer)}
    found = QueryAnswer(**blank | {"rows": (('"a\u202eb\U000e0041"', None),), "triples": '<a> <b> "\u202e" .\n'})
    told = rows(found, characters_max=500)
    assert told.rows == ((r'"a\u202Eb\U000E0041"', None),)
    assert told.triples == r'<a> <b> "\u202E" .' + "\n"
