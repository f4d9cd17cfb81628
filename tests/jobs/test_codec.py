"""Values as text, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st
from p2pmem_jobs import NotSerialisableError, codec


class Size(Enum):
    SMALL = 1
    LARGE = "large"


@dataclass(frozen=True)
class Leaf:
    number: int
    raw: bytes
    size: Size = Size.SMALL


@dataclass(frozen=True)
class Tree:
    name: str
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    by_name: dict[str, list[float]]
    maybe: Leaf | None
    mode: Literal["a", 2]
    anything: Any
    children: list[Tree] = field(default_factory=list)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text().filter(lambda key: not key.startswith("$")), inner, max_size=4)
    ),
    max_leaves=10,
)
leaves = st.builds(Leaf, st.integers(), st.binary(), st.sampled_from(Size))
trees = st.recursive(
    st.builds(
        Tree,
        st.text(),
        st.lists(leaves, max_size=3).map(tuple),
        st.tuples(st.integers(), st.text()),
        st.dictionaries(
            st.text(alphabet="abc"), st.lists(st.floats(allow_nan=False, allow_infinity=False)), max_size=2
        ),
        st.none() | leaves,
        st.sampled_from(["a", 2]),
        plain,
    ),
    lambda inner: st.builds(
        Tree,
        st.text(),
        st.just(()),
        st.just((1, "")),
        st.just({}),
        st.none(),
        st.just("a"),
        st.none(),
        st.lists(inner, max_size=2),
    ),
    max_leaves=4,
)


@given(plain)
def test_a_plain_value_comes_back_as_it_was(value: object) -> None:
    text = codec.encode(value)
    again = codec.decode(text)
    assert repr(again) == repr(value) or again == value
    assert codec.encode(again) == text


@given(trees)
def test_a_dataclass_comes_back_as_it_was(tree: Tree) -> None:
    codec.check_declared(Tree, "tree")
    text = codec.encode(tree, Tree)
    assert codec.decode(text, Tree) == tree


@given(plain, st.sampled_from([None, bool, int, float, str, bytes, Size, Leaf, Tree, list[int], int | None]))
def test_a_text_of_another_type_is_refused_and_nothing_worse(value: object, declared: Any) -> None:
    try:
        again = codec.decode(codec.encode(value), declared)
    except NotSerialisableError:
        return
    codec.encode(again, declared)


@pytest.mark.parametrize(
    ("value", "declared", "why"),
    [
        (1, str, "value is a int, and should be str"),
        (True, int, "value is a bool"),
        (1, bool, "should be bool"),
        (math.nan, float, "nan"),
        (math.inf, codec.UNDECLARED, "inf"),
        ("x", float, "should be float"),
        ({1: 2}, codec.UNDECLARED, "key 1"),
        ({"$bytes": "x"}, codec.UNDECLARED, "begin with"),
        ((1, 2), codec.UNDECLARED, "Declare the type"),
        ({1, 2}, codec.UNDECLARED, "Declare the type"),
        (object(), codec.UNDECLARED, "a object"),
        (Leaf(1, b""), codec.UNDECLARED, "a Leaf"),
        (Leaf("1", b""), Leaf, r"value\.number is a str"),  # type: ignore[arg-type]
        ((1, 2, 3), tuple[int, str], "3 parts"),
        ([1, "2"], list[int], r"value\[1\] is a str"),
        ({"a": [1, None]}, dict[str, list[int]], r"value\['a'\]\[1\]"),
        ("c", Literal["a", "b"], "should be"),
        (True, Literal[1], "should be"),
        ({1}, set[int], "cannot be stored"),
        (1, int | str, "cannot be stored"),
        ("x" * 2_000_000, str, "larger than"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_place(value: object, declared: Any, why: str) -> None:
    with pytest.raises(NotSerialisableError, match=why):
        codec.encode(value, declared)


def test_nesting_is_bounded() -> None:
    value: list[Any] = []
    for _ in range(codec.DEPTH_MAX + 1):
        value = [value]
    with pytest.raises(NotSerialisableError, match="deeper"):
        codec.encode(value)


@pytest.mark.parametrize(
    ("text", "declared", "why"),
    [
        ('{"number": 1}', Leaf, "no Leaf any longer"),
        ('{"number": 1, "raw": {"$bytes": ""}, "more": 1}', Leaf, "more"),
        ('{"number": 1, "raw": {"$bytes": "%"}}', Leaf, "should be bytes"),
        ('"huge"', Size, "should be Size"),
        ("[1]", tuple[int, str], "1 parts"),
        ("{}", list[int], "should be"),
    ],
)
def test_a_stored_value_that_no_longer_fits_is_refused(text: str, declared: Any, why: str) -> None:
    with pytest.raises(NotSerialisableError, match=why):
        codec.decode(text, declared)


def test_a_field_that_came_later_takes_its_default() -> None:
    assert codec.decode('{"number": 1, "raw": {"$bytes": ""}}', Leaf) == Leaf(1, b"", Size.SMALL)
