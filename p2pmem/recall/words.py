"""Words: what the text index is made of, and what a question is taken to ask for.

Index and question go through the same cutter, so they meet. Text is cut at everything that is no letter and no digit;
scripts written without spaces are cut into characters, and a question's run of them becomes a phrase. A camelCase word
is indexed whole and in its parts. Stemming (Porter, English) is the index's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_QUESTION_TERMS = 32
"""Different words of a question that are searched for; the first ones count."""
MAX_QUESTION_CHARACTERS = 8_192
MAX_WORD_CHARACTERS = 64

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?P<word>[^\W_{_UNSPACED}]+)")
_SOME_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(r"[^\W_]+")
_MIXED = re.compile("[A-Z](?:(?<=[A-Za-z0-9].)|[a-z]*[0-9])")
"""In words of ASCII that have more than one form."""
_LOWER = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
"""Of ASCII: what is no word becomes a space."""
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

# Words that say nothing about what is asked for. Questions to a memory are mostly English prose; a question made of
# nothing else keeps them.
_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being but by can could d did do does doing
    don done for from get got had has have having he her here hers him his how i if in into is it its just ll m me more
    most my no nor not now of off on once only or other our out over own re s same she should so some such t than that
    the their them then there these they this those through to too under until up us ve very was we were what when where
    which while who whom whose why will with would you your yours
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def index_text(text: str) -> str:
    """The text as the index takes it: words and characters, one space between them. The same for the same text."""
    if text.isascii() and _MIXED.search(text) is None:
        plain = text.encode().translate(_LOWER).split()
        if max(map(len, plain), default=0) <= MAX_WORD_CHARACTERS:
            return b" ".join(plain).decode()
    if _SOME_UNSPACED.search(text) is not None:
        return " ".join(_index_words(text))
    words: list[str] = []
    for word in _WORD.findall(text):
        if word.islower() and len(word) <= MAX_WORD_CHARACTERS:
            words.append(word)
        else:
            words += _forms(word[:MAX_WORD_CHARACTERS])
    return " ".join(words)


def question_phrases(question: str) -> tuple[str, ...]:
    """What a question asks for: its different words, without those that tell nothing. Empty if there is no word in it.

    They hold letters, digits and single spaces only, so that nothing that a user writes is syntax.
    """
    phrases = list(dict.fromkeys(_question_phrases(question[:MAX_QUESTION_CHARACTERS])))
    telling = [phrase for phrase in phrases if phrase not in STOP_WORDS]
    return tuple((telling or phrases)[:MAX_QUESTION_TERMS])


def match_expression(phrases: Iterable[str]) -> str:
    """The phrases as an FTS5 expression: any of them."""
    return " OR ".join(f'"{phrase}"' for phrase in phrases)


def _index_words(text: str) -> Iterator[str]:
    for run in _RUN.finditer(text):
        if run["unspaced"]:
            yield from run["unspaced"]
            continue
        yield from _forms(run["word"][:MAX_WORD_CHARACTERS])


def _forms(word: str) -> list[str]:
    """The word, and its parts when it is put together of some."""
    parts = _CAMEL.findall(word)
    if len(parts) > 1 and not word.islower():
        return [word.lower(), *(part.lower() for part in parts)]
    return [word.lower()]


def _question_phrases(question: str) -> Iterator[str]:
    for run in _RUN.finditer(question):
        if run["unspaced"]:
            yield " ".join(run["unspaced"][:MAX_WORD_CHARACTERS])
        else:
            yield run["word"][:MAX_WORD_CHARACTERS].lower()
