"""Durable asynchronous jobs on trio and SQLite."""

from .blocking import Blocking, InlineBlocking, ThreadBlocking
from .clock import Clock, SystemClock, TrioClock
from .database import Database, DatabaseStatistics, Limits, open_database
from .errors import (
    BugError,
    ClosedError,
    DamagedError,
    DiskError,
    JobsError,
    MisuseError,
    NewerSchemaError,
    OpenError,
    OutsideError,
    OwnedError,
)
from .schema import Migration

__all__ = [
    "Blocking",
    "BugError",
    "Clock",
    "ClosedError",
    "DamagedError",
    "Database",
    "DatabaseStatistics",
    "DiskError",
    "InlineBlocking",
    "JobsError",
    "Limits",
    "Migration",
    "MisuseError",
    "NewerSchemaError",
    "OpenError",
    "OutsideError",
    "OwnedError",
    "SystemClock",
    "ThreadBlocking",
    "TrioClock",
    "open_database",
]
