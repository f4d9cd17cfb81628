"""Errors as HTTP and the command line show them: one table from types to codes, statuses and exit codes.

A *problem* is `{"error": {"code": ..., "message": ...}}`, with `reason` for a refusal and `line` and `column` for text
that does not parse. Codes are stable; messages are for people and may change. Types are named, not imported, so that
the client loads nothing of a node; the row of the nearest ancestor counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final

from p2pmem_protocol.errors import BugError, MisuseError, OutsideError, P2pmemError, Reason, RefusedError

from p2pmem.face import NotFoundError


@unique
class Exit(IntEnum):
    """What the exit code of a command says."""

    OK = 0
    BUG = 1
    MISUSE = 2
    REFUSED = 3
    OUTSIDE = 4
    JOB_ENDED_BADLY = 5
    TIMEOUT = 6
    NOT_FOUND = 7
    NOT_ALLOWED = 8
    INTERRUPTED = 130


EXIT_MEANINGS: Final[Mapping[Exit, str]] = {
    Exit.OK: "done",
    Exit.BUG: "a mistake in this program; please report it",
    Exit.MISUSE: "the command or its arguments cannot be; nothing was changed",
    Exit.REFUSED: "a file, content or proof was looked at and refused; nothing was changed",
    Exit.OUTSIDE: "disk, chain, network or node did not answer; trying again may help",
    Exit.JOB_ENDED_BADLY: "the job failed, was cancelled, was rejected, or needs a person",
    Exit.TIMEOUT: "not ended within the time to wait; it goes on",
    Exit.NOT_FOUND: "no such graph, version, job or file, or not yours",
    Exit.NOT_ALLOWED: "the agent has not the right to this, or the node did not accept the token, host or origin",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}


class BadRequestError(MisuseError):
    """The request is not one that this interface takes."""


class BadFileError(MisuseError):
    """A file is not of the kind that was asked for. `reason` says why its bytes were refused, where that is known."""

    def __init__(self, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class NoSuchRouteError(MisuseError):
    """No call has this path."""


class WrongMethodError(MisuseError):
    """The path is there, but not with this verb."""


class BodyTooLargeError(MisuseError):
    """The body is over the limit of its call."""


class BodyTooSlowError(OutsideError):
    """The body did not come within its time."""


class NotAuthorisedError(MisuseError):
    """The token is missing or wrong."""


class ForbiddenError(MisuseError):
    """The request comes from a web page of another origin, names another host, or is not for an agent's token."""


class UnreachableError(OutsideError):
    """No node answers."""


class TimedOutError(OutsideError):
    """Something goes on, but not within the time to wait for it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one type of error, and those below it that have no row of their own, look like from outside."""

    code: str
    status: int
    exit: Exit


_API: Final = "p2pmem.api.problems."
_IMPORTING: Final = "p2pmem.importing.errors."
_JOBS: Final = "p2pmem_jobs.errors."
_PROTOCOL: Final = "p2pmem_protocol.errors."

BUG: Final = Row("bug", 500, Exit.BUG)

PROBLEMS: Final[Mapping[str, Row]] = {
    # the request itself
    "p2pmem.api.codec.BadValueError": Row("bad-request", 400, Exit.MISUSE),
    _API + "BadRequestError": Row("bad-request", 400, Exit.MISUSE),
    _API + "BadFileError": Row("bad-file", 422, Exit.REFUSED),
    _API + "NotAuthorisedError": Row("not-authorised", 401, Exit.NOT_ALLOWED),
    _API + "ForbiddenError": Row("forbidden", 403, Exit.NOT_ALLOWED),
    _API + "NoSuchRouteError": Row("no-such-route", 404, Exit.MISUSE),
    _API + "WrongMethodError": Row("wrong-method", 405, Exit.MISUSE),
    _API + "BodyTooSlowError": Row("body-too-slow", 408, Exit.OUTSIDE),
    _API + "BodyTooLargeError": Row("body-too-large", 413, Exit.MISUSE),
    _API + "UnreachableError": Row("unreachable", 503, Exit.OUTSIDE),
    _API + "TimedOutError": Row("timed-out", 504, Exit.TIMEOUT),
    # names
    "p2pmem.face.NotFoundError": Row("not-found", 404, Exit.NOT_FOUND),
    "p2pmem.face.NoRightError": Row("no-right", 403, Exit.NOT_ALLOWED),
    "p2pmem.services.drafting.NoSuchDraftError": Row("no-such-draft", 404, Exit.NOT_FOUND),
    "p2pmem.services.drafting.DraftEditedError": Row("draft-edited", 409, Exit.REFUSED),
    "p2pmem_protocol.names.BadNameError": Row("bad-name", 422, Exit.MISUSE),
    # files
    _IMPORTING + "ImportingError": Row("input", 422, Exit.REFUSED),
    _IMPORTING + "NoSuchInputError": Row("no-such-file", 404, Exit.NOT_FOUND),
    _IMPORTING + "InputTooLargeError": Row("input-too-large", 413, Exit.REFUSED),
    _IMPORTING + "InputSyntaxError": Row("input-syntax", 422, Exit.REFUSED),
    _IMPORTING + "NoSuchFormatError": Row("no-such-format", 415, Exit.MISUSE),
    _IMPORTING + "UnrecognisedError": Row("not-recognised", 415, Exit.REFUSED),
    _IMPORTING + "BadBaseError": Row("bad-base", 422, Exit.MISUSE),
    _IMPORTING + "InputRefusedError": Row("input-refused", 422, Exit.REFUSED),
    # queries
    "p2pmem.store.query.QueryRefused": Row("query-refused", 422, Exit.REFUSED),
    "p2pmem.store.query.QuerySyntax": Row("query-syntax", 400, Exit.MISUSE),
    "p2pmem.store.query.QueryTooLarge": Row("query-too-large", 422, Exit.REFUSED),
    "p2pmem.store.query.QueryTimeout": Row("query-timeout", 422, Exit.TIMEOUT),
    "p2pmem.store.query.QueryBusy": Row("busy", 503, Exit.OUTSIDE),
    "p2pmem.store.query.StoreBehind": Row("behind", 503, Exit.OUTSIDE),
    # jobs
    _JOBS + "MisuseError": Row("misuse", 422, Exit.MISUSE),
    _JOBS + "NotFoundError": Row("no-such-job", 404, Exit.NOT_FOUND),
    _JOBS + "ConflictError": Row("job-conflict", 409, Exit.MISUSE),
    _JOBS + "EndedError": Row("job-ended", 409, Exit.MISUSE),
    "p2pmem.services.job_desk.JobEndedError": Row("job-ended", 409, Exit.MISUSE),
    _JOBS + "ClosedError": Row("closing", 503, Exit.OUTSIDE),
    _JOBS + "OutsideError": Row("outside", 503, Exit.OUTSIDE),
    _JOBS + "FullError": Row("queue-full", 503, Exit.OUTSIDE),
    _JOBS + "DiskError": Row("disk", 507, Exit.OUTSIDE),
    _JOBS + "JobEndedBadlyError": Row("job-ended-badly", 409, Exit.JOB_ENDED_BADLY),
    # all others
    "p2pmem.work.outgoing.NotAdmittedError": Row("not-admitted", 409, Exit.REFUSED),
    _PROTOCOL + "MisuseError": Row("misuse", 422, Exit.MISUSE),
    _PROTOCOL + "RefusedError": Row("refused", 422, Exit.REFUSED),
    _PROTOCOL + "OutsideError": Row("outside", 503, Exit.OUTSIDE),
    _PROTOCOL + "BugError": BUG,
}


