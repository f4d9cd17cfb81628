"""JSON from others is bounded in depth whatever the process's recursion limit is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.certificate_json import from_json
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.json_nesting import NestedTooDeepError, check_nesting

PLAIN = st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[]{}', max_size=8)
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=20)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@pytest.fixture
def raised_recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)


@given(ANY, st.integers(0, 6))
def test_a_text_passes_exactly_when_it_nests_no_deeper_than_asked(value: object, most: int) -> None:
    text = json.dumps(value)
    try:
        check_nesting(text, most)
    except NestedTooDeepError:
        assert depth(value) > most
    else:
        assert depth(value) <= most


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("1", 0),
        ('"[[{{"', 0),
        ('["\\"[", "]"]', 1),
        ("[]", 1),
        ("[[], {}, [1], {}]", 2),
        ('{"a": {"b": []}, "c": [[]]}', 3),
        ("[" * 64 + "]" * 64, 64),
        ("XX[X]XX", 1),
        ("[[[], [[]]]]", 4),
    ],
)
def test_levels_are_counted_as_they_open_and_close(text: str, levels: int) -> None:
    check_nesting(text, levels)
    with pytest.raises(NestedTooDeepError):
        check_nesting(f"[{text}]", levels)


@pytest.mark.parametrize("text", ["[" * 300_000, '{"a":' * 300_000, '[{"":' * 200_000])
@pytest.mark.usefixtures("raised_recursion_limit")
def test_brackets_do_not_end_a_process_whose_recursion_limit_a_library_has_raised(text: str) -> None:
    with pytest.raises(RefusedError):
        from_json(text)


def test_a_string_without_end_is_searched_once() -> None:
    check_nesting('"' + '\\"' * 1_000_000)
