"""Runs a query over a restricted dataset and cuts the answer at its limits. Blocking; in whichever process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import pyoxigraph as ox

from p2pmem.store.content import named
from p2pmem.store.plan import INTERNAL, STATE
from p2pmem.store.query import MAX_GRAPHS, AnswerKind, QueryAnswer, QueryRefused, QuerySyntax, QueryTooLarge
from p2pmem.store.terms import Term, to_json, to_oxigraph

POSITION = ox.NamedNode(INTERNAL + "position")
DESCRIBED = ox.NamedNode(INTERNAL + "described")
STORE = ox.NamedNode(INTERNAL + "this")

_PLACE = re.compile(r"^error at (\d+):(\d+)")
_MESSAGE_CHARACTERS = 300
_SHOWN_CHARACTERS = 30
FORMS = ("SELECT", "ASK", "CONSTRUCT", "DESCRIBE")
# Prefixes, base and comments, and the word that comes after them.
_BEGIN = re.compile(
    r"(?:\s|#[^\n]*|base\s*<[^>]*>|prefix\s+[^\s:<]*:\s*<[^>]*>)*+(?P<word>\w*)",
    re.IGNORECASE,
)
# Names with a prefix, and where prefixes are declared. What may hold a colon that is neither is matched first: IRIs,
# strings (also ones that nobody ended) and comments.
_PREFIXED = re.compile(
    r"<[^<>\s]*>|#[^\n]*"
    r'|"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?|"(?:[^"\\\n]|\\.)*+"?'
    r"|'''(?:[^'\\]|\\.|'(?!''))*+(?:''')?|'(?:[^'\\\n]|\\.)*+'?"
    r"|\bprefix\s+(?P<declared>[^\s:<]*):|(?<![\w.:?$-])(?P<used>(?:[^\W\d_][\w.-]*+)?):",
    re.IGNORECASE | re.DOTALL,
)


def stored_position(store: ox.Store) -> int:
    """Up to which position of the ledger the store is true; 0 for an empty one."""
    for quad in store.quads_for_pattern(STORE, POSITION, None, STATE):
        assert isinstance(quad.object, ox.Literal)
        return int(quad.object.value)
    return 0


def answer(
    store: ox.Store,
    sparql: str,
    default_graphs: Sequence[str],
    named_graphs: Sequence[str],
    max_rows: int,
    max_bytes: int,
    bind: Mapping[str, Term] | None = None,
) -> QueryAnswer:
    """The query's answer over exactly these graphs.

    Both lists are always given to the engine, which then neither sees another graph nor heeds a dataset clause: this is
    the wall between what a caller may read and the rest. The store's own graphs are never among them.

    `QuerySyntax` if it is not a query (an update is none), `QueryTooLarge` if one row is over `max_bytes`.
    """
    substitutions = None
    if bind is not None:
        substitutions = {ox.Variable(name): to_oxigraph(term) for name, term in bind.items()}
    position = stored_position(store)
    try:
        result = store.query(
            sparql,
            default_graph=[*_dataset(default_graphs)],
            named_graphs=[*_dataset(named_graphs)],
            substitutions=substitutions,
        )
    except SyntaxError as error:
        raise _syntax(sparql, str(error)) from None
    if isinstance(result, ox.QueryBoolean):
        body = json.dumps({"head": {}, "boolean": bool(result)}).encode()
        return QueryAnswer(AnswerKind.ASK, position, False, 1, body)
    if isinstance(result, ox.QueryTriples):
        truncated, lines = _collect((f"{triple} .\n".encode() for triple in result), max_rows, max_bytes)
        return QueryAnswer(AnswerKind.GRAPH, position, truncated, len(lines), b"".join(lines))
    return _select(result, position, max_rows, max_bytes)


def _select(result: ox.QuerySolutions, position: int, max_rows: int, max_bytes: int) -> QueryAnswer:
    names = [variable.value for variable in result.variables]
    shown = (
        json.dumps(
            {name: to_json(term) for name, term in zip(names, row, strict=True) if term is not None},
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        for row in result
    )
    truncated, rows = _collect(shown, max_rows, max_bytes)
    head = json.dumps({"vars": names}, ensure_ascii=False)
    body = f'{{"head":{head},"results":{{"bindings":['.encode() + b",".join(rows) + b"]}}"
    return QueryAnswer(AnswerKind.SELECT, position, truncated, len(rows), body)


def _collect(pieces: Iterator[bytes], max_rows: int, max_bytes: int) -> tuple[bool, list[bytes]]:
    """As many pieces as the limits allow, and whether there were more."""
    taken: list[bytes] = []
    size_bytes = 0
    for piece in pieces:
        if len(piece) > max_bytes:
            raise QueryTooLarge(f"one row is {len(piece)} bytes long, at most {max_bytes}; ask for less of it")
        size_bytes += len(piece) + 1
        if len(taken) == max_rows or size_bytes > max_bytes:
            return True, taken
        taken.append(piece)
    return False, taken


def _dataset(iris: Sequence[str]) -> list[ox.NamedNode]:
    if len(iris) > MAX_GRAPHS:
        raise QueryRefused(f"{len(iris)} graphs in one dataset, at most {MAX_GRAPHS}; use aggregate graphs")
    for iri in iris:
        if iri.startswith(INTERNAL):
            raise QueryRefused(f"<{iri}> is a graph of the store's own and cannot be read")
    return [named(iri) for iri in iris]


def _syntax(sparql: str, text: str) -> QuerySyntax:
    """What is wrong and where, in one line: what the engine would have expected there is a page of its grammar."""
    place = _PLACE.match(text)
    line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    begin = _BEGIN.match(sparql)
    if begin and begin["word"].upper() not in FORMS:
        word = f"this one with {begin['word'][:_SHOWN_CHARACTERS]!r}" if begin["word"] else "there is none of them"
        what = f"after its prefixes a query begins with one of {', '.join(FORMS)}; {word}"
    elif unknown := _undeclared(sparql):
        name, start = unknown["used"], unknown.start()
        line, column = sparql.count("\n", 0, start) + 1, start - sparql.rfind("\n", 0, start)
        what = f"line {line}, column {column}: the prefix {name[:_SHOWN_CHARACTERS]}: is not declared; "
        what += f"begin with PREFIX {name[:_SHOWN_CHARACTERS]}: <...>"
    elif place is None:
        what = " ".join(text.split())[:_MESSAGE_CHARACTERS]
    else:
        rest = sparql.split("\n")[line - 1][column - 1 :].strip()
        what = f"line {line}, column {column}: " + (
            f"it cannot go on with {rest[:_SHOWN_CHARACTERS]!r}" if rest else "something is missing here"
        )
    return QuerySyntax(f"not a SPARQL query: {what}", line, column)


def _undeclared(sparql: str) -> re.Match[str] | None:
    """The first name whose prefix is not declared. The engine reads on and may stop elsewhere."""
    found = list(_PREFIXED.finditer(sparql))
    declared = {it["declared"] for it in found}
    return next((it for it in found if it["used"] is not None and it["used"] not in declared), None)
