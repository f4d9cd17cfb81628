"""What members say to each other after hello: the frames of the member stream, and the requests of the sync stream.

Every message is one deterministic CBOR map. Key 0 says which message it is; each message has a row in `_TABLE` that
says which key holds which field, how it is written, and how much of it there may be. A field that is empty (none, zero,
false) is not written, so one content has one encoding. A message whose number is not in the table is `Skipped`, not
bad: it belongs to a later release. Everything else that does not fit is refused.

Lists of ids are one byte string, ids side by side: a thousand announcements are one item to decode, not a thousand.

    member stream   1 Frame
    sync stream     10 Heads <-> Heads
                    11 RoundOpen, 12 RoundMessage <-> 12 RoundMessage
                    13 Fetch -> 14 Envelopes, one or more
                    15 FetchPart -> 16 Part
                    17 AskHeaders -> 18 Headers
                    20 Peers <-> 20 Peers
                    19 NotGiven, the answer to any request that gets none
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.hashing import HASH_BYTES
from p2pmem_protocol.limits import (
    CONTENT_BYTES_MAX,
    ITEM_BYTES_MAX,
    ROSTER_PART_BYTES_MAX,
    TIME_MS_MAX,
    UINT32_MAX,
    UINT64_MAX,
)
from p2pmem_protocol.negentropy import DEFAULT_LIMITS
from p2pmem_protocol.roster import HEADER_BYTES_MAX
from p2pmem_protocol.snapshot import FINGERPRINT_BYTES

SHORT_ID_BYTES: Final = 8
"""How much of an id is announced and asked for. Whole ids are reconciled, so a collision costs time, not content."""

FRAME_ENVELOPES_MAX: Final = 256
FRAME_IDS_MAX: Final = 2_048
FRAME_LISTS_MAX: Final = 64
LIST_MEMBERS_MAX: Final = 512
GRAPHS_MAX: Final = 1_024
KINDS_MAX: Final = 256
FETCH_IDS_MAX: Final = 1_024
PART_BYTES_MAX: Final = 128 * 1024
PART_LENGTH_MAX: Final = max(CONTENT_BYTES_MAX, ROSTER_PART_BYTES_MAX)
HEADERS_MAX: Final = 256
KNOWN_HEADERS_MAX: Final = 4_096
ADDRESSES_MAX: Final = 256
ADDRESS_CHARS_MAX: Final = 256
MESSAGE_BYTES_MAX: Final = 256 * 1024
"""The longest message; size is checked before anything is decoded."""


@dataclass(frozen=True, slots=True)
class ListChange:
    """Which members of `graph` the sender is connected to, as `gossip.member_hash`: all anew, or what has changed."""

    graph: bytes
    is_whole: bool = False
    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """What one member tells another in one go.

    `seq` counts frames from 1; a frame that carries nothing but an acknowledgement has none (0) and is not itself
    acknowledged. `ack` is the highest frame taken in so far. `reconcile` names graphs in which the sender could not
    even announce what it has.
    """

    seq: int = 0
    ack: int = 0
    envelopes: tuple[bytes, ...] = ()
    announced: tuple[bytes, ...] = ()
    asked: tuple[bytes, ...] = ()
    lists: tuple[ListChange, ...] = ()
    reconcile: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphState:
    """Where one graph stands at the sender: equal head, count and fingerprint mean that nothing is to do."""

    graph: bytes
    head: bytes = b""
    """The id of the head roster; empty when none is held."""
    count: int = 0
    fingerprint: bytes = bytes(FINGERPRINT_BYTES)
    is_partial: bool = False
    """The sender cannot store all that is admitted: it gives, and does not take."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The state of all shared graphs at `clock_ms` of the sender; the answer is the same from the other side."""

    clock_ms: int
    graphs: tuple[GraphState, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundOpen:
    """Begin a round over the set as it is 60 s after `agreed_ms`, of the kinds named, under one head."""

    graph: bytes
    head: bytes
    agreed_ms: int
    kinds: tuple[int, ...]
    message: bytes


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """The next message of the round, in either direction."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask for envelopes by their whole ids."""

    graph: bytes
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Some of what was asked for; `more` when another message follows. What is not held is left out."""

    envelopes: tuple[bytes, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Ask for bytes that hash to `content`, from `offset` on: an attachment, or a part of a roster."""

    graph: bytes
    content: bytes
    offset: int = 0
    is_roster: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes from `offset` on, of `length_bytes` in all."""

    length_bytes: int
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class AskHeaders:
    """Ask for the roster headers of a graph but those of the ids named."""

    graph: bytes
    known: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Headers:
    """Signed roster headers."""

    graph: bytes
    headers: tuple[bytes, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the sender and the members of a graph that it is connected to can be dialled: multiaddrs with peer ids."""

    graph: bytes
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotGiven:
    """A request gets no answer, and why (`errors.Reason`, or a number of a later release)."""

    reason: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A message of a later release: to be passed over."""

    number: int


Message: TypeAlias = (
    Frame
    | Heads
    | RoundOpen
    | RoundMessage
    | Fetch
    | Envelopes
    | FetchPart
    | Part
    | AskHeaders
    | Headers
    | Peers
    | NotGiven
    | Skipped
)


def encode(message: Message) -> bytes:
    """The one encoding of `message`. Raises MisuseError when a field exceeds its limit."""
    row = _ROW_OF.get(type(message))
    if row is None:
        raise MisuseError(f"a {type(message).__name__} is not sent")
    data = cbor.encode({0: row.number, **row.write(message)})
    if len(data) > MESSAGE_BYTES_MAX:
        raise MisuseError(f"a {type(message).__name__} of {len(data)} bytes; {MESSAGE_BYTES_MAX} is the most: split it")
    return data


def decode(data: bytes) -> Message:
    """The message that `data` encodes, or `Skipped`.

    Raises RefusedError for what no sender of this protocol writes.
    """
    reader = Reader(cbor.decode(data, limit_bytes=MESSAGE_BYTES_MAX), "a message")
    number = reader.uint(0, UINT32_MAX)
    row = _ROW_OF_NUMBER.get(number)
    if row is None:
        return Skipped(number)
    message: Message = row.read(reader)
    return message


# How fields are written. Each codec has one limit for both directions: past it, we misuse it and a peer is refused.


@dataclass(frozen=True, slots=True)
class _Codec:
    write: Callable[[Any], Value]
    read: Callable[[Value], Any]
    empty: Any = None
    """The value that is not written; None when the field is always there."""


class _BadValueError(Exception):
    """The rule that a value breaks; whose fault that is, the caller knows."""


def _uint(most: int, *, optional: bool = False) -> _Codec:
    def check(value: Any) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise _BadValueError(f"an integer from 0 to {most}")
        return value

    return _Codec(check, check, 0 if optional else None)


def _raw(most_bytes: int, least_bytes: int = 0, *, optional: bool = False) -> _Codec:
    def check(value: Any) -> bytes:
        is_empty = optional and value == b""
        if not isinstance(value, bytes) or not (least_bytes <= len(value) <= most_bytes or is_empty):
            raise _BadValueError(f"{least_bytes} to {most_bytes} bytes")
        return value

    return _Codec(check, check, b"" if optional else None)


def _text(most_chars: int) -> _Codec:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= most_chars:
            raise _BadValueError(f"text of 1 to {most_chars} characters")
        return value

    return _Codec(check, check)


def _flag() -> _Codec:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _BadValueError("true or false")
        return value

    return _Codec(check, check, False)


def _ids(most: int, id_bytes: int = HASH_BYTES) -> _Codec:
    """Ids of one length side by side in one byte string."""
    rule = f"at most {most} ids of {id_bytes} bytes"

    def write(value: tuple[bytes, ...]) -> Value:
        if len(value) > most or any(len(it) != id_bytes for it in value):
            raise _BadValueError(rule)
        return b"".join(value)

    def read(value: Value) -> tuple[bytes, ...]:
        if not isinstance(value, bytes) or len(value) % id_bytes or len(value) > most * id_bytes:
            raise _BadValueError(rule)
        return tuple(value[at : at + id_bytes] for at in range(0, len(value), id_bytes))

    return _Codec(write, read, ())


def _list(most: int, item: _Codec) -> _Codec:
    rule = f"a list of at most {most} items"

    def write(value: tuple[Any, ...]) -> Value:
        if len(value) > most:
            raise _BadValueError(rule)
        return [item.write(it) for it in value]

    def read(value: Value) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise _BadValueError(rule)
        return tuple(item.read(it) for it in value)

    return _Codec(write, read, ())


@dataclass(frozen=True, slots=True)
class _Row:
    """How one dataclass is written: its fields in their order have the keys 1, 2, 3 and so on."""

    kind: type[Any]
    number: int
    codecs: tuple[_Codec, ...]
    columns: tuple[tuple[int, str, _Codec], ...] = field(init=False)
    """Key, name and codec of each field."""

    def __post_init__(self) -> None:
        named = zip((it.name for it in fields(self.kind)), self.codecs, strict=True)
        object.__setattr__(self, "columns", tuple((key, *both) for key, both in enumerate(named, 1)))

    def write(self, record: Any) -> dict[int, Value]:
        written: dict[int, Value] = {}
        for key, name, codec in self.columns:
            value = getattr(record, name)
            try:
                encoded = codec.write(value)
            except _BadValueError as bad:
                raise MisuseError(f"{name} of {self.kind.__name__} must be {bad}") from None
            if codec.empty is None or value != codec.empty:
                written[key] = encoded
        return written

    def read(self, reader: Reader) -> Any:
        values = []
        for key, name, codec in self.columns:
            if codec.empty is not None and not reader.has(key):
                values.append(codec.empty)
                continue
            try:
                value = codec.read(reader.nested(key))
                if codec.empty is not None and value == codec.empty:
                    raise _BadValueError("left out when it is empty")
            except _BadValueError as bad:
                raise RefusedError(Reason.BAD_FIELD, f"{name} of {self.kind.__name__} is not {bad}") from None
            values.append(value)
        reader.end()
        return self.kind(*values)

    def nested(self) -> _Codec:
        """This record as a field of another."""
        return _Codec(self.write, lambda value: self.read(Reader(value, f"a {self.kind.__name__}")))


_HASH: Final = _raw(HASH_BYTES, HASH_BYTES)
_ENVELOPE: Final = _raw(ITEM_BYTES_MAX, 1)
_ROUND: Final = _raw(DEFAULT_LIMITS.message_bytes, 1)

_LIST_CHANGE: Final = _Row(
    ListChange,
    0,
    (_HASH, _flag(), _ids(LIST_MEMBERS_MAX, SHORT_ID_BYTES), _ids(LIST_MEMBERS_MAX, SHORT_ID_BYTES)),
)
_GRAPH_STATE: Final = _Row(
    GraphState,
    0,
    (
        _HASH,
        _raw(HASH_BYTES, HASH_BYTES, optional=True),
        _uint(UINT32_MAX, optional=True),
        _raw(FINGERPRINT_BYTES, FINGERPRINT_BYTES),
        _flag(),
    ),
)

_TABLE: Final = (
    _Row(
        Frame,
        1,
        (
            _uint(UINT64_MAX, optional=True),
            _uint(UINT64_MAX, optional=True),
            _list(FRAME_ENVELOPES_MAX, _ENVELOPE),
            _ids(FRAME_IDS_MAX, SHORT_ID_BYTES),
            _ids(FRAME_IDS_MAX, SHORT_ID_BYTES),
            _list(FRAME_LISTS_MAX, _LIST_CHANGE.nested()),
            _ids(GRAPHS_MAX),
        ),
    ),
    _Row(Heads, 10, (_uint(TIME_MS_MAX), _list(GRAPHS_MAX, _GRAPH_STATE.nested()))),
    _Row(RoundOpen, 11, (_HASH, _HASH, _uint(TIME_MS_MAX), _list(KINDS_MAX, _uint(UINT32_MAX)), _ROUND)),
    _Row(RoundMessage, 12, (_ROUND,)),
    _Row(Fetch, 13, (_HASH, _ids(FETCH_IDS_MAX))),
    _Row(Envelopes, 14, (_list(FETCH_IDS_MAX, _ENVELOPE), _flag())),
    _Row(FetchPart, 15, (_HASH, _HASH, _uint(PART_LENGTH_MAX, optional=True), _flag())),
    _Row(
        Part,
        16,
        (_uint(PART_LENGTH_MAX), _uint(PART_LENGTH_MAX, optional=True), _raw(PART_BYTES_MAX, optional=True)),
    ),
    _Row(AskHeaders, 17, (_HASH, _ids(KNOWN_HEADERS_MAX))),
    _Row(Headers, 18, (_HASH, _list(HEADERS_MAX, _raw(HEADER_BYTES_MAX, 1)), _flag())),
    _Row(NotGiven, 19, (_uint(UINT32_MAX),)),
    _Row(Peers, 20, (_HASH, _list(ADDRESSES_MAX, _text(ADDRESS_CHARS_MAX)))),
)
_ROW_OF: Final = {row.kind: row for row in _TABLE}
_ROW_OF_NUMBER: Final = {row.number: row for row in _TABLE}
assert len(_ROW_OF) == len(_ROW_OF_NUMBER) == len(_TABLE)
