"""What can be wrong with a file that a user wants to import.

Each error is one line: which file, where in it, what, and what to do. Nothing was changed by the attempt.
"""

from __future__ import annotations

from p2pmem_protocol.errors import MisuseError, OutsideError, Reason


class ImportingError(MisuseError):
    """A file cannot be imported as it is."""


class NoSuchInputError(ImportingError):
    """There is no such file, or it may not be read."""


class NotAFileError(ImportingError):
    """A directory, a pipe, a device."""


class InputTooLargeError(ImportingError):
    """The file, or what it says, is over a limit."""


class EmptyInputError(ImportingError):
    """Nothing is said: an empty file, or one without a statement."""


class EncodingError(ImportingError):
    """Not UTF-8 text: another encoding, or compressed."""


class NoSuchFormatError(ImportingError):
    """The format that was named is unknown."""


class UnrecognisedError(ImportingError):
    """Neither the name nor the first words of a file say which format it has."""


class InputSyntaxError(ImportingError):
    """The file does not parse. `line` and `column` count from 1; None where the parser does not know them."""

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.line = line
        self.column = column


class RemoteContextError(ImportingError):
    """JSON-LD that needs a context from elsewhere. Nothing is ever fetched."""


class NamedGraphError(ImportingError):
    """Statements in named graphs, and the caller did not ask to merge them."""


class XmlEntityError(ImportingError):
    """An XML entity that grows or that points outside."""


class BadBaseError(ImportingError):
    """The base is not an absolute IRI."""


class InputRefusedError(ImportingError):
    """The file parses, but its statements break a rule of content. `reason` says which."""

    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason


class InputTooHardError(ImportingError):
    """The worker ran out of time or memory on the file, or died of it."""


class WorkerUnavailableError(OutsideError):
    """No worker process could be started."""
