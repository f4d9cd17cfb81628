"""Reading and writing of CBOR maps keyed by small unsigned integers, the shape of everything on the wire.

A `Reader` takes each field once, checks its type and range, and at the end refuses what was not taken: a map has
exactly the fields that its kind has, so one content has one encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from p2pmem_protocol.cbor import Value
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import HASH_BYTES
from p2pmem_protocol.limits import UINT32_MAX
from p2pmem_protocol.names import ADDRESS_BYTES, Address, VersionKey, check_name

_INTEGERS: Final = frozenset((int,))


class Reader:
    """The fields of one map, taken one by one."""

    __slots__ = ("_left", "_what")

    def __init__(self, value: Value, what: str) -> None:
        if not isinstance(value, dict) or not set(map(type, value)) <= _INTEGERS:
            raise RefusedError(Reason.BAD_SHAPE, f"{what} is not a map with integer keys")
        self._left: dict[int, Value] = dict(value)
        self._what = what

    @classmethod
    def of_list(cls, value: Value, length: int, what: str) -> Reader:
        """The items of a list of fixed length, by their position."""
        if not isinstance(value, list) or len(value) != length:
            raise RefusedError(Reason.BAD_SHAPE, f"{what} is not a list of {length} items")
        return cls(dict(enumerate(value)), what)

    def has(self, key: int) -> bool:
        return key in self._left

    def _take(self, key: int) -> Value:
        try:
            return self._left.pop(key)
        except KeyError:
            raise RefusedError(Reason.BAD_SHAPE, f"{self._what} lacks field {key}") from None

    def _bad(self, key: int, rule: str) -> RefusedError:
        return RefusedError(Reason.BAD_FIELD, f"field {key} of {self._what} is not {rule}")

    def uint(self, key: int, most: int, least: int = 0) -> int:
        value = self._take(key)
        if type(value) is not int or not least <= value <= most:
            raise self._bad(key, f"an integer from {least} to {most}")
        return value

    def raw(self, key: int, most_bytes: int, least_bytes: int = 0) -> bytes:
        value = self._take(key)
        if not isinstance(value, bytes) or not least_bytes <= len(value) <= most_bytes:
            raise self._bad(key, f"{least_bytes} to {most_bytes} bytes")
        return value

    def hash(self, key: int) -> bytes:
        return self.raw(key, HASH_BYTES, HASH_BYTES)

    def address(self, key: int) -> Address:
        return Address(self.raw(key, ADDRESS_BYTES, ADDRESS_BYTES))

    def text(self, key: int, most_chars: int, least_chars: int = 0) -> str:
        value = self._take(key)
        if not isinstance(value, str) or not least_chars <= len(value) <= most_chars:
            raise self._bad(key, f"text of {least_chars} to {most_chars} characters")
        return value

    def name(self, key: int, check: Callable[[str], str]) -> str:
        """Text in the grammar of a name, which bounds its length too."""
        value = self._take(key)
        if not isinstance(value, str):
            raise self._bad(key, "text")
        try:
            return check(value)
        except MisuseError as error:
            raise RefusedError(Reason.BAD_NAME, f"field {key} of {self._what}: {error}") from None

    def version(self, first: int) -> VersionKey:
        """A version that something is said about, in five fields from `first`: see `VersionKey.fields`."""
        return VersionKey(
            self.address(first),
            self.name(first + 1, check_name),
            self.uint(first + 2, UINT32_MAX, 1),
            self.hash(first + 3),
            self.hash(first + 4),
        )

    def boolean(self, key: int) -> bool:
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._bad(key, "true or false")
        return value

    def items(self, key: int, most: int, least: int = 0) -> list[Value]:
        value = self._take(key)
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise self._bad(key, f"a list of {least} to {most} items")
        return value

    def sorted_hashes(self, key: int, most: int) -> tuple[bytes, ...]:
        """Hashes in strictly ascending order: a set has one encoding."""
        hashes: list[bytes] = []
        for value in self.items(key, most):
            if not isinstance(value, bytes) or len(value) != HASH_BYTES:
                raise self._bad(key, f"a list of {HASH_BYTES}-byte hashes")
            if hashes and value <= hashes[-1]:
                raise self._bad(key, "in strictly ascending order")
            hashes.append(value)
        return tuple(hashes)

    def ascending_uints(self, key: int, most_items: int, most: int) -> tuple[int, ...]:
        """Distinct integers in ascending order."""
        numbers: list[int] = []
        for value in self.items(key, most_items):
            if type(value) is not int or not (numbers[-1] if numbers else -1) < value <= most:
                raise self._bad(key, f"a list of integers up to {most} in strictly ascending order")
            numbers.append(value)
        return tuple(numbers)

    def texts(self, key: int, most_items: int, most_chars: int) -> tuple[str, ...]:
        """At least one text, none of them empty, in the order given."""
        values = self.items(key, most_items, 1)
        texts = tuple(value for value in values if isinstance(value, str) and 0 < len(value) <= most_chars)
        if len(texts) != len(values):
            raise self._bad(key, f"a list of texts of 1 to {most_chars} characters")
        return texts

    def strings(self, key: int, most_items: int, least_items: int = 0) -> tuple[bytes, ...]:
        """Byte strings of any length, in the order given: values of their own, which are read and bounded as such."""
        values = self.items(key, most_items, least_items)
        strings = tuple(value for value in values if isinstance(value, bytes))
        if len(strings) != len(values):
            raise self._bad(key, "a list of byte strings")
        return strings

    def hashes(self, key: int, most: int) -> tuple[bytes, ...]:
        """Hashes in the order given."""
        values = self.items(key, most)
        if not all(isinstance(value, bytes) and len(value) == HASH_BYTES for value in values):
            raise self._bad(key, f"a list of {HASH_BYTES}-byte hashes")
        return tuple(value for value in values if isinstance(value, bytes))

    def nested(self, key: int) -> Value:
        return self._take(key)

    def end(self) -> None:
        """Nothing is left over."""
        if self._left:
            raise RefusedError(Reason.BAD_SHAPE, f"{self._what} has unknown fields {sorted(map(str, self._left))[:8]}")
