"""A request's bytes to the arguments of a call, within limits of size and time."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

import trio
from starlette.types import Receive, Scope

from p2pmem.api.codec import BadValueError, decode, decode_text, loads
from p2pmem.api.problems import BadRequestError, BodyTooLargeError, BodyTooSlowError
from p2pmem.api.routes import Call

BODY_TIME_MAX_S: Final = 60.0
QUERY_FIELDS_MAX: Final = 32


class HangUp(Exception):
    """The caller went away in the middle of its request; nobody waits for an answer."""


async def arguments_of(call: Call, scope: Scope, receive: Receive) -> dict[str, Any]:
    """What to call the method with. Raises errors of `p2pmem.api.problems`, and `HangUp`."""
    path: Mapping[str, str] = scope.get("path_params", {})
    found = {name: decode_text(call.arguments[name], path[name], name) for name in call.in_path}
    found |= _from_query(call, query_of(scope))
    body = await body_of(scope, receive, call.body_bytes_max if call.verb == "POST" else 0)
    if call.file:
        found[call.file] = body
    elif call.in_body or body:
        found |= _from_body(call, loads(body) if body else {})
    for name in call.arguments:
        if name not in found:
            if not call.has_default(name):
                raise BadValueError(f"{name} is missing{_where(call, name)}")
            found[name] = call.default(name)
    assert set(found) == set(call.arguments)
    return found


def _where(call: Call, name: str) -> str:
    """Where an argument is looked for."""
    if call.file:
        example = "&".join(f"{it}=..." for it in call.in_query if not call.has_default(it))
        return f" in the query: the body is the file itself, and all else goes into {call.path}?{example}"
    return " in the query" if name in call.in_query else " in the JSON object that is the body"


def query_of(scope: Scope) -> dict[str, str]:
    """The parameters after the question mark; each once, in UTF-8."""
    try:
        pairs = parse_qsl(
            scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(scope["query_string"]),
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except UnicodeError:
        raise BadRequestError("the query is not UTF-8 in percent-encoding") from None
    except ValueError as error:
        raise BadRequestError(f"the query does not parse: {error}") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise BadRequestError(f"the parameter {name[:60]!r} comes twice")
        found[name] = value
    return found


async def body_of(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body. No more than the limit is ever held, whatever was announced."""
    announced = _announced(scope)
    if announced is not None and announced > limit_bytes:
        raise BodyTooLargeError(_too_large(limit_bytes))
    pieces, size_bytes = [], 0
    with trio.move_on_after(BODY_TIME_MAX_S) as scope_of_time:
        while True:
            message: MutableMapping[str, Any] = await receive()
            if message["type"] == "http.disconnect":
                raise HangUp
            piece = message.get("body", b"")
            size_bytes += len(piece)
            if size_bytes > limit_bytes:
                raise BodyTooLargeError(_too_large(limit_bytes))
            pieces.append(piece)
            if not message.get("more_body", False):
                break
    if scope_of_time.cancelled_caught:
        raise BodyTooSlowError(f"the body did not come within {BODY_TIME_MAX_S:.0f} s")
    return b"".join(pieces)


def _announced(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name.lower() == b"content-length":
            return int(value)
    return None


def _too_large(limit_bytes: int) -> str:
    if not limit_bytes:
        return "this call takes no body"
    return f"the body is over {limit_bytes} bytes, the most that this call takes"


def _from_query(call: Call, query: Mapping[str, str]) -> dict[str, Any]:
    for name in query:
        if name not in call.in_query:
            known = ", ".join(call.in_query) or "none"
            raise BadRequestError(f"there is no parameter {name[:60]!r}; there are: {known}")
    return {name: decode_text(call.arguments[name], text, name) for name, text in query.items()}


def _from_body(call: Call, body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadValueError("the body is not a JSON object")
    parts: dict[str, dict[str, object]] = {name: {} for name in call.in_body if call.is_spread(name)}
    found: dict[str, Any] = {}
    for field, value in body.items():
        name = call.body_fields.get(field)
        if name is None:
            known = ", ".join(call.body_fields) or "none"
            raise BadValueError(f"there is no field {field[:60]!r}; there are: {known}")
        if call.is_spread(name):
            parts[name][field] = value
        else:
            found[name] = decode(call.arguments[name], value, field)
    return found | {name: decode(call.arguments[name], part) for name, part in parts.items()}
