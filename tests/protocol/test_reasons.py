"""Bytes with one fault are refused with the reason of that fault, in whatever is read, however deep it lies.

What is accepted among the vectors is changed at each place in turn, also within CBOR that lies in a byte string.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

import cbor2
import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.errors import Reason, RefusedError

from scripts.vectors.targets import targets

WORDS: Final = ("invite", "certificate-json")
"""What people type or read, which is not CBOR."""
OTHERWISE: Final = ("cbor", "content", "round")
READ: Final = sorted(set(targets()) - {*WORDS, *OTHERWISE})
NAMES: Final = ("field-notes", "site-7", "2026/q3", "report", "kept")

Change = Callable[[Any, Any], None]


@pytest.mark.parametrize("name", READ)
def test_a_field_of_another_type_is_a_bad_field(name: str) -> None:
    def to_null(holder: Any, place: Any) -> None:
        holder[place] = None

    tried = 0
    for path, old, data in changed(name, to_null):
        if not isinstance(old, dict | list):
            tried += 1
            assert code_of(name, data) == Reason.BAD_FIELD, (path, data.hex())
    # The lists of ids that a roster keeps are the only vectors of so few places.
    assert tried >= 2


@pytest.mark.parametrize("name", READ)
def test_a_field_that_no_kind_has_is_a_bad_shape(name: str) -> None:
    def with_another(holder: Any, place: Any) -> None:
        if isinstance(holder, dict):
            holder[99] = 1

    for path, _, data in changed(name, with_another):
        if isinstance(path[-1], int) and data not in targets()[name].corpus:
            assert code_of(name, data) == Reason.BAD_SHAPE, (path, data.hex())


@pytest.mark.parametrize("name", READ)
def test_a_field_that_is_missing_is_a_bad_shape_unless_it_may_be(name: str) -> None:
    def without(holder: Any, place: Any) -> None:
        if isinstance(holder, dict):
            del holder[place]

    found = {code_of(name, data) for _, _, data in changed(name, without)}
    assert found <= {0, Reason.BAD_SHAPE}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("written", ["", "x" * 200, "X!", "a\n"], ids=["empty", "long", "characters", "line"])
def test_text_that_is_not_a_name_is_a_bad_name(name: str, written: str) -> None:
    def to_text(holder: Any, place: Any) -> None:
        holder[place] = written

    for path, old, data in changed(name, to_text):
        if old in NAMES and not (written == "" and old == "2026/q3"):
            assert code_of(name, data) == Reason.BAD_NAME, (path, data.hex())


def code_of(name: str, data: bytes) -> int:
    try:
        targets()[name].read(data)
    except RefusedError as refused:
        return int(refused.reason)
    return 0


def changed(name: str, change: Change) -> Iterator[tuple[tuple[Any, ...], Any, bytes]]:
    """Each path in each vector that is accepted, what stood there, and the bytes with `change` made there."""
    for data in targets()[name].corpus:
        if code_of(name, data) == 0:
            yield from _changed(data, change, lambda inner: inner, name)


def _changed(
    data: bytes, change: Change, around: Callable[[bytes], bytes], name: str
) -> Iterator[tuple[tuple[Any, ...], Any, bytes]]:
    """`around` puts bytes that stand for `data` back into the whole vector."""
    value: Any = cbor.decode(data, limit_bytes=len(data))
    for path, old in _places(value):

        def put(inner: Any, path: tuple[Any, ...] = path) -> bytes:
            return around(_with(value, path, lambda holder, place: holder.__setitem__(place, inner)))

        yield path, old, around(_with(value, path, change))
        # Only what is read as CBOR there is looked into: who is asked for parts of a roster does not read them.
        if _is_cbor(old) and code_of(name, put(b"\xf6")):
            yield from _changed(old, change, put, name)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list):
        for place in range(len(value)) if isinstance(value, list) else value:
            yield (*path, place), value[place]
            yield from _places(value[place], (*path, place))


def _with(value: Any, path: tuple[Any, ...], change: Change) -> bytes:
    whole = copy.deepcopy(value)
    holder = whole
    for place in path[:-1]:
        holder = holder[place]
    change(holder, path[-1])
    return cbor2.dumps(whole, canonical=True)


def _is_cbor(value: Any) -> bool:
    if not isinstance(value, bytes) or not value or value[0] >> 5 not in (4, 5):
        return False
    try:
        cbor.decode(value, limit_bytes=len(value))
    except RefusedError:
        return False
    return True
