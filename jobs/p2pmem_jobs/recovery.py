"""Starting, pausing and forgetting, as functions of a connection."""

# Only constants of this file and of `states` are put into the text of statements.
# ruff: noqa: S608

from __future__ import annotations

import sqlite3

from .reading import DamagedText, fact, readable
from .states import FINAL, HAS_TASK, State, in_states
from .tables import HAS_EFFECT_UNDER_WAY

_IS_FIRST = "NOT EXISTS (SELECT 1 FROM job AS old WHERE old.id = job.retry_of)"


def recover(
    connection: sqlite3.Connection, now_ms: int, accepted: dict[str, frozenset[int]], restores: int, deaths_max: int
) -> int:
    """Puts every job into the state that it has when nothing runs. Returns how many were interrupted."""
    if fact(connection, "restores") != restores:
        _after_restore(connection, now_ms)
        connection.execute("UPDATE job_fact SET value = ? WHERE name = 'restores'", (restores,))
    connection.execute("UPDATE job SET interruptions = interruptions + 1 WHERE state = 'running'")
    interrupted = f"state IN {in_states(HAS_TASK)}"
    count = int(connection.execute(f"SELECT count(*) FROM job WHERE {interrupted}").fetchone()[0])
    for condition, to, reason in (
        (f"cancel_reason IS NOT NULL AND {HAS_EFFECT_UNDER_WAY}", State.OUTCOME_UNKNOWN, "cancelled during an effect"),
        ("cancel_reason IS NOT NULL", State.CANCELLED, "cancelled, then the process ended"),
        (
            f"interruptions > {int(deaths_max)} AND {HAS_EFFECT_UNDER_WAY}",
            State.OUTCOME_UNKNOWN,
            f"the process died {int(deaths_max) + 1} times while it ran",
        ),
        (
            f"interruptions > {int(deaths_max)}",
            State.FAILED,
            f"the process died {int(deaths_max) + 1} times while it ran",
        ),
        ("1", State.QUEUED, "the process ended while it ran"),
    ):
        _move_all(connection, f"{interrupted} AND {condition}", to, now_ms, reason)
    connection.execute("UPDATE job SET ready = 1 WHERE state = 'queued' AND ready = 0 AND run_at_ms <= ?", (now_ms,))
    park(connection, accepted)
    return count


def _after_restore(connection: sqlite3.Connection, now_ms: int) -> None:
    connection.execute("UPDATE job SET look_first = 1")  # also of those that ended: they may be retried
    _move_all(
        connection,
        f"state IN {in_states({State.QUEUED, *HAS_TASK})} AND {HAS_EFFECT_UNDER_WAY}",
        State.OUTCOME_UNKNOWN,
        now_ms,
        "the file was restored from a backup while an effect was under way",
    )


def _move_all(connection: sqlite3.Connection, where: str, to: State, at_ms: int, reason: str) -> None:
    """Changes the state of all jobs that match, with a row of history each."""
    connection.execute(
        "INSERT INTO job_event(job, at_ms, attempt, state, reason)"
        f" SELECT seq, ?, attempt, ?, ? FROM job WHERE {where}",
        (at_ms, to.value, reason),
    )
    connection.execute(
        f"UPDATE job SET state = ?, ready = 1, detail = ?, ended_ms = ?, error = ? WHERE {where}",
        (to.value, reason, at_ms if to in FINAL else None, None if to is State.QUEUED else reason),
    )


def park(connection: sqlite3.Connection, accepted: dict[str, frozenset[int]]) -> None:
    """Parks the queued jobs that no handler accepts, with the reason, and takes back those that one does again."""
    connection.execute("UPDATE job SET parked = NULL WHERE parked IS NOT NULL")
    kinds = connection.execute(
        "SELECT DISTINCT CAST(kind AS BLOB), version FROM job WHERE state IN ('queued', 'outcome_unknown')"
    ).fetchall()
    for stored, version in kinds:
        kind = readable(stored)
        versions = accepted.get(kind)
        if isinstance(kind, DamagedText):
            reason = f"parked: its kind {str(kind)!r} cannot be read: the file is damaged there"
        elif versions is None:
            reason = f"parked: this program has no handler for {kind!r}"
        elif version not in versions:
            listed = ", ".join(map(str, sorted(versions)))
            reason = f"parked: it was submitted to version {version} of {kind!r}, and this program accepts {listed}"
        else:
            continue
        connection.execute(
            "UPDATE job SET parked = ? WHERE state IN ('queued', 'outcome_unknown') AND kind = CAST(? AS TEXT)"
            " AND version = ?",
            (reason, stored, version),
        )


def pause(connection: sqlite3.Connection, kind: str, now_ms: int) -> None:
    connection.execute("INSERT OR IGNORE INTO job_paused VALUES (?, ?)", (kind, now_ms))


def resume(connection: sqlite3.Connection, kind: str) -> None:
    connection.execute("DELETE FROM job_paused WHERE kind = ?", (kind,))


def paused_kinds(connection: sqlite3.Connection) -> frozenset[str]:
    return frozenset(row[0] for row in connection.execute("SELECT kind FROM job_paused"))


def sweep(connection: sqlite3.Connection, before_ms: dict[State, int], ended_max: int, batch: int) -> int:
    """Forgets ended jobs that are old, or too many; at most `batch`. Returns how many."""
    chosen = to_forget(connection, before_ms, ended_max, batch)
    connection.executemany("DELETE FROM job WHERE seq = ?", chosen)
    return len(chosen)


def oldest_ended(connection: sqlite3.Connection) -> tuple[int | None, int]:
    """When the oldest of the jobs that are kept ended, if any did, and how many they are."""
    (ended_ms,) = connection.execute("SELECT min(ended_ms) FROM job WHERE ended_ms IS NOT NULL").fetchone()
    return ended_ms, fact(connection, "ended")


def to_forget(
    connection: sqlite3.Connection, before_ms: dict[State, int], ended_max: int, batch: int
) -> list[tuple[int]]:
    """Ended jobs that are old, or too many; at most `batch`. It only reads.

    A retry is not forgotten before the job that it retries, which does not know what the retry has done.
    """
    gone: list[tuple[int]] = []
    for state, limit_ms in before_ms.items():
        gone += connection.execute(
            f"SELECT seq FROM job WHERE ended_ms < ? AND state = ? AND {_IS_FIRST} ORDER BY ended_ms LIMIT ?",
            (limit_ms, state.value, batch),
        )
    surplus = fact(connection, "ended") - ended_max
    if surplus > 0:
        gone += connection.execute(
            f"SELECT seq FROM job WHERE ended_ms IS NOT NULL AND {_IS_FIRST} ORDER BY ended_ms LIMIT ?",
            (min(surplus, batch),),
        )
    return sorted(set(gone))[:batch]
