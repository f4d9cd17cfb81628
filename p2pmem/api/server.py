"""The HTTP server of a node: the application over a `Face`, and its life in the node's nursery."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio import serve as hypercorn_serve
from hypercorn.typing import Framework
from p2pmem_protocol.errors import OutsideError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from p2pmem.api.endpoints import OF_AGENT, Endpoint, send_json
from p2pmem.api.guard import Guard
from p2pmem.api.problems import BUG, NoSuchRouteError, NotAuthorisedError, WrongMethodError, problem, problem_of, single
from p2pmem.api.requests import HangUp
from p2pmem.api.routes import CALLS
from p2pmem.api.sparql import SparqlEndpoint
from p2pmem.face import Face, NotFoundError

log: Final = logging.getLogger(__name__)

REQUESTS_MAX: Final = 256
GRACE_S: Final = 3.0
KEEP_ALIVE_S: Final = 30.0
# A caller that takes nothing for so long is cut off by the kernel, also in the middle of a shielded write.
UNSENT_MS_MAX: Final = 20_000


class Application:
    """The ASGI application: guard, limit, routes, and errors as problems. Never shows a stack trace."""

    def __init__(
        self,
        face: Face,
        *,
        token: str,
        host: str = "127.0.0.1",
        ready: Callable[[], bool] = lambda: True,
        closing: trio.Event | None = None,
        of_agent: Callable[[str], Face] | None = None,
    ) -> None:
        """`ready` says whether `/readyz` may answer 200. Streams of events end when `closing` is set.

        `of_agent` gives what one agent may do; it raises a `NotFoundError` for somebody who is none. Without it only
        the node's own token opens anything.
        """
        self._of_agent = of_agent
        self._guard = Guard(token=token, host=host)
        self._ready = ready
        self._running = 0
        closing = trio.Event() if closing is None else closing
        routes: list[BaseRoute] = [
            Route("/healthz", _Probe(lambda: True, "alive"), methods=["GET"]),
            Route("/readyz", _Probe(ready, "ready"), methods=["GET"]),
            Route("/v1/sparql", SparqlEndpoint(face), methods=["GET", "POST"]),
        ]
        for call in CALLS.values():
            routes.append(Route(call.path, Endpoint(call, face, closing), methods=[call.verb], name=call.name))
        self._router: ASGIApp = Router(routes, redirect_slashes=False, default=_no_route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "no call of this interface is a WebSocket"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_and_note(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            agent = self._guard.check(scope["path"], scope["headers"])
            scope = {**scope, "app": self, **({} if agent is None else {OF_AGENT: self._face_of(agent)})}
            if self._running >= REQUESTS_MAX:
                raise OutsideError(f"{REQUESTS_MAX} requests are being answered; ask again later")
            self._running += 1
            try:
                await self._router(scope, receive, send_and_note)
            finally:
                self._running -= 1
        except HangUp:
            log.info("api.caller-gone", extra={"method": scope["method"]})
        except Exception as raised:
            await self._send_problem(scope, send, raised, begun=begun)

    def _face_of(self, agent: str) -> Face:
        try:
            if self._of_agent is not None:
                return self._of_agent(agent)
        except NotFoundError as error:
            raise NotAuthorisedError(str(error)) from None
        raise NotAuthorisedError("here only the node's own token opens anything")

    async def _send_problem(self, scope: Scope, send: Send, raised: Exception, *, begun: bool) -> None:
        error = single(raised)
        if isinstance(error, HTTPException):
            error = WrongMethodError(f"{scope['method']} is not possible here: see the table of calls")
        status, body = problem_of(error)
        if status == BUG.status:
            log.error("api.bug", exc_info=raised, extra={"method": scope["method"]})
        if begun:
            # the status is out; an answer that ends early is all that can still be said
            return
        more = [(b"www-authenticate", b"Bearer")] if status == 401 else []
        await send_json(send, status, body, *more)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NoSuchRouteError("no call has this path: see the table of calls in p2pmem.api.routes")


class _Probe:
    """An answer of yes or no for whoever watches the process. It tells nothing else."""

    def __init__(self, holds: Callable[[], bool], word: str) -> None:
        self._holds = holds
        self._word = word

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._holds():
            await send_json(send, 200, {self._word: True})
        else:
            await send_json(send, 503, problem(f"not-{self._word}", "not yet; ask again"))


async def serve_http(
    face: Face,
    token: str,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    ready: Callable[[], bool] = lambda: True,
    stop: trio.Event | None = None,
    of_agent: Callable[[str], Face] | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer over HTTP until cancelled, or until `stop` is set; `task_status` gets the URL, with the real port.
    `of_agent`: as for `Application`.

    When `stop` is set, streams of events end at once, no connection is taken, and what is being answered has
    `GRACE_S` seconds. Cancelled, all ends at once; what a call had already written stays. Raises `OutsideError` when
    it cannot listen.
    """
    stopping = trio.Event() if stop is None else stop
    application = Application(face, token=token, host=host, ready=ready, closing=stopping, of_agent=of_agent)
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}"
    config = HypercornConfig()
    config.accesslog = None
    config.errorlog = logging.getLogger("p2pmem.api.hypercorn")
    config.include_server_header = False
    config.graceful_timeout = GRACE_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.bind = [f"fd://{listener.detach()}"]
    async with trio.open_nursery() as nursery:
        serving = partial(
            hypercorn_serve, cast("Framework", application), config, shutdown_trigger=stopping.wait, mode="asgi"
        )
        await nursery.start(serving)
        log.info("api.listening", extra={"url": url})
        task_status.started(url)
    log.info("api.closed")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # connections inherit both
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(AttributeError):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_MS_MAX)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OutsideError(
            f"cannot listen at {host}:{port} for HTTP: {error.strerror or error}; set http.port to another port, or to "
            "0 so that the system chooses one"
        ) from error
    return listener
