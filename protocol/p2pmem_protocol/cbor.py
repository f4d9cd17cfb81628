"""Deterministic CBOR, decoded strictly (RFC 8949 section 4.2.1, core deterministic encoding).

What p2pmem puts on the wire is a small part of CBOR: unsigned and negative integers of at most 64 bits, byte strings,
text, arrays, maps, booleans and null. There are no tags, no floats, no indefinite lengths. Map keys are unsigned
integers or text, never both in one map, which makes the bytewise and the length-first key order the same.

One value has exactly one encoding: for any `b` that `decode` accepts, `encode(decode(b)) == b`. There are two ways to
decide that, and they decide alike:

* the *fast* way builds the value with the library, no tag interpreted and the depth bounded, looks at the type of each
  part, writes the value again and compares the bytes;
* the *scan* checks every rule before anything is built, one head after the other, and names the rule that was broken.

What is short goes the fast way, and through the scan only when that says no. What is long is scanned first: a list of
empty lists takes seventy times the memory of its bytes, so the number of items is bounded before one is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn, TypeAlias, Union

import cbor2

from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.limits import DEPTH_MAX, ITEM_BYTES_MAX, UINT64_MAX

Value: TypeAlias = Union[int, bytes, str, bool, "list[Value]", "Mapping[int, Value]", "Mapping[str, Value]", None]

_UINT, _NINT, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_LENGTH_OF_ARGUMENT: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_LEAST_OF_ARGUMENT: Final = {24: 24, 25: 2**8, 26: 2**16, 27: 2**32}
_FALSE, _TRUE, _NULL = 20, 21, 22
_FLOATS: Final = frozenset((25, 26, 27))
_BIG_INTEGERS: Final = frozenset((0xC2, 0xC3))  # tags 2 and 3

ITEMS_MAX: Final = 500_000
"""Items in one value, keys included. The largest value that has a use, a part of a roster, has some 360,000."""

_SHORT_BYTES: Final = 256 * 1024
assert _SHORT_BYTES < ITEMS_MAX, "what is short has too few items to be counted"

_LEAVES: Final = frozenset((int, bytes, str, bool, type(None)))
_INT64_MIN: Final = -UINT64_MAX - 1
_INTEGERS: Final = frozenset((int,))
_TEXTS: Final = frozenset((str,))


def encode(value: Value) -> bytes:
    """The one encoding of `value`.

    Raises `MisuseError` when `value` has no encoding here (a float, a tag, mixed key types, an integer past 64 bits).
    """
    try:
        if _is_plain(value, DEPTH_MAX):
            return cbor2.dumps(value)
        _check_encodable(value, DEPTH_MAX)
        return cbor2.dumps(value, canonical=True)
    except UnicodeEncodeError:
        raise MisuseError("text that holds half a character (a lone surrogate) has no encoding") from None


def decode(data: bytes, *, limit_bytes: int = ITEM_BYTES_MAX, depth: int = DEPTH_MAX) -> Value:
    """The value that `data` encodes. Size is checked first; memory stays proportional to `limit_bytes`.

    Raises `RefusedError` with a reason of its own for each way of not being deterministic CBOR.
    """
    if len(data) > limit_bytes:
        raise RefusedError(Reason.OVERSIZE, f"{len(data)} bytes of CBOR, at most {limit_bytes} are read")
    if len(data) > _SHORT_BYTES:
        _scan(data, depth)
    try:
        value: Value = cbor2.loads(
            data,
            semantic_decoders=_NO_TAGS,
            max_depth=depth,
            allow_indefinite=False,
            allow_duplicate_keys=False,
        )
        is_exact = _is_plain(value, depth) and cbor2.dumps(value) == data
    except (cbor2.CBORError, ValueError, TypeError, OverflowError):
        is_exact = False
    if not is_exact:
        _scan(data, depth)
        raise RefusedError(Reason.NOT_CBOR, "the library reads it in another way than we do")
    return value


class _NoTags(Mapping[int, "cbor2.SemanticDecoderCallback"]):
    """A decoder for whatever tag is asked for that refuses it, before what follows the tag is looked at."""

    def __getitem__(self, tag: int) -> cbor2.SemanticDecoderCallback:
        return _refuse_tag

    # The tags themselves are without number; nobody counts them.

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("a tag")


_NO_TAGS: Final = _NoTags()


def _is_plain(value: Any, depth: int) -> bool:
    """Whether a value is made of exactly our types, at most so deep, with keys in order and integers of 64 bits.

    The library writes such a value as it has to be, with the keys as they come: so that the comparison of bytes says
    nothing about their order. It does not count a level that is empty; here as in the scan every array and map is one.
    """
    kind = type(value)
    if kind in _LEAVES:
        return kind is not int or _INT64_MIN <= value <= UINT64_MAX
    if not depth:
        return False
    if kind is list:
        parts = value
    elif kind is dict and _has_plain_keys(value):
        parts = value.values()
    else:
        return False
    for part in parts:
        kind = type(part)
        if kind is bytes or kind is str:
            continue
        if not _is_plain(part, depth - 1):
            return False
    return True


def _has_plain_keys(fields: dict[Any, Any]) -> bool:
    kinds = set(map(type, fields))
    if kinds <= _INTEGERS:
        keys = [*fields]
        return keys == sorted(keys) and (not keys or (keys[0] >= 0 and keys[-1] <= UINT64_MAX))
    if kinds == _TEXTS:
        written = [key.encode() for key in fields]
        return written == sorted(written, key=lambda key: (len(key), key))
    return False


def _scan(data: bytes, depth_max: int) -> None:
    """Check structure without building anything: one pass, no recursion."""
    end = len(data)
    position = 0
    # One frame for each open array or map: items still to come, is it a map, the last key's bytes, its major type.
    open_frames: list[_Frame] = []
    items_left = ITEMS_MAX
    while True:
        if not items_left:
            raise RefusedError(Reason.OVERSIZE, f"more than {ITEMS_MAX} items in one value")
        items_left -= 1
        start = position
        major, argument, position = _head(data, position, end)
        if major in (_BYTES, _TEXT):
            if argument > end - position:
                raise RefusedError(Reason.NOT_CBOR, f"a string of {argument} bytes ends past the data")
            if major == _TEXT:
                _check_text(data[position : position + argument])
            position += argument
        if open_frames and open_frames[-1].expects_key():
            open_frames[-1].take_key(major, data[start:position])
        if major in (_ARRAY, _MAP):
            items = argument * (2 if major == _MAP else 1)
            if items > end - position:
                raise RefusedError(Reason.NOT_CBOR, f"a container of {argument} items ends past the data")
            if len(open_frames) >= depth_max:
                raise RefusedError(Reason.TOO_DEEP, f"nested more than {depth_max} levels")
            open_frames.append(_Frame(items, major == _MAP))
        elif open_frames:
            open_frames[-1].left -= 1
        while open_frames and open_frames[-1].left == 0:
            open_frames.pop()
            if open_frames:
                open_frames[-1].left -= 1
        if not open_frames:
            break
    if position != end:
        raise RefusedError(Reason.TRAILING_BYTES, f"{end - position} bytes follow the value")


class _Frame:
    __slots__ = ("is_map", "key_major", "last_key", "left")

    def __init__(self, left: int, is_map: bool) -> None:
        self.left = left
        self.is_map = is_map
        self.last_key = b""
        self.key_major = -1

    def expects_key(self) -> bool:
        return self.is_map and self.left % 2 == 0

    def take_key(self, major: int, key: bytes) -> None:
        if major not in (_UINT, _TEXT):
            raise RefusedError(Reason.BAD_SHAPE, "a map key is neither an unsigned integer nor text")
        if self.key_major not in (-1, major):
            raise RefusedError(Reason.BAD_SHAPE, "a map mixes integer and text keys")
        # No key is as low as the empty one that a frame begins with.
        if key == self.last_key:
            raise RefusedError(Reason.DUPLICATE_KEY, "a map has one key twice")
        if key < self.last_key:
            raise RefusedError(Reason.NOT_DETERMINISTIC, "map keys are not in order")
        self.key_major = major
        self.last_key = key


def _head(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Major type, argument and the position after the head (RFC 8949 section 3)."""
    if position >= end:
        raise RefusedError(Reason.NOT_CBOR, "the data ends inside a value")
    initial = data[position]
    major, info = initial >> 5, initial & 0x1F
    position += 1
    if initial in _BIG_INTEGERS:
        raise RefusedError(Reason.BIG_INTEGER, "integers have at most 64 bits")
    if major == _TAG:
        raise RefusedError(Reason.TAG, "tags are not used")
    if info == 31:
        raise RefusedError(Reason.INDEFINITE_LENGTH, "indefinite lengths are not used")
    if major == _SIMPLE:
        if info in _FLOATS:
            raise RefusedError(Reason.FLOAT, "floats are not used")
        if info not in (_FALSE, _TRUE, _NULL):
            raise RefusedError(Reason.BAD_SHAPE, "of the simple values only false, true and null are used")
        return major, info, position
    if info < 24:
        return major, info, position
    if info > 27:
        raise RefusedError(Reason.NOT_CBOR, "a reserved length code")
    length = _LENGTH_OF_ARGUMENT[info]
    if position + length > end:
        raise RefusedError(Reason.NOT_CBOR, "the data ends inside a length")
    argument = int.from_bytes(data[position : position + length])
    if argument < _LEAST_OF_ARGUMENT[info]:
        raise RefusedError(Reason.NOT_DETERMINISTIC, "an integer or length is not in its shortest form")
    return major, argument, position + length


def _check_text(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise RefusedError(Reason.BAD_TEXT, "text that is not UTF-8") from None


def _check_encodable(value: Value, depth: int) -> None:
    if value is None or isinstance(value, (bool, bytes, str)):
        return
    if isinstance(value, int):
        if not _INT64_MIN <= value <= UINT64_MAX:
            raise MisuseError(f"the integer {value} does not fit 64 bits and has no encoding")
        return
    if not depth:
        raise MisuseError(f"a value nested more than {DEPTH_MAX} levels has no encoding; make it flatter")
    if isinstance(value, list):
        for item in value:
            _check_encodable(item, depth - 1)
        return
    if isinstance(value, dict):
        if len({type(key) for key in value}) > 1 or not all(
            isinstance(key, str) or (type(key) is int and 0 <= key <= UINT64_MAX) for key in value
        ):
            raise MisuseError("map keys must all be unsigned integers or all text")
        for item in value.values():
            _check_encodable(item, depth - 1)
        return
    raise MisuseError(f"a {type(value).__name__} has no encoding here")
