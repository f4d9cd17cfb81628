"""What runs leave behind, as functions of a connection: results of steps, and effects outside.

An effect is *intended* before it is tried, and *done* once it is known to have happened. *Cleared* is one of which a
person said that it may be tried again; it is looked up once more all the same.
"""

# Only constants of this file and of `states` are put into the text of statements.
# ruff: noqa: S608

from __future__ import annotations

import sqlite3

from .errors import StaleAttemptError
from .reading import DamagedText, get_job, leniently
from .records import STEP, WAIT, Claimed
from .states import HAS_TASK, in_states


def require_current(connection: sqlite3.Connection, claimed: Claimed) -> None:
    """Fences off a run that is over. Errors: `StaleAttemptError`."""
    row = connection.execute(
        f"SELECT cancel_reason IS NOT NULL FROM job WHERE seq = ? AND attempt = ? AND state IN {in_states(HAS_TASK)}",
        (claimed.seq, claimed.attempt),
    ).fetchone()
    if row is None or row[0]:
        raise StaleAttemptError(f"attempt {claimed.attempt} of job {claimed.id} is over; it may write nothing more")


def step_results(connection: sqlite3.Connection, seq: int) -> dict[str, bytes]:
    """The results of the steps that are done, by name."""
    return dict(connection.execute("SELECT name, CAST(result AS BLOB) FROM job_step WHERE job = ?", (seq,)).fetchall())


def store_step(
    connection: sqlite3.Connection, claimed: Claimed, name: str, at_ms: int, result: str, what: str = STEP
) -> None:
    require_current(connection, claimed)
    connection.execute(
        "INSERT INTO job_step(job, name, attempt, ended_ms, result, what) VALUES (?, ?, ?, ?, ?, ?)",
        (claimed.seq, name, claimed.attempt, at_ms, result, what),
    )
    connection.execute("UPDATE job SET interruptions = 0 WHERE seq = ? AND interruptions > 0", (claimed.seq,))


def effect_row(connection: sqlite3.Connection, seq: int, key: str) -> tuple[str, str | None] | None:
    """(state, result) of an effect, or None when it was never intended."""
    row = connection.execute("SELECT state, result FROM job_effect WHERE job = ? AND key = ?", (seq, key)).fetchone()
    return None if row is None else (str(row[0]), row[1])


def intend_effect(connection: sqlite3.Connection, claimed: Claimed, key: str, note: str, at_ms: int) -> None:
    require_current(connection, claimed)
    connection.execute(
        "INSERT INTO job_effect(job, key, note, state, intended_ms) VALUES (?, ?, ?, 'intended', ?)"
        " ON CONFLICT(job, key) DO UPDATE SET state = 'intended', note = excluded.note",
        (claimed.seq, key, note, at_ms),
    )


def effect_done(connection: sqlite3.Connection, claimed: Claimed, key: str, at_ms: int, result: str) -> None:
    """Also from a run that is being cancelled: what is known of the world outside is never thrown away."""
    connection.execute(
        "UPDATE job_effect SET state = 'done', done_ms = ?, result = ? WHERE job = ? AND key = ? AND state != 'done'",
        (at_ms, result, claimed.seq, key),
    )
    connection.execute("UPDATE job SET interruptions = 0 WHERE seq = ? AND interruptions > 0", (claimed.seq,))


def effect_not_done(connection: sqlite3.Connection, claimed: Claimed, key: str) -> None:
    """Fenced by the attempt: what a later one intended is not for an earlier one to take back."""
    connection.execute(
        "DELETE FROM job_effect WHERE job = ? AND key = ? AND state != 'done'"
        " AND EXISTS (SELECT 1 FROM job WHERE seq = ? AND attempt = ?)",
        (claimed.seq, key, claimed.seq, claimed.attempt),
    )


def effects_under_way(connection: sqlite3.Connection, seq: int) -> list[str]:
    """The effects that were begun and are not known to have happened, as texts for people."""
    with leniently(connection):
        rows = connection.execute("SELECT key, note FROM job_effect WHERE job = ? AND state != 'done'", (seq,))
        return [f"{key} ({note})" if note else str(key) for key, note in rows]


def has_unreadable_effect(connection: sqlite3.Connection, seq: int) -> bool:
    """Whether the key of an effect cannot be read: nobody can tell then which of them was begun, or is done."""
    with leniently(connection):
        rows = connection.execute("SELECT key FROM job_effect WHERE job = ?", (seq,))
        return any(isinstance(key, DamagedText) for (key,) in rows)


def copy_work(connection: sqlite3.Connection, from_id: str, to_id: str) -> None:
    """Gives a new job the steps and the effects of another one, so that it goes on where that one ended.

    The ends of its waits are not among them: the new job has as much time as the old one had.
    """
    pair = (get_job(connection, to_id).seq, get_job(connection, from_id).seq)
    connection.execute(
        "INSERT INTO job_step(job, name, attempt, ended_ms, result, what)"
        " SELECT ?, name, attempt, ended_ms, result, what FROM job_step WHERE job = ? AND what != ?",
        (*pair, WAIT),
    )
    connection.execute(
        "INSERT INTO job_effect SELECT ?, key, note, state, intended_ms, done_ms, result FROM job_effect WHERE job = ?",
        pair,
    )
    connection.execute(
        "UPDATE job SET look_first = (SELECT look_first FROM job AS old WHERE old.seq = ?) WHERE seq = ?", pair[::-1]
    )


def forget_ends_of_waits(connection: sqlite3.Connection, seq: int) -> None:
    """For a job that goes on by a person's word: the time that the person took is not the job's."""
    connection.execute("DELETE FROM job_step WHERE job = ? AND what = ?", (seq, WAIT))
