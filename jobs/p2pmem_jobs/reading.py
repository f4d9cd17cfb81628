"""Reads of the queue's tables, as functions of a connection."""

# Only constants of this file and of `states` are put into the text of statements.
# ruff: noqa: S608

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .errors import DamagedError, NotFoundError
from .records import EffectRecord, Event, JobRecord, StepRecord
from .states import State, in_states

_RECORD = (
    "seq, id, kind, version, args, state, priority, run_at_ms, deadline_ms, dedupe_key, owner, parent, retry_of, "
    "attempt, failures, parked, detail, submitted_ms, ended_ms, result, error"
)
_STATE_COLUMN = 5


class DamagedText(str):
    """A text of the file that is none, with an escape for each byte that is no UTF-8: for people alone."""

    __slots__ = ()


def readable(data: bytes) -> str:
    """What a text of the file says, or as much of it as can be read."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return DamagedText(data.decode("utf-8", "backslashreplace"))


@contextmanager
def leniently(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside, a text that is damaged is a `DamagedText`. For reads of many jobs, of which one must not fail all others;
    who reads a single one is told that it is damaged."""
    before, connection.text_factory = connection.text_factory, readable
    try:
        yield
    finally:
        connection.text_factory = before


def _record(row: Sequence[Any]) -> JobRecord:
    values = [*row]
    values[_STATE_COLUMN] = _state(values[_STATE_COLUMN])
    return JobRecord(*values)


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        raise DamagedError(
            f"a job is in the state {text!r}, and there is none of that name: the file is damaged. Nothing was mended. "
            "Keep a copy of it, then restore a backup"
        ) from None


def fact(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute("SELECT value FROM job_fact WHERE name = ?", (name,)).fetchone()[0])


def get_job(connection: sqlite3.Connection, job_id: str) -> JobRecord:
    row = connection.execute(f"SELECT {_RECORD} FROM job WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no job {job_id!r}; it never was, or it ended longer ago than jobs are kept")
    return _record(row)


def list_jobs(
    connection: sqlite3.Connection, states: frozenset[State], conditions: dict[str, str], before_seq: int, limit: int
) -> list[JobRecord]:
    """Newest first. Conditions are values of kind, owner and parent."""
    assert conditions.keys() <= {"kind", "owner", "parent"}
    where = "".join(f" AND {column} = ?" for column in conditions)
    with leniently(connection):
        rows = connection.execute(
            f"SELECT {_RECORD} FROM job WHERE state IN {in_states(states)}{where} AND seq < ?"
            " ORDER BY seq DESC LIMIT ?",
            (*conditions.values(), before_seq, limit),
        )
        return [_record(row) for row in rows]


def events_after(
    connection: sqlite3.Connection, number: int, job_id: str | None, kind: str | None, limit: int = 100
) -> list[Event]:
    """The next changes after one, oldest first. Among those of all jobs one whose state cannot be read is left out; who
    reads of that job is told that it is damaged."""
    readable_only = f" AND job_event.state IN {in_states(State)}"
    of_job = readable_only if job_id is None else " AND job_event.job = (SELECT seq FROM job WHERE id = ?)"
    of_kind = "" if kind is None else " AND kind = ?"
    with leniently(connection):
        rows = connection.execute(
            "SELECT number, id, kind, at_ms, job_event.attempt, job_event.state, reason"
            f" FROM job_event JOIN job ON job.seq = job_event.job WHERE number > ?{of_job}{of_kind}"
            " ORDER BY number LIMIT ?",
            [value for value in (number, job_id, kind, limit) if value is not None],
        )
        return [
            Event(number, id_, of, at_ms, attempt, _state(state), why)
            for number, id_, of, at_ms, attempt, state, why in rows
        ]


def last_events_of(connection: sqlite3.Connection, job_id: str, limit: int) -> list[Event]:
    """The last changes of a job, oldest first."""
    row = connection.execute(
        "SELECT number FROM job_event WHERE job = (SELECT seq FROM job WHERE id = ?)"
        " ORDER BY number DESC LIMIT 1 OFFSET ?",
        (job_id, limit),
    ).fetchone()
    return events_after(connection, 0 if row is None else row[0], job_id, None, limit)


def last_event_number(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job_event'").fetchone()
    return 0 if row is None else int(row[0])


def last_event_of(connection: sqlite3.Connection, job_id: str) -> int:
    seq = get_job(connection, job_id).seq
    return int(connection.execute("SELECT max(number) FROM job_event WHERE job = ?", (seq,)).fetchone()[0])


def steps_of(connection: sqlite3.Connection, seq: int) -> tuple[StepRecord, ...]:
    rows = connection.execute(
        "SELECT name, attempt, ended_ms, result, what FROM job_step WHERE job = ? ORDER BY ended_ms, name", (seq,)
    )
    return tuple(StepRecord(*row) for row in rows)


def effects_of(connection: sqlite3.Connection, seq: int) -> tuple[EffectRecord, ...]:
    rows = connection.execute(
        "SELECT key, note, state, intended_ms, done_ms FROM job_effect WHERE job = ? ORDER BY intended_ms, key", (seq,)
    )
    return tuple(EffectRecord(*row) for row in rows)


def children_of(connection: sqlite3.Connection, job_id: str) -> tuple[str, ...]:
    return tuple(row[0] for row in connection.execute("SELECT id FROM job WHERE parent = ? ORDER BY seq", (job_id,)))
