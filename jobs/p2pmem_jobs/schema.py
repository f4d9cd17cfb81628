"""Schemas of the components that share a file, and how they grow.

A component is a name and a list of migrations; version n is what the first n of them make. The list only ever gets
longer: a migration that was released is never changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from .errors import MisuseError, NewerSchemaError

# SQL, of one or more statements, or a function of the connection
Migration = str | Callable[[sqlite3.Connection], object]

CREATE_VERSIONS = (
    "CREATE TABLE component_versions(component TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID"
)


def component_version(connection: sqlite3.Connection, component: str) -> int:
    """How many migrations of the component this file has had; 0 when the component is new to it."""
    row = connection.execute("SELECT version FROM component_versions WHERE component = ?", (component,)).fetchone()
    return 0 if row is None else int(row[0])


def apply_migrations(connection: sqlite3.Connection, component: str, migrations: Sequence[Migration]) -> int:
    """Runs the migrations that this file lacks; returns the version that was found."""
    found = component_version(connection, component)
    if found > len(migrations):
        raise NewerSchemaError(
            f"the tables of {component!r} have schema {found}, and this program knows up to {len(migrations)}: "
            "a newer version wrote the file. Use that version, or restore a backup of before"
        )
    for migration in migrations[found:]:
        if isinstance(migration, str):
            for statement in split_statements(migration):
                connection.execute(statement)
        else:
            migration(connection)
    connection.execute("INSERT OR REPLACE INTO component_versions VALUES (?, ?)", (component, len(migrations)))
    return found


def split_statements(sql: str) -> Iterator[str]:
    """The statements of a script, one by one: running a script whole would end the transaction."""
    statement = ""
    for piece in sql.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            if statement.strip() != ";":
                yield statement
            statement = ""
    if statement.strip(" \n\t;"):
        raise MisuseError(f"a migration ends in the middle of a statement: {statement.strip()[-60:]!r}")
