"""What answers each kind of call: JSON, sealed bytes, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import trio
from starlette.types import Receive, Scope, Send

from p2pmem.api.codec import dumps, encode
from p2pmem.api.events import KEEP_ALIVE, PROBLEM_EVENT, ServerEvent
from p2pmem.api.problems import BadRequestError, ForbiddenError, problem_of, single
from p2pmem.api.requests import arguments_of
from p2pmem.api.routes import AGENT_CALLS, Answer, Call
from p2pmem.face import ENDED_STATES, ChangeEvent, Face, JobView

KEEP_ALIVE_S: Final = 15.0
OF_AGENT: Final = "p2pmem.of_agent"
"""Where the scope of a request has the face of the agent whose token was given; absent with the node's own token."""
_JSON: Final = "application/json"


async def send_bytes(send: Send, status: int, media_type: str, body: bytes, *more: tuple[bytes, bytes]) -> None:
    """A whole answer. Nothing of it may be kept by a cache: it may be private."""
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: object, *more: tuple[bytes, bytes]) -> None:
    await send_bytes(send, status, _JSON, dumps(value).encode(), *more)


class Endpoint:
    """The ASGI application of one call.

    Reading ends when the caller goes away. Writing goes on to its end: a caller that lost its connection finds all or
    nothing done, and may ask again.
    """

    def __init__(self, call: Call, face: Face, closing: trio.Event) -> None:
        self._call = call
        self._method: Callable[..., Any] = getattr(face, call.name)
        self._face = face
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arguments = await arguments_of(self._call, scope, receive)
        of_agent: Face | None = scope.get(OF_AGENT)
        if of_agent is not None and self._call.name not in AGENT_CALLS:
            raise ForbiddenError(f"an agent's token does not open {self._call.path}; the node's own token does")
        method = self._method if of_agent is None else getattr(of_agent, self._call.name)
        if self._call.answer is Answer.EVENTS:
            if self._call.name == "watch_job":
                # what is not there is answered as everywhere else, before a stream begins
                await (of_agent or self._face).job(arguments["job"])
            arguments["since"] = _last_seen(scope, arguments["since"])
            await EventStream(send, self._closing).run(receive, method(**arguments))
            return
        work: Awaitable[object] = method(**arguments)
        if self._call.verb == "GET":
            present, result = await _while_present(receive, work)
            if not present:
                return
        else:
            result = await work
        if self._call.answer in (Answer.CONTENT, Answer.CBOR):
            await send_bytes(send, 200, self._call.answer.value, cast("bytes", result))
        else:
            await send_json(send, self._status(result), self._body(result, arguments))

    def _status(self, result: object) -> int:
        running = self._call.submits and isinstance(result, JobView) and result.state not in ENDED_STATES
        return 202 if running else 200

    def _body(self, result: object, arguments: Mapping[str, Any]) -> object:
        if self._call.name == "jobs":
            jobs = cast("tuple[JobView, ...]", result)
            more = len(jobs) >= arguments["limit"] and len(jobs) > 0
            return {"jobs": encode(jobs), "next": jobs[-1].id if more else None}
        if self._call.wrap:
            return {self._call.wrap: encode(result)}
        return {} if result is None else result


def _last_seen(scope: Scope, since: int) -> int:
    """A browser that connects again says what it saw last."""
    for name, value in scope["headers"]:
        if name.lower() == b"last-event-id":
            text = value.decode("latin-1")
            if not text.isascii() or not text.isdigit() or len(text) > 16:
                raise BadRequestError("Last-Event-ID is no position")
            return max(since, int(text))
    return since


async def _while_present(receive: Receive, work: Awaitable[object]) -> tuple[bool, object]:
    """The result of `work`, cancelled when the caller goes away; and whether the caller is still there."""
    present, result = True, None

    async def watch() -> None:
        nonlocal present
        while (await receive())["type"] != "http.disconnect":
            pass
        present = False
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        result = await work
        nursery.cancel_scope.cancel()
    return present, result


class EventStream:
    """Sends values as server-sent events until they end, the caller goes away, or the node closes.

    Comments keep an idle stream alive, and find out a caller that is gone. A caller that reads slowly holds up its own
    stream only.
    """

    def __init__(self, send: Send, closing: trio.Event) -> None:
        self._asgi_send = send
        self._closing = closing
        self._lock = trio.Lock()

    async def run(self, receive: Receive, source: AsyncIterator[Any]) -> None:
        headers = [
            (b"content-type", Answer.EVENTS.value.encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await self._asgi_send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(KEEP_ALIVE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_gone, receive, nursery.cancel_scope)
            nursery.start_soon(self._until_closing, nursery.cancel_scope)
            nursery.start_soon(self._keep_alive)
            await self._send_all(source)
            nursery.cancel_scope.cancel()
        await self._asgi_send({"type": "http.response.body", "body": b""})

    async def _send_all(self, source: AsyncIterator[Any]) -> None:
        try:
            async with _closing(source):
                async for value in source:
                    await self._send(_event_of(value).encode())
        except Exception as raised:
            error = single(raised)
            status, body = problem_of(error)
            await self._send(ServerEvent(dumps({"status": status, **body}), PROBLEM_EVENT).encode())
            if status == 500:
                raise

    async def _send(self, data: bytes) -> None:
        async with self._lock:
            await self._asgi_send({"type": "http.response.body", "body": data, "more_body": True})

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep(KEEP_ALIVE_S)
            await self._send(KEEP_ALIVE)

    async def _until_gone(self, receive: Receive, scope: trio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _until_closing(self, scope: trio.CancelScope) -> None:
        await self._closing.wait()
        scope.cancel()


@asynccontextmanager
async def _closing(source: AsyncIterator[Any]) -> AsyncIterator[None]:
    """Lets the source tidy up at once, if it is a generator, and not when it is collected."""
    try:
        yield
    finally:
        aclose = getattr(source, "aclose", None)
        if aclose is not None:
            await aclose()


def _event_of(value: object) -> ServerEvent:
    match value:
        case ChangeEvent():
            return ServerEvent(dumps(value), "change", str(value.position))
        case JobView():
            return ServerEvent(dumps(value), "job", str(value.position) if value.position else "")
    raise TypeError(f"{type(value).__name__} is no event")
