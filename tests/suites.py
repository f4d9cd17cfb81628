"""What the summary of a run says: each suite, how many cases it has, and how many of them pass.

A suite is a folder of our tests, a set of cases that others wrote, or a file of our vectors. Those of the first kind
are counted from what pytest reports; a test that goes through cases of the others says so:

    for case in suites("RFC 8949").each(cases):
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Suite:
    cases: int = 0
    passed: int = 0

    def case(self, good: bool = True) -> bool:
        self.cases += 1
        self.passed += good
        return good

    def count(self, cases: int, passed: int) -> None:
        """So many were gone through elsewhere, by another program say."""
        self.cases += cases
        self.passed += passed

    def each(self, cases: Collection[T]) -> Iterator[T]:
        """Go through these. One has passed when the next is asked for, so that an assertion ends the count."""
        self.cases += len(cases)
        for case in cases:
            yield case
            self.passed += 1


@dataclass(slots=True)
class Suites:
    """Every suite of this run by its name."""

    named: dict[str, Suite] = field(default_factory=dict)

    def __call__(self, name: str) -> Suite:
        return self.named.setdefault(name, Suite())


def folders(reports: Iterable[tuple[str, bool]]) -> Suites:
    """The folders of our tests, from what became of each: its node id, and whether it passed."""
    suites = Suites()
    for node_id, good in reports:
        path = node_id.partition("::")[0]
        folder, found, _ = path.rpartition("/")
        suites("/".join(folder.split("/")[:3]) if found else path).case(good)
    return suites


def table(*many: Suites) -> Iterator[str]:
    """A line for each suite."""
    width = max((len(name) for suites in many for name in suites.named), default=0)
    for suites in many:
        for name, suite in sorted(suites.named.items()):
            missing = suite.cases - suite.passed
            what = f"{suite.passed:,} pass, {missing:,} do not" if missing else "all pass"
            yield f"{name:<{width}}  {suite.cases:>6,}  {what}"
