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


# The queue


class UnknownKindError(MisuseError):
    """No handler has this kind."""


class NotSerialisableError(MisuseError):
    """A value does not fit its declared type, or its type cannot be stored."""


class NotFoundError(MisuseError):
    """There is no job of this id; it never was, or its retention has ended."""


class ConflictError(MisuseError):
    """The dedupe key belongs to a job with other arguments. `job_id` is that job."""

    def __init__(self, text: str, job_id: str) -> None:
        super().__init__(text)
        self.job_id = job_id


class EndedError(MisuseError):
    """The job has ended, or is in no state for this. What has ended stays as it is."""


class FullError(OutsideError):
    """The queue holds as many live jobs as it may. Submit again later."""


class JobEndedBadlyError(JobsError):
    """Raised by `Job.result`: there is no result. `job_id` and `reason` say which job, and why."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id}: {reason}")
        self.job_id = job_id
        self.reason = reason


class JobFailedError(JobEndedBadlyError):
    """The job failed for good."""


class JobCancelledError(JobEndedBadlyError):
    """Somebody cancelled the job."""


class JobOutcomeUnknownError(JobEndedBadlyError):
    """Nobody can tell whether an effect of the job happened; a person has to resolve it."""


class JobWithoutResultError(JobEndedBadlyError):
    """The job succeeded by a person's word, and nobody knows what it would have returned."""


# For handlers to raise, or to meet


class TransientError(JobsError):
    """Raise this when trying again later may help."""


class PermanentError(JobsError):
    """Raise this when trying again will never help: the job fails at once."""


class NotDoneError(TransientError):
    """Raise this inside an effect that certainly did not happen, so that it may simply be tried again."""


class OutcomeUnknownError(JobsError):
    """An effect may or may not have happened, and looking did not tell."""


class WaitedTooLongError(PermanentError):
    """What a job waited for did not come in time."""


class StaleAttemptError(JobsError):
    """This run of the job is over: it was cancelled, or another attempt has begun. Nothing was written."""
