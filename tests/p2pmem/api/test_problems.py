"""Errors to codes, statuses and exit codes, and back."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import p2pmem_jobs.errors as jobs
import pytest
from p2pmem_protocol.errors import BugError, MisuseError, OutsideError, P2pmemError, Reason, RefusedError
from p2pmem_protocol.names import BadNameError

import p2pmem
from p2pmem.api.codec import BadValueError
from p2pmem.api.problems import (
    BUG,
    EXIT_MEANINGS,
    PROBLEMS,
    Exit,
    NodeBugError,
    NodeMisuseError,
    NodeNotFoundError,
    NodeOutsideError,
    NodeRefusedError,
    error_of,
    problem,
    problem_of,
    row_of,
    single,
)
from p2pmem.face import NoRightError, NotFoundError
from p2pmem.importing.errors import InputRefusedError, InputSyntaxError
from p2pmem.services.showing import in_words

_DEFINES_AN_ERROR = re.compile(r"^class \w+\(.*(?:Error|Refused|Unreachable)\):", re.MULTILINE)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_row_names_an_error_that_is_there(name: str) -> None:
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), Exception)


def test_every_error_of_the_project_is_something_other_than_a_bug() -> None:
    folder = Path(p2pmem.__file__).parent
    for path in folder.rglob("*.py"):
        if _DEFINES_AN_ERROR.search(path.read_text()):
            importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))
    kinds, seen = [P2pmemError, jobs.MisuseError, jobs.OutsideError, jobs.JobEndedBadlyError], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind is P2pmemError or issubclass(kind, BugError) or kind.__name__.startswith("_"):
            continue
        names = {f"{it.__module__}.{it.__qualname__}" for it in kind.__mro__}
        assert names & set(PROBLEMS), kind
        seen.add(kind)
    assert len(seen) > 30


def test_a_code_always_means_the_same() -> None:
    by_code: dict[str, object] = {}
    for row in PROBLEMS.values():
        assert by_code.setdefault(row.code, row) == row


def test_every_exit_code_has_a_meaning() -> None:
    assert set(EXIT_MEANINGS) == set(Exit)


ERRORS = [
    (MisuseError("no"), 422, "misuse", NodeMisuseError, Exit.MISUSE),
    (BadNameError("no"), 422, "bad-name", NodeMisuseError, Exit.MISUSE),
    (BadValueError("no"), 400, "bad-request", NodeMisuseError, Exit.MISUSE),
    (NoRightError("no"), 403, "no-right", NodeMisuseError, Exit.NOT_ALLOWED),
    (NotFoundError("no"), 404, "not-found", NodeNotFoundError, Exit.NOT_FOUND),
    (jobs.NotFoundError("no"), 404, "no-such-job", NodeNotFoundError, Exit.NOT_FOUND),
    (jobs.EndedError("no"), 409, "job-ended", NodeMisuseError, Exit.MISUSE),
    (jobs.OwnedError("no", "1"), 503, "outside", NodeOutsideError, Exit.OUTSIDE),
    (jobs.DiskError("no"), 507, "disk", NodeOutsideError, Exit.OUTSIDE),
    (RefusedError(Reason.OVER_QUOTA, "no"), 422, "refused", NodeRefusedError, Exit.REFUSED),
    (OutsideError("no"), 503, "outside", NodeOutsideError, Exit.OUTSIDE),
    (InputSyntaxError("no", 3, 4), 422, "input-syntax", NodeMisuseError, Exit.REFUSED),
    (InputRefusedError("no", Reason.CONTENT_EMPTY), 422, "input-refused", NodeMisuseError, Exit.REFUSED),
]


@pytest.mark.parametrize(("error", "status", "code", "kind", "exit_code"), ERRORS)
def test_an_error_is_the_same_on_both_sides(
    error: Exception, status: int, code: str, kind: type[Exception], exit_code: Exit
) -> None:
    shown, body = problem_of(error)
    assert (shown, row_of(error).code, row_of(error).exit) == (status, code, exit_code)
    back = error_of(shown, body)
    assert type(back) is kind
    assert (back.code, back.status) == (code, status)
    assert row_of(back).exit is exit_code
    assert str(back) == str(error)
    assert getattr(back, "reason", None) == (error.reason if isinstance(error, RefusedError) else None)
    assert back.line == (3 if isinstance(error, InputSyntaxError) else None)


@pytest.mark.parametrize("error", [BugError("the key is hunter2"), KeyError("hunter2"), TypeError("hunter2")])
def test_a_bug_says_nothing_of_itself(error: Exception) -> None:
    status, body = problem_of(error)
    assert status == 500
    assert row_of(error) is BUG
    assert "hunter2" not in str(body)
    assert isinstance(error_of(status, body), NodeBugError)


def test_a_code_of_a_newer_node_is_told_by_its_status() -> None:
    assert type(error_of(409, problem("new", "x"))) is NodeMisuseError
    assert type(error_of(404, problem("new", "x"))) is NodeNotFoundError
    assert type(error_of(503, problem("new", "x"))) is NodeOutsideError
    assert row_of(error_of(503, problem("new", "x"))).exit is Exit.OUTSIDE
    assert row_of(error_of(404, problem("new", "x"))).exit is Exit.NOT_FOUND
    assert type(error_of(502, "<html>")) is NodeBugError


def test_the_one_error_in_a_group_is_found() -> None:
    error = MisuseError("x")
    assert single(ExceptionGroup("", [ExceptionGroup("", [error])])) is error


def test_the_words_of_an_error_that_a_job_ended_with_leave_our_classes_out() -> None:
    assert in_words("NoSuchDraftError: 0x01 has no draft 'x' (permanent; run 1, the last)") == (
        "0x01 has no draft 'x' (permanent; run 1, the last)"
    )
    assert in_words("TransientError: others took its nonce") == "others took its nonce"
    for foreign in ("KeyError: 'x'", "cancelled: as asked", "", "MisuseError: "):
        assert in_words(foreign) == foreign
