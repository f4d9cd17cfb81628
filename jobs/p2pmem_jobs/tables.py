"""The tables of the queue, and the writes that change jobs, as functions of a connection.

Nothing here knows of time, tasks or handlers. Each function is a whole write or a whole read.
"""

# Only constants of this file and of `states` are put into the text of statements.
# ruff: noqa: S608

from __future__ import annotations

import sqlite3
from typing import Any

from .errors import ConflictError, EndedError, FullError, StaleAttemptError
from .reading import DamagedText, fact, get_job, leniently
from .records import Claim, Claimed, Ended, JobRecord, NewJob
from .states import CHANGES, FINAL, HAS_TASK, HOLDS_DEDUPE_KEY, State, in_states
from .work import effects_under_way, forget_ends_of_waits, has_unreadable_effect, step_results

COMPONENT = "jobs"


_SCHEMA_1 = f"""
CREATE TABLE job(
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    args TEXT NOT NULL,
    state TEXT NOT NULL,
    ready INTEGER NOT NULL,              -- queued and due
    priority INTEGER NOT NULL,
    run_at_ms INTEGER NOT NULL,
    deadline_ms INTEGER,
    dedupe_key TEXT,
    owner TEXT,
    parent TEXT,
    retry_of TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    interruptions INTEGER NOT NULL DEFAULT 0,  -- deaths of the process while it ran, since its last step
    look_first INTEGER NOT NULL DEFAULT 0,     -- its effects may have happened unknown to this file
    cancel_reason TEXT,                  -- somebody wants it cancelled
    parked TEXT,
    detail TEXT NOT NULL,
    submitted_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    result TEXT,
    error TEXT
) STRICT;
CREATE INDEX job_ready ON job(kind, priority DESC, seq) WHERE state = 'queued' AND ready = 1 AND parked IS NULL;
CREATE INDEX job_future ON job(run_at_ms) WHERE state = 'queued' AND ready = 0;
CREATE INDEX job_deadline ON job(deadline_ms) WHERE state = 'queued' AND deadline_ms IS NOT NULL;
CREATE INDEX job_parked ON job(kind) WHERE parked IS NOT NULL;
CREATE INDEX job_with_task ON job(state) WHERE state IN {in_states(HAS_TASK)};
CREATE UNIQUE INDEX job_dedupe ON job(kind, dedupe_key)
    WHERE dedupe_key IS NOT NULL AND state IN {in_states(HOLDS_DEDUPE_KEY)};
CREATE INDEX job_ended ON job(ended_ms) WHERE ended_ms IS NOT NULL;
CREATE INDEX job_owner ON job(owner, seq) WHERE owner IS NOT NULL;
CREATE INDEX job_parent ON job(parent) WHERE parent IS NOT NULL;

CREATE TABLE job_event(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
    at_ms INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX job_event_of ON job_event(job);

CREATE TABLE job_step(
    job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
    name TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE job_effect(
    job INTEGER NOT NULL REFERENCES job(seq) ON DELETE CASCADE,
    key TEXT NOT NULL,
    note TEXT NOT NULL,
    state TEXT NOT NULL,                 -- intended, cleared (a person said that it did not happen), done
    intended_ms INTEGER NOT NULL,
    done_ms INTEGER,
    result TEXT,
    PRIMARY KEY (job, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE job_paused(kind TEXT PRIMARY KEY, since_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE job_fact(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO job_fact VALUES ('live', 0), ('ended', 0), ('restores', 0);
CREATE TRIGGER job_added AFTER INSERT ON job BEGIN
    UPDATE job_fact SET value = value + 1 WHERE name = 'live';
END;
CREATE TRIGGER job_has_ended AFTER UPDATE OF ended_ms ON job
WHEN OLD.ended_ms IS NULL AND NEW.ended_ms IS NOT NULL BEGIN
    UPDATE job_fact SET value = value + iif(name = 'live', -1, 1) WHERE name IN ('live', 'ended');
END;
CREATE TRIGGER job_removed AFTER DELETE ON job BEGIN
    UPDATE job_fact SET value = value - 1 WHERE name = 'ended';
END;
"""
# A cleared one too: a person let it be tried again, and until it is, or is found, nobody knows more than before.
HAS_EFFECT_UNDER_WAY = "EXISTS (SELECT 1 FROM job_effect WHERE job = job.seq AND job_effect.state != 'done')"

_SCHEMA_2 = """
ALTER TABLE job_step ADD COLUMN what TEXT NOT NULL DEFAULT 'step';  -- step, wait, sleep: of these the result is the end
CREATE INDEX job_retry ON job(retry_of) WHERE retry_of IS NOT NULL;
"""

