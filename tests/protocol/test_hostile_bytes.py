"""From any bytes of a peer to a value: only the package's own refusal leaves, and one content has one encoding."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given, settings, strategies as st
from p2pmem_protocol.errors import RefusedError

from scripts.vectors.targets import Target, targets

TARGETS = targets()
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
# These are text or runs of bytes; all others are CBOR.
CBOR = [name for name in TARGETS if name not in ("content", "certificate-json", "invite", "round")]


def hold(target: Target, data: bytes) -> bool:
    """Whether `data` is accepted. Anything but a refusal, or another encoding, fails the test."""
    try:
        written = target.read(data)
    except RefusedError:
        return False
    assert written == data
    return True


@each_target
def test_the_first_of_its_vectors_is_accepted(target: Target) -> None:
    assert hold(target, target.corpus[0])


@each_target
@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_read(target: Target, data: bytes) -> None:
    hold(target, data)


@each_target
@settings(max_examples=100)
@given(st.data())
def test_changed_bytes_are_refused_or_read(target: Target, data: st.DataObject) -> None:
    """Some bytes flipped, a piece cut out, doubled or put in."""
    raw = bytearray(data.draw(st.sampled_from(target.corpus)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        match data.draw(st.integers(0, 3)):
            case 0 if raw:
                raw[at] ^= 1 << data.draw(st.integers(0, 7))
            case 1:
                del raw[at : at + data.draw(st.integers(1, 40))]
            case 2:
                raw[at:at] = raw[at : at + data.draw(st.integers(1, 40))]
            case _:
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    hold(target, bytes(raw))


ODD: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.sampled_from([0, 1, 2, 2**32 - 1, 2**32, 2**53, 2**64 - 1])
    | st.binary(max_size=70)
    | st.sampled_from([bytes(20), bytes(32), bytes(65), b""])
    | st.text(max_size=20)
    | st.just([])
    | st.just({})
    | st.lists(st.binary(min_size=32, max_size=32), max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a value something may be put instead."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    first, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = put(value[first], tuple(rest), other)
    return copy


@pytest.mark.parametrize("name", CBOR)
@settings(max_examples=100)
@given(st.data())
def test_a_field_of_another_type_is_refused_or_read(name: str, data: st.DataObject) -> None:
    """Well-formed CBOR of the wrong shape: it passes the decoder and reaches the readers of fields."""
    target = TARGETS[name]
    value = cbor2.loads(data.draw(st.sampled_from(target.corpus[:3])))
    for _ in range(data.draw(st.integers(1, 2))):
        value = put(value, data.draw(st.sampled_from(places(value))), data.draw(ODD))
    hold(target, cbor2.dumps(value, canonical=True))


@pytest.mark.parametrize("name", ["item"])
@settings(max_examples=200)
@given(st.data())
def test_a_body_of_another_shape_is_refused_or_read(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    envelopes = [raw for raw in target.corpus[:14] if 10 in cbor2.loads(raw)]
    value = cbor2.loads(data.draw(st.sampled_from(envelopes)))
    body = cbor2.loads(value[9])
    body = put(body, data.draw(st.sampled_from(places(body))), data.draw(ODD))
    hold(target, cbor2.dumps(value | {9: cbor2.dumps(body, canonical=True)}, canonical=True))
