"""The summary of a run counts what passed, and what was there to pass."""

from __future__ import annotations

import pytest

from tests.conftest import ID_BYTES_MAX, pytest_make_parametrize_id
from tests.suites import Suites, folders, table


def test_an_assertion_half_way_leaves_the_cases_after_it_counted_and_not_passed() -> None:
    suites = Suites()

    def go() -> None:
        for number in suites("some").each([1, 2, 3, 4]):
            assert number < 3

    with pytest.raises(AssertionError):
        go()
    assert list(table(suites)) == ["some       4  2 pass, 2 do not"]


def test_what_a_case_says_is_what_is_counted_and_given_back() -> None:
    suites = Suites()
    assert [suites("some").case(good) for good in (True, False)] == [True, False]
    assert list(table(suites)) == ["some       2  1 pass, 1 do not"]


def test_tests_are_counted_by_folder() -> None:
    reports = [
        ("tests/protocol/test_a.py::b", True),
        ("tests/p2pmem/net/deep/test_a.py::b", True),
        ("tests/t.py::c", False),
    ]
    assert list(table(folders(reports), Suites())) == [
        "tests                  1  0 pass, 1 do not",
        "tests/p2pmem/net       1  all pass",
        "tests/protocol         1  all pass",
    ]


def test_no_long_bytes_are_in_a_tests_name_since_they_may_differ_between_the_processes_of_a_run() -> None:
    assert pytest_make_parametrize_id(b"x" * (ID_BYTES_MAX + 1), "data") == "data"
    assert pytest_make_parametrize_id(b"x" * ID_BYTES_MAX, "data") is None
    assert pytest_make_parametrize_id("x" * 100, "text") is None