_SCHEMA_3 = """
DROP TRIGGER job_added;  -- a job may have ended already when it comes
CREATE TRIGGER job_added AFTER INSERT ON job BEGIN
    UPDATE job_fact SET value = value + 1 WHERE name = iif(NEW.ended_ms IS NULL, 'live', 'ended');
END;
"""

MIGRATIONS = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3)
BATCH = 1_000  # jobs that one write moves because their time came

# Submitting


def insert_job(connection: sqlite3.Connection, new: NewJob, live_max: int, reason: str) -> str:
    """Returns the id of the new job, or of the one that holds the dedupe key. Errors: Conflict, Full."""
    if new.dedupe_key is not None:
        holder = connection.execute(
            f"SELECT id, args FROM job WHERE kind = ? AND dedupe_key = ? AND state IN {in_states(HOLDS_DEDUPE_KEY)}",
            (new.kind, new.dedupe_key),
        ).fetchone()
        if holder is not None:
            return _same_job(new, *holder)
    if fact(connection, "live") >= live_max:
        raise FullError(f"the queue holds {live_max} live jobs, and no more may be submitted until some have ended")
    cursor = connection.execute(
        "INSERT INTO job(id, kind, version, args, state, ready, priority, run_at_ms, deadline_ms, dedupe_key, owner,"
        " parent, retry_of, detail, submitted_ms) VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, '', ?)",
        (
            new.id,
            new.kind,
            new.version,
            new.args,
            new.run_at_ms <= new.submitted_ms,
            new.priority,
            new.run_at_ms,
            new.deadline_ms,
            new.dedupe_key,
            new.owner,
            new.parent,
            new.retry_of,
            new.submitted_ms,
        ),
    )
    _add_event(connection, cursor.lastrowid, new.submitted_ms, 0, State.QUEUED, reason)
    return new.id


def last_retry(connection: sqlite3.Connection, job_id: str) -> JobRecord:
    """The job itself, or the last of the jobs that were retries of it, one of another: only that one knows all."""
    while True:
        row = connection.execute(
            "SELECT id FROM job WHERE retry_of = ? ORDER BY seq DESC LIMIT 1", (job_id,)
        ).fetchone()
        if row is None:
            return get_job(connection, job_id)
        job_id = row[0]


def insert_done(connection: sqlite3.Connection, new: NewJob, result: str, reason: str) -> JobRecord:
    """A job whose work is in the same write: it is there, and has succeeded at its first attempt."""
    assert new.dedupe_key is None
    at_ms = new.submitted_ms
    seq = connection.execute(
        "INSERT INTO job(id, kind, version, args, state, ready, priority, run_at_ms, owner, parent, attempt, detail,"
        " submitted_ms, ended_ms, result) VALUES (?, ?, ?, ?, 'succeeded', 0, ?, ?, ?, ?, 1, '', ?, ?, ?)",
        (new.id, new.kind, new.version, new.args, new.priority, at_ms, new.owner, new.parent, at_ms, at_ms, result),
    ).lastrowid
    _add_event(connection, seq, at_ms, 1, State.SUCCEEDED, reason)
    assert seq is not None
    return JobRecord(
        seq=seq,
        id=new.id,
        kind=new.kind,
        version=new.version,
        args=new.args,
        state=State.SUCCEEDED,
        priority=new.priority,
        run_at_ms=at_ms,
        deadline_ms=None,
        dedupe_key=None,
        owner=new.owner,
        parent=new.parent,
        retry_of=None,
        attempt=1,
        failures=0,
        parked=None,
        detail="",
        submitted_ms=at_ms,
        ended_ms=at_ms,
        result=result,
        error=None,
    )


def _same_job(new: NewJob, holder_id: str, holder_args: str) -> str:
    if holder_args != new.args:
        raise ConflictError(
            f"the dedupe key {new.dedupe_key!r} of {new.kind!r} belongs to job {holder_id}, which has other arguments. "
            "Use another key, or wait for that job",
            holder_id,
        )
    return holder_id


def _add_event(
    connection: sqlite3.Connection, seq: int | None, at_ms: int, attempt: int, state: State, reason: str
) -> None:
    assert seq is not None
    connection.execute(
        "INSERT INTO job_event(job, at_ms, attempt, state, reason) VALUES (?, ?, ?, ?, ?)",
        (seq, at_ms, attempt, state.value, reason),
    )


# Claiming


