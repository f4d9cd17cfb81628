"""Values of the face to JSON and back."""

from __future__ import annotations

import json
import typing
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

import p2pmem.face as face_module
from p2pmem.api.codec import BadValueError, decode, decode_text, dumps, encode, encode_text, loads
from p2pmem.face import Layer, NewGraph, NewMember, VersionView

from .memory_values import make_version

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)  # fmt: skip
TEXTS = st.text(st.characters(codec="utf-8"))
VALUES: list[type[Any]] = [it for it in vars(face_module).values() if isinstance(it, type) and is_dataclass(it)]


def values_of(wanted: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that the faces use."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if type(None) in arguments:
        (rest,) = (it for it in arguments if it is not type(None))
        return st.none() | values_of(rest)
    if origin is tuple:
        assert arguments[1] is ...
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXTS, JSON_VALUES, max_size=3)
    if wanted is object:
        return JSON_VALUES
    if is_dataclass(wanted):
        hints = typing.get_type_hints(wanted)
        return st.builds(wanted, **{item.name: values_of(hints[item.name]) for item in fields(wanted)})
    if wanted is Layer:
        return st.sampled_from(Layer)
    return {
        str: TEXTS,
        int: st.integers(-(2**53) + 1, 2**53 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
    }[wanted]


@given(st.data())
def test_every_value_of_the_face_survives_json(data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(VALUES))
    value = data.draw(values_of(wanted))
    assert decode(wanted, loads(dumps(value).encode())) == value


@given(JSON_VALUES, st.sampled_from(VALUES))
def test_json_that_is_no_value_is_refused_by_its_type(value: object, wanted: type[Any]) -> None:
    try:
        made = decode(wanted, value)
    except BadValueError:
        return
    assert isinstance(made, wanted)


@given(st.binary(max_size=200))
def test_bytes_are_json_or_refused(data: bytes) -> None:
    try:
        loads(data)
    except BadValueError:
        return
    json.loads(data)


def test_brackets_in_text_do_not_nest() -> None:
    text = "[{" * 1_000 + '\\"[['
    assert loads(dumps({"a": [text]}).encode()) == {"a": [text]}


@pytest.mark.parametrize("data", [b'"' + b'\\"' * 300_000, b"[" * 300_000, b'{"":' * 300_000, b"[]" * 300_000])
def test_a_hostile_body_is_refused_in_one_pass(data: bytes) -> None:
    with pytest.raises(BadValueError):
        loads(data)


def test_a_field_that_is_unknown_is_refused_by_name() -> None:
    with pytest.raises(BadValueError, match=r"'members\[0\]\.adress'"):
        decode(NewGraph, {"slug": "x", "members": [{"adress": "0x", "roles": []}]})


def test_a_field_that_is_missing_is_refused_by_name() -> None:
    with pytest.raises(BadValueError, match=r"members\[0\]\.address is missing"):
        decode(NewGraph, {"slug": "x", "members": [{"roles": []}]})


def test_a_field_with_a_default_may_be_left_out() -> None:
    assert decode(NewMember, {"address": "0x", "roles": ["writer"]}) == NewMember("0x", ("writer",), "")


def test_an_answer_of_a_newer_node_may_say_more() -> None:
    version = make_version("g", "a/b@1")
    body = loads(dumps(version).encode())
    assert isinstance(body, dict)
    body["colour"] = "red"
    assert decode(VersionView, body, strict=False) == version
    with pytest.raises(BadValueError, match="colour"):
        decode(VersionView, body)


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, "1"),
        (int, 2**53),
        (bool, 1),
        (str, 1),
        (str, None),
        (str, "\ud800"),
        (float, "1"),
        (Layer, "everything"),
        (tuple[str, ...], "ab"),
        (tuple[str, ...], [1]),
        (dict, []),
        (object, [[2**60]]),
    ],
)
def test_nothing_is_taken_for_something_else(wanted: Any, value: object) -> None:
    with pytest.raises(BadValueError):
        decode(wanted, value, "it")


@pytest.mark.parametrize(
    "data", [b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"\xff", b"{", b"", b"[" * 100_000, b"9" * 5_000]
)
def test_text_that_is_no_sound_json_is_refused(data: bytes) -> None:
    with pytest.raises(BadValueError):
        loads(data)


@given(st.integers(-(2**53) + 1, 2**53 - 1) | st.booleans() | st.sampled_from(Layer) | TEXTS)
def test_a_parameter_is_read_as_it_was_written(value: Any) -> None:
    assert decode_text(type(value), encode_text(value), "it") == value


@pytest.mark.parametrize(("wanted", "text"), [(int, "1_0"), (int, "٣"), (int, ""), (bool, "yes"), (Layer, "x")])
def test_a_parameter_of_another_kind_is_refused(wanted: Any, text: str) -> None:
    with pytest.raises(BadValueError, match="it is"):
        decode_text(wanted, text, "it")


def test_what_has_no_form_in_json_is_our_mistake() -> None:
    @dataclass
    class Odd:
        value: object

    for value in (b"bytes", {1: 2}, Odd({3, 4})):
        with pytest.raises(TypeError):
            encode(value)
