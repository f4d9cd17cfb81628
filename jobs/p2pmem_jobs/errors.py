"""What can go wrong in this package, as types. Every message says what, where, and what to do about it."""

from __future__ import annotations


class JobsError(Exception):
    """Base of every error that this package raises on purpose."""


class MisuseError(JobsError):
    """The caller asked for something that cannot be done as asked. Nothing was changed."""


class OutsideError(JobsError):
    """The world outside did not do its part. What was asked may be asked again."""


class BugError(JobsError):
    """A promise of this package is broken. Please report it."""


# The database


class DiskError(OutsideError):
    """The disk is full, or refused to read or write. Nothing of what was asked is stored."""


class OpenError(OutsideError):
    """The file cannot be opened as it is."""


class OwnedError(OpenError):
    """Another process, or another part of this one, owns the file. `holder` says who, as far as is known."""

    def __init__(self, text: str, holder: str) -> None:
        super().__init__(text)
        self.holder = holder


class DamagedError(OpenError):
    """The file is not a whole database. It was not touched."""


class NewerSchemaError(OpenError):
    """A newer version of a program wrote this file. It was not touched."""


class ClosedError(MisuseError):
    """The database, or the queue, is closed or closing."""
