"""The query operation of the SPARQL 1.1 protocol, so that the tools of others can ask a context graph.

    GET  /v1/sparql?query=...                          POST  with a form, or with application/sparql-query as the body

The context graph is `graph`, or the one `default-graph-uri`; with one graph only, it may be left out. `layer`,
`min_trust`, `min_m` and `at_least` are those of `/v1/query`. Answers come as SPARQL 1.1 JSON results or N-Triples, the
one form of each kind, whatever `Accept` asks for. The header `P2pmem-Truncated` says whether the answer was cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import pyoxigraph as ox
from starlette.types import Receive, Scope, Send

from p2pmem.api.codec import decode_text
from p2pmem.api.endpoints import OF_AGENT, send_bytes
from p2pmem.api.problems import BadRequestError, ForbiddenError
from p2pmem.api.requests import QUERY_FIELDS_MAX, body_of, query_of
from p2pmem.api.routes import BODY_BYTES_MAX
from p2pmem.face import Face, Layer, QueryAnswer
from p2pmem.store.terms import to_json

RESULTS: Final = "application/sparql-results+json"
TRIPLES: Final = "application/n-triples"
_QUERY: Final = "application/sparql-query"
_FORM: Final = "application/x-www-form-urlencoded"
_KNOWN: Final = ("query", "graph", "default-graph-uri", "layer", "min_trust", "min_m", "at_least")


class SparqlEndpoint:
    """The ASGI application at `/v1/sparql`."""

    def __init__(self, face: Face) -> None:
        self._face = face

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if OF_AGENT in scope:
            raise ForbiddenError("an agent's token does not open /v1/sparql; the node's own token does")
        parameters = await _parameters(scope, receive)
        for name in parameters:
            if name not in _KNOWN:
                raise BadRequestError(f"there is no parameter {name[:60]!r}; there are: {', '.join(_KNOWN)}")
        if "query" not in parameters:
            raise BadRequestError("query is missing")
        answer = await self._face.query(
            parameters["query"],
            graph=await self._graph(parameters),
            layer=decode_text(Layer, parameters["layer"], "layer") if "layer" in parameters else None,
            min_trust=parameters.get("min_trust"),
            at_least=decode_text(int, parameters.get("at_least", "0"), "at_least"),
            min_m=decode_text(int, parameters.get("min_m", "0"), "min_m"),
        )
        media_type, body = show(answer)
        truncated = b"true" if answer.truncated else b"false"
        await send_bytes(send, 200, media_type, body, (b"p2pmem-truncated", truncated))

    async def _graph(self, parameters: Mapping[str, str]) -> str:
        if "graph" in parameters and "default-graph-uri" in parameters:
            raise BadRequestError("graph and default-graph-uri are two names for one thing: give one")
        named = parameters.get("graph") or parameters.get("default-graph-uri")
        if named:
            return named
        graphs = await self._face.graphs()
        if len(graphs) != 1:
            raise BadRequestError(f"graph is missing: there are {len(graphs)} context graphs here")
        return graphs[0].graph


async def _parameters(scope: Scope, receive: Receive) -> dict[str, str]:
    parameters = query_of(scope)
    body = await body_of(scope, receive, BODY_BYTES_MAX if scope["method"] == "POST" else 0)
    if scope["method"] != "POST":
        return parameters
    more = _posted(_media_type(scope), body)
    twice = sorted(set(parameters) & set(more))
    if twice:
        raise BadRequestError(f"the parameter {twice[0]} comes twice")
    return parameters | more


def _posted(media_type: str, body: bytes) -> dict[str, str]:
    try:
        text = body.decode("utf-8")
        if media_type == _QUERY:
            return {"query": text}
        if media_type != _FORM:
            raise BadRequestError(f"the media type is {media_type[:60]!r}: {_QUERY} and {_FORM} are possible")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise BadRequestError("the body does not parse, or is not UTF-8") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequestError("a parameter comes twice")
    return found


def _media_type(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name.lower() == b"content-type":
            return str(value.decode("latin-1").partition(";")[0].strip().lower())
    return ""


def show(answer: QueryAnswer) -> tuple[str, bytes]:
    """Media type and bytes of an answer, as the standard has them."""
    if answer.kind == "triples":
        return TRIPLES, answer.triples.encode()
    if answer.kind == "boolean":
        document: dict[str, object] = {"head": {}, "boolean": answer.boolean}
    else:
        document = {"head": {"vars": list(answer.variables)}, "results": {"bindings": _bindings(answer)}}
    return RESULTS, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _bindings(answer: QueryAnswer) -> list[dict[str, object]]:
    terms = [term for row in answer.rows for term in row if term is not None]
    # one document that says each term in turn is parsed at once
    document = "".join(f"<x:s> <x:p> {term} .\n" for term in terms)
    parsed = iter([triple.object for triple in ox.parse(document, format=ox.RdfFormat.N_TRIPLES)])
    bindings: list[dict[str, object]] = []
    for row in answer.rows:
        named = zip(answer.variables, row, strict=True)
        bindings.append({name: to_json(next(parsed)) for name, term in named if term is not None})
    return bindings
