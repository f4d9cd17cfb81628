"""The nesting of JSON from others, bounded before a parser sees it.

Python's parser recurses in C. It is guarded by the recursion limit, but that belongs to the whole process, and
libraries raise it (one of Ethereum's to 100,000): from then on a few hundred kilobytes of brackets end the process.
"""

from __future__ import annotations

import re
from typing import Final

DEPTH_MAX: Final = 64
# A string may lack its end: then it is all the rest, and the parser says so. Were the end needed, a text of nothing but
# escaped quotes would be searched once for each of them.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class NestedTooDeepError(ValueError):
    """The text nests deeper than is read here."""


def check_nesting(text: str, depth_max: int = DEPTH_MAX) -> None:
    """Raises `NestedTooDeepError` for brackets more than `depth_max` deep. Takes time in proportion to `text`."""
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        if mark in "[{":
            depth += 1
            if depth > depth_max:
                raise NestedTooDeepError(f"JSON nested more than {depth_max} levels")
        elif mark in "]}":
            depth -= 1
