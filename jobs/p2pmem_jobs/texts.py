"""Texts as the file can hold them.

Python's texts may hold halves of characters (lone surrogates: so it writes the bytes of a file name that are no UTF-8),
and SQLite's may not. What names something is refused, because another name would name something else. What is only told
to people, such as the text of somebody's error, is written with an escape in its place: telling must never fail.
"""

from __future__ import annotations

from .errors import MisuseError

REASON_CHARACTERS_MAX = 1_000
_INNER_MAX = 8  # errors of a group that are told


def is_storable(text: str) -> bool:
    """Whether UTF-8 has these characters."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(text: str, what: str, characters_max: int) -> None:
    """Refuses a name that cannot be one. Errors: `MisuseError`."""
    if not 0 < len(text) <= characters_max:
        raise MisuseError(f"{what} is a text of 1 to {characters_max} characters, not {text[:50]!r}")
    if not is_storable(text):
        raise MisuseError(f"{what} holds half of a character (a lone surrogate), which cannot be stored: {text[:50]!r}")


def told(text: str) -> str:
    """A text for people, cut to what is kept, and with an escape for what cannot be stored."""
    cut = text[:REASON_CHARACTERS_MAX]
    return cut if is_storable(cut) else cut.encode("utf-8", "backslashreplace").decode()


def describe(error: BaseException) -> str:
    """The type and the text of an error, and of those in a group. Never fails, even where it cannot say what it is."""
    try:
        text = str(error)
    except Exception:
        text = "(its own text cannot be made)"
    if isinstance(error, BaseExceptionGroup):
        text += ": " + "; ".join(map(describe, _inner(error)))
    return told(f"{type(error).__name__}: {text}")


def _inner(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The first errors that are no groups themselves, however deep they lie."""
    found: list[BaseException] = []
    left: list[BaseException] = [*group.exceptions]
    while left and len(found) < _INNER_MAX:
        error = left.pop(0)
        if isinstance(error, BaseExceptionGroup):
            left[:0] = error.exceptions
        else:
            found.append(error)
    return found