def claim(connection: sqlite3.Connection, now_ms: int, room: dict[str, int], total: int) -> Claim:
    """Takes the first due jobs of the kinds that have room: by priority, then in the order of submission."""
    with leniently(connection):
        due = frozenset(
            row[0]
            for row in connection.execute(
                "UPDATE job SET ready = 1 WHERE seq IN (SELECT seq FROM job WHERE state = 'queued' AND ready = 0"
                " AND run_at_ms <= ? ORDER BY run_at_ms LIMIT ?) RETURNING kind",
                (now_ms, BATCH),
            ).fetchall()
        )
        expired = _expire(connection, now_ms)
        jobs, damaged = _first_ready(connection, room, total), []
        while unreadable := [job for job in jobs if _is_damaged(connection, job, room)]:
            for job in unreadable:
                _set_aside(connection, job, now_ms)
            damaged += [job.id for job in unreadable]
            jobs = _first_ready(connection, room, total)
    connection.executemany(
        "UPDATE job SET state = 'running', attempt = attempt + 1, detail = '' WHERE seq = ?",
        [(job.seq,) for job in jobs],
    )
    connection.executemany(
        "INSERT INTO job_event(job, at_ms, attempt, state, reason) VALUES (?, ?, ?, 'running', '')",
        [(job.seq, now_ms, job.attempt) for job in jobs],
    )
    return Claim(tuple(jobs), expired, tuple(damaged), due, _look_again_ms(connection))


def _first_ready(connection: sqlite3.Connection, room: dict[str, int], total: int) -> list[Claimed]:
    found: list[tuple[Any, ...]] = []
    for kind in room:
        found += connection.execute(
            "SELECT -priority, seq, id, kind, version, CAST(args AS BLOB), attempt + 1, failures, deadline_ms, owner,"
            " look_first,"
            " attempt > 0 OR retry_of IS NOT NULL"
            " FROM job WHERE state = 'queued' AND ready = 1 AND parked IS NULL AND kind = ?"
            " ORDER BY priority DESC, seq LIMIT ?",
            (kind, min(room[kind], total)),
        )
    found.sort()
    return [_claimed(connection, row[1:]) for row in found[:total]]


