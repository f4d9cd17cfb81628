"""What a query may cost, what comes back, what can go wrong, and the first look at its text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique

from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.store.terms import Term, from_json

MAX_QUERY_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_NESTING = 100
"""Open brackets inside one another. The native parser dies of some thousands."""
MAX_GRAPHS = 1_000
"""Graphs in a dataset, default and named each. A lookup takes longer with each: 7 to 13 ms with 1,000."""


class QueryRefused(MisuseError):
    """The query asks for something that no query may ask here. It was not run."""


class QuerySyntax(QueryRefused):
    """The text is not a SPARQL query. `line` and `column` count from 1; both are 0 when the parser did not say."""

    def __init__(self, text: str, line: int, column: int) -> None:
        super().__init__(text)
        self.line = line
        self.column = column


class QueryTooLarge(MisuseError):
    """The query needs more memory than it may, one row is over the byte limit, or it nests too deep to be planned."""


class QueryTimeout(MisuseError):
    """The query did not end within its time and was stopped."""


class QueryBusy(OutsideError):
    """All workers were busy for as long as the caller would wait, or too many callers wait already."""


class StoreBehind(OutsideError):
    """The store, or what it says in `_meta`, has not reached the position asked for. `position` is where it stands."""

    def __init__(self, wanted: int, position: int, what: str = "the store") -> None:
        super().__init__(f"{what} is at ledger position {position}, {wanted} was asked for; ask again")
        self.wanted = wanted
        self.position = position


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may cost. Above `max_rows` or `max_bytes` the answer is cut and says so."""

    time_ms: int = 5_000
    wait_ms: int = 10_000
    """How long to wait for a free worker, and for the store to reach `at_least`."""
    max_rows: int = 10_000
    max_bytes: int = 4 * 1024 * 1024
    memory_bytes: int = 1024 * 1024 * 1024
    """Address space of a worker, its program and the store's files included. Some 400 MB are the least."""

    def __post_init__(self) -> None:
        for name in ("time_ms", "wait_ms", "max_rows", "max_bytes", "memory_bytes"):
            if getattr(self, name) < 1:
                raise MisuseError(f"QueryLimits.{name} must be at least 1")
        if self.max_bytes > MAX_ANSWER_BYTES:
            raise MisuseError(f"QueryLimits.max_bytes is at most {MAX_ANSWER_BYTES}")


@unique
class AnswerKind(Enum):
    """What sort of query was asked; it decides what `QueryAnswer.body` is."""

    SELECT = "select"
    ASK = "ask"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """An answer as it can be sent on, and the ledger position it is true of.

    `body` is SPARQL 1.2 results in JSON for SELECT and ASK, N-Triples for CONSTRUCT and DESCRIBE. `row_count` counts
    rows or triples. When `truncated`, there was more.
    """

    kind: AnswerKind
    position: int
    truncated: bool
    row_count: int
    body: bytes

    @property
    def media_type(self) -> str:
        """As in an HTTP Content-Type."""
        return "application/n-triples" if self.kind is AnswerKind.GRAPH else "application/sparql-results+json"

    @property
    def boolean(self) -> bool:
        """The answer of an ASK."""
        self._must_be(AnswerKind.ASK)
        return bool(json.loads(self.body)["boolean"])

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of a SELECT, in order."""
        self._must_be(AnswerKind.SELECT)
        return tuple(json.loads(self.body)["head"]["vars"])

    def rows(self) -> tuple[tuple[Term | None, ...], ...]:
        """The rows of a SELECT, each in the order of `variables`; None where a variable is not bound."""
        self._must_be(AnswerKind.SELECT)
        decoded = json.loads(self.body)
        names: Sequence[str] = decoded["head"]["vars"]
        return tuple(
            tuple(from_json(row[name]) if name in row else None for name in names)
            for row in decoded["results"]["bindings"]
        )

    @property
    def n_triples(self) -> str:
        """The triples of a CONSTRUCT or DESCRIBE."""
        self._must_be(AnswerKind.GRAPH)
        return self.body.decode()

    def _must_be(self, kind: AnswerKind) -> None:
        if self.kind is not kind:
            raise MisuseError(f"this is the answer of a {self.kind.value} query, not of a {kind.value} one")


# Order matters: what hides brackets and words comes first. `<` that starts no IRI is an operator.
_TOKEN = re.compile(
    r"""
    (?P<skip> \#[^\n\r]*
      | <[^<>"{}|^`\\\x00-\x20]*>
      | \"\"\"(?:[^"\\]|\\.|\"{1,2}(?!\"))*\"\"\" | '''(?:[^'\\]|\\.|'{1,2}(?!'))*'''
      | "(?:[^"\\\n\r]|\\.)*" | '(?:[^'\\\n\r]|\\.)*'
      | [?$]\w+ | @[A-Za-z][A-Za-z0-9-]* | [\w.-]*:(?:[\w.:-]|%[0-9A-Fa-f]{2}|\\.)*
    )
    | (?P<open> <<\(? | [({\[]) | (?P<close> \)?>> | [)}\]]) | (?P<word> [A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
_REFUSED_WORDS = {
    "SERVICE": "a query reaches no other endpoint",
    "FROM": "the dataset is chosen by the parameters of the call, where rights are checked",
}


def screen(sparql: str) -> None:
    """Refuse what is not worth a worker: too long, nested too deep, or asking for the world outside.

    This gives the better message; it is not the wall. The wall is the worker process: without sockets, over a dataset
    that the text cannot widen, killed when it takes too long.
    """
    size_bytes = len(sparql.encode(errors="surrogatepass"))
    if size_bytes > MAX_QUERY_BYTES:
        raise QueryRefused(f"the query is {size_bytes} bytes long, at most {MAX_QUERY_BYTES}")
    if any("\ud800" <= character <= "\udfff" for character in sparql):
        raise QueryRefused("the query holds half a surrogate pair; send UTF-8")
    depth = 0
    for token in _TOKEN.finditer(sparql):
        if token["open"]:
            depth += 1
            if depth > MAX_NESTING:
                raise QueryRefused(f"brackets nest deeper than {MAX_NESTING}; write the query flatter")
        elif token["close"]:
            depth = max(0, depth - 1)
        elif token["word"]:
            why = _REFUSED_WORDS.get(token["word"].upper())
            if why is not None:
                raise QueryRefused(f"{token['word'].upper()} is not available: {why}")


def looks_into_graphs(sparql: str) -> bool:
    """Whether a query has a pattern inside GRAPH. An IRI, a text or a name that merely says so is none."""
    return any((token["word"] or "").upper() == "GRAPH" for token in _TOKEN.finditer(sparql))
