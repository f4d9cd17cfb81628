"""A table of notes, for tests of the database alone, and processes that are killed over it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from p2pmem_jobs.blocking import InlineBlocking
from p2pmem_jobs.database import open_database

NOTES = ["CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT"]


def add(text: str) -> Callable[[sqlite3.Connection], int]:
    def insert(connection: sqlite3.Connection) -> int:
        cursor = connection.execute("INSERT INTO note(text) VALUES (?)", (text,))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    return insert


def texts(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT text FROM note ORDER BY id")]


async def fill(path: Path, rows: int = 500) -> None:
    async with open_database(path, blocking=InlineBlocking()) as database:
        await database.migrate("notes", NOTES)
        await database.write(
            lambda c: c.executemany("INSERT INTO note(text) VALUES (?)", [(f"{n:0200}",) for n in range(rows)])
        )


def environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "jobs"), str(Path(__file__).parent)])}


KILLED = """
import os, signal, sys, trio
from p2pmem_jobs.blocking import ThreadBlocking
from p2pmem_jobs.database import open_database

async def main():
    async with open_database(sys.argv[1], blocking=ThreadBlocking()) as database:
        await database.write(lambda c: c.execute("INSERT INTO note(text) VALUES ('last')"))
        os.kill(os.getpid(), signal.SIGKILL)
trio.run(main)
"""

FULL = """
import sys, trio
from p2pmem_jobs.blocking import ThreadBlocking
from p2pmem_jobs.database import open_database
from p2pmem_jobs.errors import DiskError

async def main():
    done = 0
    try:
        async with open_database(sys.argv[1], blocking=ThreadBlocking()) as database:
            await database.migrate("notes", ["CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"])
            while True:
                await database.write(lambda c: c.execute("INSERT INTO note(text) VALUES (?)", ("x" * 2000,)))
                done += 1
    except DiskError as error:
        print(done, type(error).__name__)
trio.run(main)
"""

CRASHING = """
import os, signal, sys, trio
from p2pmem_jobs.blocking import ThreadBlocking
from p2pmem_jobs.database import open_database

async def main():
    left = int(sys.argv[3])
    def crash_point(name):
        nonlocal left
        if name == sys.argv[2]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    async def one(database, number):
        def insert(connection):
            connection.execute("INSERT INTO note(text) VALUES (?)", (f"{number} a",))
            connection.execute("INSERT INTO note(text) VALUES (?)", (f"{number} b",))
        await database.write(insert)
        os.write(1, f"{number}\\n".encode())

    async with open_database(sys.argv[1], blocking=ThreadBlocking(), crash_point=crash_point) as database:
        await database.migrate("notes", ["CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"])
        for start in range(0, 1000, 10):
            async with trio.open_nursery() as nursery:
                for number in range(start, start + 10):
                    nursery.start_soon(one, database, number)
trio.run(main)
"""