def _claimed(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Claimed:
    *values, look_first, has_work = row
    done = step_results(connection, row[0]) if has_work else {}
    return Claimed(*[*values, bool(look_first), bool(has_work), done])


def _is_damaged(connection: sqlite3.Connection, job: Claimed, room: dict[str, int]) -> bool:
    """Whether it cannot be told which job this is, whose, or what it has done: then it is not run."""
    if job.kind not in room or any(isinstance(text, DamagedText) for text in (job.id, job.owner, *job.done)):
        return True
    return job.has_work and has_unreadable_effect(connection, job.seq)


def _set_aside(connection: sqlite3.Connection, job: Claimed, now_ms: int) -> None:
    is_unknown = effects_under_way(connection, job.seq) or has_unreadable_effect(connection, job.seq)
    to = State.OUTCOME_UNKNOWN if is_unknown else State.FAILED
    what = "a name in it cannot be read: the file is damaged there. Nothing was mended; a backup may have it whole"
    move(connection, job.seq, job.attempt - 1, to, now_ms, what)


def _expire(connection: sqlite3.Connection, now_ms: int) -> tuple[str, ...]:
    rows = connection.execute(
        f"SELECT seq, id, attempt, {HAS_EFFECT_UNDER_WAY} FROM job WHERE state = 'queued' AND deadline_ms <= ? LIMIT ?",
        (now_ms, BATCH),
    ).fetchall()
    for seq, _, attempt, under_way in rows:
        state = State.OUTCOME_UNKNOWN if under_way else State.FAILED
        move(connection, seq, attempt, state, now_ms, "its deadline passed")
    return tuple(row[1] for row in rows)


def _look_again_ms(connection: sqlite3.Connection) -> int | None:
    row = connection.execute(
        "SELECT min(a, b) FROM (SELECT"
        " coalesce((SELECT min(run_at_ms) FROM job WHERE state = 'queued' AND ready = 0), 9e18) AS a,"
        " coalesce((SELECT min(deadline_ms) FROM job WHERE state = 'queued' AND deadline_ms IS NOT NULL), 9e18) AS b)"
    ).fetchone()
    return None if row[0] >= 9e18 else int(row[0])


# Changing

_EXPLAINED = frozenset({State.FAILED, State.CANCELLED, State.OUTCOME_UNKNOWN})
_MOVE = {
    to: "UPDATE job SET state = ?, ended_ms = ?, result = ?, error = ?, detail = ? WHERE seq = ? AND attempt = ?"
    f" AND state IN {in_states(state for state, allowed in CHANGES.items() if to in allowed)}"
    for to in State
}


def move(
    connection: sqlite3.Connection,
    seq: int,
    attempt: int,
    to: State,
    at_ms: int,
    reason: str,
    result: str | None = None,
) -> None:
    """Changes the state of a job of which this is the attempt. Errors: `StaleAttemptError`, with nothing changed."""
    ended = at_ms if to in FINAL else None
    error = reason if to in _EXPLAINED else None
    changed = connection.execute(_MOVE[to], (to.value, ended, result, error, reason, seq, attempt)).rowcount
    if changed != 1:
        raise StaleAttemptError(f"attempt {attempt} of the job is over; it cannot become {to.value}")
    _add_event(connection, seq, at_ms, attempt, to, reason)


def end_run(
    connection: sqlite3.Connection, claimed: Claimed, to: State, at_ms: int, reason: str, result: str | None = None
) -> Ended:
    """Ends a job for good, as `to`; as `outcome_unknown` when an effect is under way and the run did not succeed."""
    if to is not State.SUCCEEDED:
        keys = effects_under_way(connection, claimed.seq)
        if len(keys) > (to is State.OUTCOME_UNKNOWN):  # that reason tells of one already
            reason = f"{reason}; it is not known whether {', '.join(keys)} happened"
        if keys:
            to = State.OUTCOME_UNKNOWN
    move(connection, claimed.seq, claimed.attempt, to, at_ms, reason, result)
    return Ended(to, reason, result)


def requeue(
    connection: sqlite3.Connection, claimed: Claimed, run_at_ms: int, at_ms: int, reason: str, failed: bool
) -> Ended | None:
    """Lets a job run again, from `run_at_ms` on. A job that is to be cancelled is, instead: then tells how it ended."""
    with leniently(connection):
        wish = connection.execute("SELECT cancel_reason FROM job WHERE seq = ?", (claimed.seq,)).fetchone()
    if wish is not None and wish[0] is not None:
        return end_run(connection, claimed, State.CANCELLED, at_ms, wish[0])
    move(connection, claimed.seq, claimed.attempt, State.QUEUED, at_ms, reason)
    connection.execute(
        "UPDATE job SET run_at_ms = ?, ready = ?, failures = failures + ? WHERE seq = ?",
        (run_at_ms, run_at_ms <= at_ms, failed, claimed.seq),
    )
    return None


def ask_to_cancel(connection: sqlite3.Connection, job_id: str, at_ms: int, reason: str) -> State:
    """Cancels a queued job; notes the wish for one with a task, whose run then ends. Returns the state afterwards."""
    job = get_job(connection, job_id)
    if job.ended or job.state is State.OUTCOME_UNKNOWN:
        raise EndedError(f"job {job_id} is {job.state.value}; there is nothing to cancel")
    if job.state in HAS_TASK:
        connection.execute("UPDATE job SET cancel_reason = ? WHERE seq = ?", (reason, job.seq))
        return job.state
    keys = effects_under_way(connection, job.seq)
    to = State.OUTCOME_UNKNOWN if keys else State.CANCELLED
    move(connection, job.seq, job.attempt, to, at_ms, reason)
    return to


def resolve(
    connection: sqlite3.Connection, job_id: str, to: State, at_ms: int, reason: str, result: str | None
) -> State:
    """A person's word on a job whose outcome is unknown. To `queued`: what was under way may be tried again."""
    job = get_job(connection, job_id)
    if job.state is not State.OUTCOME_UNKNOWN:
        raise EndedError(f"job {job_id} is {job.state.value}; only a job whose outcome is unknown is resolved")
    if to is State.QUEUED:
        connection.execute("UPDATE job_effect SET state = 'cleared' WHERE job = ? AND state = 'intended'", (job.seq,))
        forget_ends_of_waits(connection, job.seq)
        connection.execute(
            "UPDATE job SET ready = 1, run_at_ms = ?, cancel_reason = NULL, failures = 0, interruptions = 0,"
            " deadline_ms = CASE WHEN deadline_ms <= ? THEN NULL ELSE deadline_ms END WHERE seq = ?",
            (at_ms, at_ms, job.seq),
        )
    move(connection, job.seq, job.attempt, to, at_ms, reason, result)
    return to


def set_detail(connection: sqlite3.Connection, claimed: Claimed, detail: str) -> None:
    connection.execute(
        f"UPDATE job SET detail = ? WHERE seq = ? AND attempt = ? AND state IN {in_states(HAS_TASK)}",
        (detail, claimed.seq, claimed.attempt),
    )