def row_of(error: BaseException) -> Row:
    """The row of an error's type, or of its nearest ancestor that has one. What has none is a bug."""
    if isinstance(error, _FromNode):
        return Row(error.code, error.status, _exit_of(error, error.code))
    for kind in type(error).__mro__:
        row = PROBLEMS.get(f"{kind.__module__}.{kind.__qualname__}")
        if row is not None:
            return row
    return BUG


def single(error: Exception) -> Exception:
    """The one error inside groups of one; a nursery wraps what is raised in it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def problem_of(error: Exception) -> tuple[int, dict[str, object]]:
    """HTTP status and body for an error. A bug tells nothing of itself: its message may hold anything."""
    row = row_of(error)
    if row.exit is Exit.BUG:
        return row.status, problem(row.code, "the node has a bug; its log says more. Please report it")
    more: dict[str, object] = {}
    reason = getattr(error, "reason", None)
    if isinstance(reason, Reason):
        more["reason"] = reason.name.lower().replace("_", "-")
    for name in ("line", "column"):
        place = getattr(error, name, None)
        if isinstance(place, int) and place > 0:
            more[name] = place
    return row.status, problem(row.code, _text(error), **more)


def problem(code: str, message: str, **more: object) -> dict[str, object]:
    return {"error": {"code": code, "message": message, **more}}


def _text(error: Exception) -> str:
    text = str(error)
    if isinstance(error, RefusedError):
        # its text begins with the reason, which has a field of its own
        return text.partition(": ")[2]
    return text


# From a node


class _FromNode(P2pmemError):
    """An error that a node sent: what it is here, and the code that says what it was there."""

    code: str = ""
    status: int = 0
    line: int | None = None
    column: int | None = None


class NodeMisuseError(_FromNode, MisuseError):
    """The node says that this cannot be done as asked."""


class NodeNotFoundError(_FromNode, NotFoundError):
    """The node has no such thing, or it is not ours."""


class NodeRefusedError(_FromNode, RefusedError):
    """The node looked at it and refused."""


class NodeOutsideError(_FromNode, OutsideError):
    """The node could not get something from outside of it."""


class NodeBugError(_FromNode, BugError):
    """The node has a bug."""


_BY_CODE: Final[Mapping[str, Row]] = {row.code: row for row in PROBLEMS.values()}


def _exit_of(error: BaseException, code: str) -> Exit:
    row = _BY_CODE.get(code)
    if row is not None:
        return row.exit
    families = (
        (NotFoundError, Exit.NOT_FOUND),
        (MisuseError, Exit.MISUSE),
        (RefusedError, Exit.REFUSED),
        (OutsideError, Exit.OUTSIDE),
    )
    return next((exit_code for family, exit_code in families if isinstance(error, family)), Exit.BUG)


def error_of(status: int, body: object) -> _FromNode:
    """The error that a problem stands for. A code of a newer node is told by its status."""
    code, message = "", f"the answer has status {status} and is no problem of ours"
    more: dict[str, object] = {}
    match body:
        case {"error": {"code": str(), "message": str()} as found}:
            code, message, more = found["code"], found["message"], found
    error = _make(code, status, message, more.get("reason"))
    error.code, error.status = code, status
    line, column = more.get("line"), more.get("column")
    error.line = line if isinstance(line, int) else None
    error.column = column if isinstance(column, int) else None
    return error


def _make(code: str, status: int, message: str, reason: object) -> _FromNode:
    if code == "refused" and isinstance(reason, str):
        name = reason.upper().replace("-", "_")
        if name in Reason.__members__:
            return NodeRefusedError(Reason[name], message)
    if status == 404 and code != "no-such-route":
        return NodeNotFoundError(message)
    if code == "bug" or not code:
        return NodeBugError(message)
    return NodeOutsideError(message) if status >= 500 or status == 408 else NodeMisuseError(message)
