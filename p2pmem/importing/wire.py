"""What passes between the node and a worker: frames of a JSON head and raw bytes. Pure.

    frame    = length of the head (4 bytes, big-endian), length of the bytes (4 bytes), head, bytes
    asked    head = a `Request` and the limits of this task; bytes = the file
    answered head = `Answer`, or an error; bytes = the canonical content, or nothing

The node trusts a worker no further than it must: lengths are checked before anything is read, and an answer that is
not understood counts as the death of the worker.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Final

from p2pmem_protocol.content import Content
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.limits import CONTENT_BYTES_MAX, STATEMENTS_MAX

from p2pmem.importing import errors
from p2pmem.importing.errors import ImportingError, InputRefusedError, InputSyntaxError, InputTooHardError
from p2pmem.importing.formats import Format
from p2pmem.importing.parsing import Imported, Request

_LENGTHS: Final = struct.Struct(">II")
LENGTHS_BYTES: Final = _LENGTHS.size
HEAD_BYTES_MAX: Final = 64 * 1024
EXIT_OUT_OF_MEMORY: Final = 3
"""The exit code of a worker that has no memory left to answer with."""


class BadFrameError(Exception):
    """The other side does not speak this. Its process is of no more use."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's good answer, and the memory that it holds, by which the node decides whether to keep it."""

    imported: Imported
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's bad answer: which error of `errors`, with its fields."""

    error: str
    text: str
    line: int | None = None
    column: int | None = None
    reason: int | None = None

    @classmethod
    def of(cls, error: ImportingError) -> Failure:
        return cls(
            type(error).__name__,
            str(error),
            line=error.line if isinstance(error, InputSyntaxError) else None,
            column=error.column if isinstance(error, InputSyntaxError) else None,
            reason=int(error.reason) if isinstance(error, InputRefusedError) else None,
        )

    def to_error(self) -> ImportingError:
        """The error itself again. Raises BadFrameError where there is none of that name."""
        kind = getattr(errors, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, ImportingError)):
            raise BadFrameError("an error of an unknown name")
        if kind is InputSyntaxError:
            return InputSyntaxError(self.text, self.line, self.column)
        if kind is InputRefusedError:
            return InputRefusedError(self.text, Reason(-1 if self.reason is None else self.reason))
        return kind(self.text)


def frame(head: dict[str, Any], payload: bytes) -> bytes:
    """The bytes before the payload: the payload itself is sent after them, uncopied."""
    written = json.dumps(head).encode()
    if len(written) > HEAD_BYTES_MAX:
        raise BadFrameError("a head over the limit")
    return _LENGTHS.pack(len(written), len(payload)) + written


def lengths(data: bytes, payload_bytes_max: int) -> tuple[int, int]:
    """The lengths of head and payload from the first bytes of a frame; BadFrameError where one is over its limit."""
    head, payload = _LENGTHS.unpack(data)
    if head > HEAD_BYTES_MAX or payload > payload_bytes_max:
        raise BadFrameError("a frame over the limit")
    return int(head), int(payload)


def request_head(request: Request, cpu_seconds: int) -> dict[str, Any]:
    form = request.format.name if request.format is not None else None
    return {**asdict(request), "format": form, "cpu_seconds": cpu_seconds}


def parse_request(head: bytes) -> tuple[Request, int]:
    fields = json.loads(head)
    form = Format[fields["format"]] if fields["format"] is not None else None
    request = Request(fields["name"], form, fields["base"], fields["merge_graphs"], fields["fallback_base"])
    return request, int(fields["cpu_seconds"])


def answer_head(reply: Answer | ImportingError) -> dict[str, Any]:
    if isinstance(reply, ImportingError):
        return {"failure": asdict(Failure.of(reply))}
    imported = reply.imported
    return {
        "line_count": imported.content.line_count,
        "format": imported.format.name,
        "base": imported.base,
        "warnings": list(imported.warnings),
        "resident_bytes": reply.resident_bytes,
    }


def parse_answer(head: bytes, payload: bytes) -> Answer | ImportingError:
    """Raises BadFrameError for anything that a worker of ours does not say."""
    try:
        fields = json.loads(head)
        if "failure" in fields:
            return Failure(**fields["failure"]).to_error()
        content = Content(payload, int(fields["line_count"]))
        imported = Imported(content, Format[fields["format"]], str(fields["base"]), tuple(map(str, fields["warnings"])))
        resident_bytes = int(fields["resident_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadFrameError(f"a head that cannot be read ({type(error).__name__})") from None
    if not 0 < content.line_count == payload.count(b"\n") <= STATEMENTS_MAX or len(payload) > CONTENT_BYTES_MAX:
        raise BadFrameError("content that does not fit its head")
    return Answer(imported, resident_bytes)


def too_hard(name: str, why: str) -> InputTooHardError:
    return InputTooHardError(f"{name}: {why}: split the file, or convert it to N-Triples with a tool that you trust")
